"""stretto-plan seen from outside: its output, its pictures and its errors."""
import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree

PLAN = os.environ["PLAN_PROGRAM"]
LINKS = os.environ["LINKS_FILE"]
TRAIN = os.environ.get("TRAIN_PROGRAM")


def run(*words):
    return subprocess.run([PLAN, *map(str, words)], capture_output=True, text=True, timeout=240)


class PlanTool(unittest.TestCase):
    def lines(self, *words):
        result = run(*words)
        self.assertEqual((result.returncode, result.stderr), (0, ""), words)
        return result.stdout.splitlines()

    def refused(self, part, *words):
        result = run(*words)
        self.assertEqual((result.returncode, result.stdout), (1, ""), words)
        self.assertRegex(result.stderr, r"\Aerror: [^\n]*\.\n\Z", words)
        self.assertIn(part, result.stderr)


class Plans(PlanTool):
    def test_every_rank_with_cost_and_bytes(self):
        lines = self.lines("all_reduce", "--algo", "ring", "--ranks", 3, "--bytes", 24)
        self.assertIn("all_reduce by ring, rank 0 of 3, 6 elements, 0 of scratch", lines)
        self.assertIn("  lane 0 round 1: recv_reduce output[0..2) = input[0..2) with 2", lines)
        self.assertEqual(sum("rank" in line and "elements" in line for line in lines), 3)
        self.assertEqual(lines[-2:], ["sent: 96 bytes in all, 32 by a rank; 4 rounds",
                                      "cost: 4 alpha + 4 overhead + 32 bytes beta + 16 bytes gamma"])

    def test_one_rank(self):
        lines = self.lines("broadcast", "--algo", "binomial", "--ranks", 4, "--rank", 2, "--root", 1, "--dtype", "f64")
        self.assertEqual([line for line in lines if "elements" in line],
                         ["broadcast by binomial, rank 2 of 4, 128 elements, 0 of scratch"])

    def test_shared_memory(self):
        lines = self.lines("all_reduce", "--algo", "push", "--ranks", 3, "--bytes", 24, "--rank", 1)
        self.assertEqual(lines[1:-2], ["  lane 0 round 0: signal", "  lane 0 round 1: wait for 2",
                                       "  lane 0 round 1: wait for 0",
                                       "  lane 0 round 2: read_reduce output[2..4) of everybody = input[2..4) of all",
                                       "  lane 0 round 3: signal", "  lane 0 round 4: wait for 2",
                                       "  lane 0 round 4: wait for 0"])
        self.assertEqual(lines[-2], "sent: 96 bytes in all, 32 by a rank; 5 rounds")

    def test_all_algorithms(self):
        lines = self.lines("all_gather", "--ranks", 4, "--rank", 0)
        for algorithm in ["ring", "bidirectional_ring", "recursive_halving_doubling"]:
            self.assertTrue(any(line.startswith(f"all_gather by {algorithm}, rank 0") for line in lines), algorithm)


class Proofs(PlanTool):
    def test_everything(self):
        lines = self.lines("all", "--verify", "--ranks", "1..9")
        self.assertRegex(lines[-1], r"^Proved \d+ cases of \d+ algorithms at 1\.\.9 ranks in [\d.]+ s\.$")
        self.assertRegex(lines[0], r"^all_reduce +ring +\d+ cases +[\d.]+ s  in and out of place$")
        rooted = [line for line in lines if line.startswith("broadcast")]
        self.assertTrue(rooted and all(line.endswith("every root") for line in rooted), rooted)

    def test_one_method_with_its_parameters(self):
        lines = self.lines("all_reduce", "--algo", "ring*4", "--verify", "--ranks", "2..5")
        self.assertEqual(len(lines), 2)
        self.assertIn("ring*4", lines[0])

    def test_where_there_is_nothing_to_prove(self):
        self.refused("cannot be done by binomial", "all_reduce", "--algo", "binomial", "--verify", "--ranks", 4)


