"""perf/netlab: the places of the ranks, the exit status, and that nothing is left behind, however it ends."""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import unittest

PERF_DIRECTORY = pathlib.Path(os.environ["ROOT"]) / "perf"
PERF_PROGRAM = os.environ["PERF_PROGRAM"]
sys.path.insert(0, str(PERF_DIRECTORY.parent))
from perf.comparisons.namespaces import CommandFailed, Network, obstacle  # noqa: E402

SECONDS_TO_END = 10


def can_be_made():
    if obstacle():
        return obstacle()
    try:
        Network([1], rate=None).close()
        return ""
    except CommandFailed as reason:
        return str(reason)


def network_of(pid):
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:
        return None


def those_in(networks):
    return [pid for pid in os.listdir("/proc") if pid.isdigit() and network_of(pid) in networks]


WHY_NOT = can_be_made()


@unittest.skipIf(WHY_NOT, WHY_NOT)
class Netlab(unittest.TestCase):

    def run_it(self, *words):
        return subprocess.run([PERF_DIRECTORY / "netlab", *words], capture_output=True, text=True, timeout=60)

    def expect_lines(self, done, lines):
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(done.stdout.splitlines()), lines)

    def test_two_hosts_of_two_ranks(self):
        say = "echo $RANK of $WORLD_SIZE is $LOCAL_RANK on $(hostname), in $(pwd)"
        self.expect_lines(self.run_it("--hosts", "2", "--ranks-per-host", "2", "--all-output", "--", "sh", "-c", say),
                          [f"[{rank}] {rank} of 4 is {rank % 2} on host{rank // 2}, in {os.getcwd()}" for rank in range(4)])

    def test_only_rank_0_is_heard(self):
        self.expect_lines(self.run_it("--", "sh", "-c", "echo $RANK"), ["0"])

    def test_unequal_hosts_reach_each_other(self):
        done = self.run_it("--ranks", "1,2", "--", PERF_PROGRAM, "all_reduce", "-b", "4K", "-e", "4K", "-n", "2")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("3 ranks (processes) on host0, host1", done.stdout)

    def test_mpirun(self):
        if not os.environ.get("MPIRUN_PROGRAM") or not shutil.which("mpirun.openmpi"):
            self.skipTest("there is no Open MPI")
        say = "echo $OMPI_COMM_WORLD_RANK is on $(hostname)"
        self.expect_lines(self.run_it("--ranks", "2,1", "--mpirun", "--", "sh", "-c", say),
                          ["0 is on host0", "1 is on host0", "2 is on host1"])
        self.assertEqual(self.run_it("--mpirun", "--", "sh", "-c", "exit $OMPI_COMM_WORLD_RANK").returncode, 1)

    def test_the_first_status_counts_and_the_others_are_ended(self):
        begin = time.monotonic()
        done = self.run_it("--ranks-per-host", "2", "--", "sh", "-c", "[ $RANK = 2 ] && exit 7; sleep 600")
        self.assertEqual(done.returncode, 7, done.stderr)
        self.assertLess(time.monotonic() - begin, 30)

    def end_by(self, number):
        # Ranks that heed no signal, with a child each: the whole host has to go.
        stubborn = "trap '' TERM INT; sleep 600 & echo there; while :; do sleep 1; done"
        netlab = subprocess.Popen([PERF_DIRECTORY / "netlab", "--all-output", "--", "sh", "-c", stubborn], stdout=subprocess.PIPE,
                                  text=True)
        for _ in range(2):
            self.assertIn("there", netlab.stdout.readline())
        ours = network_of(netlab.pid)
        table = {pid: pathlib.Path("/proc", pid, "stat").read_text().rsplit(")", 1)[1].split()[1]
                 for pid in os.listdir("/proc") if pid.isdigit() and network_of(pid)}
        networks = {network_of(pid) for pid, parent in table.items() if parent == str(netlab.pid)} - {ours, None}
        self.assertEqual(len(networks), 3)  # two hosts and the switch
        netlab.send_signal(number)
        status = netlab.wait(SECONDS_TO_END)
        netlab.stdout.close()
        deadline = time.monotonic() + SECONDS_TO_END
        while those_in(networks) and time.monotonic() < deadline:
            time.sleep(0.02)
        self.assertEqual(those_in(networks), [])
        return status

    def test_killed(self):
        self.assertEqual(self.end_by(signal.SIGKILL), -signal.SIGKILL)

    def test_terminated(self):
        self.assertEqual(self.end_by(signal.SIGTERM), 128 + signal.SIGTERM)

    def test_interrupted(self):
        self.assertEqual(self.end_by(signal.SIGINT), 128 + signal.SIGINT)

    def test_errors(self):
        self.assertIn("'2,x' is no list of numbers", self.run_it("--ranks", "2,x", "--", "true").stderr)
        for other in (["--hosts", "2"], ["--ranks-per-host", "1"]):
            self.assertIn("give either that or --hosts", self.run_it("--ranks", "2,1", *other, "--", "true").stderr)
        for rate in ("fast", "0gbit", "1tbit"):
            done = self.run_it("--rate", rate, "--", "true")
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, rf"\Aerror: '{rate}' is no rate of a link[^\n]*\.\n\Z")


if __name__ == "__main__":
    unittest.main()
