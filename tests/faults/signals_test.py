"""SIGTERM and SIGINT end a job behind its step, with a checkpoint; a second one ends it at once; SIGHUP ends it as any program."""
import os
import signal
import subprocess
import time
import unittest

from harness import FOREVER, SECONDS_TO_END, FaultTest, free_port, ranks_under, until


class Signals(FaultTest):

    def start_long_run(self, name, flags, variables=None):
        run = self.start({"--nproc": 2, "--train-iters": FOREVER, "--log-dir": self.log(name), **flags}, variables)
        self.wait_for_steps(self.log(name), 3)
        return run

    def expect_saved(self, name, save):
        """The newest checkpoint is of the last step."""
        steps = len((self.log(name) / "metrics.jsonl").read_text().splitlines())
        self.assertEqual((save / "latest").read_text().strip(), f"step_{steps:08}")
        self.expect_nothing_left()
        return steps

    def stop(self, name, send, status):
        """Each job stops by `send`, and the next goes on from its checkpoint."""
        with self.subTest(name=name):
            save = self.directory / "save"
            resumes = {"--resume": True} if save.exists() else {}
            run = self.start_long_run(name, {"--save": save, **resumes})
            send(run)
            self.assertEqual(self.status(run), status, run.errors)
            self.assertEqual(run.errors, [])
            name_of_signal = "SIGINT" if status == 130 else "SIGTERM"
            last = int((save / "latest").read_text().strip().removeprefix("step_"))
            self.assertIn(f"Stopped after step {last} by {name_of_signal}.", run.output)
            self.assertNotIn("a sample", run.output)
            self.expect_nothing_left()

    def test_whichever_process_gets_it(self):
        self.stop("parent", lambda run: os.kill(run.process.pid, signal.SIGTERM), 0)
        self.stop("rank", lambda run: os.kill(ranks_under(run.process.pid)[1], signal.SIGTERM), 0)
        self.stop("terminal", lambda run: os.killpg(run.process.pid, signal.SIGINT), 130)

        def twice(run):  # as timeout does
            os.kill(run.process.pid, signal.SIGTERM)
            os.killpg(run.process.pid, signal.SIGTERM)
        self.stop("timeout", twice, 0)

    def test_one_rank_of_a_launcher(self):
        for number, status in ((signal.SIGTERM, 0), (signal.SIGINT, 130)):
            with self.subTest(number=number):
                port, name, save = free_port(), f"log{number}", self.directory / f"save{number}"
                flags = {"--train-iters": FOREVER, "--log-dir": self.log(name), "--save": save}
                pair = [self.start_rank(rank, 2, port, flags) for rank in range(2)]
                self.wait_for_steps(self.log(name), 3)
                os.kill(pair[1].process.pid, number)
                self.assertEqual([self.status(run) for run in pair], [status, status], [run.errors for run in pair])
                self.expect_saved(name, save)

    def test_without_a_checkpoint(self):
        run = self.start_long_run("log", {"--nproc": 1})
        os.kill(run.process.pid, signal.SIGINT)
        self.assertEqual(self.status(run), 130)
        self.expect_nothing_left()

    def test_a_second_one_ends_a_job_that_is_stuck(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(number=number):
                # Without --save: a job that is ended while it saves leaves an unfinished checkpoint, as one that is killed does.
                run = self.start_long_run(f"log{number}", {})
                os.kill(ranks_under(run.process.pid)[1], signal.SIGSTOP)
                os.kill(run.process.pid, number)
                time.sleep(1.5)
                self.assertIsNone(run.process.poll())
                os.kill(run.process.pid, number)
                self.assertEqual(self.status(run, SECONDS_TO_END), 128 + number)
                self.expect_nothing_left()

    def test_while_the_ranks_meet(self):
        """Nothing gets through: rank 1 does not come."""
        inside = ["unshare", "--net", "sh", "-c",
                  'ip link set lo up && tc qdisc add dev lo root tbf rate 8bit burst 1 limit 1 && exec "$@"', "sh"]
        if subprocess.run([*inside, "true"], capture_output=True).returncode != 0:
            self.skipTest("no network namespace can be made")
        for number in (signal.SIGTERM, signal.SIGINT):
            for to_all in (False, True):
                with self.subTest(number=number, to_all=to_all):
                    run = self.start({"--nproc": 2}, before=inside)
                    self.assertTrue(until(lambda: len(ranks_under(run.process.pid)) == 2, 30))
                    time.sleep(0.2)
                    (os.killpg if to_all else os.kill)(run.process.pid, number)
                    self.assertEqual(self.status(run, SECONDS_TO_END), 128 + number)
                    self.expect_nothing_left()

    def test_a_closed_terminal(self):
        for transport in ["auto", "ucx"] if "UCX" in os.environ["BUILT_WITH"] else ["auto"]:
            with self.subTest(transport=transport):
                run = self.start_long_run(transport, {}, {"STRETTO_TRANSPORT": transport})
                os.killpg(run.process.pid, signal.SIGHUP)
                self.assertEqual(self.status(run, SECONDS_TO_END), -signal.SIGHUP)
                self.expect_nothing_left()


if __name__ == "__main__":
    unittest.main()