class Quantized(PlanTool):
    two_levels = ["--ranks", 8, "--ranks-per-node", 4]

    def test_plans(self):
        lines = self.lines("reduce_scatter", "--quantize", "int4", "--algo", "two_level", "--ranks", 4,
                           "--ranks-per-node", 2, "--rank", 1, "--bytes", "4K")
        self.assertIn("reduce_scatter by two_level, rank 1 of 4, 256 elements, 0 of scratch, 2304 packed in int4", lines)
        self.assertIn("  lane 0 round 2: requantize int4[1536..1792) = 2 vectors, 512 apart, from int4[768..1024)", lines)
        block = 256 // 64 * 34  # bytes of records; two of them go inside the node, one between
        self.assertEqual(lines[-3:], [f"sent: {4 * 3 * block} bytes in all, {3 * block} by a rank; 5 rounds",
                                      f"cost: 2 alpha + 2 overhead + {3 * block} bytes beta + 0 bytes gamma",
                                      "quantized: 2560 elements packed or unpacked by a rank"])

    def test_proofs(self):
        lines = self.lines("all", "--quantize", "int4", "--quantize-result", "int8", "--verify", "--ranks", "1..5")
        self.assertEqual([line.split()[:2] for line in lines[:-1]],
                         [["all_reduce", "two_shot"], ["all_reduce", "two_level"], ["reduce_scatter", "direct"],
                          ["reduce_scatter", "two_level"], ["all_gather", "direct"], ["all_gather", "two_level"]])
        self.assertIn("two_level/5", self.lines("all_gather", "--quantize", "onebit", "--algo", "two_level/5",
                                                "--verify", "--ranks", 6)[0])

    def test_types(self):
        for dtype in ["f32", "bf16", "f16"]:
            self.assertTrue(self.lines("all_gather", "--quantize", "int8", "--dtype", dtype, "--ranks", 4))
        self.assertTrue(self.lines("broadcast", "--quantize", "none", "--dtype", "i32", "--ranks", 4))

    def test_predictions(self):
        lines = self.lines("all_gather", "--quantize", "int8", "--bytes", "1M", *self.two_levels, "--simulate", LINKS)
        self.assertTrue(lines[0].startswith("all_gather of 1 MiB, in int8, 8 ranks"), lines[0])
        self.assertEqual({line.split()[0] for line in lines[2:]}, {"direct", "direct/16", "two_level", "two_level/16"})

    def test_explanations(self):
        words = ["all_reduce", "--bytes", "16M", *self.two_levels, "--explain", "--ranks-per-core", 1,
                 "--quantize", "int4", "--quantize-result", "int8"]
        lines = self.lines(*words)
        self.assertIn(" in int4, the sum in int8, ", lines[0])
        self.assertTrue(any("an element packed or unpacked" in line for line in lines), lines)
        candidates = lambda lines: [line.split()[0] for line in lines if line.endswith(("  int4", "  f32"))]
        self.assertEqual(len(candidates(lines)), 6)
        both = candidates(self.lines(*words, "--only-if-faster"))
        self.assertTrue({"two_level/16", "ring"} <= set(both), both)

    def test_pictures(self):
        with tempfile.TemporaryDirectory(prefix="plan-tool-") as directory:
            file = pathlib.Path(directory, "picture.svg")
            for links in [[], ["--simulate", LINKS]]:
                self.lines("reduce_scatter", "--quantize", "int4", "--algo", "two_level/4", "--bytes", "1M",
                           *self.two_levels, "--svg", file, *links)
                text = file.read_text()
                for word in ["in int4", ">quantize<", ">requantize<", ">dequantize_reduce<", ">send<", ">recv<"]:
                    self.assertIn(word, text)

    def test_refusals(self):
        for part, words in [
            ("'int2' is no quantized format", ["all_reduce", "--quantize", "int2"]),
            ("A quantized all_reduce cannot be done by ring", ["all_reduce", "--algo", "ring", "--quantize", "int8"]),
            ("broadcast cannot be quantized", ["broadcast", "--algo", "direct", "--quantize", "int8"]),
            ("broadcast cannot be quantized", ["broadcast", "--quantize", "int8"]),
            ("i32 cannot be quantized; give --dtype", ["all_reduce", "--quantize", "int8", "--dtype", "i32"]),
            ("f64 cannot be quantized; give --dtype", ["all_gather", "--quantize", "int8", "--dtype", "f64"]),
            ("has no result to quantize", ["all_gather", "--quantize", "int8", "--quantize-result", "int8"]),
            ("--quantize-result requires --quantize", ["all_reduce", "--quantize-result", "int8"]),
            ("--only-if-faster requires", ["all_reduce", "--explain", "--only-if-faster"]),
        ]:
            with self.subTest(words):
                self.refused(part, *words, "--ranks", 4)


