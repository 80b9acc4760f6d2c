"""Compares collectives on one host with every other library, and with the limit that the machine sets without any library:
Stretto, Open MPI, MPICH, Intel MPI and Gloo in turn, of each MPI the newest that `./dev deps mpi` or Debian has brought, each in a program
of its own (Gloo inside stretto-perf). Exits 1 where Stretto falls short.
"""
import collections
import json
import sys

from perf.comparisons import mpi_programs
from perf.comparisons.harness import Comparison, Table, flag, rounds_of
from perf.comparisons.host_verdicts import (ALL_REDUCE, LARGEST, LIMIT_SIZES, OTHERS, OTHER_LIMITS, PEERS, RANKS, bare_loops, best_peer,
                                            exchange_us, geometric_mean, ratios, side, verdicts)
from perf.comparisons.programs import BIN, cores, figures_of, rank_counts, run, sizes_in_bytes
from perf.pages.text import rounds_text, size_text, time_text

PREPARED_UP_TO = 4 << 10  # bytes; for more, the time that preparing saves cannot be measured
MEMORIES = ("symmetric", "malloc")


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
        self.samples = collections.defaultdict(list)  # (collective, ranks, side, size) -> microseconds, one a round
        self.limits = collections.defaultdict(list)  # (ranks, exchange_us or clock_us, "") or (ranks, collective, size) -> the same
        self.wrong, self.versions, self.commands = set(), {}, {}
        self.loops = {}  # the program of each form of MPI that this machine can run
        for mpi in mpi_programs.newest():
            if program := mpi_programs.compiled_loop(mpi):
                self.loops.update({form: program for form in mpi_programs.FORMS if form.split("_")[0] == mpi})
        if "openmpi" in self.loops and "MCA pml: ucx" not in run(["ompi_info"]).stdout:
            print("Open MPI is measured without UCX, with which it was not built here")
            del self.loops["openmpi_ucx"]

    def stretto(self, collective, ranks, name, sizes):
        words = [BIN / "stretto-perf", collective, "--nproc", ranks, "-f", 2, "-w", 2, "--seconds", self.options.seconds, "--copies", 1,
                 "--in-place", int(collective == "broadcast"), "--memory", "malloc" if name == "malloc" else "symmetric"]
        words += ["--prepared"] if name == "prepared" else ["--vs", "gloo"] if (name, collective) == ("malloc", ALL_REDUCE) else []
        for first, last in doublings(sizes):
            result = figures_of([*words, "-b", first, "-e", last])
            self.versions["stretto"] = f"Stretto {result['machine']['version']}"
            for row in result["rows"]:
                self.samples[collective, ranks, name, row["bytes"]].append(row["time_us"])
                if row["wrong"]:
                    self.wrong.add(f"{row['wrong']} in {collective}, {ranks} ranks, {name}, {size_text(row['bytes'])}")
                if "gloo" in row["peers"]:
                    self.samples[collective, ranks, "gloo", row["bytes"]].append(row["peers"]["gloo"]["time_us"])
            for text in result["machine"]["peers"]:
                self.versions["gloo"] = text[text.index("(") + 1:-1]

    def mpi(self, collective, ranks, sizes):
        for form in self.loops:
            if form.endswith("_sm") and ranks > cores():
                continue
            launcher = mpi_programs.launcher_of(form, ranks)
            self.commands[f"{form}, {ranks} ranks"] = " ".join(map(str, launcher))
            for row in mpi_programs.rows_of([*launcher, self.loops[form], collective, self.options.seconds, 2, *sizes]):
                if "version" in row:
                    self.versions[form.split("_")[0]] = row["version"].replace(" Version:", "")
                elif row["wrong"]:
                    print(f"{form} gave {row['wrong']} wrong values in {collective} of {size_text(row['bytes'])} and is left out there")
                else:
                    self.samples[collective, ranks, form, row["bytes"]].append(row["time_us"])

    def limit(self, ranks, sizes):
        def measured(*words):
            return json.loads(run([BIN / "host_limit", ranks, *words]).stdout)

        for name, us in measured("exchange").items():
            self.limits[ranks, name, ""].append(us)
        for collective in [ALL_REDUCE, *(OTHER_LIMITS if ranks == 2 else [])]:
            for size, us in (measured(collective, *sizes)["loops"] if sizes else {}).items():
                self.limits[ranks, collective, size].append(us)

    def round(self, with_more_ranks):
        """Every side once, whole programs in turn."""
        sizes = self.options.sizes
        for ranks in self.options.ranks:
            if ranks > cores() and not with_more_ranks:
                continue
            small = [size for size in sizes if size <= PREPARED_UP_TO]
            if ranks == 2 and small:
                self.stretto(ALL_REDUCE, ranks, "prepared", small)
            for memory in MEMORIES:
                self.stretto(ALL_REDUCE, ranks, memory, sizes)
            self.mpi(ALL_REDUCE, ranks, sizes)
            self.limit(ranks, [size for size in sizes if size in LIMIT_SIZES])
        for collective in OTHERS if 2 in self.options.ranks else []:
            for memory in MEMORIES:
                self.stretto(collective, 2, memory, sizes)
            self.mpi(collective, 2, sizes)

    def figures(self):
        times, limit = {}, {}
        for (collective, ranks, name, size), samples in sorted(self.samples.items()):
            times.setdefault(collective, {}).setdefault(str(ranks), {}).setdefault(name, {})[str(size)] = lower_fifth(samples)
        for (ranks, what, size), samples in self.limits.items():
            of_ranks = limit.setdefault(str(ranks), {"loops": {}})
            (of_ranks["loops"].setdefault(what, {}) if size else of_ranks)[size or what] = lower_fifth(samples)
        return {"rounds": self.options.rounds, "seconds": self.options.seconds, "sizes": self.options.sizes, "partial": self.options.partial,
                "versions": self.versions, "commands": self.commands, "wrong": sorted(self.wrong), "times": times, "limit": limit}


