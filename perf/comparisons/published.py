"""Compares the predictions of stretto-plan layout with published training runs.

perf/published.json holds the runs and how the programs work that were run; docs/clusters/ the machine, from published measurements of
single GPUs and of collectives. No figure there is fitted to a run. Exits 1 if a row that is held to it is more than a tenth off.
"""
import json
import tempfile

from perf.comparisons.harness import Comparison, Table
from perf.comparisons.programs import ROOT, figures_of
from perf.pages.text import Verdict

SEQUENCE, VOCABULARY = 2048, 51200
MOST_OFF = 0.1


def command(program, cluster, system, row):
    model = f"gpt:layers={row['layers']},hidden={row['hidden']},heads={row['heads']},seq={SEQUENCE},vocab={VOCABULARY}"
    words = [program, "layout", "--model", model, "--cluster", cluster, "--system", system, "--ranks", row["ranks"], "--global-batch",
             row["batch"], "--tp", row["tp"], "--pp", row["pp"], "--cp", 1, "--ulysses", 1, "--sp", "yes" if row["sp"] else "no",
             "--recompute", row["recompute"], "--zero", 0, "--dtype", "fp16", "--grad-dtype", "fp16", "--top", 1]
    if "micro_batch" in row:
        words += ["--micro-batch-size", row["micro_batch"]]
    if row["pp"] > 1:
        chunks = row["virtual_stages"]
        words += ["--schedule", "interleaved" if chunks > 1 else "1f1b", "--virtual-stages", chunks]
    return words


def measured(options):
    facts = json.loads((ROOT / "perf/published.json").read_text())
    for each in facts["tables"]:
        with tempfile.NamedTemporaryFile("w", suffix=".json") as system:
            json.dump(facts["programs"][each["program"]]["program"], system)
            system.flush()
            for row in each["rows"]:
                row["layouts"] = [figures_of(command(options.program, ROOT / cluster, system.name, row))["layouts"][0]
                                  for cluster in facts["machines"].values()]
    yield {"machines": list(facts["machines"]), "tables": facts["tables"]}


def value_of(row, layout, unit):
    """What the row publishes: the seconds of a step, or operations a second of a GPU by the formula of Narayanan et al."""
    seconds, layers, hidden = layout["ms"] / 1e3, row["layers"], row["hidden"]
    if unit == "s":
        return seconds
    shape = 1 + SEQUENCE / (6 * hidden) + VOCABULARY / (16 * layers * hidden)
    return 96 * row["batch"] * SEQUENCE * layers * hidden ** 2 * shape / seconds / row["ranks"] * 1e-12


def off(row, layout, unit):
    return value_of(row, layout, unit) / row["published"] - 1


def recomputed(row):
    return "all again" if row["recompute"] == "full" else "sp, selective"


def tables(figures):
    for each in figures["tables"]:
        unit = each["unit"]
        digits = 2 if unit == "s" else 0
        rows = []
        for row in each["rows"]:
            first = row["layouts"][0]
            rows.append([row["model"], f"{row['ranks']:,}", f"{row['tp']} x {row['pp']} x {first['dp']}", str(first["micro_batch"]),
                         recomputed(row), f"{row['published']:.{digits}f}"])
            for layout in row["layouts"]:
                rows[-1] += [f"{value_of(row, layout, unit):.{digits}f}", f"{off(row, layout, unit) * 100:+.1f}%"]
        head = ["model", "GPUs", "tp x pp x dp", "micro-batch", "recomputed", f"published, {unit}"]
        yield Table(each["source"], head + sum(([f"{machine} rates", "off"] for machine in figures["machines"]), []), rows)


def verdicts(figures):
    for each in figures["tables"]:
        for row in each["rows"]:
            if row["held"]:
                found = off(row, row["layouts"][0], each["unit"])
                yield Verdict(abs(found) <= MOST_OFF, f"{row['model']}, {recomputed(row)}: {found * 100:+.1f}%, at most 10% off")


Comparison("published", __doc__, measured, tables, verdicts, page="docs/layout.md", program="stretto-plan", simulated=True)
