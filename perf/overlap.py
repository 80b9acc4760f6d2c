#!/usr/bin/env python3
"""How much of communication is hidden behind computation: every case of stretto-perf overlap, on links that are slow enough to tell.

2 ranks of 1 thread each run a training step four ways. Links: the library's link model, at several ratios of communication to
computation; then, as root, two network namespaces with a cable held to the same rate, on real sockets. Beside them the controls: the
step without overlap, and links of no cost. Prints a table and what is asked of it; exits 1 where that falls short.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import marked_text
import namespaces

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "build/bin/stretto-perf"
PAGE = ROOT / "docs/overlap.md"
BEGIN = "<!-- overlap: perf/overlap.py --write-docs replaces what follows -->"
END = "<!-- end of overlap -->"
RATIOS = [0.5, 0.7, 0.9, 2.0]
# Layers, width, rows: a step takes about a second on a core of 100 GFLOP/s and its pieces milliseconds, and a rank computes so
# much for every byte that moving it, which takes the core too, is a small part.
SIZES = {"dp": [24, 320, 8192], "zero3": [24, 320, 8192], "tp": [2, 1024, 1024], "ring_pass": [1, 64, 8192],
         "all_to_all": [6, 768, 2048]}
WANTED = {"dp": 0.9, "zero3": 0.9, "ring_pass": 0.85, "tp": 0.8, "all_to_all": 0.8}
HEADERS = 1.055  # bytes on a cable for each byte that is sent over TCP
MOST_OVER_BOUND = 1.10
CONTROL_RATIO = 0.7


def measure(case, words, start=None):
    """What stretto-perf overlap found."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [PROGRAM, "overlap", "--case", case, "--json", file.name, *words]
        if start:
            start(command)
        else:
            subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
        return json.load(open(file.name))


def over_sockets(case, ratio, between_hosts, words):
    """between_hosts: the same case on modelled links, whose bytes are those between hosts. The cable carries a step's in ratio
    times what it computes."""
    rate = between_hosts["bytes_sent"] * HEADERS / (ratio * between_hosts["t_compute_ms"] / 1e3)
    with_rate = f"{rate * 8 / 1e6:.2f}mbit"
    network = namespaces.Network([1, 1], with_rate)
    try:
        result = measure(case, words, lambda command: network.run(command))
    finally:
        network.close()
    return {**result, "links": f"cable, {with_rate}"}


def rows_of(options):
    """(kind, ratio wanted, figures): kind is model, sockets, off or free."""
    for case in options.cases:
        layers, hidden, rows = SIZES[case]
        extra = ["--rounds", options.rounds, "--layers", layers, "--hidden", hidden, "--rows", rows]
        yield "free", 0, measure(case, ["--nproc", 2, *extra])
        yield "off", CONTROL_RATIO, measure(case, ["--nproc", 2, "--ratio", CONTROL_RATIO, "--no-overlap", *extra])
        modelled = {}
        for ratio in options.ratios:
            modelled[ratio] = measure(case, ["--nproc", 2, "--ratio", ratio, *extra])
            yield "model", ratio, modelled[ratio]
        for ratio in options.socket_ratios if options.sockets else []:
            nearest = min(modelled, key=lambda each: abs(each - ratio))
            yield "sockets", ratio, over_sockets(case, ratio, modelled[nearest], ["--nproc", 0, *extra])


def verdict(kind, ratio, row):
    """What is asked of it, and whether it holds."""
    over_bound = row["t_full_ms"] / max(row["t_compute_ms"], row["t_comm_ms"])
    same = row["same_bits"]
    if kind == "free":
        return "no gain", same and row["t_full_ms"] > 0.9 * row["t_serial_ms"]
    if kind == "off":
        return "efficiency near 0", same and abs(row["efficiency"]) <= 0.1
    if ratio > 1:
        return f"within {MOST_OVER_BOUND - 1:.0%} of communication", same and over_bound <= MOST_OVER_BOUND
    wanted = WANTED[row["case"]]
    return f"efficiency {wanted}", same and row["efficiency"] >= wanted and over_bound <= MOST_OVER_BOUND


KINDS = {"free": "no cost", "off": "link model, no overlap", "model": "link model", "sockets": "sockets"}


def cells(kind, ratio, row):
    wanted, holds = verdict(kind, ratio, row)
    times = [row[key] for key in ("t_compute_ms", "t_comm_ms", "t_serial_ms", "t_full_ms", "exposed_ms")]
    return [row["case"], KINDS[kind], f"{row['t_comm_ms'] / row['t_compute_ms']:.2f}", *(f"{time:.0f}" for time in times),
            "-" if kind == "free" else f"{row['efficiency']:.2f}",
            f"{row['t_full_ms'] / max(row['t_compute_ms'], row['t_comm_ms']):.2f}",
            f"{row['t_predicted_ms']:.0f}" if "t_predicted_ms" in row else "-", "equal" if row["same_bits"] else "DIFFERENT",
            f"{wanted}: {'holds' if holds else 'FALLS SHORT'}"]


HEADINGS = ["case", "links", "comm/compute", "compute ms", "comm ms", "serial ms", "full ms", "exposed ms", "efficiency", "full/bound",
            "predicted ms", "bits", "asked"]


def section(figures):
    lines = [f"{figures['processor']}, 2 ranks of 1 thread; medians of {figures['rounds']} rounds. `./dev perf overlap` measured this.", "",
             "| " + " | ".join(HEADINGS) + " |", "|" + " --- |" * len(HEADINGS)]
    lines += ["| " + " | ".join(cells(*row)) + " |" for row in figures["rows"]]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=sorted(WANTED), default=list(WANTED))
    parser.add_argument("--ratios", nargs="+", type=float, default=RATIOS, help="of communication to computation")
    parser.add_argument("--socket-ratios", nargs="+", type=float, default=RATIOS, help="the same of sockets")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-sockets", dest="sockets", action="store_false", help="the link model alone, which takes no root")
    parser.add_argument("--json", help="write the figures to this file")
    parser.add_argument("--from-json", help="measure nothing; take the figures from this file")
    parser.add_argument("--write-docs", action="store_true", help=f"write the table into {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    if options.sockets and not options.from_json and namespaces.obstacle():
        sys.exit(f"error: {namespaces.obstacle()} Without them: --no-sockets.")

    if options.from_json:
        figures = json.load(open(options.from_json))
        for row in figures["rows"]:
            print("  ".join(f"{cell:>10}" for cell in cells(*row)))
    else:
        print("  ".join(f"{heading:>10}" for heading in HEADINGS))
        figures = {"rounds": options.rounds, "rows": []}
        for row in rows_of(options):
            figures["rows"].append(row)
            print("  ".join(f"{cell:>10}" for cell in cells(*row)), flush=True)
            figures["processor"] = row[2]["processor"]
            if options.json:  # what there is: it takes a while
                pathlib.Path(options.json).write_text(json.dumps(figures, indent=1) + "\n")
    if options.write_docs:
        marked_text.replace(PAGE, BEGIN, END, section(figures))
    return 0 if all(verdict(*row)[1] for row in figures["rows"]) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (subprocess.CalledProcessError, namespaces.CommandFailed) as failed:
        sys.exit(f"error: {failed}")
