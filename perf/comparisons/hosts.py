"""Compares collectives between hosts with a plain TCP stream, over links of 1 Gb/s. Takes root.

Network namespaces of this machine stand for hosts; a token bucket holds every end of a cable between them to the rate. In each
layout, a bare stream in both directions at once measures the rate of the link, and the bus bandwidth of a collective is divided by
that rate. Exits 1 if a collective falls short of the wanted share with one rank on each of two hosts; the other layouts are only
printed.
"""
import os
import pathlib
import subprocess
import sys
import time

from perf.comparisons import namespaces
from perf.comparisons.programs import BIN, figures_of, parser_of

WANTED = 0.95
COLLECTIVES = ["all_reduce", "all_gather", "all_to_all"]


def busbw(network, program, collective, sizes, iterations, cycles):
    """Rows of stretto-perf: bytes, algorithm and bytes per second, out of place."""
    command = [program, collective, "-b", sizes[0], "-e", sizes[-1], "-f", 4, "-w", 2, "-n", iterations, "-N", cycles, "--in-place", 0]
    return [(row["bytes"], row["algo"], row["busbw"] * 1e9) for row in figures_of(command, network.run)["rows"]]


def cpu_seconds(process):
    fields = pathlib.Path("/proc", str(process.pid), "stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_share(network, program, seconds=4):
    """The largest share of a core that a rank uses during an all-reduce of 64 MiB."""
    command = [program, "all_reduce", "-b", "64M", "-e", "64M", "-w", "0", "-n", "1000", "-c", "0", "--in-place", "0"]
    ranks = network.start(command, stdout=subprocess.DEVNULL)
    time.sleep(3)
    before = [cpu_seconds(rank) for rank in ranks]
    time.sleep(seconds)
    after = [cpu_seconds(rank) for rank in ranks]
    for rank in ranks:
        rank.kill()
    for rank in ranks:
        rank.wait()
    return max(b - a for a, b in zip(before, after)) / seconds


def main():
    parser = parser_of("hosts", __doc__)
    parser.add_argument("--program", default=str(BIN / "stretto-perf"))
    parser.add_argument("--rate", default="1gbit", help="rate of every link, as tc writes it (default 1gbit)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each measurement, over which medians are taken (default 3)")
    parser.add_argument("--layout", action="append", help="HOSTSxRANKS; may be given several times (default 2x1 4x1 2x2)")
    options = parser.parse_args()
    namespaces.require()

    short = []
    print("layout | collective | bytes | algorithm | busbw MB/s | share of a TCP stream")
    for layout in options.layout or ["2x1", "4x1", "2x2"]:
        hosts, ranks = map(int, layout.split("x"))
        name = f"{hosts} hosts x {ranks} rank{'s' * (ranks > 1)}"
        with namespaces.Network([ranks] * hosts, options.rate) as network:
            stream = sorted(network.stream() for _ in range(3))[1]
            print(f"{name} | TCP stream, both directions at once | | | {stream / 1e6:.1f} | 1", flush=True)
            for collective in COLLECTIVES:
                for size, algorithm, speed in busbw(network, options.program, collective, [4 << 20, 64 << 20], 5, options.rounds):
                    print(f"{name} | {collective} | {size >> 20} MiB | {algorithm} | {speed / 1e6:.1f} | {speed / stream:.3f}",
                          flush=True)
                    if (hosts, ranks) == (2, 1) and speed < WANTED * stream:
                        short.append(f"{collective} of {size >> 20} MiB")
            print(f"{name} | a rank's use of a core in all_reduce of 64 MiB | | | | {cpu_share(network, options.program):.2f}",
                  flush=True)
    if short:
        sys.exit(f"Below {WANTED} of a TCP stream: {', '.join(short)}.")


if __name__ == "__main__":
    namespaces.exit_with(main)
