"""How good the library's choices are on a machine and a network that it does not know: by the costs that it ships
(STRETTO_CALIBRATE=off), and by what one job measures at its start.

The job that measures begins with a tuning file of invented costs, in which everything costs the same everywhere. Then every fixed method
is timed beside the library's choice: from 8 bytes to 64 MiB on one host, as `stretto-perf selection` does, and at a few sizes between hosts,
which are network namespaces with links of 1 Gb/s (root). Exits 1 if fewer than 95% of the cells are within 15% of the fastest method, or if
one takes more than 1.5 times as long.

All of it is timed twice. The method that was the fastest the first time, judged by the second time as the choices are, shows how much
of the distance is no choice's fault: the times of one and the same method vary from one minute to the next.
"""
import collections
import contextlib
import itertools
import json
import math
import pathlib
import re
import sys
import tempfile

from perf.comparisons import namespaces
from perf.comparisons.harness import Comparison, Table, flag
from perf.comparisons.programs import BIN, figures_of, host_layouts, run, sizes_in_bytes
from perf.pages.text import Verdict, size_text

WANTED_SHARE, NEAR, MOST = 0.95, 1.15, 1.5
COLLECTIVES = ["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce", "gather", "scatter"]
WITH_A_ROOT = {"broadcast", "reduce", "gather", "scatter"}  # their time is the slowest rank's: the others leave a call before its data has arrived
HOST_SIZES = ["4K", "64K", "1M"]
CALLS = {"4K": 20, "64K": 5, "1M": 2}
PERF = BIN / "stretto-perf"

SHIPPED, MEASURED = "shipped costs", "measured"  # ways to choose
EARLIER = "the earlier fastest"  # the method that was the fastest one when all were timed before

# ratios: by way, the time of the method that it chooses over the fastest method's; None where that method was so far behind for fewer
# bytes that it was not timed.
Cell = collections.namedtuple("Cell", "where collective bytes chosen fastest ratios")


def cell(where, collective, size, chosen, before, now):
    """chosen: by way, a method that is among those of `now`. before and now: microseconds by method."""
    least = min(now.values())
    earlier = min(before, key=before.get)
    ratios = {way: now[method] / least for way, method in chosen.items()} | {EARLIER: now[earlier] / least if earlier in now else None}
    return Cell(where, collective, size, chosen, min(now, key=now.get), ratios)


def invented(path):
    costs = {"alpha_us": 10, "overhead_us": 1, "bandwidth_gbs": 1, "local_gbs": 1, "lane_gain": 0}
    path.write_text(json.dumps({"routes": [{"route": route, "ranks": 2, "ranks_per_core": 1, **costs} for route in ("shm", "ucx", "network")]}))
    return str(path)


def measuring_from(tuning):
    """The settings of a job that is to measure the machine."""
    return {"STRETTO_CALIBRATE": "now", "STRETTO_TUNING": tuning, "STRETTO_LOG": "info"}


def measure_machine(where, job):
    """job() runs one that is to measure the machine, and returns what it said. Exits with an error if it has kept nothing."""
    measured = re.search(r"Measured this machine.*", job())
    if not measured or "too busy" in measured[0]:
        sys.exit(f"error: the machine was too busy to be measured, {where}; try again when it does less.")
    print(f"# {where}: {measured[0]}", flush=True)


def times_of_each_rank(collective):
    return ["-a", "3" if collective in WITH_A_ROOT else "1"]


