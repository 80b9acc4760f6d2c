"""Compares the predictions of stretto-plan layout with published training runs, as Markdown tables.

perf/published.json holds the runs and how the programs work that were run; docs/clusters/ the machine, from published measurements of
single GPUs and of collectives. No figure there is fitted to a run. Exits with status 1 if a row that is held to it is more than a tenth
off.
"""
import json
import pathlib
import sys
import tempfile

from perf.comparisons.programs import BIN, ROOT, figures_of, parser_of
from perf.pages.text import DocsSection, Verdict, markdown_table, verdict_text

SECTION = DocsSection("./dev perf published")
FACTS = ROOT / "perf/published.json"
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


def teraflops(row, seconds):
    """Operations a second of a GPU, by the formula of Narayanan et al."""
    layers, hidden = row["layers"], row["hidden"]
    shape = 1 + SEQUENCE / (6 * hidden) + VOCABULARY / (16 * layers * hidden)
    return 96 * row["batch"] * SEQUENCE * layers * hidden ** 2 * shape / seconds / row["ranks"] * 1e-12


def predicted(program, cluster, system, row, unit):
    """The value that the row publishes, and the layout."""
    layout = figures_of(command(program, cluster, system, row))["layouts"][0]
    seconds = layout["ms"] / 1e3
    return (seconds if unit == "s" else teraflops(row, seconds)), layout


def value_text(value, unit):
    return f"{value:.2f}" if unit == "s" else f"{value:.0f}"


def off_text(value, published):
    return f"{(value / published - 1) * 100:+.1f}%"


def cells(row, unit, values, layout):
    said = "all again" if row["recompute"] == "full" else "sp, selective"
    text = [row["model"], f"{row['ranks']:,}", f"{row['tp']} x {row['pp']} x {layout['dp']}", str(layout["micro_batch"]), said,
            value_text(row["published"], unit)]
    for value in values:
        text += [value_text(value, unit), off_text(value, row["published"])]
    return text


def table(program, facts, each, verdicts):
    unit = each["unit"]
    lines = []
    with tempfile.NamedTemporaryFile("w", suffix=".json") as system:
        json.dump(facts["programs"][each["program"]]["program"], system)
        system.flush()
        for row in each["rows"]:
            results = [predicted(program, ROOT / cluster, system.name, row, unit) for cluster in facts["machines"].values()]
            lines.append(cells(row, unit, [value for value, _ in results], results[0][1]))
            off = results[0][0] / row["published"] - 1
            if row["held"]:
                verdicts.append(Verdict(abs(off) <= MOST_OFF, f"{row['model']}, {lines[-1][4]}: {off * 100:+.1f}%, at most 10% off"))
    head = ["model", "GPUs", "tp x pp x dp", "micro-batch", "recomputed", f"published, {unit}"]
    for machine in facts["machines"]:
        head += [f"{machine} rates", "off"]
    return [f"### {each['source']}", "", *markdown_table(head, lines)]


def main():
    parser = parser_of("published", __doc__)
    parser.add_argument("--program", default=str(BIN / "stretto-plan"), help="stretto-plan")
    parser.add_argument("--write-docs", nargs="?", const=str(ROOT / "docs/layout.md"), type=pathlib.Path, metavar="FILE",
                        help="put the tables between the marks of docs/layout.md, or of FILE")
    options = parser.parse_args()
    if options.write_docs:
        SECTION.around(options.write_docs)
    facts = json.loads(FACTS.read_text())
    verdicts = []
    tables = "\n\n".join("\n".join(table(options.program, facts, each, verdicts)) for each in facts["tables"])
    print(tables)
    if options.write_docs:
        SECTION.replace(options.write_docs, tables)
    print(*("", *map(verdict_text, verdicts)), sep="\n")
    sys.exit(any(not verdict.holds for verdict in verdicts))


if __name__ == "__main__":
    main()
