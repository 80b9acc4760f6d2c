"""Turns the files that stretto-perf --json has written into one HTML page that needs no network.

For each collective: time and bus bandwidth over size, one curve for each algorithm, dashed curves for peers, a band from the
median to the 99th percentile, and a table of all figures. Curves show the operations out of place, if these were measured.
"""
import argparse
import html
import json
import pathlib
import sys

from perf.pages import chart

STYLE = f"""
body {{ margin: 2rem auto; max-width: 1120px; padding: 0 1rem; font: 15px/1.5 system-ui, sans-serif; }}
h1 {{ font-size: 1.5rem; }} h2 {{ font-size: 1.1rem; margin: 2.5rem 0 .3rem; }} code {{ font-size: .9em; overflow-wrap: anywhere; }}
.charts {{ display: flex; flex-wrap: wrap; gap: 1rem; }} .charts svg {{ flex: 1 1 440px; }} svg {{ width: 100%; height: auto; display: block; }}
.scroll {{ overflow-x: auto; margin-top: .8rem; max-height: 26rem; }}
table {{ border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .15rem .45rem; text-align: right; border-bottom: 1px solid; white-space: nowrap; }}
th {{ font-weight: 500; position: sticky; top: 0; }} .name {{ text-align: left; }}
{chart.STYLE}"""


def bytes_text(count):
    for suffix, unit in (("G", 2**30), ("M", 2**20), ("K", 2**10)):
        if count >= unit:
            return f"{count / unit:.3g}{suffix}"
    return f"{count:.0f}"


def figure(value):
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def escape(text):
    return html.escape(str(text))


def series_of(rows):
    """(name, is a peer, rows by size): one for each algorithm (Stretto where the library chose it), one for each peer."""
    factor = {row["bytes"]: row["busbw"] / row["algbw"] for row in rows if row["algbw"] > 0}
    found = {}
    for row in rows:
        name = "Stretto" if row["chosen"] else row["algo"]
        found.setdefault((name, False), {})[row["bytes"]] = row
        for peer, times in row["peers"].items():
            bandwidth = row["bytes"] / times["time_us"] / 1e3 * factor.get(row["bytes"], 0)
            found.setdefault((peer, True), {})[row["bytes"]] = {**times, "busbw": bandwidth}
    return [(*key, by_size) for key, by_size in sorted(found.items(), key=lambda item: item[0][1])]


def note(name, size, row, key, unit):
    said = f"{name}, {bytes_text(size)}: {figure(row[key])} {unit}"
    if key == "time_us":
        said += f" (p50 {figure(row['p50_us'])}, p99 {figure(row['p99_us'])})"
    return said + (f", by {row['algo']}" if row.get("algo", name) != name else "")


def curves_of(series, key, unit):
    for number, (name, is_peer, by_size) in enumerate(series):
        rows = [(size, row) for size, row in sorted(by_size.items()) if size > 0 and row[key] > 0]
        if not rows:
            continue
        band = [] if is_peer or key != "time_us" else [(size, row["p50_us"], row["p99_us"]) for size, row in rows
                                                       if min(row["p50_us"], row["p99_us"]) > 0]
        yield chart.Curve(name, [(size, row[key]) for size, row in rows], number, dashed=is_peer, band=band,
                          notes=[note(name, size, row, key, unit) for size, row in rows])


def chart_of(curves, label):
    if not curves:
        return "<p>There is nothing to draw: no bytes were moved.</p>"
    values = [y for curve in curves for _, y in curve.points]
    values += [y for curve in curves for _, *ends in curve.band for y in ends]
    sizes = [x for curve in curves for x, _ in curve.points]
    return chart.chart(curves, chart.LogAxis("size (bytes)", sizes, 2, bytes_text), chart.LogAxis(label, values))


