"""What is asked of the figures of perf/netlab_report.py, and the figures as text on a terminal and as a section of
docs/performance.md."""
import marked_text
import namespaces
from host_verdicts import size_text

BEGIN = "<!-- netlab: perf/netlab_report.py --write-docs replaces what follows -->"
END = "<!-- end of netlab -->"
MIB = 1 << 20
SIZES = [1 * MIB, 4 * MIB, 16 * MIB, 64 * MIB]
QUANTIZED = {"reduce_scatter": "int4", "all_gather": "int8"}
CHOSEN = "auto"
LEAST_STREAM = 0.93  # of a link's rate; headers take 0.05


def bound_us(figures, size):
    """What two levels cannot beat: each host sends and receives all but its share of the vector, twice."""
    return 2 * (figures["hosts"] - 1) / figures["hosts"] * size / figures["stream"] * 1e6


def best(figures, side, size):
    """(method, microseconds) of the fastest that was given."""
    return min(((method, by_size[str(size)]) for method, by_size in figures["times"].get(side, {}).items() if str(size) in by_size),
               key=lambda pair: pair[1], default=("", None))


def time_of(figures, side, size, method=CHOSEN):
    return figures["times"].get(side, {}).get(method, {}).get(str(size))


def peer_time(figures, peer, size):
    return time_of(figures, peer, size, "")


def choice_of(figures, side, size):
    return figures["chosen"].get(side, {}).get(str(size))


def ratio(one, other):
    """None where either was not measured."""
    return one / other if one and other else None


def total(times):
    return None if None in times else sum(times)


def quantized_times(figures):
    """Microseconds of reduce-scatter and all-gather together: in bf16 as the library chooses, in bf16 by the fastest of that and
    the methods tried, which those are, and quantized. None where they were not measured."""
    size = figures["quantized_bytes"]
    plain = [f"{collective} bf16" for collective in QUANTIZED]
    fastest = [best(figures, side, size) for side in plain]
    names = [f"the library's choice {choice_of(figures, side, size) or ''}".rstrip() if method == CHOSEN else method
             for side, (method, _) in zip(plain, fastest)]
    return (total([time_of(figures, side, size) for side in plain]), total([us for _, us in fastest]), " and ".join(names),
            total([time_of(figures, f"{collective} {bits}", size) for collective, bits in QUANTIZED.items()]))


def model_ratios(figures, size):
    """(method, the model's time over that of sockets). Different choices are not compared."""
    times = figures["times"]
    chosen = {choice_of(figures, side, size) for side in ("model", "stretto")} - {None}
    methods = dict.fromkeys([*times.get("stretto", {}), *times.get("model", {})])
    return [(method, ratio(time_of(figures, "model", size, method), time_of(figures, "stretto", size, method)))
            for method in methods if len(chosen) < 2 or method != CHOSEN]


def verdicts(figures):
    """(what is asked, what was found, whether that holds). What was not measured does not hold."""
    found = [("no wrong values", figures["wrong"], figures["wrong"] == 0)]

    def ask(text, value, holds):
        found.append((text, "not measured", False) if value is None else (text, f"{value:.2f}", holds(value)))

    stream = figures["stream"] / namespaces.bytes_per_second(figures["rate"])
    busy = "" if stream >= LEAST_STREAM else " (the machine is too busy to judge)"
    ask(f"a TCP stream at least {LEAST_STREAM} of the link's rate{busy}", stream, lambda value: value >= LEAST_STREAM)
    for size in sorted({*SIZES, *figures["sizes"]}):
        text = size_text(size)
        ours = time_of(figures, "stretto", size)
        openmpi, gloo = (ratio(peer_time(figures, peer, size), ours) for peer in ("openmpi", "gloo"))
        if size >= 16 * MIB:
            ask(f"{text}: at most 1.1 times the bound", ratio(ours, bound_us(figures, size)), lambda value: value <= 1.1)
        if size == MIB:
            peer = None if None in (openmpi, gloo) else min(openmpi, gloo)
            ask(f"{text}: at least 2 times as fast as the best of Open MPI and Gloo", peer, lambda value: value >= 2)
        if size == 64 * MIB:
            ask(f"{text}: at least 1.8 times as fast as Open MPI", openmpi, lambda value: value >= 1.8)
            ask(f"{text}: at least 1.05 times as fast as Gloo", gloo, lambda value: value >= 1.05)
        if size >= 4 * MIB:
            for method, value in model_ratios(figures, size) or [("any method", None)]:
                ask(f"{text}, {method}: the model within 15% of sockets", value, lambda value: abs(value - 1) <= 0.15)
    _, fastest, names, quantized = quantized_times(figures)
    by = f", there by {names}" if fastest else ""
    ask(f"quantized reduce-scatter and all-gather at least 3 times as fast as in bf16{by}", ratio(fastest, quantized),
        lambda value: value >= 3)
    return found


