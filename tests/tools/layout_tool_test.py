"""stretto-plan layout seen from outside: what it chooses, what it refuses, and that the trainer agrees."""
import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

from support.programs import in_turns, of_today

PLAN = os.environ["PLAN_PROGRAM"]
ROOT = pathlib.Path(os.environ["ROOT"])
TRAIN = os.environ.get("TRAIN_PROGRAM")
CLUSTER = ROOT / "docs/clusters/a100_80.json"
PROGRESS = re.compile(r"stretto-plan: \d+ looks at a layout of at most \d+")
MODEL = "gpt:layers=24,hidden=2048,heads=16,seq=2048,vocab=51200"


def run(*words, program=PLAN):
    return subprocess.run([program, *map(str, words)], capture_output=True, text=True, errors="replace", timeout=240)


@in_turns()
class Layouts(unittest.TestCase):
    def planned(self, *words, model=MODEL, ranks=64, batch=512):
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            result = run("layout", "--model", model, "--cluster", CLUSTER, "--ranks", ranks, "--global-batch", batch, *words, "--json",
                         file.name)
            said = [line for line in result.stderr.splitlines() if not PROGRESS.fullmatch(line)]  # of a search that takes long
            self.assertEqual((result.returncode, said), (0, []), words)
            return result.stdout.splitlines(), json.loads(pathlib.Path(file.name).read_text())

    def refused(self, sentence, *words):
        result = run("layout", *words)
        self.assertEqual((result.returncode, result.stdout), (1, ""), words)
        said = [line for line in result.stderr.splitlines() if not PROGRESS.fullmatch(line)]
        self.assertEqual(len(said), 1, said)
        self.assertRegex(said[0], r"\Aerror: [^\n]*\.\Z", words)
        self.assertIn(sentence, said[0])

    def test_the_fastest_come_first(self):
        lines, figures = self.planned("--top", 5)
        self.assertTrue(lines[0].startswith("1317654528 parameters: 24 layers, 2048 wide, 16 heads, 2048 tokens a sequence, bf16; 64 ranks"))
        times = [layout["ms"] for layout in figures["layouts"]]
        self.assertEqual(len(times), 5)
        self.assertEqual(times[1:], sorted(times[1:]))
        self.assertLessEqual(times[0], 1.02 * min(times), "the simplest of the fastest is taken")
        self.assertEqual(len({(layout["tp"], layout["pp"]) for layout in figures["layouts"]}), 5)
        self.assertTrue(lines[1].startswith("assumed: on GPUs communication blocks"), lines[1])
        self.assertGreater(figures["tried"], 1000)
        self.assertGreater(figures["without_memory"], 0)
        self.assertTrue(any("of them need more than 80 GiB of memory" in line for line in lines))
        self.assertTrue(any("refused, such as: " in line for line in lines))
        self.assertIn(f"choice: stretto-train {figures['layouts'][0]['flags']}", lines)
        for layout in figures["layouts"]:
            self.assertEqual(layout["tp"] * layout["pp"] * layout["cp"] * layout["ulysses"] * layout["dp"], 64)
            self.assertLessEqual(layout["memory"]["total"], 80 << 30)
            self.assertLess(layout["mfu"], 1)

    def test_what_is_fixed_stays(self):
        _, figures = self.planned("--tp", 4, "--pp", 2, "--cp", 1, "--ulysses", 1, "--sp", "yes", "--zero", 1, "--recompute", "full", "--micro-batch-size", 2,
                                  "--schedule", "interleaved", "--virtual-stages", 3)
        self.assertEqual(len(figures["layouts"]), 1)
        layout = figures["layouts"][0]
        self.assertEqual([layout[key] for key in ("tp", "pp", "dp", "sp", "zero", "recompute", "micro_batch", "schedule", "virtual_stages")],
                         [4, 2, 8, True, 1, "full", 2, "interleaved", 3])

    def test_takes_what_it_does_not_try_by_itself(self):
        _, figures = self.planned("--top", 1)
        for flag in ("--sp-keep-gathered", "--partition-activations"):
            self.assertNotIn(flag, figures["layouts"][0]["flags"])
            _, with_flag = self.planned("--top", 1, flag)
            self.assertIn(flag, with_flag["layouts"][0]["flags"].split())
        self.assertNotIn("--tiles", figures["layouts"][0]["flags"])
        _, tiled = self.planned("--top", 1, "--tiles", 4)
        self.assertIn(" --tiles 4 ", tiled["layouts"][0]["flags"])
        self.assertIn(" --zero 3 ", tiled["layouts"][0]["flags"])
        _, figures = self.planned("--cp", 2, "--cp-layout", "striped", "--attention", "window:256", "--top", 1)
        self.assertIn(" --cp 2 --cp-layout striped ", figures["layouts"][0]["flags"])
        self.assertIn(" --attention window:256 ", figures["layouts"][0]["flags"])

    def test_less_memory_leaves_less(self):
        _, much = self.planned("--top", 1)
        _, little = self.planned("--top", 1, "--memory", "8GiB")
        self.assertGreater(little["without_memory"], much["without_memory"])
        self.assertGreaterEqual(1.02 * little["layouts"][0]["ms"], much["layouts"][0]["ms"])  # a simple one may be 2% slower

    def test_divides_long_sequences(self):
        _, figures = self.planned("--top", 1, "--memory", "20GiB", model=MODEL.replace("seq=2048", "seq=262144"), batch=16)
        layout = figures["layouts"][0]
        self.assertGreater(layout["cp"] * layout["ulysses"], 1)
        _, figures = self.planned("--cp", 4, "--ulysses", 2, "--top", 1, model=MODEL.replace("seq=2048", "seq=65536"), batch=64)
        self.assertIn("--cp 4 --cp-layout zigzag --ulysses 2", figures["layouts"][0]["flags"])

    def test_state_in_files(self):
        """Layouts with state in files need the rate of files, and are chosen where memory does not suffice."""
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            cluster = json.loads(CLUSTER.read_text())
            words = ["--model", "gpt:layers=24,hidden=2048,heads=16,seq=2048,vocab=51200", "--cluster", file.name, "--ranks", 4,
                     "--global-batch", 8, "--tp", 1, "--pp", 1, "--recompute", "full", "--memory", "6GiB", "--top", 1, "--offload", "/tmp"]
            for rate, expected in ((None, 'give it "file_gbs"'), (3, "--offload optimizer=/tmp")):
                if rate:
                    cluster["file_gbs"] = rate
                file.seek(0)
                file.truncate()
                file.write(json.dumps(cluster))
                file.flush()
                result = run("layout", *words, program=PLAN)
                self.assertIn(expected, result.stdout + result.stderr)

    @unittest.skipUnless(TRAIN, "the trainer was not built")
    def test_the_trainer_plans_the_same_memory(self):
        for words in of_today(([], ["--sp-keep-gathered"], ["--partition-activations"], ["--cp", 2, "--cp-layout", "contiguous", "--attention", "strided:64"],
                               ["--grad-dtype", "bf16"], ["--delay", 1], ["--tiles", 2])):
            self.compare_memory(*words)

    @unittest.skipUnless(TRAIN, "the trainer was not built")
    def test_the_trainer_takes_the_same_model(self):
        sizes = "layers=8,hidden=1024,heads=16,seq=2048,vocab=32000,kv_heads=4,mlp=2816"
        for text in of_today(("llama:" + sizes, "llama:" + sizes + ",untied=1", "llama:" + sizes + ",head_size=96")):
            self.compare_memory("--tp", 2, model=text)
        for name in ("llama_untied", "llama_llama3", "mistral", "qwen2", "qwen3"):  # with what only a config.json says
            config = ROOT / f"tests/reference/decoders/{name}/config.json"
            lines = self.compare_memory(model=config, ranks=2, batch=8)
            self.assertTrue(any(line.startswith("choice: ") and f" --model {config} " in line for line in lines))
        self.compare_memory(model=f"{config},seq=16", ranks=2, batch=8)

    def compare_memory(self, *words, model=MODEL, ranks=64, batch=512):
        lines, figures = self.planned("--top", 2 if words else 12, *words, model=model, ranks=ranks, batch=batch)
        for layout in figures["layouts"]:
            with tempfile.NamedTemporaryFile(suffix=".json") as file:
                result = run(*layout["flags"].split(), "--dry-run", "--ranks", ranks, "--json", file.name, program=TRAIN)
                self.assertEqual((result.returncode, result.stderr), (0, ""), layout["flags"])
                plan = json.loads(pathlib.Path(file.name).read_text())
            self.assertEqual(plan["memory"], {kind: bytes for kind, bytes in layout["memory"].items() if kind != "total"}, layout["flags"])
            self.assertEqual((plan["stage"], plan["parameters"]), (layout["memory_stage"], figures["model"]["parameters"]))
        return lines

    def test_refuses_in_one_sentence(self):
        line = ["--model", MODEL, "--cluster", CLUSTER, "--ranks", 8, "--global-batch", 8]
        self.refused("None of ", *line, "--memory", "1M")
        self.refused("more --memory", *line, "--memory", "1M")
        self.refused("--memory '5 apples' is no size", *line, "--memory", "5 apples")
        self.refused("as in 80G or 80GiB", *line, "--memory", "80GB")
        self.refused("--memory 0GiB holds nothing", *line, "--memory", "0GiB")
        self.refused("3 ranks do not divide into groups of 2 ring ranks", *line[:4], "--ranks", 3, "--global-batch", 8, "--cp", 2)
        self.refused("8 ranks do not divide into groups of 3 ring ranks.", *line, "--cp", 3)
        self.refused("8 ranks do not divide into groups of 3 ulysses ranks.", *line, "--ulysses", 3)
        self.refused("16 attention heads do not divide over 32 tensor-parallel", *line[:4], "--ranks", 32, "--global-batch", 8, "--tp", 32)
        self.refused("No layout of 8 ranks is as the flags fix it", *line, "--tp", 16)
        self.refused("--model 'bert' is no model; write gpt:layers=L", "--model", "bert", *line[2:])
        self.refused("does not say vocab; add vocab=N", "--model", MODEL.replace(",vocab=51200", ""), *line[2:])
        config = ROOT / "tests/reference/decoders/llama/config.json"
        self.refused("has sequences of more than the 64 tokens of", "--model", f"{config},seq=65", *line[2:])
        self.refused("has 'layers=x'", "--model", MODEL.replace("24", "x", 1), *line[2:])
        self.refused("has 'depth=24'; known are layers", "--model", MODEL.replace("layers", "depth"), *line[2:])
        self.refused("--cluster is required", *line[:2], *line[4:])
        self.refused("The cluster '/nowhere.json' cannot be read", *line[:2], "--cluster", "/nowhere.json", *line[4:])
        self.refused("The cluster has no products of fp32", *line, "--dtype", "fp32")
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write(CLUSTER.read_text().replace('"memory_gbs"', '"memory_gb"'))
            file.flush()
            self.refused("A cluster has the key 'memory_gb'", *line[:2], "--cluster", file.name, *line[4:])

    def test_the_most_frequent_reasons_come_first(self):
        result = run("layout", "--model", MODEL, "--cluster", CLUSTER, "--ranks", 8, "--global-batch", 8, "--tp", 1, "--sp", "yes")
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        reasons = result.stderr.splitlines()
        self.assertRegex(reasons[0], r"\Aerror: \d+ refused, such as: Sequence parallelism divides rows")
        self.assertTrue(all(", such as: " in reason for reason in reasons))
        self.assertLessEqual(len(reasons), 3)


