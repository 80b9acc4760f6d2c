"""What ./dev perf selection says of its cells; stretto-perf itself is tested in perf_tool_test.py, the measurement in calibration_test.py."""
import os
import pathlib
import sys
import unittest

ROOT = pathlib.Path(os.environ["ROOT"])
sys.path.insert(0, str(ROOT))
from perf.comparisons.selection import SECTION, by_kind, cell, section, summary, verdicts  # noqa: E402


def cells(*ratios, where="2 ranks"):
    """Cells of these ratios, in which direct is the fastest method at both times."""
    times = [{"ring": ratio, "direct": 1.0} for ratio in ratios]
    return [cell(where, "all_reduce", 8 << i, "ring", us, us) for i, us in enumerate(times)]


class Selection(unittest.TestCase):
    def test_verdicts(self):
        self.assertEqual([verdict.holds for verdict in verdicts(cells(*[1.0] * 19, 1.4))], [True, True])
        self.assertEqual([verdict.holds for verdict in verdicts(cells(*[1.0] * 9, 1.4))], [False, True])
        self.assertEqual([verdict.holds for verdict in verdicts(cells(*[1.0] * 19, 1.6))], [True, False])

    def test_a_row_for_each_place(self):
        both = [*cells(1.0, 1.2, 2.0, 1.1), *cells(1.0, where="2 hosts x 2 ranks")]
        self.assertEqual(summary(both)[1:], [["2 ranks", "4", "50%", "1", "2.00", "100%", "0"],
                                             ["2 hosts x 2 ranks", "1", "100%", "0", "1.00", "100%", "0"]])

    def test_calls_with_a_root_are_counted_apart(self):
        rooted = [cell("2 ranks", "gather", 8, "ring", us, us) for us in ({"ring": 2.0, "direct": 1.0}, {"ring": 1.0})]
        self.assertEqual(by_kind([*cells(1.0, 1.2), *rooted]),
                         "Without a root 50% of 2 cells are within 1.15, and 0 beyond 1.5 (the earlier fastest: 100% and 0); "
                         "with a root 50% of 2 cells are within 1.15, and 1 beyond 1.5 (the earlier fastest: 100% and 0).")
        self.assertEqual(by_kind(rooted[1:]), "With a root 100% of 1 cells are within 1.15, and 0 beyond 1.5 (the earlier fastest: 100% and 0).")

    def test_the_earlier_fastest_is_judged_by_the_later_times(self):
        moved = cell("2 ranks", "gather", 64, "ring", {"ring": 1.0, "direct": 2.0}, {"ring": 2.0, "direct": 1.0})
        gone = cell("2 ranks", "gather", 64, "direct", {"ring": 1.0, "direct": 2.0}, {"direct": 1.0})
        self.assertEqual((moved.ratio, moved.repeated, moved.fastest), (2.0, 2.0, "direct"))
        self.assertEqual((gone.ratio, gone.repeated), (1.0, float("inf")))

    def test_the_page(self):
        self.assertIn("| 2 ranks | 1 | 100% | 0 | 1.00 | 100% | 0 |", section(cells(1.0), "./dev perf selection"))
        SECTION.around(ROOT / "docs/selection.md")  # exits if the page has no place for the figures


if __name__ == "__main__":
    unittest.main()
