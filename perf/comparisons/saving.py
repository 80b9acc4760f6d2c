"""Compares the time of a training step while no checkpoint is written, while one is written in the background all the time, and with a
checkpoint that each step waits for.

2 ranks of 1 thread train the model of ./dev perf layouts. In the background, a step that finds the last checkpoint complete begins
another one, so that one is written all the time; a step's time contains the call that begins it. Every round runs each side once, and
ratios are of the same round. Prints medians and verdicts; exits 1 if a verdict falls short.
"""
import pathlib
import sys
import tempfile

from perf.comparisons.programs import BIN, add_outputs, command_text, last_json, machine, model_text, parser_of, read_json, run, write_json
from perf.comparisons.rounds import in_turn, median, ratio
from perf.pages.text import DocsSection, Verdict, machine_text, markdown_table, rounds_text, terminal_table, verdict_text

SECTION = DocsSection("./dev perf saving")
NONE, BACKGROUND, WAITING = "no checkpoint", "one checkpoint after the other in the background", "a checkpoint before every step"
FLAGS = {NONE: [], BACKGROUND: ["--save-in-background"], WAITING: []}
MOST = 1.05  # times a step without
BATCH = 6


def measured(options):
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        def figures_of(side):
            save = [] if side == NONE else ["--save", pathlib.Path(directory) / "save", *FLAGS[side]]
            return last_json(run([options.program, "--nproc", 2, "--batch", BATCH, "--steps", options.steps, *save]).stdout)

        rounds = in_turn(list(FLAGS), options.rounds, figures_of)
    return {"machine": machine(), "command": options.command, "model": model_text(BATCH), "steps": options.steps, "rounds": rounds}


def rows(figures):
    rounds = figures["rounds"]
    result = []
    for side in FLAGS:
        count, steps = median(rounds, side, "checkpoints"), median(rounds, side, "steps")
        result.append([side, f"{median(rounds, side, 'mean_ms') / 1e3:.3f}", f"{ratio(rounds, side, NONE, 'mean_ms'):.3f}",
                       "-" if count is None else f"{count / steps:.2f}"])
    return ["while training", "s a step", f"ratio to {NONE}", "checkpoints a step"], result


def verdicts(figures):
    found = ratio(figures["rounds"], BACKGROUND, NONE, "mean_ms")
    yield Verdict(found <= MOST, f"A step takes {found:.3f} times as long while a checkpoint is written in the background, wanted at most {MOST}.")


def section(figures):
    parameters = figures["rounds"][0][NONE]["parameters"]
    intro = (f"Measured by `{figures['command']}` on {machine_text(figures['machine'])}: {figures['model']}, fp32, 2 ranks; "
             f"{parameters / 1e6:.1f} million parameters, so {12 * parameters / 1e6:.0f} MB a checkpoint; "
             f"{rounds_text(len(figures['rounds']))} of {figures['steps']} steps.")
    return "\n\n".join([intro, "\n".join(markdown_table(*rows(figures))), "\n".join(f"- {verdict_text(each)}" for each in verdicts(figures))])


def main():
    parser = parser_of("saving", __doc__)
    parser.add_argument("--program", default=str(BIN / "train_speed"))
    parser.add_argument("--directory", help="where checkpoints are written (default: the directory of temporary files)")
    cuts = [
        parser.add_argument("--steps", type=int, default=16, help="timed steps of each run (default 16)"),
        parser.add_argument("--rounds", type=int, default=5, help="rounds, over which medians are taken (default 5)"),
    ]
    add_outputs(parser, "saving", "docs/training.md")
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
