"""With --rejoin, processes take the places of ranks that are lost, and training goes on with all ranks behind the next step."""
import collections
import os
import re
import signal
import subprocess
import time
import unittest

from harness import FOREVER, FaultTest, in_turns, losses, of_today, ranks_under, until


@in_turns(3)
class Rejoin(FaultTest):

    def setUp(self):
        super().setUp()
        # However long a process takes to come: the steps are as long as the test wants, and their rate does not depend on their number.
        self.training = {"--nproc": 4, "--global-batch-size": 24, "--lr": 1e-3, "--min-lr": 1e-3, "--lr-warmup-iters": 0, "--dtype": "fp64", "--seq-length": 128}
        self.flags = {**self.training, "--elastic": True, "--rejoin": 2, "--train-iters": FOREVER, "--save": self.directory / "save",
                      "--save-interval": 10, "--keep": 2, "--log-dir": self.log("log")}

    def steps(self):
        metrics = self.log("log") / "metrics.jsonl"
        return len(metrics.read_text().splitlines()) if metrics.exists() else 0

    def lose(self, run, victims):
        """A few steps later. Returns how many were reported before."""
        self.wait_for_steps(self.log("log"), max(12, self.steps() + 5))
        ranks = ranks_under(run.process.pid)
        reported = self.steps()
        for victim in victims:
            os.kill(ranks[victim], signal.SIGKILL)
        return reported

    def wait_for_notices(self, run, count):
        self.assertTrue(until(lambda: len(run.errors) >= count, 60), run.errors)

    def stop(self, run):
        """A few steps later."""
        self.wait_for_steps(self.log("log"), self.steps() + 5)
        run.process.send_signal(signal.SIGTERM)
        self.assertEqual(self.status(run), 0, run.errors)

    def expect_losses_as_without_losses(self, flags):
        own = losses(self.log("log"))
        run = self.start({**self.training, **flags, "--train-iters": len(own), "--log-dir": self.log("whole")})
        self.assertEqual(self.status(run, 60 + len(own) // 5), 0, run.errors)
        undisturbed = losses(self.log("whole"))
        self.assertEqual(len(own), len(undisturbed))
        for one, other in zip(own, undisturbed):
            self.assertAlmostEqual(float(one), float(other), delta=1e-6)

    def test_lost_ranks_come_back(self):
        layouts = (({}, ([2], [3]), "3 of 4 ranks, dp 3", "1 of 4 ranks have joined. Training goes on with 4 ranks, dp 4"),
                   ({"--tp": 2, "--zero": 3}, ([3], [1]), "2 of 4 ranks, dp 1", "2 of 4 ranks have joined. Training goes on with 4 ranks, dp 2"))
        for (flags, victims, left, came), state in of_today([(layouts[i], state) for i, state in ((0, None), (1, None), (1, True), (0, True))]):
            with self.subTest(flags, state=state):
                self.setUp()
                run = self.start({**self.flags, **flags, "--replicate-state": state})
                reported = [self.lose(run, victims[0])]
                self.wait_for_notices(run, 2)
                reported.append(self.lose(run, victims[1]))  # one of them has come for another one
                self.wait_for_notices(run, 4)
                self.stop(run)
                self.assertEqual(len(run.errors), 4, run.errors)
                for notice, steps in zip(run.errors[::2], reported):
                    self.assertRegex(notice, rf"^Rank \d .* was killed or crashed, or has called exit\. Training goes on with {left}, ")
                    self.expect_steps_again(notice, 12 // int(left[-1]), steps)
                for notice in run.errors[1::2]:
                    self.assertRegex(notice, rf"^{re.escape(came)}, after step \d+\.$")
                self.expect_losses_as_without_losses(flags)
                self.expect_nothing_left()

    def test_all_ranks_have_cores_of_their_own_again(self):
        alone = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]  # no other job claims cores there
        if subprocess.run([*alone, "true"], capture_output=True).returncode != 0:
            self.skipTest("this user may not have a network of its own")
        run = self.start(self.flags, before=alone)
        self.wait_for_steps(self.log("log"), 12)
        cores = lambda: collections.Counter(frozenset(os.sched_getaffinity(rank)) for rank in ranks_under(run.process.pid))
        before = cores()
        if set(before) == {frozenset(os.sched_getaffinity(0))}:
            self.skipTest("the cores do not divide among four ranks")
        self.lose(run, [2])
        self.wait_for_notices(run, 2)
        self.assertEqual(cores(), before)
        self.stop(run)

    def test_a_process_that_has_come_is_lost(self):
        """Before it is taken in, or while it is: the next one takes its place."""
        run = self.start(self.flags, {"STRETTO_MEET_TIMEOUT": "8"})
        self.lose(run, [2])
        self.wait_for_notices(run, 1)
        first = set(ranks_under(run.process.pid))
        self.assertTrue(until(lambda: len(ranks_under(run.process.pid)) == 4, 60), run.errors)
        for came in set(ranks_under(run.process.pid)) - first:
            os.kill(came, signal.SIGKILL)
        self.assertTrue(until(lambda: any("have joined" in line for line in run.errors), 60), run.errors)
        self.stop(run)
        self.expect_losses_as_without_losses({})
        self.expect_nothing_left()

    def newcomer(self, run, before):
        """One that has come since, as soon as it is there."""
        self.assertTrue(until(lambda: set(ranks_under(run.process.pid)) - set(before), 60), run.errors)
        return min(set(ranks_under(run.process.pid)) - set(before))

    def wait_until_whole(self, run):
        self.assertTrue(until(lambda: len(ranks_under(run.process.pid)) == 4 and "have joined" in "".join(run.errors[-1:]), 60), run.errors)

    def test_others_are_lost_while_processes_come(self):
        """Whether they wait, meet or train by then: in the end all ranks train again, and so they do after one more loss."""
        for flags, lost, one_more in of_today((({}, 2, True), ({}, 2, False), ({"--tp": 2}, 3, False))):
            with self.subTest(flags, one_more=one_more):
                self.setUp()
                run = self.start({**self.flags, **flags, "--rejoin": 8}, {"STRETTO_MEET_TIMEOUT": "8"})
                self.wait_for_steps(self.log("log"), 12)
                before = ranks_under(run.process.pid)
                os.kill(before[lost], signal.SIGKILL)
                os.kill(self.newcomer(run, before), signal.SIGKILL)
                if one_more:
                    os.kill(before[1], signal.SIGKILL)
                time.sleep(0.1)
                self.wait_until_whole(run)
                count = len(run.errors)
                self.lose(run, [3])
                self.wait_for_notices(run, count + 2)
                self.wait_until_whole(run)
                self.stop(run)
                self.expect_losses_as_without_losses(flags)
                self.expect_nothing_left()

    def test_too_few_wait_and_no_starts_are_left(self):
        """They end, and the others go on as they are."""
        run = self.start({**self.flags, "--tp": 2, "--rejoin": 1}, {"STRETTO_MEET_TIMEOUT": "8"})
        self.wait_for_steps(self.log("log"), 12)
        before = ranks_under(run.process.pid)
        os.kill(before[3], signal.SIGKILL)
        os.kill(self.newcomer(run, before), signal.SIGKILL)
        self.assertTrue(until(lambda: len(ranks_under(run.process.pid)) == 2, 60), run.errors)
        self.stop(run)
        self.assertIn("ranks, dp 1", run.errors[-1])
        self.expect_nothing_left()

    def test_starts_are_used_up(self):
        run = self.start({**self.flags, "--rejoin": 1})
        self.lose(run, [2])
        self.wait_for_notices(run, 2)
        self.lose(run, [1])
        self.wait_for_notices(run, 3)
        self.stop(run)
        self.assertEqual(len(run.errors), 3, run.errors)
        self.assertIn("Training goes on with 3 of 4 ranks, dp 3", run.errors[2])
        self.expect_nothing_left()

    def test_the_job_ends_while_processes_wait(self):
        run = self.start({**self.flags, "--tp": 2})
        self.lose(run, [3])
        self.wait_for_notices(run, 1)
        self.assertTrue(until(lambda: len(ranks_under(run.process.pid)) == 4, 60), run.errors)
        os.kill(ranks_under(run.process.pid)[3], signal.SIGSTOP)  # for which the other one that has come waits, unless both are in
        time.sleep(1)
        os.kill(ranks_under(run.process.pid)[0], signal.SIGKILL)  # rank 0
        self.assertNotEqual(self.status(run), 0)
        self.expect_nothing_left()

    def test_refusals(self):
        for flags, sentence in (({"--elastic": None}, "--rejoin 2 starts processes for ranks of --nproc that are lost while --elastic"),
                                ({"--rejoin": -1}, "--rejoin -1 is no number of starts"),
                                ({"--layout": "auto"}, "--rejoin 2 does not go with --layout auto"),
                                ({"--optimizer": "onebit-adam", "--dtype": "fp32"}, "--rejoin 2 does not go with --optimizer onebit-adam"),
                                ({"--pp": 2, "--schedule": "2bw", "--model": "llama", "--untied": True}, "--rejoin 2 takes ranks in between two steps")):
            with self.subTest(flags):
                run = self.start({**self.flags, **flags})
                self.assertEqual(self.status(run), 1)
                self.assertIn(sentence, run.errors[0])


if __name__ == "__main__":
    unittest.main()
