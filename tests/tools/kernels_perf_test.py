"""./dev perf kernels: its verdicts on figures, with a control that falls short, and the page that it writes. Nothing is measured."""
import contextlib
import io
import json
import os
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

ROOT = pathlib.Path(os.environ["ROOT"])
sys.path.insert(0, str(ROOT))
from perf.comparisons import kernels  # noqa: E402


def row(kernel, size, ratio):
    return {"kernel": kernel, "dtype": "f32", "size": size, "bytes": 1e6, "bytes_a_second": ratio * 2e10, "loop_bytes_a_second": 2e10,
            "ratio": ratio}


def figures(ratio):
    return {"machine": {"cpu": "A processor", "cores": 2, "system": "A system", "date": "2000-01-01"}, "command": "./dev perf kernels",
            "training": [row("AdamW", "memory", ratio), row("AdamW", "trainer", 0.5)]}


class KernelsTest(unittest.TestCase):
    def run_on(self, what):
        """The status, what was printed, and the page that was written."""
        with tempfile.TemporaryDirectory() as directory:
            page = pathlib.Path(directory) / "page.md"
            page.write_text(f"before\n{kernels.SECTION.begin}\nstale\n{kernels.SECTION.end}\nafter\n")
            earlier = pathlib.Path(directory) / "figures.json"
            earlier.write_text(json.dumps(what))
            printed = io.StringIO()
            words = ["kernels", "--from", str(earlier), "--write-docs", str(page)]
            with unittest.mock.patch.object(sys, "argv", words), contextlib.redirect_stdout(printed):
                status = kernels.main()
            return status, printed.getvalue(), page.read_text()

    def test_a_kernel_at_the_speed_of_memory_holds(self):
        status, printed, page = self.run_on(figures(0.95))
        self.assertEqual(status, 0)
        self.assertIn("holds: AdamW, f32: 0.95 of the loop's speed, wanted 0.9", printed)
        self.assertIn("| AdamW | f32 | 19.0 | 20.0 | 0.95 | 10.0 | 20.0 | 0.50 |", page)
        self.assertNotIn("stale", page)

    def test_a_slow_kernel_falls_short(self):
        status, printed, page = self.run_on(figures(0.85))
        self.assertEqual(status, 1)
        self.assertIn("FALLS SHORT: AdamW, f32: 0.85", printed)
        self.assertIn("- FALLS SHORT: AdamW, f32: 0.85", page)


if __name__ == "__main__":
    unittest.main()
