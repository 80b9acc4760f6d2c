"""The part of ./dev perf layouts on pipelines of 2 ranks of one host: Stretto's schedules, two data-parallel ranks, and PyTorch's 1F1B.

All sides train on the same number of sequences in a step. Stretto's 1F1B, plain and eager, also runs over slow links (STRETTO_LINKS), on
which a boundary's message takes SLOW_MESSAGE of a forward. There each microbatch of plain 1F1B waits for a message both ways, so that it
is shown without a target. A run of 1F1B before the first round says how long a forward is: a third of what a
stage computes for a microbatch, as if forward and the two halves of backward took the same time.
"""
import statistics
import sys

from perf.comparisons.programs import ROOT, last_json, model_text, run
from perf.comparisons.rounds import given_or, in_turn, median, ratio
from perf.pages.text import Verdict, rounds_text

STAGES, MICROBATCHES, STEPS, WARMUP = 2, 8, 3, 2
SEQUENCES, TOKENS, HIDDEN = 6, 256, 384  # of a microbatch; of a sequence; and the width of the model, which are train_speed's own
CHUNKS = {"1f1b": 1, "1f1b-eager": 1, "gpipe": 1, "zb-h1": 1, "zb-h2": 1, "zb-v": 2, "interleaved": 3}
DATA_PARALLEL = f"Stretto dp {STAGES}"
PIPELINES = {f"Stretto {schedule}": schedule for schedule in CHUNKS}
F1B, ZB_H1 = "Stretto 1f1b", "Stretto zb-h1"
SLOW = {f"Stretto {schedule} over slow links": schedule for schedule in ("1f1b", "1f1b-eager")}
PEER = "PyTorch Schedule1F1B over Gloo"
SIDES = [DATA_PARALLEL, *PIPELINES, *SLOW, PEER]

SLOW_MESSAGE = 0.3  # of a forward
ALLOWED = 1 / (1 + (STAGES - 1) / MICROBATCHES)  # of the tokens per second of DATA_PARALLEL, by the bubble of 1F1B
WANTED = {F1B: 0.95, "Stretto 1f1b-eager over slow links": 0.93}  # of what is allowed
WANTED_OF_PEER = 1.3
WANTED_OF_SIMULATION = 0.1  # the simulated step differs from the measured one by no more


def command_of(side, options):
    steps = ["--batch", SEQUENCES, "--nproc", STAGES, "--warmup", given_or(options.warmup, WARMUP), "--steps", given_or(options.steps, STEPS)]
    if side == PEER:
        return [ROOT / ".cache/torch2/bin/python", ROOT / "perf/comparisons/peers/pipeline_gpt.py", "--microbatches", MICROBATCHES, *steps]
    if side == DATA_PARALLEL:
        return [options.program, "--microbatches", MICROBATCHES // STAGES, *steps]
    schedule = (PIPELINES | SLOW)[side]
    flags = ["--pp", STAGES, "--microbatches", MICROBATCHES, "--schedule", schedule, "--virtual-stages", CHUNKS[schedule]]
    return [options.program, *flags, *steps]


def forward_seconds(figures):
    """Of one microbatch in one stage, by a run of 1F1B."""
    return figures["pipeline_ms"] / 1e3 / (1 + figures["bubble"]) / MICROBATCHES / 3


def slow_link(forward):
    """STRETTO_LINKS on which the message between two stages takes SLOW_MESSAGE of a forward of so many seconds."""
    latency = 5e-6
    rate = SEQUENCES * TOKENS * HIDDEN * 4 / (SLOW_MESSAGE * forward - latency)
    return f"inter={rate / 1e6:.3f}MB/s,{latency * 1e6:.0f}us"


def measured(options):
    forward = forward_seconds(last_json(run(command_of(F1B, options)).stdout))
    slow = {"STRETTO_RANKS_PER_NODE": "1", "STRETTO_LINKS": slow_link(forward)}
    print(f"forward takes {forward * 1e3:.1f} ms; slow links are {slow['STRETTO_LINKS']}", file=sys.stderr)
    rounds = in_turn(SIDES, options.rounds,
                     lambda side: last_json(run(command_of(side, options), **(slow if side in SLOW else {})).stdout))
    return [{"part": "pipelines", "model": model_text(SEQUENCES, TOKENS, "microbatch"), "ranks": STAGES, "microbatches": MICROBATCHES,
             "forward_ms": forward * 1e3, "slow_link": slow["STRETTO_LINKS"], "steps": given_or(options.steps, STEPS),
             "torch": rounds[0][PEER]["torch"], "rounds": rounds}]


# ---- what the figures say

def verdicts(table):
    rounds = table["rounds"]
    for side, least in WANTED.items():
        found = ratio(rounds, side, DATA_PARALLEL) / ALLOWED
        yield Verdict(found >= least, f"{side} reaches {found:.2f} of what the bubble allows ({ALLOWED:.3f} of the tokens per second of "
                                      f"{DATA_PARALLEL}), wanted {least}.")
    found = ratio(rounds, ZB_H1, F1B)
    yield Verdict(found > 1, f"{ZB_H1} reaches {found:.3f} times the tokens per second of {F1B}, wanted more than 1.")
    for side in PIPELINES:
        found = statistics.median(each[side]["simulated_ms"] / each[side]["pipeline_ms"] for each in rounds)
        yield Verdict(abs(found - 1) <= WANTED_OF_SIMULATION,
                      f"simulate() predicts {found:.2f} times the step that {side} takes, wanted within {WANTED_OF_SIMULATION:.0%} of it.")
    found = ratio(rounds, F1B, PEER)
    yield Verdict(found >= WANTED_OF_PEER, f"{F1B} reaches {found:.2f} times the tokens per second of {PEER}, wanted {WANTED_OF_PEER}.")


def rows(table):
    """The header, and a row for each side."""
    rounds = table["rounds"]
    header = ["side", "tokens/s", "s a step", f"ratio to {DATA_PARALLEL}", "bubble", "simulated bubble", "stages, s",
              "simulated stages, s"]
    result = []
    for side in SIDES:
        bubbles = [median(rounds, side, key) for key in ("bubble", "simulated_bubble")]
        times = [median(rounds, side, key) for key in ("pipeline_ms", "simulated_ms")]
        result.append([side, f"{median(rounds, side, 'tokens_per_s'):.0f}", f"{median(rounds, side, 'step_ms') / 1e3:.3f}",
                       f"{ratio(rounds, side, DATA_PARALLEL):.3f}", *("-" if bubble is None else f"{bubble:.1%}" for bubble in bubbles),
                       *("-" if ms is None else f"{ms / 1e3:.3f}" for ms in times)])
    return header, result


def heading(table):
    return (f"Pipelines of {table['ranks']} ranks on one host, {table['microbatches']} microbatches; {table['model']}, fp32; "
            f"slow links {table['slow_link']}, where a forward takes {table['forward_ms']:.0f} ms; "
            f"{rounds_text(len(table['rounds']))} of {table['steps']} steps; PyTorch {table['torch']}")