class Predictions(PlanTool):
    def test_fastest_first_with_bytes_at_each_level(self):
        lines = self.lines("all_reduce", "--ranks", 16, "--bytes", "1M", "--simulate", LINKS)
        self.assertTrue(lines[0].startswith("all_reduce of 1 MiB, 16 ranks"), lines[0])
        self.assertEqual(lines[1].split()[-2:], ["node", "network"])
        times = [float(line.split()[1]) for line in lines[2:]]
        self.assertEqual(times, sorted(times))
        ring = next(line.split() for line in lines if line.startswith("ring "))
        self.assertEqual(ring[-4:], ["26.25", "MiB", "3.75", "MiB"])
        self.assertAlmostEqual(float(ring[3]), 2 * 15 / 16 * 2**20 / float(ring[1]) * 1e-3, delta=1e-3)

    def test_what_is_too_large_is_told(self):
        lines = self.lines("all_gather", "--algo", "ring", "--ranks", 16384, "--bytes", "64M", "--simulate", LINKS)
        self.assertGreater(float(lines[2].split()[1]), 0)
        self.refused("bytes that divide evenly", "all_reduce", "--algo", "ring", "--ranks", 16383, "--bytes", "4K",
                     "--simulate", LINKS)

    def test_memory_is_shared_within_a_node(self):
        methods = lambda ranks: [line.split()[0] for line in self.lines(
            "all_reduce", "--ranks", ranks, "--bytes", "64K", "--simulate", LINKS)[2:]]
        self.assertIn("pull", methods(8))
        self.assertNotIn("pull", methods(16))
        self.assertNotIn("packet", methods(8))
        self.refused("pull needs all ranks on one host; a node of these links holds 8 of the 16",
                     "all_reduce", "--algo", "pull", "--ranks", 16, "--simulate", LINKS)
        self.refused("A packet holds 16384 bytes; 65536", "all_reduce", "--algo", "packet", "--ranks", 8,
                     "--bytes", "64K", "--simulate", LINKS)

    def test_vectors_are_cut_to_a_multiple_of_the_ranks(self):
        lines = self.lines("all_reduce", "--algo", "ring", "--ranks", 10000, "--bytes", "64M", "--simulate", LINKS)
        self.assertGreater(float(lines[2].split()[1]), 0)
        bytes_of = lambda *words: self.lines("broadcast", "--algo", "chain", "--ranks", 8, *words, "--simulate", LINKS)[0]
        self.assertIn("of 992 B,", bytes_of("--bytes", 1000))
        self.assertIn("of 20 B,", bytes_of("--bytes", 20))


class Explanations(PlanTool):
    def test_the_choice_comes_first_and_says_why(self):
        lines = self.lines("all_reduce", "--ranks", 64, "--ranks-per-core", 0.1, "--bytes", "1M", "--explain")
        self.assertIn("by the cost model", lines[0])
        self.assertIn("alpha", lines[1])
        times = [float(line.split()[1]) for line in lines[2:]]
        self.assertGreater(len(times), 5)
        self.assertEqual(times, sorted(times))
        self.assertIn(lines[2].split()[0] + ",", lines[0])

    def test_nodes_and_rules(self):
        lines = self.lines("all_reduce", "--ranks", 64, "--ranks-per-node", 8, "--bytes", "1M", "--explain")
        self.assertTrue(any(line.startswith("route between nodes: ucx") for line in lines), lines)
        lines = self.lines("all_reduce", "--ranks", 4, "--algo", "ring", "--dtype", "bf16", "--explain")
        self.assertIn("ring, by the caller; f32 on the wire", lines[0])


class Drawn(PlanTool):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="plan-tool-")
        self.addCleanup(directory.cleanup)
        self.file = pathlib.Path(directory.name, "picture.svg")

    def texts(self):
        root = xml.etree.ElementTree.parse(self.file).getroot()
        return [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]


