"""Shared by the tests of stretto-train's pipelines: a small model that trains in f64, and the comparison of two trainings."""
import collections
import json
import os
import pathlib
import re
import tempfile

from support.programs import ProgramTest, run_program

TRAIN = os.environ["TRAIN_PROGRAM"]
STEPS = 4
TOLERANCE = 1e-10
INTERLEAVED = ["--schedule", "interleaved", "--virtual-stages", 2]

Result = collections.namedtuple("Result", "output metrics")


class PipelineTest(ProgramTest):
    @classmethod
    def setUpClass(cls):
        cls.directory = cls.fresh_directory(cls)
        (cls.directory / "text").write_text("".join(f"{i} times {i} is {i * i}; " for i in range(1000)))
        cls.one_rank = cls.train("--nproc", 1)

    def setUp(self):
        """All tests of a class share a directory."""

    @classmethod
    def command(cls, log, *words):
        return [TRAIN, "--num-layers", 8, "--hidden-size", 16, "--num-attention-heads", 4, "--seq-length", 16, "--global-batch-size", 8,
                "--micro-batch-size", 1, "--train-iters", STEPS, "--lr-warmup-iters", 0, "--lr", 3e-3, "--dtype", "fp64", "--log-interval", 1,
                "--train-data", cls.directory / "text", "--log-dir", log, *words]

    @classmethod
    def train(cls, *words):
        log = pathlib.Path(tempfile.mkdtemp(dir=cls.directory))
        done = run_program(*cls.command(log, *words))
        if (done.returncode, done.stderr) != (0, ""):
            raise AssertionError(f"{words} ended with {done.returncode}: {done.stderr}")
        return Result(done.stdout, cls.metrics_in(log))

    @staticmethod
    def metrics_in(log):
        return [json.loads(line) for line in (log / "metrics.jsonl").read_text().splitlines()]

    @classmethod
    def refused_training(cls, *words):
        done = run_program(TRAIN, "--train-data", cls.directory / "text", "--num-layers", 4, "--global-batch-size", 4, "--micro-batch-size", 1, *words)
        assert done.returncode != 0 and len(done.stderr.splitlines()) == 1, done
        return done.stderr

    @staticmethod
    def difference(one, other):
        """The largest relative difference of two runs' losses, gradient norms and losses of validation; of all common steps."""
        steps = {metrics["step"]: metrics for metrics in one.metrics}
        pairs = [(steps[metrics["step"]], metrics) for metrics in other.metrics]
        found = [abs(a[name] / b[name] - 1) for a, b in pairs for name in ("loss", "grad_norm", "val_loss") if name in a or name in b]
        return max(found)

    @staticmethod
    def numbers(result):
        """Equal text means equal bits."""
        return [[repr(metrics.get(name)) for name in ("step", "loss", "grad_norm", "val_loss")] for metrics in result.metrics]

    def sample(self, result):
        return re.search(r"--- a sample ---\n(.*)\n----------------\n", result.output, re.S).group(1)
