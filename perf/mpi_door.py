#!/usr/bin/env python3
"""Collectives of an MPI program with and without libstretto-mpi.so preloaded, for every MPI of the machine: the same program
(perf/peers/mpi_host_loop.cpp) in turn with itself, in ordinary memory.

Prints medians and ratios, and exits 1 where an all-reduce of 8 B takes more than 1 / 0.8 of the MPI's own time, or one of 1 MiB
more than 1 / 1.5.
"""
import argparse
import json
import pathlib
import statistics
import sys

import host
import marked_text

ASKED = {8: 0.8, 1 << 20: 1.5}  # of all_reduce: bytes -> MPI's own time / time through the door
BEGIN = "<!-- MPI figures: perf/mpi_door.py --write-docs replaces what follows -->"
END = "<!-- end of MPI figures -->"
NAMES = {"openmpi": "Open MPI", "mpich": "MPICH"}
COLLECTIVES = ["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast"]


def preloaded(mpi):
    """What makes the launcher preload the door."""
    door = host.ROOT / "build/lib" / mpi / "libstretto-mpi.so"
    if not door.exists():
        sys.exit(f"error: {door} is not there; ./dev perf mpi builds it.")
    return ["-x", f"LD_PRELOAD={door}"] if mpi == "openmpi" else ["-genv", "LD_PRELOAD", door]


def time_once(mpi, program, collective, ranks, through, options, samples):
    words = [*host.launcher_of(mpi, ranks), *(preloaded(mpi) if through else []), program, collective, options.seconds, 2]
    for line in host.run([*words, *options.sizes]).splitlines():
        row = json.loads(line)
        if "version" in row:
            continue
        if row["wrong"]:
            sys.exit(f"error: {row['wrong']} wrong values in {collective} of {row['bytes']} bytes by {' '.join(map(str, words))}.")
        samples.setdefault((mpi, collective, ranks, row["bytes"], through), []).append(row["time_us"])


def measure(options):
    programs = {mpi: program for mpi in host.MPIS if (program := host.compiled_loop(mpi))}
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


def time_text(us):
    return f"{us:.3g} us" if us < 1000 else f"{us / 1000:.2f} ms"


def tables(times, options):
    """Markdown, and the sentences on what falls short."""
    text, short = "", []
    for mpi in host.MPIS:
        for collective in options.collectives:
            cells = [key for key in times if key[:2] == (mpi, collective) and key[4]]
            if not cells:
                continue
            ranks = sorted({key[2] for key in cells})
            text += f"{NAMES[mpi]}, {collective}: its own time / time through the door\n\n"
            text += "| size | " + " | ".join(f"{n} ranks" for n in ranks) + " |\n| ---: |" + " ---: |" * len(ranks) + "\n"
            for size in sorted({key[3] for key in cells}):
                row = []
                for n in ranks:
                    own, through = (times[mpi, collective, n, size, side] for side in (False, True))
                    row.append(f"{time_text(own)} / {time_text(through)} = {own / through:.2f}")
                    asked = ASKED.get(size, 0) if collective == "all_reduce" else 0
                    if own / through < asked:
                        short.append(f"{NAMES[mpi]}, {n} ranks, all_reduce of {host.size_text(size)}: "
                                     f"{own / through:.2f} where {asked} is asked.")
                text += f"| {host.size_text(size)} | " + " | ".join(row) + " |\n"
            text += "\n"
    return text, short


def parse():
    parser = argparse.ArgumentParser(prog="./dev perf mpi", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="8,1K,16K,64K,256K,1M,8M", help="bytes of the largest buffer (default %(default)s)")
    parser.add_argument("--ranks", default="2,4,8", help="(default %(default)s)")
    parser.add_argument("--collectives", default="all_reduce", help=f"of {','.join(COLLECTIVES)} (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="of which the medians count (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.05, help="that a loop lasts (default %(default)s)")
    parser.add_argument("--write-docs", action="store_true", help="put the figures into docs/mpi.md")
    options = parser.parse_args()
    options.command = "./dev perf mpi" + "".join(f" --{name} {getattr(options, name)}" for name in ("sizes", "ranks", "collectives", "rounds", "seconds")
                                                 if getattr(options, name) != parser.get_default(name))
    options.sizes = host.numbers(options.sizes, r"(\d{1,9})([KM]?)", "sizes: give bytes with suffix K or M")
    options.ranks = host.numbers(options.ranks, r"(\d{1,2})", "ranks")
    options.collectives = options.collectives.split(",")
    if not set(options.collectives) <= set(COLLECTIVES):
        sys.exit(f"error: --collectives takes {', '.join(COLLECTIVES)}.")
    return options


def main():
    options = parse()
    text, short = tables(measure(options), options)
    machine = host.machine()
    text = (f"Measured by `{options.command}` on {machine['cpu']}, {machine['cores']} cores, {machine['system']}, {machine['date']}: "
            f"medians of {options.rounds} rounds.\n\n{text}" + "".join(f"- Falls short: {sentence}\n" for sentence in short))
    print(text)
    if options.write_docs:
        marked_text.replace(host.ROOT / "docs/mpi.md", BEGIN, END, text)
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
