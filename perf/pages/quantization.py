"""The figures of `./dev perf quantization` and of `./dev perf kernels` as sections of docs/quantization.md."""
import collections
import math

from perf.pages.chart import Curve, LinearAxis, LogAxis, picture
from perf.pages.text import DocsSection, machine_text, markdown_table, rounds_text, size_text, time_text

CROSSOVER = DocsSection("./dev perf quantization")
KERNELS = DocsSection("./dev perf quantization --kernels FILE")
PLOT = "quantization-crossover.svg"  # beside the page
MIB = 1 << 20
AS_GOOD = 0.05  # a time that is no more than this part longer counts as equal
ELEMENT_BYTES = {"bf16": 2, "f16": 2, "f32": 4}
RECORDS = {"int8": (256, 260), "int4": (64, 34), "fp8": (256, 260), "onebit": (1024, 132)}  # elements, bytes

How = collections.namedtuple("How", "flags text")
COLLECTIVES = {
    "reduce_scatter": How(["--quantize", "int4"], "int4"),
    "all_gather": How(["--quantize", "int8"], "int8"),
    "all_reduce": How(["--quantize", "int4", "--quantize-result", "int8"], "int4, sum in int8"),
}


# ---- the crossover

def gain(row):
    """The plain time over the quantized time."""
    return row["plain"]["us"] / row["quantized"]["us"]


def expected_gain(row):
    return row["plain"]["expected_us"] / row["quantized"]["expected_us"]


def chosen(row):
    """The side that the cost model chooses, as only_if_faster does."""
    return "quantized" if row["quantized"]["expected_us"] < row["plain"]["expected_us"] else "plain"


def loss(row):
    """The time that choice takes beyond the faster side, as a part of the latter."""
    times = {side: row[side]["us"] for side in ("plain", "quantized")}
    return times[chosen(row)] / min(times.values()) - 1


def crossing(points):
    """The rate at which points (rate, gain) first fall below 1, interpolated over the logarithm of the rate; None if they never do."""
    points = sorted(points)
    for (rate, above), (next_rate, below) in zip(points, points[1:]):
        if above >= 1 > below:
            part = (above - 1) / (above - below)
            return math.exp(math.log(rate) + part * (math.log(next_rate) - math.log(rate)))
    return None


def rows_of(figures, dtype, collective=None):
    return [row for row in figures["rows"] if row["dtype"] == dtype and collective in (None, row["collective"])]


def dtypes_of(figures):
    return list(dict.fromkeys(row["dtype"] for row in figures["rows"]))


def gains(figures, dtype):
    """Yields (name, points measured, points expected by the cost model); a point is (rate, gain)."""
    for collective, how in COLLECTIVES.items():
        rows = sorted(rows_of(figures, dtype, collective), key=lambda row: row["rate"])
        if rows:
            yield f"{collective}, {how.text}", [(row["rate"], gain(row)) for row in rows], [(row["rate"], expected_gain(row)) for row in rows]


def break_even_text(points):
    at = crossing(points)
    if at:
        return f"up to about {at:.2g} Gb/s"
    return "at all of these rates" if all(value >= 1 for _, value in points) else "at none of these rates" if points[0][1] < 1 else "nowhere"


def summary(figures):
    for dtype in dtypes_of(figures):
        for name, measured, expected in gains(figures, dtype):
            rate, most = max(measured, key=lambda point: point[1])
            yield (f"{dtype}, {name}: {most:.1f} times as fast at {rate:g} Gb/s; faster {break_even_text(measured)}, "
                   f"by the model {break_even_text(expected)}.")
    rows = figures["rows"]
    right = sum(loss(row) <= AS_GOOD for row in rows)
    worst = max(rows, key=loss)
    yield (f"`only_if_faster` chooses the faster side, or one within {100 * AS_GOOD:.0f}% of it, in {right} of these {len(rows)} cases"
           + (f"; at worst, its choice takes {1 + loss(worst):.2f} times as long ({worst['dtype']}, {worst['collective']}, "
              f"{worst['rate']:g} Gb/s)." if loss(worst) > AS_GOOD else "."))


def machine_line(figures):
    return f"{machine_text(figures['machine'])}: {figures['version']}"


def setting_text(figures):
    return (f"{size_text(figures['bytes'])}, {figures['nodes']} nodes of {figures['ranks_per_node']} ranks, {figures['latency_us']:g} us "
            f"between nodes")


