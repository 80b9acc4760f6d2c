"""./dev perf kernels: its verdicts on figures, with a control that falls short, and the page that it writes. Nothing is measured."""
import contextlib
import io
import os
import pathlib
import sys
import unittest

ROOT = pathlib.Path(os.environ["ROOT"])
sys.path.insert(0, str(ROOT))
from page_harness import run_on  # noqa: E402
from perf.comparisons import kernels  # noqa: E402


def row(kernel, size, ratio):
    return {"kernel": kernel, "dtype": "f32", "size": size, "bytes": 1e6, "bytes_a_second": ratio * 2e10, "loop_bytes_a_second": 2e10,
            "ratio": ratio}


def figures(ratio, attention=0.5):
    return {"machine": {"cpu": "A processor", "cores": 2, "system": "A system", "date": "2000-01-01"}, "command": "./dev perf kernels",
            "training": [row("AdamW", "memory", ratio), row("AdamW", "trainer", 0.5)],
            "attention": [{"shape": "4x256x4x64", "dtype": "f32", "product_flops": 1e11, "forward_flops": attention * 1e11,
                           "backward_flops": 6e10}]}


class KernelsTest(unittest.TestCase):
    def test_a_kernel_at_the_speed_of_memory_holds(self):
        status, printed, page = run_on(kernels.main, kernels.SECTION, figures(0.95))
        self.assertEqual(status, 0)
        self.assertIn("holds: AdamW, f32: 0.95 of the loop's speed, wanted 0.9", printed)
        self.assertIn("| AdamW | f32 | 19.0 | 20.0 | 0.95 | 10.0 | 20.0 | 0.50 |", page)
        self.assertIn("holds: attention, forward, 4x256x4x64, f32: 0.50 of the products' rate, wanted 0.45", printed)
        self.assertIn("| 4x256x4x64 | f32 | 100 | 0.50 | 0.60 |", page)
        self.assertNotIn("stale", page)

    def test_a_slow_kernel_falls_short(self):
        status, printed, page = run_on(kernels.main, kernels.SECTION, figures(0.85))
        self.assertEqual(status, 1)
        self.assertIn("FALLS SHORT: AdamW, f32: 0.85", printed)
        self.assertIn("- FALLS SHORT: AdamW, f32: 0.85", page)

    def test_slow_attention_falls_short(self):
        status, printed, page = run_on(kernels.main, kernels.SECTION, figures(0.95, attention=0.44))
        self.assertEqual(status, 1)
        self.assertIn("FALLS SHORT: attention, forward, 4x256x4x64, f32: 0.44", printed)
        self.assertIn("holds: attention, backward, 4x256x4x64, f32: 0.60", page)

    def test_a_page_takes_all_parts(self):
        one = {key: value for key, value in figures(0.95).items() if key != "attention"}
        with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()) as said:
            run_on(kernels.main, kernels.SECTION, one)
        self.assertIn("has one: measure without --only", said.getvalue())


if __name__ == "__main__":
    unittest.main()
