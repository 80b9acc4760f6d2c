"""Compares the times in which a training comes from one layout to another: in memory, and by a checkpoint that is saved and loaded.

4 ranks of one host go from dp 4 to tp 2 x pp 2. Both times begin with a trainer of the old layout and end with one of the new layout that
could make its next step; the checkpoint stays in the page cache where its directory allows that. Exits 1 if memory is not the faster way.
"""
import pathlib
import statistics
import tempfile

from perf.comparisons.harness import Comparison, Table, flag, rounds_of
from perf.comparisons.programs import last_json, run
from perf.pages.text import Verdict, rounds_text

WAYS = {"moved_s": "in memory", "saved_s": "saved and loaded"}
BYTES = 12  # of a parameter in fp32: its value and AdamW's moments


def measured(options):
    figures = {"rounds": []}
    for _ in rounds_of(options.rounds):
        with tempfile.TemporaryDirectory(dir=options.directory) as directory:
            words = ["--layers", options.layers, "--hidden", options.hidden, "--save", pathlib.Path(directory) / "save"]
            figures["rounds"].append(last_json(run([options.program, *words]).stdout))
    yield figures


def of(figures, key):
    return statistics.median(each[key] for each in figures["rounds"])


def tables(figures):
    state = BYTES * of(figures, "parameters")
    yield Table("", ["way", "s", "MB/s of state"], [[name, f"{of(figures, key):.3f}", f"{state / of(figures, key) / 1e6:.0f}"] for key, name in WAYS.items()])


def verdicts(figures):
    ratio = of(figures, "moved_s") / of(figures, "saved_s")
    yield Verdict(ratio <= 1, f"In memory the layout changes in {ratio:.2f} times the time by a checkpoint, wanted at most once.")


def about(figures):
    return (f"{of(figures, 'parameters') / 1e6:.1f} million parameters in fp32, from dp 4 to tp 2 x pp 2; ranks receive "
            f"{of(figures, 'received_bytes') / 1e6:.0f} MB in all; {rounds_text(len(figures['rounds']))}")


Comparison("relayout", __doc__, measured, tables, verdicts, about, page="docs/moves.md", program="relayout_speed",
           flags=(flag("--rounds", 5), flag("--layers", 6, "of the model"), flag("--hidden", 384, "its width"),
                  flag("--directory", text="where checkpoints are written (default: the directory of temporary files)", told=False)))
