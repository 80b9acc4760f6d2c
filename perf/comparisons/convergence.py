"""Compares where training in fewer bits ends: the demo's model on 2 ranks, with values and gradients of ZeRO-3 quantized (ZeRO++),
and in 16 bits.

Each way trains the same steps on the same text, and its validation loss after the last step is compared with that of fp32. Runs are
deterministic, so that each is made once. Exits 1 if a way ends too far above.
"""
import json
import pathlib
import sys
import tempfile

from perf.comparisons.harness import Comparison, Table, flag
from perf.comparisons.programs import ROOT, run
from perf.pages.text import Verdict

ZERO_PP = ["--zero", 3, "--qwz", "int8", "--qgz", "int4"]
BASE = "ZeRO-3 in fp32"
WAYS = {  # flags, and how far above BASE it may end
    BASE: (["--zero", 3], None),
    "ZeRO++: values in int8, gradients in int4": (ZERO_PP, 0.02),
    "the same with error feedback": ([*ZERO_PP, "--qgz-error-feedback"], 0.01),
    "fp16, loss scaled": (["--dtype", "fp16"], 0.01),
    "fp16, gradients in fp16": (["--dtype", "fp16", "--grad-dtype", "fp16"], None),
    "bf16": (["--dtype", "bf16"], None),
    "bf16, gradients in bf16": (["--dtype", "bf16", "--grad-dtype", "bf16"], None),
}
DEMO = ["--nproc", 2, "--num-layers", 4, "--hidden-size", 192, "--num-attention-heads", 6, "--seq-length", 128, "--micro-batch-size", 8,
        "--global-batch-size", 16, "--lr", 3e-3, "--lr-warmup-iters", 50, "--weight-decay", 0.1]


def measured(options):
    losses = {}
    for way, (words, _) in WAYS.items():
        with tempfile.TemporaryDirectory() as directory:
            run([options.program, *DEMO, "--train-data", options.train_data, "--train-iters", options.steps, "--log-dir", directory, *words])
            lines = (pathlib.Path(directory) / "metrics.jsonl").read_text().splitlines()
        losses[way] = json.loads(lines[-1])["val_loss"]
        print(f"{way}: {losses[way]:.4f}", file=sys.stderr)
    yield {"steps": options.steps, "losses": losses}


def tables(figures):
    losses = figures["losses"]
    yield Table("", ["way", "validation loss, nats a byte", "above fp32"],
                [[way, f"{loss:.4f}", f"{loss - losses[BASE]:+.4f}"] for way, loss in losses.items()])


def verdicts(figures):
    for way, (_, most) in WAYS.items():
        above = figures["losses"][way] - figures["losses"][BASE]
        if most:
            yield Verdict(above <= most, f"{way} ends {above:+.4f} nats from fp32, wanted at most {most} above.")


Comparison("convergence", __doc__, measured, tables, verdicts, page="docs/training.md", program="stretto-train",
           about=lambda figures: f"the demo's model after {figures['steps']} steps on the King James text, 2 ranks",
           flags=(flag("--steps", 600, "steps of each run"),
                  flag("--train-data", str(ROOT / "build/data/king_james.txt"), told=False)))
