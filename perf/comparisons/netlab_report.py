"""Compares all-reduce between hosts with its bound, with Open MPI and Gloo, and with the link model. Takes root.

Network namespaces of this machine stand for hosts (perf/netlab). Each round runs whole programs in turn: a bare TCP stream in both
directions at once; stretto-perf with the method that the library chooses, with each --method and, from the second round on, with the
chosen method by its name, and Gloo on the same buffers; Open MPI, in a program of its own; reduce-scatter and all-gather, quantized and
in bf16; and stretto-perf on one host, with STRETTO_LINKS at the stream's rate. Figures are medians over the rounds. Prints a table and
the verdicts; exits 1 if a figure falls short or was not measured.
"""
import json
import pathlib
import statistics
import subprocess
import sys

from perf.comparisons import namespaces
from perf.comparisons.mpi_programs import compiled_loop
from perf.comparisons.programs import BIN, add_outputs, command_text, figures_of, machine, parser_of, read_json, run, write_json
from perf.pages import netlab as page
from perf.pages.netlab import CHOSEN, MIB, QUANTIZED, SIZES
from perf.pages.text import size_text

METHODS = ["two_level(ring+ring)*4/8", "two_level(ring+ring)*4/16", "two_level(direct+ring)*4/16"]
QUANTIZED_BYTES = 64 * MIB  # the whole vector in bf16


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
        # A stretto-perf without Gloo refuses --vs gloo.
        trial = [self.program, "all_reduce", "--nproc", "1", "-b", "8", "-e", "8", "-n", "1", "--vs", "gloo"]
        self.peers = ["--vs", "gloo"] if subprocess.run(trial, capture_output=True).returncode == 0 else []

    def add(self, side, method, size, us):
        self.samples.setdefault((side, method, size), []).append(us)

    def perf(self, side, words, start):
        """Runs stretto-perf, and adds its times and those of its peers to the samples."""
        result = figures_of([self.program, *words, "-w", "1", "--seconds", self.options.seconds, "--copies", "1", "--in-place", "0"], start)
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
        for size in self.options.sizes:
            chosen = [self.chosen[side, size]] if side == "stretto" and (side, size) in self.chosen else []
            methods = ",".join(dict.fromkeys([CHOSEN, *self.options.method, *chosen]))
            self.perf(side, ["all_reduce", "-b", size, "-e", size, "--algo", methods, *more], start)

    def model(self):
        links = f"inter={statistics.median(self.streams) / 1e6:.3f}MB/s,{self.options.latency}us"
        more = ["--nproc", self.ranks, "--ranks-per-node", self.options.ranks_per_host]
        self.all_reduce("model", lambda command: run(command, STRETTO_LINKS=links), more)

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
    parser = parser_of("netlab", __doc__)
    cuts = [
        parser.add_argument("--hosts", type=int, default=4, help="default 4"),
        parser.add_argument("--ranks-per-host", type=int, default=2, help="default 2"),
        parser.add_argument("--rate", default="1gbit", help="rate of every link, as tc writes it (default 1gbit)"),
        parser.add_argument("--latency", type=float, default=30, help="latency of the model's links in us (default 30)"),
        parser.add_argument("--rounds", type=int, default=3, help="default 3"),
        parser.add_argument("--seconds", type=float, default=1.0, help="length of a loop, of at least 3 operations (default 1)"),
        parser.add_argument("--sizes", default=",".join(str(size // MIB) for size in SIZES), help="MiB (default 1,4,16,64)"),
        parser.add_argument("--quantized-bytes", type=int, default=QUANTIZED_BYTES, help="size of the vector in bf16 (default 64 MiB)"),
    ]
    parser.add_argument("--program", default=str(BIN / "stretto-perf"), help="stretto-perf")
    parser.add_argument("--method", action="append",
                        help="a method beside the library's choice; may be given several times (default " + " ".join(METHODS) + ")")
    add_outputs(parser, "netlab", "docs/performance.md")
    options = parser.parse_args()
    namespaces.bytes_per_second(options.rate)  # refuses a wrong rate before anything is made
    if options.write_docs:
        page.SECTION.around(options.write_docs)
    options.command = " ".join([command_text(parser, options, cuts), *(f"--method '{method}'" for method in options.method or [])])
    options.method = options.method or METHODS
    try:
        options.sizes = sorted({int(word) * MIB for word in options.sizes.split(",")})
    except ValueError:
        parser.error(f"--sizes '{options.sizes}' is no list of MiB such as 1,16,64")
    return options


def measured(options):
    namespaces.require()
    measurement = Measurement(options)
    with namespaces.Network([options.ranks_per_host] * options.hosts, options.rate) as measurement.network:
        for i in range(options.rounds):
            measurement.round()
            print(f"round {i + 1} of {options.rounds} is done", file=sys.stderr)
    return measurement.figures()


def main():
    options = parse()
    if options.earlier:
        figures = read_json(options.earlier)
    else:
        figures = measured(options)
        write_json(options.json, figures)
    print(page.report(figures))
    if options.write_docs:
        page.SECTION.replace(options.write_docs, page.section(figures))
    return 1 if page.falls_short(figures) else 0


if __name__ == "__main__":
    namespaces.exit_with(main)
