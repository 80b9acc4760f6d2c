"""The part of ./dev perf layouts --predict: the steps that stretto-plan layout predicts, beside the steps that train_speed measures: of 12
layouts of 2 and 4 ranks of one host, and of 12 of 4 hosts x 2 ranks that are network namespaces.

train_speed --calibrate measures the machine with as many ranks: products, attention and other kernels, and all-reduces. Nothing of a
layout's own step is measured for its prediction. The machine's speed changes, so it is calibrated in every round, and a prediction is the
median of theirs. All layouts train on the same sequences in a step.
"""
import json
import pathlib
import statistics
import tempfile

from perf.comparisons import namespaces
from perf.comparisons.harness import Comparison, Table, given_or, in_turn, median
from perf.comparisons.programs import BIN, figures_of, last_json, model_text, run
from perf.pages.text import Verdict, rounds_text

LAYERS, HIDDEN, HEADS, TOKENS, VOCABULARY = 6, 384, 6, 256, 65  # train_speed's own
SEQUENCES, BATCH = 3, 24  # of a microbatch, and of a step
HOSTS, RANKS_PER_HOST = 4, 2


LAYOUTS = {  # ranks: what divides them
    "one_host": ["2: dp 2", "2: dp 2, ZeRO 3", "2: tp 2", "2: tp 2, sp", "2: pp 2, 1f1b", "2: pp 2, interleaved of 3", "2: pp 2, zb-h1",
                 "4: dp 4", "4: dp 2, tp 2", "4: dp 2, pp 2", "4: tp 2, pp 2", "4: pp 4"],
    "between_hosts": ["8: dp 8", "8: dp 8, ZeRO 3", "8: dp 4, tp 2", "8: dp 4, tp 2, sp", "8: dp 4, pp 2", "8: dp 4, pp 2, interleaved of 3",
                      "8: dp 2, pp 4", "8: dp 2, pp 4, zb-h1", "8: dp 2, tp 2, pp 2", "8: tp 2, pp 4", "8: tp 2, pp 4, gpipe",
                      "8: tp 2, pp 4, zb-h1"],
}
MOST_OFF, MOST_MEDIAN_OFF, MOST_BEHIND = 0.15, 0.07, 0.05


def ranks_of(layout):
    return int(layout.split(":")[0])


def flags_of(layout):
    """A layout's flags of train_speed, which stretto-plan has as well."""
    found = {}
    for part in layout.split(": ")[1].split(", "):
        name, _, value = part.partition(" ")
        if name in ("tp", "pp", "ZeRO"):
            found[f"--{name.lower()}"] = int(value)
        elif name == "sp":
            found["--sp"] = True
        elif name != "dp":
            found |= {"--schedule": name} | ({"--virtual-stages": int(value.removeprefix("of "))} if value else {})
    return {"--schedule": "1f1b", **found} if "--pp" in found else found


def measured_command(layout, nproc, options):
    flags = flags_of(layout)
    words = [word for flag, value in flags.items() for word in ([flag] if value is True else [flag, value])]
    data_parallel = ranks_of(layout) // flags.get("--tp", 1) // flags.get("--pp", 1)
    return [options.program, "--nproc", nproc, "--batch", SEQUENCES, "--microbatches", BATCH // SEQUENCES // data_parallel,
            "--warmup", given_or(options.warmup, 4), "--steps", given_or(options.steps, 3), *words]


def predicted_command(layout, cluster, system):
    fixed = {"--tp": 1, "--pp": 1, "--zero": 1, "--recompute": "none", "--micro-batch-size": SEQUENCES} | flags_of(layout)
    fixed["--sp"] = "yes" if fixed.get("--sp") else "no"
    model = f"gpt:layers={LAYERS},hidden={HIDDEN},heads={HEADS},seq={TOKENS},vocab={VOCABULARY}"
    return [BIN / "stretto-plan", "layout", "--model", model, "--cluster", cluster, "--system", system, "--ranks", ranks_of(layout), "--global-batch",
            BATCH, "--dtype", "fp32", "--top", 1, *[word for pair in fixed.items() for word in pair]]


def calibrated(nproc, start, options):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        start([options.program, "--nproc", nproc, "--calibrate", file.name])
        return json.loads(pathlib.Path(file.name).read_text())


