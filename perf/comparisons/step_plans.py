"""Compares the planner's schedules of training steps with plainer schedules, on simulated clusters, as Markdown tables.

Runs stretto-plan step for each model of MODELS, on 8 to 1,024 ranks of three kinds of nodes. All figures are simulated.
"""
import pathlib

from perf.comparisons.programs import BIN, ROOT, figures_of, parser_of
from perf.pages.text import DocsSection, markdown_table

SECTION = DocsSection("./dev perf plans")
RANKS = [8, 64, 256, 1024]
# Link file; bandwidth of a rank inside a node to its share between nodes; 1e9 operations a second of a rank.
CLUSTERS = [("pcie_nic_each", "1:1", 100_000), ("nvlink_nic_each", "9:1", 400_000), ("nvlink_shared_nics", "24:1", 150_000)]
MODELS = [
    ("Data parallel, 24 layers of 2048, 4 x 2048 tokens a rank", ["--layers", 24, "--hidden", 2048, "--micro-batch", 4]),
    ("Data parallel x tensor parallel of 8, 32 layers of 4096, 4 x 2048 tokens a group",
     ["--tp", 8, "--layers", 32, "--hidden", 4096, "--micro-batch", 4]),
    ("ZeRO-3, 32 layers of 4096, 2 x 2048 tokens a rank",
     ["--zero", 3, "--layers", 32, "--hidden", 4096, "--micro-batch", 2]),
]
HEAD = ["ranks", "inside : between", "no partition", "25 MiB buckets", "buckets by level", "planner", "gain", "over levels", "bound",
        "the planner's choice"]


def planned(program, ranks, links, gflops, model):
    return figures_of([program, "step", "--ranks", ranks, "--links", ROOT / f"docs/links/{links}.json", "--gflops", gflops, *model])


def cells(ranks, ratio, figures):
    """Gain is over the faster of no partition and buckets only; a gain below a thousandth counts as none."""
    plain = min(figures["blocking_ms"], figures["unpartitioned_ms"])
    gains = [best / figures["planned_ms"] for best in (min(plain, figures["buckets_ms"]), figures["by_level_ms"])]
    said = [f"{gain:.2f}x" if gain > 1.001 else "none" for gain in gains]
    times = [f"{value:,.1f}" for value in (plain, figures["buckets_ms"], figures["by_level_ms"], figures["planned_ms"])]
    return [f"{ranks:,}", ratio, *times, *said, f"{figures['bound_ms']:,.1f}", figures["choice"]]


def table(program, model):
    return markdown_table(HEAD, [cells(ranks, ratio, planned(program, ranks, links, gflops, model))
                                 for links, ratio, gflops in CLUSTERS for ranks in RANKS])


def main():
    parser = parser_of("plans", __doc__)
    parser.add_argument("--program", default=str(BIN / "stretto-plan"), help="stretto-plan")
    parser.add_argument("--write-docs", nargs="?", const=str(ROOT / "docs/planner.md"), type=pathlib.Path, metavar="FILE",
                        help="put the tables between the marks of docs/planner.md, or of FILE")
    options = parser.parse_args()
    if options.write_docs:
        SECTION.around(options.write_docs)
    tables = "\n\n".join("\n".join([f"### {title}", "", *table(options.program, model)]) for title, model in MODELS)
    print(tables)
    if options.write_docs:
        SECTION.replace(options.write_docs, tables)


if __name__ == "__main__":
    main()
