#!/usr/bin/env python3
"""All-reduce between hosts beside what bounds it, beside Open MPI and Gloo, and beside the link model. Takes root.

Network namespaces of this machine stand for hosts (perf/netlab). In each round, whole programs in turn: a bare TCP stream both ways
at once; stretto-perf with the method that the library chooses and with each --method, and Gloo on the same buffers; Open MPI, in a
program of its own; quantized reduce-scatter and all-gather beside those in bf16; and stretto-perf on one host with STRETTO_LINKS of
the stream's rate. Figures are medians over the rounds. Prints a table and what is asked of it; exits 1 where that falls short.
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
from host import BIN, compiled_loop, machine
from host_verdicts import size_text

MIB = 1 << 20
SIZES = [1 * MIB, 4 * MIB, 16 * MIB, 64 * MIB]
METHODS = ["two_level(ring+ring)", "two_level(recursive_halving_doubling+ring)",
           "two_level(recursive_halving_doubling+recursive_halving_doubling)"]
QUANTIZED = {"reduce_scatter": "int4", "all_gather": "int8"}
QUANTIZED_BYTES = 64 * MIB  # of the whole vector in bf16
CHOSEN = "auto"


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
        self.quantizes = "--quantize " in subprocess.run([self.program, "--help"], capture_output=True, text=True).stdout

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
        if not self.quantizes:
            return
        size = self.options.quantized_bytes
        for collective, bits in QUANTIZED.items():
            words = [collective, "-d", "bf16", "-b", size, "-e", size]
            self.perf(f"{collective} bf16", [*words, "--algo", f"{CHOSEN},{METHODS[0]}"], self.network.run)
            self.perf(f"{collective} {bits}", [*words, "--quantize", bits], self.network.run)

    def round(self):
        self.streams.append(self.network.stream())
        self.all_reduce("stretto", self.network.run, ["--vs", "gloo"])
        self.mpi()
        self.quantized()
        self.model()

    def figures(self):
        times = {}
        for (side, method, size), samples in self.samples.items():
            times.setdefault(side, {}).setdefault(method, {})[str(size)] = statistics.median(samples)
        return {
            "machine": machine(),
            "command": "./dev perf netlab" + "".join(f" {word}" for word in sys.argv[1:]),
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


def bound_us(figures, size):
    """What two levels cannot beat: each host sends and receives all but its share of the vector, twice."""
    return 2 * (figures["hosts"] - 1) / figures["hosts"] * size / figures["stream"] * 1e6


def best(figures, side, size):
    """(method, microseconds) of the fastest that was given."""
    return min(((method, by_size[str(size)]) for method, by_size in figures["times"].get(side, {}).items() if str(size) in by_size),
               key=lambda pair: pair[1], default=("", None))


def time_of(figures, side, size, method=""):
    return figures["times"].get(side, {}).get(method, {}).get(str(size))


def quantized_times(figures):
    """Microseconds of reduce-scatter and all-gather together: in bf16 as the library chooses, in bf16 by the faster of that and
    two levels, and quantized. None where they were not measured."""
    size = figures["quantized_bytes"]
    plain, quantized = [[f"{name} {type_}" for name, type_ in types.items()] for types in (dict.fromkeys(QUANTIZED, "bf16"), QUANTIZED)]
    if any(side not in figures["times"] for side in plain + quantized):
        return None
    return (sum(time_of(figures, side, size, CHOSEN) for side in plain), sum(best(figures, side, size)[1] for side in plain),
            sum(time_of(figures, side, size, CHOSEN) for side in quantized))


def verdicts(figures):
    """(what is asked, what was found, whether that holds)."""
    sizes = figures["sizes"]
    found = [("no wrong values", figures["wrong"], figures["wrong"] == 0)]

    def ask(text, value, holds):
        found.append((text, f"{value:.2f}", holds))

    for size in sizes:
        ours = time_of(figures, "stretto", size, CHOSEN)
        openmpi, gloo = (time_of(figures, side, size) for side in ("openmpi", "gloo"))
        if size >= 16 * MIB:
            ratio = ours / bound_us(figures, size)
            ask(f"{size_text(size)}: at most 1.1 times the bound", ratio, ratio <= 1.1)
        if size == MIB and (openmpi or gloo):
            ratio = min(time for time in (openmpi, gloo) if time) / ours
            ask(f"{size_text(size)}: at least 2 times as fast as the best peer", ratio, ratio >= 2)
        if size == 64 * MIB and openmpi:
            ask(f"{size_text(size)}: at least 1.8 times as fast as Open MPI", openmpi / ours, openmpi / ours >= 1.8)
        if size == 64 * MIB and gloo:
            ask(f"{size_text(size)}: at least 1.05 times as fast as Gloo", gloo / ours, gloo / ours >= 1.05)
        if size >= 4 * MIB:
            for method in figures["times"].get("model", {}):
                model, sockets = (time_of(figures, side, size, method) for side in ("model", "stretto"))
                same = method != CHOSEN or figures["chosen"]["model"][str(size)] == figures["chosen"]["stretto"][str(size)]
                if model and sockets and same:
                    ask(f"{size_text(size)}, {method}: the model within 15% of sockets", model / sockets, abs(model / sockets - 1) <= 0.15)
    if times := quantized_times(figures):
        chosen, _, quantized = times
        ask("quantized reduce-scatter and all-gather at least 3 times as fast as in bf16", chosen / quantized, chosen / quantized >= 3)
    return found


def report(figures):
    def ms(us):
        return f"{us / 1e3:.1f}" if us else ""

    versions = "; ".join(figures["versions"].values())
    lines = [f"{figures['hosts']} hosts x {figures['ranks_per_host']} ranks, links of {figures['rate']}; a TCP stream, both ways at once: "
             f"{figures['stream'] / 1e6:.1f} MB/s each", f"{versions}; medians of {figures['rounds']} rounds; all_reduce of f32, ms", "",
             "| size | bound | Stretto | its method | best of all methods | which | Open MPI | Gloo | model | best of the model |",
             "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    for size in figures["sizes"]:
        method, us = best(figures, "stretto", size)
        cells = [size_text(size), ms(bound_us(figures, size)), ms(time_of(figures, "stretto", size, CHOSEN)),
                 figures["chosen"]["stretto"].get(str(size), ""), ms(us), method, ms(time_of(figures, "openmpi", size)),
                 ms(time_of(figures, "gloo", size)), ms(time_of(figures, "model", size, CHOSEN)), ms(best(figures, "model", size)[1])]
        lines.append(f"| {' | '.join(cells)} |")
    lines.append("")
    if times := quantized_times(figures):
        chosen, fastest, quantized = times
        lines += [f"reduce-scatter and all-gather of {size_text(figures['quantized_bytes'])} in bf16: {ms(chosen)} ms as the library "
                  f"chooses, {ms(fastest)} ms at best; as {' and '.join(QUANTIZED.values())}: {ms(quantized)} ms", ""]
    else:
        lines += ["Quantized collectives were not measured: this stretto-perf has no --quantize.", ""]
    for text, value, holds in verdicts(figures):
        lines.append(f"{'holds' if holds else 'FALLS SHORT'}: {text}: {value}")
    return "\n".join(lines)


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
    parser.add_argument("--json", default=str(BIN.parent.parent / "runs/netlab.json"), help="where the figures go (default runs/netlab.json)")
    parser.add_argument("--from", dest="earlier", metavar="JSON", help="measure nothing, judge what an earlier run wrote")
    options = parser.parse_args()
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
    print(report(figures))
    return 0 if all(holds for _, _, holds in verdicts(figures)) else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, namespaces.end_by_exception)
    try:
        sys.exit(main())
    except namespaces.CommandFailed as reason:
        sys.exit(f"error: {reason}")
