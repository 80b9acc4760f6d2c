"""The figures of `./dev perf host` as text on a terminal and as a section of docs/performance.md."""
from perf.comparisons.host_verdicts import (ALL_REDUCE, LARGEST, OTHERS, PEERS, bare_loops, best_peer, fastest, geometric_mean, ratios, side,
                                            verdicts)
from perf.pages.text import (DocsSection, machine_text, markdown_table, rounds_text, size_text, terminal_table, time_text, verdict_text)

SECTION = DocsSection("./dev perf host")
COLUMNS = {"Stretto": ["symmetric"], "Stretto, malloc": ["malloc"], "Stretto, prepared": ["prepared"], **PEERS}


def cell(times, size):
    return time_text(times[size]) if size in times else ""


def all_reduce_table(figures, ranks):
    """Header and rows: size, the time of every side and of the bare loop, and the best peer's time over Stretto's."""
    sides = {name: fastest(figures, ALL_REDUCE, ranks, forms) for name, forms in COLUMNS.items()}
    sides = {name: times for name, times in sides.items() if times}
    loops = bare_loops(figures, ALL_REDUCE, ranks)
    by_memory = {name: ratios(figures, ALL_REDUCE, ranks, name) for name in ("symmetric", "malloc")}
    header = ["size", *sides, "bare loop", "best peer / Stretto", "with malloc"]
    rows = []
    for size in sorted(set().union(*sides.values())) if sides else []:
        row = [size_text(size), *(cell(times, size) for times in sides.values()), cell(loops, size)]
        rows.append(row + [f"{by_size[size]:.2f}" if size in by_size else "" for by_size in by_memory.values()])
    return header, rows


def others_table(figures):
    header = ["size"]
    columns = []
    for collective in OTHERS:
        ours = side(figures, collective, 2, "symmetric")
        if not ours:
            continue
        header += [collective, "Open MPI", "ratio", "with malloc"]
        columns.append((ours, best_peer(figures, collective, 2), *(ratios(figures, collective, 2, name) for name in ("symmetric", "malloc"))))
    rows = []
    for size in sorted(set().union(*(ours for ours, *_ in columns))) if columns else []:
        row = [size_text(size)]
        for ours, best, *both in columns:
            row += [cell(ours, size), cell(best, size), *(f"{by_size[size]:.2f}" if size in by_size else "" for by_size in both)]
        rows.append(row)
    return header, rows


def tables(figures):
    """(title, header, rows) of all that was measured."""
    for ranks in (2, 4, 8):
        header, rows = all_reduce_table(figures, ranks)
        if rows:
            yield f"all_reduce, {ranks} ranks", header, rows
    header, rows = others_table(figures)
    if rows:
        yield "Other collectives, 2 ranks, beside Open MPI", header, rows


def limit_lines(figures):
    """The limits of the machine, and how close Stretto comes to them."""
    prepared = side(figures, ALL_REDUCE, 2, "prepared")
    for ranks in (2, 4, 8):
        exchange = figures["limit"].get(str(ranks), {}).get("exchange_us")
        ours = side(figures, ALL_REDUCE, ranks, "symmetric")
        if exchange is None:
            continue
        line = f"The bare exchange of cache lines between {ranks} processes takes {time_text(exchange)}"
        if 8 in ours:
            line += f"; an all_reduce of 8 B takes {ours[8] / exchange:.2f} times as long"
        if ranks == 2 and 8 in prepared:
            clock = figures["limit"]["2"]["clock_us"]
            line += f", prepared {prepared[8] / exchange:.2f} times, of which two reads of the clock are {2 * clock / exchange:.2f}"
        best = best_peer(figures, ALL_REDUCE, ranks)
        if 8 in best:
            line += f", the best peer {best[8] / exchange:.2f} times"
        yield line + "."
    for ranks in (2, 4, 8):
        loop = bare_loops(figures, ALL_REDUCE, ranks).get(LARGEST)
        times = side(figures, ALL_REDUCE, ranks, "symmetric")
        if loop is not None and LARGEST in times:
            yield (f"{ranks} ranks, 64 MiB: the bare loop takes {time_text(loop)}, the all_reduce {time_text(times[LARGEST])}, "
                   f"{times[LARGEST] / loop:.2f} times as long.")


def machine_line(figures):
    versions = [figures["versions"][name] for name in ("stretto", "openmpi", "mpich", "gloo") if name in figures["versions"]]
    return (f"{machine_text(figures['machine'])}: {'; '.join(versions)}; "
            f"{rounds_text(figures['rounds'], 'lower fifths')}, loops of {figures['seconds']} s")


def summary(figures):
    for ranks in (2, 4, 8):
        for memory in ("symmetric", "malloc"):
            by_size = ratios(figures, ALL_REDUCE, ranks, memory)
            if by_size:
                yield (f"all_reduce, {ranks} ranks, {memory}: {geometric_mean(by_size.values()):.2f} times as fast as the best peer in the "
                       f"geometric mean, {min(by_size.values()):.2f} to {max(by_size.values()):.2f}.")


def report(figures):
    lines = [machine_line(figures), "UCC is not compared: Debian has no package of it."]
    for title, header, rows in tables(figures):
        lines += ["", title, *terminal_table(header, rows)]
    return "\n".join([*lines, "", *limit_lines(figures), *summary(figures), "", *map(verdict_text, verdicts(figures))])


def section(figures):
    lines = [f"Measured by `{figures['command']}` on {machine_line(figures)}.", ""]
    lines += [f"- {line}" for line in (*summary(figures), *limit_lines(figures))]
    for title, header, rows in tables(figures):
        lines += ["", f"### {title}", "", *markdown_table(header, rows)]
    short = [verdict.text for verdict in verdicts(figures) if verdict.holds is False]
    lines += ["", "Stretto falls short here:" if short else "Everything that is asked holds.", ""] + [f"- {text}" for text in short]
    return "\n".join(lines)
