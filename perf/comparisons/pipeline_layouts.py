"""The part of ./dev perf layouts on pipelines of 2 ranks of one host: Stretto's schedules, two data-parallel ranks, and PyTorch's 1F1B.

All sides train on the same number of sequences in a step. Stretto's 1F1B, plain and eager, also runs over slow links (STRETTO_LINKS), on
which a boundary's message takes SLOW_MESSAGE of a forward. There each microbatch of plain 1F1B waits for a message both ways, so that it
is shown without a target. A run of 1F1B before the first round says how long a forward is: a third of what a
stage computes for a microbatch, as if forward and the two halves of backward took the same time.

Schedules without a flush run with as many microbatches as stages, beside 1F1B with as few, on a model whose head has weights of its
own: RUN steps from an empty pipeline to an empty one. A step of 1F1B then takes (m + p - 1) / m times as long. The same on 2 and 4
stages that sleep for as long as they would compute, since more stages than cores compute for one another; also over slow links.
"""
import statistics
import sys

from perf.comparisons.harness import SPEED, Comparison, column, given_or, in_turn, median, ratio, ratio_column, table_of_sides
from perf.comparisons.programs import BIN, ROOT, last_json, model_text, run
from perf.pages.text import Verdict, rounds_text

STAGES, MICROBATCHES = 2, 8
SEQUENCES, TOKENS, HIDDEN = 6, 256, 384  # of a microbatch; of a sequence; and the width of the model, which are train_speed's own
CHUNKS = {"1f1b": 1, "1f1b-eager": 1, "gpipe": 1, "zb-h1": 1, "zb-h2": 1, "zb-v": 2, "interleaved": 3}
DATA_PARALLEL = f"Stretto dp {STAGES}"
SCHEDULES = {f"Stretto {schedule}": schedule for schedule in CHUNKS}
F1B, ZB_H1 = "Stretto 1f1b", "Stretto zb-h1"
SLOW = {f"Stretto {schedule} over slow links": schedule for schedule in ("1f1b", "1f1b-eager")}
PEER = "PyTorch Schedule1F1B over Gloo"
RUN = 30
FLUSHED = f"Stretto 1f1b, {STAGES} microbatches, untied"
UNFLUSHED = {FLUSHED: "1f1b", **{f"Stretto {schedule}, {STAGES} microbatches, untied": schedule for schedule in ("2bw", "pipedream")}}
SIDES = [DATA_PARALLEL, *SCHEDULES, *SLOW, *UNFLUSHED, PEER]

SLEEPERS = {f"{schedule}, {stages} stages{' over slow links' * slow}": (schedule, stages, slow)
            for stages in (2, 4) for slow in (False, True) for schedule in ("1f1b", "2bw")}
SLEPT, SLEPT_STEPS, SLEPT_BYTES = 0.01, 50, 1 << 18  # seconds of a forward; steps of a run; bytes of a message

SLOW_MESSAGE = 0.3  # of a forward
ALLOWED = 1 / (1 + (STAGES - 1) / MICROBATCHES)  # of the tokens per second of DATA_PARALLEL, by the bubble of 1F1B
WANTED = {F1B: 0.95, "Stretto 1f1b-eager over slow links": 0.93}  # of what is allowed
WANTED_OF_PEER = 1.3
WANTED_OF_WINDOWS = 0.97  # of 1F1B's tokens per second times (m + p - 1) / m, less what the pipeline's filling costs in RUN steps
WANTED_OF_SIMULATION = 0.1  # the simulated step differs from the measured one by no more


