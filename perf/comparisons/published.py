"""Compares the predictions of stretto-plan layout with published training runs.

perf/published.json holds the runs and how the programs work that were run; docs/clusters/ the machines, from published measurements of
single GPUs and of collectives. No figure there is fitted to a run. Exits 1 if a row is more than a tenth off.
"""
import json
import tempfile

from perf.comparisons.harness import Comparison, Table
from perf.comparisons.programs import ROOT, figures_of
from perf.pages.text import Verdict

MOST_OFF = 0.1


def model_text(row):
    sizes = {"layers": "layers", "hidden": "hidden", "heads": "heads", "seq": "sequence", "vocab": "vocabulary"}
    if row["model_type"] == "llama":
        sizes |= {"kv_heads": "kv_heads", "mlp": "mlp"}
    text = f"{row['model_type']}:" + ",".join(f"{name}={row[key]}" for name, key in sizes.items())
    return text + ",untied=1" if row["model_type"] == "llama" else text


def command(program, cluster, system, row):
    words = [program, "layout", "--model", model_text(row), "--cluster", cluster, "--system", system, "--ranks", row["ranks"], "--global-batch",
             row["batch"], "--tp", row["tp"], "--pp", row["pp"], "--cp", row["cp"], "--ulysses", 1, "--sp", "yes" if row["sp"] else "no",
             "--recompute", row["recompute"], "--zero", row["zero"], "--dtype", row["dtype"], "--grad-dtype", row["grad_dtype"], "--top", 1]
    if "micro_batch" in row:
        words += ["--micro-batch-size", row["micro_batch"]]
    if "memory" in row:
        words += ["--memory", row["memory"]]
    if row["pp"] > 1:
        chunks = row["virtual_stages"]
        words += ["--schedule", "interleaved" if chunks > 1 else "1f1b", "--virtual-stages", chunks]
    return words


def measured(options):
    facts = json.loads((ROOT / "perf/published.json").read_text())
    for each in facts["tables"]:
        each["rows"] = [each["rows_have"] | row for row in each["rows"]]
        each["machines"] = facts["machines"][each["machine"]]
        with tempfile.NamedTemporaryFile("w", suffix=".json") as system:
            json.dump(facts["programs"][each["program"]]["program"], system)
            system.flush()
            for row in each["rows"]:
                row["layouts"] = [figures_of(command(options.program, ROOT / cluster, system.name, row))["layouts"][0]
                                  for cluster in each["machines"].values()]
    yield {"tables": facts["tables"]}


def value_of(row, layout, table):
    """What the row publishes: the seconds of a step, or operations a second of a GPU as the table's source counts them."""
    seconds, layers, hidden = layout["ms"] / 1e3, row["layers"], row["hidden"]
    if table["unit"] == "s":
        return seconds
    if table["operations"] == "model":
        return layout["flops_per_second"] * 1e-12
    shape = 1 + row["sequence"] / (6 * hidden) + row["vocabulary"] / (16 * layers * hidden)  # Narayanan et al.
    return 96 * row["batch"] * row["sequence"] * layers * hidden ** 2 * shape / seconds / row["ranks"] * 1e-12


def off(row, layout, table):
    return value_of(row, layout, table) / row["published"] - 1


def recomputed(row):
    return {"full": "all again", "selective": "sp, selective", "none": "nothing"}[row["recompute"]]


def division(row):
    text = f"{row['tp']} x {row['pp']} x {row['layouts'][0]['dp']}"
    return f"{text}, cp {row['cp']}" if row["cp"] > 1 else text


def tables(figures):
    for each in figures["tables"]:
        digits = 2 if each["unit"] == "s" else 0
        rows = []
        for row in each["rows"]:
            rows.append([row["model"], f"{row['ranks']:,}", division(row), str(row["layouts"][0]["micro_batch"]), recomputed(row),
                         f"{row['published']:.{digits}f}"])
            for layout in row["layouts"]:
                rows[-1] += [f"{value_of(row, layout, each):.{digits}f}", f"{off(row, layout, each) * 100:+.1f}%"]
        head = ["model", "GPUs", "tp x pp x dp", "micro-batch", "recomputed", f"published, {each['unit']}"]
        yield Table(each["source"], head + sum(([f"{machine} rates", "off"] for machine in each["machines"]), []), rows)


def verdicts(figures):
    for each in figures["tables"]:
        for row in each["rows"]:
            found = off(row, row["layouts"][0], each)
            yield Verdict(abs(found) <= MOST_OFF,
                          f"{row['model']}, {row['ranks']:,} GPUs, {recomputed(row)}: {found * 100:+.1f}%, at most 10% off")


Comparison("published", __doc__, measured, tables, verdicts, page="docs/layout.md", program="stretto-plan", simulated=True)
