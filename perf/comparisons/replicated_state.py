"""Compares training steps after which each rank's state is kept in another one's memory (stretto-train --replicate-state) with steps
after which it is not.

Steps of one run are compared: blocks of 4 with and of 4 without, one pair after the other. The last block waits until its last state is
complete. The extra time of a step is that of two copies of 12 bytes an element, whatever is computed: cases differ in the tokens and the
size of a step. Medians are over all pairs of all rounds. Exits 1 if steps of many tokens take too long.
"""
import statistics

from perf.comparisons.harness import Comparison, Table, flag, rounds_of
from perf.comparisons.programs import last_json, run
from perf.pages.text import Verdict, rounds_text

# Ranks, layers, width, and sequences of a rank's microbatch and microbatches of a step; tp 2 where there are more than two ranks.
CASES = ((2, 4, 256, 1, 1), (2, 4, 256, 6, 1), (2, 4, 256, 12, 1), (8, 4, 256, 6, 1), (2, 6, 384, 6, 1))
TOKENS = 256
FROM_TOKENS = 3000  # of a step, from which on the limit is to hold
MOST = 1.02  # times a step without


def measured(options):
    rounds = []
    for _ in rounds_of(options.rounds):
        rounds.append([])
        for ranks, layers, width, batch, microbatches in CASES:
            tensor = 2 if ranks > 2 else 1
            found = last_json(run([options.program, "--nproc", ranks, "--tp", tensor, "--layers", layers, "--hidden", width, "--heads", width // 64,
                                   "--batch", batch, "--microbatches", microbatches, "--steps", options.steps, "--replicate-state"]).stdout)
            rounds[-1].append({"ranks": ranks, "tensor": tensor, "tokens": ranks // tensor * batch * microbatches * TOKENS,
                               **{key: found[key] for key in ("parameters", "step_ms", "plain_s", "replicating_s")}})
    yield {"steps": options.steps, "rounds": rounds}


def cases(figures):
    """Of each case: its figures of the first round, and the ratios of all pairs of blocks."""
    for i, case in enumerate(figures["rounds"][0]):
        yield case, [with_it / without for each in figures["rounds"] for with_it, without in zip(each[i]["replicating_s"], each[i]["plain_s"])]


def tables(figures):
    rows = []
    for case, ratios in cases(figures):
        low, middle, high = statistics.quantiles(ratios, n=4)
        rows.append([f"{case['parameters'] / 1e6:.1f} million", f"{case['ranks']}" + (f" (tp {case['tensor']})" if case["tensor"] > 1 else ""),
                     f"{case['tokens']}", f"{sum(case['plain_s']) / len(case['plain_s']) / 4:.3f}", f"{middle:.3f}", f"{low:.3f} to {high:.3f}"])
    yield Table("", ["parameters", "ranks", "tokens a step", "s a step", "ratio with --replicate-state", "quartiles"], rows)


def verdicts(figures):
    for case, ratios in cases(figures):
        if case["tokens"] >= FROM_TOKENS:
            found = statistics.median(ratios)
            yield Verdict(found <= MOST, f"{case['parameters'] / 1e6:.1f} million parameters, {case['ranks']} ranks, {case['tokens']} tokens: a step "
                                         f"takes {found:.3f} times as long, wanted at most {MOST}.")


Comparison("replicated-state", __doc__, measured, tables, verdicts, page="docs/going-on.md", program="train_speed",
           about=lambda figures: f"sequences of {TOKENS} tokens, fp32; {rounds_text(len(figures['rounds']))} of {figures['steps']} steps, half of "
                                 "them with",
           flags=(flag("--steps", 32, "timed steps of each run, a multiple of 8"), flag("--rounds", 5)))
