"""Finds the bandwidth between nodes above which quantized collectives no longer pay on this machine.

Ranks of this host stand for nodes, and STRETTO_LINKS makes messages between them as slow as on links of that bandwidth. At each
bandwidth, each round runs stretto-perf in turn: reduce-scatter plain and in int4, all-gather plain and in int8, all-reduce plain and
in int4 with its result in int8, each by the method that the library chooses. Figures are medians over the rounds. The times that the
cost model expected of both sides are taken from STRETTO_EXPLAIN.
"""
import collections
import math
import re
import statistics
import sys

from perf.comparisons.harness import Comparison, Table, flag, rounds_of
from perf.comparisons.programs import figures_of, read_json, run
from perf.pages.chart import Curve, LinearAxis, LogAxis, picture
from perf.pages.text import DocsSection, machine_text, rounds_text, size_text, time_text

MIB = 1 << 20
RATES = [0.3, 1, 3, 10, 30, 100]  # Gb/s
AS_GOOD = 0.05  # a time that is no more than this part longer counts as equal
ELEMENT_BYTES = {"bf16": 2, "f16": 2, "f32": 4}
RECORD_BYTES = {"int8": 260 / 256, "int4": 34 / 64, "fp8": 260 / 256, "onebit": 132 / 1024}  # of an element
PLOT = "quantization-crossover.svg"  # beside the page
KERNELS = DocsSection("./dev perf quantization --kernels FILE")
SIDES = ("plain", "quantized")

How = collections.namedtuple("How", "flags text")
COLLECTIVES = {
    "reduce_scatter": How(["--quantize", "int4"], "int4"),
    "all_gather": How(["--quantize", "int8"], "int8"),
    "all_reduce": How(["--quantize", "int4", "--quantize-result", "int8"], "int4, sum in int8"),
}
# stretto: all_gather of 1024 bf16 in 'world', symmetric memory: two_level/4 in int8, 1.5 us by the cost model; then ...
EXPLAINED = re.compile(r"^stretto: (\w+) of (\d+) (\w+) in '[^']*'(?:, symmetric memory)?: .*?([\d.]+) us by the cost model", re.M)


def expected_us(stderr, collective, count, dtype):
    """The cost model's time for the call. Exits with an error if STRETTO_EXPLAIN does not mention the call."""
    for name, elements, type_, us in EXPLAINED.findall(stderr):
        if (name, int(elements), type_) == (collective, count, dtype):
            return float(us)
    sys.exit(f"error: STRETTO_EXPLAIN says nothing of {collective} of {count} {dtype}.")


def perf(options, dtype, rate, collective, side):
    """(microseconds, the figures that do not change from round to round, the library's version)."""
    ranks = options.nodes * options.ranks_per_node
    words = [options.program, collective, "--nproc", ranks, "--ranks-per-node", options.ranks_per_node, "-d", dtype, "-b", options.bytes,
             "-e", options.bytes, "-w", 1, "--seconds", options.seconds, "--copies", 1, "--in-place", 0]
    words += COLLECTIVES[collective].flags if side == "quantized" else []
    links = {"STRETTO_LINKS": f"inter={rate:g}Gb/s,{options.latency:g}us", "STRETTO_EXPLAIN": "1"}
    explanations = []
    result = figures_of(words, lambda command: explanations.append(run(command, **links).stderr))
    row, = result["rows"]
    count = options.bytes // ELEMENT_BYTES[dtype] // (1 if collective == "all_reduce" else ranks)
    rest = {"method": row["algo"], "expected_us": expected_us(explanations[0], collective, count, dtype),
            "bytes_between_nodes": row["wire_bytes_inter"]}
    if side == "quantized":
        rest |= {"max_error": row["max_error"], "rms_error": row["rms_error"]}
    return row["time_us"], rest, f"Stretto {result['machine']['version']}"


def measured(options):
    cases = [(dtype, rate, collective) for dtype in options.dtypes for rate in options.rates for collective in COLLECTIVES]
    samples, rest = collections.defaultdict(list), {}
    for _ in rounds_of(options.rounds):
        for case in cases:
            for side in SIDES:
                us, rest[case, side], version = perf(options, *case, side)
                samples[case, side].append(us)
    rows = [{**dict(zip(("dtype", "rate", "collective"), case)),
             **{side: {"us": statistics.median(samples[case, side]), **rest[case, side]} for side in SIDES}} for case in cases]
    yield {"version": version, "latency_us": options.latency, "rows": rows,
           **{key: getattr(options, key) for key in ("nodes", "ranks_per_node", "bytes", "rounds", "seconds")}}


# ---- the crossover

def gain(row, key="us"):
    """The plain time over the quantized time."""
    return row["plain"][key] / row["quantized"][key]


def chosen(row):
    """The side that the cost model chooses, as only_if_faster does."""
    return "quantized" if gain(row, "expected_us") > 1 else "plain"


