"""./dev perf check: a ratio that stays below all that were learned is said, one that is low by chance is not."""
import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from perf.comparisons import check

# Writes the next of the lists of ratios to --json, and falls short of its own requirements.
MEASURE = """
import json, pathlib, sys
left = pathlib.Path(sys.argv[1])
runs = json.loads(left.read_text())
left.write_text(json.dumps(runs[1:]))
pathlib.Path(sys.argv[3]).write_text(json.dumps(runs[0]))
sys.exit(1)
"""


class Check(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.runs = pathlib.Path(directory.name, "runs.json")
        parts = {"only": check.Part([sys.executable, "-c", MEASURE, self.runs], dict.items)}
        for name, value in (("EXPECTED", pathlib.Path(directory.name, "expected.json")), ("PARTS", parts)):
            patch = mock.patch.object(check, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def command(self, runs, *words):
        """Exit status, and what is printed."""
        self.runs.write_text(json.dumps(runs))
        output = io.StringIO()
        with mock.patch.object(sys, "argv", ["check", "--parts", "only", *words]), contextlib.redirect_stdout(output), \
                contextlib.redirect_stderr(io.StringIO()):
            status = check.main()
        self.assertEqual(json.loads(self.runs.read_text()), [], "all runs are used")
        return status, output.getvalue()

    def learn(self):
        self.command([{"a": 2.0, "b": 1.0}, {"a": 3.0, "b": 1.2}, {"a": 2.2, "b": 1.1}], "--learn", "3")

    def test_as_fast_as_ever(self):
        self.learn()
        status, output = self.command([{"a": 2.0, "b": 9.0}])
        self.assertEqual((status, output.count("\n")), (0, 1), output)
        self.assertIn("0 of 2 ratios", output)

    def test_slower_three_times(self):
        self.learn()
        status, output = self.command([{"a": 1.0, "b": 1.1}, {"a": 1.1, "b": 1.1}, {"a": 0.9, "b": 0.1}])
        self.assertEqual(status, 1)
        self.assertRegex(output, r"a +1\.10 +2\.00 +2\.20 +3\.00 +-50%")
        self.assertIn("1 of 2 ratios", output)

    def test_slower_by_chance(self):
        self.learn()
        self.assertEqual(self.command([{"a": 1.0, "b": 1.1}, {"a": 2.1, "b": 0.2}])[0], 0)

    def test_a_ratio_that_is_no_longer_measured(self):
        self.learn()
        status, output = self.command([{"a": 2.5}])
        self.assertEqual(status, 1)
        self.assertIn("NOT MEASURED: b", output)

    def test_a_kind_of_machine_of_which_nothing_is_known(self):
        with self.assertRaisesRegex(SystemExit, "does not say what to expect of .* in only; --learn 10 measures it"):
            self.command([])

    def test_what_is_learned_stands_beside_other_machines(self):
        check.EXPECTED.write_text(json.dumps({"another": {"only": {"rows": {}}}}))
        self.learn()
        expected = json.loads(check.EXPECTED.read_text())
        self.assertEqual(set(expected), {"another", check.kind_of_machine()})
        self.assertEqual(expected[check.kind_of_machine()]["only"]["rows"], {"a": [2.0, 2.2, 3.0], "b": [1.0, 1.1, 1.2]})


if __name__ == "__main__":
    unittest.main()
