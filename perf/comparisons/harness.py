"""The harness of ./dev perf. A comparison says what it measures, its tables, and what is wanted of the figures; the harness has the
command line, the rounds, the file of figures, the report, and the section of a page."""
import dataclasses
import statistics
import sys
from typing import Callable

from perf.comparisons.programs import BIN, add_outputs, command_text, machine, parser_of, read_json, write_json
from perf.pages.text import DocsSection, listed, machine_text, markdown_table, missed, terminal_table, verdict_text

COMPARISONS = {}  # by name, once their modules are imported


@dataclasses.dataclass
class Table:
    title: str
    header: list
    rows: list
    in_page: bool = True  # else the command alone prints it


def flag(name, default=None, text="", told=True, **more):
    """A flag of a comparison. told: whether the command that a report names has it."""
    if default is True or default is False:
        more = {"action": "store_false" if default else "store_true", **more}
    elif default is not None:
        more = {"default": default, "type": type(default), **more}
        text = f"{text} (default {default if isinstance(default, (str, int, float)) else ' '.join(map(str, default))})".strip()
    return name, {"help": text, **more}, told


def nothing(*_):
    return ()


@dataclasses.dataclass
class Comparison:
    """measured(options) yields the figures, as often as there are more of them; all that follows is made from figures alone."""
    name: str
    help: str
    measured: Callable = nothing
    tables: Callable = nothing
    verdicts: Callable = nothing
    about: Callable = lambda figures: ""  # behind the machine, in the sentence above the tables
    notes: Callable = nothing  # lines below the tables
    flags: tuple = ()
    program: str = ""  # in build/bin, for --program
    page: str = ""  # the page of --write-docs
    section: Callable = None  # from options: the command that the section's marks name
    check: Callable = nothing  # completes and checks the options: (parser, options)
    excused: Callable = lambda figures: False  # whether a figure may be missing
    targets_only: bool = False  # the page has every target and no table
    simulated: bool = False  # the figures are the same on every machine
    parts: dict = None  # comparisons of one command, each with a section of its own
    chosen: Callable = None  # from options: the names of the parts to measure; by default all

    def __post_init__(self):
        COMPARISONS.setdefault(self.name, self)

    # ---- from figures

    def sentence(self, figures):
        how = f"Simulated by `{figures['command']}`" if self.simulated else f"Measured by `{figures['command']}` on {machine_text(figures['machine'])}"
        about = self.about(figures)
        return how + (f": {about}." if about else ".")

    def report(self, figures):
        lines = [self.sentence(figures)]
        for table in self.tables(figures):
            lines += ["", *([table.title] if table.title else []), *terminal_table(table.header, table.rows)]
        return "\n".join([*lines, "", *self.notes(figures), *map(verdict_text, self.verdicts(figures))])

    def page_text(self, figures):
        blocks = [self.sentence(figures)]
        for table in self.tables(figures) if not self.targets_only else []:
            if table.in_page:
                blocks.append("\n".join([*([f"{table.title}:", ""] if table.title else []), *markdown_table(table.header, table.rows)]))
        blocks.append("\n".join(f"- {note}" for note in self.notes(figures)))
        blocks.append(listed(self.judged(figures)) if self.targets_only else missed(self.judged(figures)))
        return "\n\n".join(filter(None, blocks))

    def judged(self, figures):
        """The verdicts without those on what may be missing."""
        return [verdict for verdict in self.verdicts(figures) if verdict.holds is not None or not self.excused(figures)]

    def holds(self, figures):
        return all(verdict.holds for verdict in self.judged(figures))

    # ---- the command

    def finish(self, options, figures):
        """For what goes beyond report and page."""

    def parse(self, words):
        parser = parser_of(self.name, self.help)
        told = [(parser.add_argument(name, **more), told) for name, more, told in self.flags]
        if self.program:
            parser.add_argument("--program", default=str(BIN / self.program))
        add_outputs(parser, self.name.replace("-", "_"), self.page)
        options = parser.parse_args(words)
        options.command = command_text(parser, options, [action for action, is_told in told if is_told])
        self.check(parser, options)
        return options

    def of_parts(self, options):
        """(name, comparison, section) of each part that is wanted; the comparison itself if it has none."""
        for name in (self.chosen(options) if self.chosen else self.parts) if self.parts else [None]:
            part = self.parts[name] if self.parts else self
            yield name, part, DocsSection(part.section(options) if part.section else f"./dev perf {self.name}")

    def main(self, words=None, prepare=lambda: None):
        options = self.parse(words)
        parts = list(self.of_parts(options))
        write = options.write_docs if self.page else None
        for *_, section in parts if write else []:
            section.around(write)  # fails now rather than after minutes of measurement
        if not options.earlier:
            prepare()
        about = {"machine": machine(), "command": options.command}
        found = read_json(options.earlier) if options.earlier else {**about, "parts": {}} if self.parts else about
        if not about.keys() <= found.keys():
            sys.exit(f"error: {options.earlier} was not written by ./dev perf {self.name}.")
        about = {key: found[key] for key in about}
        statuses = []
        for name, part, section in parts:
            for figures in part.measured(options) if not options.earlier else []:
                if self.parts:
                    found["parts"][name] = figures
                else:
                    found = {**about, **figures}
                write_json(options.json, found)  # each time: the whole may take an hour
            figures = {**about, **found["parts"].get(name, {})} if self.parts else found
            if self.parts and name not in found["parts"]:
                continue
            print(part.report(figures) + "\n" * bool(self.parts), flush=True)
            if write:
                section.replace(write, part.page_text(figures))
            part.finish(options, figures)
            statuses.append(part.holds(figures))
        if not statuses:
            sys.exit(f"error: {options.earlier} has no figures of {', '.join(name for name, *_ in parts)}.")
        return 0 if all(statuses) else 1


