"""The part of ./dev perf layouts --predict: the steps that stretto-plan layout predicts for 12 layouts of 2 and 4 ranks of one host, beside
the steps that train_speed measures.

train_speed --calibrate measures the machine with as many ranks first: products, attention and other kernels, and all-reduces. Nothing of
a layout's own step is measured for its prediction. All layouts train on the same sequences in a step.
"""
import json
import pathlib
import statistics
import tempfile

from perf.comparisons.programs import BIN, figures_of, last_json, model_text, run
from perf.comparisons.rounds import given_or, in_turn, median
from perf.pages.text import Verdict, rounds_text

LAYERS, HIDDEN, HEADS, TOKENS, VOCABULARY = 6, 384, 6, 256, 65  # train_speed's own
SEQUENCES, BATCH = 3, 24  # of a microbatch, and of a step
STEPS, WARMUP = 3, 4
LAYOUTS = {  # ranks, and what divides them
    "2: dp 2": (2, {}),
    "2: dp 2, ZeRO 3": (2, {"--zero": 3}),
    "2: tp 2": (2, {"--tp": 2}),
    "2: tp 2, sp": (2, {"--tp": 2, "--sp": True}),
    "2: pp 2, 1f1b": (2, {"--pp": 2, "--schedule": "1f1b"}),
    "2: pp 2, interleaved of 3": (2, {"--pp": 2, "--schedule": "interleaved", "--virtual-stages": 3}),
    "2: pp 2, zb-h1": (2, {"--pp": 2, "--schedule": "zb-h1"}),
    "4: dp 4": (4, {}),
    "4: dp 2, tp 2": (4, {"--tp": 2}),
    "4: dp 2, pp 2": (4, {"--pp": 2, "--schedule": "1f1b"}),
    "4: tp 2, pp 2": (4, {"--tp": 2, "--pp": 2, "--schedule": "1f1b"}),
    "4: pp 4": (4, {"--pp": 4, "--schedule": "1f1b"}),
}
MOST_OFF, MOST_MEDIAN_OFF, MOST_BEHIND = 0.15, 0.07, 0.05


def data_parallel(side):
    ranks, flags = LAYOUTS[side]
    return ranks // flags.get("--tp", 1) // flags.get("--pp", 1)


def measured_command(side, options):
    ranks, flags = LAYOUTS[side]
    words = [word for flag, value in flags.items() for word in ([flag] if value is True else [flag, value])]
    return [options.program, "--nproc", ranks, "--batch", SEQUENCES, "--microbatches", BATCH // SEQUENCES // data_parallel(side), "--warmup",
            given_or(options.warmup, WARMUP), "--steps", given_or(options.steps, STEPS), *words]


def predicted_command(side, cluster, system):
    ranks, flags = LAYOUTS[side]
    fixed = {"--tp": 1, "--pp": 1, "--zero": 1, "--recompute": "none", "--micro-batch-size": SEQUENCES} | flags
    fixed["--sp"] = "yes" if fixed.get("--sp") else "no"
    model = f"gpt:layers={LAYERS},hidden={HIDDEN},heads={HEADS},seq={TOKENS},vocab={VOCABULARY}"
    return [BIN / "stretto-plan", "layout", "--model", model, "--cluster", cluster, "--system", system, "--ranks", ranks, "--global-batch",
            BATCH, "--dtype", "fp32", "--top", 1, *[word for pair in fixed.items() for word in pair]]


def calibrated(ranks, options):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        run([options.program, "--nproc", ranks, "--calibrate", file.name])
        return json.loads(pathlib.Path(file.name).read_text())


def predicted(side, machine):
    """The milliseconds of a step."""
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for name in ("cluster", "system"):
            files[name] = pathlib.Path(folder) / f"{name}.json"
            files[name].write_text(json.dumps(machine[name]))
        return figures_of(predicted_command(side, files["cluster"], files["system"]))["layouts"][0]["ms"]


def measured(options):
    machines = {ranks: calibrated(ranks, options) for ranks in sorted({ranks for ranks, _ in LAYOUTS.values()})}
    predictions = {side: predicted(side, machines[ranks]) for side, (ranks, _) in LAYOUTS.items()}
    rounds = in_turn(list(LAYOUTS), options.rounds, lambda side: last_json(run(measured_command(side, options)).stdout))
    return [{"part": "predicted", "model": model_text(SEQUENCES, TOKENS, "microbatch"), "steps": given_or(options.steps, STEPS),
             "machines": {str(ranks): machine for ranks, machine in machines.items()}, "predicted_ms": predictions, "rounds": rounds}]


# ---- what the figures say

def steps_of(table):
    """The measured milliseconds of a step, by side."""
    return {side: median(table["rounds"], side, "step_ms") for side in LAYOUTS}


def verdicts(table):
    steps, predictions = steps_of(table), table["predicted_ms"]
    off = {side: predictions[side] / steps[side] - 1 for side in LAYOUTS}
    for side in LAYOUTS:
        yield Verdict(abs(off[side]) <= MOST_OFF, f"{side}: predicted {off[side] * 100:+.1f}% of the measured step, wanted within {MOST_OFF:.0%}.")
    middle = statistics.median(map(abs, off.values()))
    yield Verdict(middle <= MOST_MEDIAN_OFF, f"The median prediction is {middle:.1%} off, wanted at most {MOST_MEDIAN_OFF:.0%}.")
    for ranks in sorted({ranks for ranks, _ in LAYOUTS.values()}):
        sides = [side for side in LAYOUTS if LAYOUTS[side][0] == ranks]
        chosen, best = min(sides, key=predictions.get), min(sides, key=steps.get)
        behind = steps[chosen] / steps[best] - 1
        yield Verdict(behind <= MOST_BEHIND, f"Of {ranks} ranks, the layout predicted to be the fastest ({chosen}) takes {behind:.1%} longer "
                                             f"than the fastest one ({best}), wanted at most {MOST_BEHIND:.0%}.")


def rows(table):
    """The header, and a row for each layout."""
    steps, predictions = steps_of(table), table["predicted_ms"]
    header = ["ranks: layout", "predicted, ms", "measured, ms", "off"]
    return header, [[side, f"{predictions[side]:.0f}", f"{steps[side]:.0f}", f"{(predictions[side] / steps[side] - 1) * 100:+.1f}%"]
                    for side in LAYOUTS]


def heading(table):
    return (f"Predicted steps on one host, {BATCH} sequences a step; {table['model']}, fp32; {rounds_text(len(table['rounds']))} of "
            f"{table['steps']} steps")
