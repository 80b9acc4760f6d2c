#!/usr/bin/env python3
"""All-reduce between hosts beside what bounds it, beside Open MPI and Gloo, and beside the link model. Takes root.

Network namespaces of this machine stand for hosts (perf/netlab). In each round, whole programs in turn: a bare TCP stream both ways
at once; stretto-perf with the method that the library chooses and with each --method, and Gloo on the same buffers; Open MPI, in a
program of its own; quantized reduce-scatter and all-gather beside those in bf16; and stretto-perf on one host with STRETTO_LINKS of
the stream's rate. Figures are medians over the rounds. Prints a table and what is asked of it; exits 1 where that falls short or
was not measured.
"""
import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile

import namespaces
import netlab_page
from host import BIN, ROOT, compiled_loop, machine
from host_verdicts import size_text
from netlab_page import CHOSEN, MIB, QUANTIZED, SIZES

METHODS = ["two_level(ring+ring)*4/8", "two_level(ring+ring)*4/16", "two_level(direct+ring)*4/16"]
QUANTIZED_BYTES = 64 * MIB  # of the whole vector in bf16


class Measurement:
    def __init__(self, options):
        self.options = options
        self.ranks = options.hosts * options.ranks_per_host
        self.network = None
        self.streams = []  # bytes per second, one a round
        self.samples = {}  # (side, method, bytes) -> microseconds, one a round
        self.chosen = {}  # (side, bytes) -> method
        self.wrong = 0
        self.versions = {}
        self.mpi_loop = compiled_loop("openmpi")
        self.program = pathlib.Path(options.program)
        # A stretto-perf that was built without Gloo refuses it.
        trial = [self.program, "all_reduce", "--nproc", "1", "-b", "8", "-e", "8", "-n", "1", "--vs", "gloo"]
        self.peers = ["--vs", "gloo"] if subprocess.run(trial, capture_output=True).returncode == 0 else []

    def add(self, side, method, size, us):
        self.samples.setdefault((side, method, size), []).append(us)

    def perf(self, side, words, start):
        """Runs stretto-perf and enters its rows and its peers'."""
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            start([self.program, *words, "-w", "1", "--seconds", self.options.seconds, "--copies", "1", "--in-place", "0",
                   "--json", file.name])
            result = json.load(open(file.name))
        self.versions["stretto"] = f"Stretto {result['machine']['version']}"
        for text in result["machine"]["peers"]:
            self.versions["gloo"] = text[text.index("(") + 1:-1]
        for row in result["rows"]:
            self.add(side, CHOSEN if row["chosen"] else row["algo"], row["bytes"], row["time_us"])
            if row["chosen"]:
                self.chosen[side, row["bytes"]] = row["algo"]
                if "gloo" in row["peers"]:
                    self.add("gloo", "", row["bytes"], row["peers"]["gloo"]["time_us"])
            self.wrong += row["wrong"] or 0

    def all_reduce(self, side, start, more=()):
        methods = ",".join([CHOSEN, *self.options.method])
        for size in self.options.sizes:
            self.perf(side, ["all_reduce", "-b", size, "-e", size, "--algo", methods, *more], start)

    def model(self):
        links = f"inter={statistics.median(self.streams) / 1e6:.3f}MB/s,{self.options.latency}us"
        variables = {**os.environ, "STRETTO_LINKS": links}
        more = ["--nproc", self.ranks, "--ranks-per-node", self.options.ranks_per_host]

        def start(command):
            words = [str(word) for word in command]
            done = subprocess.run(words, env=variables, stdout=subprocess.DEVNULL)
            if done.returncode != 0:
                raise namespaces.CommandFailed(f"STRETTO_LINKS='{links}' {' '.join(words)} ended with {done.returncode}")

        self.all_reduce("model", start, more)

    def mpi(self):
        if self.mpi_loop is None:
            return
        command = [self.mpi_loop, "all_reduce", self.options.seconds, 1, *self.options.sizes]
        started = self.network.start_mpi(command, stdout=subprocess.PIPE, text=True)
        output = started.communicate()[0]
        if started.returncode != 0:
            raise namespaces.CommandFailed(f"mpirun of {self.mpi_loop} ended with {started.returncode}")
        for line in output.splitlines():
            row = json.loads(line)
            if "version" in row:
                self.versions["openmpi"] = row["version"]
            elif row["wrong"]:
                print(f"Open MPI gave {row['wrong']} wrong values at {size_text(row['bytes'])} and is left out there")
            else:
                self.add("openmpi", "", row["bytes"], row["time_us"])

    def quantized(self):
        size = self.options.quantized_bytes
        for collective, bits in QUANTIZED.items():
            words = [collective, "-d", "bf16", "-b", size, "-e", size]
            self.perf(f"{collective} bf16", [*words, "--algo", ",".join([CHOSEN, *METHODS])], self.network.run)
            self.perf(f"{collective} {bits}", [*words, "--quantize", bits], self.network.run)

    def round(self):
        self.streams.append(self.network.stream())
        self.all_reduce("stretto", self.network.run, self.peers)
        self.mpi()
        self.quantized()
        self.model()

    def figures(self):
        times = {}
        for (side, method, size), samples in self.samples.items():
            times.setdefault(side, {}).setdefault(method, {})[str(size)] = statistics.median(samples)
        return {
            "machine": machine(),
            "command": self.options.command,
            "hosts": self.options.hosts,
            "ranks_per_host": self.options.ranks_per_host,
            "rate": self.options.rate,
            "rounds": self.options.rounds,
            "sizes": self.options.sizes,
            "quantized_bytes": self.options.quantized_bytes,
            "versions": self.versions,
            "wrong": self.wrong,
            "stream": statistics.median(self.streams),
            "chosen": {side: {str(size): method for (its, size), method in self.chosen.items() if its == side}
                       for side in {side for side, _ in self.chosen}},
            "times": times,
        }


