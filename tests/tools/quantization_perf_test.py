"""./dev perf quantization: its arithmetic, its picture and the page that it writes, with a control beside each; and that a short run
finds its figures in stretto-perf's output."""
import copy
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(os.environ["ROOT"])
PERF_PROGRAM = os.environ["PERF_PROGRAM"]
sys.path.insert(0, str(ROOT))
from perf.comparisons import quantization  # noqa: E402
from perf.pages import chart  # noqa: E402
from perf.pages import quantization as page  # noqa: E402


def row_of(collective, rate, plain, quantized, expected_plain, expected_quantized, dtype="bf16"):
    return {"dtype": dtype, "rate": rate, "collective": collective,
            "plain": {"us": plain, "method": "direct", "expected_us": expected_plain, "bytes_between_nodes": 100},
            "quantized": {"us": quantized, "method": "two_level/4", "expected_us": expected_quantized, "bytes_between_nodes": 26,
                          "max_error": 0.5, "rms_error": 0.125}}


def figures_of(rows):
    return {"machine": {"cpu": "A <fast> processor", "cores": 2, "system": "A system", "date": "2000-01-01"}, "version": "Stretto 1",
            "command": "./dev perf quantization", "nodes": 4, "ranks_per_node": 2, "latency_us": 20, "bytes": 16 << 20, "rounds": 3,
            "seconds": 0.2, "rows": rows}


def good_figures():
    return figures_of([row_of(collective, rate, 1000 * gain, 1000, 900 * gain, 1000)
                       for collective in page.COLLECTIVES for rate, gain in ((1, 3.0), (10, 2.0), (100, 0.5))])


KERNELS = {"cpu": "A processor", "vectors": "AVX3", "version": "1", "rows": [
    {"format": name, "dtype": "bf16", "bytes": size, "kernel": kernel, "bytes_a_second": rate, "copy_bytes_a_second": 2e9,
     "ratio": rate / 2e9}
    for size, rate in (("512K", 2e9), ("64M", 1e9)) for name in ("int8", "int4")
    for kernel in ("quantize", "dequantize", "dequantize_reduce of 8", "requantize of 8")]}


class Arithmetic(unittest.TestCase):
    def test_gain_and_choice(self):
        row = row_of("all_gather", 1, 300, 100, 200, 100)
        self.assertEqual((page.gain(row), page.expected_gain(row)), (3, 2))
        self.assertEqual((page.chosen(row), page.loss(row)), ("quantized", 0))
        row["quantized"]["expected_us"] = 250  # now the model is wrong
        self.assertEqual((page.chosen(row), page.loss(row)), ("plain", 2))
        row["quantized"]["us"] = 400  # and now right again
        self.assertEqual((page.chosen(row), page.loss(row)), ("plain", 0))

    def test_crossing_lies_on_the_logarithm_of_the_rate(self):
        self.assertAlmostEqual(page.crossing([(100, 0.0), (1, 2.0)]), 10)
        self.assertAlmostEqual(page.crossing([(1, 4.0), (10, 2.0), (100, 0.5), (1000, 0.4)]), 10 * 10**(1 / 1.5))
        self.assertIsNone(page.crossing([(1, 4.0), (10, 1.0)]))
        self.assertIsNone(page.crossing([(1, 0.9), (10, 0.5)]))

    def test_summary(self):
        text = "\n".join(page.summary(good_figures()))
        self.assertIn("bf16, all_gather, int8: 3.0 times as fast at 1 Gb/s; faster up to about 46 Gb/s, by the model up to about "
                      f"{10 * 10**(0.8 / 1.35):.2g} Gb/s.", text)
        self.assertIn("chooses the faster side, or one within 5% of it, in 9 of these 9 cases.", text)
        figures = good_figures()
        figures["rows"][0]["quantized"]["expected_us"] = 1e6
        self.assertIn("in 8 of these 9 cases; at worst, its choice takes 3.00 times as long (bf16, reduce_scatter, 1 Gb/s)",
                      "\n".join(page.summary(figures)))

    def test_an_equally_fast_side_is_no_wrong_choice(self):
        figures = figures_of([row_of("all_gather", 1, 104, 100, 50, 100)])
        self.assertIn("in 1 of these 1 cases.", "\n".join(page.summary(figures)))
        figures["rows"][0]["plain"]["us"] = 106
        self.assertIn("in 0 of these 1 cases; at worst, its choice takes 1.06 times", "\n".join(page.summary(figures)))

    def test_times_that_the_model_expected(self):
        said = ("stretto: all_gather of 0 bf16 in 'world': direct, 1.0 us by the cost model\n"
                "stretto: all_gather of 64 bf16 in 'world', symmetric memory: two_level/4 in int8, 12.5 us by the cost model; then "
                "direct in int8 30.0 us\n"
                "stretto: all_reduce of 64 f32 in 'world': two_shot in int4, the sum in int8, 7.0 us by the cost model\n"
                "stretto: reduce_scatter of 64 f32 in 'world': ring, by STRETTO_ALGO\n")
        self.assertEqual(quantization.expected_us(said, "all_gather", 64, "bf16"), 12.5)
        self.assertEqual(quantization.expected_us(said, "all_reduce", 64, "f32"), 7)
        for of in (("all_gather", 64, "f32"), ("all_gather", 128, "bf16"), ("reduce_scatter", 64, "f32")):
            with self.assertRaises(SystemExit):
                quantization.expected_us(said, *of)

    def test_kernels(self):
        rows = [row for row in KERNELS["rows"] if row["bytes"] == "64M"]
        self.assertAlmostEqual(page.element_seconds(rows, "bf16", "int8", "quantize") * 1e9, 2 + 260 / 256)
        self.assertAlmostEqual(page.element_seconds(rows, "bf16", "int4", "dequantize_reduce of 8") * 1e9, 2 + 8 * 34 / 64)
        self.assertAlmostEqual(page.element_seconds(rows, "bf16", "int4", "requantize of 8") * 1e9, 9 * 34 / 64)
        self.assertIsNone(page.element_seconds(rows, "f32", "int8", "quantize"))
        seconds, rate = page.break_even(rows, "bf16", "reduce_scatter")
        self.assertAlmostEqual(seconds * 1e9, 2 + 34 / 64 + (2 + 8 * 34 / 64) / 8)
        self.assertAlmostEqual(rate * seconds, 7 / 8 * (2 - 34 / 64))
        self.assertIsNone(page.break_even(rows, "f32", "all_gather"))


