"""perf/netlab: the places of the ranks, the exit status, and that nothing is left behind, however it ends. And the verdicts of
./dev perf netlab, with a control that fails beside each."""
import copy
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PERF_DIRECTORY = pathlib.Path(os.environ["ROOT"]) / "perf"
PERF_PROGRAM = os.environ["PERF_PROGRAM"]
sys.path.insert(0, str(PERF_DIRECTORY.parent))
from perf.comparisons import namespaces  # noqa: E402
from perf.pages import netlab as netlab_page  # noqa: E402
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


def good_figures():
    """Everything holds, with little to spare: the stream carries a byte a microsecond."""
    sizes = netlab_page.SIZES
    bound = {str(size): 1.5 * size for size in sizes}

    def times(factor):
        return {size: us * factor for size, us in bound.items()}

    chosen = {str(size): "two_level(ring+ring)" for size in sizes}
    large = str(64 << 20)
    return {
        "hosts": 4, "ranks_per_host": 2, "rate": "8mbit", "rounds": 3, "sizes": sizes, "quantized_bytes": 64 << 20, "wrong": 0,
        "versions": {}, "stream": 1e6, "command": "./dev perf netlab",
        "machine": {"cpu": "A processor", "cores": 2, "system": "A system", "date": "2000-01-01"},
        "chosen": {"stretto": chosen, "model": chosen, "all_gather bf16": {large: "direct"}},
        "times": {"stretto": {"auto": times(1.05), "ring": times(1.3), "two_level(ring+ring)": {large: bound[large] * 1.02}},
                  "model": {"auto": times(1.15), "ring": times(1.2)},
                  "openmpi": {"": times(2.2)}, "gloo": {"": {**times(2.2), large: bound[large] * 1.2}},
                  "reduce_scatter bf16": {"auto": {large: 90.0}, "ring": {large: 60.0}}, "all_gather bf16": {"auto": {large: 61.0}},
                  "reduce_scatter int4": {"auto": {large: 15.0}}, "all_gather int8": {"auto": {large: 25.0}}},
    }