def falls_short(figures):
    return not all(holds for _, _, holds in verdicts(figures))


def milliseconds(us):
    return f"{us / 1e3:.1f}" if us else "not measured"


def setup_line(figures):
    return (f"{figures['hosts']} hosts x {figures['ranks_per_host']} ranks, links of {figures['rate']}; a TCP stream, both ways at once: "
            f"{figures['stream'] / 1e6:.1f} MB/s each")


def machine_line(figures):
    machine = figures["machine"]
    rounds = f"medians of {figures['rounds']} rounds" if figures["rounds"] > 1 else "one round"
    return (f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}, {machine['date']}: "
            f"{'; '.join(figures['versions'].values())}; {rounds}")


def table(figures):
    header = ["all_reduce of f32, ms", "bound", "Stretto", "its method", "best of all methods", "which", "Open MPI", "Gloo", "model",
              "best of the model"]
    rows = [header, ["---"] * len(header)]
    for size in figures["sizes"]:
        method, us = best(figures, "stretto", size)
        times = [milliseconds(peer_time(figures, peer, size)) for peer in ("openmpi", "gloo")]
        times += [milliseconds(time_of(figures, "model", size)), milliseconds(best(figures, "model", size)[1])]
        rows.append([size_text(size), milliseconds(bound_us(figures, size)), milliseconds(time_of(figures, "stretto", size)),
                     choice_of(figures, "stretto", size) or "", milliseconds(us), method, *times])
    return [f"| {' | '.join(row)} |" for row in rows]


def quantized_line(figures):
    chosen, fastest, names, quantized = quantized_times(figures)
    by = f" (by {names})" if fastest else ""
    return (f"Reduce-scatter and all-gather of {size_text(figures['quantized_bytes'])} in bf16, ms: {milliseconds(chosen)} as the library "
            f"chooses, {milliseconds(fastest)} at best{by}; as {' and '.join(QUANTIZED.values())}: {milliseconds(quantized)}.")


def verdict_lines(figures):
    def mark(value, holds):
        return "holds" if holds else "NOT MEASURED" if value == "not measured" else "FALLS SHORT"

    return [f"{mark(value, holds)}: {text}" + ("" if value == "not measured" else f": {value}")
            for text, value, holds in verdicts(figures)]


def report(figures):
    return "\n".join([setup_line(figures), machine_line(figures), "", *table(figures), "", quantized_line(figures), "",
                      *verdict_lines(figures)])


def section(figures):
    lines = [f"Measured by `{figures['command']}` on {machine_line(figures)}. {setup_line(figures)}.", "", *table(figures), "",
             quantized_line(figures), "", *(f"- {line}" for line in verdict_lines(figures))]
    return "\n".join(lines) + "\n"


def marked(path):
    """Ends the program where the page has no place for the figures."""
    marked_text.around(path, BEGIN, END)


def write_docs(figures, path):
    """Replaces what lies between the marks."""
    marked_text.replace(path, BEGIN, END, section(figures))
