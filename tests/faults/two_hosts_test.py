"""Jobs whose ranks are on two hosts: network namespaces that are joined by a virtual cable."""
import os
import pathlib
import signal
import subprocess
import time
import unittest

from harness import FOREVER, TRAIN, FaultTest, in_turns, losses, until
from support.programs import launched

from perf.comparisons.namespaces import INTERFACE, PORT, CommandFailed, Network, obstacle


@in_turns()
@unittest.skipIf(obstacle(), obstacle())
class TwoHosts(FaultTest):

    def setUp(self):
        super().setUp()
        self.need("UCX")
        try:
            self.network = Network([1, 1], rate=None)
        except CommandFailed as reason:
            self.skipTest(str(reason))
        self.addCleanup(self.network.close)

    def start_pair(self, flags, variables=None, before=()):
        variables = {"STRETTO_JOB_SECRET": "of these hosts"} if variables is None else variables
        return [self.start_rank(rank, 2, PORT, flags, self.network.addresses[0], variables,
                                [*self.network.hosts[rank].inside(), *before]) for rank in range(2)]

    def bytes_over_the_cable(self):
        """Bytes received by the first host: the first number of its interface's line."""
        table = pathlib.Path("/proc", str(self.network.hosts[0].holder.pid), "net/dev").read_text()
        return int(table.split(f"{INTERFACE}:")[1].split()[0])

    def expect_all_run(self, ranks):
        self.assertEqual([run.process.poll() for run in ranks], [None] * len(ranks), [run.errors for run in ranks])

    def test_trains_as_on_one_host(self):
        before = self.bytes_over_the_cable()
        self.expect_success(*self.start_pair({"--log-dir": self.log("two")}))
        self.assertGreater(self.bytes_over_the_cable() - before, 100000)  # the gradients, not only the introduction
        self.expect_success(self.start({"--nproc": 2, "--log-dir": self.log("one")}))
        self.assertEqual(losses(self.log("two")), losses(self.log("one")))
        self.expect_nothing_left()

    def test_ranks_of_an_ordinary_user(self):
        """Keeping the ports of UCX to the hosts of the job takes no rights."""
        nobody = ["setpriv", "--reuid=65534", "--clear-groups"]
        self.directory.chmod(0o755)
        if subprocess.run([*nobody, "test", "-x", TRAIN, "-a", "-r", self.text]).returncode != 0:
            self.skipTest(f"another user cannot run {TRAIN}")
        self.expect_success(*self.start_pair({}, before=nobody))

    def test_without_a_secret_only_if_the_user_says_so(self):
        self.expect_success(*self.start_pair({}, {"STRETTO_INSECURE": "1"}))
        pair = self.start_pair({}, {"STRETTO_MEET_TIMEOUT": "2"})
        for run in pair:
            self.assertNotEqual(self.status(run, 30), 0)
        self.assertIn("Set STRETTO_JOB_SECRET", pair[1].errors[0])
        self.assertIn("STRETTO_INSECURE=1", pair[1].errors[0])

    def test_over_a_cable_that_is_not_quite_up(self):
        """The kernel carries packets over a dormant interface, as it does over one that has just come up; UCX takes neither."""
        host = self.network.hosts[1]
        host.do("ip", "link", "set", INTERFACE, "mode", "dormant", "state", "dormant")
        pair = self.start_pair({})
        time.sleep(1)
        self.expect_all_run(pair)
        host.do("ip", "link", "set", INTERFACE, "state", "up", "mode", "default")
        self.expect_success(*pair)

    def test_a_cable_that_ucx_may_not_use(self):
        no_network = {"STRETTO_JOB_SECRET": "of these hosts", "UCX_NET_DEVICES": "lo", "STRETTO_MEET_TIMEOUT": "1"}
        pair = self.start_pair({}, no_network)
        for run in pair:
            self.assertNotEqual(self.status(run, 30), 0)
        said = "".join(pair[0].errors + pair[1].errors)
        self.assertIn("UCX uses these interfaces", said)
        self.assertIn("UCX_NET_DEVICES", said)

    def test_tensor_parallel_trains_as_on_one_host(self):
        self.expect_success(*self.start_pair({"--tp": 2, "--log-dir": self.log("two")}))
        self.expect_success(self.start({"--nproc": 2, "--tp": 2, "--log-dir": self.log("one")}))
        self.assertEqual(losses(self.log("two")), losses(self.log("one")))

    def kill_one(self, victim, flags=None):
        pair = self.start_pair({"--train-iters": FOREVER, "--log-dir": self.log("killed"), **(flags or {})})
        self.wait_for_steps(self.log("killed"), 3)
        self.kill_one_of(pair, victim)

    def test_rank_0_is_killed(self):
        self.kill_one(0)

    def test_rank_1_is_killed(self):
        self.kill_one(1)

    def test_a_rank_is_killed_in_mid_message(self):
        for host in self.network.hosts[:2]:  # a slow cable: gradients are in flight most of the time
            host.hold_to("400mbit")
        self.kill_one(1, {"--hidden-size": 512})

    def cable(self, end, state):
        """Takes the second host's cable out or in, at the host's end or at the switch's."""
        if end == "host":
            self.network.hosts[1].do("ip", "link", "set", INTERFACE, state)
        else:
            self.network.hosts[-1].do("ip", "link", "set", "port1", state)

    def expect_cut_off(self, run, others):
        """A rank whose STRETTO_TIMEOUT is 6 s ends by itself, with a sentence that names one of the ranks on the other host."""
        self.assertNotIn(self.status(run, 20), (0, -signal.SIGKILL))
        said = [line for line in run.errors if line.startswith("error: ")]
        self.assertEqual(len(said), 1, run.errors)
        self.assertRegex(said[0], rf"Rank {others} \(process \d+ on .*\) has given no sign of life .* the network to it is gone")

    def test_a_cable_that_is_out_for_three_seconds(self):
        steps = lambda: len(losses(self.log("cut")))
        pair = self.start_pair({"--train-iters": FOREVER, "--log-dir": self.log("cut")})
        self.wait_for_steps(self.log("cut"), 3)
        for end in ("host", "switch"):
            self.cable(end, "down")
            time.sleep(3)
            stood_still = steps()
            self.expect_all_run(pair)
            self.cable(end, "up")
            self.wait_for_steps(self.log("cut"), stood_still + 5)
        pair[0].process.send_signal(signal.SIGTERM)
        self.expect_success(*pair)
        own = losses(self.log("cut"))
        self.start({"--nproc": 2, "--train-iters": FOREVER, "--log-dir": self.log("whole")})
        self.wait_for_steps(self.log("whole"), len(own))
        self.runs[-1].kill_all()
        self.assertEqual(own, losses(self.log("whole"))[:len(own)])
        self.expect_nothing_left()

    def test_a_cable_that_stays_out(self):
        for end in ("host", "switch"):
            with self.subTest(end=end):
                pair = self.start_pair({"--train-iters": FOREVER, "--log-dir": self.log(end), "--first-step-timeout": 120},
                                       {"STRETTO_JOB_SECRET": "of these hosts", "STRETTO_TIMEOUT": "6"})
                self.wait_for_steps(self.log(end), 1)
                self.cable(end, "down")
                for rank, run in enumerate(pair):
                    self.expect_cut_off(run, 1 - rank)
                self.cable(end, "up")
                self.expect_nothing_left()

    def start_counters(self, pushes, **variables):
        """Two workers on the first host, who count their pushes at two servers on the second one. Returns when they count."""
        words = [os.environ["SERVED_COUNTERS"], 2, 2, 0, 0, "sequential", pushes, "launched"]
        before = self.bytes_over_the_cable()
        ranks = [self.start_program(self.network.hosts[rank // 2].inside(*words),
                                    launched(rank, 4, PORT, self.network.addresses[0], STRETTO_JOB_SECRET="of these hosts", **variables))
                 for rank in range(4)]
        self.wait_for_bytes(before, ranks)
        return ranks

    def wait_for_bytes(self, before, ranks):
        """Until as many have come over the cable as pulls bring in a moment, and the introduction does not."""
        until(lambda: self.bytes_over_the_cable() - before > 100000, 30)
        self.expect_all_run(ranks)
        self.assertGreater(self.bytes_over_the_cable() - before, 100000)

    def test_servers_behind_a_cable_that_is_out_for_three_seconds(self):
        pushes = 500
        ranks = self.start_counters(pushes)
        for end in ("host", "switch"):
            self.cable(end, "down")
            stood = self.bytes_over_the_cable()
            time.sleep(3)
            self.expect_all_run(ranks)
            self.assertLess(self.bytes_over_the_cable() - stood, 10000)  # nobody counts meanwhile
            self.cable(end, "up")
            self.wait_for_bytes(stood, ranks)
        self.expect_success(*ranks)
        for worker in range(2):
            self.assertEqual(ranks[worker].output, f"worker {worker} has counted {pushes} pushes\n")
        self.expect_nothing_left()

    def test_servers_behind_a_cable_that_stays_out(self):
        for end in ("host", "switch"):
            with self.subTest(end=end):
                ranks = self.start_counters(FOREVER, STRETTO_TIMEOUT="6")
                self.cable(end, "down")
                for rank, run in enumerate(ranks):
                    self.expect_cut_off(run, "[23]" if rank < 2 else "[01]")
                    self.assertEqual("Lost with this server: elements" in "".join(run.errors), rank < 2, run.errors)
                self.cable(end, "up")
                self.expect_nothing_left()


if __name__ == "__main__":
    unittest.main()
