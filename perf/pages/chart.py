"""Line charts as SVG that can be read on light and on dark pages."""
import dataclasses
import html
import math

# Paper, ink, quiet ink and grid; then the curves.
LIGHT = ("#fcfcfb", "#1d1d1b", "#66645f", "#dddbd5",
         "#2a78d6", "#eb6834", "#1baf7a", "#4a3aa7", "#eda100", "#e34948", "#008300", "#e87ba4")
DARK = ("#1a1a19", "#f2f1ee", "#a5a39c", "#3a3936",
        "#3987e5", "#d95926", "#199e70", "#9085e9", "#c98500", "#e66767", "#2f9e2f", "#d55181")
COLOURS = len(LIGHT) - 4
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 10, 40  # margins around the frame of a chart without title, legend and caption
LINE = 20  # pixels from one line of text to the next


def rules(paper, ink, quiet, grid, *curves):
    fixed = (f".paper {{ fill: {paper}; background: {paper}; color: {ink} }} text, .quiet {{ fill: {quiet}; color: {quiet} }} "
             f".grid, th, td {{ stroke: {grid}; border-color: {grid} }} .strong {{ stroke: {ink} }}")
    return " ".join([fixed, *(f".line{i} {{ stroke: {curve} }} .fill{i} {{ fill: {curve} }}" for i, curve in enumerate(curves))])


STYLE = f"""
text {{ font: 11px system-ui, sans-serif }} .title {{ font-size: 15px }} polyline {{ fill: none; stroke-width: 2 }} .dashed {{ stroke-dasharray: 6 4 }}
.band {{ opacity: .13 }} .hit {{ fill: transparent }}
{rules(*LIGHT)}
@media (prefers-color-scheme: dark) {{ {rules(*DARK)} }}
"""


@dataclasses.dataclass
class Curve:
    name: str
    points: list  # (x, y)
    number: int  # chooses colour and mark
    dashed: bool = False
    in_legend: bool = True
    notes: list = ()  # one for each point, shown when the reader points at its mark
    band: list = ()  # (x, low, high)

    @property
    def colour(self):
        return self.number % COLOURS


class LogAxis:
    """ticks: where given, these values instead of powers of the base."""

    def __init__(self, label, values, base=10, text="{:g}".format, ticks=None):
        self.label, self.base, self.text = label, base, text
        first, last = math.log(min(values), base), math.log(max(values), base)
        if last - first < 1:  # one value, or values that hardly differ
            first, last = math.floor(first), max(math.floor(first) + 1, math.ceil(last))
        self.first, self.last = first, last
        powers = range(math.ceil(first - 1e-9), math.floor(last + 1e-9) + 1)
        self.ticks = ticks or [base**power for power in powers][::max(1, math.ceil(len(powers) / 8))]

    def part(self, value):
        """0 at the beginning of the axis, 1 at its end."""
        return (math.log(value, self.base) - self.first) / (self.last - self.first)


class LinearAxis:
    """From 0. strong: a tick whose line stands out."""

    def __init__(self, label, values, text="{:g}".format, strong=None):
        self.label, self.text, self.strong = label, text, strong
        rough = max(values) / 8
        power = 10**math.floor(math.log10(rough))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
        self.ticks = [i * step for i in range(math.ceil(max(values) / step - 1e-9) + 1)]

    def part(self, value):
        return value / self.ticks[-1]


