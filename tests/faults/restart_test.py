"""With --max-restarts a job that loses a rank starts again from its newest checkpoint; with --resume auto a launcher's does."""
import os
import pathlib
import signal
import unittest

from harness import FOREVER, FaultTest, free_port, in_turns, losses, ranks_under, until

STEPS = 200


@in_turns()
class Restart(FaultTest):

    def setUp(self):
        super().setUp()
        self.save = self.directory / "save"
        self.flags = {"--train-iters": STEPS, "--save": self.save, "--save-interval": 5, "--log-dir": self.log("log")}

    def undisturbed(self, flags):
        self.expect_success(self.start({**flags, "--train-iters": STEPS, "--log-dir": self.log("undisturbed")}))
        return losses(self.log("undisturbed"))

    def kill(self, run, victim, number=signal.SIGKILL):
        os.kill(ranks_under(run.process.pid)[victim], number)

    def notices(self, run):
        """What the parent says about its restarts."""
        return [line for line in run.errors if not line.startswith("error: rank ")]

    def test_goes_on_from_the_newest_checkpoint(self):
        run = self.start({**self.flags, "--nproc": 4, "--tp": 2, "--max-restarts": 3})
        reported = []
        for victim, steps in ((2, 12), (0, 60)):
            self.wait_for_steps(self.log("log"), steps)
            before = ranks_under(run.process.pid)
            reported.append(self.steps_reported(self.log("log")))
            self.kill(run, victim)
            self.assert_restarted(run, before)
        self.assertEqual(self.status(run), 0, run.errors)
        first, second = self.notices(run)
        self.assertRegex(first, r"^Rank 2 was killed by SIGKILL; restart 1 of 3 goes on after step \d*[05][,.]")
        self.assertRegex(second, r"^Rank 0 was killed by SIGKILL; restart 2 of 3 goes on after step \d*[05][,.]")
        self.assertGreaterEqual(self.expect_steps_again(first, 2, reported[0]), 5)
        self.expect_steps_again(second, 2, reported[1])
        self.assertEqual(losses(self.log("log")), self.undisturbed({"--nproc": 4, "--tp": 2}))
        self.expect_nothing_left()

    def test_a_lost_replica_between_two_rounds(self):
        """Of DiLoCo: a round of 20 steps outlasts the 12 behind which a rank is killed."""
        rounds = {"--nproc": 4, "--tp": 2, "--replicas": 2, "--diloco": 20}
        for name, more, victim in ("rounds", {}, 3), ("alone", {"--tp": 1, "--replicas": 4}, 0):
            with self.subTest(name):
                flags = {**rounds, **more}
                run = self.start({**self.flags, **flags, "--save": self.save / name, "--log-dir": self.log(name), "--max-restarts": 1})
                self.wait_for_steps(self.log(name), 12)
                self.kill(run, victim)
                self.assertEqual(self.status(run), 0, run.errors)
                notice, = self.notices(run)
                self.assertRegex(notice, rf"^Rank {victim} was killed by SIGKILL; restart 1 of 1 goes on after step \d*[05][,.]")
                self.assertEqual(losses(self.log(name)), self.undisturbed(flags))
                self.assertNotEqual(losses(self.log(name)), self.undisturbed({**flags, "--diloco": 10}), "the control")
                self.expect_nothing_left()

    def test_a_lost_stage_without_a_flush(self):
        """The run that loses it has the bits of one that saves as often and loses none."""
        lost = []
        for schedule, victim, more in (("2bw", 1, {}), ("2bw", 0, {"--dtype": "fp16"}), ("pipedream", 3, {"--model": "llama", "--untied": True}),
                                       ("2bw", 2, {"--model": "llama", "--untied": True, "--checkpoint-in-flight": True})):
            with self.subTest(schedule, victim=victim):
                name = f"{schedule}-{victim}"
                flags = {"--nproc": 4, "--pp": 4, "--num-layers": 4, "--schedule": schedule, "--save-interval": 5, **more}
                run = self.start({**self.flags, **flags, "--save": self.save / name, "--log-dir": self.log(name), "--max-restarts": 1})
                self.wait_for_steps(self.log(name), 12)
                reported = self.steps_reported(self.log(name))
                self.kill(run, victim)
                self.assertEqual(self.status(run), 0, run.errors)
                notice, = self.notices(run)
                self.assertRegex(notice, rf"^Rank {victim} was killed by SIGKILL; restart 1 of 1 goes on after step ")
                lost.append("again" in notice)
                self.expect_steps_again(notice, 4, reported)
                whole = self.undisturbed({**flags, "--save": self.save / f"{name}-whole"})
                self.assertEqual(losses(self.log(name)), whole)
                self.expect_nothing_left()
        self.assertTrue(any(lost))

    def assert_restarted(self, run, before):
        fresh = lambda: len(set(ranks_under(run.process.pid)) - set(before)) == len(before)
        self.assertTrue(until(fresh, 60), run.errors)

    def test_begins_again_without_a_checkpoint(self):
        run = self.start({**self.flags, "--save-interval": 0, "--nproc": 1, "--max-restarts": 1})
        self.wait_for_steps(self.log("log"), 3)
        self.kill(run, 0)
        self.assertEqual(self.status(run), 0, run.errors)
        self.assertEqual(self.notices(run), ["Rank 0 was killed by SIGKILL; restart 1 of 1 begins again: the job has no checkpoint yet."])
        self.assertEqual(losses(self.log("log")), self.undisturbed({"--nproc": 1}))
        self.expect_nothing_left()

    def test_does_not_begin_over_the_checkpoints_of_another_run(self):
        self.expect_success(self.start({**self.flags, "--nproc": 1, "--train-iters": 7}))
        files = lambda: {path: path.stat().st_mtime_ns for path in self.directory.rglob("step_*")}
        before = files()
        refusal = f"--save {self.save} has checkpoints of another run, the newest of step 7; give --resume to go on from it, or another directory."
        for more in ({}, {"--max-restarts": 1}, {"--elastic": True}, {"--train-iters": 3}):
            with self.subTest(more):
                run = self.start({**self.flags, "--nproc": 2, **more})
                self.assertEqual(self.status(run), 1)
                self.assertEqual(run.errors, [f"error: {refusal}"])
        port = free_port()
        pair = [self.start_rank(rank, 2, port, self.flags) for rank in range(2)]
        self.assertEqual([self.status(run) for run in pair], [1, 1])
        self.assertEqual([line for run in pair for line in run.errors], [f"error: rank 0: {refusal}"])
        self.assertEqual(files(), before)
        inside = self.start({**self.flags, "--nproc": 2, "--save": self.save / "step_00000007"})
        self.assertEqual(self.status(inside), 1)
        self.assertIn("step_00000007 is a checkpoint; give the directory around it", inside.errors[0])
        for resume in (True, "auto"):
            self.expect_success(self.start({**self.flags, "--nproc": 2, "--train-iters": 8, "--resume": resume}))
        self.expect_nothing_left()

    def test_ends_when_restarts_are_used_up(self):
        run = self.start({**self.flags, "--train-iters": FOREVER, "--nproc": 2, "--max-restarts": 1})
        self.wait_for_steps(self.log("log"), 6)
        before = ranks_under(run.process.pid)
        self.kill(run, 1)
        self.assert_restarted(run, before)
        self.kill(run, 1)
        self.assertEqual(self.status(run), 128 + signal.SIGKILL)
        self.assertEqual(self.notices(run)[-2], "Rank 1 was killed by SIGKILL; all restarts of --max-restarts 1 are used up.")
        self.assertRegex(self.notices(run)[-1], r"after step \d+.* --resume")
        self.expect_nothing_left()

    def test_names_a_rank_that_fails_by_itself(self):
        text = self.directory / "shrinks"
        text.write_bytes(self.text.read_bytes())
        run = self.start({**self.flags, "--train-iters": FOREVER, "--nproc": 2, "--max-restarts": 1, "--train-data": text})
        self.wait_for_steps(self.log("log"), 6)
        reported = self.steps_reported(self.log("log"))
        os.truncate(text, 100)
        self.assertEqual(self.status(run), 1, run.errors)
        self.assertRegex(self.notices(run)[0], r"^Rank \d failed with status 1; restart 1 of 1 goes on ")
        self.expect_steps_again(self.notices(run)[0], 2, reported)
        self.expect_nothing_left()

    def test_names_the_rank_without_which_the_others_could_not_go_on(self):
        run = self.start({**self.flags, "--nproc": 4, "--tp": 2, "--pp": 2, "--elastic": True, "--max-restarts": 1})
        self.wait_for_steps(self.log("log"), 12)
        reported = self.steps_reported(self.log("log"))
        self.kill(run, 2)
        self.assertEqual(self.status(run), 0, run.errors)
        self.assertRegex(self.notices(run)[0], r"^Rank 2 was killed by SIGKILL; restart 1 of 1 goes on after step \d*[05][,.]")
        self.expect_steps_again(self.notices(run)[0], 4, reported)
        self.assertTrue(any("Of 4 ranks 3 are left" in line for line in run.errors), run.errors)
        self.expect_nothing_left()

    def test_a_signal_ends_it(self):
        run = self.start({**self.flags, "--train-iters": FOREVER, "--nproc": 2, "--max-restarts": 9})
        self.wait_for_steps(self.log("log"), 6)
        os.kill(ranks_under(run.process.pid)[1], signal.SIGSTOP)  # so that the job cannot end by the signal alone
        os.kill(run.process.pid, signal.SIGTERM)
        self.kill(run, 1)
        self.assertEqual(self.status(run), 128 + signal.SIGKILL)
        self.assertEqual(self.notices(run), ["Rank 1 was killed by SIGKILL; the job was asked to stop, and does not start again."])
        self.expect_nothing_left()

    def test_a_signal_to_one_rank_ends_it(self):
        run = self.start({**self.flags, "--train-iters": FOREVER, "--nproc": 2, "--max-restarts": 9})
        self.wait_for_steps(self.log("log"), 6)
        self.kill(run, 1, signal.SIGTERM)
        self.assertEqual((self.status(run), run.errors), (0, []))
        self.assertRegex(run.output, r"Stopped after step \d+ by SIGTERM\.")
        self.expect_nothing_left()

    def test_the_same_command_line_of_a_launcher(self):
        flags = {**self.flags, "--resume": "auto"}
        port = free_port()
        pair = [self.start_rank(rank, 2, port, flags) for rank in range(2)]
        self.wait_for_steps(self.log("log"), 12)
        pair[1].process.kill()
        self.assertEqual(self.status(pair[0]), 1)
        self.expect_success(*[self.start_rank(rank, 2, port, flags) for rank in range(2)])
        self.assertIn(b"Continues after step", pathlib.Path(self.runs[2].output_path).read_bytes())
        self.assertEqual(losses(self.log("log")), self.undisturbed({"--nproc": 2}))
        self.expect_nothing_left()

    def test_options_that_do_not_go_together(self):
        for flags, words in (({"--max-restarts": 2}, ["--max-restarts 2", "--nproc", "--resume auto"]),
                             ({"--max-restarts": -1, "--nproc": 1}, ["--max-restarts -1"]),
                             ({"--resume": "auto", "--nproc": 1}, ["--save DIR"]),
                             ({"--resume": "always", "--nproc": 1, "--save": self.save}, ["'always'", "auto"])):
            with self.subTest(flags=flags):
                run = self.start(flags)
                self.assertEqual(self.status(run), 1)
                self.assertEqual(len(run.errors), 1, run.errors)
                for word in words:
                    self.assertIn(word, run.errors[0])


if __name__ == "__main__":
    unittest.main()
