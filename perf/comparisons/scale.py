"""Simulates every algorithm at many numbers of ranks and sizes, and prints the fastest of each.

Runs stretto-plan --simulate for every row of the tables; the link file says how many ranks a node has. The page gets the fastest
methods and their simulated times.
"""
import json
import pathlib
import subprocess
import sys

from perf.comparisons.harness import Comparison, Table, flag
from perf.comparisons.programs import ROOT

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


def measured(options):
    ranks_per_node = json.loads(options.links.read_text())["levels"][0]["ranks"]
    found = {}
    for collective in options.collectives or COLLECTIVES:
        rows = found[collective] = []
        for ranks in options.ranks:
            for size in options.sizes:
                if methods := predictions(options.program, collective, ranks, size, options.links, ranks_per_node):
                    rows.append((ranks, size, methods[0], next(row for row in methods if not row[0].startswith("two_level"))))
        print(f"{collective} is done", file=sys.stderr)
        yield {"links": options.links.name, "collectives": found}


def time_of(microseconds):
    return f"{microseconds:,.0f} us" if microseconds < 1e4 else f"{microseconds / 1e3:,.1f} ms"


def tables(figures):
    for collective, rows in figures["collectives"].items():
        cells = [[str(ranks), size, *(text for method, simulated, formula in (best, flat)
                                      for text in (f"`{method}`", time_of(simulated), time_of(formula)))] for ranks, size, best, flat in rows]
        yield Table(collective, HEADER, cells, in_page=False)
        sizes = list(dict.fromkeys(size for _, size, *_ in rows))
        fastest = {(ranks, size): f"`{best[0]}` {time_of(best[1])}" for ranks, size, best, _ in rows}
        yield Table(f"{collective}: fastest method and its simulated time", ["ranks", *sizes],
                    [[str(ranks), *(fastest.get((ranks, size), "") for size in sizes)] for ranks in dict.fromkeys(row[0] for row in rows)])


Comparison("scale", __doc__, measured, tables, page="docs/scale.md", program="stretto-plan", simulated=True, about=lambda figures: f"links {figures['links']}",
           flags=(("links", {"nargs": "?", "type": pathlib.Path, "default": ROOT / "docs/links/two_level.json",
                             "help": "link file (default docs/links/two_level.json)"}, False),
                  ("collectives", {"nargs": "*", "metavar": "COLLECTIVE", "help": "default " + " ".join(COLLECTIVES)}, False),
                  flag("--ranks", RANKS, nargs="+", type=int), flag("--sizes", SIZES, "bytes, with suffix K, M or G", nargs="+", type=str)))
