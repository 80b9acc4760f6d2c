"""A plot of gains over bandwidth as an SVG that can be read on light and on dark pages."""
import collections
import html
import math

Curve = collections.namedtuple("Curve", "name measured expected")  # points (Gb/s, times as fast)

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 460, 64, 20, 84, 84
# Paper, ink, grid and three colours that differ for everybody; each curve has a mark of its own besides.
LIGHT = ["#ffffff", "#222222", "#e0e0e0", "#0072b2", "#c04a00", "#00795a"]
DARK = ["#14181d", "#dddddd", "#333a42", "#56b4e9", "#f0a050", "#3fcfa0"]


def colours(paper, ink, grid, *curves):
    rules = [f".paper {{ fill: {paper} }} text {{ fill: {ink} }} .one {{ stroke: {ink} }} .grid {{ stroke: {grid} }}"]
    rules += [f".line{i} {{ stroke: {colour} }} .mark{i} {{ fill: {colour} }}" for i, colour in enumerate(curves)]
    return " ".join(rules)


STYLE = f"""<style>
svg {{ font-family: sans-serif; font-size: 12px }} polyline {{ fill: none; stroke-width: 2 }}
.expected {{ stroke-dasharray: 5 4; stroke-width: 1.2 }} .one {{ stroke-width: 1.5 }}
{colours(*LIGHT)}
@media (prefers-color-scheme: dark) {{ {colours(*DARK)} }}
</style>"""


def mark(number, x, y):
    """Round, square or pointed."""
    if number == 0:
        return f'<circle class="mark0" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
    if number == 1:
        return f'<rect class="mark1" x="{x - 3.5:.1f}" y="{y - 3.5:.1f}" width="7" height="7"/>'
    return f'<polygon class="mark2" points="{x:.1f},{y - 5:.1f} {x + 5:.1f},{y + 4:.1f} {x - 5:.1f},{y + 4:.1f}"/>'


def text(x, y, words, more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{html.escape(words)}</text>'


def crossover_svg(curves, title, machine):
    """x is logarithmic; y begins at 0 and has a line at 1, below which quantizing does not pay."""
    points = [point for curve in curves for point in curve.measured + curve.expected]
    rates = sorted({rate for rate, _ in points})
    first, last = math.log(rates[0]), math.log(max(rates[-1], rates[0] * 2))
    most = max(2, math.ceil(max(gain for _, gain in points)))
    step = 0.5 if most <= 4 else 1

    def x_of(rate):
        return LEFT + (math.log(rate) - first) / (last - first) * (WIDTH - LEFT - RIGHT)

    def y_of(gain):
        return HEIGHT - BOTTOM - gain / most * (HEIGHT - TOP - BOTTOM)

    def line(points, look):
        return f'<polyline class="{look}" points="{" ".join(f"{x_of(rate):.1f},{y_of(gain):.1f}" for rate, gain in sorted(points))}"/>'

    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">', STYLE,
             f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>', text(LEFT, 24, title, ' font-size="15"')]
    for i in range(round(most / step) + 1):
        y = y_of(i * step)
        lines += [f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>',
                  text(LEFT - 8, y + 4, f"{i * step:g}", ' text-anchor="end"')]
    for rate in rates:
        lines += [f'<line class="grid" x1="{x_of(rate):.1f}" y1="{TOP}" x2="{x_of(rate):.1f}" y2="{HEIGHT - BOTTOM}"/>',
                  text(x_of(rate), HEIGHT - BOTTOM + 18, f"{rate:g}", ' text-anchor="middle"')]
    lines += [f'<line class="one" x1="{LEFT}" y1="{y_of(1):.1f}" x2="{WIDTH - RIGHT}" y2="{y_of(1):.1f}"/>',
              text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - BOTTOM + 38, "bandwidth between nodes, Gb/s", ' text-anchor="middle"'),
              text(0, 0, "time plain / time quantized",
                   f' text-anchor="middle" transform="translate(18 {(TOP + HEIGHT - BOTTOM) / 2:.0f}) rotate(-90)"'),
              text(LEFT, HEIGHT - 16, machine, ' font-size="11"')]
    legend = LEFT
    for number, curve in enumerate(curves):
        look = f"line{number % 3}"
        lines += [line(curve.expected, f"{look} expected"), line(curve.measured, look)]
        lines += [mark(number % 3, x_of(rate), y_of(gain)) for rate, gain in curve.measured]
        lines += [mark(number % 3, legend + 5, 46), text(legend + 16, 50, curve.name)]
        legend += 36 + 6.5 * len(curve.name)
    lines.append(text(LEFT, 70, "dashed: as the cost model expects; above 1 it pays to quantize"))
    return "\n".join([*lines, "</svg>"]) + "\n"
