"""The figures of perf/host.py as text on a terminal and as a section of docs/performance.md."""
import marked_text
from host_verdicts import (ALL_REDUCE, LARGEST, OTHERS, PEERS, best_peer, fastest, geometric_mean, ratios, side, size_text, time_text,
                           verdicts)

BEGIN = "<!-- host figures: perf/host.py --write-docs replaces what follows -->"
END = "<!-- end of host figures -->"
COLUMNS = {"Stretto": ["symmetric"], "Stretto, malloc": ["malloc"], "Stretto, prepared": ["prepared"], **PEERS}


def cell(times, size):
    return time_text(times[size]) if size in times else ""


def all_reduce_table(figures, ranks):
    """A header and rows: size, every side, how many times our time the best peer takes, and the bare loop."""
    sides = {name: fastest(figures, ALL_REDUCE, ranks, forms) for name, forms in COLUMNS.items()}
    sides = {name: times for name, times in sides.items() if times}
    loops = {int(size): us for size, us in figures["limit"].get(str(ranks), {}).get("loops", {}).items()}
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
        header += [collective, "Open MPI", "ratio"]
        columns.append((ours, best_peer(figures, collective, 2), ratios(figures, collective, 2, "symmetric")))
    rows = []
    for size in sorted(set().union(*(ours for ours, _, _ in columns))) if columns else []:
        row = [size_text(size)]
        for ours, best, by_size in columns:
            row += [cell(ours, size), cell(best, size), f"{by_size[size]:.2f}" if size in by_size else ""]
        rows.append(row)
    return header, rows


def tables(figures):
    """Title and table, of what was measured."""
    for ranks in (2, 4, 8):
        header, rows = all_reduce_table(figures, ranks)
        if rows:
            yield f"all_reduce, {ranks} ranks", header, rows
    header, rows = others_table(figures)
    if rows:
        yield "Other collectives, 2 ranks, beside Open MPI", header, rows


def limit_lines(figures):
    """What the machine allows, and how close Stretto comes."""
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
            line += f", prepared {prepared[8] / exchange:.2f} times"
        best = best_peer(figures, ALL_REDUCE, ranks)
        if 8 in best:
            line += f", the best peer {best[8] / exchange:.2f} times"
        yield line + "."
    for ranks in (2, 4, 8):
        loop = figures["limit"].get(str(ranks), {}).get("loops", {}).get(str(LARGEST))
        times = side(figures, ALL_REDUCE, ranks, "symmetric")
        if loop is not None and LARGEST in times:
            yield (f"{ranks} ranks, 64 MiB: the bare loop takes {time_text(loop)}, the all_reduce {time_text(times[LARGEST])}, "
                   f"{times[LARGEST] / loop:.2f} times as long.")


def machine_line(figures):
    machine = figures["machine"]
    versions = [figures["versions"][name] for name in ("stretto", "openmpi", "mpich", "gloo") if name in figures["versions"]]
    rounds = f"medians of {figures['rounds']} rounds" if figures["rounds"] > 1 else "one round"
    return (f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}, {machine['date']}: {'; '.join(versions)}; {rounds}, loops of "
            f"{figures['seconds']} s")


def summary(figures):
    for ranks in (2, 4, 8):
        for memory in ("symmetric", "malloc"):
            by_size = ratios(figures, ALL_REDUCE, ranks, memory)
            if by_size:
                yield (f"all_reduce, {ranks} ranks, {memory}: {geometric_mean(by_size.values()):.2f} times as fast as the best peer in the "
                       f"geometric mean, {min(by_size.values()):.2f} to {max(by_size.values()):.2f}.")


def report(figures):
    lines = [machine_line(figures), "UCC is absent: Debian has no package of it."]
    for title, header, rows in tables(figures):
        widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
        lines += ["", title]
        lines += ["  ".join(text.rjust(width) for text, width in zip(row, widths)) for row in [header, *rows]]
    lines += ["", *limit_lines(figures), *summary(figures), ""]
    marks = {True: "holds     ", False: "FALLS SHORT", None: "not judged"}
    lines += [f"{marks[verdict.holds]:11}  {verdict.text}" for verdict in verdicts(figures)]
    return "\n".join(lines)


def section(figures):
    lines = [f"Measured by `{figures['command']}` on {machine_line(figures)}.", ""]
    lines += [f"- {line}" for line in (*summary(figures), *limit_lines(figures))]
    for title, header, rows in tables(figures):
        lines += ["", f"### {title}", ""]
        lines += ["| " + " | ".join(row) + " |" for row in (header, ["---:"] * len(header), *rows)]
    short = [verdict.text for verdict in verdicts(figures) if verdict.holds is False]
    lines += ["", "Everything that is asked holds." if not short else "What falls short:", ""] + [f"- {text}" for text in short]
    return "\n".join(lines).rstrip() + "\n"


def marked(path):
    """Ends the program where the page has no place for the figures."""
    marked_text.around(path, BEGIN, END)


def write_docs(figures, path):
    """Replaces what lies between the marks."""
    marked_text.replace(path, BEGIN, END, section(figures))