class Drawing(unittest.TestCase):
    def drawn(self, figures):
        root = ElementTree.fromstring(page.plot(figures))
        return [(element.tag.rsplit("}", 1)[1], element) for element in root.iter()]

    def points(self, figures):
        """The points of each curve, in the order expected and measured for each collective; without the keys of the legend."""
        lines = [[tuple(map(float, pair.split(","))) for pair in element.get("points").split()]
                 for tag, element in self.drawn(figures) if tag == "polyline"]
        return lines[len(page.COLLECTIVES):]

    def lines(self, figures, look):
        return [{name: float(element.get(name)) for name in ("x1", "y1", "x2", "y2")}
                for tag, element in self.drawn(figures) if tag == "line" and element.get("class") == look]

    def test_curves_are_where_their_figures_are(self):
        figures = good_figures()
        self.assertEqual(len(self.points(figures)), 6)
        expected, measured = self.points(figures)[:2]
        one, = self.lines(figures, "strong")
        bottom = max(line["y2"] for line in self.lines(figures, "grid"))
        for (_, y), gain in zip(measured, (3, 2, 0.5)):
            self.assertAlmostEqual((bottom - y) / (bottom - one["y1"]), gain, delta=0.01)
        for (_, y), gain in zip(expected, (2.7, 1.8, 0.45)):
            self.assertAlmostEqual((bottom - y) / (bottom - one["y1"]), gain, delta=0.01)
        left, middle, right = (x for x, _ in measured)
        self.assertAlmostEqual(middle - left, right - middle, delta=0.2)  # 1, 10 and 100
        self.assertEqual((left, right), (one["x1"], one["x2"]))
        figures["rows"][0]["plain"]["us"] *= 2
        self.assertNotEqual(self.points(figures)[1], measured)

    def test_everything_is_inside_and_named(self):
        figures = good_figures()
        figures["rows"][0]["plain"]["us"] = 25000
        grid = self.lines(figures, "grid")
        left, right, top, bottom = (edge(line[name] for line in grid) for edge, name in ((min, "x1"), (max, "x2"), (min, "y1"), (max, "y2")))
        for points in self.points(figures):
            for x, y in points:
                self.assertTrue(left <= x <= right and top <= y <= bottom, (x, y))
        words = [element.text for tag, element in self.drawn(figures) if tag == "text"]
        for wanted in ("bandwidth between nodes, Gb/s", "time plain / time quantized", "all_gather, int8", "100"):
            self.assertIn(wanted, words)
        self.assertTrue(any("A <fast> processor, 2 cores" in text for text in words), words)
        self.assertIn("prefers-color-scheme: dark", page.plot(figures))

    def test_one_bandwidth_alone_can_be_drawn(self):
        figures = good_figures()
        figures["rows"] = [row for row in figures["rows"] if row["rate"] == 10]
        self.assertTrue(all(math.isfinite(x + y) for points in self.points(figures) for x, y in points))

    def test_legends_wrap(self):
        curves = [chart.Curve(f"a curve of some name, number {i}", [(1, 1)], i) for i in range(9)]
        self.assertEqual([chart.legend(curves[:count], 900)[1] for count in (1, 3, 4, 9)], [20, 20, 40, 60])


