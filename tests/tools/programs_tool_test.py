"""stretto-info programs: what clients and executors of programs do, seen from outside."""
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support.programs import ProgramTest, clean_environment, free_port, run_program  # noqa: E402

PROGRAM, INFO = os.environ["RANDOM_PROGRAMS"], os.environ["INFO_PROGRAM"]


class Programs(ProgramTest):
    def setUp(self):
        super().setUp()
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"

    def state(self, condition, **variables):
        """What it says as soon as the condition holds for it."""
        deadline = time.monotonic() + 120
        while (said := run_program(INFO, "programs", self.address, **variables)).returncode != 0 or not condition(said.stdout):
            self.assertLess(time.monotonic(), deadline, said.stdout + said.stderr)
            time.sleep(0.05)
        self.assertEqual(said.stderr, "")
        return said.stdout

    def started(self, **variables):
        output = open(self.directory / "output", "w")
        self.addCleanup(output.close)
        run = subprocess.Popen([PROGRAM, "3", "2", "1", self.directory / "end"], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                               env=clean_environment({"STRETTO_PROGRAMS_PORT": str(self.port), **variables}), process_group=0)

        def end():
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)
            run.wait()
        self.addCleanup(end)
        return run

    def process(self, whom):
        return int(re.search(rf"^{whom} is process (\d+)$", (self.directory / "output").read_text(), re.MULTILINE)[1])

    def test_it_says_what_runs_and_who_is_lost(self):
        run = self.started()
        both_run = lambda said: all(re.search(rf"Client 'client {client}', rank {3 + client}, weight 1: [1-9]\d* runs over\n", said) for client in (0, 1))
        said = self.state(lambda said: both_run(said) and "  program 'random' on executors" in said)
        self.assertRegex(said, r"^Scheduler of programs, process \d+; executors: 3, clients: 2, programs: \d+\n")
        for executor in range(3):
            self.assertRegex(said, rf"\nExecutor {executor}: \d+ runs given to it are not over; in the last 10 s busy \d+%")
        os.kill(self.process("executor 2"), signal.SIGKILL)
        os.kill(self.process("client 1"), signal.SIGKILL)
        said = self.state(lambda said: "Executor 2: it is lost\n" in said and "; it is lost\n" in said.split("Executor 0")[0])
        self.assertIn("; executors: 2, clients: 1, programs: ", said)
        self.assertRegex(said, r"Client 'client 1', rank 4, weight 1: \d+ runs over; it is lost\n")
        (self.directory / "end").touch()
        self.assertEqual(run.wait(120), 0)
        self.refused(["does not answer"], INFO, "programs", self.address)

    def test_it_takes_the_secret_of_the_job(self):
        secret = {"STRETTO_JOB_SECRET": "a secret"}
        run = self.started(**secret)
        self.state(lambda said: "executors: 3, clients: 2" in said, **secret)
        self.refused(["STRETTO_JOB_SECRET differs"], INFO, "programs", self.address, STRETTO_JOB_SECRET="another")
        self.refused(["'nowhere' names no port"], INFO, "programs", "nowhere")
        (self.directory / "end").touch()
        self.assertEqual(run.wait(120), 0)


if __name__ == "__main__":
    unittest.main()
