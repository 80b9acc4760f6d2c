"""Compares all-reduce between hosts with its bound, with Open MPI and Gloo, and with the link model. Takes root.

Network namespaces of this machine stand for hosts (perf/netlab). Each round runs whole programs in turn: a bare TCP stream in both
directions at once; stretto-perf with the method that the library chooses, with METHODS and, from the second round on, with the
chosen method by its name, and Gloo on the same buffers; Open MPI, in a program of its own; reduce-scatter and all-gather, quantized and
in bf16; and stretto-perf on one host, with STRETTO_LINKS at the stream's rate. Figures are medians over the rounds. Exits 1 if a figure
falls short or was not measured.
"""
import collections
import math
import statistics
import subprocess

from perf.comparisons import namespaces
from perf.comparisons.harness import Comparison, Table, flag, rounds_of
from perf.comparisons.mpi_programs import compiled_loop, rows_of
from perf.comparisons.programs import figures_of, run
from perf.pages.text import Verdict, beside, rounds_text, size_text

MIB = 1 << 20
SIZES = [1 * MIB, 4 * MIB, 16 * MIB, 64 * MIB]
METHODS = ["two_level(ring+ring)*4/8", "two_level(ring+ring)*4/16", "two_level(direct+ring)*4/16"]
QUANTIZED = {"reduce_scatter": "int4", "all_gather": "int8"}
QUANTIZED_BYTES = 64 * MIB  # of the vector in bf16
LATENCY = 30  # us, of the model's links
CHOSEN = "auto"
LEAST_STREAM = 0.93  # share of a link's rate; headers take 0.05


class Measurement:
    def __init__(self, options):
        self.options = options
        self.network = None
        self.streams = []  # bytes per second, one a round
        self.samples = collections.defaultdict(list)  # (side, method, bytes) -> microseconds, one a round
        self.chosen = {}  # side -> bytes -> method
        self.wrong = 0
        self.versions = {}
        self.mpi_loop = compiled_loop("openmpi")
        # A stretto-perf without Gloo refuses --vs gloo.
        trial = [options.program, "all_reduce", "--nproc", "1", "-b", "8", "-e", "8", "-n", "1", "--vs", "gloo"]
        self.peers = ["--vs", "gloo"] if subprocess.run(trial, capture_output=True).returncode == 0 else []

    def perf(self, side, words, start):
        """Runs stretto-perf, and adds its times and those of its peers to the samples."""
        result = figures_of([self.options.program, *words, "-w", "1", "--seconds", self.options.seconds, "--copies", "1", "--in-place", "0"], start)
        self.versions["stretto"] = f"Stretto {result['machine']['version']}"
        for text in result["machine"]["peers"]:
            self.versions["gloo"] = text[text.index("(") + 1:-1]
        for row in result["rows"]:
            self.samples[side, CHOSEN if row["chosen"] else row["algo"], row["bytes"]].append(row["time_us"])
            if row["chosen"]:
                self.chosen.setdefault(side, {})[str(row["bytes"])] = row["algo"]
                if "gloo" in row["peers"]:
                    self.samples["gloo", "", row["bytes"]].append(row["peers"]["gloo"]["time_us"])
            self.wrong += row["wrong"] or 0

    def all_reduce(self, side, start, more=()):
        for size in self.options.sizes:
            named = self.chosen.get("stretto", {}).get(str(size)) if side == "stretto" else None
            methods = ",".join(dict.fromkeys([CHOSEN, *METHODS, *([named] if named else [])]))
            self.perf(side, ["all_reduce", "-b", size, "-e", size, "--algo", methods, *more], start)

    def model(self):
        links = f"inter={statistics.median(self.streams) / 1e6:.3f}MB/s,{LATENCY}us"
        more = ["--nproc", self.options.hosts * self.options.ranks_per_host, "--ranks-per-node", self.options.ranks_per_host]
        self.all_reduce("model", lambda command: run(command, STRETTO_LINKS=links), more)

    def mpi_output(self, command):
        started = self.network.start_mpi(command, stdout=subprocess.PIPE, text=True)
        output = started.communicate()[0]
        if started.returncode != 0:
            raise namespaces.CommandFailed(f"mpirun of {self.mpi_loop} ended with {started.returncode}")
        return output

    def mpi(self):
        for row in rows_of([self.mpi_loop, "all_reduce", self.options.seconds, 1, *self.options.sizes], self.mpi_output) if self.mpi_loop else []:
            if "version" in row:
                self.versions["openmpi"] = row["version"]
            elif row["wrong"]:
                print(f"Open MPI gave {row['wrong']} wrong values at {size_text(row['bytes'])} and is left out there")
            else:
                self.samples["openmpi", "", row["bytes"]].append(row["time_us"])

    def quantized(self):
        for collective, bits in QUANTIZED.items():
            words = [collective, "-d", "bf16", "-b", QUANTIZED_BYTES, "-e", QUANTIZED_BYTES]
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
        return {**{key: getattr(self.options, key) for key in ("hosts", "ranks_per_host", "rate", "rounds", "sizes")},
                "versions": self.versions, "wrong": self.wrong, "stream": statistics.median(self.streams), "chosen": self.chosen, "times": times}