class OneHost:
    def __init__(self, ranks, runs, cache, tuning):
        self.where, self.ranks = f"{ranks} ranks", ranks
        self.known = {"STRETTO_CACHE_DIR": cache}
        self.measuring = measuring_from(tuning)
        self.command = [PERF, "selection", "--nproc", ranks, "-f", 8, "--runs", runs, "--tolerance", 1e9]

    def measure(self):
        measure_machine(self.where, lambda: run([PERF, "barrier", "--nproc", self.ranks, "-n", 1], **self.measuring, **self.known).stderr)

    def rows(self, collective, symmetric, *more, **settings):
        """Rows of stretto-perf. A job that is told its transport does not measure the machine."""
        command = [PERF, collective, "--nproc", self.ranks, "-c", 0, "--in-place", 0, "--memory", "symmetric" if symmetric else "malloc",
                   *times_of_each_rank(collective), *more]
        return figures_of(command, lambda words: run(words, STRETTO_TRANSPORT="shm", **self.known, **settings))["rows"]

    def choices(self, **settings):
        """What the library chooses, as rows with bytes and methods, by collective and memory."""
        once = ["-w", 0, "-n", 1, "--algo", "auto"]
        return {(collective, symmetric): [row for sizes in (["-b", 8, "-e", 16 << 20, "-f", 8], ["-b", 64 << 20, "-e", 64 << 20])
                                          for row in self.rows(collective, symmetric, *sizes, *once, **settings)]
                for collective in COLLECTIVES for symmetric in (False, True)}

    def timed(self):
        return figures_of(self.command, lambda words: run(words, **self.known, STRETTO_CALIBRATE="auto"))

    def time(self):
        self.before = self.timed()

    def cells(self):
        by_shipped_costs = self.choices(STRETTO_CALIBRATE="off")
        for before, now in zip(self.before, self.timed(), strict=True):
            collective, symmetric, size, us = (now[key] for key in ("collective", "symmetric", "bytes", "us"))
            nearest = min(by_shipped_costs[collective, symmetric], key=lambda row: abs(math.log(max(row["bytes"], 1) / size)))
            chosen = {MEASURED: now["chosen"], SHIPPED: nearest["algo"]}
            untimed = sorted({*chosen.values()} - {*us})
            if untimed:  # methods that were far behind for fewer bytes
                fastest = min(us, key=us.get)
                again = self.rows(collective, symmetric, "-b", size, "-e", size, "--seconds", 0.05, "-N", 3, "--algo", ",".join([fastest, *untimed]))
                times = {row["algo"]: row["time_us"] for row in again}
                us |= {method: us[fastest] * times[method] / times[fastest] for method in untimed}
            yield cell(f"{self.where}, {'symmetric' if symmetric else 'ordinary'} memory", collective, size, chosen, before["us"], us)


class SeveralHosts:
    def __init__(self, hosts, ranks, cache, tuning):
        self.where, self.layout, self.cache = f"{hosts} hosts x {ranks} ranks", [ranks] * hosts, cache
        self.measuring = measuring_from(tuning)
        self.before = {}

    @contextlib.contextmanager
    def network(self, **settings):
        with namespaces.Network(self.layout, "1gbit") as network:
            network.known |= {"STRETTO_CACHE_DIR": self.cache, **settings}
            yield network

    def measure(self):
        with self.network() as network:
            measure_machine(self.where, lambda: network.output_of([PERF, "barrier", "-n", 1], self.measuring, "stderr"))

    @staticmethod
    def command(collective, size):
        return [PERF, collective, "-b", size, "-e", size, "-w", 1, "-c", 0, "--in-place", 0, *times_of_each_rank(collective)]

    def choices(self, **settings):
        with self.network(**settings) as network:
            return {(collective, size): figures_of([*self.command(collective, size), "-n", 1, "--algo", "auto"], network.run)["rows"][0]["algo"]
                    for collective, size in itertools.product(COLLECTIVES, HOST_SIZES)}

    def microseconds(self, network, collective, size, methods):
        """By method, in turn with one another."""
        command = [*self.command(collective, size), "-n", CALLS[size], "-N", 9, "--algo", ",".join(dict.fromkeys(methods))]
        return {row["algo"]: row["time_us"] for row in figures_of(command, network.run)["rows"]}

    def time(self):
        with self.network() as network:
            for collective, size in itertools.product(COLLECTIVES, HOST_SIZES):
                every = figures_of([*self.command(collective, size), "-n", 3, "-N", 3, "--algo", "all"], network.run)["rows"]
                # The least of many times is often luck: those that may be the fastest are timed again, here and for the cells.
                fast = [row["algo"] for row in sorted(every, key=lambda row: row["time_us"])][:5]
                self.before[collective, size] = self.microseconds(network, collective, size, fast)

    def cells(self):
        ways = {MEASURED: self.choices(), SHIPPED: self.choices(STRETTO_CALIBRATE="off")}
        with self.network() as network:
            for (collective, size), before in self.before.items():
                chosen = {way: choices[collective, size] for way, choices in ways.items()}
                now = self.microseconds(network, collective, size, [*chosen.values(), *before])
                yield cell(self.where, collective, sizes_in_bytes(size)[0], chosen, before, now)


