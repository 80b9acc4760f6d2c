#!/usr/bin/env python3
"""Collectives between hosts beside a plain TCP stream, over links of 1 Gb/s. Takes root.

Network namespaces of this machine stand for hosts; every end of a cable between them is held to the rate by a token bucket. In
each layout a bare stream, both ways at once, tells what the link carries, and the bus bandwidth of a collective is divided by
that. Exits 1 where one rank on each of two hosts falls short of the wanted share; the other layouts are told only.
"""
import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import namespaces

PERF = pathlib.Path(__file__).resolve().parent

WANTED = 0.95
COLLECTIVES = ["all_reduce", "all_gather", "all_to_all"]


def busbw(network, program, collective, sizes, iterations, cycles):
    """Rows of stretto-perf: bytes, algorithm and bytes per second, out of place."""
    with tempfile.NamedTemporaryFile() as file:
        command = [program, collective, "-b", str(sizes[0]), "-e", str(sizes[-1]), "-f", "4", "-w", "2", "-n", str(iterations),
                   "-N", str(cycles), "--in-place", "0", "--json", file.name]
        network.run(command)
        return [(row["bytes"], row["algo"], row["busbw"] * 1e9) for row in json.load(open(file.name))["rows"]]


def cpu_seconds(process):
    fields = pathlib.Path("/proc", str(process.pid), "stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_share(network, program, seconds=4):
    """Of a core, that a rank uses while it sums 64 MiB; the largest."""
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(PERF.parent / "build/bin/stretto-perf"))
    parser.add_argument("--rate", default="1gbit", help="of every link, as tc writes it")
    parser.add_argument("--rounds", type=int, default=3, help="of each measurement; figures are medians")
    parser.add_argument("--layout", action="append", help="HOSTSxRANKS, several times; default: 2x1 4x1 2x2")
    options = parser.parse_args()
    if why := namespaces.obstacle():
        sys.exit(f"error: {why}")

    short = []
    print("layout | collective | bytes | algorithm | busbw MB/s | share of a TCP stream")
    for layout in options.layout or ["2x1", "4x1", "2x2"]:
        hosts, ranks = map(int, layout.split("x"))
        name = f"{hosts} hosts x {ranks} rank{'s' * (ranks > 1)}"
        network = namespaces.Network([ranks] * hosts, options.rate)
        try:
            stream = sorted(network.stream() for _ in range(3))[1]
            print(f"{name} | TCP stream, both ways at once | | | {stream / 1e6:.1f} | 1", flush=True)
            for collective in COLLECTIVES:
                for size, algorithm, speed in busbw(network, options.program, collective, [4 << 20, 64 << 20], 5, options.rounds):
                    print(f"{name} | {collective} | {size >> 20} MiB | {algorithm} | {speed / 1e6:.1f} | {speed / stream:.3f}",
                          flush=True)
                    if (hosts, ranks) == (2, 1) and speed < WANTED * stream:
                        short.append(f"{collective} of {size >> 20} MiB")
            print(f"{name} | a rank's use of a core in all_reduce of 64 MiB | | | | {cpu_share(network, options.program):.2f}",
                  flush=True)
        finally:
            network.close()
    if short:
        sys.exit(f"Below {WANTED} of a TCP stream: {', '.join(short)}.")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, namespaces.end_by_exception)
    try:
        main()
    except namespaces.CommandFailed as reason:
        sys.exit(f"error: {reason}")
