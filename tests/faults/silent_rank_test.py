"""When a rank is stopped, the other ranks end at their timeout, name it, and say that its process gives no sign of life."""
import os
import signal
import unittest

from harness import FOREVER, FaultTest, free_port, ranks_under, until


class StoppedRank(FaultTest):

    def test_each_of_two_processes(self):
        limit = {"STRETTO_TIMEOUT": "6"}
        pairs = []
        for victim in range(2):
            flags = {"--train-iters": FOREVER, "--log-dir": self.log(f"log{victim}")}
            port = free_port()
            pairs.append([self.start_rank(rank, 2, port, flags, variables=limit) for rank in range(2)])
            self.wait_for_steps(self.log(f"log{victim}"), 2)
            os.kill(pairs[victim][victim].process.pid, signal.SIGSTOP)
        for victim, pair in enumerate(pairs):
            with self.subTest(victim=victim):
                survivor = pair[1 - victim]
                self.assertNotIn(self.status(survivor, 30), (0, -signal.SIGKILL))
                self.assertRegex("\n".join(survivor.errors),
                                 rf"Rank {victim} \(process {pair[victim].process.pid} on .*\) has given no sign of life")
                pair[victim].kill_all()
        self.expect_nothing_left()

    def test_the_first_step_has_a_limit_of_its_own(self):
        """Rank 1 stops before its first step, which takes seconds, and STRETTO_TIMEOUT is beyond this test."""
        port = free_port()
        flags = {"--train-iters": FOREVER, "--first-step-timeout": 4, "--hidden-size": 512, "--seq-length": 512, "--global-batch-size": 16}
        pair = [self.start_rank(rank, 2, port, flags, variables={"STRETTO_TIMEOUT": "600"}) for rank in range(2)]
        self.assertTrue(until(lambda: "parameters" in pair[0].output, 60), pair[0].errors)
        os.kill(pair[1].process.pid, signal.SIGSTOP)
        self.assertNotIn(self.status(pair[0], 60), (0, -signal.SIGKILL))
        self.assertIn("Rank 0 waited 4 s for rank 1 in", "\n".join(pair[0].errors))
        pair[1].kill_all()
        self.expect_nothing_left()

    def test_one_of_four_that_a_parent_started(self):
        run = self.start({"--nproc": 4, "--tp": 2, "--train-iters": FOREVER, "--log-dir": self.log("log")}, {"STRETTO_TIMEOUT": "6"})
        self.wait_for_steps(self.log("log"), 2)
        os.kill(ranks_under(run.process.pid)[2], signal.SIGSTOP)
        self.assertNotEqual(self.status(run, 40), 0)
        self.assertIn("Rank 2 (process", "\n".join(run.errors))
        self.expect_nothing_left()


if __name__ == "__main__":
    unittest.main()
