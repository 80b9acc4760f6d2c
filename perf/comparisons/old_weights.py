"""Compares where training ends that reads old weights: pipelines that are never emptied beside those that are, on 4 stages.

Each way trains the same steps on the same text, once for each seed of the weights, and evaluates after the last step. 2BW lacks an
update on all stages; PipeDream and PipeMare update after each microbatch and lack 3 to 0 updates, so that they are compared with one
rank that updates after each microbatch and lacks none. 1F1B clips by the norm of all stages, the others by that of each stage. Nothing
is tuned: a way has the learning rate of the one that it is compared with. Exits 1 if the delay of an update costs more with Muon than
with AdamW, whatever the sign: published runs of larger models say that it costs less (arXiv 2606.30634).
"""
import json
import pathlib
import statistics
import sys
import tempfile

from perf.comparisons.harness import Comparison, Table, flag
from perf.comparisons.programs import ROOT, run
from perf.pages.text import Verdict

STAGES = 4
STAGED = ["--nproc", STAGES, "--pp", STAGES]
MUON = ["--optimizer", "muon", "--muon-scale", "moonlight"]
EACH = "each microbatch, no delay"
WAYS = {  # flags, and the way without old weights that it is compared with
    "1f1b, AdamW": ([*STAGED, "--schedule", "1f1b"], None),
    "2bw, AdamW": ([*STAGED, "--schedule", "2bw"], "1f1b, AdamW"),
    "1f1b, Muon": ([*STAGED, "--schedule", "1f1b", *MUON], None),
    "2bw, Muon": ([*STAGED, "--schedule", "2bw", *MUON], "1f1b, Muon"),
    EACH: (["--nproc", 1, "--schedule", "pipedream"], None),
    "pipedream": ([*STAGED, "--schedule", "pipedream"], EACH),
    "pipedream-vertical": ([*STAGED, "--schedule", "pipedream-vertical"], EACH),
    "pipemare": ([*STAGED, "--schedule", "pipemare"], EACH),
}
MODEL = ["--model", "llama", "--untied", "--num-layers", 4, "--hidden-size", 64, "--num-attention-heads", 4, "--seq-length", 64, "--micro-batch-size", 4,
         "--global-batch-size", 16, "--lr", 3e-3, "--weight-decay", 0.1]


def final_loss(options, words, seed):
    with tempfile.TemporaryDirectory() as directory:
        run([options.program, *words, *MODEL, "--train-data", options.train_data, "--train-iters", options.steps, "--lr-warmup-iters", options.steps // 8,
             "--seed", seed, "--log-dir", directory])
        return json.loads((pathlib.Path(directory) / "metrics.jsonl").read_text().splitlines()[-1])["val_loss"]


def measured(options):
    figures = {"steps": options.steps, "losses": {way: [] for way in WAYS}}
    for seed in range(1, options.seeds + 1):
        for way, (words, _) in WAYS.items():
            figures["losses"][way].append(final_loss(options, words, seed))
            print(f"seed {seed}, {way}: {figures['losses'][way][-1]:.4f}", file=sys.stderr)
        yield figures


def gaps(figures, way):
    """By seed."""
    losses = figures["losses"]
    return [loss - base for loss, base in zip(losses[way], losses[WAYS[way][1]])]


def tables(figures):
    rows = []
    for way, (_, base) in WAYS.items():
        losses = figures["losses"][way]
        found = gaps(figures, way) if base else []
        rows.append([way, f"{statistics.mean(losses):.4f}", f"{max(losses) - min(losses):.4f}", base or "-", f"{statistics.mean(found):+.4f}" if base else "-",
                     f"{min(found):+.4f} to {max(found):+.4f}" if base else "-"])
    yield Table("", ["way", "validation loss, nats a byte", "spread", "beside", "above it, same seed", "from, to"], rows)


def verdicts(figures):
    adamw, muon = (abs(statistics.mean(gaps(figures, f"2bw, {optimizer}"))) for optimizer in ("AdamW", "Muon"))
    yield Verdict(muon <= adamw, f"A delay of one update moves the loss by {muon:.4f} with Muon and by {adamw:.4f} with AdamW, wanted no more with Muon.")


Comparison("old-weights", __doc__, measured, tables, verdicts, page="docs/pipeline.md", program="stretto-train",
           about=lambda figures: f"a Llama of 4 layers, 64 wide, on the King James text: {figures['steps']} steps of 4 microbatches of 4 sequences of 64 tokens, "
                                 f"{STAGES} stages; means of {len(figures['losses'][EACH])} seeds of the weights",
           flags=(flag("--steps", 300, "steps of each run"), flag("--seeds", 3, "seeds of the weights"),
                  flag("--train-data", str(ROOT / "build/data/king_james.txt"), told=False)))
