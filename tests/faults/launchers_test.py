"""A job trains the same with every launcher and beside other jobs; ranks of different jobs refuse each other in a sentence."""
import os
import pathlib
import shutil
import socket
import subprocess
import unittest

from harness import FOREVER, FaultTest, Run, clean_environment, free_port, losses, ranks_under, until


class Launchers(FaultTest):

    def losses_of_forked_ranks(self):
        self.expect_success(self.start({"--nproc": 2, "--log-dir": self.log("forked")}))
        expected = losses(self.log("forked"))
        self.assertEqual(len(expected), 5)
        return expected

    def test_processes_with_the_variables_of_torchrun(self):
        expected = self.losses_of_forked_ranks()
        for run_id in ("none", "7", "481d733b-f53c-435d-97e6-15d920870b11", "r" * 300):
            with self.subTest(run_id=run_id):
                port = free_port()
                own = lambda rank: {"LOCAL_RANK": str(rank), "TORCHELASTIC_RUN_ID": run_id, "STRETTO_JOB_SECRET": "ours"}
                log = self.log(f"pair{len(self.runs)}")
                self.expect_success(*[self.start_rank(rank, 2, port, {"--log-dir": log}, variables=own(rank)) for rank in range(2)])
                self.assertEqual(losses(log), expected)
        self.expect_nothing_left()

    def test_torchrun_that_holds_the_port_itself(self):
        port = free_port(2)
        with socket.create_server(("127.0.0.1", port)):
            own = {"TORCHELASTIC_USE_AGENT_STORE": "True"}
            self.expect_success(*[self.start_rank(rank, 2, port, {}, variables=own) for rank in range(2)])

    def test_ranks_of_mpirun(self):
        self.need("MPI")
        mpirun = os.environ.get("MPIRUN_PROGRAM", "")
        if not mpirun:
            self.skipTest("there is no mpirun")
        as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}  # only Open MPI reads these
        # Open MPI leaks memory at its end; AddressSanitizer must not report that.
        environment = {**as_root, "ASAN_OPTIONS": "detect_leaks=0"}
        self.expect_success(self.start({"--log-dir": self.log("mpi")}, environment, [mpirun, "-n", "2"]))
        self.assertEqual(losses(self.log("mpi")), self.losses_of_forked_ranks())
        self.expect_nothing_left()

    def test_a_launcher_that_the_mpi_does_not_know(self):
        self.need("MPI")
        own = os.path.realpath(os.environ.get("MPIRUN_PROGRAM", ""))
        others = [path for path in map(shutil.which, ("mpirun.openmpi", "mpirun.mpich")) if path and os.path.realpath(path) != own]
        if not others:
            self.skipTest("there is one MPI")
        as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "ASAN_OPTIONS": "detect_leaks=0"}
        run = self.start({"--log-dir": self.log("alone")}, as_root, [others[0], "-n", "2"])
        self.assertNotEqual(self.status(run), 0)
        self.assertRegex("\n".join(run.errors), r"error: (PMI_SIZE|OMPI_COMM_WORLD_SIZE)=2: .*(Open MPI|MPICH).* mpirun")
        self.assertFalse(self.log("alone").exists())

    def test_two_jobs_at_once(self):
        logs = [self.log(f"job{i}") for i in range(2)]
        self.expect_success(*[self.start({"--nproc": 2, "--log-dir": log}) for log in logs])
        self.assertEqual(losses(logs[0]), losses(logs[1]))
        self.expect_nothing_left()

    def test_fp64_on_four_ranks_and_on_one(self):
        double = {"--dtype": "fp64"}
        self.expect_success(self.start({**double, "--nproc": 4, "--tp": 2, "--log-dir": self.log("four")}),
                            self.start({**double, "--nproc": 1, "--log-dir": self.log("one")}))
        four, one = losses(self.log("four")), losses(self.log("one"))
        self.assertEqual(len(four), len(one))
        for a, b in zip(four, one):
            self.assertAlmostEqual(float(a), float(b), delta=1e-9)

    def expect_refusals(self, runs, words):
        for run, its_words in zip(runs, words):
            self.assertNotIn(self.status(run, 30), (0, None))
            self.assertEqual(len(run.errors), 1, run.errors)
            for word in its_words:
                self.assertIn(str(word), run.errors[0])
        self.expect_nothing_left()

    def test_port_that_is_taken(self):
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            soon = {"STRETTO_MEET_TIMEOUT": "2"}
            pair = [self.start_rank(rank, 2, port, {}, variables=soon) for rank in range(2)]
            self.expect_refusals(pair, [["cannot listen", port, "MASTER_PORT"], [port, "not rank 0", "MASTER_PORT"]])

    def test_different_secrets(self):
        port = free_port()
        pair = [self.start_rank(rank, 2, port, {}, variables={"STRETTO_JOB_SECRET": f"of {rank}",
                                                              "STRETTO_MEET_TIMEOUT": "2"}) for rank in range(2)]
        self.expect_refusals(pair, [["rank 1 did not come", port, "2 s", "STRETTO_JOB_SECRET"], ["STRETTO_JOB_SECRET differs"]])

    def test_rank_that_never_comes(self):
        port = free_port()
        soon = {"STRETTO_MEET_TIMEOUT": "1"}
        self.expect_refusals([self.start_rank(0, 3, port, {}, variables=soon)], [["ranks 1 and 2 did not come", port, "1 s"]])
        self.expect_refusals([self.start_rank(1, 3, port, {}, variables=soon)], [["Rank 0 does not answer", port, "1 s"]])

    def test_a_rank_that_is_started_again_by_hand_is_turned_away(self):
        """The others go on without it, as --elastic says."""
        log = self.log("elastic")
        flags = {"--elastic": True, "--global-batch-size": 24, "--train-iters": FOREVER, "--save": self.directory / "save", "--save-interval": 5,
                 "--keep": 2, "--log-dir": log}
        port = free_port()
        ranks = [self.start_rank(rank, 4, port, flags) for rank in range(4)]
        self.wait_for_steps(log, 10)
        ranks[2].kill_all()
        goes_on = lambda: any("Training goes on with 3 of 4 ranks" in line for line in ranks[0].errors)
        self.assertTrue(until(goes_on, 60), ranks[0].errors)
        again = self.start_rank(2, 4, port, flags, variables={"STRETTO_MEET_TIMEOUT": "1"})
        self.assertEqual(self.status(again), 1)
        self.assertRegex("\n".join(again.errors),
                         r"Rank 0 does not answer at .*; is it running, and is this its address\? A job that has begun takes no further ranks from a launcher: start all of them again\.$")
        steps = self.steps_reported(log)
        self.assertTrue(until(lambda: self.steps_reported(log) > steps + 5, 60))
        ranks[0].process.terminate()
        for rank in (0, 1, 3):
            self.assertEqual(self.status(ranks[rank]), 0, ranks[rank].errors)
        self.expect_nothing_left()

    def test_a_loopback_interface_that_is_down(self):
        """All say so at once, long before the time of a meeting is over."""
        inside = ["unshare", "--net"]
        if subprocess.run([*inside, "true"], capture_output=True).returncode != 0:
            self.skipTest("no network namespace can be made")
        port = free_port()
        self.expect_refusals([self.start({"--nproc": 2}, before=inside)], [["127.0.0.1", "loopback", "down"]])
        self.expect_refusals([self.start_rank(rank, 2, port, {}, before=inside) for rank in range(2)],
                             [["127.0.0.1", port, "loopback", "down"]] * 2)

    def test_descriptors_that_ucx_would_not_get(self):
        """UCX aborts without: where the limit cannot be raised, the job says so before."""
        self.need("UCX")
        with_limit = lambda kind: ["sh", "-c", f'ulimit {kind}n 20 && exec "$@"', "sh"]
        over_ucx = {"STRETTO_TRANSPORT": "ucx"}
        run = self.start({"--nproc": 2}, over_ucx, with_limit("-"))
        self.assertEqual(self.status(run), 1, run.errors)
        self.assertTrue(any("20" in line and "ulimit" in line for line in run.errors), run.errors)
        self.expect_success(self.start({"--nproc": 2}, over_ucx, with_limit("-S")))

    def test_ranks_that_count_differently(self):
        port = free_port()
        soon = {"STRETTO_MEET_TIMEOUT": "2"}
        pair = [self.start_rank(rank, size, port, {}, variables=soon) for rank, size in ((0, 2), (1, 3))]
        self.expect_refusals(pair, [["ank 1", "believes in 3 ranks, rank 0 in 2"]] * 2)

    def test_two_jobs_of_slurm_on_one_port(self):
        port = free_port()
        job = lambda number: {"SLURM_JOB_ID": number, "SLURM_NTASKS": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        first = self.start({}, {**job("17"), "SLURM_PROCID": "0"})
        other = self.start({}, {**job("18"), "SLURM_PROCID": "1"})
        self.assertNotEqual(self.status(other, 30), 0)
        self.assertIn("SLURM_JOB_ID=18", other.errors[0])
        self.assertIn("SLURM_JOB_ID=17", other.errors[0])
        self.expect_success(first, self.start({}, {**job("17"), "SLURM_PROCID": "1"}))

    def test_transports_that_differ(self):
        port = free_port()
        pair = [self.start_rank(rank, 2, port, {}, variables={"STRETTO_TRANSPORT": route})
                for rank, route in enumerate(["auto", "ucx"])]
        for run in pair:
            self.assertNotEqual(self.status(run, 30), 0)
        said = "".join(pair[0].errors + pair[1].errors)
        self.assertRegex(said, "STRETTO_TRANSPORT is '(auto|ucx)' on rank [01] and '(auto|ucx)' on rank")

    def test_a_master_address_of_another_host(self):
        ranks = [self.start_rank(0, 2, free_port(), {}, "192.0.2.1")]
        self.expect_refusals(ranks, [["192.0.2.1", "rank 0 runs on host", "MASTER_ADDR"]])

    def test_closed_standard_descriptors(self):
        command = " ".join(map(str, self.command({"--nproc": 2, "--log-dir": self.log("closed")})))
        run = Run(["sh", "-c", f"{command} <&- >&- 2>&-"], clean_environment({}), self.directory / "closed-run")
        self.runs.append(run)
        self.addCleanup(run.kill_all)
        self.expect_success(run)
        self.assertEqual(losses(self.log("closed")), self.losses_of_forked_ranks())

    def test_the_meeting_port_is_closed_once_all_have_met(self):
        run = self.start({"--nproc": 2, "--train-iters": FOREVER, "--log-dir": self.log("log")})
        self.wait_for_steps(self.log("log"), 1)
        table = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
        listening = {fields[9] for fields in table if fields[3] == "0A"}
        own = set()
        for pid in [run.process.pid, *ranks_under(run.process.pid)]:
            for entry in pathlib.Path("/proc", str(pid), "fd").iterdir():
                own.add(os.readlink(entry).removeprefix("socket:[").removesuffix("]"))
        self.assertEqual(own & listening, set())


if __name__ == "__main__":
    unittest.main()
