"""stretto-info flight names the rank, the operation and the call site of jobs that went wrong."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

INFO = os.environ["INFO_PROGRAM"]
CASES = os.environ["FLIGHT_CASES"]
SOURCE = pathlib.Path(__file__).with_name("flight_cases.cpp")


def line_of(mark):
    """The call site as the flight recorder tells it."""
    for number, line in enumerate(SOURCE.read_text().splitlines(), 1):
        if line.endswith(f"// {mark}"):
            return f"tools/flight_cases.cpp:{number}"
    raise KeyError(mark)


class FlightTool(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.directory = pathlib.Path(directory.name)
        cls.ended = {"slow": cls.started("slow").communicate(timeout=120)}
        # The others wait for most of the time.
        running = {name: cls.started(name) for name in ("skip", "other_shape", "swap", "circle", "message", "endless")}
        cls.ended.update({name: process.communicate(timeout=120) for name, process in running.items()})
        cls.status = {name: process.returncode for name, process in running.items()}

    @classmethod
    def started(cls, name, **settings):
        environment = {**os.environ, "STRETTO_FLIGHT_DIR": str(cls.directory / name), "STRETTO_TIMEOUT": "4", **settings}
        return subprocess.Popen([CASES, name], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def errors(self, name):
        self.assertEqual(self.status[name], 1, self.ended[name])
        self.assertEqual(len(list((self.directory / name).iterdir())), 4)
        return self.ended[name][1]

    def report(self, name):
        result = subprocess.run([INFO, "flight", self.directory / name], capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, 0, result.stderr)
        parts = re.split(r"\n(In what ranks differ|Who waits for whom|Slow ranks|Ranks)\n", result.stdout)
        return dict(zip(parts[1::2], parts[2::2]))

    def test_a_damaged_file_is_named_and_the_others_are_reported(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(self.directory / "skip", folder, dirs_exist_ok=True)
            damaged = sorted(pathlib.Path(folder).iterdir())[1]
            for content in (damaged.read_bytes()[:1000], b""):
                damaged.write_bytes(content)
                result = subprocess.run([INFO, "flight", folder], capture_output=True, text=True, timeout=60)
                self.assertEqual(result.returncode, 1, result.stdout)
                self.assertIn(str(damaged), result.stderr)
                self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
                self.assertRegex(result.stdout, r"Who waits for whom\n.*rank")

    def test_a_rank_that_leaves_one_of_equal_sums_out(self):
        report = self.report("skip")
        self.assertIn("Rank 3 left out all_reduce #32 of 'world' (100 f32, at " + line_of("LEFT OUT") + ")",
                      report["In what ranks differ"])
        # A rank that has heard first that rank 3 has left may have ended before another one writes.
        self.assertRegex(report["Who waits for whom"], r"Ranks? [0-2].* waits? in all_reduce #60 .* for ranks? ([0-2][0-2, and]*)?3\. Rank \d is "
                         r"behind: its last operation there is all_reduce #59 ")
        self.assertRegex(self.errors("skip"), r"Rank 3 has left the job \(.*\), and rank [0-2] waits for it in all_reduce #60 of 'world' \(100 f32, at ")

    def test_a_rank_that_leaves_a_sum_of_another_size_out(self):
        said = self.errors("other_shape")
        # Ranks of one host may notice the difference themselves, before one has waited.
        noticed = r"Rank \d called (barrier where rank \d called all_reduce of 5000 f32|all_reduce of 5000 f32 \(sum\) where rank 3 called barrier)"
        if re.search(noticed, said):
            return
        self.assertRegex(self.report("other_shape")["In what ranks differ"],
                         r"Rank 3 called barrier #2 of 'world' \(1 f32, at \S+\) where ranks 0 to 2 called "
                         r"all_reduce #2 of 'world' \(5000 f32, at tools/flight_cases.cpp:\d+\)")

    def test_two_ranks_that_swap_two_sums(self):
        self.assertEqual(self.status["swap"], 0)  # their sums are mixed up, and nobody waits
        differences = self.report("swap")["In what ranks differ"]
        for rank in (1, 2):
            self.assertIn(f"Rank {rank} called all_reduce #1 of 'world' (64 f32, second, at {line_of('SECOND')}) before "
                          f"all_reduce #2 of 'world' (64 f32, first, at {line_of('FIRST')})", differences)

    def test_two_communicators_in_another_order(self):
        waits = self.report("circle")["Who waits for whom"]
        self.assertRegex(waits, r"Ranks 0 and 1 wait in all_reduce #2 of 'world' .* for ranks 2 and 3\.")
        self.assertRegex(waits, r"Ranks 2 and 3 wait in all_reduce #1 of 'other' .* for ranks 0 and 1\.")
        self.assertIn("A circle: rank ", waits)
        # The error of the timeout says what the other ranks are in.
        self.assertRegex(self.errors("circle"), r"waited 4 s for rank \d.* in all_reduce #\d of '(world|other)' .*; rank \d has been in "
                         r"all_reduce #\d of '(world|other)' ")

    def test_two_communicators_in_another_order_when_calls_are_checked(self):
        errors = self.started("circle", STRETTO_CHECK="1", STRETTO_TIMEOUT="600").communicate(timeout=120)[1]
        there = r"in all_reduce #\d of '(world|other)' \(10 f32, at tools/flight_cases.cpp:\d+\)"
        self.assertRegex(errors, rf"Rank \d waits for rank \d {there}, and rank \d waits for rank \d {there}, and neither can begin")

    def test_a_slow_rank(self):
        report = self.report("slow")
        slow = re.search(r"Rank (\d) is slow: .* (\d+)% of the time; longest in operations like all_reduce #\d+ of 'world' "
                         r"\(1000 f32, gradients, at (\S+)\)", report["Slow ranks"])
        self.assertTrue(slow, report)
        self.assertEqual((slow[1], slow[3]), ("2", line_of("SLOW")))
        self.assertIn("In nothing", report["In what ranks differ"])
        self.assertIn("Nobody waits", report["Who waits for whom"])

    def test_a_message_that_nobody_sends(self):
        self.errors("message")
        waits = self.report("message")["Who waits for whom"]
        self.assertIn(f"Rank 1 waits in recv #1 of 'world' (1 f32, at {line_of('RECEIVE')})", waits)
        self.assertRegex(waits, r"Ranks 0, 2 and 3 wait in barrier #2 .* for rank 1\.")

    def test_a_rank_that_computes_for_ever(self):
        # The endless one is killed at last, but its file is there: the thread that heard of the failure has written it.
        self.assertNotEqual(self.status["endless"], 0)
        self.assertEqual(len(list((self.directory / "endless").iterdir())), 4)
        self.assertRegex(self.ended["endless"][1], r"for rank 2 in all_reduce #2 of 'world' \(3 f32, gradients, at \S+\); rank 2 is in no "
                         r"operation: its last one, all_reduce #1 of 'world' \(3 f32, at \S+\), ended \d+\.\d s ago")

    def test_what_is_no_flight(self):
        directory = self.directory / "none"
        rank_7_of_2 = self.flight(7, 2)
        for content, said in ((None, "Cannot read"), ("{", "is no flight file"), ('{"format": 3}', "is no flight file"),
                              ('{"format": "3"}', "has the format '3'"), (rank_7_of_2, "is of rank 7 of 2"),
                              (self.flight(0, 1e300), "is no flight file"), (self.flight(0, 2**40), "is no flight file")):
            with self.subTest(content=content):
                if content is not None:
                    directory.mkdir(exist_ok=True)
                    (directory / "flight_1_00000.json").write_text(content)
                self.assertIn(said, self.refusal(directory))
        (directory / "flight_1_00000.json").unlink()
        os.mkfifo(directory / "flight_1_00000.json")
        self.assertIn("no regular file", self.refusal(directory))

    def test_a_job_of_many_ranks_that_wrote_no_file(self):
        directory = self.directory / "one"
        directory.mkdir()
        (directory / "flight_1_00000.json").write_text(self.flight(3, 2**31 - 1))
        result = subprocess.run([INFO, "flight", directory], capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("     0  and all up to 2 wrote no file\n     3  node:17 rests\n     4  and all up to 2147483646 wrote no file\n",
                      result.stdout)

    @staticmethod
    def flight(rank, size):
        return json.dumps({"format": "stretto flight 1", "job": "1", "rank": rank, "size": size, "host": "node", "process": 17, "reason": "",
                           "written": 1e300, "account": "rests", "groups": [], "operations": []})

    def refusal(self, directory):
        result = subprocess.run([INFO, "flight", directory], capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, 1)
        return result.stderr


if __name__ == "__main__":
    unittest.main()
