"""Times collectives of an MPI program with and without libstretto-mpi.so preloaded, for every MPI of the machine: the same programs
(peers/mpi_host_loop.cpp, peers/mpi_outstanding_loop.cpp) in turn with themselves, in ordinary memory.

Prints medians, ratios and verdicts, and exits 1 if one of them falls short.
"""
import collections
import json
import statistics
import sys

from perf.comparisons import mpi_programs
from perf.comparisons.programs import ROOT, command_text, machine, parser_of, rank_counts, run, sizes_in_bytes
from perf.pages.text import DocsSection, Verdict, machine_text, markdown_table, rounds_text, size_text, time_text, verdict_text

SECTION = DocsSection("./dev perf mpi")
NAMES = {"openmpi": "Open MPI", "mpich": "MPICH"}
COLLECTIVES = ["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast"]
SMALL = ["gather_v", "scatter_v", "all_to_all_v"]
OUTSTANDING = {"outstanding": "together", "outstanding_one_by_one": "one_by_one"}  # 100 non-blocking calls of all kinds
NEVER_SLOWER_THAN = round(1 / 1.5, 2)

# asked: {bytes: the wanted ratio, the MPI's own time / time through the door}. arguments(seconds): those before the sizes.
Case = collections.namedtuple("Case", "name loop arguments sizes asked")


def case_of(name, sizes):
    if name in COLLECTIVES:
        asked = {8: 0.8, 1 << 20: 1.5} if name == "all_reduce" else {}
        return Case(name, "mpi_host_loop", lambda seconds: [name, seconds, 2], sizes, asked)
    if name in OUTSTANDING:
        asked = {64: NEVER_SLOWER_THAN}
        return Case(name, "mpi_outstanding_loop", lambda seconds: ["mixed", 100, OUTSTANDING[name], seconds, 2], list(asked), asked)
    asked = {size: NEVER_SLOWER_THAN for size in ([64, 2048] if name in SMALL else [0])}
    return Case(name, "mpi_host_loop", lambda seconds: [name, seconds, 2], list(asked), asked)


ALL = [*COLLECTIVES, *SMALL, "communicators", *OUTSTANDING]


def preloaded(mpi):
    """The launcher's options that preload the door."""
    door = ROOT / "build/lib" / mpi / "libstretto-mpi.so"
    if not door.exists():
        sys.exit(f"error: {door} is not there; ./dev perf mpi builds it.")
    return ["-x", f"LD_PRELOAD={door}"] if mpi == "openmpi" else ["-genv", "LD_PRELOAD", door]


def time_once(mpi, program, case, ranks, through, seconds, samples):
    words = [*mpi_programs.launcher_of(mpi, ranks), *(preloaded(mpi) if through else []), program, *case.arguments(seconds)]
    for line in run([*words, *case.sizes]).stdout.splitlines():
        row = json.loads(line)
        if "version" in row:
            continue
        if row["wrong"]:
            sys.exit(f"error: {row['wrong']} wrong values in {case.name} of {row['bytes']} bytes by {' '.join(map(str, words))}.")
        samples.setdefault((mpi, case.name, ranks, row["bytes"], through), []).append(row["time_us"])


def measure(cases, options):
    loops = {case.loop for case in cases}
    programs = {(mpi, loop): program for mpi in mpi_programs.MPIS for loop in loops if (program := mpi_programs.compiled_loop(mpi, loop))}
    if not programs:
        sys.exit("error: this machine has neither Open MPI nor MPICH.")
    samples = {}
    for i in range(options.rounds):
        for mpi in NAMES:
            for case in cases:
                for ranks in options.ranks:
                    for through in ((False, True) if i % 2 == 0 else (True, False)):
                        if (mpi, case.loop) in programs:
                            time_once(mpi, programs[mpi, case.loop], case, ranks, through, options.seconds, samples)
        print(f"round {i + 1} of {options.rounds} is done", file=sys.stderr)
    return {key: statistics.median(values) for key, values in samples.items()}


def ratio_of(times, *key):
    """The MPI's own time / time through the door."""
    return times[*key, False] / times[*key, True]


def cell(times, *key):
    return f"{time_text(times[*key, False])} / {time_text(times[*key, True])} = {ratio_of(times, *key):.2f}"


def tables(times, cases, options):
    """Lines of Markdown: for each MPI a table of each collective that has many sizes, and one of everything else."""
    lines = []
    header = [f"{n} ranks" for n in options.ranks]
    for mpi in (mpi for mpi in NAMES if any(key[0] == mpi for key in times)):
        rest = []
        for case in cases:
            rows = [[size_text(size), *(cell(times, mpi, case.name, n, size) for n in options.ranks)] for size in case.sizes]
            if case.name in COLLECTIVES:
                lines += [f"{NAMES[mpi]}, {case.name}: its own time / time through the door", "", *markdown_table(["size", *header], rows), ""]
            else:
                rest += [[f"{case.name}, {row[0]}" if len(rows) > 1 else case.name, *row[1:]] for row in rows]
        if rest:
            lines += [f"{NAMES[mpi]}: its own time / time through the door", "", *markdown_table(["", *header], rest), ""]
    return lines


def verdicts(times, cases, options):
    for mpi in (mpi for mpi in NAMES if any(key[0] == mpi for key in times)):
        for case in cases:
            for size, asked in case.asked.items():
                if size not in case.sizes:
                    continue
                least, ranks = min((ratio_of(times, mpi, case.name, n, size), n) for n in options.ranks)
                what = f"{case.name} of {size_text(size)}" if len(case.sizes) > 1 else case.name
                yield Verdict(least >= asked, f"{NAMES[mpi]}, {what}: its own time / time through the door >= {asked}; least {least:.2f}, "
                                              f"on {ranks} ranks")


def parse():
    parser = parser_of("mpi", __doc__)
    cuts = [
        parser.add_argument("--sizes", default="8,1K,16K,64K,256K,1M,8M",
                            help=f"bytes of the largest buffer of {', '.join(COLLECTIVES)} (default %(default)s)"),
        parser.add_argument("--ranks", default="2,4,5,8", help="(default %(default)s)"),
        parser.add_argument("--cases", default=",".join(["all_reduce", *SMALL, "communicators", *OUTSTANDING]),
                            help=f"any of {','.join(ALL)} (default %(default)s)"),
        parser.add_argument("--rounds", type=int, default=5, help="rounds, over which medians are taken (default %(default)s)"),
        parser.add_argument("--seconds", type=float, default=0.05, help="length of a loop (default %(default)s)"),
    ]
    parser.add_argument("--write-docs", action="store_true", help="put the figures between the marks of docs/mpi.md")
    options = parser.parse_args()
    options.command = command_text(parser, options, cuts)
    options.sizes = sizes_in_bytes(options.sizes)
    options.ranks = rank_counts(options.ranks)
    options.cases = options.cases.split(",")
    if not set(options.cases) <= set(ALL):
        sys.exit(f"error: --cases takes {', '.join(ALL)}.")
    return options


def main():
    options = parse()
    cases = [case_of(name, options.sizes) for name in options.cases]
    times = measure(cases, options)
    found = list(verdicts(times, cases, options))
    text = "\n".join([f"Measured by `{options.command}` on {machine_text(machine())}: {rounds_text(options.rounds)}.", "",
                      *tables(times, cases, options), *(f"- {verdict_text(verdict)}" for verdict in found)])
    print(text)
    if options.write_docs:
        SECTION.replace(ROOT / "docs/mpi.md", text)
    return 0 if all(verdict.holds for verdict in found) else 1


if __name__ == "__main__":
    sys.exit(main())
