#!/usr/bin/env python3
"""What the planner makes of training steps on clusters that need not be there, beside plainer schedules, as Markdown tables.

For each model of MODELS, on 8 to 1,024 ranks of three kinds of nodes, stretto-plan step. All figures are simulated.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import marked_text

ROOT = pathlib.Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- plans: begin -->", "<!-- plans: end -->"
RANKS = [8, 64, 256, 1024]
# Link file, bandwidth of a rank inside a node to its share between nodes, and 1e9 operations a second that a rank computes.
CLUSTERS = [("pcie_nic_each", "1:1", 100_000), ("nvlink_nic_each", "9:1", 400_000), ("nvlink_shared_nics", "24:1", 150_000)]
MODELS = [
    ("Data parallel, 24 layers of 2048, 4 x 2048 tokens a rank", ["--layers", 24, "--hidden", 2048, "--micro-batch", 4]),
    ("Data parallel x tensor parallel of 8, 32 layers of 4096, 4 x 2048 tokens a group",
     ["--tp", 8, "--layers", 32, "--hidden", 4096, "--micro-batch", 4]),
    ("ZeRO-3, 32 layers of 4096, 2 x 2048 tokens a rank",
     ["--zero", 3, "--layers", 32, "--hidden", 4096, "--micro-batch", 2]),
]
HEAD = ["ranks", "inside : between", "no partition", "25 MiB buckets", "buckets by level", "planner", "gain", "over levels", "bound",
        "what it chose"]


def planned(program, ranks, links, gflops, model):
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "plan.json"
        command = [program, "step", "--ranks", ranks, "--links", ROOT / f"docs/links/{links}.json", "--gflops", gflops,
                   "--json", path, *model]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{done.stderr.strip()} ({' '.join(map(str, command))})")
        return json.loads(path.read_text())


def cells(ranks, ratio, figures):
    """Gain is over the better one of no partition and buckets only; what is within a thousandth is none."""
    plain = min(figures["blocking_ms"], figures["unpartitioned_ms"])
    gains = [best / figures["planned_ms"] for best in (min(plain, figures["buckets_ms"]), figures["by_level_ms"])]
    said = [f"{gain:.2f}x" if gain > 1.001 else "none" for gain in gains]
    times = [f"{value:,.1f}" for value in (plain, figures["buckets_ms"], figures["by_level_ms"], figures["planned_ms"])]
    return [f"{ranks:,}", ratio, *times, *said, f"{figures['bound_ms']:,.1f}", figures["choice"]]


def table(program, model):
    rows = [HEAD, ["---"] * len(HEAD)]
    for links, ratio, gflops in CLUSTERS:
        for ranks in RANKS:
            rows.append(cells(ranks, ratio, planned(program, ranks, links, gflops, model)))
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def section(program):
    return "\n".join(f"### {title}\n\n{table(program, model)}" for title, model in MODELS)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(ROOT / "build/bin/stretto-plan"), help="stretto-plan")
    parser.add_argument("--write-docs", nargs="?", const=str(ROOT / "docs/planner.md"), metavar="FILE",
                        help="put the tables between the marks of docs/planner.md, or of FILE")
    options = parser.parse_args()
    if options.write_docs:
        marked_text.around(pathlib.Path(options.write_docs), BEGIN, END)
    tables = section(options.program)
    print(tables)
    if options.write_docs:
        marked_text.replace(pathlib.Path(options.write_docs), BEGIN, END, tables)


if __name__ == "__main__":
    main()
