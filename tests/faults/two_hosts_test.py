"""Jobs whose ranks are on two hosts, joined by a cable."""
import os
import pathlib
import shutil
import signal
import unittest

from harness import FOREVER, SECONDS_TO_END, FaultTest, losses
from namespaces import PROGRAMS, CommandFailed, Host, lay_cable

ADDRESSES = ["10.213.7.1", "10.213.7.2"]
PORT = 29500


@unittest.skipUnless(os.geteuid() == 0 and all(map(shutil.which, PROGRAMS)),
                     f"network namespaces take root and the programs {', '.join(PROGRAMS)}")
class TwoHosts(FaultTest):

    def setUp(self):
        super().setUp()
        self.need("UCX")
        self.hosts = []
        for _ in range(2):
            self.hosts.append(Host())
            self.addCleanup(self.hosts[-1].close)
            if not self.hosts[-1].ready:
                self.skipTest("network namespaces cannot be made here")
        try:
            lay_cable(self.hosts[0], "cable", self.hosts[1], "cable")
            for host, address in zip(self.hosts, ADDRESSES):
                host.do("ip", "address", "add", f"{address}/24", "dev", "cable")
                host.wait_for_cable("cable")
        except CommandFailed as reason:
            self.skipTest(str(reason))

    def start_pair(self, flags):
        return [self.start_rank(rank, 2, PORT, flags, ADDRESSES[0], before=host.inside())
                for rank, host in enumerate(self.hosts)]

    def bytes_over_the_cable(self):
        """Received by the first host; the first number of its line."""
        table = pathlib.Path("/proc", str(self.hosts[0].holder.pid), "net/dev").read_text()
        return int(table.split("cable:")[1].split()[0])

    def test_trains_as_on_one_host(self):
        before = self.bytes_over_the_cable()
        self.expect_success(*self.start_pair({"--log-dir": self.log("two")}))
        self.assertGreater(self.bytes_over_the_cable() - before, 100000)  # the gradients, not only the introduction
        self.expect_success(self.start({"--nproc": 2, "--log-dir": self.log("one")}))
        self.assertEqual(losses(self.log("two")), losses(self.log("one")))
        self.expect_nothing_left()

    def test_tensor_parallel_trains_as_on_one_host(self):
        self.expect_success(*self.start_pair({"--tp": 2, "--log-dir": self.log("two")}))
        self.expect_success(self.start({"--nproc": 2, "--tp": 2, "--log-dir": self.log("one")}))
        self.assertEqual(losses(self.log("two")), losses(self.log("one")))

    def kill_one(self, victim, flags=None):
        pair = self.start_pair({"--train-iters": FOREVER, "--log-dir": self.log("killed"), **(flags or {})})
        self.wait_for_steps(self.log("killed"), 3)
        os.kill(pair[victim].process.pid, signal.SIGKILL)
        survivor = pair[1 - victim]
        self.assertNotIn(self.status(survivor, SECONDS_TO_END), (0, -signal.SIGKILL))
        self.assertEqual(len(survivor.errors), 1, survivor.errors)
        self.assertIn(f"Rank {victim} ", survivor.errors[0])
        self.assertIn("killed or crashed", survivor.errors[0])
        self.expect_nothing_left()

    def test_rank_0_is_killed(self):
        self.kill_one(0)

    def test_rank_1_is_killed(self):
        self.kill_one(1)

    def test_a_rank_is_killed_in_mid_message(self):
        for host in self.hosts:  # so that the gradients are on their way most of the time
            host.do("tc", "qdisc", "add", "dev", "cable", "root", "tbf", "rate", "400mbit", "burst", "128kb", "latency", "50ms")
        self.kill_one(1, {"--hidden-size": 512})


if __name__ == "__main__":
    unittest.main()