def table(rows):
    peers = sorted({peer for row in rows for peer in row["peers"]})
    names = ("algorithm", "buffers")
    heads = ["size (B)", *names, "time (us)", "p50", "p99", "algbw (GB/s)", "busbw (GB/s)", "wrong"]
    for peer in peers:
        heads += [f"{peer} (us)", f"{peer} / Stretto, medians"]
    out = ["<tr>", *(f'<th class="paper{" name" * (head in names)}">{escape(head)}</th>' for head in heads), "</tr>"]
    for row in sorted(rows, key=lambda r: (r["bytes"], r["in_place"])):
        cells = [row["bytes"], row["algo"] + " (chosen)" * row["chosen"], "in place" if row["in_place"] else "out of place",
                 figure(row["time_us"]), figure(row["p50_us"]), figure(row["p99_us"]),
                 f'{row["algbw"]:.3f}', f'{row["busbw"]:.3f}', "not checked" if row["wrong"] is None else row["wrong"]]
        for peer in peers:
            times = row["peers"].get(peer)
            cells += [figure(times["time_us"]), f'{times["p50_us"] / row["p50_us"]:.2f}'] if times else ["N/A", "N/A"]
        out += ["<tr>", *(f'<td{" class=name" * (head in names)}>{escape(cell)}</td>' for head, cell in zip(heads, cells)), "</tr>"]
    return f'<div class="scroll"><table>{"".join(out)}</table></div>'


def section(title, rows):
    drawn = [row for row in rows if not row["in_place"]] or rows
    series = series_of(drawn)
    times, bandwidths = list(curves_of(series, "time_us", "us")), list(curves_of(series, "busbw", "GB/s"))
    wrong = sum(row["wrong"] or 0 for row in rows)
    out = [f"<h2>{escape(title)}</h2>", f'<p><strong>{wrong} values were wrong.</strong></p>' if wrong else ""]
    if any(row["bytes"] > 0 for row in drawn):
        keys, height = chart.legend(times, 1100)
        out += [chart.svg(keys, 1100, height),
                f'<div class="charts">{chart_of(times, "time (us)")}{chart_of(bandwidths, "busbw (GB/s)")}</div>']
    return "".join([*out, table(rows)])


def title_of(row):
    words = [row["collective"], row["dtype"]]
    words += [row["op"]] if row["op"] != "none" else []
    words += [f"root {row['root']}"] if row["root"] >= 0 else []
    return ", ".join(words)


def page(runs):
    """Runs of the same ranks on the same machine share their charts."""
    settings = {}
    for run in runs:
        machine = run["machine"]
        where = f"{run['ranks']} ranks ({run['ranks_are']}) on {', '.join(machine['hosts'])}: {machine['cpu']}, {machine['cores']} cores"
        settings.setdefault(where, []).append(run)
    out = ["<!DOCTYPE html><html lang=en><head><meta charset=utf-8><meta name=viewport content='width=device-width'>",
           f"<title>Stretto: collectives</title><style>{STYLE}</style></head><body class=paper><h1>Stretto: collectives</h1>"]
    for where, there in settings.items():
        out.append(f"<p><strong>{escape(where)}</strong></p>")
        for run in there:
            machine = run["machine"]
            more = [f"settings {', '.join(machine['settings'])}"] if machine["settings"] else []
            more += [f"beside {', '.join(machine['peers'])}"] if machine["peers"] else []
            out.append(f"<p class=quiet>{escape(machine['date'])}, Stretto {escape(machine['version'])}{escape(''.join('; ' + m for m in more))}<br>"
                       f"<code>{escape(machine['command'])}</code></p>")
        out.append("<p class=quiet>Lines are means. A band reaches from Stretto's median to its 99th percentile. GB = 1e9 bytes. "
                   "Point at a mark to read its figures.</p>")
        sections = {}
        for run in there:
            for row in run["rows"]:
                sections.setdefault(title_of(row), []).append(row)
        out += [section(title, rows) for title, rows in sections.items()]
    return "".join(out) + "</body></html>\n"


def main(words=None):
    parser = argparse.ArgumentParser(prog="perf/report", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE", help="written by stretto-perf --json")
    parser.add_argument("-o", "--output", default="perf.html", help="the page (%(default)s)")
    options = parser.parse_args(words)
    runs = []
    for name in options.files:
        try:
            runs.append(json.loads(pathlib.Path(name).read_text()))
            runs[-1]["rows"], runs[-1]["machine"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            sys.exit(f"error: {name} is not readable as a file that stretto-perf --json has written ({error}).")
    pathlib.Path(options.output).write_text(page(runs))
