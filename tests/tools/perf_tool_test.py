"""stretto-perf and perf/report, seen from outside, at sizes at which they take no time."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

PERF = os.environ["PERF_PROGRAM"]
REPORT = os.environ["REPORT_PROGRAM"]
BUILT_WITH = os.environ.get("BUILT_WITH", "").split()
MPIRUN = os.environ.get("MPIRUN_PROGRAM", "")
SANITIZED = os.environ.get("SANITIZED", "")  # the peers are not built with the sanitizer, which takes them for faulty

# What would make it believe in a launcher, or change what is tested.
FOREIGN_VARIABLES = re.compile(r"(RANK|LOCAL_RANK|WORLD_SIZE|MASTER_\w+|(OMPI|PMIX?|SLURM|STRETTO|UCX(?!_MEM)|TORCHELASTIC)_\w+)$")
SMALL = ["-b", "96", "-e", "9600", "-f", "10", "-n", "3", "-w", "1"]
FACTORS = {  # of nccl-tests, for 3 ranks
    "all_reduce": 2 * 2 / 3, "reduce_scatter": 2 / 3, "all_gather": 2 / 3, "all_to_all": 2 / 3, "broadcast": 1, "reduce": 1,
    "gather": 2 / 3, "scatter": 2 / 3, "sendrecv": 1, "barrier": 1, "all_to_all_v": 2 / 3, "all_gather_v": 2 / 3,
    "reduce_scatter_v": 2 / 3,
}


class PerfToolTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="perf-")
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)

    def run_program(self, *words):
        environment = {name: value for name, value in os.environ.items() if not FOREIGN_VARIABLES.match(name)}
        return subprocess.run([str(word) for word in words], env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=120)

    def perf(self, *words):
        return self.run_program(PERF, *words)

    def figures(self, *words):
        path = self.directory / f"{len(list(self.directory.iterdir()))}.json"
        done = self.perf(*words, "--json", path)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        self.assertIn("Out of bounds values : 0 OK", done.stdout)
        return json.loads(path.read_text())

    def refused(self, *words):
        """It stops with one sentence, which is returned."""
        done = self.perf(*words)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        lines = done.stderr.splitlines()
        self.assertEqual(len(lines), 1, lines)
        self.assertTrue(lines[0].startswith("error: "), lines)
        return lines[0]

    def check(self, run, collective):
        self.assertEqual(run["ranks"], 3)
        for key in ("cpu", "cores", "date", "version", "command"):
            self.assertTrue(run["machine"][key], key)
        self.assertTrue(run["rows"])
        for row in run["rows"]:
            self.assertEqual(row["collective"], collective)
            self.assertEqual(row["wrong"], 0)
            self.assertTrue(row["algo"])
            self.assertLessEqual(row["p50_us"], row["p99_us"])
            self.assertAlmostEqual(row["algbw"], row["bytes"] / row["time_us"] / 1e3)
            self.assertAlmostEqual(row["busbw"], row["algbw"] * FACTORS[collective])
            self.assertEqual(row["peers"], {})

    def test_every_collective_by_processes(self):
        for collective in FACTORS:
            with self.subTest(collective):
                self.check(self.figures(collective, *SMALL, "--nproc", 3), collective)

    def test_every_collective_by_threads(self):
        for collective in FACTORS:
            with self.subTest(collective):
                run = self.figures(collective, *SMALL, "--nproc", 3, "--threads", "-r", "all")
                self.check(run, collective)
                rooted = collective in ("broadcast", "reduce", "gather", "scatter")
                self.assertEqual({row["root"] for row in run["rows"]}, {0, 1, 2} if rooted else {-1})

    def test_sizes(self):
        sizes = lambda *words: sorted({row["bytes"] for row in self.figures(
            "all_reduce", "-n", 1, "--nproc", 2, "--threads", *words)["rows"]})
        self.assertEqual(sizes("-b", "1K", "-e", "4K"), [1024, 2048, 4096])
        self.assertEqual(sizes("-b", "4", "-e", "16", "-i", "4"), [4, 8, 12, 16])
        self.assertEqual(sizes("-b", "0", "-e", "0"), [0])

    def test_placements(self):
        for given, expected in (("0", {False}), ("1", {True}), ("both", {False, True})):
            run = self.figures("all_gather", *SMALL, "--nproc", 2, "--threads", "--in-place", given)
            self.assertEqual({row["in_place"] for row in run["rows"]}, expected)
        run = self.figures("all_to_all", *SMALL, "--nproc", 2, "--threads")
        self.assertEqual({row["in_place"] for row in run["rows"]}, {False})

    def test_every_algorithm(self):
        named = {row["algo"] for row in self.figures("all_reduce", *SMALL, "--nproc", 3, "--algo", "ring,ring*2")["rows"]}
        self.assertEqual(named, {"ring", "ring*2"})
        every = {row["algo"] for row in self.figures("all_reduce", *SMALL, "--nproc", 3, "--algo", "all")["rows"]}
        self.assertLess({"ring", "recursive_doubling"}, every)

    def test_types_and_operators(self):
        run = self.figures("all_reduce", *SMALL, "--nproc", 3, "--threads", "-o", "all", "-d", "all", "-n", 1)
        self.assertEqual(len({(row["dtype"], row["op"]) for row in run["rows"]}), 12 * 6)

    def test_unchecked_results_are_not_called_right(self):
        path = self.directory / "unchecked.json"
        done = self.perf("all_reduce", *SMALL, "--nproc", 2, "-c", 0, "--json", path)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("OK", done.stdout)
        self.assertEqual({row["wrong"] for row in json.loads(path.read_text())["rows"]}, {None})

    def test_bad_arguments(self):
        for words, said in (
            (["bogus"], "no collective"),
            ([], "COLLECTIVE"),
            (["all_reduce", "--bogus"], "--bogus"),
            (["all_reduce", "-b", "4X"], "4X"),
            (["all_reduce", "-b", "64M"], "above"),
            (["all_reduce", "-b", "0", "-e", "8"], "-b 0"),
            (["all_reduce", "-f", "1"], "-f 1"),
            (["all_reduce", "-n", "0"], "-n 0"),
            (["all_reduce", "-d", "f31"], "f31"),
            (["all_reduce", "-o", "xor"], "xor"),
            (["all_reduce", "-a", "4"], "-a 4"),
            (["broadcast", "-r", "3", "--nproc", "3"], "-r 3"),
            (["broadcast", "--algo", "ring", "--nproc", "2"], "ring"),
            (["broadcast", "--algo", "ring"], "ring"),
            (["sendrecv", "--nproc", "1"], "sendrecv"),
            (["all_reduce", "--threads"], "--nproc"),
            (["all_reduce", "--vs", "bogus", "--nproc", "2"], "bogus"),
            (["all_reduce", "--nproc", "2", "--json", self.directory / "none" / "x.json"], "--json"),
            (["all_reduce", "--nproc", "3", "--ranks-per-node", "2"], "--ranks-per-node 2"),
        ):
            with self.subTest(words=words):
                self.assertIn(said, self.refused(*words))

    def test_peers(self):
        for peer in ("mpi", "gloo"):
            with self.subTest(peer):
                if peer.upper() not in BUILT_WITH:
                    self.assertIn("no peer of this build", self.refused("all_reduce", "--nproc", 2, "--vs", peer))
                    continue
                if SANITIZED or (peer == "mpi" and not MPIRUN):
                    self.skipTest("a sanitizer is in, or this machine has no mpirun")
                run = self.figures("all_gather", *SMALL, "--nproc", 2, "--vs", peer)
                for row in run["rows"]:
                    self.assertGreater(row["peers"][peer]["time_us"], 0)
                averages = self.figures("all_reduce", *SMALL, "--nproc", 2, "--vs", peer, "-o", "avg")
                self.assertEqual([row["peers"] for row in averages["rows"]], [{}] * len(averages["rows"]))

    def test_under_mpirun(self):
        if "MPI" not in BUILT_WITH or not MPIRUN or SANITIZED:
            self.skipTest("this build or machine has no MPI, or a sanitizer is in")
        path = self.directory / "mpi.json"
        done = self.run_program(MPIRUN, "--allow-run-as-root", "--oversubscribe", "-n", 3, PERF, "all_reduce", *SMALL,
                                "--json", path)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.check(json.loads(path.read_text()), "all_reduce")

    def test_report(self):
        words = [*SMALL, "--nproc", 3, "--threads"]
        for collective in ("all_reduce", "barrier"):
            self.figures(collective, *words)
        page = self.directory / "page.html"
        done = self.run_program(sys.executable, REPORT, *sorted(self.directory.glob("*.json")), "-o", page)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        text = page.read_text()
        self.assertIn("<polyline", text)
        self.assertIn("all_reduce, f32, sum", text)
        self.assertNotRegex(text, r"(src|href)\s*=|https?://|@import|NaN")
        page.write_text("{}")
        done = self.run_program(sys.executable, REPORT, page, "-o", self.directory / "other.html")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(len(done.stderr.splitlines()), 1)


if __name__ == "__main__":
    unittest.main()