def predicted(layout, machine):
    """The milliseconds of a step."""
    with tempfile.TemporaryDirectory() as folder:
        files = [pathlib.Path(folder) / f"{name}.json" for name in ("cluster", "system")]
        for file in files:
            file.write_text(json.dumps(machine[file.stem]))
        return figures_of(predicted_command(layout, *files))["layouts"][0]["ms"]


def table_of(where, start, nproc_of, about, options):
    """start runs a command and returns its output; nproc_of(ranks) is the --nproc with which that makes so many ranks."""
    layouts = LAYOUTS[where]
    machines = {ranks: [] for ranks in sorted(set(map(ranks_of, layouts)))}

    def calibrate():
        for ranks, those in machines.items():
            those.append(calibrated(nproc_of(ranks), start, options))

    rounds = in_turn(layouts, options.rounds, lambda each: last_json(start(measured_command(each, nproc_of(ranks_of(each)), options))), calibrate)
    predictions = {each: statistics.median(predicted(each, machine) for machine in machines[ranks_of(each)]) for each in layouts}
    return {"where": where, **about, "steps": given_or(options.steps, 3), "machines": {str(ranks): those for ranks, those in machines.items()},
            "predicted_ms": predictions, "rounds": rounds}


def measured(options):
    found = []
    if options.only != "between-hosts":
        found.append(table_of("one_host", lambda command: run(command).stdout, lambda ranks: ranks, {}, options))
        yield {"tables": found}
    for rate in options.rates if options.only != "one-host" else []:
        with namespaces.Network([RANKS_PER_HOST] * HOSTS, rate) as network:
            found.append(table_of("between_hosts", network.output_of, lambda _: 0, {"rate": rate}, options))
        yield {"tables": found}


def steps_of(table):
    """The measured milliseconds of a step, by side; and by how much of them the predictions are off."""
    steps = {side: median(table["rounds"], side, "step_ms") for side in LAYOUTS[table["where"]]}
    return steps, {side: table["predicted_ms"][side] / ms - 1 for side, ms in steps.items()}


def where_text(table):
    return f"{HOSTS} hosts x {RANKS_PER_HOST} ranks, links of {table['rate']}" if "rate" in table else "one host"


def verdicts(figures):
    for table in figures["tables"]:
        (steps, off), predictions, layouts = steps_of(table), table["predicted_ms"], LAYOUTS[table["where"]]
        for side in layouts:
            yield Verdict(abs(off[side]) <= MOST_OFF, f"{side}: predicted {off[side] * 100:+.1f}% of the measured step, wanted within {MOST_OFF:.0%}.")
        middle = statistics.median(map(abs, off.values()))
        yield Verdict(middle <= MOST_MEDIAN_OFF, f"The median prediction is {middle:.1%} off, wanted at most {MOST_MEDIAN_OFF:.0%}.")
        for ranks in sorted(set(map(ranks_of, layouts))):
            sides = [side for side in layouts if ranks_of(side) == ranks]
            chosen, best = min(sides, key=predictions.get), min(sides, key=steps.get)
            behind = steps[chosen] / steps[best] - 1
            yield Verdict(behind <= MOST_BEHIND, f"Of {ranks} ranks, the layout predicted to be the fastest ({chosen}) takes {behind:.1%} longer "
                                                 f"than the fastest one ({best}), wanted at most {MOST_BEHIND:.0%}.")


def notes(figures):
    for table in figures["tables"]:
        off = [abs(part) for part in steps_of(table)[1].values()]
        yield f"{where_text(table)}: the predictions of {len(off)} layouts are {statistics.median(off):.1%} off in the median, {max(off):.1%} at most"


def tables(figures):
    for table in figures["tables"]:
        steps, off = steps_of(table)
        title = (f"Predicted steps on {where_text(table)}, {BATCH} sequences a step; {model_text(SEQUENCES, TOKENS, 'microbatch')}, fp32; "
                 f"{rounds_text(len(table['rounds']))} of {table['steps']} steps")
        yield Table(title, ["ranks: layout", "predicted, ms", "measured, ms", "off"],
                    [[side, f"{table['predicted_ms'][side]:.0f}", f"{steps[side]:.0f}", f"{off[side] * 100:+.1f}%"] for side in steps], in_page=False)


PREDICTED = Comparison("layouts predicted", __doc__, measured, tables, verdicts, notes=notes, section=lambda options: "./dev perf layouts --predict")
