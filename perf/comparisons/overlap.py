"""How much of communication is hidden behind computation: every case of stretto-perf overlap, on links slow enough to tell.

2 ranks of 1 thread each run a training step four ways. Links: the library's link model, at several ratios of communication to
computation; then, as root, two network namespaces with a cable limited to the same rate, on real sockets. Beside them the controls:
the step without overlap, and links of no cost. Exits 1 if a row falls short. All of it takes an hour.
"""
import sys

from perf.comparisons import namespaces
from perf.comparisons.harness import Comparison, Table, flag
from perf.comparisons.programs import BIN, figures_of, run
from perf.pages.text import MARKS, Verdict, rounds_text

RATIOS = [0.5, 0.7, 0.9, 2.0]
# Layers, width, rows: a step takes about a second on a core of 100 GFLOP/s and each of its operations milliseconds. Moving a byte
# takes the core as well, but little of it beside the computation for each byte.
SIZES = {"dp": [24, 320, 8192], "zero3": [24, 320, 8192], "tp": [2, 1024, 1024], "ring_pass": [1, 64, 8192],
         "all_to_all": [6, 768, 2048]}
WANTED = {"dp": 0.9, "zero3": 0.9, "ring_pass": 0.85, "tp": 0.8, "all_to_all": 0.8}
HEADERS = 1.055  # bytes on a cable for each byte sent over TCP
MOST_OVER_BOUND = 1.10
CONTROL_RATIO = 0.7
KINDS = {"free": "no cost", "off": "link model, no overlap", "model": "link model", "sockets": "sockets"}


def over_sockets(case, ratio, modelled, words):
    """The case between two hosts. modelled: its figures on the link model, whose bytes travel between hosts as well. The cable's rate
    is such that these bytes take ratio times as long as the computation."""
    rate = f"{modelled['bytes_sent'] * HEADERS / (ratio * modelled['t_compute_ms'] / 1e3) * 8 / 1e6:.2f}mbit"
    with namespaces.Network([1, 1], rate) as network:
        return {**measure(case, words, network.run), "links": f"cable, {rate}"}


def measure(case, words, start=run):
    return figures_of([BIN / "stretto-perf", "overlap", "--case", case, *words], start)


def rows_of(options):
    """Yields (kind, wanted ratio, figures)."""
    for case in options.cases:
        layers, hidden, rows = SIZES[case]
        size = ["--rounds", options.rounds, "--layers", layers, "--hidden", hidden, "--rows", rows]
        here = ["--nproc", 2, *size]
        yield "free", 0, measure(case, here)
        yield "off", CONTROL_RATIO, measure(case, [*here, "--ratio", CONTROL_RATIO, "--no-overlap"])
        modelled = {}
        for ratio in options.ratios:
            modelled[ratio] = measure(case, [*here, "--ratio", ratio])
            yield "model", ratio, modelled[ratio]
        for ratio in options.socket_ratios if options.sockets else []:
            nearest = min(modelled, key=lambda each: abs(each - ratio))
            yield "sockets", ratio, over_sockets(case, ratio, modelled[nearest], ["--nproc", 0, *size])


def measured(options):
    rows = []
    for row in rows_of(options):
        rows.append(row)
        print("  ".join(cells(*row)), file=sys.stderr)
        yield {"rounds": options.rounds, "rows": rows}


def over_bound(row):
    return row["t_full_ms"] / max(row["t_compute_ms"], row["t_comm_ms"])


def asked(kind, ratio, row):
    """The requirement for a row, and whether it holds."""
    same = row["same_bits"]
    if kind == "free":
        return "no gain", same and row["t_full_ms"] > 0.9 * row["t_serial_ms"]
    if kind == "off":
        return "efficiency near 0", same and abs(row["efficiency"]) <= 0.1
    if ratio > 1:
        return f"within {MOST_OVER_BOUND - 1:.0%} of communication", same and over_bound(row) <= MOST_OVER_BOUND
    wanted = WANTED[row["case"]]
    return f"efficiency {wanted}", same and row["efficiency"] >= wanted and over_bound(row) <= MOST_OVER_BOUND


def share(row):
    return f"{row['t_comm_ms'] / row['t_compute_ms']:.2f}"


def efficiency(kind, row):
    return "-" if kind == "free" else f"{row['efficiency']:.2f}"


def cells(kind, ratio, row):
    wanted, holds = asked(kind, ratio, row)
    times = [row[key] for key in ("t_compute_ms", "t_comm_ms", "t_serial_ms", "t_full_ms", "exposed_ms")]
    return [row["case"], KINDS[kind], share(row), *(f"{time:.0f}" for time in times),
            efficiency(kind, row), f"{over_bound(row):.2f}",
            "equal" if row["same_bits"] else "DIFFERENT",
            f"{wanted}: {MARKS[holds]}"]


def tables(figures):
    yield Table("", ["case", "links", "comm/compute", "compute ms", "comm ms", "serial ms", "full ms", "exposed ms", "efficiency",
                     "full/bound", "bits", "asked"], [cells(*row) for row in figures["rows"]], in_page=False)


def notes(figures):
    """The efficiencies of each case."""
    for case in dict.fromkeys(row["case"] for *_, row in figures["rows"]):
        kinds = []
        for kind in ("model", "sockets", "off"):
            found = [f"{row['efficiency']:.2f} at {share(row)}" for each, _, row in figures["rows"] if (each, row["case"]) == (kind, case)]
            kinds += [f"{KINDS[kind]} {', '.join(found)}"] if found else []
        yield f"{case}, efficiency at times of communication over computation: {'; '.join(kinds)}"


def verdicts(figures):
    for kind, ratio, row in figures["rows"]:
        wanted, holds = asked(kind, ratio, row)
        yield Verdict(holds, f"{row['case']}, {KINDS[kind]}, at {share(row)}: {wanted}; efficiency {efficiency(kind, row)}, "
                             f"{over_bound(row):.2f} times the bound")


def check(parser, options):
    if options.sockets and not options.earlier and namespaces.obstacle():
        sys.exit(f"error: {namespaces.obstacle()} To measure without them, give --no-sockets.")


Comparison(
    "overlap", __doc__, measured, tables, verdicts, notes=notes, check=check, page="docs/overlap.md",
    about=lambda figures: f"2 ranks of 1 thread; {rounds_text(figures['rounds'])}",
    flags=(flag("--cases", list(WANTED), nargs="+", type=str, choices=sorted(WANTED)),
           flag("--ratios", RATIOS, "ratios of communication to computation", nargs="+", type=float),
           flag("--socket-ratios", RATIOS, "the same for sockets", nargs="+", type=float), flag("--rounds", 5),
           flag("--no-sockets", True, "measure the link model only, which does not take root", dest="sockets")))