def measured(options):
    measurement = Measurement(options)
    for i in rounds_of(options.rounds):
        measurement.round(with_more_ranks=i % 2 == 0)
    yield measurement.figures()


# ---- what the figures say

def table(title, columns):
    """columns: (heading, by size, whether these are ratios)."""
    sizes = sorted(set().union(*(by_size for _, by_size, are_ratios in columns if not are_ratios)))
    of_columns = [[(f"{by_size[size]:.2f}" if are_ratios else time_text(by_size[size])) if size in by_size else "" for size in sizes]
                  for _, by_size, are_ratios in columns]
    return Table(title, ["size", *(heading for heading, *_ in columns)], [[size_text(size), *row] for size, *row in zip(sizes, *of_columns)], in_page=False)


def tables(figures):
    for ranks in RANKS:
        sides = {"Stretto": ["symmetric"], "Stretto, malloc": ["malloc"], "Stretto, prepared": ["prepared"], **PEERS}
        columns = [(name, by_size, False) for name, forms in sides.items() if (by_size := side(figures, ALL_REDUCE, ranks, *forms))]
        if columns:
            yield table(f"all_reduce, {ranks} ranks", [*columns, ("bare loop", bare_loops(figures, ALL_REDUCE, ranks), False), *(
                (name, ratios(figures, ALL_REDUCE, ranks, memory), True) for name, memory in zip(("best peer / Stretto", "with malloc"), MEMORIES))])
    columns = []
    for collective in OTHERS:
        if ours := side(figures, collective, 2, "symmetric"):
            columns += [(collective, ours, False), ("best peer", best_peer(figures, collective, 2), False),
                        *((name, ratios(figures, collective, 2, memory), True) for name, memory in zip(("ratio", "with malloc"), MEMORIES))]
    if columns:
        yield table("Other collectives, 2 ranks, beside the fastest MPI", columns)


def summary(figures):
    for ranks in RANKS:
        for memory in MEMORIES:
            if by_size := ratios(figures, ALL_REDUCE, ranks, memory):
                yield (f"all_reduce, {ranks} ranks, {memory}: {geometric_mean(by_size.values()):.2f} times as fast as the best peer in the "
                       f"geometric mean, {min(by_size.values()):.2f} to {max(by_size.values()):.2f}.")
    for ranks in RANKS:
        exchange, ours, best = exchange_us(figures, ranks), side(figures, ALL_REDUCE, ranks, "symmetric"), best_peer(figures, ALL_REDUCE, ranks)
        if exchange is None:
            continue
        line = f"The bare exchange of cache lines between {ranks} processes takes {time_text(exchange)}"
        if 8 in ours:
            line += f"; an all_reduce of 8 B takes {ours[8] / exchange:.2f} times as long"
        if prepared := side(figures, ALL_REDUCE, ranks, "prepared").get(8):
            clock = figures["limit"][str(ranks)]["clock_us"]
            line += f", prepared {prepared / exchange:.2f} times, of which two reads of the clock are {2 * clock / exchange:.2f}"
        yield line + (f", the best peer {best[8] / exchange:.2f} times." if 8 in best else ".")
    for ranks in RANKS:
        loop, ours = (by_size.get(LARGEST) for by_size in (bare_loops(figures, ALL_REDUCE, ranks), side(figures, ALL_REDUCE, ranks, "symmetric")))
        if loop and ours:
            yield f"{ranks} ranks, 64 MiB: the bare loop takes {time_text(loop)}, the all_reduce {time_text(ours)}, {ours / loop:.2f} times as long."


def about(figures):
    versions = [figures["versions"][name] for name in ("stretto", "openmpi", "ompi5", "mpich", "mpich5", "impi", "gloo") if name in figures["versions"]]
    return f"{'; '.join(versions)}; {rounds_text(figures['rounds'], 'lower fifths')}, loops of {figures['seconds']} s"


def check(parser, options):
    options.partial = bool(options.quick or options.sizes or options.ranks)
    options.seconds = 0.02 if options.quick else 0.05
    options.rounds = options.rounds or (1 if options.quick else 8)
    sizes = options.sizes or ("8,64K,4M" if options.quick else None)
    options.sizes = sizes_in_bytes(sizes) if sizes else [8 << i for i in range(24)]
    for size in options.sizes:
        if size < 8 or size % 8 != 0 or size > LARGEST:
            sys.exit(f"error: --sizes {size} is no multiple of 8 bytes up to 64M.")
    options.ranks = rank_counts(options.ranks or ("2" if options.quick else "2,4,8"))
    if not set(options.ranks) <= set(RANKS):
        sys.exit("error: --ranks takes 2, 4 and 8.")


Comparison("host", __doc__, measured, tables, verdicts, about, summary, check=check, page="docs/performance.md",
           excused=lambda figures: figures["partial"],
           flags=(flag("--quick", False, "one round of short loops over few sizes with 2 ranks; too rough for figures to keep"),
                  flag("--sizes", text="sizes such as 8,64K,64M (default every power of two from 8 bytes to 64M)"),
                  flag("--ranks", text="numbers of ranks (default 2,4,8)"),
                  flag("--rounds", text="rounds, of which each figure's lower fifth is taken (default 8); with more ranks than cores every second one",
                       type=int)))
