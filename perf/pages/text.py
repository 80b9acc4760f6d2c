"""Figures as text: sizes and times, tables, and the sections of docs that programs write."""
import collections
import re
import sys

# A requirement on a figure. holds: True, False, or None if it was not measured.
Verdict = collections.namedtuple("Verdict", "holds text")
MARKS = {True: "holds", False: "FALLS SHORT", None: "NOT MEASURED"}


def size_text(count):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count // unit} {name}"
    return f"{count} B"


def time_text(us):
    return f"{us:.3f} us" if us < 10 else f"{us:.1f} us" if us < 1000 else f"{us / 1000:.2f} ms"


def beside(value, limit):
    """The value with two digits, or as many more as it takes to differ from the limit."""
    digits = next((digits for digits in range(2, 6) if f"{value:.{digits}f}" != f"{limit:.{digits}f}"), 2)
    return f"{value:.{digits}f}"


def machine_text(machine):
    return f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}, {machine['date']}"


def rounds_text(rounds, taken="medians"):
    return f"{taken} of {rounds} rounds" if rounds > 1 else "one round"


def verdict_text(verdict):
    return f"{MARKS[verdict.holds]}: {verdict.text}"


def listed(verdicts):
    """Items of a page."""
    return "\n".join(f"- {'not measured: ' if verdict.holds is None else '' if verdict.holds else 'missed: '}{verdict.text}" for verdict in verdicts)


def missed(verdicts):
    """What a page says of all that is wanted: by name only what does not hold."""
    short = [verdict for verdict in verdicts if not verdict.holds]
    if not short:
        return "" if not verdicts else "The target is met." if len(verdicts) == 1 else f"All {len(verdicts)} targets are met."
    return f"{len(short)} of {len(verdicts)} targets {'is' if len(short) == 1 else 'are'} missed:\n\n{listed(short).replace('- missed: ', '- ')}"


def numeric_columns(rows):
    """For each column: whether its cells are numbers, or say that there is none. Such a column is aligned to the right."""
    return [all(re.match(r"-?\d|(-|none|N/A|not measured|)$", cell) for cell in column) for column in zip(*rows)]


def terminal_table(header, rows):
    """Lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(header, *rows)]
    columns = list(zip(widths, numeric_columns(rows)))
    return ["  ".join(cell.rjust(width) if right else cell.ljust(width) for cell, (width, right) in zip(row, columns)).rstrip()
            for row in [header, *rows]]


def markdown_table(header, rows):
    """Lines of a table in Markdown."""
    header, *rows = [[" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in [header, *rows]]
    rule = ["---:" if right else "---" for right in numeric_columns(rows)]
    return ["| " + " | ".join(row) + " |" for row in (header, rule, *rows)]


class DocsSection:
    """The part of a page of docs/ that a command writes, between two marks that name the command."""

    def __init__(self, command):
        self.begin, self.end = (f"<!-- {edge}: {command} --write-docs -->" for edge in ("begin", "end"))

    def around(self, path):
        """The page's text before and after the section. Exits with an error if the marks are missing."""
        try:
            text = path.read_text()
        except OSError as error:
            sys.exit(f"error: {path} cannot be read ({error.strerror}).")
        if text.count(self.begin) != 1 or text.count(self.end) != 1 or text.index(self.begin) > text.index(self.end):
            sys.exit(f"error: {path} does not have the two marks between which the figures go: '{self.begin}' and '{self.end}'.")
        return text[:text.index(self.begin)], text[text.index(self.end):]

    def replace(self, path, section):
        before, after = self.around(path)
        path.write_text(f"{before}{self.begin}\n\n{section.strip()}\n\n{after}")
