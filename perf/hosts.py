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
import shutil
import subprocess
import sys
import tempfile
import time

PERF = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(PERF.parent / "tests/faults"))
from namespaces import PROGRAMS, CommandFailed, Host, lay_cable  # noqa: E402

WANTED = 0.95
COLLECTIVES = ["all_reduce", "all_gather", "all_to_all"]
PORT = 29500

# Sends to the other end and receives from it at the same time; prints the bytes per second that came.
STREAM = """
import socket, sys, threading, time
listens, address, total = sys.argv[1] == "listen", sys.argv[2], int(sys.argv[3])
if listens:
    link = socket.create_server((address, 29400)).accept()[0]
else:
    for attempt in range(100):
        try:
            link = socket.create_connection((address, 29400))
            break
        except OSError:
            time.sleep(0.05)
piece = bytearray(1 << 20)
def send():
    for _ in range(total // len(piece)):
        link.sendall(piece)
sender = threading.Thread(target=send)
sender.start()
place = bytearray(1 << 20)
left = total - link.recv_into(place, 1)
start = time.monotonic()
while left > 0:
    left -= link.recv_into(place, min(left, len(place)))
print(total / (time.monotonic() - start))
sender.join()
"""


class Layout:
    """Hosts on one network; two of them share a cable, more of them have one each to a switch."""

    def __init__(self, hosts, ranks, rate):
        self.name = f"{hosts} hosts x {ranks} rank{'s' * (ranks > 1)}"
        self.ranks = ranks
        self.hosts = []
        try:
            self.join(hosts, rate)
        except BaseException:
            self.close()
            raise

    def join(self, hosts, rate):
        for _ in range(hosts + (hosts > 2)):
            self.hosts.append(Host())
            if not self.hosts[-1].ready:
                raise CommandFailed("network namespaces cannot be made here")
        ends = [(host, "cable") for host in self.hosts[:hosts]]
        if hosts == 2:
            lay_cable(*ends[0], *ends[1])
        else:
            switch = self.hosts[hosts]
            switch.do("ip", "link", "add", "switch", "type", "bridge")
            switch.do("ip", "link", "set", "switch", "up")
            for i in range(hosts):
                lay_cable(*ends[i], switch, f"port{i}")
                switch.do("ip", "link", "set", f"port{i}", "master", "switch")
                ends.append((switch, f"port{i}"))
        for host, name in ends:
            host.do("tc", "qdisc", "add", "dev", name, "root", "tbf", "rate", rate, "burst", "128kb", "latency", "50ms")
        self.addresses = [f"10.213.7.{i + 1}" for i in range(hosts)]
        for host, address in zip(self.hosts, self.addresses):
            host.do("ip", "address", "add", f"{address}/24", "dev", "cable")
            host.wait_for_cable("cable")

    def close(self):
        for host in self.hosts:
            host.close()

    def stream(self, total):
        """Bytes per second of a bare TCP stream between the first two hosts, the slower way."""
        ends = [subprocess.Popen(host.inside(sys.executable, "-c", STREAM, role, self.addresses[0], str(total)),
                                 stdout=subprocess.PIPE, text=True) for host, role in zip(self.hosts, ["listen", "connect"])]
        return min(float(end.communicate()[0]) for end in ends)

    def start(self, command):
        """Every rank of a job, rank 0 first; its ranks come host by host."""
        size = len(self.addresses) * self.ranks
        started = []
        for rank in range(size):
            meeting = {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": self.addresses[0], "MASTER_PORT": str(PORT)}
            started.append(subprocess.Popen(self.hosts[rank // self.ranks].inside(*command), env={**os.environ, **meeting},
                                            stdout=subprocess.DEVNULL))
        return started


def busbw(layout, program, collective, sizes, iterations, cycles):
    """Rows of stretto-perf: bytes, algorithm and bytes per second, out of place."""
    with tempfile.NamedTemporaryFile() as file:
        command = [program, collective, "-b", str(sizes[0]), "-e", str(sizes[-1]), "-f", "4", "-w", "2", "-n", str(iterations),
                   "-N", str(cycles), "--in-place", "0", "--json", file.name]
        statuses = [process.wait() for process in layout.start(command)]
        if any(statuses):
            sys.exit(f"error: {' '.join(command)} ended with {statuses}.")
        return [(row["bytes"], row["algo"], row["busbw"] * 1e9) for row in json.load(open(file.name))["rows"]]


def cpu_seconds(process):
    fields = pathlib.Path("/proc", str(process.pid), "stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_share(layout, program, seconds=4):
    """Of a core, that a rank uses while it sums 64 MiB; the largest."""
    ranks = layout.start([program, "all_reduce", "-b", "64M", "-e", "64M", "-w", "0", "-n", "1000", "-c", "0", "--in-place", "0"])
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
    missing = [program for program in [*PROGRAMS, "tc"] if not shutil.which(program)]
    if os.geteuid() != 0 or missing:
        sys.exit(f"error: network namespaces take root and the programs {', '.join([*PROGRAMS, 'tc'])}; "
                 f"{'missing: ' + ', '.join(missing) if missing else 'run this as root'}.")

    short = []
    print("layout | collective | bytes | algorithm | busbw MB/s | share of a TCP stream")
    for name in options.layout or ["2x1", "4x1", "2x2"]:
        hosts, ranks = map(int, name.split("x"))
        layout = Layout(hosts, ranks, options.rate)
        try:
            stream = sorted(layout.stream(256 << 20) for _ in range(3))[1]
            print(f"{layout.name} | TCP stream, both ways at once | | | {stream / 1e6:.1f} | 1", flush=True)
            for collective in COLLECTIVES:
                for size, algorithm, speed in busbw(layout, options.program, collective, [4 << 20, 64 << 20], 5, options.rounds):
                    print(f"{layout.name} | {collective} | {size >> 20} MiB | {algorithm} | {speed / 1e6:.1f} | {speed / stream:.3f}",
                          flush=True)
                    if (hosts, ranks) == (2, 1) and speed < WANTED * stream:
                        short.append(f"{collective} of {size >> 20} MiB")
            print(f"{layout.name} | a rank's use of a core in all_reduce of 64 MiB | | | | {cpu_share(layout, options.program):.2f}",
                  flush=True)
        finally:
            layout.close()
    if short:
        sys.exit(f"Below {WANTED} of a TCP stream: {', '.join(short)}.")


def end_by_exception(*_):
    sys.exit("terminated")


if __name__ == "__main__":
    import signal
    signal.signal(signal.SIGTERM, end_by_exception)
    try:
        main()
    except CommandFailed as reason:
        sys.exit(f"error: {reason}")