class Program(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="quantization-")
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)

    def run_it(self, *words):
        return subprocess.run([sys.executable, "-B", "-m", "perf.comparisons.quantization", *map(str, words)], cwd=ROOT,
                              capture_output=True, text=True, timeout=120)

    def written(self, figures):
        path = self.directory / "figures.json"
        path.write_text(json.dumps(figures))
        return path

    def test_documents(self):
        text = (ROOT / "docs/quantization.md").read_text()
        mine = self.directory / "page.md"
        mine.write_text(text)
        figures = good_figures()
        figures["rows"] += [{**copy.deepcopy(row), "dtype": "f32"} for row in figures["rows"]]
        done = self.run_it("--from", self.written(figures), "--write-docs", mine)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        once = mine.read_text()
        for whole in (text, once):
            self.assertLess(whole.index(page.CROSSOVER.begin), whole.index(page.CROSSOVER.end))
        self.assertEqual(once[:once.index(page.CROSSOVER.begin)], text[:text.index(page.CROSSOVER.begin)])
        self.assertEqual(once[once.index(page.CROSSOVER.end):], text[text.index(page.CROSSOVER.end):])  # with the kernels' part
        self.assertIn("| 100 | all_reduce, int4, sum in int8 | 500.0 us | direct | 1.00 ms | two_level/4 | 0.50 | 0.45 | plain | 0.5 | "
                      "0.125 |", once)
        self.assertIn("### 16 MiB of f32", once)
        ElementTree.parse(self.directory / page.PLOT)
        kernels = self.directory / "kernels.json"
        kernels.write_text(json.dumps(KERNELS))
        for _ in range(2):
            self.assertEqual(self.run_it("--from", self.written(figures), "--kernels", kernels, "--write-docs", mine).returncode, 0)
            twice = mine.read_text()
            self.assertIn("### Elements of 64 MiB", twice)
            self.assertIn("| quantize | bf16 | 1.0 (50%) | 1.0 (50%) |", twice)
            self.assertEqual(twice[:twice.index(page.KERNELS.begin)], once[:once.index(page.KERNELS.begin)])
            self.assertEqual(twice[twice.index(page.KERNELS.end):], once[once.index(page.KERNELS.end):])
        mine.write_text("no marks")
        done = self.run_it("--from", self.written(figures), "--write-docs", mine)
        self.assertEqual((done.returncode, mine.read_text()), (1, "no marks"))
        self.assertIn("two marks", done.stderr)

    def test_a_short_run(self):
        path = self.directory / "run.json"
        done = self.run_it("--program", PERF_PROGRAM, "--nodes", 2, "--rates", "1,100", "--mib", 1, "--dtypes", "bf16", "--rounds", 1,
                           "--seconds", "0.001", "--json", path)
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = json.loads(path.read_text())["rows"]
        self.assertEqual([(row["rate"], row["collective"]) for row in rows],
                         [(rate, collective) for rate in (1, 100) for collective in page.COLLECTIVES])
        for row in rows:
            self.assertGreater(row["quantized"]["rms_error"], 0)
            self.assertLess(row["quantized"]["bytes_between_nodes"], row["plain"]["bytes_between_nodes"])
            for side in ("plain", "quantized"):
                self.assertGreater(row[side]["us"], 0)
                self.assertGreater(row[side]["expected_us"], 0)

    def test_bad_arguments(self):
        for words, said in ((["--rates", "1,x"], "'1,x' is no list of Gb/s"), (["--dtypes", "f64"], "'f64'"), (["--rates", "0,1"], "--rates"),
                            (["--nodes", "1"], "--nodes"), (["--write-docs", self.directory / "none"], "cannot be read"),
                            (["--from", self.directory / "none"], "cannot be read"), (["--kernels", PERF_PROGRAM], "cannot be read"),
                            (["--program", "false", "--mib", "1"], "ended with status 1")):
            with self.subTest(words=words):
                done = self.run_it(*words)
                self.assertEqual(done.returncode, 1)
                self.assertIn(said, done.stderr)
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)


if __name__ == "__main__":
    unittest.main()
