"""How much of communication is hidden behind computation: every case of stretto-perf overlap, on links slow enough to tell.

2 ranks of 1 thread each run a training step four ways. Links: the library's link model, at several ratios of communication to
computation; then, as root, two network namespaces with a cable limited to the same rate, on real sockets. Beside them the controls:
the step without overlap, and links of no cost. Prints a table with verdicts; exits 1 if a row falls short.
"""
import sys

from perf.comparisons import namespaces
from perf.comparisons.programs import BIN, add_outputs, figures_of, parser_of, read_json, run, write_json
from perf.pages.text import DocsSection, MARKS, markdown_table, rounds_text

PROGRAM = BIN / "stretto-perf"
SECTION = DocsSection("./dev perf overlap")
RATIOS = [0.5, 0.7, 0.9, 2.0]
# Layers, width, rows: a step takes about a second on a core of 100 GFLOP/s and each of its operations milliseconds. Moving a byte
# takes the core as well, but little of it beside the computation for each byte.
SIZES = {"dp": [24, 320, 8192], "zero3": [24, 320, 8192], "tp": [2, 1024, 1024], "ring_pass": [1, 64, 8192],
         "all_to_all": [6, 768, 2048]}
WANTED = {"dp": 0.9, "zero3": 0.9, "ring_pass": 0.85, "tp": 0.8, "all_to_all": 0.8}
HEADERS = 1.055  # bytes on a cable for each byte sent over TCP
MOST_OVER_BOUND = 1.10
CONTROL_RATIO = 0.7


def measure(case, words, start=run):
    """The figures of stretto-perf overlap."""
    return figures_of([PROGRAM, "overlap", "--case", case, *words], start)


def over_sockets(case, ratio, modelled, words):
    """The case between two hosts. modelled: its figures on the link model, whose bytes travel between hosts as well. The cable's rate
    is such that these bytes take ratio times as long as the computation."""
    rate = f"{modelled['bytes_sent'] * HEADERS / (ratio * modelled['t_compute_ms'] / 1e3) * 8 / 1e6:.2f}mbit"
    with namespaces.Network([1, 1], rate) as network:
        return {**measure(case, words, network.run), "links": f"cable, {rate}"}


def rows_of(options):
    """Yields (kind, wanted ratio, figures); kind is free, off, model or sockets."""
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
    """The requirement for a row, and whether it holds."""
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
            f"{wanted}: {MARKS[holds]}"]


HEADINGS = ["case", "links", "comm/compute", "compute ms", "comm ms", "serial ms", "full ms", "exposed ms", "efficiency", "full/bound",
            "predicted ms", "bits", "asked"]


def section(figures):
    about = f"{figures['processor']}, 2 ranks of 1 thread; {rounds_text(figures['rounds'])}. Measured by `./dev perf overlap`."
    return "\n".join([about, "", *markdown_table(HEADINGS, [cells(*row) for row in figures["rows"]])])


def main():
    parser = parser_of("overlap", __doc__)
    parser.add_argument("--cases", nargs="+", choices=sorted(WANTED), default=list(WANTED))
    parser.add_argument("--ratios", nargs="+", type=float, default=RATIOS, help="ratios of communication to computation")
    parser.add_argument("--socket-ratios", nargs="+", type=float, default=RATIOS, help="the same ratios for sockets")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-sockets", dest="sockets", action="store_false", help="measure the link model only, which does not take root")
    add_outputs(parser, "overlap", "docs/overlap.md")
    options = parser.parse_args()
    if options.sockets and not options.earlier and namespaces.obstacle():
        sys.exit(f"error: {namespaces.obstacle()} To measure without them, give --no-sockets.")
    if options.write_docs:
        SECTION.around(options.write_docs)

    print("  ".join(f"{heading:>10}" for heading in HEADINGS))
    if options.earlier:
        figures = read_json(options.earlier)
        for row in figures["rows"]:
            print("  ".join(f"{cell:>10}" for cell in cells(*row)))
    else:
        figures = {"rounds": options.rounds, "rows": []}
        for row in rows_of(options):
            figures["rows"].append(row)
            print("  ".join(f"{cell:>10}" for cell in cells(*row)), flush=True)
            figures["processor"] = row[2]["processor"]
            write_json(options.json, figures)  # after each row: the whole takes an hour
    if options.write_docs:
        SECTION.replace(options.write_docs, section(figures))
    return 0 if all(verdict(*row)[1] for row in figures["rows"]) else 1


if __name__ == "__main__":
    namespaces.exit_with(main)
