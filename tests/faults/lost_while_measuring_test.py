"""When a rank is lost while its job measures the machine (docs/selection.md), the others end with a sentence that names it, and
nothing is kept that later jobs would take for a measurement."""
import os
import signal
import time
import unittest

from harness import SECONDS_TO_END, FaultTest, free_port, until

from perf.comparisons.namespaces import PORT, CommandFailed, Network, obstacle

TIMEOUT = 4  # seconds


class LostWhileMeasuring(FaultTest):
    def start_job(self, ranks, network=None):
        """Returns its processes when it has begun to measure."""
        self.cache = self.directory / f"cache{len(self.runs)}"
        variables = {"STRETTO_CALIBRATE": "auto", "STRETTO_CACHE_DIR": str(self.cache), "STRETTO_LOG": "info", "STRETTO_INSECURE": "1",
                     "STRETTO_TIMEOUT": str(TIMEOUT)}
        port = PORT if network else free_port()
        hosts = [host for host, count in enumerate(network.ranks) for _ in range(count)] if network else [None] * ranks
        job = [self.start_rank(rank, ranks, port, {}, network.addresses[0] if network else "127.0.0.1", variables,
                               network.hosts[host].inside() if network else ()) for rank, host in enumerate(hosts)]
        self.assertTrue(until(lambda: "Measuring this machine" in "\n".join(job[0].errors), 30), [rank.errors for rank in job])
        return job

    def lose(self, job, victim, lost_by, after, says):
        time.sleep(after)
        os.kill(job[victim].process.pid, lost_by)
        for rank, run in enumerate(job):
            if rank == victim:
                continue
            self.assertNotIn(self.status(run, SECONDS_TO_END + TIMEOUT), (0, -signal.SIGKILL), run.errors)
            said = [line for line in run.errors if " [info] " not in line]
            self.assertEqual(len(said), 1, said)
            self.assertRegex(said[0], rf"^error: rank {rank}: Rank {victim} \(process {job[victim].process.pid} on .*\) {says}")
        job[victim].kill_all()
        self.assertEqual(list(self.cache.iterdir()), [])
        self.expect_nothing_left()

    def test_killed(self):
        for victim, after in ((0, 0.1), (2, 0.4)):
            with self.subTest(victim=victim):
                self.lose(self.start_job(4), victim, signal.SIGKILL, after, "ended without a word: it was killed or crashed")

    def test_stopped(self):
        for victim, after in ((0, 0.4), (2, 0.1)):
            with self.subTest(victim=victim):
                self.lose(self.start_job(4), victim, signal.SIGSTOP, after, "has given no sign of life for")

    def test_on_two_hosts(self):
        self.need("UCX")
        if obstacle():
            self.skipTest(obstacle())
        for victim, lost_by, after, says in ((3, signal.SIGKILL, 1.0, "ended without a word"), (0, signal.SIGKILL, 0.5, "ended without a word"),
                                             (1, signal.SIGSTOP, 1.0, "has given no sign of life for")):
            with self.subTest(victim=victim, after=after):
                try:
                    network = Network([2, 2])
                except CommandFailed as reason:
                    self.skipTest(str(reason))
                with network:
                    self.lose(self.start_job(4, network), victim, lost_by, after, says)


if __name__ == "__main__":
    unittest.main()
