"""Compares collectives on one host with every other library, and with the limit that the machine sets without any library:
Stretto, Open MPI, MPICH and Gloo in turn, each in a program of its own (Gloo inside stretto-perf).

Prints the times and the verdicts on them, writes a JSON file, and exits 1 where Stretto falls short.
"""
import json
import sys

from perf.comparisons import mpi_programs
from perf.comparisons.host_verdicts import ALL_REDUCE, LARGEST, LIMIT_SIZES, OTHERS, OTHER_LIMITS, falls_short
from perf.comparisons.programs import (BIN, add_outputs, command_text, cores, figures_of, machine, parser_of, rank_counts, read_json, run,
                                       sizes_in_bytes, write_json)
from perf.pages import host as page
from perf.pages.text import size_text

PREPARED_UP_TO = 4 << 10  # bytes; for more, the time that preparing saves cannot be measured


def doublings(sizes):
    """The sizes as runs in which each size is twice the one before: [(first, last)]."""
    runs = []
    for size in sizes:
        if runs and size == 2 * runs[-1][1]:
            runs[-1] = (runs[-1][0], size)
        else:
            runs.append((size, size))
    return runs


def lower_fifth(rounds):
    """Of one figure. The cores of a virtual machine move apart for seconds to minutes, in which small calls take several times as long:
    sides are compared where each of them had its cores near each other."""
    return sorted(rounds)[len(rounds) // 5]


class Measurement:
    def __init__(self, options):
        self.options = options
        self.seconds = 0.02 if options.quick else 0.05
        self.samples = {}  # (collective, ranks, side, size) -> microseconds, one a round
        self.exchanges = {}  # ranks -> microseconds, one a round
        self.clocks = {}  # the same, of a read of the clock
        self.limits = {}  # (ranks, collective, size) -> microseconds, one a round
        self.wrong = set()
        self.versions = {}
        self.commands = {}
        self.loops = self.compiled_loops()

    def compiled_loops(self):
        """The program of each form that this machine can run."""
        loops = {}
        for mpi in mpi_programs.MPIS:
            if program := mpi_programs.compiled_loop(mpi):
                loops.update({form: program for form in mpi_programs.FORMS if form.startswith(mpi)})
        if "openmpi" in loops and "MCA pml: ucx" not in run(["ompi_info"]).stdout:
            print("Open MPI is measured without UCX, with which it was not built here")
            del loops["openmpi_ucx"]
        return loops

    def forms(self, ranks, mpi=""):
        return [form for form in self.loops if form.startswith(mpi) and (form != "openmpi_sm" or ranks <= cores())]

    def add(self, collective, ranks, side, size, us):
        self.samples.setdefault((collective, ranks, side, size), []).append(us)

    def stretto(self, collective, ranks, side, sizes):
        words = [BIN / "stretto-perf", collective, "--nproc", ranks, "-f", 2, "-w", 2, "--seconds", self.seconds, "--copies", 1]
        words += ["--in-place", int(collective == "broadcast"), "--memory", "malloc" if side == "malloc" else "symmetric"]
        if side == "prepared":
            words.append("--prepared")
        if side == "malloc" and collective == ALL_REDUCE:
            words += ["--vs", "gloo"]
        for first, last in doublings(sizes):
            result = figures_of([*words, "-b", first, "-e", last])
            self.versions["stretto"] = f"Stretto {result['machine']['version']}"
            for row in result["rows"]:
                self.add(collective, ranks, side, row["bytes"], row["time_us"])
                if row["wrong"]:
                    self.wrong.add(f"{row['wrong']} in {collective}, {ranks} ranks, {side}, {size_text(row['bytes'])}")
                if "gloo" in row["peers"]:
                    self.add(collective, ranks, "gloo", row["bytes"], row["peers"]["gloo"]["time_us"])
            for text in result["machine"]["peers"]:
                self.versions["gloo"] = text[text.index("(") + 1:-1]

    def mpi(self, collective, ranks, form, sizes):
        launcher = mpi_programs.launcher_of(form, ranks)
        self.commands[f"{form}, {ranks} ranks"] = " ".join(str(word) for word in launcher)
        command = [*launcher, self.loops[form], collective, self.seconds, 2]
        for line in run([*command, *sizes]).stdout.splitlines():
            row = json.loads(line)
            if "version" in row:
                self.versions[form.split("_")[0]] = row["version"].replace(" Version:", "")
            elif row["wrong"]:
                print(f"{form} gave {row['wrong']} wrong values in {collective} of {size_text(row['bytes'])} and is left out there")
            else:
                self.add(collective, ranks, form, row["bytes"], row["time_us"])

    def limit(self, ranks, sizes):
        def measured(what, *sizes):
            return json.loads(run([BIN / "host_limit", ranks, what, *sizes]).stdout)

        exchange = measured("exchange")
        self.exchanges.setdefault(ranks, []).append(exchange["exchange_us"])
        self.clocks.setdefault(ranks, []).append(exchange["clock_us"])
        for collective in [ALL_REDUCE, *(OTHER_LIMITS if ranks == 2 else [])]:
            for size, us in (measured(collective, *sizes)["loops"] if sizes else {}).items():
                self.limits.setdefault((ranks, collective, size), []).append(us)

    def round(self, with_more_ranks):
        """Every side once, whole programs in turn."""
        sizes = self.options.sizes
        for ranks in self.options.ranks:
            if ranks > cores() and not with_more_ranks:
                continue
            small = [size for size in sizes if size <= PREPARED_UP_TO]
            if ranks == 2 and small:
                self.stretto(ALL_REDUCE, ranks, "prepared", small)
            for side in ("symmetric", "malloc"):
                self.stretto(ALL_REDUCE, ranks, side, sizes)
            for form in self.forms(ranks):
                self.mpi(ALL_REDUCE, ranks, form, sizes)
            self.limit(ranks, [size for size in sizes if size in LIMIT_SIZES])
        if 2 in self.options.ranks:
            for collective in OTHERS:
                for side in ("symmetric", "malloc"):
                    self.stretto(collective, 2, side, sizes)
                for form in self.forms(2, "openmpi"):
                    self.mpi(collective, 2, form, sizes)

    def figures(self):
        """The lower fifths of the rounds."""
        times = {}
        for (collective, ranks, side, size), samples in sorted(self.samples.items()):
            by_ranks = times.setdefault(collective, {})
            by_ranks.setdefault(str(ranks), {}).setdefault(side, {})[str(size)] = lower_fifth(samples)
        limit = {str(ranks): {"exchange_us": lower_fifth(samples), "clock_us": lower_fifth(self.clocks[ranks]), "loops": {}}
                 for ranks, samples in self.exchanges.items()}
        for (ranks, collective, size), samples in self.limits.items():
            limit[str(ranks)]["loops"].setdefault(collective, {})[size] = lower_fifth(samples)
        return {
            "machine": machine(),
            "command": self.options.command,
            "rounds": self.options.rounds,
            "seconds": self.seconds,
            "sizes": self.options.sizes,
            "partial": self.options.partial,
            "versions": self.versions,
            "commands": self.commands,
            "wrong": sorted(self.wrong),
            "times": times,
            "limit": limit,
        }


def parse():
    parser = parser_of("host", __doc__)
    cuts = [
        parser.add_argument("--quick", action="store_true",
                            help="one round of short loops over few sizes with 2 ranks; too rough for figures to keep"),
        parser.add_argument("--sizes", help="sizes such as 8,64K,64M (default every power of two from 8 bytes to 64M)"),
        parser.add_argument("--ranks", help="numbers of ranks (default 2,4,8)"),
        parser.add_argument("--rounds", type=int, help="rounds, of which each figure's lower fifth is taken (default 8); with more ranks than cores every second one"),
    ]
    add_outputs(parser, "host", "docs/performance.md")
    options = parser.parse_args()
    options.command = command_text(parser, options, cuts)
    if options.write_docs:
        page.SECTION.around(options.write_docs)  # fails now rather than after ten minutes of measurement
    options.partial = bool(options.quick or options.sizes or options.ranks)
    options.rounds = options.rounds or (1 if options.quick else 8)
    sizes = options.sizes or ("8,64K,4M" if options.quick else None)
    options.sizes = sizes_in_bytes(sizes) if sizes else [8 << i for i in range(24)]
    for size in options.sizes:
        if size < 8 or size % 8 != 0 or size > LARGEST:
            sys.exit(f"error: --sizes {size} is no multiple of 8 bytes up to 64M.")
    options.ranks = rank_counts(options.ranks or ("2" if options.quick else "2,4,8"))
    if not set(options.ranks) <= {2, 4, 8}:
        sys.exit("error: --ranks takes 2, 4 and 8.")
    return options


def main():
    options = parse()
    if options.earlier:
        figures = read_json(options.earlier)
    else:
        measurement = Measurement(options)
        for i in range(options.rounds):
            measurement.round(with_more_ranks=i % 2 == 0)
            print(f"round {i + 1} of {options.rounds} is done", file=sys.stderr)
        figures = measurement.figures()
        write_json(options.json, figures)
    print(page.report(figures))
    if options.write_docs:
        page.SECTION.replace(options.write_docs, page.section(figures))
    return 1 if falls_short(figures) else 0


if __name__ == "__main__":
    sys.exit(main())
