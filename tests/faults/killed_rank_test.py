"""When a rank is killed, its job ends, and the other ranks name it."""
import contextlib
import os
import signal
import unittest

from harness import FOREVER, SECONDS_TO_END, FaultTest, free_port, ranks_under


class KilledRank(FaultTest):

    def start_long_run(self, flags=None):
        run = self.start({"--nproc": 4, "--tp": 2, "--train-iters": FOREVER, "--log-dir": self.log("log"), **(flags or {})})
        self.wait_for_steps(self.log("log"), 3)
        return run

    def kill_one_of_four(self, victim, flags=None):
        run = self.start_long_run(flags)
        os.kill(ranks_under(run.process.pid)[victim], signal.SIGKILL)
        self.assertEqual(self.status(run, SECONDS_TO_END), 128 + signal.SIGKILL)
        # Each survivor prints one line, which begins with its own rank, and their parent one.
        self.assertEqual(len(run.errors), 4, run.errors)
        self.assertTrue(any(f"Rank {victim} " in line and "SIGKILL" in line for line in run.errors), run.errors)
        for rank in set(range(4)) - {victim}:
            mine = [line for line in run.errors if line.startswith(f"error: rank {rank}: ")]
            self.assertEqual(len(mine), 1, run.errors)
            self.assertIn(f"Rank {victim} ", mine[0])
            self.assertIn("killed or crashed", mine[0])
        self.expect_nothing_left()

    def test_rank_0_of_four(self):
        self.kill_one_of_four(0)

    def test_rank_2_of_four(self):
        self.kill_one_of_four(2)

    def test_while_others_gather_its_parameters(self):
        self.kill_one_of_four(1, {"--tp": 1, "--zero": 3})

    def test_the_first_stage_of_four(self):
        self.kill_one_of_four(0, {"--tp": 1, "--pp": 4, "--num-layers": 8, "--schedule": "interleaved", "--virtual-stages": 2})

    def test_a_stage_between_others(self):
        self.kill_one_of_four(2, {"--tp": 1, "--pp": 4, "--num-layers": 4})

    def test_a_stage_without_a_flush(self):
        self.kill_one_of_four(2, {"--tp": 1, "--pp": 4, "--num-layers": 4, "--schedule": "2bw"})

    def test_the_first_stage_without_a_flush(self):
        self.kill_one_of_four(0, {"--tp": 1, "--pp": 4, "--num-layers": 4, "--schedule": "pipedream", "--model": "llama", "--untied": True})

    def test_a_stage_of_two_replicas(self):
        self.kill_one_of_four(1, {"--tp": 1, "--pp": 2})

    def test_the_last_stage_of_two_replicas_with_virtual_stages(self):
        self.kill_one_of_four(3, {"--tp": 1, "--pp": 2, "--num-layers": 4, "--schedule": "interleaved", "--virtual-stages": 2})

    def kill_one_of_two_processes(self, victim, variables=None):
        port = free_port()
        flags = {"--train-iters": FOREVER, "--log-dir": self.log(f"log{victim}")}
        pair = [self.start_rank(rank, 2, port, flags, variables=variables) for rank in range(2)]
        self.wait_for_steps(self.log(f"log{victim}"), 3)
        self.kill_one_of(pair, victim)

    def test_each_of_two_processes_of_a_launcher(self):
        for victim in range(2):
            with self.subTest(victim=victim):
                self.kill_one_of_two_processes(victim)

    def test_each_of_two_processes_over_ucx(self):
        self.need("UCX")
        for victim in range(2):
            with self.subTest(victim=victim):
                self.kill_one_of_two_processes(victim, {"STRETTO_TRANSPORT": "ucx"})

    def test_all_at_once(self):
        save = self.directory / "save"
        run = self.start_long_run({"--save": save, "--save-interval": 1})
        ranks = ranks_under(run.process.pid)
        for pid in ranks:
            os.kill(pid, signal.SIGSTOP)
        for pid in ranks:
            os.kill(pid, signal.SIGSEGV)
        for pid in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self.assertEqual(self.status(run, SECONDS_TO_END), 128 + signal.SIGSEGV)
        self.assertTrue(any("SIGSEGV" in line for line in run.errors), run.errors)
        self.assertTrue(any("--resume" in line for line in run.errors), run.errors)

    def test_the_parent(self):
        run = self.start_long_run()
        os.kill(run.process.pid, signal.SIGKILL)
        self.assertEqual(self.status(run, SECONDS_TO_END), -signal.SIGKILL)
        self.expect_nothing_left()


if __name__ == "__main__":
    unittest.main()
