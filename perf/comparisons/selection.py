"""How good the library's choices are on a machine and a network that it does not know.

A tuning file of invented costs, in which everything costs the same everywhere, stands for what was known before. With every number of
ranks, and in every layout of hosts, three jobs measure (STRETTO_CALIBRATE=now), minutes apart, and keep what they find; then every fixed
method is timed beside the library's choice: from 8 bytes to 64 MiB on one host, as `stretto-perf selection` does, and at a few sizes between
hosts, which are network namespaces with links of 1 Gb/s (root). Exits 1 if fewer than 95% of the cells are within 15% of the fastest
method, or if one takes more than 1.5 times as long.

All of it is timed twice. The method that was the fastest the first time, judged by the second time as the choice is, shows how much
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
from perf.comparisons.programs import BIN, ROOT, command_text, figures_of, machine, parser_of, run, sizes_in_bytes
from perf.pages.text import DocsSection, Verdict, machine_text, markdown_table, size_text, terminal_table, verdict_text

SECTION = DocsSection("./dev perf selection")
WANTED_SHARE, NEAR, MOST = 0.95, 1.15, 1.5
COLLECTIVES = ["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce", "gather", "scatter"]
WITH_A_ROOT = {"broadcast", "reduce", "gather", "scatter"}  # their time is the slowest rank's: the others leave a call before its data has arrived
HOST_SIZES = ["4K", "64K", "1M"]
CALLS = {"4K": 20, "64K": 5, "1M": 2}
PERF = BIN / "stretto-perf"

# ratio: the choice's time over the fastest method's; repeated: the same of the method that was the fastest one when all were timed before.
Cell = collections.namedtuple("Cell", "where collective bytes chosen fastest ratio repeated")


def cell(where, collective, size, chosen, before, now):
    """Of two measurements, each with microseconds by method."""
    least = min(now.values())
    return Cell(where, collective, size, chosen, min(now, key=now.get), now[chosen] / least, now.get(min(before, key=before.get), math.inf) / least)


def invented(path):
    costs = {"alpha_us": 10, "overhead_us": 1, "bandwidth_gbs": 1, "local_gbs": 1, "lane_gain": 0}
    path.write_text(json.dumps({"routes": [{"route": route, "ranks": 2, "ranks_per_core": 1, **costs} for route in ("shm", "ucx", "network")]}))
    return str(path)


def measuring_from(tuning):
    """The settings of a job that is to measure the machine."""
    return {"STRETTO_CALIBRATE": "now", "STRETTO_TUNING": tuning, "STRETTO_LOG": "info"}


def measure_machine(where, job):
    """job() runs one that is to measure the machine, and returns what it said. Exits with an error if three have kept nothing."""
    for _ in range(3):
        measured = re.search(r"Measured this machine.*", job())
        if measured:
            print(f"# {where}: {measured[0]}", flush=True)
            return
        print(f"# {where}: The machine was too busy to be measured.", flush=True)
    sys.exit(f"error: the machine was too busy to be measured, {where}; try again when it does less.")


class OneHost:
    def __init__(self, ranks, runs, cache, tuning):
        self.where, self.ranks = f"{ranks} ranks", ranks
        self.known = {"STRETTO_CACHE_DIR": cache}
        self.measuring = measuring_from(tuning)
        self.command = [PERF, "selection", "--nproc", ranks, "-f", 8, "--runs", runs, "--tolerance", 1e9]

    def measure(self):
        measure_machine(self.where, lambda: run([PERF, "barrier", "--nproc", self.ranks, "-n", 1], **self.measuring, **self.known).stderr)

    def timed(self):
        return figures_of(self.command, lambda words: run(words, **self.known))

    def time(self):
        self.before = self.timed()

    def cells(self):
        for before, now in zip(self.before, self.timed(), strict=True):
            where = f"{self.where}, {'symmetric' if now['symmetric'] else 'ordinary'} memory"
            yield cell(where, now["collective"], now["bytes"], now["chosen"], before["us"], now["us"])


class SeveralHosts:
    def __init__(self, hosts, ranks, cache, tuning):
        self.where, self.layout, self.cache = f"{hosts} hosts x {ranks} ranks", [ranks] * hosts, cache
        self.measuring = measuring_from(tuning)
        self.before = {}

    @contextlib.contextmanager
    def network(self):
        with namespaces.Network(self.layout, "1gbit") as network:
            network.known["STRETTO_CACHE_DIR"] = self.cache
            yield network

    def measure(self):
        with self.network() as network:
            measure_machine(self.where, lambda: network.output_of([PERF, "barrier", "-n", 1], self.measuring, "stderr"))

    @staticmethod
    def command(collective, size):
        ranks_time = "3" if collective in WITH_A_ROOT else "1"
        return [PERF, collective, "-b", size, "-e", size, "-w", 1, "-c", 0, "--in-place", 0, "-a", ranks_time]

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
        with self.network() as network:
            for (collective, size), before in self.before.items():
                chosen = figures_of([*self.command(collective, size), "-n", 1, "--algo", "auto"], network.run)["rows"][0]["algo"]
                now = self.microseconds(network, collective, size, [chosen, *before])
                yield cell(self.where, collective, sizes_in_bytes(size)[0], chosen, before, now)


def verdicts(cells):
    share = sum(cell.ratio <= NEAR for cell in cells) / len(cells)
    worst = max(cell.ratio for cell in cells)
    return [Verdict(share >= WANTED_SHARE, f"{WANTED_SHARE:.0%} of the cells within {NEAR} of the fastest method; {share:.1%} of {len(cells)}"),
            Verdict(worst <= MOST, f"no cell beyond {MOST}; {sum(cell.ratio > MOST for cell in cells)} are, the worst {worst:.2f}")]


def counts(ratios):
    return f"{sum(ratio <= NEAR for ratio in ratios) / len(ratios):.0%}", str(sum(ratio > MOST for ratio in ratios))


def summary(cells):
    """A row for each place, and the header before them."""
    rows = [["", "cells", f"within {NEAR}", f"beyond {MOST}", "worst", f"the earlier fastest within {NEAR}", f"beyond {MOST}"]]
    for place in dict.fromkeys(cell.where for cell in cells):
        here = [cell for cell in cells if cell.where == place]
        (near, far), (before, before_far) = (counts([getattr(cell, of) for cell in here]) for of in ("ratio", "repeated"))
        rows.append([place, str(len(here)), near, far, f"{max(cell.ratio for cell in here):.2f}", before, before_far])
    return rows


def by_kind(cells):
    """How many are near and far, of calls without a root and with one."""
    parts = []
    for kind in "without", "with":
        here = [cell for cell in cells if (cell.collective in WITH_A_ROOT) == (kind == "with")]
        if here:
            (near, far), (before, before_far) = (counts([getattr(cell, of) for cell in here]) for of in ("ratio", "repeated"))
            parts.append(f"{kind} a root {near} of {len(here)} cells are within {NEAR}, and {far} beyond {MOST} "
                         f"(the earlier fastest: {before} and {before_far})")
    return f"{'; '.join(parts).capitalize()}."


def section(cells, command):
    """The part of the page: without cells that are near."""
    header, *rows = summary(cells)
    lines = [f"Measured by `{command}` on {machine_text(machine())}. The ratio is the choice's time over the fastest method's:", "",
             *markdown_table(header, rows), "", by_kind(cells), ""]
    return "\n".join(lines + [f"- {verdict_text(verdict)}" for verdict in verdicts(cells)])


def main():
    parser = parser_of("selection", __doc__)
    cuts = [
        parser.add_argument("--nproc", default="2,3,4,8", help="numbers of ranks on one host (default 2,3,4,8); 0: none"),
        parser.add_argument("--layouts", default="2x2,4x2", help="HOSTSxRANKS between hosts (default 2x2,4x2); 0: none"),
        parser.add_argument("--runs", type=int, default=3, help="runs on one host each time, over which medians are taken (default 3)"),
    ]
    parser.add_argument("--write-docs", type=pathlib.Path, nargs="?", const=ROOT / "docs/selection.md", metavar="PAGE",
                        help="write the figures into the page (default docs/selection.md)")
    options = parser.parse_args()
    command = command_text(parser, options, cuts)
    layouts = [tuple(map(int, layout.split("x"))) for layout in options.layouts.split(",") if layout != "0"]
    if options.write_docs:
        SECTION.around(options.write_docs)
    if layouts:
        namespaces.require()

    cells = []
    with tempfile.TemporaryDirectory(prefix="selection-") as cache:
        tuning = invented(pathlib.Path(cache) / "invented.json")
        places = [OneHost(int(ranks), options.runs, cache, tuning) for ranks in options.nproc.split(",") if ranks != "0"]
        places += [SeveralHosts(hosts, ranks, cache, tuning) for hosts, ranks in layouts]
        # Three rounds, so that minutes lie between a place's measurements, as between those of users' jobs.
        for place in places:
            place.measure()
        for place in places:
            place.measure()
            place.time()
        for place in places:
            place.measure()
            cells += place.cells()

    header, *rows = summary(cells)
    print(f"# {machine_text(machine())}", *terminal_table(header, rows), sep="\n")
    far = sorted((cell for cell in cells if cell.ratio > NEAR), key=lambda cell: -cell.ratio)
    print(*terminal_table(["", "collective", "size", "chosen", "fastest", "ratio"],
                          [[cell.where, cell.collective, size_text(cell.bytes), cell.chosen, cell.fastest, f"{cell.ratio:.2f}"] for cell in far]), sep="\n")
    print(by_kind(cells), *map(verdict_text, verdicts(cells)), sep="\n")
    if options.write_docs:
        SECTION.replace(options.write_docs, section(cells, command))
    sys.exit(0 if all(verdict.holds for verdict in verdicts(cells)) else 1)


if __name__ == "__main__":
    namespaces.exit_with(main)
