"""Compares training steps after which each rank's state is kept in another one's memory (stretto-train --replicate-state) with steps
after which it is not.

Steps of one run are compared: blocks of 4 with and of 4 without, one pair after the other. The last block waits until its last state is
complete. Every round runs each case once. The extra time of a step is that of two copies of 12 bytes an element, whatever is computed:
cases differ in the tokens and the size of a step. Prints medians over all pairs, their quartiles, and a verdict; exits 1 if it falls short.
"""
import statistics
import sys

from perf.comparisons.programs import BIN, add_outputs, command_text, last_json, machine, parser_of, read_json, run, write_json
from perf.pages.text import DocsSection, Verdict, machine_text, markdown_table, rounds_text, terminal_table, verdict_text

SECTION = DocsSection("./dev perf replicated-state")
# Ranks, layers, width, and sequences of a rank's microbatch and microbatches of a step; tp 2 where there are more than two ranks.
CASES = ((2, 4, 256, 1, 1), (2, 4, 256, 6, 1), (2, 4, 256, 12, 1), (8, 4, 256, 6, 1), (2, 6, 384, 6, 1))
TOKENS = 256
FROM_TOKENS = 3000  # of a step, from which on the limit is to hold
MOST = 1.02  # times a step without


def measured(options):
    rounds = []
    for i in range(options.rounds):
        rounds.append([])
        for ranks, layers, width, batch, microbatches in CASES:
            tensor = 2 if ranks > 2 else 1
            figures = last_json(run([options.program, "--nproc", ranks, "--tp", tensor, "--layers", layers, "--hidden", width, "--heads", width // 64,
                                     "--batch", batch, "--microbatches", microbatches, "--steps", options.steps, "--replicate-state"]).stdout)
            rounds[-1].append({"ranks": ranks, "tensor": tensor, "parameters": figures["parameters"],
                               "tokens": ranks // tensor * batch * microbatches * TOKENS, "step_ms": figures["step_ms"],
                               "plain_s": figures["plain_s"], "replicating_s": figures["replicating_s"]})
        print(f"round {i + 1} of {options.rounds} done", file=sys.stderr)
    return {"machine": machine(), "command": options.command, "steps": options.steps, "rounds": rounds}


def cases(figures):
    """Of each case: its figures of the first round, and the ratios of all pairs of blocks, smallest first."""
    for i, case in enumerate(figures["rounds"][0]):
        ratios = [with_it / without for each in figures["rounds"] for with_it, without in zip(each[i]["replicating_s"], each[i]["plain_s"])]
        yield case, sorted(ratios)


def rows(figures):
    result = []
    for case, ratios in cases(figures):
        low, middle, high = statistics.quantiles(ratios, n=4)
        layout = f"{case['ranks']}" + (f" (tp {case['tensor']})" if case["tensor"] > 1 else "")
        result.append([f"{case['parameters'] / 1e6:.1f} million", layout, f"{case['tokens']}", f"{sum(case['plain_s']) / len(case['plain_s']) / 4:.3f}",
                       f"{middle:.3f}", f"{low:.3f} to {high:.3f}"])
    return ["parameters", "ranks", "tokens a step", "s a step", "ratio with --replicate-state", "quartiles"], result


def verdicts(figures):
    for case, ratios in cases(figures):
        if case["tokens"] < FROM_TOKENS:
            continue
        found = statistics.median(ratios)
        yield Verdict(found <= MOST, f"{case['parameters'] / 1e6:.1f} million parameters, {case['ranks']} ranks, {case['tokens']} tokens: a step takes "
                                     f"{found:.3f} times as long, wanted at most {MOST}.")


def section(figures):
    intro = (f"Measured by `{figures['command']}` on {machine_text(figures['machine'])}: sequences of {TOKENS} tokens, fp32; "
             f"{rounds_text(len(figures['rounds']))} of {figures['steps']} steps, half of them with:")
    return "\n\n".join([intro, "\n".join(markdown_table(*rows(figures))), "\n".join(f"- {verdict_text(each)}" for each in verdicts(figures))])


def main():
    parser = parser_of("replicated-state", __doc__)
    parser.add_argument("--program", default=str(BIN / "train_speed"))
    cuts = [
        parser.add_argument("--steps", type=int, default=32, help="timed steps of each run, a multiple of 8 (default 32)"),
        parser.add_argument("--rounds", type=int, default=5, help="rounds, over which medians are taken (default 5)"),
    ]
    add_outputs(parser, "replicated_state", "docs/going-on.md")
    options = parser.parse_args()
    options.command = command_text(parser, options, cuts)
    if options.write_docs:
        SECTION.around(options.write_docs)
    if options.earlier:
        figures = read_json(options.earlier)
    else:
        figures = measured(options)
        write_json(options.json, figures)
    print("\n".join(terminal_table(*rows(figures))))
    print("\n".join(verdict_text(verdict) for verdict in verdicts(figures)))
    if options.write_docs:
        SECTION.replace(options.write_docs, section(figures))
    return 0 if all(verdict.holds for verdict in verdicts(figures)) else 1


if __name__ == "__main__":
    sys.exit(main())
