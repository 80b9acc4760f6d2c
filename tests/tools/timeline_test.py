"""The trace that stretto-train writes, and the page that perf/timeline makes of it."""
import collections
import json
import os
import pathlib
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest

PERF = os.environ["PERF_DIRECTORY"]
TRAIN = os.environ["TRAIN_PROGRAM"]
sys.path.insert(0, PERF)
import timeline_trace  # noqa: E402

FOREIGN_VARIABLES = re.compile(r"(RANK|LOCAL_RANK|WORLD_SIZE|MASTER_\w+|(OMPI|PMIX?|SLURM|STRETTO|TORCHELASTIC)_\w+)$")
STEPS = 3
# Operations that run at once note their beginning when their first word is out: a rank that is then interrupted notes it late.
LATE_US = 200_000


def timeline(*words):
    return subprocess.run([sys.executable, "-B", f"{PERF}/timeline", *map(str, words)], capture_output=True, text=True, timeout=120)


def environment(**more):
    own = {name: value for name, value in os.environ.items() if not FOREIGN_VARIABLES.match(name)}
    return {**own, "OMP_NUM_THREADS": "1", **more}


def cells(intervals):
    return {cell for begin, end in intervals for cell in range(begin, end)}


class Intervals(unittest.TestCase):
    def test_are_sets_of_moments(self):
        draw = random.Random(1)
        some = lambda: [(begin, begin + draw.randint(0, 4)) for begin in (draw.randint(0, 20) for _ in range(draw.randint(0, 6)))]
        for _ in range(3000):
            one, other, (begin, end) = some(), some(), sorted((draw.randint(0, 20), draw.randint(0, 20)))
            a, b = timeline_trace.union(one), timeline_trace.union(other)
            self.assertEqual(cells(a), cells(one))
            self.assertEqual(timeline_trace.length(a), len(cells(a)))
            self.assertEqual(cells(timeline_trace.intersection(a, b)), cells(a) & cells(b))
            self.assertEqual(cells(timeline_trace.difference(a, b)), cells(a) - cells(b))
            self.assertEqual(cells(timeline_trace.within(a, begin, end)), cells(a) & set(range(begin, end)))


def event(tid, begin, end, category, pid=0, name="x"):
    arguments = {"bytes": 8, "bytes_between_nodes": 0, "count": 2, "dtype": "f32", "algorithm": "ring", "group": "dp", "group_size": 2,
                 "stream": "dp", "tag": "", "waited_us": 0}
    return {"ph": "X", "pid": pid, "tid": tid, "ts": begin, "dur": end - begin, "name": name, "cat": category,
            **({"args": arguments} if category == "communication" else {})}


def made(communication):
    """Kernels from 0 to 40 and from 50 to 60 in a step of 100; what is communicated on two streams."""
    events = [event(9, 0, 100, "step", name="step 1"), event(0, 0, 40, "compute"), event(0, 10, 20, "compute"), event(0, 50, 60, "compute")]
    return {"traceEvents": events + [event(tid, begin, end, "communication") for tid, begin, end in communication]}


class MadeByHand(unittest.TestCase):
    def sums(self, *communication):
        trace = timeline_trace.read(json.dumps(made(communication)))
        self.assertEqual([name for name, _ in trace.steps()], ["step 1"])
        return tuple(trace.ranks[0].sums(0, 100))

    def test_hidden_and_exposed(self):
        self.assertEqual(self.sums(), (100, 50, 0, 0, 0))
        self.assertEqual(self.sums((1, 10, 30)), (100, 50, 20, 20, 0))
        self.assertEqual(self.sums((1, 30, 70)), (100, 50, 40, 20, 20))
        self.assertEqual(self.sums((1, 60, 70)), (100, 50, 10, 0, 10))
        self.assertEqual(self.sums((0, 40, 50)), (100, 50, 10, 0, 10), "on the computing thread itself")
        self.assertEqual(self.sums((1, 30, 70), (2, 30, 50)), (100, 50, 40, 20, 20), "two streams at a time count once")
        self.assertEqual(self.sums((1, 90, 130)), (100, 50, 10, 0, 10), "what goes on behind the step is not the step's")

    def test_one_rank_hides_nothing_of_another(self):
        trace = made([])
        trace["traceEvents"].append(event(1, 0, 40, "communication", pid=1))
        ranks = timeline_trace.read(json.dumps(trace)).ranks
        self.assertEqual((ranks[0].sums(0, 100).communication, ranks[1].sums(0, 100).exposed), (0, 40))

    def test_table(self):
        with tempfile.TemporaryDirectory(prefix="timeline-") as directory:
            trace, page = pathlib.Path(directory, "trace.json"), pathlib.Path(directory, "page.html")
            trace.write_text(json.dumps(made([(1, 30, 70)])))
            result = timeline(trace, "-o", page)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            figures = "<td>0.100</td><td>0.050</td><td>0.040</td><td>0.020</td><td>0.020</td><td>50%</td>"
            self.assertIn(figures, page.read_text())
            trace.write_text(json.dumps(made([(1, 31, 71)])))  # the control
            timeline(trace, "-o", page)
            self.assertNotIn(figures, page.read_text())


