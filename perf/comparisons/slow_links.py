"""Compares the time to a loss of ways to train over slow links: the demo's model on 4 hosts with 2 ranks each. Takes root.

Each way trains the same steps on the same text, once for each seed of the weights, on this host: losses do not depend on links. Streaming
DiLoCo also trains 3 times as many, since its steps take so little time. Then
network namespaces stand for hosts, a token bucket holds every end of a cable between them to the rate, and each way trains some steps
at each rate: the mean of the last ones, a whole round of DiLoCo, is what a step takes. A loss after n steps comes after n such times;
the steps of 1-bit Adam before its freeze take AdamW's. Between two hosts of one rank, steps with late sums are compared with the longer
of computation and communication. Exits 1 if at 100 Mb/s 1-bit Adam takes fewer than 3.3 times the steps of AdamW
in the same time, if a step of streaming DiLoCo takes over 1.05 times one without any communication between hosts, if either ends over
0.02 above AdamW's loss, if streaming DiLoCo with more steps does not reach AdamW's last loss + 0.02 in less time than AdamW, or if a step with late sums takes over 1.1 times as long as the longer of both.
"""
import contextlib
import json
import pathlib
import statistics
import sys
import tempfile

from perf.comparisons import namespaces
from perf.comparisons.harness import Comparison, Table, flag
from perf.comparisons.programs import ROOT, machine, read_json, run
from perf.pages.chart import Curve, LinearAxis, LogAxis, picture
from perf.pages.text import Verdict, machine_text

HOSTS, RANKS_OF_A_HOST = 4, 2
ROUND = 20  # steps of a round of DiLoCo
WARMUP_STEPS, TIMED_STEPS = 25, ROUND  # of a run over links
BASE, ONEBIT, STREAMING = "AdamW", "1-bit Adam", "streaming DiLoCo"
ALONE = "no communication between hosts"
NO_ROUND_ENDS = ["--diloco", WARMUP_STEPS + TIMED_STEPS + 1]
REPLICAS = ["--replicas", HOSTS]
MUON = ["--optimizer", "muon", "--muon-scale", "moonlight"]
WAYS = {
    BASE: ["--zero", 0],
    "ZeRO++": ["--zero", 3, "--hpz-size", RANKS_OF_A_HOST, "--qwz", "int8", "--qgz", "int4"],
    ONEBIT: ["--zero", 0, "--optimizer", "onebit-adam"],
    "PowerSGD": ["--zero", 0, "--powersgd", 4],
    "DeMo": ["--zero", 0, "--optimizer", "demo", "--lr", 1e-3],
    "AdamW, sums a step late": ["--zero", 0, "--delay", 1],
    "Muon": ["--zero", 0, *MUON],
    "Muon, sums a step late": ["--zero", 0, "--delay", 1, *MUON],
    "DiLoCo": [*REPLICAS, "--diloco", ROUND],
    STREAMING: [*REPLICAS, "--diloco", ROUND, "--diloco-fragments", 4, "--diloco-delay", 4, "--diloco-format", "int4"],
}
LONGER, TIMES = f"{STREAMING}, 3 times the steps", 3  # a step over a slow link takes so little time
TRAINED = (*WAYS, LONGER)
MODEL = ["--num-layers", 4, "--hidden-size", 192, "--num-attention-heads", 6, "--seq-length", 128, "--global-batch-size", 16, "--lr", 3e-3, "--weight-decay", 0.1]
DEMO, DEMO_OF_TWO = ([*MODEL, "--micro-batch-size", sequences] for sequences in (2, 8))
WANTED_STEPS, WANTED_TIME, WANTED_LOSS, JUDGED = 3.3, 1.05, 0.02, "100mbit"
LATE_RATE, WANTED_LATE = "300mbit", 1.1
LATE_SIDES = {"alone": ["--replicas", 2, *NO_ROUND_ENDS], "in time": [], "late": ["--delay", 1]}


def setup(options):
    """What figures that belong together have in common."""
    words = {"steps": [options.steps, TIMES], "data": [options.train_data], "timed steps": [WARMUP_STEPS, TIMED_STEPS], "ranks": [HOSTS, RANKS_OF_A_HOST],
             "model": DEMO, **WAYS, ALONE: NO_ROUND_ENDS, "late": [LATE_RATE, *DEMO_OF_TWO, *(word for side in LATE_SIDES.values() for word in side)]}
    return {what: " ".join(map(str, its)) for what, its in words.items()}


def words_of(way, freezes_at):
    return [*DEMO, *WAYS[way], *(["--freeze-step", freezes_at] if way == ONEBIT else [])]


