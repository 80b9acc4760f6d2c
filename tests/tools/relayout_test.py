"""stretto-train --relayout-at: training goes on in another layout, with the state from memory."""
import contextlib
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest

from pipeline_harness import STEPS, TOLERANCE, PipelineTest
from support.programs import clean_environment, in_turns, of_today

FOUR = ("--nproc", 4, "--micro-batch-size", 1)
ON_SIGNAL = ("--relayout-on-signal", "--tp 2 --pp 2", "--relayout-on-signal", "--tp 1 --zero 3 --pp 1")


@in_turns()
class Relayout(PipelineTest):
    def test_losses_stay_those_of_the_first_layout(self):
        whole = self.train(*FOUR)
        for zero in of_today(range(4)):
            with self.subTest(zero=zero):
                result = self.train(*FOUR, "--zero", zero, "--relayout-at", 1, "--tp 2 --pp 2", "--relayout-at", 3, "--tp 1 --pp 1 --zero 1")
                self.assertEqual([metrics["step"] for metrics in result.metrics], list(range(1, STEPS + 1)))
                self.assertLess(self.difference(whole, result), TOLERANCE)
                self.assertEqual(self.sample(result), self.sample(whole))
                self.assertRegex(result.output, r"Changes the layout behind step 1 in [0-9.]+ s; rank 0 has received [0-9.]+ \w+\.\n"
                                                r"4 ranks: dp 1 x tp 2 x pp 2; 8 sequences")
                self.assertIn("4 ranks: dp 4 x tp 1 x pp 1; 8 sequences x 16 tokens a step = 2 microbatches", result.output.split("behind step 3", 1)[1])
        other_seed = self.train(*FOUR, "--seed", 2, "--relayout-at", 1, "--tp 2 --pp 2")
        self.assertGreater(self.difference(whole, other_seed), 1e-4)  # the control: another training

    def test_losses_stay_with_layers_of_smollm2(self):
        """Its 9 heads of queries and 3 of keys and values are divided by 3 tensor-parallel ranks, and not by 2."""
        six = ("--nproc", 6, "--zero", 3, "--global-batch-size", 6, "--train-iters", 2, "--sample-length", 1, "--seq-length", 8,
               "--model", "llama", "--num-layers", 6, "--hidden-size", 576, "--num-attention-heads", 9, "--num-key-value-heads", 3, "--ffn-hidden-size", 1536, "--rope-theta", 100000)
        whole, result = self.train(*six), self.train(*six, "--relayout-at", 1, "--tp 3 --pp 2")
        self.assertIn("6 ranks: dp 1 x tp 3 x pp 2", result.output.split("Changes the layout behind step 1", 1)[1])
        self.assertLess(self.difference(whole, result), TOLERANCE)
        other_seed = self.train(*six, "--nproc", 2, "--zero", 0, "--seed", 2)
        self.assertGreater(self.difference(whole, other_seed), 1e-4)  # the control: another training

    def test_schedules_and_parts_change(self):
        result = self.train("--nproc", 4, "--pp", 2, "--pipeline-layers", "3,5", "--relayout-at", 1,
                            "--pp 4 --schedule interleaved --virtual-stages 2", "--relayout-at", 2, "--pp 2 --tp 2 --sp --schedule zb-h1 --recompute full",
                            "--relayout-at", 3, "--pp 1 --sp=false --cp 2 --tp 1 --schedule 1f1b")
        self.assertLess(self.difference(self.one_rank, result), TOLERANCE)

    def test_it_goes_on_from_a_checkpoint_in_the_layout_of_its_step(self):
        flags = [*FOUR, "--relayout-at", 2, "--tp 2 --pp 2"]
        whole = self.train(*flags)
        save = self.directory / "save"
        self.train(*flags, "--save", save, "--save-interval", 1)
        for step in (1, 2, 3):
            with self.subTest(step=step):
                (save / "latest").write_text(f"step_{step:08}\n")
                result = self.train(*flags, "--save", save, "--resume")
                self.assertEqual([metrics["step"] for metrics in result.metrics], list(range(step + 1, STEPS + 1)))
                self.assertLess(self.difference(whole, result), TOLERANCE)
                self.assertEqual("Changes the layout" in result.output, step < 2)
                first = "dp 4 x tp 1 x pp 1" if step < 2 else "dp 1 x tp 2 x pp 2"
                self.assertIn(f"4 ranks: {first}", result.output.split("\n", 2)[1])

    def test_a_signal_brings_the_next_layout(self):
        constant = ["--lr", 1e-3, "--min-lr", 1e-3]
        with self.running(*constant, *ON_SIGNAL) as (run, said, log):
            for number, whom in enumerate((run.pid, self.children_of(run.pid)[1], run.pid)):
                self.ask(whom)
                words = ("dp 1 x tp 2 x pp 2", "dp 4 x tp 1 x pp 1", "this is the last one of --relayout-on-signal")[number]
                self.until(lambda: words in said().split("Changes the layout", 1)[-1], said)
        self.assertEqual(said().count("Changes the layout behind step"), 2)
        metrics = self.metrics_in(log)
        self.assertEqual([each["step"] for each in metrics], list(range(1, len(metrics) + 1)))
        whole = self.train(*FOUR, *constant, "--train-iters", len(metrics))
        for one, other in zip(metrics, whole.metrics):
            self.assertAlmostEqual(one["loss"], other["loss"], delta=1e-6)

    def test_each_of_several_signals_is_answered(self):
        with self.running(*ON_SIGNAL) as (run, said, _):
            with self.stopped_ranks(run.pid):  # within a step
                for _ in range(4):
                    self.ask(run.pid)
            self.until(lambda: said().count("this is the last one of --relayout-on-signal") == 2, said)
            text = said()
            self.assertEqual(text.count("Changes the layout behind step"), 1)
            self.assertIn("dp 4 x tp 1 x pp 1", text.split("Changes the layout", 1)[1])
            self.assertEqual(text.count("--relayout-on-signal '--tp 2 --pp 2' is passed over."), 1)

    def test_ranks_that_start_again_begin_in_the_layout_that_signals_asked_for(self):
        save = ("--save", self.directory / "restarts", "--save-interval", 1, "--keep", 1, "--max-restarts", 1)
        with self.running(*ON_SIGNAL, *save) as (run, said, _):
            self.ask(run.pid)
            self.until(lambda: "Changes the layout" in said(), said)
            os.kill(self.children_of(run.pid)[1], signal.SIGKILL)
            begins = "SIGUSR2 has come once so far: training begins with --relayout-on-signal '--tp 2 --pp 2'."
            self.until(lambda: begins in said(), said)
            self.assertIn("dp 1 x tp 2 x pp 2", said().split(begins)[0].rsplit("4 ranks: ", 1)[1])
            self.ask(run.pid)
            self.until(lambda: said().count("Changes the layout") == 2, said)
            self.assertIn("dp 4 x tp 1 x pp 1", said().rsplit("Changes the layout", 1)[1])

    @contextlib.contextmanager
    def running(self, *flags):
        """Four ranks that train without an end: their parent, a function that returns what they have said, and their directory."""
        log = pathlib.Path(tempfile.mkdtemp(dir=self.directory))
        words = self.command(log, *FOUR, "--train-iters", 1_000_000, *flags)
        with open(log / "output", "w") as output, subprocess.Popen([*map(str, words)], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                                                   env=clean_environment()) as run:
            try:
                said = lambda: (log / "output").read_text()
                self.until(lambda: len(self.reported(log)) > 5, said)
                yield run, said, log
                run.terminate()
                self.assertEqual(run.wait(60), 0, said())
            finally:
                run.kill()

    @contextlib.contextmanager
    def stopped_ranks(self, parent):
        ranks = self.children_of(parent)
        for rank in ranks:
            os.kill(rank, signal.SIGSTOP)
        yield
        for rank in ranks:
            os.kill(rank, signal.SIGCONT)

    def ask(self, process):
        os.kill(process, signal.SIGUSR2)
        time.sleep(1.1)  # signals within a second count once

    def until(self, condition, said):
        deadline = time.monotonic() + 60
        while not condition():
            self.assertLess(time.monotonic(), deadline, said())
            time.sleep(0.02)

    def reported(self, log):
        metrics = log / "metrics.jsonl"
        return metrics.read_text().splitlines() if metrics.exists() else []

    def children_of(self, parent):
        return [int(child) for child in pathlib.Path("/proc", str(parent), "task", str(parent), "children").read_text().split()]

    def test_what_cannot_be_had_is_refused_before_training(self):
        for words, sentence in [
                (["--relayout-at", 4, "--tp 2"], f"--relayout-at 4 is not between step 0 and the last one, {STEPS}"),
                (["--relayout-at", 2, "--tp 2", "--relayout-at", 2, "--tp 1"], "--relayout-at 2 is not between step 2 and"),
                (["--relayout-at", 1, "--tp 3"], "--relayout-at 1 '--tp 3': 4 ranks do not divide into groups of --tp 3"),
                (["--relayout-on-signal", "--tp 3"], "--relayout-on-signal '--tp 3': 4 ranks do not divide into groups of --tp 3"),
                (["--relayout-on-signal", "--tp 2", "--elastic", "--save", self.directory / "none"], "--relayout-on-signal does not go with --elastic"),
                (["--relayout-at", 1, "--tp 2", "--relayout-on-signal", "--tp 1"], "--relayout-at 1 and --relayout-on-signal each say when"),
                (["--relayout-at", 1, "--lr 1"], "--relayout-at 1 '--lr 1': --lr is not of a layout"),
                (["--relayout-at", 1, "--dtype bf16"], "--relayout-at 1 '--dtype bf16': --dtype is not of a layout"),
                (["--relayout-at", 1, "--prefetch 4"], "--relayout-at 1 '--prefetch 4': --prefetch 4 has no effect with --zero 1"),
                (["--no-overlap", "--relayout-at", 1, "--zero 3 --prefetch 4"], "--prefetch 4 has no effect with --no-overlap"),
                (["--delay", 1, "--relayout-at", 1, "--zero 2 --prefetch 4"], "--prefetch 4 has no effect with --delay 1"),
                (["--cp", 2, "--relayout-at", 1, "--cp 1 --cp-layout striped"], "--cp-layout striped divides sequences over the ranks of --cp, and --cp 1"),
                (["--relayout-at", 1, "--sp"], "--relayout-at 1 '--sp': Sequence parallelism"),
                (["--relayout-at", 1, "--pp 2 --schedule 2bw"], "--relayout-at 1 '--pp 2 --schedule 2bw': "),
                (["--relayout-at", 1, "--tp 2", "--layout", "auto", "--global-batch-size", 8], "does not go with --layout auto"),
                (["--relayout-at", 1, "--tp 2", "--elastic", "--save", self.directory / "none"], "does not go with --elastic"),
                (["--relayout-at", 1, "--tp 2", "--trace", self.directory / "trace"], "does not go with --trace"),
                (["--relayout-at", 1, "--tp 2", "--replicas", 2, "--diloco", 2], "does not go with --diloco"),
                (["--relayout-at", 1, "--tp 2", "--optimizer", "onebit-adam"], "does not go with --optimizer onebit-adam"),
                (["--relayout-at", 1, "--tp 2", "--optimizer", "demo"], "does not go with --optimizer demo"),
                (["--relayout-at", 1, "--tp 2", "--powersgd", 2], "does not go with --powersgd"),
                (["--relayout-at", 1, "--tp 2", "--offload", f"optimizer={self.directory}"], "does not go with --offload"),
                (["--relayout-at", 1, "--tp 2", "--zero", 3, "--qgz", "int8", "--qgz-error-feedback"], "does not go with --qgz-error-feedback"),
                (["--relayout-at", 1, "--tp 2", "--dry-run"], "does not go with --dry-run"),
                (["--relayout-at", 1, "--zero 3", "--check-replicas", 1], "--check-replicas 1 compares copies, and --zero 3 keeps none")]:
            with self.subTest(words):
                self.assertIn(sentence, self.refused_training(*FOUR, "--global-batch-size", 8, "--train-iters", STEPS, *words))


if __name__ == "__main__":
    unittest.main()