class Pictures(Drawn):
    def boxes(self, root):
        """(left, top, right, bottom) and the text of everything written, at 0.6 em a character."""
        found = []
        for element in root.iter("{http://www.w3.org/2000/svg}text"):
            size = float(element.get("font-size", root.get("font-size")))
            width = 0.6 * size * len(element.text)
            left = float(element.get("x")) - {"start": 0, "middle": width / 2, "end": width}[element.get("text-anchor", "start")]
            bottom = float(element.get("y"))
            found.append(((left, bottom - size, left + width, bottom + 0.3 * size), element.text))
        return found

    def misplaced(self, root):
        """The texts that lie outside of the picture, or on another one of the legend."""
        x, y, width, height = map(float, root.get("viewBox").split())
        boxes = self.boxes(root)
        wrong = [text for (left, top, right, bottom), text in boxes
                 if left < x or top < y or right > x + width or bottom > y + height]
        first_rank = next(box for box, text in boxes if text == "rank 0")
        legend = [each for each in boxes if each[0][3] < first_rank[1]]
        for i, (one, text) in enumerate(legend):
            for other, _ in legend[:i]:
                if one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]:
                    wrong.append(text)
        return wrong

    def test_every_text_lies_inside(self):
        two_levels = lambda ranks: ["--ranks-per-node", 2 if ranks % 2 == 0 else 1]
        pictures = {
            "few words": lambda ranks: ["all_reduce", "--algo", "ring"],
            "two lanes": lambda ranks: ["reduce", "--algo", "double_binary_tree/3", "--root", ranks - 1],
            "shared memory": lambda ranks: ["all_reduce", "--algo", "staged"],
            "most words": lambda ranks: ["all_reduce", "--quantize", "int4", "--quantize-result", "int8",
                                         "--algo", "two_level", *two_levels(ranks)],
        }
        for name, words in pictures.items():
            for ranks in [1, 2, 3, 4, 8, 31, 64]:
                for links in [[], ["--simulate", LINKS]]:
                    if links and name == "shared memory" and ranks > 8:
                        continue  # more than a node of these links
                    with self.subTest(name, ranks=ranks, links=links):
                        self.lines(*words(ranks), "--ranks", ranks, "--bytes", "64K", "--svg", self.file, *links)
                        root = xml.etree.ElementTree.parse(self.file).getroot()
                        self.assertEqual(self.misplaced(root), [])
        # The check itself notices a legend that is cut off, and entries on top of each other.
        width = root.get("viewBox").split()[2]
        root.set("viewBox", root.get("viewBox").replace(width, str(float(width) / 2)))
        self.assertNotEqual(self.misplaced(root), [])
        for element in root.iter("{http://www.w3.org/2000/svg}text"):
            element.set("x", "80")
        self.assertIn("recv", self.misplaced(root))

    def test_over_rounds(self):
        self.assertEqual(self.lines("all_reduce", "--algo", "ring", "--ranks", 8, "--svg", self.file), [])
        texts = self.texts()
        for text in ["all_reduce by ring, 8 ranks, 1 KiB", "rank 7", "round", "13", "send", "recv", "recv_reduce"]:
            self.assertIn(text, texts)
        self.assertNotIn("copy", texts)

    def test_over_time(self):
        self.lines("reduce", "--algo", "binomial", "--ranks", 4, "--svg", self.file, "--simulate", LINKS)
        self.assertIn("us", self.texts())
        self.assertIn("recv_reduce", self.texts())

    def test_shared_memory(self):
        for links in [[], ["--simulate", LINKS]]:
            self.lines("all_reduce", "--algo", "staged", "--ranks", 4, "--svg", self.file, *links)
            for text in ["signal", "wait", "read", "read_reduce", "copy"]:
                self.assertIn(text, self.texts())

    def test_refusals(self):
        self.refused("draws one algorithm", "all_reduce", "--ranks", 4, "--svg", self.file)
        self.refused("up to 64 ranks", "all_reduce", "--algo", "ring", "--ranks", 65, "--svg", self.file)
        self.refused("cannot be written", "all_reduce", "--algo", "ring", "--ranks", 4, "--svg", "/none/picture.svg")
        self.assertFalse(self.file.exists())


