"""./dev perf train: its verdicts on figures, with controls that fall short, and the page that it writes. Nothing is measured."""
import os
import pathlib
import sys
import unittest

ROOT = pathlib.Path(os.environ["ROOT"])
sys.path.insert(0, str(ROOT))
from page_harness import run_on  # noqa: E402
from perf.comparisons import train  # noqa: E402
from perf.pages.text import DocsSection  # noqa: E402


def of_dtype(ratio, share, **more):
    return {"stretto_tokens_per_s": 1000 * ratio, "ddp_tokens_per_s": 1000, "ratios": [ratio - 0.1, ratio, ratio + 0.2], "bound": 2.5,
            "gemm_share": share, "gemm_gflops_per_rank": 100, **more}


def figures(bf16_instructions=True, **dtypes):
    return {"machine": {"cpu": "A processor", "cores": 2, "system": "A system", "date": "2000-01-01"}, "command": "./dev perf train",
            "level": "native", "bf16_instructions": bf16_instructions, "torch": "1.13", "rounds": 3, "dtypes": dtypes}


def run_train(what):
    return run_on(train.main, DocsSection("./dev perf train"), what)


class TrainTest(unittest.TestCase):
    def test_all_that_is_wanted(self):
        status, printed, page = run_train(figures(fp32=of_dtype(1.3, 0.95), bf16=of_dtype(2.1, 0.8, over_fp32=1.5)))
        self.assertEqual((status, printed.count("holds:"), printed.count("\n")), (0, 3, 7), printed)
        self.assertIn("| fp32 | 1,300 | 1,000 | 1.30 | 1.20 to 1.50 | 2.50 | 0.95 | 100 |", page)
        self.assertNotIn("stale", page)

    def test_each_that_falls_short(self):
        good, slow = of_dtype(1.3, 0.95), of_dtype(1.2, 0.95)
        for what, sentence in [(figures(fp32=slow), "FALLS SHORT: fp32: 1.20 times"),
                               (figures(fp32=of_dtype(1.3, 0.9)), "FALLS SHORT: fp32: a share of 0.90"),
                               (figures(fp32=good, bf16=of_dtype(1.9, 0.8)), "FALLS SHORT: bf16: 1.90 times")]:
            status, printed, page = run_train(what)
            self.assertEqual(status, 1)
            self.assertIn(sentence, printed)
            self.assertIn(f"- {sentence}", page)

    def test_bf16_without_its_instructions_is_compared_with_fp32(self):
        for over, expected in [(1.0, 0), (0.9, 1)]:
            status, printed, _ = run_train(figures(False, fp32=of_dtype(1.3, 0.95), bf16=of_dtype(0.9, 0.8, over_fp32=over)))
            self.assertEqual(status, expected, printed)
        status, printed, _ = run_train(figures(False, bf16=of_dtype(0.9, 0.8)))
        self.assertEqual(status, 1)
        self.assertIn("NOT MEASURED: bf16, without bf16 instructions", printed)


if __name__ == "__main__":
    unittest.main()