def lines_of(start, command):
    """What a run writes of its steps."""
    with tempfile.TemporaryDirectory() as directory:
        start([*command, "--log-dir", directory])
        return [json.loads(line) for line in (pathlib.Path(directory) / "metrics.jsonl").read_text().splitlines()]


def freeze_of(options):
    return options.steps // 5


def run_long(command):
    """Losses do not depend on time: other work on this host may slow a run down."""
    return run(command, seconds=3600)


def step_of(way):
    """The way whose steps a way takes."""
    return STREAMING if way == LONGER else way


def curve(options, way, seed):
    steps = options.steps * (TIMES if way == LONGER else 1)
    lines = lines_of(run_long, [options.program, "--nproc", HOSTS * RANKS_OF_A_HOST, *words_of(step_of(way), freeze_of(options)), "--train-data",
                                options.train_data, "--train-iters", steps, "--lr-warmup-iters", steps // 8, "--eval-interval", max(1, options.steps // 20),
                                "--seed", seed])
    return [[line["step"], line["val_loss"]] for line in lines if "val_loss" in line]


def step_seconds(options, network, words):
    lines = lines_of(network.run, [options.program, *words, "--train-data", options.train_data, "--train-iters", WARMUP_STEPS + TIMED_STEPS,
                                   "--lr-warmup-iters", 0])
    return statistics.mean(line["step_ms"] for line in lines[-TIMED_STEPS:]) / 1e3


def late_seconds(options):
    """A step between two hosts of one rank: without communication, and with sums in time and late; and what these alone take."""
    with namespaces.Network([1, 1], LATE_RATE) as network:
        found = {side: step_seconds(options, network, [*DEMO_OF_TWO, "--zero", 0, *words]) for side, words in LATE_SIDES.items()}
        sent = lines_of(network.run, [options.program, *DEMO_OF_TWO, "--zero", 0, "--train-data", options.train_data, "--train-iters", 3])[-1]["bytes_sent"]
    return {**found, "link": sent / namespaces.bytes_per_second(LATE_RATE)}


def measured(options):
    namespaces.require()
    figures = {"steps": options.steps, "setup": setup(options), "freezes_at": freeze_of(options), "seconds": {}, "curves": {}}
    if options.go_on:
        earlier, here = read_json(options.json), machine()
        for what, there, now in [(name, earlier.get("machine", {}).get(name), here[name]) for name in ("cpu", "cores")] + \
                [(name, earlier.get("setup", {}).get(name), its) for name, its in figures["setup"].items()]:
            if there != now:
                sys.exit(f"error: --go-on: {options.json} is of another measurement, {what}: {there}, and now {now}.")
        figures |= {name: value for name, value in earlier.items() if name in (*figures, "late")}
    for rate in dict.fromkeys([*figures["seconds"], *options.rate.split(",")]):
        found = figures["seconds"].setdefault(rate, {})
        missing = [way for way in (*WAYS, ALONE) if way not in found]
        with namespaces.Network([RANKS_OF_A_HOST] * HOSTS, rate) if missing else contextlib.nullcontext() as network:
            for way in missing:
                words = [*DEMO, *REPLICAS, *NO_ROUND_ENDS] if way == ALONE else words_of(way, WARMUP_STEPS - ROUND)
                found[way] = step_seconds(options, network, words)
                print(f"{rate}, {way}: {found[way]:.3f} s a step", file=sys.stderr)
                yield figures
    if "late" not in figures:
        figures["late"] = late_seconds(options)
    for seed in range(1, max([options.seeds, *map(len, figures["curves"].values())]) + 1):
        for way in TRAINED:
            of_way = figures["curves"].setdefault(way, [])
            if len(of_way) < seed:
                of_way.append(curve(options, way, seed))
                print(f"seed {seed}, {way}: {of_way[-1][-1][1]:.4f}", file=sys.stderr)
                yield figures
    yield figures


def final_loss(figures, way):
    return statistics.mean(curve[-1][1] for curve in figures["curves"][way])


def seconds_at(figures, rate, way, step):
    """From the beginning to the end of a step."""
    seconds = figures["seconds"][rate]
    before = min(step, figures["freezes_at"]) if way == ONEBIT else 0
    return before * seconds[BASE] + (step - before) * seconds[step_of(way)]


def seconds_to_loss(figures, rate, way):
    """When a way first evaluates to AdamW's last loss of the same seed, or 0.02 above, as the mean of the seeds; None if one never does."""
    found = [next((step for step, value in curve if value <= base[-1][1] + WANTED_LOSS), None)
             for curve, base in zip(figures["curves"][way], figures["curves"][BASE])]
    return statistics.mean(seconds_at(figures, rate, way, step) for step in found) if all(found) else None


