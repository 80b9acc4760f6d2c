"""Finds the bandwidth between nodes above which quantized collectives no longer pay on this machine.

Ranks of this host stand for nodes, and STRETTO_LINKS makes messages between them as slow as on links of that bandwidth. At each
bandwidth, each round runs stretto-perf in turn: reduce-scatter plain and in int4, all-gather plain and in int8, all-reduce plain and
in int4 with its result in int8, each by the method that the library chooses. Figures are medians over the rounds. The times that the
cost model expected of both sides are taken from STRETTO_EXPLAIN.
"""
import re
import statistics
import sys

from perf.comparisons.programs import BIN, add_outputs, command_text, figures_of, machine, parser_of, read_json, run, write_json
from perf.pages import quantization as page
from perf.pages.quantization import COLLECTIVES, ELEMENT_BYTES, MIB

RATES = [0.3, 1, 3, 10, 30, 100]  # Gb/s
# stretto: all_gather of 1024 bf16 in 'world', symmetric memory: two_level/4 in int8, 1.5 us by the cost model; then ...
EXPLAINED = re.compile(r"^stretto: (\w+) of (\d+) (\w+) in '[^']*'(?:, symmetric memory)?: .*?([\d.]+) us by the cost model", re.M)


def expected_us(stderr, collective, count, dtype):
    """The cost model's time for the call. Exits with an error if STRETTO_EXPLAIN does not mention the call."""
    for name, elements, type_, us in EXPLAINED.findall(stderr):
        if (name, int(elements), type_) == (collective, count, dtype):
            return float(us)
    sys.exit(f"error: STRETTO_EXPLAIN says nothing of {collective} of {count} {dtype}.")


class Measurement:
    def __init__(self, options):
        self.options = options
        self.ranks = options.nodes * options.ranks_per_node
        self.samples = {}  # (dtype, rate, collective, side) -> microseconds, one a round
        self.rest = {}  # the same key -> the figures that do not change from round to round
        self.version = ""

    def perf(self, dtype, rate, collective, side):
        words = [self.options.program, collective, "--nproc", self.ranks, "--ranks-per-node", self.options.ranks_per_node,
                 "-d", dtype, "-b", self.options.bytes, "-e", self.options.bytes, "-w", 1, "--seconds", self.options.seconds,
                 "--copies", 1, "--in-place", 0]
        if side == "quantized":
            words += COLLECTIVES[collective].flags
        links = {"STRETTO_LINKS": f"inter={rate:g}Gb/s,{self.options.latency:g}us", "STRETTO_EXPLAIN": "1"}
        explanations = []
        result = figures_of(words, lambda command: explanations.append(run(command, **links).stderr))
        row, = result["rows"]
        self.version = f"Stretto {result['machine']['version']}"
        share = 1 if collective == "all_reduce" else self.ranks
        count = self.options.bytes // ELEMENT_BYTES[dtype] // share
        key = dtype, rate, collective, side
        self.samples.setdefault(key, []).append(row["time_us"])
        self.rest[key] = {"method": row["algo"], "expected_us": expected_us(explanations[0], collective, count, dtype),
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


def parse():
    parser = parser_of("quantization", __doc__)
    cuts = [
        parser.add_argument("--nodes", type=int, default=4, help="default 4"),
        parser.add_argument("--ranks-per-node", type=int, default=2, help="default 2"),
        parser.add_argument("--rates", default=",".join(f"{rate:g}" for rate in RATES), help="Gb/s (default %(default)s)"),
        parser.add_argument("--latency", type=float, default=20, help="latency of the links in us (default 20)"),
        parser.add_argument("--mib", type=int, default=16, help="size of the whole vector (default 16)"),
        parser.add_argument("--dtypes", default="bf16,f32", help="the first of them is drawn (default %(default)s)"),
        parser.add_argument("--rounds", type=int, default=3, help="rounds, over which medians are taken (default 3)"),
        parser.add_argument("--seconds", type=float, default=0.2, help="length of a loop, of at least 3 operations (default 0.2)"),
    ]
    parser.add_argument("--program", default=str(BIN / "stretto-perf"), help="stretto-perf")
    parser.add_argument("--kernels", metavar="JSON", help="file that ./dev perf kernels --json wrote, for the page as well")
    add_outputs(parser, "quantization", "docs/quantization.md")
    options = parser.parse_args()
    options.command = command_text(parser, options, cuts)
    if options.write_docs:
        page.check(options.write_docs)  # fails now rather than after ten minutes of measurement
    try:
        options.rates = sorted({float(word) for word in options.rates.split(",")})
    except ValueError:
        sys.exit(f"error: --rates '{options.rates}' is no list of Gb/s such as 0.3,1,10.")
    options.dtypes = options.dtypes.split(",")
    if not set(options.dtypes) <= set(ELEMENT_BYTES):
        sys.exit(f"error: --dtypes '{','.join(options.dtypes)}': choose among {', '.join(ELEMENT_BYTES)}.")
    for value, least, flag in ((options.rates[0], 0, "rates"), (options.mib, 0, "mib"), (options.rounds, 0, "rounds"), (options.nodes, 1, "nodes")):
        if value <= least:
            sys.exit(f"error: --{flag} {value} must be above {least}.")
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
        write_json(options.json, figures)
    print(page.crossover_section(figures))
    if kernels:
        print(page.kernels_section(kernels))
    if options.write_docs:
        page.write_docs(figures, kernels, options.write_docs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
