"""stretto-train seen from outside: the trace of --trace, with its tracks, times, bytes, arrows and clocks; and loss.svg."""
import collections
import itertools
import json
import os
import re
import shutil
import subprocess
import unittest
import xml.etree.ElementTree as ElementTree

from support.programs import EVERYTHING, ProgramTest, clean_environment, free_port, in_turns, launched, of_today, run_program

TRAIN = os.environ["TRAIN_PROGRAM"]

STEPS = 3
# An operation that runs at once notes its beginning when its first word has been sent; if the rank is interrupted then, it does so late.
LATE_US = 200_000


@in_turns()
class Train(ProgramTest):
    @classmethod
    def setUpClass(cls):
        cls.directory = cls.fresh_directory(cls)
        (cls.directory / "text").write_text("".join(f"{i} times {i} is {i * i}; " for i in range(1000)))
        result = cls.train("--trace", cls.directory / "trace.json", "--log-dir", cls.directory / "log")
        if result.returncode != 0:
            raise AssertionError(result.stderr)
        cls.trace = json.loads((cls.directory / "trace.json").read_text())
        cls.metrics = [json.loads(line) for line in (cls.directory / "log/metrics.jsonl").read_text().splitlines()]

    def setUp(self):
        """All tests share a directory, and a run in it."""

    @classmethod
    def command(cls, *words):
        return [*map(str, [TRAIN, "--num-layers", 2, "--hidden-size", 32, "--num-attention-heads", 4, "--seq-length", 32, "--global-batch-size",
                           8, "--micro-batch-size", 2, "--train-iters", STEPS, "--train-data", cls.directory / "text", *words])]

    @classmethod
    def train(cls, *words):
        return run_program(*cls.command("--nproc", 2, *words))

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
        self.assertEqual(sorted(self.tracks().values()), sorted(2 * ["computing thread", "dp", "parameters", "steps"]))
        self.assertEqual({(e["pid"], e["tid"]) for e in self.events("X")}, set(self.tracks()))
        self.assertEqual({e["tid"] for e in self.events("X", "compute")}, {0})
        self.assertIn("gemm", {e["name"] for e in self.events("X", "compute")})

    def test_without_overlap_there_is_one_thread(self):
        result = self.train("--trace", self.directory / "plain.json", "--no-overlap")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        plain = json.loads((self.directory / "plain.json").read_text())
        self.assertEqual(set(self.tracks(plain).values()), {"computing thread", "steps"})
        self.assertFalse(self.beside_computation(plain))
        for begin, count in ((5, 1), (10, 0)):  # the control
            made = [{"ph": "X", "pid": 0, "cat": "compute", "ts": 0, "dur": 10}, {"ph": "X", "pid": 0, "cat": "communication", "ts": begin, "dur": 10}]
            self.assertEqual(len(self.beside_computation({"traceEvents": made})), count)

    def beside_computation(self, trace):
        """Pairs of a kernel and an operation of the same rank that overlap in time."""
        compute, communication = self.events("X", "compute", trace), self.events("X", "communication", trace)
        self.assertTrue(compute and communication)
        return [(one, other) for one in compute for other in communication if one["pid"] == other["pid"]
                and max(one["ts"], other["ts"]) < min(one["ts"] + one["dur"], other["ts"] + other["dur"]) - 0.01]

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
            end = step["ts"] + step["dur"]
            # Parameters may still travel when the step has ended: they count for the step in which they were put there.
            inside = [e["args"]["bytes"] for e in self.events("X", "communication")
                      if e["pid"] == 0 and step["ts"] <= e["ts"] - e["args"]["queued_us"] <= end]
            self.assertGreater(len(inside), 1)
            self.assertEqual(sum(inside), metrics["bytes_sent"])

    def test_arrows(self):
        self.expect_arrows(self.trace)

    def test_another_clock(self):
        """A rank whose clock is 1000 s ahead, as on a host that was started earlier."""
        shifted = ["unshare", "--time", "--monotonic", "1000", "--fork"]
        if not shutil.which("unshare") or subprocess.run([*shifted, "true"], capture_output=True, timeout=20).returncode != 0:
            self.skipTest("time namespaces cannot be made here")
        port = free_port()
        ranks = [subprocess.Popen([*before, *self.command("--trace", self.directory / "shifted.json")], stdout=subprocess.DEVNULL,
                                  env=launched(rank, 2, port, STRETTO_JOB_SECRET="of this test"))
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

    def memory_table(self, *words):
        """Bytes by kind: by formula, and after the first step."""
        result = self.train("--train-iters", 1, *words)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        found = re.findall(r"^  (\w+) +([\d.]+) (B|[KMG]iB) +([\d.]+) (B|[KMG]iB)$", result.stdout, re.M)
        unit = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
        return {kind: (float(plan) * unit[plan_unit], float(held) * unit[held_unit]) for kind, plan, plan_unit, held, held_unit in found}

    def expect_planned(self, table, kinds, within=0.02):
        """Of these kinds as much is held as planned, and of buffers at most that."""
        for kind in kinds:
            plan, held = table[kind]
            self.assertAlmostEqual(held, plan, delta=within * plan, msg=kind)
        plan, held = table["buffers"]
        self.assertLessEqual(held, plan * 1.02 + 0.1e6)

    def test_memory_is_what_the_formulas_say(self):
        """On 2 ranks, or as well on 4 and 8. What communication needs is bounded."""
        model = ["--num-layers", 4, "--hidden-size", 256]
        ways = [[], ["--dtype", "bf16", "--grad-dtype", "bf16"], ["--recompute", "selective"], ["--recompute", "full", "--dtype", "fp16"],
                ["--tp", 2, "--recompute", "full", "--partition-activations"], ["--tp", 2, "--sp"],
                ["--tp", 2, "--sp", "--sp-keep-gathered", "--dtype", "bf16"], ["--tp", 2, "--sp", "--recompute", "selective"],
                ["--cp", 2], ["--ulysses", 2, "--recompute", "selective", "--dtype", "bf16"],
                ["--recompute", "full", "--offload", f"activations={self.directory}"]]
        more = [(zero, ["--delay", 1]) for zero in (0, 1, 2, 3)]  # a second set of gradients
        behind = ["--delay", 1, "--offload", f"optimizer={self.directory}", "--dtype", "bf16"]  # and of the values that a rank updates
        speculates = ["--speculate", "--offload", f"optimizer={self.directory}"]
        gradients = ["--delay", 1, "--offload", f"gradients={self.directory}", "--micro-batch-size", 1]  # many microbatches
        more.append((3, ["--tiles", 4]))
        more += [(0, behind), (2, behind), (2, gradients), (1, speculates), (1, ["--offload", f"optimizer={self.directory},ratio=0.5", "--dtype", "bf16"])]
        for zero, way in of_today(more):
            with self.subTest(f"--zero {zero} {way}"):
                words = ["--nproc", 2, *model, "--seq-length", 64, "--zero", zero, "--global-batch-size", 8, *way]
                table = self.memory_table(*words)
                self.expect_planned(table, ("values", "gradients", "optimizer"))
        for ranks, dtype in of_today(((1, "fp32"), (2, "bf16"))):
            with self.subTest(f"all in files of {ranks} ranks"):
                files = [word for what in ("optimizer", "gradients", "values") for word in ("--offload", f"{what}={self.directory}")]
                table = self.memory_table("--nproc", ranks, *model, "--seq-length", 64, "--zero", 3, "--global-batch-size", 8, "--dtype", dtype,
                                          *files)
                for kind in ("values", "gradients", "optimizer"):
                    self.assertEqual(table[kind], (0, 0), kind)
                self.expect_planned(table, ())
        for turn, ranks in enumerate((2, 8) if EVERYTHING else (2,)):
            cells = [(i % 4, ways[(i + turn) % len(ways)]) for i in range(len(ways) if EVERYTHING else 4)]
            for zero, way in cells if EVERYTHING else of_today([*cells, *((3, way) for way in ways[4:])]):
                flags = ["--nproc", ranks, *model, "--seq-length", 64, "--zero", zero, "--global-batch-size", 8 if ranks == 2 else 16, *way]
                with self.subTest(" ".join(map(str, flags))):
                    table = self.memory_table(*flags)
                    self.expect_planned(table, ("values", "gradients", "optimizer", "activations"))

    def test_memory_of_a_llama_is_what_the_formulas_say(self):
        """Small ones, where nothing is small beside the rest: grouped heads, an MLP of its own width, with and without a head of its own."""
        shape = ["--model", "llama", "--num-layers", 4, "--hidden-size", 192, "--num-attention-heads", 6, "--num-key-value-heads", 2,
                 "--ffn-hidden-size", 512, "--seq-length", 64, "--global-batch-size", 8]
        cells = list(itertools.product((0, 3), (1, 2), ("none", "full"), ("fp32", "bf16"), ([], ["--untied"])))
        for zero, tensor, recompute, dtype, head in cells if os.environ.get("STRETTO_TEST_ALL") == "1" else of_today(cells[::5]):  # eight minutes
            # With two tensor-parallel ranks to a head of keys and values, too.
            heads = ["--num-attention-heads", 4, "--num-key-value-heads", 1] if tensor == 2 and not head else []
            flags = [*shape, *heads, "--nproc", 2 * tensor, "--zero", zero, "--tp", tensor, "--recompute", recompute, "--dtype", dtype, *head]
            with self.subTest(" ".join(map(str, flags))):
                table = self.memory_table(*flags)
                self.expect_planned(table, ("values", "gradients", "optimizer", "activations"))

    def test_memory_of_messages_of_attention_is_what_the_formulas_say(self):
        """Without ZeRO, buffers hold nothing else."""
        for words in of_today((["--cp", 2, "--nproc", 2], ["--cp", 3, "--nproc", 3, "--dtype", "bf16"], ["--ulysses", 2, "--nproc", 2],
                               ["--cp", 2, "--ulysses", 2, "--nproc", 4, "--recompute", "full"])):
            with self.subTest(" ".join(map(str, words))):
                table = self.memory_table(*words, "--hidden-size", 192, "--num-attention-heads", 6, "--seq-length", 192, "--zero", 0,
                                          "--micro-batch-size", 2, "--global-batch-size", 2)
                for kind in ("activations", "buffers"):
                    plan, held = table[kind]
                    self.assertAlmostEqual(held / plan, 1, delta=0.02, msg=kind)

    def test_memory_without_a_flush_is_what_the_formulas_say(self):
        """Of the first stage: versions, a second set of gradients where stages update together, and the tokens of two steps."""
        untied = ["--model", "llama", "--untied"]
        for words in of_today((["2bw"], ["2bw", "--zero", 0, "--dtype", "fp16", "--recompute", "full"], ["2bw", *untied, "--dp", 2],
                               ["pipedream", *untied, "--dtype", "bf16"])):
            with self.subTest(" ".join(map(str, words))):
                table = self.memory_table("--nproc", 4 if "--dp" in words else 2, "--pp", 2, "--num-layers", 4, "--hidden-size", 256, "--seq-length", 64,
                                          "--micro-batch-size", 2, "--global-batch-size", 16, "--train-iters", 4, "--schedule", *words)
                self.expect_planned(table, ("values", "gradients", "optimizer", "activations"), 0.05 if "full" in words else 0.02)  # messages are a part of so little

    def test_memory_of_a_checkpoint_in_the_background_is_what_the_formula_says(self):
        for words in ([], ["--tp", 2, "--nproc", 2, "--dtype", "bf16"]):
            with self.subTest(" ".join(map(str, words))):
                table = self.memory_table(*words, "--zero", 0, "--save", self.directory / f"save-{len(words)}", "--async-save")
                plan, held = table["buffers"]
                self.assertAlmostEqual(held / plan, 1, delta=0.02)

    def test_dry_run(self):
        """The same figures as a run prints, for any number of ranks, and without a text."""
        plan = self.directory / "plan.json"
        words = ["--zero", 3, "--hpz-size", 2, "--dtype", "bf16", "--tp", 2]
        said = self.succeeds(*self.command(*words), "--dry-run", "--ranks", "64", "--global-batch-size", "64", "--json", plan)
        figures = json.loads(plan.read_text())
        self.assertEqual(set(figures), {"ranks", "parameters", "stage", "memory", "sending_stage", "sent"})
        self.assertEqual(set(figures["memory"]), {"values", "gradients", "optimizer", "activations", "buffers"})
        self.assertEqual((figures["ranks"], set(figures["sent"])), (64, {"dp", "hpz", "tp"}))
        self.assertIn(f"{figures['parameters']} parameters on 64 ranks", said)
        alone = json.loads(self.dry_run(1, plan).read_text())
        self.assertEqual((alone["memory"]["values"], alone["sent"]), (4 * alone["parameters"], {}))

    def test_dry_run_of_a_pipeline(self):
        """The first of 4 equal stages has most microbatches under way; with the head, the last one needs most."""
        for words, stage in ((["--pipeline-layers", "1,1,1,1"], 0), (["--pipeline-layers", "1,1,1,1", "--vocab-size", 20000], 3)):
            with self.subTest(words):
                plan = self.directory / "plan.json"
                output = self.succeeds(*self.command("--num-layers", 4, "--pp", 4, *words), "--dry-run", "--ranks", "8", "--json", plan)
                figures = json.loads(plan.read_text())
                self.assertEqual(figures["stage"], stage)
                self.assertIn(f"Memory of a rank of stage {stage}, which needs most, by formula: ", output)
                self.assertIn(f"Sent by a rank of stage {figures['sending_stage']}, which sends most, in a step by formula: ", output)

    def dry_run(self, ranks, plan):
        self.succeeds(*self.command(), "--dry-run", "--ranks", str(ranks), "--json", plan)
        return plan

    def test_fp16(self):
        """A scale that is too large is halved until gradients fit; it goes on from a checkpoint."""
        log = self.directory / "fp16"
        save = self.directory / "fp16-checkpoint"
        words = ["--dtype", "fp16", "--log-dir", log, "--save", save]
        result = self.train(*words, "--loss-scale-window", 2, "--train-iters", 5)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertRegex(result.stdout, r"\| scale 65536")
        scales = [json.loads(line)["loss_scale"] for line in (log / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual(scales, [65536, 65536, 131072, 131072, 262144])
        result = self.train(*words, "--loss-scale-window", 2, "--train-iters", 7, "--resume", "--save-interval", 1, "--keep", 2)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual(sorted(os.listdir(save)), ["latest", "step_00000006", "step_00000007"])
        scales = [json.loads(line)["loss_scale"] for line in (log / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual(scales[5:], [262144, 524288])

    def test_delay(self):
        """A run goes on from each checkpoint as if it had not stopped, the last gradients included; without --delay it is told why it cannot."""
        log, save = self.directory / "delay", self.directory / "delay-checkpoint"
        words = ["--delay", 1, "--zero", 0, "--log-dir", log, "--save", save, "--train-iters", 4]
        results = lambda: [[json.loads(line).get(key) for key in ("loss", "grad_norm", "val_loss", "delay")]
                           for line in (log / "metrics.jsonl").read_text().splitlines()]
        result = self.train(*words, "--save-interval", 1)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertRegex(result.stdout, r"(?m)^step +1/4 \| .* norm 0 .* \| delay 1")
        whole = results()
        self.assertEqual([norm == 0 for _, norm, _, _ in whole], [True, False, False, False])
        self.assertIsNotNone(whole[3][2])
        for step in (3, 1):
            for later in range(step + 1, 5):
                shutil.rmtree(save / f"step_{later:08}", ignore_errors=True)
            (save / "latest").unlink()
            refused = self.train(*words[2:], "--resume")
            self.assertNotEqual(refused.returncode, 0)
            self.assertIn("train on with a delay of 1", refused.stderr)
            result = self.train(*words, "--resume")
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assertEqual(results(), whole)
        result = self.train(*words, "--resume", "--train-iters", 5)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertIn("the first step of --delay 1 updates nothing", result.stdout)
        self.assertEqual(results()[4][1], 0)

    def test_loss_svg(self):
        """The smoothed curve is the mean around each step, which does not lag behind, and each curve has its key."""
        log = self.directory / "long"
        result = self.train("--train-iters", 200, "--num-layers", 1, "--log-dir", log)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertIn(f"{log}/loss.svg", result.stdout)
        root = ElementTree.parse(log / "loss.svg").getroot()
        raw, smooth = ([float(pair.split(",")[1]) for element in root.iter("{http://www.w3.org/2000/svg}polyline")
                        if element.get("class") == look for pair in element.get("points").split()] for look in ("loss", "smooth"))
        losses = [json.loads(line)["loss"] for line in (log / "metrics.jsonl").read_text().splitlines()]
        pixels = (raw[-1] - raw[0]) / (losses[-1] - losses[0])
        self.assertEqual((len(losses), len(raw), smooth[0], smooth[-1]), (200, 200, raw[0], raw[-1]))
        keys = {element.get("class") for element in root.iter("{http://www.w3.org/2000/svg}text")}
        self.assertLessEqual({"pale", "key", "validation"}, keys)
        for step in range(2, 198):
            mean = sum(losses[step - 2:step + 3]) / 5
            self.assertAlmostEqual(smooth[step], raw[0] + (mean - losses[0]) * pixels, delta=0.2)
        before = sum(losses[:5]) / 5  # the control: the mean of what came before lies higher at the beginning
        self.assertGreater(before - losses[4], 2 * 0.2 / abs(pixels))

    def losses(self, log, *words):
        result = self.train("--log-dir", self.directory / log, *words)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return [json.loads(line)["loss"] for line in (self.directory / log / "metrics.jsonl").read_text().splitlines()]

    def test_data_of_many_files(self):
        """Several files are trained on as one of all their bytes is, and a mixture goes on from a checkpoint at its place."""
        text, shards = (self.directory / "text").read_text(), self.directory / "shards"
        shards.mkdir()
        for i, begin in enumerate((0, 5000, 9000)):
            (shards / f"{i}.txt").write_text(text[begin:(5000, 9000, None)[i]])
        whole = [metrics["loss"] for metrics in self.metrics]
        self.assertEqual(self.losses("files", "--train-data", shards / "2.txt", shards / "0.txt", shards / "1.txt"), whole)
        self.assertEqual(self.losses("pattern", "--train-data", shards / "*.txt"), whole)
        self.losses("folder", "--train-data", shards, "--val-data", shards)
        save = self.directory / "save-mixture"
        words = ["--train-data", 0.3, shards / "0.txt", 0.7, shards / "[12].txt", "--train-iters", 4, "--save", save]
        mixture = self.losses("mixture", *words, "--save-interval", 2)
        self.assertNotEqual(mixture[:STEPS], whole)
        shutil.rmtree(save / "step_00000004")
        (save / "latest").write_text("step_00000002\n")
        self.assertEqual(self.losses("mixture", *words, "--resume"), mixture)

    def test_step_lines(self):
        """Each but the last says how long the rest takes; a picture is there from the first validation on; steps beyond the rate
        of products, measured in a slow moment, do not make MFU more than 1."""
        log = self.directory / "forever"
        run = subprocess.Popen(self.command("--nproc", 2, "--train-iters", 10**6, "--eval-interval", 2, "--log-dir", log), text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=clean_environment())
        self.addCleanup(run.communicate)
        self.addCleanup(run.kill)
        lines = []
        for line in run.stdout:
            lines += [line] if line.startswith("step ") else []
            if len(lines) == 3:
                break
        self.assertTrue((log / "loss.svg").exists())
        for line in lines:
            self.assertRegex(line, r" \| [\d.]+ (s|min|h) left$")
        last = self.train("--train-iters", 2, "--log-interval", 1).stdout
        self.assertEqual(re.findall(r"^step +(\d)/2 .* left$", last, re.M), ["1"])
        self.assertTrue(all(metrics["mfu"] <= 1 for metrics in self.metrics))

    def test_samples_are_printable(self):
        """A model that has seen nothing but control characters and broken UTF-8 writes them."""
        (self.directory / "control").write_bytes(b"\x1b\x07\xff" * 1000)
        result = self.train("--train-data", self.directory / "control", "--prompt", "caf\u00e9\x1b[31m", "--train-iters", 60, "--lr", 0.01)
        sample = result.stdout.split("--- a sample ---\n")[1].split("\n-----")[0]
        self.assertTrue(sample.startswith("caf\u00e9\\x1b[31m"), sample)
        self.assertIn("\\xff", sample)
        self.assertTrue(all(each.isprintable() or each in "\n\t" for each in sample), repr(sample))

    def test_a_file_that_cannot_be_written(self):
        self.refused(["nowhere/trace.json cannot be written"], *self.command("--nproc", 2, "--trace", self.directory / "nowhere/trace.json"))


if __name__ == "__main__":
    unittest.main()
