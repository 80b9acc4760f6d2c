"""./dev perf long: what its parts run, its verdicts on figures, with a control that fails beside each, and the page that it writes.
Nothing is measured."""
import argparse
import contextlib
import copy
import io
import json
import os
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

ROOT = pathlib.Path(os.environ["ROOT"])
sys.path.insert(0, str(ROOT))
from perf.comparisons import long, long_attention, long_training  # noqa: E402
from perf.comparisons.long_attention import PEERS, STRETTO  # noqa: E402
from perf.comparisons.long_training import DATA_PARALLEL, KEEPS, ONE, RING, SP, TP  # noqa: E402

QUICK = argparse.Namespace(quick=True, rounds=None)
HOP = {"t_full_ms": 101.0, "t_compute_ms": 100.0, "t_comm_ms": 35.0, "t_serial_ms": 140.0, "exposed_ms": 1.0, "efficiency": 0.97}


def times_of(milliseconds):
    return {key: [milliseconds] * 3 for key in ("forward_ms", "backward_ms", "ms")}


def trained(tokens_per_s, activations):
    return {"tokens_per_s": tokens_per_s, "step_ms": 1000.0, "comm_ms": 100.0, "exposed_ms": 20.0, "activation_bytes": activations,
            "planned_activation_bytes": activations, "memory_bytes": 2 * activations}


def overlap_figures():
    rows = [{"pass": name, "links_by": by, "overlap": overlaps, **HOP, "efficiency": 0.97 if overlaps else 0.0}
            for by, name, overlaps in [("forward", "forward", True), ("forward", "backward", True), ("forward", "forward", False),
                                       ("forward", "backward", False), ("backward", "backward", True)]]
    return {"tokens": 8192, "rounds": 3, "rows": rows, "links": {"forward": "inter=100MB/s,20us", "backward": "inter=40MB/s,20us"},
            "block_ms": {"forward": 240.0, "backward": 600.0}}


def good_figures():
    """One run in which every verdict holds."""
    model = [2, 256, 4, 32768]
    return {
        "machine": {"cpu": "A processor", "cores": 2, "system": "A system", "date": "2000-01-01"}, "command": "./dev perf long",
        "parts": {
            "balance": {"tokens": 8192, "rounds": 3, "times": {"local": times_of(200.0), "zigzag": times_of(102.0),
                                                               "contiguous": times_of(150.0), "striped": times_of(104.0)}},
            "ring": overlap_figures(), "ulysses": overlap_figures(),
            "sp": {"model": model, "steps": 3, "links": "inter=100MB/s,20us",
                   "rounds": [{TP: trained(100.0, 2e6), SP: trained(110.0, 1e6), KEEPS: trained(112.0, 1.2e6)}] * 3},
            "length": {"model": model, "rounds": [{ONE: trained(100.0, 2e6), RING: trained(190.0, 1.05e6),
                                                   DATA_PARALLEL: trained(195.0, 2e6)}] * 3},
            "fits": {"tokens": {"1": 30720, "2": 60416, "4": 116736}},
            "torch": {"tokens": 8192, "torch": "2", "rounds": [
                {STRETTO: {**{key: values[0] for key, values in times_of(100.0).items()}, "tokens_per_s": 81920.0},
                 **{peer: {**{key: values[0] for key, values in times_of(150.0).items()}, "tokens_per_s": 54613.0, "torch": "2"}
                    for peer in PEERS}}] * 3}}}