class Refusals(PlanTool):
    def test_sentences(self):
        for part, words in [
            ("'all_reduced' is no collective", ["all_reduced", "--ranks", 4]),
            ("'rings' is no algorithm", ["all_reduce", "--algo", "rings", "--ranks", 4]),
            ("cannot be done by ring", ["broadcast", "--algo", "ring", "--ranks", 4]),
            ("has no plan to choose", ["send", "--ranks", 4]),
            ("the library's choice", ["all_reduce", "--algo", "auto", "--ranks", 4]),
            ("only --verify takes", ["all_reduce", "--ranks", "2..4"]),
            ("Only --verify takes", ["all", "--ranks", 4]),
            ("its end is below", ["all", "--verify", "--ranks", "4..2"]),
            ("'many' is no number", ["all_reduce", "--ranks", "many"]),
            ("'0' is no number", ["all_reduce", "--ranks", 0]),
            ("--verify excludes --simulate", ["all_reduce", "--ranks", 4, "--verify", "--simulate", LINKS]),
            ("root or peer 4", ["broadcast", "--ranks", 4, "--root", 4]),
            ("has no root", ["all_reduce", "--ranks", 4, "--root", 1]),
            ("--rank 4 is outside", ["all_reduce", "--ranks", 4, "--rank", 4]),
            ("choose a divisor", ["all_reduce", "--ranks", 4, "--ranks-per-node", 3]),
            ("'1T' is no size", ["all_reduce", "--ranks", 4, "--bytes", "1T"]),
            ("'999999999999G' is more than 2^50 bytes", ["all_reduce", "--ranks", 4, "--bytes", "999999999999G"]),
            ("less than one element", ["all_gather", "--ranks", 4, "--bytes", 8]),
            ("f33", ["all_reduce", "--ranks", 4, "--dtype", "f33"]),
            ("'/none' cannot be read", ["all_reduce", "--ranks", 4, "--simulate", "/none"]),
            ("--help lists the flags", ["all_reduce", "--ranks", 4, "--fast"]),
            ("--help lists the flags", ["all_reduce"]),
        ]:
            with self.subTest(words):
                self.refused(part, *words)

    def test_misspelt_settings(self):
        result = subprocess.run([PLAN, "all_reduce", "--ranks", "4"], capture_output=True, text=True,
                                env={**os.environ, "STRETTO_ALGOS": "ring"})
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, r"\Aerror: STRETTO_ALGOS is set but [^\n]*\.\n\Z")

    def test_help(self):
        self.assertIn("--simulate", "\n".join(self.lines("--help")))