def command_of(side, options):
    steps = ["--batch", SEQUENCES, "--nproc", STAGES, "--warmup", given_or(options.warmup, 2), "--steps", given_or(options.steps, 3)]
    if side == PEER:
        return [ROOT / ".cache/torch2/bin/python", ROOT / "perf/comparisons/peers/pipeline_gpt.py", "--microbatches", MICROBATCHES, *steps]
    if side == DATA_PARALLEL:
        return [options.program, "--microbatches", MICROBATCHES // STAGES, *steps]
    if side in UNFLUSHED:
        steps[-1] = given_or(options.steps, RUN)
        return [options.program, "--pp", STAGES, "--microbatches", STAGES, "--untied", "--schedule", UNFLUSHED[side], *steps]
    schedule = (SCHEDULES | SLOW)[side]
    return [options.program, "--pp", STAGES, "--microbatches", MICROBATCHES, "--schedule", schedule, "--virtual-stages", CHUNKS[schedule], *steps]


def forward_seconds(figures):
    """Of one microbatch in one stage, by a run of 1F1B."""
    return figures["pipeline_ms"] / 1e3 / (1 + figures["bubble"]) / MICROBATCHES / 3


def slow_link(forward, message=SEQUENCES * TOKENS * HIDDEN * 4):
    """STRETTO_LINKS on which the message between two stages takes SLOW_MESSAGE of a forward of so many seconds."""
    latency = 5e-6
    rate = message / (SLOW_MESSAGE * forward - latency)
    return f"inter={rate / 1e6:.3f}MB/s,{latency * 1e6:.0f}us"


def sleep(schedule, stages, slow):
    variables = {"STRETTO_RANKS_PER_NODE": "1", "STRETTO_LINKS": slow_link(SLEPT, SLEPT_BYTES)} if slow else {}
    return last_json(run([BIN / "pipeline_speed", "--schedule", schedule, "--stages", stages, "--steps", SLEPT_STEPS, "--forward-ms", SLEPT * 1e3,
                          "--message-bytes", SLEPT_BYTES], **variables).stdout)


def without_filling(stages, steps):
    """The part of a step's time that remains, without a flush, of a run of so many steps of as many microbatches as stages."""
    return steps * stages / (steps * stages + stages - 1)


def measured(options):
    forward = forward_seconds(last_json(run(command_of(F1B, options)).stdout))
    slow = {"STRETTO_RANKS_PER_NODE": "1", "STRETTO_LINKS": slow_link(forward)}
    print(f"forward takes {forward * 1e3:.1f} ms; slow links are {slow['STRETTO_LINKS']}", file=sys.stderr)
    rounds = in_turn(SIDES, options.rounds,
                     lambda side: last_json(run(command_of(side, options), **(slow if side in SLOW else {})).stdout))
    yield {"forward_ms": forward * 1e3, "slow_link": slow["STRETTO_LINKS"], "steps": given_or(options.steps, 3),
           "torch": rounds[0][PEER]["torch"], "rounds": rounds,
           "sleepers": in_turn(list(SLEEPERS), options.rounds, lambda side: sleep(*SLEEPERS[side]))}


def verdicts(figures):
    rounds = figures["rounds"]
    for side, least in WANTED.items():
        found = ratio(rounds, side, DATA_PARALLEL) / ALLOWED
        yield Verdict(found >= least, f"{side} reaches {found:.2f} of what the bubble allows ({ALLOWED:.3f} of the tokens per second of "
                                      f"{DATA_PARALLEL}), wanted {least}.")
    found = ratio(rounds, ZB_H1, F1B)
    yield Verdict(found > 1, f"{ZB_H1} reaches {found:.3f} times the tokens per second of {F1B}, wanted more than 1.")
    for side in SCHEDULES:
        found = statistics.median(each[side]["simulated_ms"] / each[side]["pipeline_ms"] for each in rounds)
        yield Verdict(abs(found - 1) <= WANTED_OF_SIMULATION,
                      f"simulate() predicts {found:.2f} times the step that {side} takes, wanted within {WANTED_OF_SIMULATION:.0%} of it.")
    most = (2 * STAGES - 1) / STAGES
    found = ratio(rounds, next(side for side, schedule in UNFLUSHED.items() if schedule == "2bw"), FLUSHED) / most
    yield Verdict(found >= WANTED_OF_WINDOWS, f"2bw reaches {found:.3f} of {most:.2f} times the tokens per second of 1f1b with as many microbatches "
                                              f"as stages, wanted {WANTED_OF_WINDOWS}.")
    for side, (schedule, stages, _) in SLEEPERS.items():
        if schedule == "1f1b":
            continue
        most = (2 * stages - 1) / stages
        found = ratio(figures["sleepers"], side.replace(schedule, "1f1b"), side, "step_ms") / without_filling(stages, SLEPT_STEPS) / most
        yield Verdict(found >= WANTED_OF_WINDOWS, f"Asleep, {side} reaches {found:.3f} of {most:.2f} times the steps a second of 1f1b, wanted {WANTED_OF_WINDOWS}.")
    found = ratio(rounds, F1B, PEER)
    yield Verdict(found >= WANTED_OF_PEER, f"{F1B} reaches {found:.2f} times the tokens per second of {PEER}, wanted {WANTED_OF_PEER}.")


def bubble(heading, key):
    def cell(rounds, side):
        value = median(rounds, side, key)
        return "-" if value is None else f"{value:.1%}"
    return heading, cell


def tables(figures):
    columns = [*SPEED, ratio_column(DATA_PARALLEL, 3), bubble("bubble", "bubble"), bubble("simulated bubble", "simulated_bubble"),
               column("stages, s", "pipeline_ms", 3, 1e3), column("simulated stages, s", "simulated_ms", 3, 1e3)]
    title = (f"Pipelines of {STAGES} ranks on one host, {MICROBATCHES} microbatches; {model_text(SEQUENCES, TOKENS, 'microbatch')}, fp32; "
             f"slow links {figures['slow_link']}, where a forward takes {figures['forward_ms']:.0f} ms; "
             f"{rounds_text(len(figures['rounds']))} of {figures['steps']} steps; PyTorch {figures['torch']}")
    yield table_of_sides(title, figures["rounds"], SIDES, columns)
    yield table_of_sides(f"Stages that sleep, {SLEPT * 1e3:.0f} ms forward and {2 * SLEPT * 1e3:.0f} ms backward, as many microbatches as stages; runs of {SLEPT_STEPS} steps",
                         figures["sleepers"], SLEEPERS, [column("ms a step", "step_ms", 1), column("stages, ms", "pipeline_ms", 1),
                                                         column("simulated stages, ms", "simulated_ms", 1)])


PIPELINES = Comparison("layouts pipelines", __doc__, measured, tables, verdicts, section=lambda options: "./dev perf layouts --only pipelines")