def loss(row):
    """The time that choice takes beyond the faster side, as a part of the latter."""
    return row[chosen(row)]["us"] / min(row[side]["us"] for side in SIDES) - 1


def crossing(points):
    """The rate at which points (rate, gain) first fall below 1, interpolated over the logarithm of the rate; None if they never do."""
    points = sorted(points)
    for (rate, above), (next_rate, below) in zip(points, points[1:]):
        if above >= 1 > below:
            part = (above - 1) / (above - below)
            return math.exp(math.log(rate) + part * (math.log(next_rate) - math.log(rate)))
    return None


def dtypes_of(figures):
    return list(dict.fromkeys(row["dtype"] for row in figures["rows"]))


def gains(figures, dtype):
    """Yields (name, points measured, points expected by the cost model); a point is (rate, gain)."""
    for collective, how in COLLECTIVES.items():
        rows = sorted((row for row in figures["rows"] if (row["dtype"], row["collective"]) == (dtype, collective)), key=lambda row: row["rate"])
        if rows:
            yield f"{collective}, {how.text}", *([(row["rate"], gain(row, key)) for row in rows] for key in ("us", "expected_us"))


def break_even_text(points):
    at = crossing(points)
    if at:
        return f"up to about {at:.2g} Gb/s"
    return "at all of these rates" if all(value >= 1 for _, value in points) else "at none of these rates" if points[0][1] < 1 else "nowhere"


def notes(figures):
    for dtype in dtypes_of(figures):
        for name, found, expected in gains(figures, dtype):
            rate, most = max(found, key=lambda point: point[1])
            yield (f"{dtype}, {name}: {most:.1f} times as fast at {rate:g} Gb/s; faster {break_even_text(found)}, "
                   f"by the model {break_even_text(expected)}.")
    rows = figures["rows"]
    right = sum(loss(row) <= AS_GOOD for row in rows)
    worst = max(rows, key=loss)
    yield (f"`only_if_faster` chooses the faster side, or one within {100 * AS_GOOD:.0f}% of it, in {right} of these {len(rows)} cases"
           + (f"; at worst, its choice takes {1 + loss(worst):.2f} times as long ({worst['dtype']}, {worst['collective']}, "
              f"{worst['rate']:g} Gb/s)." if loss(worst) > AS_GOOD else "."))


def setting_text(figures):
    return (f"{size_text(figures['bytes'])}, {figures['nodes']} nodes of {figures['ranks_per_node']} ranks, {figures['latency_us']:g} us "
            f"between nodes")


def tables(figures):
    header = ["Gb/s", "collective", "plain", "by", "quantized", "by", "plain / quantized", "by the model", "its choice", "max error",
              "rms error"]
    for dtype in dtypes_of(figures):
        rows = []
        for row in (row for row in figures["rows"] if row["dtype"] == dtype):
            plain, quantized = row["plain"], row["quantized"]
            choice = chosen(row) + (f", {100 * loss(row):.0f}% slower" if loss(row) > AS_GOOD else "")
            rows.append([f"{row['rate']:g}", f"{row['collective']}, {COLLECTIVES[row['collective']].text}", time_text(plain["us"]), plain["method"],
                         time_text(quantized["us"]), quantized["method"], f"{gain(row):.2f}", f"{gain(row, 'expected_us'):.2f}", choice,
                         f"{quantized['max_error']:.3g}", f"{quantized['rms_error']:.3g}"])
        yield Table(f"{size_text(figures['bytes'])} of {dtype}", header, rows, in_page=False)


def plot(figures):
    dtype = dtypes_of(figures)[0]
    curves = []
    for number, (name, found, expected) in enumerate(gains(figures, dtype)):
        curves += [Curve(name, expected, number, dashed=True, in_legend=False), Curve(name, found, number)]
    points = [point for curve in curves for point in curve.points]
    rates = sorted({rate for rate, _ in points})
    return picture(f"{dtype}: {setting_text(figures)}; {rounds_text(figures['rounds'])}",
                   "dashed: expected by the cost model; above 1 it pays to quantize", f"{machine_text(figures['machine'])}: {figures['version']}",
                   curves, LogAxis("bandwidth between nodes, Gb/s", rates, ticks=rates),
                   LinearAxis("time plain / time quantized", [gain for _, gain in points], strong=1))


# ---- the kernels, of ./dev perf kernels

def element_seconds(rows, dtype, format_, kernel):
    """Seconds of one thread for each element that the kernel writes or quantizes; None if it was not measured."""
    vectors = int(kernel.rsplit(" ", 1)[1]) if " of " in kernel else 1
    size = vectors * RECORD_BYTES[format_] + (RECORD_BYTES[format_] if kernel.startswith("requantize") else ELEMENT_BYTES[dtype])
    for row in rows:
        if (row["dtype"], row["format"], row["kernel"]) == (dtype, format_, kernel):
            return size / row["bytes_a_second"]
    return None