class Steps(PlanTool):
    STEP = ["step", "--ranks", 64, "--links", LINKS, "--gflops", 100000, "--layers", 4, "--hidden", 1024]

    def times(self, lines):
        """The time of each schedule in ms."""
        names = {"planned  ": "planned", "no partition, blocking": "blocking", "no partition, as early": "early",
                 "buckets of 25 MiB": "buckets", "those buckets, and all by level": "levels",
                 "no schedule can be faster": "bound"}
        return {short: float(re.search(r"([\d.]+) ms", line).group(1))
                for line in lines for begin, short in names.items() if line.startswith(begin)}

    def test_is_never_worse_than_what_it_is_beside(self):
        for more in ([], ["--tp", 8], ["--zero", 3], ["--dp", 8, "--tp", 8, "--slowdown", 0.1]):
            lines = self.lines(*self.STEP, *more)
            times = self.times(lines)
            self.assertEqual(len(times), 6, lines)
            self.assertLessEqual(times["planned"], min(times[name] for name in ("blocking", "early", "buckets", "levels")))
            self.assertGreaterEqual(times["planned"], times["bound"])
            self.assertTrue(any(line.startswith("because: ") for line in lines))

    def test_json_says_every_collective(self):
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "plan.json"
            lines = self.lines(*self.STEP, "--tp", 8, "--json", path)
            plan = json.loads(path.read_text())
        self.assertAlmostEqual(plan["planned_ms"], self.times(lines)["planned"], places=2)
        gradients = [each for each in plan["collectives"] if each["carries"] == "gradients"]
        self.assertEqual(sum(each["bytes"] for each in gradients), 4 * 12 * 1024 * 1024 // 8 * 4)
        activations = [each for each in plan["collectives"] if each["carries"] == "activations"]
        self.assertEqual(len(activations), 4 * 8)
        self.assertEqual({each["ranks"] for each in activations}, {8})

    def test_refusals(self):
        self.refused("--tp 3 does not divide --ranks 64", *self.STEP, "--tp", 3)
        self.refused("--dp 4 x --tp 8 are not --ranks 64", *self.STEP, "--dp", 4, "--tp", 8)
        self.refused("--gflops", "step", "--ranks", 8, "--links", LINKS)
        self.refused("no_such.json", "step", "--ranks", 8, "--links", "no_such.json", "--gflops", 1)
        self.refused("cut a group of 12 ranks", *self.STEP[:1], "--ranks", 24, "--tp", 12, *self.STEP[3:])
        self.refused("--zero", *self.STEP, "--zero", 2)
        self.refused("--json", *self.STEP, "--json", "/no/such/directory/plan.json")


class Pipelines(Drawn):
    def schedule(self, name, *words):
        return self.lines("pipeline", "--schedule", name, *words)

    def json(self, name, *words):
        path = self.file.with_suffix(".json")
        self.schedule(name, "--json", path, *words)
        return json.loads(path.read_text())

    def test_figures(self):
        lines = self.schedule("1f1b", "--pp", 4, "--microbatches", 8)
        self.assertEqual(lines[0], "1f1b, 4 stages, 8 microbatches, 1 chunk a stage: proved")
        self.assertRegex(lines[1], r"^bubble +37\.50% ")
        self.assertRegex(lines[3], r"^under way +4 3 2 1 by stage")
        self.assertEqual(self.json("interleaved", "--pp", 2, "--microbatches", 4, "--virtual-stages", 3),
                         {"schedule": "interleaved", "stages": 2, "microbatches": 4, "chunks": 3, "step": 39.0, "ideal": 36.0,
                          "bubble": 39 / 36 - 1, "under_way": [7, 5]})
        self.assertEqual(self.json("zb-v", "--pp", 4, "--microbatches", 8)["bubble"], 0)
        self.assertEqual(self.json("gpipe", "--pp", 2, "--microbatches", 1, "--times", "1,2,3,0.5")["step"], 13)

    def test_a_file_is_a_schedule(self):
        text = self.file.with_suffix(".txt")
        lines = self.schedule("zb-h1", "--pp", 3, "--microbatches", 5, "--text", text)
        self.assertEqual(self.schedule(text), lines)
        self.refused("is for 3 stages, not for 4", "pipeline", "--schedule", text, "--pp", 4)
        text.write_text(text.read_text().replace("send_forward 3 0", "send_forward 4 0", 1))
        self.refused("Stage 0 has send_forward 4 0 before", "pipeline", "--schedule", text)
        text.write_text("garbage")
        self.refused("Line 1 of the schedule", "pipeline", "--schedule", text)

    def test_picture(self):
        self.schedule("zb-h1", "--pp", 8, "--microbatches", 16, "--svg", self.file)
        texts = self.texts()
        for text in ["zb-h1, 8 stages, 16 microbatches: 14.6% bubble", "stage 7", "forward", "backward_input", "backward_weight"]:
            self.assertIn(text, texts)
        for microbatch in range(16):  # each has room for its number: forward, and both gradients, on each stage
            self.assertGreaterEqual(texts.count(str(microbatch)), 3 * 8)

    def test_all_are_proved(self):
        lines = self.lines("pipeline", "all", "--verify")
        self.assertEqual([line.split()[0] for line in lines[:-1]], ["gpipe", "1f1b", "1f1b-eager", "interleaved", "zb-h1", "zb-h2", "zb-v"])
        self.assertRegex(lines[-1], r"^Proved 6988 schedules ")

    def test_refusals(self):
        for part, words in [
            ("'2f2b' is neither", ["--schedule", "2f2b", "--pp", 2]),
            ("'/' is neither", ["--schedule", "/"]),
            ("needs --pp and --microbatches", ["--schedule", "gpipe", "--pp", 2]),
            ("a multiple of its 4 stages", ["--schedule", "interleaved", "--pp", 4, "--microbatches", 6]),
            ("1 chunk a stage, not 2", ["--schedule", "gpipe", "--pp", 4, "--microbatches", 6, "--virtual-stages", 2]),
            ("--times", ["--schedule", "gpipe", "--pp", 4, "--microbatches", 6, "--times", "1,2,3"]),
            ("--times", ["--schedule", "gpipe", "--pp", 4, "--microbatches", 6, "--times", "1,2,3,-4"]),
            ("--svg draws up to 64", ["--schedule", "gpipe", "--pp", 65, "--microbatches", 1, "--svg", self.file]),
            ("cannot be written", ["--schedule", "gpipe", "--pp", 2, "--microbatches", 1, "--svg", "/none/picture.svg"]),
            ("--pp 0 must be at least 1.", ["--schedule", "gpipe", "--pp", 0, "--microbatches", 4]),
            ("--microbatches 0 must be at least 1.", ["--schedule", "gpipe", "--pp", 2, "--microbatches", 0]),
            ("--virtual-stages 0 must be at least 1.", ["--schedule", "zb-v", "--pp", 2, "--microbatches", 4, "--virtual-stages", 0]),
            ("Name a schedule", []),
        ]:
            with self.subTest(words):
                self.refused(part, "pipeline", *words)

    def test_chunks_that_are_left_out(self):
        for schedule in ("interleaved", "zb-v"):
            words = ["--pp", 4, "--microbatches", 8]
            self.assertEqual(self.schedule(schedule, *words), self.schedule(schedule, *words, "--virtual-stages", 2))


class Attention(PlanTool):
    SHAPE = ["attention", "--seq", 8192, "--heads", 8, "--hidden", 512]
    TIMES = ["--links", LINKS, "--flops-per-second", 1e14]

    def plan(self, *words):
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory, "plan.json")
            lines = self.lines(*words, "--json", path)
            return lines, json.loads(path.read_text())

    def test_all_layouts_of_some_ranks(self):
        lines, plan = self.plan(*self.SHAPE, "--ranks", 16, *self.TIMES, "--cp-layout", "all")
        layouts = {(each["cp"], each["ulysses"], each["cp_layout"]): each for each in plan["layouts"]}
        self.assertEqual(set(layouts), {(16 // u, u, layout) for u in (1, 2, 4, 8) for layout in ("zigzag", "contiguous", "striped")})
        self.assertEqual([(each["cp"], each["ulysses"]) for each in plan["refused"]], [(1, 16)])
        self.assertTrue(any(line.startswith("not cp 1 x ulysses 16: 8 attention heads do not divide over") for line in lines), lines)
        times = [each["forward"]["ms"] + each["backward"]["ms"] for each in plan["layouts"]]
        self.assertEqual(times, sorted(times))
        self.assertEqual(plan["choice"], 0)
        for each in plan["layouts"]:
            for way in ("forward", "backward"):
                self.assertAlmostEqual(each[way]["computing_ms"] + each[way]["exposed_ms"], each[way]["ms"])
        self.assertIn("choice: stretto-train " + plan["layouts"][0]["flags"], lines)
        self.assertRegex(lines[-1], r"^because: cp .* takes .* a layer, forward and backward; next, cp ")
        self.assertAlmostEqual(layouts[16, 1, "contiguous"]["balance"], 16 / 31, places=2)
        self.assertEqual(layouts[16, 1, "zigzag"]["balance"], 1)

    def test_figures(self):
        """Two all-reduces of a block and pass, or with --sp halves of them; and the formulas of docs/long-sequences.md."""
        _, plan = self.plan(*self.SHAPE, "--cp", 2, "--ulysses", 2, "--tp", 2, "--batch", 3)
        whole, divided = plan["layouts"]
        self.assertEqual((whole["sp"], divided["sp"], plan["choice"]), (False, True, None))
        rows = 3 * 8192 // 4
        residual = rows * 512 * 2
        keys_and_values = 2 * rows * 256 * 2
        self.assertEqual(whole["forward"]["sent"], {"cp": keys_and_values, "ulysses": rows * 256 * 4 * 2 // 2, "tp": 2 * residual})
        self.assertEqual(whole["backward"]["sent"], {"cp": 3 * keys_and_values, "ulysses": rows * 256 * 4 * 2 // 2, "tp": 2 * residual})
        self.assertEqual(divided["backward"]["sent"]["tp"], 3 * residual)
        self.assertEqual(whole["forward"]["flops"], 4 * 3 * (8192 * 8193 // 2) * 512 / 8)
        self.assertEqual(whole["core_kept"], 4 * rows * 256 * 2 + rows * 4 * 4)
        self.assertLess(divided["layer_kept"], whole["layer_kept"])
        self.assertNotIn("ms", whole["forward"])

    def test_the_reason_of_the_choice(self):
        lines, plan = self.plan(*self.SHAPE, "--ranks", 8, "--tp", 2, *self.TIMES)
        self.assertTrue(plan["layouts"][0]["sp"])
        self.assertIn("; with --sp a layer keeps ", lines[-1])
        fastest = lambda mask: self.plan(*self.SHAPE, "--cp", 8, "--attention", mask, "--cp-layout", "all", *self.TIMES)[1]["layouts"][0]
        self.assertNotEqual(fastest("dense")["cp_layout"], "contiguous")
        narrow = fastest("window:64")  # a part's keys are its rank's own and its neighbour's
        self.assertEqual(narrow["cp_layout"], "contiguous")
        self.assertIn("--attention window:64", narrow["flags"])

    def test_a_million_tokens(self):
        _, plan = self.plan("attention", "--seq", 1 << 20, "--heads", 64, "--hidden", 8192, "--ranks", 256, "--cp-layout", "all", *self.TIMES)
        pairs = (1 << 20) * ((1 << 20) + 1) // 2
        for each in plan["layouts"]:
            self.assertGreaterEqual(each["forward"]["flops"], 4 * pairs * 8192 / 256)

    def test_refusals(self):
        for part, words in [
            ("8 attention heads do not divide over 4 tensor-parallel x 4 ulysses ranks", [*self.SHAPE, "--cp", 1, "--ulysses", 4, "--tp", 4]),
            ("A sequence of 8192 tokens does not divide over 3 ring (zigzag) x 1 ulysses ranks", [*self.SHAPE, "--cp", 3]),
            ("A sequence of 4 tokens does not divide over 8 ring", ["attention", "--seq", 4, "--heads", 1, "--hidden", 64, "--ranks", 8]),
            ("A hidden size of 510 does not divide", [*self.SHAPE[:-1], 510, "--cp", 2]),
            ("do not divide over 4096 tensor-parallel x 4096 ulysses ranks", [*self.SHAPE, "--cp", 4096, "--ulysses", 4096, "--tp", 4096, *self.TIMES]),
            ("2 sequences of 1073741824 tokens has more than 2^30", ["attention", "--seq", 1 << 30, "--heads", 1, "--hidden", 64, "--ranks", 8, "--batch", 2]),
            ("--ranks excludes", [*self.SHAPE, "--ranks", 8, "--cp", 2]),
            ("Give --ranks N", self.SHAPE),
            ("is no mask of attention", [*self.SHAPE, "--ranks", 8, "--attention", "windows:4"]),
            ("is no layout of a sequence", [*self.SHAPE, "--ranks", 8, "--cp-layout", "zagzig"]),
            ("--links requires --flops-per-second", [*self.SHAPE, "--ranks", 8, "--links", LINKS]),
            ("--flops-per-second requires --links", [*self.SHAPE, "--ranks", 8, "--flops-per-second", 1]),
            ("does not fit a cluster of 12 ranks, 8 a node", [*self.SHAPE[:2], 8448, *self.SHAPE[3:], "--cp", 12, *self.TIMES]),
            ("no_such.json", [*self.SHAPE, "--ranks", 8, "--links", "no_such.json", "--flops-per-second", 1]),
            ("--json", [*self.SHAPE, "--ranks", 8, "--json", "/no/such/directory/plan.json"]),
            ("--dtype", [*self.SHAPE, "--ranks", 8, "--dtype", "f33"]),
            ("--seq", ["attention", "--heads", 1, "--hidden", 64, "--ranks", 8]),
        ]:
            with self.subTest(words):
                self.refused(part, *words)

    @unittest.skipUnless(TRAIN, "this build has no stretto-train")
    def test_the_flags_run(self):
        """A dry run takes them for all layouts, with the plan's bytes for each microbatch; a step runs in the chosen one."""
        def dry_run(flags, ranks, batch):
            with tempfile.TemporaryDirectory() as directory:
                path = pathlib.Path(directory, "dry.json")
                result = subprocess.run([TRAIN, *flags, "--dry-run", "--ranks", str(ranks), "--global-batch-size", str(batch), "--json", path],
                                        capture_output=True, text=True, timeout=240)
                self.assertEqual((result.returncode, result.stderr), (0, ""))
                return json.loads(path.read_text())["sent"]

        shape = ["attention", "--seq", 48, "--heads", 4, "--hidden", 32, "--tp", 2, "--dtype", "fp32"]
        for more in (["--ranks", 4], ["--ranks", 2, "--attention", "window:5", "--cp-layout", "all"]):
            _, plan = self.plan(*shape, *more, *self.TIMES)
            for each in plan["layouts"]:
                flags = [*each["flags"].split(), "--num-layers", "1"]
                ranks = each["cp"] * each["ulysses"] * 2
                with self.subTest(flags):
                    once, twice = (dry_run(flags, ranks, batch) for batch in (1, 2))
                    for group in ("cp", "ulysses"):
                        sent = twice.get(group, 0) - once.get(group, 0)
                        most = sum(each[way]["sent"][group] for way in ("forward", "backward"))
                        if "dense" in each["flags"]:
                            self.assertEqual(sent, most)
                        self.assertLessEqual(sent, most)  # the first rank may send less than another
        best = plan["layouts"][0]
        with tempfile.TemporaryDirectory() as directory:
            text = pathlib.Path(directory, "text")
            text.write_text("the quick brown fox jumps over the lazy dog. " * 40)
            result = subprocess.run([TRAIN, *best["flags"].split(), "--num-layers", "1", "--nproc", "4", "--train-iters", "1", "--train-data", text],
                                    capture_output=True, text=True, errors="replace", timeout=240,
                                    env={**os.environ, "OMP_NUM_THREADS": "1"})
        self.assertEqual((result.returncode, result.stderr), (0, ""), result.stdout)
        self.assertRegex(result.stdout, r"step +1/1 ")


if __name__ == "__main__":
    unittest.main()