class OfTheTrainer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory(prefix="timeline-")
        cls.addClassCleanup(temporary.cleanup)
        cls.directory = pathlib.Path(temporary.name)
        (cls.directory / "text").write_text("".join(f"{i} times {i} is {i * i}; " for i in range(1000)))
        result = cls.train("--trace", cls.directory / "trace.json", "--log-dir", cls.directory / "log")
        if result.returncode != 0:
            raise AssertionError(result.stderr)
        cls.trace = json.loads((cls.directory / "trace.json").read_text())
        cls.metrics = [json.loads(line) for line in (cls.directory / "log/metrics.jsonl").read_text().splitlines()]

    @classmethod
    def command(cls, *words):
        return [*map(str, [TRAIN, "--num-layers", 2, "--hidden-size", 32, "--num-attention-heads", 4, "--seq-length", 32, "--global-batch-size",
                           8, "--micro-batch-size", 2, "--train-iters", STEPS, "--train-data", cls.directory / "text", *words])]

    @classmethod
    def train(cls, *words):
        return subprocess.run(cls.command("--nproc", 2, *words), capture_output=True, text=True, errors="replace", timeout=120,
                              env=environment())

    def events(self, phase, category=None, trace=None):
        return [e for e in (trace or self.trace)["traceEvents"] if e["ph"] == phase and category in (None, e.get("cat"))]

    def tracks(self, trace=None):
        return {(e["pid"], e["tid"]): e["args"]["name"] for e in self.events("M", trace=trace) if e["name"] == "thread_name"}

    def test_ranks_and_tracks(self):
        names = {e["pid"]: e["args"]["name"] for e in self.events("M") if e["name"] == "process_name"}
        self.assertEqual(names, {0: "rank 0", 1: "rank 1"})
        for rank in names:
            self.assertEqual(self.tracks()[rank, 0], "computing thread")
            self.assertEqual(self.tracks()[rank, 1], "dp")
        self.assertEqual(sorted(self.tracks().values()), sorted(2 * ["computing thread", "dp", "steps"]))
        self.assertEqual({(e["pid"], e["tid"]) for e in self.events("X")}, set(self.tracks()))
        self.assertEqual({e["tid"] for e in self.events("X", "compute")}, {0})
        self.assertIn("gemm", {e["name"] for e in self.events("X", "compute")})

    def test_without_overlap_there_is_one_thread(self):
        result = self.train("--trace", self.directory / "plain.json", "--no-overlap")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        plain = json.loads((self.directory / "plain.json").read_text())
        self.assertEqual(set(self.tracks(plain).values()), {"computing thread", "steps"})
        for rank in timeline_trace.read(json.dumps(plain)).ranks.values():
            self.assertGreater(timeline_trace.length(rank.exposed), 0)
            self.assertEqual(timeline_trace.length(rank.hidden), 0)

    def test_times(self):
        slices = self.events("X")
        self.assertEqual(min(e["ts"] for e in slices), 0)
        self.assertTrue(all(e["dur"] >= 0 for e in slices))
        by_track = collections.defaultdict(list)
        for e in slices:
            by_track[e["pid"], e["tid"]].append((round(e["ts"] * 1000), -round(e["dur"] * 1000)))
        for track, spans in by_track.items():
            open_ends = []
            for begin, negative in sorted(spans):
                while open_ends and open_ends[-1] <= begin:
                    open_ends.pop()
                self.assertTrue(not open_ends or begin - negative <= open_ends[-1], f"slices of {track} cross")
                open_ends.append(begin - negative)

    def test_steps(self):
        for rank in (0, 1):
            steps = [e for e in self.events("X", "step") if e["pid"] == rank]
            self.assertEqual([e["name"] for e in steps], [f"step {i + 1}" for i in range(STEPS)])
            parts = [e["name"] for e in self.events("X", "part") if e["pid"] == rank]
            self.assertEqual(parts, ["validate", "sample"] if rank == 0 else ["validate"])

    def test_bytes_are_the_ledgers(self):
        for i, metrics in enumerate(self.metrics):
            step = next(e for e in self.events("X", "step") if e["pid"] == 0 and e["name"] == f"step {i + 1}")
            inside = [e["args"]["bytes"] for e in self.events("X", "communication")
                      if e["pid"] == 0 and step["ts"] <= e["ts"] <= step["ts"] + step["dur"]]
            self.assertGreater(len(inside), 1)
            self.assertEqual(sum(inside), metrics["bytes_sent"])

    def test_arrows(self):
        self.expect_arrows(self.trace)

    def test_another_clock(self):
        """A rank whose clock is 1000 s ahead, as on a host that was started earlier."""
        shifted = ["unshare", "--time", "--monotonic", "1000", "--fork"]
        if not shutil.which("unshare") or subprocess.run([*shifted, "true"], capture_output=True, timeout=20).returncode != 0:
            self.skipTest("time namespaces cannot be made here")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        ranks = [subprocess.Popen([*before, *self.command("--trace", self.directory / "shifted.json")], stdout=subprocess.DEVNULL,
                                  env=environment(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
                                                  STRETTO_JOB_SECRET="of this test"))
                 for rank, before in enumerate(([], shifted))]
        for rank in ranks:
            self.addCleanup(rank.kill)
        self.assertEqual([rank.wait(60) for rank in ranks], [0, 0])
        trace = json.loads((self.directory / "shifted.json").read_text())
        error = trace["otherData"]["clock_error_us"]
        self.assertEqual(error[0], 0)
        self.assertGreater(error[1], 0)
        self.assertLess(max(e["ts"] + e["dur"] for e in self.events("X", trace=trace)), 100e6)
        self.expect_arrows(trace, error[1])

    def expect_arrows(self, trace, clock_error=0):
        starts = {e["id"]: e for e in self.events("s", trace=trace)}
        ends = {e["id"]: e for e in self.events("f", trace=trace)}
        self.assertEqual((len(starts), len(ends)), (len(self.events("s", trace=trace)), len(self.events("f", trace=trace))))
        self.assertEqual(set(starts), set(ends))
        self.assertEqual(len(starts), trace["otherData"]["arrows"])
        # With two ranks, an arrow leaves every operation in which a rank sends something.
        self.assertEqual(len(starts), sum(e["args"]["group_size"] == 2 and e["args"]["bytes"] > 0
                                          for e in self.events("X", "communication", trace)))
        slices = collections.defaultdict(list)
        for e in self.events("X", "communication", trace):
            slices[e["pid"], e["tid"]].append((e["ts"], e["ts"] + e["dur"], e["name"]))
        for number, start in starts.items():
            end = ends[number]
            self.assertEqual({start["pid"], end["pid"]}, {0, 1})
            self.assertEqual(end["bp"], "e")
            self.assertGreaterEqual(end["ts"], start["ts"] - clock_error - (0.01 if start["tid"] > 0 else LATE_US))
            around = [{name for begin, last, name in slices[e["pid"], e["tid"]] if begin <= e["ts"] <= last} for e in (start, end)]
            self.assertTrue(around[0] & around[1], "both ends lie in the same operation")

    def test_page(self):
        page = self.directory / "page.html"
        result = timeline(self.directory / "trace.json", "-o", page)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        text = page.read_text()
        self.assertNotRegex(text, r'https?:|src=|href=|@import|url\(')
        drawn = json.loads(re.search(r'<script type="application/json" id="trace">(.*?)</script>', text, re.DOTALL)[1])
        self.assertEqual(sum(len(row["slices"]) for row in drawn["rows"]), len(self.events("X")))
        self.assertEqual(len(drawn["arrows"]), len(self.events("s")))
        self.assertEqual([step[0] for step in drawn["steps"]], [f"step {i + 1}" for i in range(STEPS)])
        self.assertEqual([(row["rank"], row["track"]) for row in drawn["rows"]],
                         [(rank, track) for rank in ("rank 0", "rank 1") for track in ("steps", "computing thread", "dp")])
        for part in ("for gradients", "gemm", "bytes sent", "group dp of 2"):
            self.assertTrue(any(part in said for said in drawn["texts"]), part)
        self.assertEqual(text.count('<td class="name">step '), 2 * STEPS)
        one = timeline(self.directory / "trace.json", "--steps", 2, "-o", page)
        self.assertEqual(one.returncode, 0, one.stderr)
        self.assertLess(len(page.read_text()), len(text))

    def refused(self, result, part):
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, r"\Aerror: [^\n]*\.\n\Z")
        self.assertIn(part, result.stderr)

    def test_what_cannot_be(self):
        self.refused(timeline(self.directory / "text"), "is not readable as a trace")
        self.refused(timeline(self.directory / "nothing.json"), "is not readable as a trace")
        self.refused(timeline(self.directory / "trace.json", "--steps", "7..9"), "which has step 1, step 2, step 3")
        self.refused(timeline(self.directory / "trace.json", "--steps", "first"), "is neither a number nor a range")
        self.refused(timeline(self.directory / "trace.json", "-o", self.directory / "nowhere/page.html"), "cannot be written")
        self.refused(self.train("--trace", self.directory / "nowhere/trace.json"), "nowhere/trace.json cannot be written")


if __name__ == "__main__":
    unittest.main()
