"""The page of perf/timeline."""
import html
import json
import pathlib

from timeline_trace import COMMUNICATION, COMPUTING_THREAD, Sums, length, within

STYLE = """
:root { color-scheme: light dark; --page: #fcfcfb; --text: #1d1d1b; --quiet: #66645f; --line: #dddbd5; --band: #f3f2ee;
  --compute: #2a78d6; --hidden: #1baf7a; --exposed: #eb6834; --step: #cfccc3; --arrow: #4a3aa7; --on: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --page: #1a1a19; --text: #f2f1ee; --quiet: #a5a39c; --line: #3a3936; --band: #222220;
  --compute: #3987e5; --hidden: #199e70; --exposed: #d95926; --step: #4a4945; --arrow: #b3aaf2; --on: #ffffff; } }
body { margin: 2rem auto; max-width: 1400px; padding: 0 1rem; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin: 2.5rem 0 .3rem; }
p, .legend { color: var(--quiet); } p.warning { color: var(--exposed); font-weight: 600; }
.controls, .legend { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; align-items: center; margin: .5rem 0; }
.key { display: inline-block; width: 14px; height: 10px; margin-right: .4em; }
select, button { font: inherit; color: inherit; background: var(--band); border: 1px solid var(--line); border-radius: 4px; padding: .1rem .6rem; }
canvas { display: block; width: 100%; touch-action: pan-y; cursor: grab; }
#said { position: fixed; display: none; pointer-events: none; max-width: 26rem; padding: .4rem .6rem; background: var(--page); color: var(--text);
  border: 1px solid var(--line); border-radius: 4px; font-size: 13px; line-height: 1.4; white-space: pre-line; box-shadow: 0 2px 8px #0003; }
.scroll { overflow-x: auto; margin-top: .8rem; max-height: 36rem; } table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: .15rem .6rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--quiet); font-weight: 500; position: sticky; top: 0; background: var(--page); } .name { text-align: left; }
"""


def escape(text):
    return html.escape(str(text))


def said_of(slice_, exposed):
    """What the page says where somebody points at a slice, apart from its name and its time."""
    if slice_.category != COMMUNICATION:
        return ""
    of = slice_.arguments
    lines = [f"{of['bytes']:,} bytes sent" + (f", {of['bytes_between_nodes']:,} of them between nodes" if of.get("bytes_between_nodes") else ""),
             f"{of['count']:,} x {of['dtype']} by {of['algorithm']}", f"group {of['group']} of {of['group_size']} ranks"]
    lines += [f"for {of['tag']}"] if of["tag"] else []
    lines.append(f"{length(exposed):,.1f} us of it exposed; {of['waited_us']:,.1f} us waited for")
    return "\n".join(lines)


def rounded(value):
    return round(value, 3)


def drawing(trace):
    """What the page's script draws. Times from the trace's beginning; what repeats is said once."""
    places, texts = {}, []

    def place_of(text):
        if text not in places:
            places[text] = len(texts)
            texts.append(text)
        return places[text]

    rows = []
    row_of = {}
    for number, rank in trace.ranks.items():
        for track in rank.tracks:
            slices = []
            for each in track.slices:
                # Category, begin, duration, name, what is said, and of communication what is exposed: begin, end, ...
                exposed = within(rank.exposed, each.begin, each.end) if each.category == COMMUNICATION else []
                slices.append([each.category, rounded(each.begin - trace.begin), rounded(each.end - each.begin), place_of(each.name),
                               place_of(said_of(each, exposed)), *(rounded(edge - trace.begin) for interval in exposed for edge in interval)])
            row_of[number, track.id] = len(rows)
            rows.append({"rank": rank.name, "track": track.name, "computes": track.id == COMPUTING_THREAD, "slices": slices})
    arrows = [[row_of[arrow.start[:2]], rounded(arrow.start[2] - trace.begin), row_of[arrow.end[:2]], rounded(arrow.end[2] - trace.begin)]
              for arrow in trace.arrows if arrow.start[:2] in row_of and arrow.end[:2] in row_of]
    steps = [[name, rounded(begin - trace.begin), rounded(end - trace.begin)] for name, (begin, end) in trace.steps()]
    return {"duration": rounded(trace.end - trace.begin), "rows": rows, "arrows": arrows, "steps": steps, "texts": texts}


