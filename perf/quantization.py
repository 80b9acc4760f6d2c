#!/usr/bin/env python3
"""From which bandwidth between nodes on quantized collectives no longer pay on this machine.

Ranks of this host stand for nodes, between which STRETTO_LINKS makes messages as slow as it says. In each round, at each bandwidth,
stretto-perf in turn: reduce-scatter plain and in int4, all-gather plain and in int8, all-reduce plain and in int4 with its result in
int8, each by the method that the library chooses. Figures are medians over the rounds. What the cost model expected of both sides
is taken from STRETTO_EXPLAIN.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import quantization_page
from host import BIN, FOREIGN, ROOT, machine
from quantization_page import COLLECTIVES, ELEMENT_BYTES, MIB

RATES = [0.3, 1, 3, 10, 30, 100]  # Gb/s
# stretto: all_gather of 1024 bf16 in 'world', symmetric memory: two_level/4 in int8, 1.5 us by the cost model; then ...
EXPLAINED = re.compile(r"^stretto: (\w+) of (\d+) (\w+) in '[^']*'(?:, symmetric memory)?: .*?([\d.]+) us by the cost model", re.M)


def expected_us(stderr, collective, count, dtype):
    """What the cost model expected of the call; ends everything where nothing is said of it."""
    for name, elements, type_, us in EXPLAINED.findall(stderr):
        if (name, int(elements), type_) == (collective, count, dtype):
            return float(us)
    sys.exit(f"error: STRETTO_EXPLAIN says nothing of {collective} of {count} {dtype}.")


class Measurement:
    def __init__(self, options):
        self.options = options
        self.ranks = options.nodes * options.ranks_per_node
        self.samples = {}  # (dtype, rate, collective, side) -> microseconds, one a round
        self.rest = {}  # the same -> what does not change from round to round
        self.version = ""

    def perf(self, dtype, rate, collective, side):
        words = [self.options.program, collective, "--nproc", self.ranks, "--ranks-per-node", self.options.ranks_per_node,
                 "-d", dtype, "-b", self.options.bytes, "-e", self.options.bytes, "-w", 1, "--seconds", self.options.seconds,
                 "--copies", 1, "--in-place", 0]
        if side == "quantized":
            words += COLLECTIVES[collective].flags
        variables = {name: value for name, value in os.environ.items() if not FOREIGN.match(name)}
        variables |= {"STRETTO_LINKS": f"inter={rate:g}Gb/s,{self.options.latency:g}us", "STRETTO_EXPLAIN": "1"}
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            command = [str(word) for word in [*words, "--json", file.name]]
            done = subprocess.run(command, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)
            if done.returncode != 0:
                sys.exit(f"error: STRETTO_LINKS='{variables['STRETTO_LINKS']}' {' '.join(command)} ended with status {done.returncode}: "
                         f"{(done.stderr or done.stdout).strip()}")
            result = json.load(open(file.name))
        row, = result["rows"]
        self.version = f"Stretto {result['machine']['version']}"
        share = 1 if collective == "all_reduce" else self.ranks
        count = self.options.bytes // ELEMENT_BYTES[dtype] // share
        key = dtype, rate, collective, side
        self.samples.setdefault(key, []).append(row["time_us"])
        self.rest[key] = {"method": row["algo"], "expected_us": expected_us(done.stderr, collective, count, dtype),
                          "bytes_between_nodes": row["wire_bytes_inter"]}
        if side == "quantized":
            self.rest[key] |= {"max_error": row["max_error"], "rms_error": row["rms_error"]}

    def round(self):
        for dtype in self.options.dtypes:
            for rate in self.options.rates:
                for collective in COLLECTIVES:
                    for side in ("plain", "quantized"):
                        self.perf(dtype, rate, collective, side)

    def figures(self):
        def side(*key):
            return {"us": statistics.median(self.samples[key]), **self.rest[key]}

        rows = [{"dtype": dtype, "rate": rate, "collective": collective,
                 **{name: side(dtype, rate, collective, name) for name in ("plain", "quantized")}}
                for dtype in self.options.dtypes for rate in self.options.rates for collective in COLLECTIVES]
        return {
            "machine": machine(), "version": self.version, "command": self.options.command, "nodes": self.options.nodes,
            "ranks_per_node": self.options.ranks_per_node, "latency_us": self.options.latency, "bytes": self.options.bytes,
            "rounds": self.options.rounds, "seconds": self.options.seconds, "rows": rows,
        }


def read_json(path):
    try:
        return json.loads(pathlib.Path(path).read_text())
    except (OSError, ValueError) as reason:
        sys.exit(f"error: {path} cannot be read as JSON: {reason}.")


def parse():
    parser = argparse.ArgumentParser(prog="./dev perf quantization", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    cuts = [
        parser.add_argument("--nodes", type=int, default=4, help="default 4"),
        parser.add_argument("--ranks-per-node", type=int, default=2, help="default 2"),
        parser.add_argument("--rates", default=",".join(f"{rate:g}" for rate in RATES), help="Gb/s (default %(default)s)"),
        parser.add_argument("--latency", type=float, default=20, help="of the links, in us (default 20)"),
        parser.add_argument("--mib", type=int, default=16, help="of the whole vector (default 16)"),
        parser.add_argument("--dtypes", default="bf16,f32", help="of which the first is drawn (default %(default)s)"),
        parser.add_argument("--rounds", type=int, default=3, help="of which the medians count (default 3)"),
        parser.add_argument("--seconds", type=float, default=0.2, help="that a loop lasts about, of 3 operations at least (default 0.2)"),
    ]
    parser.add_argument("--program", default=str(BIN / "stretto-perf"), help="stretto-perf")
    parser.add_argument("--json", default=str(ROOT / "runs/quantization.json"), help="where the figures go (default runs/quantization.json)")
    parser.add_argument("--from", dest="earlier", metavar="JSON", help="measure nothing, print what an earlier run wrote")
    parser.add_argument("--kernels", metavar="JSON", help="what ./dev perf kernels --json wrote: goes into the page, too")
    parser.add_argument("--write-docs", nargs="?", const=str(ROOT / "docs/quantization.md"), metavar="FILE",
                        help="put the figures between the marks of docs/quantization.md, or of FILE, and the plot beside it")
    options = parser.parse_args()
    given = [f" {cut.option_strings[0]} {getattr(options, cut.dest)}" for cut in cuts if getattr(options, cut.dest) != cut.default]
    options.command = "./dev perf quantization" + "".join(given)
    if options.write_docs:
        quantization_page.check(pathlib.Path(options.write_docs))  # says now, not in ten minutes, that it cannot be done
    try:
        options.rates = sorted({float(word) for word in options.rates.split(",")})
    except ValueError:
        sys.exit(f"error: --rates '{options.rates}' is no list of Gb/s such as 0.3,1,10.")
    options.dtypes = options.dtypes.split(",")
    if not set(options.dtypes) <= set(ELEMENT_BYTES):
        sys.exit(f"error: --dtypes '{','.join(options.dtypes)}': choose among {', '.join(ELEMENT_BYTES)}.")
    for value, flag in ((options.rates[0], "rates"), (options.mib, "mib"), (options.rounds, "rounds"), (options.nodes - 1, "nodes")):
        if value <= 0:
            sys.exit(f"error: --{flag} is too little to measure anything.")
    options.bytes = options.mib * MIB
    return options


def main():
    options = parse()
    kernels = read_json(options.kernels) if options.kernels else None
    if options.earlier:
        figures = read_json(options.earlier)
    else:
        measurement = Measurement(options)
        for i in range(options.rounds):
            measurement.round()
            print(f"round {i + 1} of {options.rounds} is done", file=sys.stderr)
        figures = measurement.figures()
        pathlib.Path(options.json).parent.mkdir(parents=True, exist_ok=True)
        pathlib.Path(options.json).write_text(json.dumps(figures, indent=1) + "\n")
    print(quantization_page.crossover_section(figures))
    if kernels:
        print(quantization_page.kernels_section(kernels))
    if options.write_docs:
        quantization_page.write_docs(figures, kernels, pathlib.Path(options.write_docs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