def parse():
    parser = argparse.ArgumentParser(prog="./dev perf netlab", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(BIN / "stretto-perf"), help="stretto-perf")
    parser.add_argument("--hosts", type=int, default=4, help="default 4")
    parser.add_argument("--ranks-per-host", type=int, default=2, help="default 2")
    parser.add_argument("--rate", default="1gbit", help="of every link, as tc writes it (default 1gbit)")
    parser.add_argument("--latency", type=float, default=30, help="of the model's links, in us (default 30)")
    parser.add_argument("--rounds", type=int, default=3, help="default 3")
    parser.add_argument("--seconds", type=float, default=1.0, help="that a loop lasts about, of 3 operations at least (default 1)")
    parser.add_argument("--sizes", default=",".join(str(size // MIB) for size in SIZES), help="MiB (default 1,4,16,64)")
    parser.add_argument("--quantized-bytes", type=int, default=QUANTIZED_BYTES, help="of the vector in bf16 (default 64 MiB)")
    parser.add_argument("--method", action="append", help="beside the library's choice, several times; default: " + " ".join(METHODS))
    parser.add_argument("--json", default=str(ROOT / "runs/netlab.json"), help="where the figures go (default runs/netlab.json)")
    parser.add_argument("--from", dest="earlier", metavar="JSON", help="measure nothing, judge what an earlier run wrote")
    parser.add_argument("--write-docs", nargs="?", const=str(ROOT / "docs/performance.md"), metavar="FILE",
                        help="put the figures between the marks of docs/performance.md, or of FILE")
    options = parser.parse_args()
    namespaces.bytes_per_second(options.rate)  # says now, before anything is made, that it is none
    if options.write_docs:
        netlab_page.marked(pathlib.Path(options.write_docs))
    named = ("hosts", "ranks_per_host", "rate", "latency", "rounds", "seconds", "sizes", "quantized_bytes")
    words = [f"--{name.replace('_', '-')} {value}" for name in named if (value := getattr(options, name)) != parser.get_default(name)]
    words += [f"--method '{method}'" for method in options.method or []]
    options.command = " ".join(["./dev perf netlab", *words])
    options.method = options.method or METHODS
    try:
        options.sizes = sorted({int(word) * MIB for word in options.sizes.split(",")})
    except ValueError:
        parser.error(f"--sizes '{options.sizes}' is no list of MiB such as 1,16,64")
    return options


def measured(options):
    if why := namespaces.obstacle():
        sys.exit(f"error: {why}")
    measurement = Measurement(options)
    measurement.network = namespaces.Network([options.ranks_per_host] * options.hosts, options.rate)
    try:
        for i in range(options.rounds):
            measurement.round()
            print(f"round {i + 1} of {options.rounds} is done", file=sys.stderr)
    finally:
        measurement.network.close()
    return measurement.figures()


def main():
    options = parse()
    if options.earlier:
        figures = json.loads(pathlib.Path(options.earlier).read_text())
    else:
        figures = measured(options)
        pathlib.Path(options.json).parent.mkdir(parents=True, exist_ok=True)
        pathlib.Path(options.json).write_text(json.dumps(figures, indent=1) + "\n")
    print(netlab_page.report(figures))
    if options.write_docs:
        netlab_page.write_docs(figures, pathlib.Path(options.write_docs))
    return 1 if netlab_page.falls_short(figures) else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, namespaces.end_by_exception)
    try:
        sys.exit(main())
    except namespaces.CommandFailed as reason:
        sys.exit(f"error: {reason}")
