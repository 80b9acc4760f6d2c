"""Verdicts on the figures of `./dev perf netlab`, and the figures as text on a terminal and as a section of docs/performance.md."""
import math

from perf.comparisons import namespaces
from perf.pages.text import DocsSection, Verdict, beside, machine_text, markdown_table, rounds_text, size_text, verdict_text

SECTION = DocsSection("./dev perf netlab")
MIB = 1 << 20
SIZES = [1 * MIB, 4 * MIB, 16 * MIB, 64 * MIB]
QUANTIZED = {"reduce_scatter": "int4", "all_gather": "int8"}
CHOSEN = "auto"
LEAST_STREAM = 0.93  # share of a link's rate; headers take 0.05


def bound_us(figures, size):
    """The lower bound of two levels: each host sends and receives all but its share of the vector, twice."""
    return 2 * (figures["hosts"] - 1) / figures["hosts"] * size / figures["stream"] * 1e6


def best(figures, side, size):
    """(method, microseconds) of the fastest method."""
    return min(((method, by_size[str(size)]) for method, by_size in figures["times"].get(side, {}).items() if str(size) in by_size),
               key=lambda pair: pair[1], default=("", None))


def time_of(figures, side, size, method=CHOSEN):
    return figures["times"].get(side, {}).get(method, {}).get(str(size))


def peer_time(figures, peer, size):
    return time_of(figures, peer, size, "")


def choice_of(figures, side, size):
    return figures["chosen"].get(side, {}).get(str(size))


def ratio(one, other):
    """None if either was not measured."""
    return one / other if one and other else None


def total(times):
    return None if None in times else sum(times)


def quantized_times(figures):
    """Reduce-scatter and all-gather together: microseconds in bf16 by the library's choice, microseconds in bf16 by the fastest
    methods, the names of these methods, and microseconds quantized. None instead of a time that was not measured."""
    size = figures["quantized_bytes"]
    plain = [f"{collective} bf16" for collective in QUANTIZED]
    fastest = [best(figures, side, size) for side in plain]
    names = [f"the library's choice {choice_of(figures, side, size) or ''}".rstrip() if method == CHOSEN else method
             for side, (method, _) in zip(plain, fastest)]
    return (total([time_of(figures, side, size) for side in plain]), total([us for _, us in fastest]), " and ".join(names),
            total([time_of(figures, f"{collective} {bits}", size) for collective, bits in QUANTIZED.items()]))


def model_ratios(figures, size):
    """(method, time on the link model over time on sockets). The library's choice is left out if it differs between the two, and so is
    the chosen method by its name if it was measured on sockets alone."""
    times = figures["times"]
    chosen = {choice_of(figures, side, size) for side in ("model", "stretto")} - {None}
    by_name = chosen - set(times.get("model", {}))
    methods = dict.fromkeys([*times.get("stretto", {}), *times.get("model", {})])
    return [(method, ratio(time_of(figures, "model", size, method), time_of(figures, "stretto", size, method)))
            for method in methods if method not in by_name and (len(chosen) < 2 or method != CHOSEN)]


def verdicts(figures):
    found = [Verdict(figures["wrong"] == 0, f"no wrong values: {figures['wrong']}")]

    def ask(text, value, least=-math.inf, most=math.inf):
        nearest = min(least, most, key=lambda limit: abs(limit - (value or 0)))
        found.append(Verdict(None, text) if value is None else Verdict(least <= value <= most, f"{text}: {beside(value, nearest)}"))

    stream = figures["stream"] / namespaces.bytes_per_second(figures["rate"])
    busy = "" if stream >= LEAST_STREAM else " (the machine is too busy to judge)"
    ask(f"a TCP stream at least {LEAST_STREAM} of the link's rate{busy}", stream, LEAST_STREAM)
    for size in sorted({*SIZES, *figures["sizes"]}):
        text = size_text(size)
        ours = time_of(figures, "stretto", size)
        openmpi, gloo = (ratio(peer_time(figures, peer, size), ours) for peer in ("openmpi", "gloo"))
        ask(f"{text}: at most 1.1 times the bound", ratio(ours, bound_us(figures, size)), most=1.1)
        if size == MIB:
            peer = None if None in (openmpi, gloo) else min(openmpi, gloo)
            ask(f"{text}: at least 2 times as fast as the best of Open MPI and Gloo", peer, 2)
        if size == 64 * MIB:
            ask(f"{text}: at least 1.8 times as fast as Open MPI", openmpi, 1.8)
            ask(f"{text}: at least 1.05 times as fast as Gloo", gloo, 1.05)
            by_name = time_of(figures, "stretto", size, choice_of(figures, "stretto", size))
            ask(f"{text}: the choice at most 1.05 times as slow as when it is asked for by its name", ratio(ours, by_name), most=1.05)
        if size >= 4 * MIB:
            for method, value in model_ratios(figures, size) or [("any method", None)]:
                ask(f"{text}, {method}: the model within 15% of sockets", value, 0.85, 1.15)
    _, fastest, names, quantized = quantized_times(figures)
    by = f" (by {names})" if fastest else ""
    ask(f"quantized reduce-scatter and all-gather at least 3 times as fast as in bf16{by}", ratio(fastest, quantized), 3)
    return found


def falls_short(figures):
    return not all(verdict.holds for verdict in verdicts(figures))


def milliseconds(us):
    return f"{us / 1e3:.1f}" if us else "not measured"


def setup_line(figures):
    return (f"{figures['hosts']} hosts x {figures['ranks_per_host']} ranks, links of {figures['rate']}; a TCP stream in both directions at "
            f"once: {figures['stream'] / 1e6:.1f} MB/s each")


def machine_line(figures):
    return f"{machine_text(figures['machine'])}: {'; '.join(figures['versions'].values())}; {rounds_text(figures['rounds'])}"


def table(figures):
    header = ["all_reduce of f32, ms", "bound", "Stretto", "chosen method", "fastest", "fastest method", "Open MPI", "Gloo", "model",
              "fastest on the model"]
    rows = []
    for size in figures["sizes"]:
        method, us = best(figures, "stretto", size)
        times = [milliseconds(peer_time(figures, peer, size)) for peer in ("openmpi", "gloo")]
        times += [milliseconds(time_of(figures, "model", size)), milliseconds(best(figures, "model", size)[1])]
        rows.append([size_text(size), milliseconds(bound_us(figures, size)), milliseconds(time_of(figures, "stretto", size)),
                     choice_of(figures, "stretto", size) or "", milliseconds(us), method, *times])
    return markdown_table(header, rows)


def quantized_line(figures):
    chosen, fastest, names, quantized = quantized_times(figures)
    by = f" (by {names})" if fastest else ""
    return (f"Reduce-scatter and all-gather of {size_text(figures['quantized_bytes'])} in bf16, ms: {milliseconds(chosen)} by the library's "
            f"choice, {milliseconds(fastest)} at best{by}; as {' and '.join(QUANTIZED.values())}: {milliseconds(quantized)}.")


def report(figures):
    return "\n".join([setup_line(figures), machine_line(figures), "", *table(figures), "", quantized_line(figures), "",
                      *map(verdict_text, verdicts(figures))])


def section(figures):
    return "\n".join([f"Measured by `{figures['command']}` on {machine_line(figures)}. {setup_line(figures)}.", "", *table(figures), "",
                      quantized_line(figures), "", *(f"- {verdict_text(verdict)}" for verdict in verdicts(figures))])
