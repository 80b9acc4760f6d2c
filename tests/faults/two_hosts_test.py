"""Two network namespaces of this machine stand for two hosts: their ranks share no memory and meet over a virtual cable."""
import os
import shutil
import signal
import subprocess
import unittest

from harness import FOREVER, SECONDS_TO_END, FaultTest, losses

ADDRESSES = ["10.213.7.1", "10.213.7.2"]
PORT = 29500


@unittest.skipUnless(os.geteuid() == 0 and shutil.which("ip"), "network namespaces take root and the program ip")
class TwoHosts(FaultTest):

    def setUp(self):
        super().setUp()
        self.need("UCX")
        self.hosts = [f"faults-{os.getpid()}-{i}" for i in range(2)]
        for host in self.hosts:
            self.ip("netns", "add", host)
            self.addCleanup(subprocess.run, ["ip", "netns", "del", host], check=True)
        ends = [f"cable{os.getpid()}{end}" for end in "ab"]
        # Both ends are born inside, so that this machine's own network never sees them; they go with their namespaces.
        self.ip("link", "add", ends[0], "netns", self.hosts[0], "type", "veth", "peer", "name", ends[1], "netns",
                self.hosts[1])
        for host, end, address in zip(self.hosts, ends, ADDRESSES):
            self.ip("-n", host, "address", "add", f"{address}/24", "dev", end)
            self.ip("-n", host, "link", "set", end, "up")
            self.ip("-n", host, "link", "set", "lo", "up")
        self.cables = ends

    def ip(self, *words):
        done = subprocess.run(["ip", *words], capture_output=True, text=True)
        if done.returncode != 0:
            self.skipTest(f"ip {' '.join(words)}: {done.stderr.strip()}")

    def start_pair(self, flags):
        return [self.start_rank(rank, 2, PORT, flags, ADDRESSES[0], before=["ip", "netns", "exec", host])
                for rank, host in enumerate(self.hosts)]

    def bytes_over_the_cable(self):
        path = f"/sys/class/net/{self.cables[0]}/statistics/tx_bytes"
        return int(subprocess.check_output(["ip", "netns", "exec", self.hosts[0], "cat", path]))

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

    def kill_one(self, victim):
        pair = self.start_pair({"--train-iters": FOREVER, "--log-dir": self.log("killed")})
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


if __name__ == "__main__":
    unittest.main()