def table(figures, dtype):
    header = ["Gb/s", "collective", "plain", "by", "quantized", "by", "plain / quantized", "by the model", "its choice", "max error",
              "rms error"]
    rows = []
    for row in rows_of(figures, dtype):
        plain, quantized = row["plain"], row["quantized"]
        choice = chosen(row) + (f", {100 * loss(row):.0f}% slower" if loss(row) > AS_GOOD else "")
        what = f"{row['collective']}, {COLLECTIVES[row['collective']].text}"
        rows.append([f"{row['rate']:g}", what, time_text(plain["us"]), plain["method"], time_text(quantized["us"]), quantized["method"],
                     f"{gain(row):.2f}", f"{expected_gain(row):.2f}", choice, f"{quantized['max_error']:.3g}",
                     f"{quantized['rms_error']:.3g}"])
    return markdown_table(header, rows)


def crossover_section(figures):
    drawn = dtypes_of(figures)[0]
    lines = [f"![Time plain over time quantized, by bandwidth between nodes; {drawn}]({PLOT})", "",
             f"{setting_text(figures)}. Measured by `{figures['command']}` on {machine_line(figures)}; {rounds_text(figures['rounds'])}, loops of "
             f"{figures['seconds']:g} s and of at least 3 operations.", ""]
    lines += [f"- {line}" for line in summary(figures)]
    for dtype in dtypes_of(figures):
        lines += ["", f"### {size_text(figures['bytes'])} of {dtype}", "", *table(figures, dtype)]
    return "\n".join(lines)


def plot(figures):
    dtype = dtypes_of(figures)[0]
    curves = []
    for number, (name, measured, expected) in enumerate(gains(figures, dtype)):
        curves += [Curve(name, expected, number, dashed=True, in_legend=False), Curve(name, measured, number)]
    points = [point for curve in curves for point in curve.points]
    rates = sorted({rate for rate, _ in points})
    return picture(f"{dtype}: {setting_text(figures)}; {rounds_text(figures['rounds'])}",
                   "dashed: expected by the cost model; above 1 it pays to quantize", machine_line(figures), curves,
                   LogAxis("bandwidth between nodes, Gb/s", rates, ticks=rates),
                   LinearAxis("time plain / time quantized", [gain for _, gain in points], strong=1))


# ---- the kernels

def record_bytes(format_):
    """Bytes of a quantized element."""
    elements, size = RECORDS[format_]
    return size / elements


def element_seconds(rows, dtype, format_, kernel):
    """Seconds of one thread for each element that the kernel writes or quantizes; None if it was not measured."""
    vectors = int(kernel.rsplit(" ", 1)[1]) if " of " in kernel else 1
    size = vectors * record_bytes(format_) + ELEMENT_BYTES[dtype]
    if kernel.startswith("requantize"):
        size = (vectors + 1) * record_bytes(format_)
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
    return seconds, (ranks - 1) / ranks * (ELEMENT_BYTES[dtype] - record_bytes(format_)) / seconds


def rate_text(row):
    return f"{row['bytes_a_second'] * 1e-9:.1f} ({100 * row['ratio']:.0f}%)" if row else ""


def kernels_section(kernels):
    rows = kernels["rows"]
    sizes = list(dict.fromkeys(row["bytes"] for row in rows))
    formats = [name for name in RECORDS if any(row["format"] == name for row in rows)]
    lines = [f"One thread of {kernels['cpu']} ({kernels['vectors']}), Stretto {kernels['version']}, by `./dev perf kernels`: GB/s of bytes read and "
             "written; in brackets, the rate as a part of that of a copy of as many bytes."]
    for size in sizes:
        found = {(row["kernel"], row["dtype"], row["format"]): row for row in rows if row["bytes"] == size}
        lines += ["", f"### Elements of {size[:-1]} {size[-1]}iB", ""]
        body = []
        for kernel, dtype in dict.fromkeys((kernel, dtype) for kernel, dtype, _ in found):
            cells = [found.get((kernel, dtype, name)) for name in formats]
            body.append([kernel, dtype, *(rate_text(cell) for cell in cells)])
        lines += markdown_table(["kernel", "elements", *formats], body)
    lines.append("")
    largest = [row for row in rows if row["bytes"] == sizes[-1]]
    for collective in ("reduce_scatter", "all_gather"):
        for dtype in dict.fromkeys(row["dtype"] for row in rows):
            if found := break_even(largest, dtype, collective):
                seconds, rate = found
                lines.append(f"- {collective} of {dtype} in {COLLECTIVES[collective].text}, 8 ranks, by direct in one piece: "
                             f"{seconds * 1e9:.2f} ns for each element; a rank with a core of its own breaks even if its share of the link "
                             f"is {rate * 8e-9:.2g} Gb/s.")
    return "\n".join(lines)


# ---- the page

def check(path):
    """Exits with an error if the page lacks a section for the figures."""
    for section in (CROSSOVER, KERNELS):
        section.around(path)


def write_docs(figures, kernels, path):
    check(path)
    CROSSOVER.replace(path, crossover_section(figures))
    if kernels:
        KERNELS.replace(path, kernels_section(kernels))
    (path.parent / PLOT).write_text(plot(figures))