# ---- rounds

def rounds_of(count):
    """The numbers of the rounds; says when each is done."""
    for i in range(count):
        yield i
        print(f"round {i + 1} of {count} is done", file=sys.stderr)


def in_turn(sides, count, start, before=lambda: None):
    """The figures of every side in every round: each side once a round, in every second round in reverse order. start(side) runs a side
    and returns its figures. before() begins each round."""
    rounds = []
    for i in rounds_of(count):
        before()
        rounds.append({side: start(side) for side in (sides if i % 2 == 0 else sides[::-1])})
        print(", ".join(f"{side} {figures['tokens_per_s']:.0f}" for side, figures in rounds[-1].items() if "tokens_per_s" in figures),
              file=sys.stderr)
    return rounds


def median(rounds, side, key):
    """None where the side has no such figure."""
    values = [each[side][key] for each in rounds if key in each[side]]
    return statistics.median(values) if values else None


def ratio(rounds, side, other, key="tokens_per_s"):
    """The median of the ratios of the same round."""
    return statistics.median(each[side][key] / each[other][key] for each in rounds)


def given_or(value, default):
    """Of a flag whose default depends on the part that is measured."""
    return default if value is None else value


# ---- columns of a table with a row for each side: (heading, cell of (rounds, side))

def column(heading, key, digits=0, unit=1):
    """The median of a figure, in units."""
    def cell(rounds, side):
        value = median(rounds, side, key)
        return "-" if value is None else f"{value / unit:.{digits}f}"
    return heading, cell


def ratio_column(base, digits=2, key="tokens_per_s"):
    return f"ratio to {base}", lambda rounds, side: f"{ratio(rounds, side, base, key):.{digits}f}"


SPEED = [column("tokens/s", "tokens_per_s"), column("s a step", "step_ms", 3, 1e3)]
TRAVEL = [column("in flight, s", "comm_ms", 2, 1e3), column("exposed, s", "exposed_ms", 2, 1e3)]


def table_of_sides(title, rounds, sides, columns):
    return Table(title, ["side", *(heading for heading, _ in columns)], [[side, *(cell(rounds, side) for _, cell in columns)] for side in sides])
