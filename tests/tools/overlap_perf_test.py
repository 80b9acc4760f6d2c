"""stretto-perf overlap and stretto-train --comm-report, from outside: every case runs its step all four ways and changes no bit."""
import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

PERF = os.environ["PERF_PROGRAM"]
TRAIN = os.environ["TRAIN_PROGRAM"]
CASES = ["dp", "zero3", "tp", "ring_pass", "all_to_all"]
TIMES = ["t_full_ms", "t_compute_ms", "t_comm_ms", "t_serial_ms", "exposed_ms", "efficiency"]
TINY = ["--layers", "3", "--hidden", "64", "--rows", "64", "--rounds", "1", "--steps", "1"]


def run(*words, **variables):
    return subprocess.run([str(word) for word in words], capture_output=True, encoding="utf-8", errors="replace", timeout=120,
                          env={**os.environ, **variables})


class Overlap(unittest.TestCase):
    def measure(self, case, *words):
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "overlap.json"
            done = run(PERF, "overlap", "--case", case, *TINY, "--json", path, *words)
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(path.read_text()), done.stdout

    def check(self, figures):
        for name in TIMES:
            self.assertIn(name, figures)
        for name in TIMES[:4]:
            self.assertGreater(figures[name], 0, name)
        self.assertAlmostEqual(figures["exposed_ms"], figures["t_full_ms"] - figures["t_compute_ms"], places=6)
        shorter = min(figures["t_compute_ms"], figures["t_comm_ms"])
        self.assertAlmostEqual(figures["efficiency"],
                               (figures["t_compute_ms"] + figures["t_comm_ms"] - figures["t_full_ms"]) / shorter, places=6)

    def test_every_case_keeps_its_bits(self):
        for case in CASES:
            for ranks in (1, 2) if case == "dp" else (2,):
                with self.subTest(case=case, ranks=ranks):
                    figures, _ = self.measure(case, "--nproc", ranks)
                    self.check(figures)
                    self.assertEqual((figures["case"], figures["ranks"], figures["same_bits"]), (case, ranks, True))
                    self.assertEqual(figures["bytes_sent"] > 0, ranks > 1)

    def test_links_are_as_slow_as_the_ratio_says(self):
        figures, _ = self.measure("dp", "--nproc", 2, "--ratio", 8)
        rate = re.fullmatch(r"inter=([\d.]+)MB/s,20us", figures["links"])
        self.assertGreaterEqual(figures["t_comm_ms"], 0.8 * figures["bytes_sent"] / float(rate[1]) / 1e3)

    def test_without_overlap(self):
        figures, _ = self.measure("zero3", "--nproc", 2, "--ratio", 4, "--no-overlap")
        self.assertFalse(figures["overlap"])
        self.assertTrue(figures["same_bits"])

    def test_errors_are_one_sentence(self):
        for words, sentence in [
                (["--case", "pipeline"], "pipeline"),
                (["--case", "dp", "--ratio", "0.5"], "give --nproc N"),
                (["--case", "dp", "--nproc", "2", "--ratio", "0.5", "--links", "inter=1MB/s,1us"], "both say how fast links are"),
                (["--case", "ring_pass", "--nproc", "2", "--rows", "63"], "--rows 63 do not divide into 16 tiles"),
                (["--case", "dp", "--nproc", "2", "--layers", "0"], "--layers 0")]:
            with self.subTest(words=words):
                done = run(PERF, "overlap", *words)
                self.assertEqual(done.returncode, 1)
                self.assertIn(sentence, done.stderr)
                self.assertEqual(done.stdout, "")

    def test_the_trainer_reports_its_own_step(self):
        with tempfile.TemporaryDirectory() as directory:
            text = pathlib.Path(directory) / "text"
            text.write_text("In the beginning was the word. " * 200)
            shape = ["--num-layers", "2", "--hidden-size", "32", "--num-attention-heads", "2", "--seq-length", "16",
                     "--micro-batch-size", "1", "--global-batch-size", "2", "--train-iters", "4", "--zero", "0"]
            losses = []
            for report in ([], ["--comm-report"]):
                log = pathlib.Path(directory) / f"log{len(report)}"
                done = run(TRAIN, "--nproc", 2, "--train-data", text, *shape, "--log-dir", log, *report, STRETTO_LOG="info")
                self.assertEqual(done.returncode, 0, done.stderr)
                # Three steps are measured, and ranks agree.
                self.assertEqual(len(re.findall(r"units are gathered in the next forward: a step of [\d.]+ ms is expected", done.stderr)), 1)
                losses.append([json.loads(line)["loss"] for line in (log / "metrics.jsonl").read_text().splitlines()])
                self.assertEqual((log / "comm_report.json").exists(), bool(report))
                self.assertEqual("Efficiency of overlap" in done.stdout, bool(report))
            self.check(json.loads((log / "comm_report.json").read_text()))
            self.assertEqual(*losses)


if __name__ == "__main__":
    unittest.main()