def break_even(rows, dtype, collective):
    """(seconds, bytes a second): the cost of quantizing for each element of the whole vector, on one of 8 ranks, by direct in one
    piece; and the rate of a rank's link below which the link saves more time than that."""
    ranks = 8
    format_, once, for_all = {"reduce_scatter": ("int4", f"dequantize_reduce of {ranks}", "quantize"),
                              "all_gather": ("int8", "quantize", "dequantize")}[collective]
    parts = [element_seconds(rows, dtype, format_, kernel) for kernel in (once, for_all)]
    if None in parts:
        return None
    seconds = parts[0] / ranks + parts[1]
    return seconds, (ranks - 1) / ranks * (ELEMENT_BYTES[dtype] - RECORD_BYTES[format_]) / seconds


def kernel_tables(kernels):
    rows = kernels["rows"]
    formats = [name for name in RECORD_BYTES if any(row["format"] == name for row in rows)]
    for size in dict.fromkeys(row["bytes"] for row in rows):
        found = {(row["kernel"], row["dtype"], row["format"]): row for row in rows if row["bytes"] == size}
        body = []
        for kernel, dtype in dict.fromkeys((kernel, dtype) for kernel, dtype, _ in found):
            cells = [found.get((kernel, dtype, name)) for name in formats]
            body.append([kernel, dtype, *(f"{row['bytes_a_second'] * 1e-9:.1f} ({100 * row['ratio']:.0f}%)" if row else "" for row in cells)])
        yield Table(f"Elements of {size[:-1]} {size[-1]}iB: GB/s of bytes read and written; in brackets, as a part of the rate of a copy of as many bytes",
                    ["kernel", "elements", *formats], body, in_page=False)


def kernel_notes(kernels):
    rows = kernels["rows"]
    largest = [row for row in rows if row["bytes"] == rows[-1]["bytes"]]
    for collective in ("reduce_scatter", "all_gather"):
        for dtype in dict.fromkeys(row["dtype"] for row in rows):
            if found := break_even(largest, dtype, collective):
                seconds, rate = found
                yield (f"{collective} of {dtype} in {COLLECTIVES[collective].text}, 8 ranks, by direct in one piece: "
                       f"{seconds * 1e9:.2f} ns for each element; a rank with a core of its own breaks even if its share of the link "
                       f"is {rate * 8e-9:.2g} Gb/s.")


KERNEL_PART = Comparison("quantization kernels", __doc__, tables=kernel_tables, notes=kernel_notes,
                         about=lambda kernels: f"one thread, {kernels['vectors']}, Stretto {kernels['version']}")


class Crossover(Comparison):
    """With --kernels it reports these figures, too; and its page has a picture."""

    def finish(self, options, figures):
        if options.kernels:
            print("\n" + KERNEL_PART.report(options.kernels))
        if options.write_docs:
            (options.write_docs.parent / PLOT).write_text(plot(figures))
            if options.kernels:
                KERNELS.replace(options.write_docs, KERNEL_PART.page_text(options.kernels))

    def page_text(self, figures):
        return f"![Time plain over time quantized, by bandwidth between nodes; {dtypes_of(figures)[0]}]({PLOT})\n\n{super().page_text(figures)}"


def check(parser, options):
    if options.write_docs:
        KERNELS.around(options.write_docs)
    options.kernels = read_json(options.kernels) if options.kernels else None
    try:
        options.rates = sorted({float(word) for word in options.rates.split(",")})
    except ValueError:
        sys.exit(f"error: --rates '{options.rates}' is no list of Gb/s such as 0.3,1,10.")
    options.dtypes = options.dtypes.split(",")
    if not set(options.dtypes) <= set(ELEMENT_BYTES):
        sys.exit(f"error: --dtypes '{','.join(options.dtypes)}': choose among {', '.join(ELEMENT_BYTES)}.")
    for value, least, name in ((options.rates[0], 0, "rates"), (options.mib, 0, "mib"), (options.rounds, 0, "rounds"), (options.nodes, 1, "nodes")):
        if value <= least:
            sys.exit(f"error: --{name} {value} must be above {least}.")
    options.bytes = options.mib * MIB


Crossover(
    "quantization", __doc__, measured, tables, notes=notes, check=check, page="docs/quantization.md", program="stretto-perf",
    about=lambda figures: f"{figures['version']}; {setting_text(figures)}; {rounds_text(figures['rounds'])}, loops of {figures['seconds']:g} s "
                          "and of at least 3 operations",
    flags=(flag("--nodes", 4), flag("--ranks-per-node", 2), flag("--rates", ",".join(f"{rate:g}" for rate in RATES), "Gb/s"),
           flag("--latency", 20.0, "latency of the links in us"), flag("--mib", 16, "size of the whole vector"),
           flag("--dtypes", "bf16,f32", "the first of them is drawn"), flag("--rounds", 3),
           flag("--seconds", 0.2, "length of a loop, of at least 3 operations"),
           flag("--kernels", text="file that ./dev perf kernels --json wrote, for the page as well", metavar="JSON", told=False)))
