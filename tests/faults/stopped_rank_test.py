"""When a rank is stopped, its job ends after STRETTO_TIMEOUT, and a sentence says so."""
import json
import os
import re
import signal
import unittest

from harness import FOREVER, FaultTest, ranks_under, until


class StoppedRank(FaultTest):

    def start_long_run(self, timeout, flags=None):
        log = self.log(f"log{len(self.runs)}")
        run = self.start({"--nproc": 4, "--tp": 2, "--train-iters": FOREVER, "--log-dir": log, **(flags or {})},
                         {"STRETTO_TIMEOUT": str(timeout)})
        self.wait_for_steps(log, 3)
        return run, log / "flight"

    def stop_one_of_four(self, victim, flags=None):
        run, flights = self.start_long_run(4, flags)
        os.kill(ranks_under(run.process.pid)[victim], signal.SIGSTOP)
        self.assertNotEqual(self.status(run, 40), 0)
        said = [line for line in run.errors if line.startswith("error: ")]
        # The operation that waits for it is the speaker's own, or that of a rank which the speaker waits for.
        # Of rank 0, the others may have heard nothing for as long as they wait in the operation.
        its = rf"rank (\d+, )*{victim}\b"
        self.assertTrue(any(re.search(rf"for {its}(, \d+)* in \w+ #\d+ of '|in \w+ #\d+ of '.*, and waits for {its}", line)
                            for line in said) or victim == 0, said)
        self.assertTrue(any(re.search(rf"Rank {victim} \(process \d+ on .*\) has given no sign of life for \d+ s: it is stopped", line)
                            for line in said), said)
        wrote = sorted(json.loads(file.read_text())["rank"] for file in flights.iterdir())
        self.assertEqual(wrote, [rank for rank in range(4) if rank != victim])
        self.expect_nothing_left()

    def test_rank_0_of_four(self):
        self.stop_one_of_four(0)

    def test_rank_2_of_four(self):
        self.stop_one_of_four(2)

    def test_a_signal_asks_for_the_last_operations(self):
        run, flights = self.start_long_run(600)
        for pid in [run.process.pid, *ranks_under(run.process.pid)]:
            os.kill(pid, signal.SIGUSR1)
        self.assertTrue(until(lambda: flights.exists() and len(list(flights.glob("*.json"))) == 4, 30), run.errors)
        flight = json.loads(next(flights.iterdir()).read_text())
        self.assertIn("all_reduce", {operation["what"] for operation in flight["operations"]})
        self.assertIsNone(run.process.poll())
        run.kill_all()


if __name__ == "__main__":
    unittest.main()
