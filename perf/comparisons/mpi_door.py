"""Times collectives of an MPI program with and without libstretto-mpi.so preloaded, for every MPI of the machine: the same programs
(peers/mpi_host_loop.cpp, peers/mpi_outstanding_loop.cpp) in turn with themselves, in ordinary memory. Exits 1 if a target is missed.
"""
import collections
import statistics
import sys

from perf.comparisons import mpi_programs
from perf.comparisons.harness import Comparison, Table, flag, rounds_of
from perf.comparisons.programs import ROOT, rank_counts, sizes_in_bytes
from perf.pages.text import Verdict, rounds_text, size_text, time_text

NAMES = {"openmpi": "Open MPI", "mpich": "MPICH"}
COLLECTIVES = ["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast"]
SMALL = ["gather_v", "scatter_v", "all_to_all_v"]
OUTSTANDING = {"outstanding": "together", "outstanding_one_by_one": "one_by_one"}  # 100 non-blocking calls of all kinds
OTHERS = [*SMALL, "communicators", *OUTSTANDING]
NEVER_SLOWER_THAN = round(1 / 1.5, 2)


def sizes_of(case, sizes):
    return sizes if case in COLLECTIVES else [64] if case in OUTSTANDING else [64, 2048] if case in SMALL else [0]


def asked_of(case):
    """By size, the wanted ratio of the MPI's own time to that through the door."""
    if case in COLLECTIVES:
        return {8: 0.8, 1 << 20: 1.5} if case == "all_reduce" else {}
    return dict.fromkeys(sizes_of(case, []), NEVER_SLOWER_THAN)


def loop_of(case):
    return "mpi_outstanding_loop" if case in OUTSTANDING else "mpi_host_loop"


def preloaded(mpi):
    """The launcher's options that preload the door."""
    door = ROOT / "build/lib" / mpi / "libstretto-mpi.so"
    if not door.exists():
        sys.exit(f"error: {door} is not there; ./dev perf mpi builds it.")
    return ["-x", f"LD_PRELOAD={door}"] if mpi == "openmpi" else ["-genv", "LD_PRELOAD", door]


def measured(options):
    programs = {(mpi, loop): program for mpi in mpi_programs.MPIS for loop in dict.fromkeys(map(loop_of, options.cases))
                if (program := mpi_programs.compiled_loop(mpi, loop))}
    if not programs:
        sys.exit("error: this machine has neither Open MPI nor MPICH.")
    samples = collections.defaultdict(list)
    for i in rounds_of(options.rounds):
        for mpi in dict.fromkeys(mpi for mpi, _ in programs):
            for case in options.cases:
                what = ["mixed", 100, OUTSTANDING[case]] if case in OUTSTANDING else [case]
                for ranks in options.ranks:
                    for side in ("own", "door")[::1 if i % 2 == 0 else -1]:
                        words = [*mpi_programs.launcher_of(mpi, ranks), *(preloaded(mpi) if side == "door" else []),
                                 programs[mpi, loop_of(case)], *what, options.seconds, 2, *sizes_of(case, options.sizes)]
                        for row in mpi_programs.rows_of(words):
                            if row.get("wrong"):
                                sys.exit(f"error: {row['wrong']} wrong values in {case} of {row['bytes']} bytes by {' '.join(map(str, words))}.")
                            if "version" not in row:
                                samples[mpi, case, row["bytes"], ranks, side].append(row["time_us"])
    times = {}
    for (mpi, case, size, ranks, side), values in samples.items():
        times.setdefault(mpi, {}).setdefault(case, {}).setdefault(str(size), {}).setdefault(str(ranks), {})[side] = statistics.median(values)
    yield {"rounds": options.rounds, "ranks": options.ranks, "times": times}


def ratio_of(cell):
    return cell["own"] / cell["door"]


def tables(figures):
    """For each MPI a table of each collective that has many sizes, and one of everything else."""
    for mpi, cases in figures["times"].items():
        rest = []
        for case, by_size in cases.items():
            rows = [[size_text(int(size)), *(f"{time_text(cell['own'])} / {time_text(cell['door'])} = {ratio_of(cell):.2f}"
                                             for cell in by_ranks.values())] for size, by_ranks in by_size.items()]
            if case in COLLECTIVES:
                yield table(f"{NAMES[mpi]}, {case}", "size", rows, figures)
            else:
                rest += [[f"{case}, {row[0]}" if len(rows) > 1 else case, *row[1:]] for row in rows]
        if rest:
            yield table(NAMES[mpi], "", rest, figures)


def table(title, head, rows, figures):
    return Table(f"{title}: its own time / time through the door", [head, *(f"{n} ranks" for n in figures["ranks"])], rows)


def verdicts(figures):
    for mpi, cases in figures["times"].items():
        for case, by_size in cases.items():
            for size, asked in asked_of(case).items():
                if by_ranks := by_size.get(str(size)):
                    least, ranks = min((ratio_of(cell), int(n)) for n, cell in by_ranks.items())
                    what = f"{case} of {size_text(size)}" if len(by_size) > 1 else case
                    yield Verdict(least >= asked, f"{NAMES[mpi]}, {what}: its own time / time through the door >= {asked}; least {least:.2f}, "
                                                  f"on {ranks} ranks")


def check(parser, options):
    options.sizes, options.ranks = sizes_in_bytes(options.sizes), rank_counts(options.ranks)
    options.cases = options.cases.split(",")
    if not set(options.cases) <= {*COLLECTIVES, *OTHERS}:
        sys.exit(f"error: --cases takes {', '.join([*COLLECTIVES, *OTHERS])}.")


Comparison("mpi", __doc__, measured, tables, verdicts, check=check, page="docs/mpi.md", targets_only=True, about=lambda figures: rounds_text(figures["rounds"]),
           flags=(flag("--sizes", "8,1K,16K,64K,256K,1M,8M", f"bytes of the largest buffer of {', '.join(COLLECTIVES)}"),
                  flag("--ranks", "2,4,5,8"),
                  flag("--cases", ",".join(["all_reduce", *OTHERS]), f"any of {','.join([*COLLECTIVES, *OTHERS])}"),
                  flag("--rounds", 5), flag("--seconds", 0.05, "length of a loop")))
