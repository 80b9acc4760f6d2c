"""Times collectives of an MPI program with and without libstretto-mpi.so preloaded, for every MPI of the machine: the same program
(peers/mpi_host_loop.cpp) in turn with itself, in ordinary memory.

Prints medians and ratios, and exits 1 if an all-reduce of 8 B takes more than 1 / 0.8 of the MPI's own time, or one of 1 MiB more
than 1 / 1.5 of it.
"""
import json
import statistics
import sys

from perf.comparisons import mpi_programs
from perf.comparisons.programs import ROOT, command_text, machine, parser_of, rank_counts, run, sizes_in_bytes
from perf.pages.text import DocsSection, machine_text, markdown_table, size_text, time_text

ASKED = {8: 0.8, 1 << 20: 1.5}  # all_reduce: bytes -> the wanted ratio, the MPI's own time / time through the door
SECTION = DocsSection("./dev perf mpi")
NAMES = {"openmpi": "Open MPI", "mpich": "MPICH"}
COLLECTIVES = ["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast"]


def preloaded(mpi):
    """The launcher's options that preload the door."""
    door = ROOT / "build/lib" / mpi / "libstretto-mpi.so"
    if not door.exists():
        sys.exit(f"error: {door} is not there; ./dev perf mpi builds it.")
    return ["-x", f"LD_PRELOAD={door}"] if mpi == "openmpi" else ["-genv", "LD_PRELOAD", door]


def time_once(mpi, program, collective, ranks, through, options, samples):
    words = [*mpi_programs.launcher_of(mpi, ranks), *(preloaded(mpi) if through else []), program, collective, options.seconds, 2]
    for line in run([*words, *options.sizes]).stdout.splitlines():
        row = json.loads(line)
        if "version" in row:
            continue
        if row["wrong"]:
            sys.exit(f"error: {row['wrong']} wrong values in {collective} of {row['bytes']} bytes by {' '.join(map(str, words))}.")
        samples.setdefault((mpi, collective, ranks, row["bytes"], through), []).append(row["time_us"])


def measure(options):
    programs = {mpi: program for mpi in mpi_programs.MPIS if (program := mpi_programs.compiled_loop(mpi))}
    if not programs:
        sys.exit("error: this machine has neither Open MPI nor MPICH.")
    samples = {}
    for i in range(options.rounds):
        for mpi, program in programs.items():
            for collective in options.collectives:
                for ranks in options.ranks:
                    for through in ((False, True) if i % 2 == 0 else (True, False)):
                        time_once(mpi, program, collective, ranks, through, options, samples)
        print(f"round {i + 1} of {options.rounds} is done", file=sys.stderr)
    return {key: statistics.median(values) for key, values in samples.items()}


def tables(times, options):
    """Lines of Markdown, and a sentence on each figure that falls short."""
    lines, short = [], []
    for mpi in mpi_programs.MPIS:
        for collective in options.collectives:
            measured = [key for key in times if key[:2] == (mpi, collective) and key[4]]
            if not measured:
                continue
            ranks = sorted({key[2] for key in measured})
            rows = []
            for size in sorted({key[3] for key in measured}):
                rows.append([size_text(size)])
                for n in ranks:
                    own, through = (times[mpi, collective, n, size, side] for side in (False, True))
                    rows[-1].append(f"{time_text(own)} / {time_text(through)} = {own / through:.2f}")
                    asked = ASKED.get(size, 0) if collective == "all_reduce" else 0
                    if own / through < asked:
                        short.append(f"{NAMES[mpi]}, {n} ranks, all_reduce of {size_text(size)}: {own / through:.2f}, where {asked} is asked.")
            lines += [f"{NAMES[mpi]}, {collective}: its own time / time through the door", "",
                      *markdown_table(["size", *(f"{n} ranks" for n in ranks)], rows), ""]
    return lines, short


def parse():
    parser = parser_of("mpi", __doc__)
    cuts = [
        parser.add_argument("--sizes", default="8,1K,16K,64K,256K,1M,8M", help="bytes of the largest buffer (default %(default)s)"),
        parser.add_argument("--ranks", default="2,4,8", help="(default %(default)s)"),
        parser.add_argument("--collectives", default="all_reduce", help=f"any of {','.join(COLLECTIVES)} (default %(default)s)"),
        parser.add_argument("--rounds", type=int, default=5, help="rounds, over which medians are taken (default %(default)s)"),
        parser.add_argument("--seconds", type=float, default=0.05, help="length of a loop (default %(default)s)"),
    ]
    parser.add_argument("--write-docs", action="store_true", help="put the figures between the marks of docs/mpi.md")
    options = parser.parse_args()
    options.command = command_text(parser, options, cuts)
    options.sizes = sizes_in_bytes(options.sizes)
    options.ranks = rank_counts(options.ranks)
    options.collectives = options.collectives.split(",")
    if not set(options.collectives) <= set(COLLECTIVES):
        sys.exit(f"error: --collectives takes {', '.join(COLLECTIVES)}.")
    return options


def main():
    options = parse()
    lines, short = tables(measure(options), options)
    text = "\n".join([f"Measured by `{options.command}` on {machine_text(machine())}: medians of {options.rounds} rounds.", "", *lines,
                      *(f"- Falls short: {sentence}" for sentence in short)])
    print(text)
    if options.write_docs:
        SECTION.replace(ROOT / "docs/mpi.md", text)
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