def measured(options):
    found = []
    with tempfile.TemporaryDirectory(prefix="selection-") as cache:
        tuning = invented(pathlib.Path(cache) / "invented.json")
        places = [OneHost(int(ranks), options.runs, cache, tuning) for ranks in options.nproc.split(",") if ranks != "0"]
        places += [SeveralHosts(hosts, ranks, cache, tuning) for hosts, ranks in options.places]
        # Minutes lie between what is measured and timed of one place, as between users' jobs.
        for place in places:
            place.measure()
        for place in places:
            place.time()
        for place in places:
            found += place.cells()
    yield {"cells": [each._asdict() for each in found]}


# ---- what the figures say

def cells_of(figures):
    return [Cell(**each) for each in figures["cells"]]


def ratios(cells, way):
    return [cell.ratios[way] for cell in cells]


def verdicts(figures):
    found = ratios(cells_of(figures), MEASURED)
    share, worst = sum(ratio <= NEAR for ratio in found) / len(found), max(found)
    yield Verdict(share >= WANTED_SHARE, f"{WANTED_SHARE:.0%} of the cells within {NEAR} of the fastest method; {share:.1%} of {len(found)}")
    yield Verdict(worst <= MOST, f"no cell beyond {MOST}; {sum(ratio > MOST for ratio in found)} are, the worst {worst:.2f}")


def counts(cells, way):
    """The share of the cells that are near, and how many are far: also those without a ratio."""
    found = [math.inf if ratio is None else ratio for ratio in ratios(cells, way)]
    return f"{sum(ratio <= NEAR for ratio in found) / len(found):.1%}", str(sum(ratio > MOST for ratio in found))


def tables(figures):
    """A row for each place and one for all; then, for the command alone, the cells in which a way's choice is not near."""
    cells = cells_of(figures)
    header, rows = ["", "cells"], []
    for way in SHIPPED, MEASURED:
        header += [f"{way}: within {NEAR}", f"beyond {MOST}", "worst"]
    for place in [*dict.fromkeys(cell.where for cell in cells), "all"]:
        here = [cell for cell in cells if place in (cell.where, "all")]
        row = [place, str(len(here))]
        for way in SHIPPED, MEASURED:
            row += [*counts(here, way), f"{max(ratios(here, way)):.2f}"]
        rows.append([*row, *counts(here, EARLIER)])
    yield Table("", [*header, f"{EARLIER} within {NEAR}", f"beyond {MOST}"], rows)
    for way in SHIPPED, MEASURED:
        far = sorted((cell for cell in cells if cell.ratios[way] > NEAR), key=lambda cell: -cell.ratios[way])
        if far:
            yield Table("", ["", "collective", "size", way, "fastest", "ratio"],
                        [[cell.where, cell.collective, size_text(cell.bytes), cell.chosen[way], cell.fastest, f"{cell.ratios[way]:.2f}"] for cell in far],
                        in_page=False)


def notes(figures):
    """How many are near and far, of calls without a root and with one."""
    for kind in "Without", "With":
        here = [cell for cell in cells_of(figures) if (cell.collective in WITH_A_ROOT) == (kind == "With")]
        if here:
            yield (f"{kind} a root, of {len(here)} cells, " + ", ".join(f"{near} are within {NEAR} and {far} beyond {MOST} by {way}"
                                                                       for way in (SHIPPED, MEASURED, EARLIER) for near, far in [counts(here, way)]) + ".")


def check(parser, options):
    options.places = host_layouts(options.layouts) if options.layouts != "0" else []
    if not options.earlier and options.nproc == "0" and not options.places:
        parser.error("--nproc 0 with --layouts 0 leaves nothing to measure; give numbers of ranks, or layouts")
    if options.places and not options.earlier:
        namespaces.require()


Comparison("selection", __doc__, measured, tables, verdicts, notes=notes, check=check, page="docs/selection.md",
           about=lambda figures: "ratios are of the time of a way's choice to that of the fastest method",
           flags=(flag("--nproc", "2,3,4,8", "numbers of ranks on one host; 0: none"), flag("--layouts", "2x2,4x2", "HOSTSxRANKS between hosts; 0: none"),
                  flag("--runs", 3, "runs on one host each time, over which medians are taken")))