def text(x, y, words, anchor="start", more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{html.escape(words)}</text>'


def line(x1, y1, x2, y2, look):
    return f'<line class="{look}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def polyline(points, look):
    return f'<polyline class="{look}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'


def mark(number, x, y):
    """Round, square or pointed, so that neighbouring curves differ by more than their colour."""
    look = f'class="fill{number % COLOURS}"'
    if number % 3 == 0:
        return f'<circle {look} cx="{x:.1f}" cy="{y:.1f}" r="3"/>'
    if number % 3 == 1:
        return f'<rect {look} x="{x - 2.7:.1f}" y="{y - 2.7:.1f}" width="5.4" height="5.4"/>'
    return f'<polygon {look} points="{x:.1f},{y - 4:.1f} {x + 4:.1f},{y + 3:.1f} {x - 4:.1f},{y + 3:.1f}"/>'


def look_of(curve):
    return f"line{curve.colour}" + " dashed" * curve.dashed


def legend(curves, width):
    """Its elements from y = 0 on, and its height."""
    out, x, y = [], LEFT, 0
    for curve in curves:
        if not curve.in_legend:
            continue
        needs = 52 + 6.2 * len(curve.name)
        if x + needs > width and x > LEFT:
            x, y = LEFT, y + LINE
        out += [polyline([(x, y + 10), (x + 26, y + 10)], look_of(curve)), mark(curve.number, x + 13, y + 10), text(x + 32, y + 14, curve.name)]
        x += needs
    return out, y + LINE


def svg(elements, width, height, more=""):
    return f'<svg viewBox="0 0 {width} {height}"{more}>{"".join(elements)}</svg>'


class Frame:
    """Maps the values of two axes to the pixels of a picture."""

    def __init__(self, x_axis, y_axis, left, top, right, bottom):
        self.x_axis, self.y_axis = x_axis, y_axis
        self.left, self.top, self.right, self.bottom = left, top, right, bottom

    def x(self, value):
        return self.left + self.x_axis.part(value) * (self.right - self.left)

    def y(self, value):
        return self.bottom - self.y_axis.part(value) * (self.bottom - self.top)

    def place(self, points):
        return [(self.x(x), self.y(y)) for x, y in points]

    def axes(self):
        strong = getattr(self.y_axis, "strong", None)
        out = []
        for tick in self.x_axis.ticks:
            out += [line(self.x(tick), self.top, self.x(tick), self.bottom, "grid"),
                    text(self.x(tick), self.bottom + 15, self.x_axis.text(tick), "middle")]
        for tick in self.y_axis.ticks:
            out += [line(self.left, self.y(tick), self.right, self.y(tick), "strong" if tick == strong else "grid"),
                    text(self.left - 6, self.y(tick) + 4, self.y_axis.text(tick), "end")]
        middle = (self.top + self.bottom) / 2
        return [*out, text((self.left + self.right) / 2, self.bottom + 34, self.x_axis.label, "middle"),
                text(12, middle, self.y_axis.label, "middle", f' transform="rotate(-90 12 {middle:.1f})"')]

    def curve(self, curve):
        out = []
        if len(curve.band) > 1:
            edge = self.place([(x, low) for x, low, _ in curve.band] + [(x, high) for x, _, high in reversed(curve.band)])
            out.append(f'<polygon class="band fill{curve.colour}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in edge)}"/>')
        points = self.place(curve.points)
        out.append(polyline(points, look_of(curve)))
        if not curve.in_legend:
            return out
        out += [mark(curve.number, x, y) for x, y in points]
        out += [f'<circle class="hit" cx="{x:.1f}" cy="{y:.1f}" r="8"><title>{html.escape(note)}</title></circle>'
                for (x, y), note in zip(points, curve.notes)]
        return out


def chart(curves, x_axis, y_axis, width=520, height=300):
    """A part of an HTML page that has STYLE."""
    frame = Frame(x_axis, y_axis, LEFT, TOP, width - RIGHT, height - BOTTOM)
    elements = [*frame.axes(), *(element for curve in curves for element in frame.curve(curve))]
    return svg(elements, width, height, f' role="img" aria-label="{html.escape(f"{y_axis.label} over {x_axis.label}")}"')


def picture(title, remark, caption, curves, x_axis, y_axis, width=860, height=460):
    """A file of its own, with a legend."""
    keys, keys_height = legend(curves, width)
    top = 40 + keys_height + LINE + TOP
    frame = Frame(x_axis, y_axis, LEFT, top, width - RIGHT, height - BOTTOM - LINE)
    elements = [f"<style>{STYLE}</style>", f'<rect class="paper" width="{width}" height="{height}"/>',
                text(LEFT, 24, title, more=' class="title"'), '<g transform="translate(0 36)">', *keys, "</g>",
                text(LEFT, 36 + keys_height + 14, remark), *frame.axes(),
                *(element for curve in curves for element in frame.curve(curve)), text(LEFT, height - 12, caption)]
    return svg([f"{element}\n" for element in elements], width, height,
               f' xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"') + "\n"
