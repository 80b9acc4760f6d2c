"""./dev perf layouts --predict: what it runs, and its verdicts on figures, with a control that fails beside each. Nothing is measured."""
import argparse
import os
import pathlib
import sys
import unittest

ROOT = pathlib.Path(os.environ["ROOT"])
sys.path.insert(0, str(ROOT))
from perf.comparisons import layouts, predicted_layouts  # noqa: E402
from perf.comparisons.predicted_layouts import BATCH, LAYOUTS, SEQUENCES  # noqa: E402


class Commands(unittest.TestCase):
    def test_all_layouts_train_on_the_same_sequences(self):
        options = argparse.Namespace(program="train_speed", steps=None, warmup=None)
        for where, layouts_there in LAYOUTS.items():
            self.assertEqual(len(layouts_there), 12, where)
            for side, (ranks, flags) in layouts_there.items():
                words = predicted_layouts.measured_command(ranks, flags, 0, options)
                microbatches = words[words.index("--microbatches") + 1]
                self.assertEqual(microbatches * SEQUENCES * predicted_layouts.data_parallel(ranks, flags), BATCH, side)

    def test_the_prediction_is_of_the_same_layout(self):
        words = predicted_layouts.predicted_command(*LAYOUTS["one_host"]["2: tp 2, sp"], "cluster", "system")
        flags = dict(zip(words[2::2], words[3::2]))
        self.assertEqual([flags[flag] for flag in ("--tp", "--pp", "--sp", "--ranks", "--global-batch", "--micro-batch-size")],
                         [2, 1, "yes", 2, BATCH, SEQUENCES])


class Verdicts(unittest.TestCase):
    def setUp(self):
        steps = {side: 1000.0 + 10 * number for number, side in enumerate(LAYOUTS["one_host"])}
        self.table = {"part": "predicted", "where": "one_host", "predicted_ms": dict(steps), "model": "a model", "steps": 3,
                      "rounds": [{side: {"step_ms": ms, "tokens_per_s": 1.0} for side, ms in steps.items()}]}

    def fails(self, *parts):
        texts = [verdict.text for verdict in layouts.verdicts(self.table) if not verdict.holds]
        self.assertEqual(len(texts), len(parts), texts)
        for part, text in zip(parts, texts):
            self.assertIn(part, text)

    def test_good_figures_hold(self):
        self.fails()
        self.assertEqual(len(layouts.verdicts(self.table)), 12 + 1 + 2)

    def test_a_prediction_that_misses(self):
        self.table["predicted_ms"]["4: pp 4"] *= 1.16
        self.fails("4: pp 4: predicted +16.0%")

    def test_predictions_that_miss_a_little(self):
        for side in LAYOUTS["one_host"]:
            self.table["predicted_ms"][side] *= 1.08
        self.fails("The median prediction is 8.0% off")

    def test_a_wrong_choice(self):
        self.table["rounds"][0]["2: dp 2, ZeRO 3"]["step_ms"] = 940.0
        self.fails("Of 2 ranks, the layout predicted to be the fastest (2: dp 2) takes 6.4% longer")

    def test_rows(self):
        header, rows = predicted_layouts.rows(self.table)
        self.assertEqual((len(rows), rows[0]), (12, ["2: dp 2", "1000", "1000", "+0.0%"]))
        self.assertEqual(len(header), len(rows[0]))
        self.assertIn("one host, 24 sequences a step", predicted_layouts.heading(self.table))
        self.assertIn("4 hosts x 2 ranks, links of 1gbit", predicted_layouts.heading({**self.table, "rate": "1gbit"}))


if __name__ == "__main__":
    unittest.main()
