"""How ./dev perf selection judges its cells; stretto-perf itself is tested in perf_tool_test.py, the measurement in calibration_test.py."""
import os
import pathlib
import sys
import unittest

ROOT = pathlib.Path(os.environ["ROOT"])
sys.path.insert(0, str(ROOT))
from perf.comparisons.selection import EARLIER, MEASURED, SHIPPED, cell, verdicts  # noqa: E402


def hold(*ratios):
    """Whether each verdict holds on cells of these ratios, in which direct is the fastest method at both times."""
    times = [{"ring": ratio, "direct": 1.0} for ratio in ratios]
    cells = [cell("2 ranks", "all_reduce", 8 << i, {SHIPPED: "direct", MEASURED: "ring"}, us, us) for i, us in enumerate(times)]
    return [verdict.holds for verdict in verdicts({"cells": [each._asdict() for each in cells]})]


class Selection(unittest.TestCase):
    def test_verdicts(self):
        self.assertEqual(hold(*[1.0] * 19, 1.4), [True, True])
        self.assertEqual(hold(*[1.0] * 9, 1.4), [False, True])
        self.assertEqual(hold(*[1.0] * 19, 1.6), [True, False])

    def test_the_earlier_fastest_is_judged_by_the_later_times(self):
        ways = {SHIPPED: "direct", MEASURED: "direct"}
        moved = cell("2 ranks", "gather", 64, ways, {"ring": 1.0, "direct": 2.0}, {"ring": 2.0, "direct": 1.0})
        gone = cell("2 ranks", "gather", 64, ways, {"ring": 1.0, "direct": 2.0}, {"direct": 1.0})
        self.assertEqual(moved.ratios, {SHIPPED: 1.0, MEASURED: 1.0, EARLIER: 2.0})
        self.assertEqual(gone.ratios[EARLIER], float("inf"))


if __name__ == "__main__":
    unittest.main()
