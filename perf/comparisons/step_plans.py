"""Compares the planner's schedules of training steps with plainer schedules, on simulated clusters.

Runs stretto-plan step for each model of MODELS, on 8 to 1,024 ranks of three kinds of nodes. All figures are simulated.
"""
from perf.comparisons.harness import Comparison, Table
from perf.comparisons.programs import ROOT, figures_of

RANKS = [8, 64, 256, 1024]
# Link file; bandwidth of a rank inside a node to its share between nodes; 1e9 operations a second of a rank.
CLUSTERS = [("pcie_nic_each", "1:1", 100_000), ("nvlink_nic_each", "9:1", 400_000), ("nvlink_shared_nics", "24:1", 150_000)]
MODELS = {
    "Data parallel, 24 layers of 2048, 4 x 2048 tokens a rank": ["--layers", 24, "--hidden", 2048, "--micro-batch", 4],
    "Data parallel x tensor parallel of 8, 32 layers of 4096, 4 x 2048 tokens a group":
        ["--tp", 8, "--layers", 32, "--hidden", 4096, "--micro-batch", 4],
    "ZeRO-3, 32 layers of 4096, 2 x 2048 tokens a rank": ["--zero", 3, "--layers", 32, "--hidden", 4096, "--micro-batch", 2],
}
HEAD = ["ranks", "inside : between", "no partition", "25 MiB buckets", "buckets by level", "planner", "gain", "over levels", "bound",
        "the planner's choice"]


def measured(options):
    yield {"plans": {title: [(ranks, ratio, figures_of([options.program, "step", "--ranks", ranks, "--links", ROOT / f"docs/links/{links}.json",
                                                        "--gflops", gflops, *model]))
                             for links, ratio, gflops in CLUSTERS for ranks in RANKS] for title, model in MODELS.items()}}


def cells(ranks, ratio, plan):
    """Gain is over the faster of no partition and buckets only; a gain below a thousandth counts as none."""
    plain = min(plan["blocking_ms"], plan["unpartitioned_ms"])
    gains = [best / plan["planned_ms"] for best in (min(plain, plan["buckets_ms"]), plan["by_level_ms"])]
    times = [f"{value:,.1f}" for value in (plain, plan["buckets_ms"], plan["by_level_ms"], plan["planned_ms"])]
    return [f"{ranks:,}", ratio, *times, *(f"{gain:.2f}x" if gain > 1.001 else "none" for gain in gains), f"{plan['bound_ms']:,.1f}",
            plan["choice"]]


def tables(figures):
    for title, rows in figures["plans"].items():
        yield Table(title, HEAD, [cells(*row) for row in rows], in_page=False)
    gains = []
    for title, rows in figures["plans"].items():
        for ratio in dict.fromkeys(row[1] for row in rows):
            here = [cells(*row) for row in rows if row[1] == ratio]
            gains.append([title, ratio, *(row[6] for row in here), here[-1][7]])
    yield Table("How many times as fast as the faster of no partition and buckets of 25 MiB",
                ["step", "inside : between", *(f"{ranks:,} ranks" for ranks in RANKS), f"over buckets by level, {RANKS[-1]:,} ranks"], gains)


Comparison("plans", __doc__, measured, tables, page="docs/planner.md", program="stretto-plan", simulated=True)
