"""Simulates every algorithm at many numbers of ranks and sizes, and prints the fastest of each as Markdown tables.

Runs stretto-plan --simulate for every row of the tables; the link file says how many ranks a node has.
"""
import json
import pathlib
import subprocess
import sys

from perf.comparisons.programs import BIN, ROOT, parser_of
from perf.pages.text import DocsSection, markdown_table

SECTION = DocsSection("./dev perf scale")
RANKS = [8, 16, 64, 256, 1024, 4096, 16384]
SIZES = ["4K", "256K", "16M", "1G"]
COLLECTIVES = ["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce"]
HEADER = ["ranks", "bytes", "fastest", "simulated", "formula", "best of one level", "simulated", "formula"]


def predictions(program, collective, ranks, size, links, ranks_per_node):
    """[(method, simulated us, formula us)], fastest first, without the methods that the simulator refuses; empty if there are
    fewer bytes than ranks."""
    command = [program, collective, "--ranks", str(ranks), "--bytes", size, "--simulate", str(links)]
    if ranks > ranks_per_node:
        command += ["--ranks-per-node", str(ranks_per_node)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0 and "give more" not in done.stderr:
        sys.exit(f"error: '{' '.join(command)}' ended with status {done.returncode}: {done.stderr.strip()}")
    rows = []
    for line in done.stdout.splitlines()[2:]:
        words = line.split()
        try:
            rows.append((words[0], float(words[1]), float(words[2])))
        except ValueError:
            continue
    return rows


def time_of(microseconds):
    return f"{microseconds:,.0f} us" if microseconds < 1e4 else f"{microseconds / 1e3:,.1f} ms"


def table(options, collective, ranks_per_node):
    cells = []
    for ranks in options.ranks:
        for size in options.sizes:
            rows = predictions(options.program, collective, ranks, size, options.links, ranks_per_node)
            if not rows:
                continue
            flat = next(row for row in rows if not row[0].startswith("two_level"))
            cells.append([str(ranks), size])
            for method, simulated, formula in (rows[0], flat):
                cells[-1] += [f"`{method}`", time_of(simulated), time_of(formula)]
    return markdown_table(HEADER, cells)


def main():
    parser = parser_of("scale", __doc__)
    parser.add_argument("links", nargs="?", type=pathlib.Path, default=ROOT / "docs/links/two_level.json",
                        help="link file (default docs/links/two_level.json)")
    parser.add_argument("collectives", nargs="*", metavar="COLLECTIVE", default=COLLECTIVES, help="default " + " ".join(COLLECTIVES))
    parser.add_argument("--ranks", nargs="+", type=int, default=RANKS)
    parser.add_argument("--sizes", nargs="+", default=SIZES, help="bytes, with suffix K, M or G")
    parser.add_argument("--program", default=str(BIN / "stretto-plan"), help="stretto-plan")
    parser.add_argument("--write-docs", nargs="?", const=ROOT / "docs/scale.md", type=pathlib.Path, metavar="FILE",
                        help="put the tables between the marks of docs/scale.md, or of FILE")
    options = parser.parse_args()
    if options.write_docs:
        SECTION.around(options.write_docs)
    ranks_per_node = json.loads(options.links.read_text())["levels"][0]["ranks"]
    sections = []
    for collective in options.collectives:
        sections.append("\n".join([f"### {collective}", "", *table(options, collective, ranks_per_node)]))
        print(sections[-1] + "\n", flush=True)
    if options.write_docs:
        SECTION.replace(options.write_docs, "\n\n".join(sections))


if __name__ == "__main__":
    main()