class Report(unittest.TestCase):

    def those_that_fail(self, figures):
        return [verdict.text for verdict in netlab_page.verdicts(figures) if not verdict.holds]

    def test_good_figures_hold(self):
        self.assertEqual(self.those_that_fail(good_figures()), [])
        self.assertNotIn("FALLS SHORT", netlab_page.report(good_figures()))

    def test_each_can_fail(self):
        mib = 1 << 20
        faults = [("no wrong values", ["wrong"], 1), ("bound", ["times", "stretto", "auto", str(16 * mib)], 1.5 * 16 * mib * 1.11),
                  ("best of Open MPI and Gloo", ["times", "gloo", "", str(mib)], 1.5 * mib * 2),
                  ("as fast as Open MPI", ["times", "openmpi", "", str(64 * mib)], 1),
                  ("as fast as Gloo", ["times", "gloo", "", str(64 * mib)], 1.5 * 64 * mib),
                  ("by its name", ["times", "stretto", "two_level(ring+ring)", str(64 * mib)], 1.5 * 64 * mib * 0.99),
                  ("ring: the model within", ["times", "model", "ring", str(4 * mib)], 1.5 * 4 * mib),
                  ("TCP stream", ["rate"], "8.7mbit"),
                  ("in bf16 (by ring and the library's choice direct",
                   ["times", "reduce_scatter bf16", "ring", str(64 * mib)], 55.0),
                  ("bf16", ["times", "all_gather int8", "auto", str(64 * mib)], 26.0)]
        for words, path, value in faults:
            figures = copy.deepcopy(good_figures())
            place = figures
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = value
            failing = self.those_that_fail(figures)
            self.assertEqual(len(failing), 1, (words, failing))
            self.assertIn(words, failing[0])

    def test_other_choices_are_not_compared_with_the_model(self):
        figures = good_figures()
        figures["times"]["model"]["auto"] = figures["times"]["openmpi"][""]
        self.assertEqual(len(self.those_that_fail(figures)), 3)
        figures["chosen"]["model"] = dict.fromkeys(figures["chosen"]["model"], "ring")
        self.assertEqual(self.those_that_fail(figures), [])

    def test_missing_figures_fail(self):
        mib = 1 << 20
        for lost, part in (
                (lambda f: f["times"].pop("openmpi"), ["1 MiB: at least 2", "64 MiB: at least 1.8"]),
                (lambda f: f["times"].pop("gloo"), ["1 MiB: at least 2", "64 MiB: at least 1.05"]),
                (lambda f: [by_size.pop(str(16 * mib), None) for side in f["times"].values() for by_size in side.values()],
                 ["16 MiB: at most 1.1", "16 MiB, auto: the model", "16 MiB, ring: the model"]),
                (lambda f: (f["times"].pop("model"), f["chosen"].pop("model")),
                 [f"{size} MiB, {method}: the model" for size in (4, 16, 64) for method in ("auto", "ring")]),
                (lambda f: f["times"].pop("reduce_scatter int4"), ["quantized"])):
            figures = good_figures()
            lost(figures)
            failing = self.those_that_fail(figures)
            self.assertEqual(len(failing), len(part), failing)
            self.assertTrue(all(any(text.startswith(word) for text in failing) for word in part), failing)
            self.assertTrue(netlab_page.falls_short(figures))
            self.assertIn("NOT MEASURED: ", netlab_page.report(figures))
            self.assertNotIn("FALLS SHORT", netlab_page.report(figures))

    def test_a_busy_machine_is_said(self):
        figures = good_figures()
        self.assertNotIn("too busy", netlab_page.report(figures))
        figures["rate"] = "1.1mbps"
        self.assertIn("FALLS SHORT: a TCP stream at least 0.93 of the link's rate (the machine is too busy to judge): 0.91",
                      netlab_page.report(figures))

    def test_program(self):
        with tempfile.TemporaryDirectory(prefix="netlab-") as directory:
            written, page = pathlib.Path(directory, "figures.json"), pathlib.Path(directory, "page.md")
            page.write_text((PERF_DIRECTORY.parent / "docs/performance.md").read_text())

            def judge(figures, *words):
                written.write_text(json.dumps(figures))
                return subprocess.run([sys.executable, "-B", "-m", "perf.comparisons.netlab_report", "--from", written, *words],
                                      cwd=PERF_DIRECTORY.parent, capture_output=True, text=True)

            done = judge(good_figures(), "--write-docs", page)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            text = page.read_text()
            inside = text[text.index(netlab_page.SECTION.begin):text.index(netlab_page.SECTION.end)]
            for word in ("A processor, 2 cores, A system, 2000-01-01", "| 64 MiB | 100663.3 | 105696.5 |", "- holds: no wrong values"):
                self.assertIn(word, inside)
            judge(good_figures(), "--write-docs", page)
            self.assertEqual(page.read_text(), text)
            figures = good_figures()
            figures["times"].pop("gloo")
            self.assertEqual(judge(figures).returncode, 1)
            page.write_text("no marks")
            self.assertIn("does not have the two marks", judge(good_figures(), "--write-docs", page).stderr)

    def test_rates(self):
        for rate, bytes_per_second in (("1gbit", 125e6), ("8Mbit", 1e6), ("0.5gbps", 5e8), ("2mbps", 2e6)):
            self.assertEqual(bytes_per_second, namespaces.bytes_per_second(rate))
        self.assertEqual(namespaces.network_setting("8Mbit"), "8Mb/s,40us")
        for rate in ("0gbit", "0.0mbit", "-1gbit", "fastgbit", "1tbit", "1", "nangbit"):
            with self.assertRaisesRegex(CommandFailed, "is no rate of a link"):
                namespaces.bytes_per_second(rate)


if __name__ == "__main__":
    unittest.main()
