"""Compares collectives between hosts with a plain TCP stream, over links of 1 Gb/s. Takes root.

Network namespaces of this machine stand for hosts; a token bucket holds every end of a cable between them to the rate. In each
layout, a bare stream in both directions at once measures the rate of the link, and the bus bandwidth of a collective is divided by
that rate. Exits 1 if a collective falls short of the wanted share with one rank on each of two hosts; the other layouts are only
printed.
"""
import os
import pathlib
import subprocess
import time

from perf.comparisons import namespaces
from perf.comparisons.harness import Comparison, Table, flag
from perf.comparisons.programs import figures_of, host_layouts
from perf.pages.text import Verdict

WANTED = 0.95
JUDGED = "2x1"
COLLECTIVES = ["all_reduce", "all_gather", "all_to_all"]


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


def measured(options):
    namespaces.require()
    layouts = {}
    for hosts, ranks in options.places:
        found = layouts[f"{hosts}x{ranks}"] = {"rows": []}
        with namespaces.Network([ranks] * hosts, options.rate) as network:
            found["stream"] = sorted(network.stream() for _ in range(3))[1]
            for collective in COLLECTIVES:
                found["rows"] += figures_of([options.program, collective, "-b", 4 << 20, "-e", 64 << 20, "-f", 4, "-w", 2, "-n", 5,
                                             "-N", options.rounds, "--in-place", 0], network.run)["rows"]
            found["cpu_share"] = cpu_share(network, options.program)
        yield {"rate": options.rate, "layouts": layouts}


def share(found, row):
    return row["busbw"] * 1e9 / found["stream"]


def tables(figures):
    rows = []
    for layout, found in figures["layouts"].items():
        hosts, ranks = layout.split("x")
        name = f"{hosts} hosts x {ranks} rank{'s' * (ranks != '1')}"
        rows.append([name, "TCP stream, both directions at once", "", "", f"{found['stream'] / 1e6:.1f}", "1"])
        rows += [[name, row["collective"], f"{row['bytes'] >> 20} MiB", row["algo"], f"{row['busbw'] * 1e3:.1f}", f"{share(found, row):.3f}"]
                 for row in found["rows"]]
        rows.append([name, "a rank's use of a core in all_reduce of 64 MiB", "", "", "", f"{found['cpu_share']:.2f}"])
    yield Table("", ["layout", "collective", "bytes", "algorithm", "busbw MB/s", "share of a TCP stream"], rows)


def verdicts(figures):
    found = figures["layouts"].get(JUDGED, {"rows": []})
    for row in found["rows"]:
        yield Verdict(share(found, row) >= WANTED, f"{row['collective']} of {row['bytes'] >> 20} MiB: {share(found, row):.3f} of a TCP stream, "
                                                   f"wanted {WANTED}")


def check(parser, options):
    namespaces.bytes_per_second(options.rate)  # refuses a wrong rate before anything is made
    options.places = host_layouts(options.layout)


Comparison("hosts", __doc__, measured, tables, verdicts, check=check, program="stretto-perf", about=lambda figures: f"links of {figures['rate']}",
           flags=(flag("--rate", "1gbit", "rate of every link, as tc writes it"), flag("--rounds", 3, "rounds of each measurement"),
                  flag("--layout", f"{JUDGED},4x1,2x2", "HOSTSxRANKS")))
