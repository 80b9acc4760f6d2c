"""How ./dev perf selection judges its cells; stretto-perf itself is tested in perf_tool_test.py, the measurement in calibration_test.py."""
import contextlib
import io
import math
import os
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(os.environ["ROOT"])
sys.path.insert(0, str(ROOT))
from perf.comparisons import harness  # noqa: E402
from perf.comparisons.programs import read_json, write_json  # noqa: E402
from perf.comparisons.selection import EARLIER, MEASURED, SHIPPED, cell, notes, tables, verdicts  # noqa: E402


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
        self.assertIsNone(gone.ratios[EARLIER])

    def test_an_earlier_fastest_without_a_time_is_far_behind(self):
        ways = {SHIPPED: "direct", MEASURED: "direct"}
        gone = cell("2 ranks", "gather", 64, ways, {"ring": 1.0, "direct": 2.0}, {"direct": 1.0})
        with tempfile.TemporaryDirectory(prefix="selection-") as directory:
            path = pathlib.Path(directory) / "figures.json"
            write_json(path, {"cells": [gone._asdict()]})
            self.assertNotIn("Infinity", path.read_text())
            read = read_json(path)
            with self.assertRaises(ValueError):
                write_json(path, {"ratio": math.inf})
            self.assertEqual(read_json(path), read)
        self.assertEqual(next(tables(read)).rows[-1][-2:], ["0.0%", "1"])
        self.assertTrue(next(notes(read)).endswith("0.0% are within 1.15 and 1 beyond 1.5 by the earlier fastest."))

    def test_nothing_to_measure_is_refused(self):
        said = io.StringIO()
        with contextlib.redirect_stderr(said), self.assertRaises(SystemExit):
            harness.COMPARISONS["selection"].parse(["--nproc", "0", "--layouts", "0"])
        self.assertIn("--nproc 0 with --layouts 0 leaves nothing to measure; give numbers of ranks, or layouts", said.getvalue())


if __name__ == "__main__":
    unittest.main()