def measured(options):
    namespaces.require()
    measurement = Measurement(options)
    with namespaces.Network([options.ranks_per_host] * options.hosts, options.rate) as measurement.network:
        for _ in rounds_of(options.rounds):
            measurement.round()
    yield measurement.figures()


# ---- what the figures say; None stands for what was not measured

def bound_us(figures, size):
    """The lower bound of two levels: each host sends and receives all but its share of the vector, twice."""
    return 2 * (figures["hosts"] - 1) / figures["hosts"] * size / figures["stream"] * 1e6


def best(figures, side, size):
    """(method, microseconds) of the fastest method."""
    return min(((method, by_size[str(size)]) for method, by_size in figures["times"].get(side, {}).items() if str(size) in by_size),
               key=lambda pair: pair[1], default=("", None))


def time_of(figures, side, size, method=CHOSEN):
    return figures["times"].get(side, {}).get(method, {}).get(str(size))


def choice_of(figures, side, size):
    return figures["chosen"].get(side, {}).get(str(size))


def ratio(one, other):
    return one / other if one and other else None


def total(times):
    return None if None in times else sum(times)


def quantized_times(figures):
    """Reduce-scatter and all-gather together: microseconds in bf16 by the library's choice, microseconds in bf16 by the fastest
    methods, the names of these methods, and microseconds quantized."""
    plain = [f"{collective} bf16" for collective in QUANTIZED]
    fastest = [best(figures, side, QUANTIZED_BYTES) for side in plain]
    names = [f"the library's choice {choice_of(figures, side, QUANTIZED_BYTES) or ''}".rstrip() if method == CHOSEN else method
             for side, (method, _) in zip(plain, fastest)]
    fast = total([us for _, us in fastest])
    return (total([time_of(figures, side, QUANTIZED_BYTES) for side in plain]), fast, f" (by {' and '.join(names)})" if fast else "",
            total([time_of(figures, f"{collective} {bits}", QUANTIZED_BYTES) for collective, bits in QUANTIZED.items()]))


def model_ratios(figures, size):
    """(method, time on the link model over time on sockets). The library's choice is left out if it differs between the two, and so are
    the chosen method by its name if it was measured on sockets alone, and the methods that are measured at other sizes."""
    times = figures["times"]
    chosen = {choice_of(figures, side, size) for side in ("model", "stretto")} - {None}
    by_name = chosen - set(times.get("model", {}))
    methods = dict.fromkeys([*times.get("stretto", {}), *times.get("model", {})])
    both = [(method, time_of(figures, "model", size, method), time_of(figures, "stretto", size, method)) for method in methods]
    return [(method, ratio(model, ours)) for method, model, ours in both
            if (model or ours) and method not in by_name and (len(chosen) < 2 or method != CHOSEN)]