def tables(figures):
    rows = []
    for way in TRAINED:
        losses = [curve[-1][1] for curve in figures["curves"][way]]
        row = [way, f"{statistics.mean(losses):.4f}", f"{max(losses) - min(losses):.4f}"]
        for rate, seconds in figures["seconds"].items():
            reached = seconds_to_loss(figures, rate, way)
            row += [f"{1 / seconds[step_of(way)]:.2f}", "-" if reached is None else f"{reached:.0f}"]
        rows.append(row)
    rows.append([ALONE, "", "", *(text for seconds in figures["seconds"].values() for text in (f"{1 / seconds[ALONE]:.2f}", ""))])
    late = figures["late"]
    yield Table(f"Two hosts of one rank at {LATE_RATE}, s a step", ["without communication", "bytes over the link's rate", "sums in time", "sums a step late", "late, over the longer of the first two"],
                [[*(f"{late[key]:.3f}" for key in ("alone", "link", "in time", "late")), f"{late_ratio(figures):.2f}"]])
    yield Table("Time to AdamW's last loss + 0.02, of the same seed", ["way", "final loss", "spread", *(text for rate in figures["seconds"] for text in (f"steps/s, {rate}", "s to its loss"))], rows)


def late_ratio(figures):
    late = figures["late"]
    return late["late"] / max(late["alone"], late["link"])


def verdicts(figures):
    yield Verdict(late_ratio(figures) <= WANTED_LATE, f"Sums a step late between two hosts at {LATE_RATE}: a step takes {late_ratio(figures):.2f} times the longer of "
                                                      f"computation and communication, wanted at most {WANTED_LATE}.")
    base = final_loss(figures, BASE)
    for way in (ONEBIT, STREAMING):
        above = final_loss(figures, way) - base
        yield Verdict(above <= WANTED_LOSS, f"{way} ends {above:+.4f} nats from {BASE}, wanted at most {WANTED_LOSS} above.")
    if seconds := figures["seconds"].get(JUDGED):
        faster = seconds[BASE] / seconds[ONEBIT]
        yield Verdict(faster >= WANTED_STEPS, f"{ONEBIT} takes {faster:.2f} times the steps of {BASE} at {JUDGED}, wanted {WANTED_STEPS}.")
        reached, of_base = (seconds_to_loss(figures, JUDGED, way) for way in (LONGER, BASE))
        yield Verdict(reached is not None and reached < of_base, f"{LONGER}, {'never reaches' if reached is None else f'takes {reached:.0f} s at {JUDGED} to'} "
                                                                 f"{BASE}'s last loss + {WANTED_LOSS}, which takes {BASE} {of_base:.0f} s.")
        longer = seconds[STREAMING] / seconds[ALONE]
        yield Verdict(longer <= WANTED_TIME, f"A step of {STREAMING} takes {longer:.3f} times one without communication between hosts at {JUDGED}, "
                                             f"wanted at most {WANTED_TIME}.")


def plot(figures, rate):
    curves = [Curve(way, [(seconds_at(figures, rate, way, step), value) for step, value in figures["curves"][way][0]], number)
              for number, way in enumerate(TRAINED)]
    points = [point for curve in curves for point in curve.points]
    return picture(f"Validation loss over time, links of {rate}", f"the demo's model, {HOSTS} hosts of {RANKS_OF_A_HOST} ranks",
                   machine_text(figures["machine"]), curves, LogAxis("seconds", [x for x, _ in points], 2, "{:g}".format),
                   LinearAxis("nats a byte", [y for _, y in points]))


class SlowLinks(Comparison):
    """Its page has a picture."""

    def finish(self, options, figures):
        if options.write_docs and JUDGED in figures["seconds"]:
            (options.write_docs.parent / "slow-links.svg").write_text(plot(figures, JUDGED))


def check(parser, options):
    for rate in options.rate.split(","):
        namespaces.bytes_per_second(rate)  # refuses a wrong rate before anything is made
    if options.go_on and options.earlier:
        parser.error("--from measures nothing: leave --go-on out")
    if options.seeds < 1:
        parser.error(f"--seeds {options.seeds}: at least one")


SlowLinks("slow-links", __doc__, measured, tables, verdicts, check=check, page="docs/slow-links.md", program="stretto-train",
          about=lambda figures: f"the demo's model, {figures['steps']} steps on the King James text, {HOSTS} hosts of {RANKS_OF_A_HOST} ranks; "
                                f"means of {len(next(iter(figures['curves'].values())))} seeds of the weights",
          flags=(flag("--steps", 400, "steps of each run"), flag("--seeds", 3, "seeds of the weights"),
                 flag("--go-on", False, "measure only what the file of --json lacks", told=False),
                 flag("--rate", f"{JUDGED},300mbit,1gbit", "rates of every link, as tc writes them"),
                 flag("--train-data", str(ROOT / "build/data/king_james.txt"), told=False)))
