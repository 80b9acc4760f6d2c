#!/usr/bin/env python3
"""Which algorithm wins at which number of ranks and bytes, by the simulator, as the Markdown tables of docs/scale.md.

scale.py STRETTO_PLAN [LINK_FILE [COLLECTIVE...]] runs stretto-plan --simulate for every cell; the ranks of a node come from the link file.
"""
import json
import pathlib
import subprocess
import sys

RANKS = [8, 16, 64, 256, 1024, 4096, 16384]
SIZES = ["4K", "256K", "16M", "1G"]
COLLECTIVES = ["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce"]


def predictions(program, collective, ranks, size, links, ranks_per_node):
    """[(method, simulated us, formula us)], fastest first; what the simulator refuses is left out."""
    command = [program, collective, "--ranks", str(ranks), "--bytes", size, "--simulate", str(links)]
    if ranks > ranks_per_node:
        command += ["--ranks-per-node", str(ranks_per_node)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        return []  # fewer bytes than ranks
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


def main():
    program = sys.argv[1]
    links = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else "docs/links/two_level.json")
    ranks_per_node = json.loads(links.read_text())["levels"][0]["ranks"]
    for collective in sys.argv[3:] or COLLECTIVES:
        print(f"\n### {collective}\n")
        print("| ranks | bytes | fastest | simulated | formula | best of one level | simulated | formula |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
        for ranks in RANKS:
            for size in SIZES:
                rows = predictions(program, collective, ranks, size, links, ranks_per_node)
                if not rows:
                    continue
                flat = next(row for row in rows if not row[0].startswith("two_level"))
                cells = [str(ranks), size]
                for method, simulated, formula in (rows[0], flat):
                    cells += [f"`{method}`", time_of(simulated), time_of(formula)]
                print("| " + " | ".join(cells) + " |")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
