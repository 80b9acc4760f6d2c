"""With --elastic the ranks that are left after a loss go on from the newest checkpoint, in a smaller layout."""
import itertools
import os
import re
import signal
import time
import unittest

from harness import FOREVER, FaultTest, free_port, in_turns, losses, of_today, ranks_under, until

STEPS = 110


@in_turns(3)
class Elastic(FaultTest):

    def setUp(self):
        super().setUp()
        self.save = self.directory / "save"
        self.flags = {"--elastic": True, "--global-batch-size": 24, "--train-iters": STEPS, "--save": self.save,
                      "--save-interval": 10, "--log-dir": self.log("log"), "--dtype": "fp64"}  # in which layouts agree for long

    def lose(self, run, victims, steps, log="log"):
        """Returns how many steps were reported before."""
        self.wait_for_steps(self.log(log), steps)
        ranks = ranks_under(run.process.pid)
        reported = self.steps_reported(self.log(log))
        for victim in victims:
            os.kill(ranks[victim], signal.SIGKILL)
        return reported

    def wait_for_notices(self, run, count):
        self.assertTrue(until(lambda: len(run.errors) >= count, 60), run.errors)

    def expect_notice(self, line, lost, rest, reported, batch=24):
        self.assertRegex(line, rf"^Rank ({lost}) .* was killed or crashed, or has called exit\. Training goes on with {rest}, after step \d*0[,.]")
        replicas = int(re.search(r"dp (\d+)", rest)[1])
        self.expect_steps_again(line, batch // replicas // 2, reported)

    def expect_losses_as_without_losses(self, flags):
        self.expect_success(self.start({"--global-batch-size": 24, "--train-iters": STEPS, "--log-dir": self.log("whole"), "--dtype": "fp64",
                                        **flags}))
        own, undisturbed = losses(self.log("log")), losses(self.log("whole"))
        self.assertEqual(len(own), STEPS)
        for one, other in zip(own, undisturbed):
            self.assertAlmostEqual(float(one), float(other), delta=1e-6)

    def test_replicas_are_dropped_until_one_is_left(self):
        layout = {"--nproc": 8, "--tp": 2}
        run = self.start({**self.flags, **layout})
        reported = [self.lose(run, [5], 12)]
        self.wait_for_notices(run, 1)
        reported.append(self.lose(run, [1], 40))  # of rank 0's own replica
        self.wait_for_notices(run, 2)
        reported.append(self.lose(run, [1, 3], 70))  # both at once, of two replicas
        self.assertEqual(self.status(run), 0, run.errors)
        self.assertEqual(len(run.errors), 3, run.errors)
        self.expect_notice(run.errors[0], "5", "6 of 8 ranks, dp 3", reported[0])
        self.expect_notice(run.errors[1], "1", "4 of 6 ranks, dp 2", reported[1])
        self.expect_notice(run.errors[2], "1|3", "2 of 4 ranks, dp 1", reported[2])
        self.expect_losses_as_without_losses(layout)
        self.expect_nothing_left()

    def test_ranks_are_lost_one_after_the_other(self):
        # While the others notice the first loss, meet, and begin again.
        for after, state in of_today(itertools.product((0.02, 0.06, 0.2), (None, True))):
            with self.subTest(after=after, state=state):
                log = f"log{after}{state}"
                run = self.start({**self.flags, "--nproc": 6, "--tp": 2, "--train-iters": 40, "--log-dir": self.log(log),
                                  "--save": self.directory / f"save{after}{state}", "--replicate-state": state})
                self.wait_for_steps(self.log(log), 12)
                ranks = ranks_under(run.process.pid)
                os.kill(ranks[1], signal.SIGKILL)
                time.sleep(after)
                os.kill(ranks[4], signal.SIGKILL)
                self.assertEqual(self.status(run), 0, run.errors)
                self.assertRegex(run.errors[-1], r"with (4 of 6 ranks, dp 2|2 of [46] ranks, dp 1), after step")
                self.assertEqual(len(losses(self.log(log))), 40)
        self.expect_nothing_left()

    def test_state_in_memory_loses_at_most_one_step(self):
        layout = {"--nproc": 4, "--tp": 2, "--eval-interval": 1}  # the rank is likely lost in validation
        run = self.start({**self.flags, **layout, "--replicate-state": True, "--save-interval": 0})
        self.wait_for_steps(self.log("log"), 25)
        victim = ranks_under(run.process.pid)[3]
        done = self.steps_reported(self.log("log"))
        os.kill(victim, signal.SIGKILL)
        self.wait_for_notices(run, 1)
        self.assertEqual(self.status(run), 0, run.errors)
        self.assertEqual(len(run.errors), 1, run.errors)
        self.assertIn("with 2 of 4 ranks, dp 1,", run.errors[0])
        self.assertGreaterEqual(self.expect_steps_again(run.errors[0], 12, done), done - 1)
        self.expect_losses_as_without_losses(layout)
        self.expect_nothing_left()

    def expect_adapters_to_go_on(self, flags):
        adapters = {"--lora": 4, "--lora-targets": "all-linear", "--nproc": 4, "--tp": 2}
        run = self.start({**self.flags, **adapters, **flags})
        reported = self.lose(run, [3], 25)
        self.wait_for_notices(run, 1)
        self.assertEqual(self.status(run), 0, run.errors)
        self.assertIn("Training goes on with 2 of 4 ranks, dp 1,", run.errors[0])
        self.expect_steps_again(run.errors[0], 12, reported)
        self.expect_losses_as_without_losses(adapters)
        self.expect_nothing_left()

    def test_adapters_go_on_from_a_checkpoint_of_them_alone(self):
        self.expect_adapters_to_go_on({})

    def test_adapters_go_on_from_the_memory_of_neighbours(self):
        self.expect_adapters_to_go_on({"--replicate-state": True, "--save-interval": 0})

    def test_state_in_memory_of_two_neighbours_is_lost(self):
        run = self.start({**self.flags, "--nproc": 4, "--replicate-state": True})
        reported = self.lose(run, [1, 3], 12)
        self.assertEqual(self.status(run), 0, run.errors)
        self.expect_notice(run.errors[0], "1|3", "2 of 4 ranks, dp 2", reported)
        self.expect_nothing_left()

    def test_the_global_batch_stays(self):
        run = self.start({**self.flags, "--nproc": 4, "--dp": 4, "--global-batch-size": 8, "--train-iters": 60})
        reported = self.lose(run, [2], 12)
        self.assertEqual(self.status(run), 0, run.errors)
        self.assertEqual(len(run.errors), 1, run.errors)
        self.expect_notice(run.errors[0], "2", "2 of 4 ranks, dp 2", reported, batch=8)  # 8 sequences do not divide by 3 ranks of 2
        self.expect_nothing_left()

    def test_as_many_replicas_go_on_as_the_other_flags_allow(self):
        run = self.start({**self.flags, "--nproc": 4, "--zero": 3, "--hpz-size": 2, "--train-iters": 60})
        reported = self.lose(run, [3], 12)
        self.assertEqual(self.status(run), 0, run.errors)
        self.assertEqual(len(run.errors), 1, run.errors)
        self.expect_notice(run.errors[0], "3", "2 of 4 ranks, dp 2", reported)  # 3 ranks are no pairs
        run = self.start({**self.flags, "--nproc": 2, "--check-replicas": 5, "--train-iters": 60, "--save": self.directory / "two",
                          "--log-dir": self.log("two")})
        reported = self.lose(run, [1], 12, "two")
        self.assertEqual(self.status(run), 0, run.errors)
        self.expect_notice(run.errors[0], "1", "1 of 2 ranks, dp 1, without --check-replicas", reported)
        self.expect_nothing_left()

    def test_a_pipeline_and_zero3(self):
        for name, flags in (("pipeline", {"--pp": 2, "--nproc": 4}), ("zero3", {"--zero": 3, "--nproc": 3})):
            with self.subTest(name=name):
                run = self.start({**self.flags, **flags, "--save": self.directory / name, "--log-dir": self.log(name),
                                  "--train-iters": FOREVER})
                self.lose(run, [flags["--nproc"] - 1], 12, name)
                self.wait_for_notices(run, 1)
                os.kill(run.process.pid, signal.SIGTERM)
                self.assertEqual(self.status(run), 0, run.errors)
                self.assertIn("Stopped after step", run.output)
                self.assertEqual(len(run.errors), 1, run.errors)
                self.expect_nothing_left()

    def test_too_few_ranks_for_one_replica(self):
        run = self.start({**self.flags, "--nproc": 2, "--pp": 2, "--train-iters": FOREVER})
        self.lose(run, [1], 3)
        self.assertEqual(self.status(run), 1)
        self.assertEqual(len(run.errors), 2, run.errors)  # of rank 0, and of the parent
        self.assertRegex(run.errors[0], r"Rank 1 \(process .* was killed or crashed, or has called exit\. Of 2 ranks 1 are left")
        self.expect_nothing_left()

    def test_without_rank_0_the_job_ends_and_may_start_again(self):
        run = self.start({**self.flags, "--nproc": 3})
        self.lose(run, [0], 12)
        self.assertEqual(self.status(run), 128 + signal.SIGKILL)
        others = [line for line in run.errors if "without its rank 0" not in line]
        self.assertEqual(len(others), 2, run.errors)
        self.assertIn("Rank 0 was killed by SIGKILL", others[0])
        self.assertRegex(others[1], r"after step \d+.* --resume")
        run = self.start({**self.flags, "--nproc": 3, "--resume": True, "--max-restarts": 1})
        self.lose(run, [0], 40)
        self.assertEqual(self.status(run), 0, run.errors)
        self.assertTrue(any("restart 1 of 1 goes on after step" in line for line in run.errors), run.errors)
        self.expect_losses_as_without_losses({"--nproc": 3})
        self.expect_nothing_left()

    def test_a_rank_0_that_is_stopped_ends_the_job(self):
        run = self.start({**self.flags, "--nproc": 3, "--save-interval": 100}, {"STRETTO_TIMEOUT": "3"})  # killed, it would leave a save
        self.wait_for_steps(self.log("log"), 12)
        os.kill(ranks_under(run.process.pid)[0], signal.SIGSTOP)
        self.assertEqual(self.status(run), 1)
        self.assertEqual([line for line in run.errors if "without its rank 0" not in line],
                         ["error: Rank 0 did not end with the others, and was killed."])
        self.expect_nothing_left()

    def test_a_body_of_rank_0_that_throws_ends_the_others(self):
        port, texts = free_port(), [self.directory / f"text{rank}" for rank in range(3)]
        for text in texts:
            text.write_bytes(self.text.read_bytes())
        flags = {**self.flags, "--train-iters": FOREVER}
        ranks = [self.start_rank(rank, 3, port, {**flags, "--train-data": text}) for rank, text in enumerate(texts)]
        self.wait_for_steps(self.log("log"), 3)
        os.truncate(texts[0], 100)
        self.assertEqual([self.status(run) for run in ranks], [1, 1, 1])
        self.assertIn("text0", ranks[0].errors[0])
        self.expect_nothing_left()

    def test_ranks_of_a_launcher(self):
        for transport in ("auto", "ucx") if "UCX" in os.environ.get("BUILT_WITH", "") else ("auto",):
            with self.subTest(transport=transport):
                port, flags = free_port(), {**self.flags, "--save": self.directory / transport, "--log-dir": self.log(transport)}
                ranks = [self.start_rank(rank, 3, port, flags, variables={"STRETTO_TRANSPORT": transport}) for rank in range(3)]
                self.wait_for_steps(self.log(transport), 12)
                reported = self.steps_reported(self.log(transport))
                ranks[1].process.kill()
                self.assertEqual([self.status(ranks[0]), self.status(ranks[2])], [0, 0], ranks[0].errors)
                self.expect_notice(ranks[0].errors[0], "1", "2 of 3 ranks, dp 2", reported)
                self.assertEqual(len(losses(self.log(transport))), STEPS)
                self.expect_nothing_left()


if __name__ == "__main__":
    unittest.main()