@in_turns()
@unittest.skipUnless(TRAIN, "the trainer was not built")
class Trainer(unittest.TestCase):
    SMALL = ["--num-layers", 4, "--hidden-size", 32, "--num-attention-heads", 2, "--seq-length", 16, "--global-batch-size", 8, "--layout", "auto"]

    def trained(self, *words):
        result = run(*self.SMALL, "--train-data", ROOT / "README.md", "--train-iters", 1, *words, program=TRAIN)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"step +1/1 ")
        self.assertRegex(result.stdout, r" tok/s +[1-9][\d.]* [KM]iB  tp ")
        return next(line for line in result.stdout.splitlines() if line.startswith("The first is taken: "))

    def test_takes_the_first_layout(self):
        flags = self.trained("--nproc", 2)
        self.assertRegex(flags, r"--tp \d --pp \d --dp \d .*--micro-batch-size \d$")

    def test_keeps_what_is_given(self):
        flags = self.trained("--nproc", 2, "--pp", 2, "--schedule", "zb-h1", "--zero", 0, "--micro-batch-size", 2, "--recompute", "selective")
        self.assertIn("--tp 1 --pp 2 --dp 1 --schedule zb-h1 --zero 0 --recompute selective --micro-batch-size 2", flags)
        self.assertIn(" --sp --sp-keep-gathered ", self.trained("--nproc", 2, "--sp-keep-gathered", "--attention", "window:4"))
        self.assertIn(" --recompute full --partition-activations ", self.trained("--nproc", 2, "--partition-activations"))
        self.assertIn(" --recompute full ", self.trained("--nproc", 2, "--offload", "activations=/tmp"))

    def test_divides_sequences(self):
        # One sequence a step leaves no data parallelism, so that with --tp 1 and --pp 1 only the sequence is left to divide.
        flags = self.trained("--seq-length", 2048, "--global-batch-size", 1, "--nproc", 2, "--tp", 1, "--pp", 1, "--train-data", ROOT / "docs/performance.md")
        self.assertRegex(flags, "--dp 1 (--cp 2 --cp-layout zigzag|--ulysses 2) ")

    def test_divides_short_sequences_as_told(self):
        self.assertIn(" --cp 2 --cp-layout contiguous ", self.trained("--nproc", 2, "--cp", 2, "--cp-layout", "contiguous"))
        self.assertIn(" --ulysses 2 ", self.trained("--nproc", 2, "--ulysses", 2))

    def test_plans_any_cluster_as_the_tool_does(self):
        sizes = ["--num-layers", 24, "--hidden-size", 2048, "--num-attention-heads", 16, "--seq-length", 2048, "--vocab-size", 51200]
        result = run("--layout", "auto", "--dry-run", "--cluster", CLUSTER, "--ranks", 64, "--dtype", "bf16", "--global-batch-size", 512, *sizes,
                     program=TRAIN)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        plan = run("layout", "--model", MODEL, "--cluster", CLUSTER, "--ranks", 64, "--global-batch", 512)
        choice = next(line for line in plan.stdout.splitlines() if line.startswith("choice: stretto-train "))
        taken = next(line for line in result.stdout.splitlines() if line.startswith("The first is taken: "))
        self.assertTrue(choice.startswith(taken.replace("The first is taken: ", "choice: stretto-train ")), (choice, taken))
        self.assertIn("Memory of a rank by formula", result.stdout)

    def test_refuses_in_one_sentence(self):
        data = ["--train-data", ROOT / "README.md"]
        for sentence, words in [
                ("describes a cluster to plan for; add --dry-run", ["--cluster", CLUSTER, "--nproc", 2, *data]),
                ("needs --cluster FILE", ["--dry-run", "--ranks", 4, "--layout", "auto", "--global-batch-size", 8]),
                ("--layout auto needs --global-batch-size", ["--layout", "auto", "--nproc", 2, *data]),
                *[(f"{flag} is not planned by --layout auto", [*self.SMALL, flag, "--save", "none", "--nproc", 2, *data])
                  for flag in ("--checkpoint-in-flight", "--clip-by-step-before")],
                ("leave it out with --layout auto", [*self.SMALL, "--pipeline-layers", "1,3", "--nproc", 2, *data])]:
            result = run(*words, program=TRAIN)
            self.assertEqual(result.returncode, 1, words)
            self.assertRegex(result.stderr, r"\Aerror: [^\n]*\.\n\Z", words)
            self.assertIn(sentence, result.stderr)


if __name__ == "__main__":
    unittest.main()