def verdicts(figures):
    found = [Verdict(figures["wrong"] == 0, f"no wrong values: {figures['wrong']}")]

    def ask(text, value, least=-math.inf, most=math.inf):
        nearest = min(least, most, key=lambda limit: abs(limit - (value or 0)))
        found.append(Verdict(None, text) if value is None else Verdict(least <= value <= most, f"{text}: {beside(value, nearest)}"))

    stream = figures["stream"] / namespaces.bytes_per_second(figures["rate"])
    busy = "" if stream >= LEAST_STREAM else " (the machine is too busy to judge)"
    ask(f"a TCP stream at least {LEAST_STREAM} of the link's rate{busy}", stream, LEAST_STREAM)
    for size in sorted({*SIZES, *figures["sizes"]}):
        text = size_text(size)
        ours = time_of(figures, "stretto", size)
        openmpi, gloo = (ratio(time_of(figures, peer, size, ""), ours) for peer in ("openmpi", "gloo"))
        ask(f"{text}: at most 1.1 times the bound", ratio(ours, bound_us(figures, size)), most=1.1)
        if size == MIB:
            ask(f"{text}: at least 2 times as fast as the best of Open MPI and Gloo", None if None in (openmpi, gloo) else min(openmpi, gloo), 2)
        if size == 64 * MIB:
            ask(f"{text}: at least 1.8 times as fast as Open MPI", openmpi, 1.8)
            ask(f"{text}: at least 1.05 times as fast as Gloo", gloo, 1.05)
            by_name = time_of(figures, "stretto", size, choice_of(figures, "stretto", size))
            ask(f"{text}: the choice at most 1.05 times as slow as when it is asked for by its name", ratio(ours, by_name), most=1.05)
        if size >= 4 * MIB:
            for method, value in model_ratios(figures, size) or [("any method", None)]:
                ask(f"{text}, {method}: the model within 15% of sockets", value, 0.85, 1.15)
    _, fastest, by, quantized = quantized_times(figures)
    ask(f"quantized reduce-scatter and all-gather at least 3 times as fast as in bf16{by}", ratio(fastest, quantized), 3)
    return found


def milliseconds(us):
    return f"{us / 1e3:.1f}" if us else "not measured"


def tables(figures):
    rows = []
    for size in figures["sizes"]:
        method, us = best(figures, "stretto", size)
        times = [milliseconds(time_of(figures, peer, size, "")) for peer in ("openmpi", "gloo")]
        rows.append([size_text(size), milliseconds(bound_us(figures, size)), milliseconds(time_of(figures, "stretto", size)),
                     choice_of(figures, "stretto", size) or "", milliseconds(us), method, *times, milliseconds(time_of(figures, "model", size)),
                     milliseconds(best(figures, "model", size)[1])])
    yield Table("", ["all_reduce of f32, ms", "bound", "Stretto", "chosen method", "fastest", "fastest method", "Open MPI", "Gloo", "model",
                     "fastest on the model"], rows)


def notes(figures):
    chosen, fastest, by, quantized = quantized_times(figures)
    yield (f"Reduce-scatter and all-gather of {size_text(QUANTIZED_BYTES)} in bf16, ms: {milliseconds(chosen)} by the library's "
           f"choice, {milliseconds(fastest)} at best{by}; as {' and '.join(QUANTIZED.values())}: {milliseconds(quantized)}.")


def about(figures):
    return (f"{'; '.join(figures['versions'].values())}; {rounds_text(figures['rounds'])}; {figures['hosts']} hosts x {figures['ranks_per_host']} "
            f"ranks, links of {figures['rate']}; a TCP stream in both directions at once: {figures['stream'] / 1e6:.1f} MB/s each")


def check(parser, options):
    namespaces.bytes_per_second(options.rate)  # refuses a wrong rate before anything is made
    try:
        options.sizes = sorted({int(word) * MIB for word in options.sizes.split(",")})
    except ValueError:
        parser.error(f"--sizes '{options.sizes}' is no list of MiB such as 1,16,64")


Comparison(
    "netlab", __doc__, measured, tables, verdicts, about, notes, check=check, page="docs/performance.md", program="stretto-perf",
    flags=(flag("--hosts", 4), flag("--ranks-per-host", 2), flag("--rate", "1gbit", "rate of every link, as tc writes it"),
           flag("--rounds", 3),
           flag("--seconds", 1.0, "length of a loop, of at least 3 operations"),
           flag("--sizes", ",".join(str(size // MIB) for size in SIZES), "MiB")))
