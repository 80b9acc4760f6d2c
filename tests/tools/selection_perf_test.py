"""What ./dev perf selection says of its cells; stretto-perf itself is tested in perf_tool_test.py, the measurement in calibration_test.py."""
import os
import pathlib
import sys
import unittest

ROOT = pathlib.Path(os.environ["ROOT"])
sys.path.insert(0, str(ROOT))
from perf.comparisons.selection import SECTION, Cell, section, summary, verdicts  # noqa: E402


def cells(*ratios):
    return [Cell("2 ranks", "all_reduce", 8 << i, "ring", "direct", ratio) for i, ratio in enumerate(ratios)]


class Selection(unittest.TestCase):
    def test_verdicts(self):
        self.assertEqual([verdict.holds for verdict in verdicts(cells(*[1.0] * 19, 1.4))], [True, True])
        self.assertEqual([verdict.holds for verdict in verdicts(cells(*[1.0] * 9, 1.4))], [False, True])
        self.assertEqual([verdict.holds for verdict in verdicts(cells(*[1.0] * 19, 1.6))], [True, False])

    def test_a_row_for_each_place(self):
        both = [*cells(1.0, 1.2, 2.0, 1.1), Cell("2 hosts x 2 ranks", "gather", 4096, "direct", "direct", 1.0)]
        self.assertEqual(summary(both)[1:], [["2 ranks", "4", "50%", "1", "2.00"], ["2 hosts x 2 ranks", "1", "100%", "0", "1.00"]])

    def test_the_page(self):
        self.assertIn("| 2 ranks | 1 | 100% | 0 | 1.00 |", section(cells(1.0), "./dev perf selection"))
        SECTION.around(ROOT / "docs/selection.md")  # exits if the page has no place for the figures


if __name__ == "__main__":
    unittest.main()