def milliseconds(us):
    return f"{us / 1000:.3f}"


def table_row(cells, sums):
    cells = "".join(f'<td class="name">{escape(cell)}</td>' for cell in cells)
    figures = "".join(f"<td>{milliseconds(value)}</td>" for value in sums)
    share = f"{sums.hidden / sums.communication:.0%}" if sums.communication > 0 else ""
    return f"<tr>{cells}{figures}<td>{share}</td></tr>"


def table(trace):
    heads = ["step", "rank", "time (ms)", "compute", "communication", "hidden", "exposed", "hidden / communication"]
    out = ["<tr>", *(f'<th{" class=name" if head in ("step", "rank") else ""}>{head}</th>' for head in heads), "</tr>"]
    for name, _ in trace.steps():
        for rank in trace.ranks.values():
            out += [table_row([name, rank.name], rank.sums(step.begin, step.end)) for step in rank.steps if step.name == name]
    for rank in trace.ranks.values():
        if rank.steps:
            every = [rank.sums(step.begin, step.end) for step in rank.steps]
            out.append(table_row(["mean", rank.name], Sums(*(sum(values) / len(every) for values in zip(*every)))))
        else:
            out.append(table_row(["everything", rank.name], rank.sums(trace.begin, trace.end)))
    return f'<div class="scroll"><table>{"".join(out)}</table></div>'


def warnings(trace):
    lost = sum(trace.about.get("lost_operations", []))
    if lost:
        yield f"{lost} operations are missing here: the ledger had dropped them before they were noted."
    if "arrows_left_out" in trace.about:
        yield f"Arrows are left out: {trace.about['arrows_left_out']}."


def page(trace, name):
    key = lambda color, text: f'<span><span class="key" style="background:var(--{color})"></span>{text}</span>'
    data = json.dumps(drawing(trace), separators=(",", ":")).replace("<", "\\u003c")
    script = pathlib.Path(__file__).with_name("timeline_page.js").read_text()
    error = max(trace.about.get("clock_error_us", [0]), default=0)
    return "".join([
        "<!DOCTYPE html><html lang=en><head><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        f"<title>Stretto: {escape(name)}</title><style>{STYLE}</style></head><body><h1>Who did what when: {escape(name)}</h1>",
        *(f'<p class="warning">{escape(warning)}</p>' for warning in warnings(trace)),
        f"<p>{len(trace.ranks)} ranks on one clock{f', which is wrong by {error:g} us at most' if error else ''}. Drag to move, ctrl and wheel or the buttons to zoom, "
        "point at a slice for what it is and where its bytes went.</p>",
        '<div class="legend">', key("compute", "computation"), key("hidden", "communication, hidden: the computing thread computes beside it"),
        key("exposed", "communication, exposed: it computes nothing"), "</div>",
        '<div class="controls"><label>show <select id="step"><option value="">everything</option></select></label>',
        '<button id="nearer" type="button">zoom in</button><button id="farther" type="button">zoom out</button>',
        '<label><input type="checkbox" id="arrows"> all arrows</label></div>',
        '<canvas id="timeline" role="img" aria-label="timeline of all ranks"></canvas><div id="said"></div>',
        "<h2>Steps</h2><p>Of each rank and step: its length, for how long the computing thread ran kernels, for how long any stream communicated, "
        "and what of that lay beside kernels (hidden) or did not (exposed).</p>",
        table(trace), f'<script type="application/json" id="trace">{data}</script><script>{script}</script></body></html>\n'])
