"""Compares the time of a training step while no checkpoint is written, while one is written in the background all the time, and with a
checkpoint that each step waits for.

2 ranks of 1 thread train the model of ./dev perf layouts. In the background, a step that finds the last checkpoint complete begins
another one; a step's time contains the call that begins it. Exits 1 if steps take too long in the background.
"""
import pathlib
import tempfile

from perf.comparisons.harness import Comparison, column, flag, in_turn, median, ratio, ratio_column, table_of_sides
from perf.comparisons.programs import last_json, model_text, run
from perf.pages.text import Verdict, rounds_text

NONE, BACKGROUND, WAITING = "no checkpoint", "one checkpoint after the other in the background", "a checkpoint before every step"
SIDES = {NONE: [], BACKGROUND: ["--save-in-background"], WAITING: []}
MOST = 1.05  # times a step without
BATCH = 6


def measured(options):
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        def figures_of(side):
            save = [] if side == NONE else ["--save", pathlib.Path(directory) / "save", *SIDES[side]]
            return last_json(run([options.program, "--nproc", 2, "--batch", BATCH, "--steps", options.steps, *save]).stdout)

        yield {"model": model_text(BATCH), "steps": options.steps, "rounds": in_turn(list(SIDES), options.rounds, figures_of)}


def checkpoints(rounds, side):
    count = median(rounds, side, "checkpoints")
    return "-" if count is None else f"{count / median(rounds, side, 'steps'):.2f}"


def tables(figures):
    yield table_of_sides("", figures["rounds"], SIDES, [column("s a step", "mean_ms", 3, 1e3), ratio_column(NONE, 3, "mean_ms"),
                                                        ("checkpoints a step", checkpoints)])


def verdicts(figures):
    found = ratio(figures["rounds"], BACKGROUND, NONE, "mean_ms")
    yield Verdict(found <= MOST, f"A step takes {found:.3f} times as long while a checkpoint is written in the background, wanted at most {MOST}.")


def about(figures):
    parameters = figures["rounds"][0][NONE]["parameters"]
    return (f"{figures['model']}, fp32, 2 ranks; {parameters / 1e6:.1f} million parameters, so {12 * parameters / 1e6:.0f} MB a checkpoint; "
            f"{rounds_text(len(figures['rounds']))} of {figures['steps']} steps")


Comparison("saving", __doc__, measured, tables, verdicts, about, page="docs/training.md", program="train_speed",
           flags=(flag("--steps", 16, "timed steps of each run"), flag("--rounds", 5),
                  flag("--directory", text="where checkpoints are written (default: the directory of temporary files)", told=False)))