class Runs(unittest.TestCase):
    def test_links_on_which_a_hop_takes_its_share_of_a_block(self):
        runs = []

        def run(command, **variables):
            words = [str(word) for word in command]
            runs.append((words, variables))
            passes = words[words.index("--passes") + 1].split(",") if "--passes" in words else ["forward", "backward"]
            core = words[words.index("--cores") + 1]
            figures = {name: {**HOP, "t_compute_ms": 400.0 if name == "forward" else 1000.0} for name in passes}
            return argparse.Namespace(stdout=f"a line\n{json.dumps({core: figures})}\n")

        with unittest.mock.patch.object(long_attention, "run", run):
            figures = long_attention.PARTS["ulysses"].measured(QUICK)
        bytes_of_a_hop = 2 * 2048 // 2 * 512 * 4
        for name, block in (("forward", 0.2), ("backward", 0.5)):
            rate, latency = figures["links"][name].removeprefix("inter=").split(",")
            seconds = bytes_of_a_hop / (float(rate.removesuffix("MB/s")) * 1e6) + float(latency.removesuffix("us")) / 1e6
            self.assertAlmostEqual(seconds, 0.7 * block, places=4)
        self.assertEqual([(row["pass"], row["links_by"], row["overlap"]) for row in figures["rows"]],
                         [(row["pass"], row["links_by"], row["overlap"]) for row in overlap_figures()["rows"]])
        self.assertEqual([variables.get("STRETTO_LINKS") for _, variables in runs],
                         [None, *[figures["links"]["forward"]] * 2, figures["links"]["backward"]])
        self.assertEqual(["--no-overlap" in words for words, _ in runs], [False, False, True, False])

    def test_the_longest_sequence_is_the_last_that_fits(self):
        part = long_training.PARTS["fits"]
        with unittest.mock.patch.object(type(part), "bytes_of", lambda self, ranks, tokens: tokens * 40000 // ranks):
            tokens = part.measured(QUICK)["tokens"]
        for ranks, count in tokens.items():
            self.assertLessEqual(count * 40000 // ranks, 4 << 30)
            self.assertGreater((count + 1024) * 40000 // ranks, 4 << 30)


class Verdicts(unittest.TestCase):
    def setUp(self):
        self.parts = copy.deepcopy(good_figures()["parts"])

    def fails(self, *expected):
        """Exactly these verdicts fail; each belongs to the text of one."""
        texts = [verdict.text for name, figures in self.parts.items() for verdict in long.PARTS[name].verdicts(figures) if not verdict.holds]
        self.assertEqual(len(texts), len(expected), texts)
        for part, text in zip(expected, texts):
            self.assertIn(part, text)

    def test_good_figures_hold(self):
        self.fails()

    def test_an_uneven_ring(self):
        self.parts["balance"]["times"]["zigzag"]["ms"] = [90.0, 106.0, 106.0]
        self.fails("0.943 of the ideal")

    def test_exposed_communication(self):
        for row in self.parts["ring"]["rows"] + self.parts["ulysses"]["rows"]:
            row["efficiency"] = 0.84 if row["links_by"] == "backward" else min(row["efficiency"], 0.86)
        self.fails("Ring attention hides 0.84 of the communication of backward, where a hop takes 0.7 of a block's backward")
        self.parts["ulysses"]["rows"][-1]["efficiency"] = 0.49
        self.fails("Ring attention", "Ulysses hides 0.49 of the communication of backward, where a hop takes 0.7 of a block's backward")

    def test_training(self):
        for each in self.parts["sp"]["rounds"]:
            each[SP]["tokens_per_s"] = 99.9
        for each in self.parts["length"]["rounds"]:
            each[RING].update(tokens_per_s=175.0, activation_bytes=1.1e6)
        self.fails("0.999 times the tokens per second of tp 2", "0.550 of the activations", "0.90 of the 1.95 times")

    def test_a_peer_that_is_faster(self):
        for each in self.parts["torch"]["rounds"]:
            each[list(PEERS)[1]]["tokens_per_s"] = 64000.0
        self.fails("1.28 times as fast as PyTorch over Gloo, a head's tokens together")


class Page(unittest.TestCase):
    def test_figures_of_an_earlier_run(self):
        bad = good_figures()
        bad["parts"]["balance"]["times"]["zigzag"] = times_of(150.0)
        with tempfile.TemporaryDirectory(prefix="long-") as directory:
            page, file = pathlib.Path(directory, "page.md"), pathlib.Path(directory, "figures.json")
            for given, status in ((good_figures(), 0), (bad, 1)):
                page.write_text("Before\n" + "\n".join(f"{each.begin}\nof 1999\n{each.end}" for each in long.SECTIONS.values()) + "\nAfter\n")
                file.write_text(json.dumps(given))
                words = ["long", "--from", str(file), "--write-docs", str(page)]
                with unittest.mock.patch.object(sys, "argv", words), contextlib.redirect_stdout(io.StringIO()) as said:
                    self.assertEqual(long.main(), status)
                self.assertEqual("FALLS SHORT" in said.getvalue(), status == 1)
                text = page.read_text()
                self.assertTrue(text.startswith("Before\n") and text.endswith("After\n"), text)
                self.assertNotIn("1999", text)
                self.assertIn("| contiguous | 150 | 150 | 150 | 0.667 | 0.667 | 0.667 | 0.67 |", text)
                self.assertIn("| backward | backward | yes | 100 | 35 | 140 | 101 | 1 | 0.97 |", text)
                self.assertIn("| 4 | 116736 | 3.80 |", text)
                self.assertEqual("- FALLS SHORT: The zigzag ring reaches 0.667" in text, status == 1)


if __name__ == "__main__":
    unittest.main()
