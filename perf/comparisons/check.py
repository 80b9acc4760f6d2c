"""Says what has got slower: ratios to peers, and to limits that are measured in the same run, beside those of earlier runs on the same
kind of machine (perf/expected.json). It compares no absolute times. Takes minutes; as root, for links between hosts.

A ratio has got worse if it is below all that were learned, three times in a row: what is below them is measured again. Exits 1
then, and if something was not measured that was learned. --learn N measures N times and writes what to expect of this kind of machine.
"""
import collections
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from perf.comparisons import host_verdicts
from perf.comparisons.programs import BIN, ROOT, chosen_level, cores, cpu_field, machine, parser_of, read_json, write_json
from perf.pages import netlab
from perf.pages.text import size_text, terminal_table

EXPECTED = ROOT / "perf/expected.json"
MARGIN = 0.97  # a ratio this near to the lowest that was learned is no worse
ATTEMPTS = 3
# By which processors of one name and family differ: the first of these that it has.
LEVELS = {"avx512_bf16": "AVX512_BF16", "avx512f": "AVX-512", "avx2": "AVX2"}

# ratios: from the figures that the command writes to --json, by name, those that are the greater the faster Stretto is.
Part = collections.namedtuple("Part", "command ratios")


def host_ratios(figures):
    for collective, by_ranks in figures["times"].items():
        for ranks in map(int, by_ranks):
            what = f"{collective}, {ranks} ranks"
            for side in ("symmetric", "malloc"):
                for size, ratio in host_verdicts.ratios(figures, collective, ranks, side).items():
                    yield f"{what}, {side}, {size_text(size)}: best peer / Stretto", ratio
            ours = host_verdicts.side(figures, collective, ranks, "symmetric")
            for size, us in host_verdicts.bare_loops(figures, collective, ranks).items():
                yield f"{what}, symmetric, {size_text(size)}: bare loop / Stretto", us / ours[size]
            if collective == host_verdicts.ALL_REDUCE:
                yield f"{what}, symmetric, 8 B: bare exchange / Stretto", figures["limit"][str(ranks)]["exchange_us"] / ours[8]


def train_ratios(figures):
    for dtype, of in figures["dtypes"].items():
        yield f"training in {dtype}: tokens/s of Stretto / PyTorch DDP", statistics.median(of["ratios"])
        yield f"training in {dtype}: share of matrix products", of["gemm_share"]


def netlab_ratios(figures):
    for size in figures["sizes"]:
        ours = netlab.time_of(figures, "stretto", size)
        what = f"all_reduce, {figures['hosts']} hosts of {figures['ranks_per_host']} ranks, {size_text(size)}"
        yield f"{what}: bound / Stretto", netlab.bound_us(figures, size) / ours
        for peer in ("openmpi", "gloo"):
            if time := netlab.peer_time(figures, peer, size):
                yield f"{what}: {peer} / Stretto", time / ours
    plain, _, _, quantized = netlab.quantized_times(figures)
    yield "ZeRO++'s sums and gathers between hosts: bf16 / quantized", plain / quantized


def kernel_ratios(figures):
    by_kernel = collections.defaultdict(list)
    for row in figures["rows"]:
        by_kernel[f"{row['kernel']}, {row['format']} of {row['dtype']}: speed / copy's"].append(row["ratio"])
    for name, ratios in by_kernel.items():
        yield name, statistics.median(ratios)


def torch_ratios(figures):
    for key, text in (("all_reduce", lambda size: size_text(int(size))), ("steps", lambda tokens: f"{tokens} tokens a step")):
        for what, times in figures[key].items():
            for side in sorted(times.keys() - {"gloo", "none"}):
                ratio = statistics.median(times["gloo"]) / statistics.median(times[side])
                yield f"torch.distributed, {text(what)}, {side}: Gloo / Stretto", ratio


def module(name, *words, python=sys.executable):
    return [python, "-B", "-m", f"perf.comparisons.{name}", *words]


PARTS = {
    "host": Part(module("host", "--sizes", "8,2K,64K,1M,16M", "--rounds", "3"), host_ratios),
    "hosts": Part(module("netlab_report", "--sizes", "1,16", "--quantized-bytes", str(16 << 20), "--rounds", "1",
                         "--method", "two_level(ring+ring)*4/8"), netlab_ratios),
    "train": Part(module("train", "--rounds", "2", "--dtype", "fp32"), train_ratios),
    "train-bf16": Part(module("train", "--rounds", "2", "--dtype", "bf16"), train_ratios),
    "kernels": Part([BIN / "quantize_speed"], kernel_ratios),
    "torch": Part(module("torch_door", "--rounds", "3", "--tokens", "1x64", python="/usr/bin/python3"), torch_ratios),
}


def measured(name):
    """The ratios of one part. A comparison that falls short of its own requirements has measured all the same."""
    part = PARTS[name]
    print(f"measuring {name}", file=sys.stderr)
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        words = [str(word) for word in [*part.command, "--json", file.name]]
        done = subprocess.run(words, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=os.environ)
        if not pathlib.Path(file.name).stat().st_size:
            sys.exit(f"error: '{' '.join(words)}' ended with status {done.returncode}: {(done.stderr or done.stdout).strip()}")
        return dict(part.ratios(read_json(file.name)))


def kind_of_machine():
    flags = cpu_field("flags").split()
    level = next((f" with {name}" for flag, name in LEVELS.items() if flag in flags), "")
    return f"{cpu_field('model name')} of family {cpu_field('cpu family')}{chosen_level()}{level}, {cores()} cores"


def learn(parts, runs):
    found = {name: collections.defaultdict(list) for name in parts}
    for i in range(runs):
        for name in parts:
            for what, ratio in measured(name).items():
                found[name][what].append(ratio)
        print(f"run {i + 1} of {runs} is done", file=sys.stderr)
    expected = read_json(EXPECTED) if EXPECTED.exists() else {}
    here = expected.setdefault(kind_of_machine(), {})
    for name, by_row in found.items():
        here[name] = {"runs": runs, "date": machine()["date"],
                      "rows": {what: [round(pick(ratios), 3) for pick in (min, statistics.median, max)] for what, ratios in by_row.items()}}
    write_json(EXPECTED, expected)
    print(f"{EXPECTED} has what to expect of {kind_of_machine()}.")


def below(rows, measured_ratios):
    return {what for what, (lowest, _, _) in rows.items() if what in measured_ratios and measured_ratios[what] < MARGIN * lowest}


def check(parts):
    """Prints what has got slower or was not measured; returns whether there is such a row."""
    kind = kind_of_machine()
    expected = (read_json(EXPECTED) if EXPECTED.exists() else {}).get(kind, {})
    if unknown := [name for name in parts if name not in expected]:
        sys.exit(f"error: {EXPECTED} does not say what to expect of {kind} in {', '.join(unknown)}; --learn 10 measures it.")
    worse, missing, total = [], [], 0
    for name in parts:
        rows = expected[name]["rows"]
        total += len(rows)
        best = measured(name)
        missing += [what for what in rows if what not in best]
        for _ in range(ATTEMPTS - 1):
            if not (low := below(rows, best)):
                break
            again = measured(name)
            best.update({what: max(best[what], again.get(what, 0)) for what in low})
        worse += [(what, best[what], *rows[what], best[what] / rows[what][1] - 1) for what in below(rows, best)]
    worse.sort(key=lambda row: row[-1])
    if worse:
        print("\n".join(terminal_table(["slower", "now", "lowest", "median", "highest", "change"],
                                       [[what, *(f"{value:.2f}" for value in values), f"{change:+.0%}"] for what, *values, change in worse])))
    for what in missing:
        print(f"NOT MEASURED: {what}")
    print(f"{len(worse)} of {total} ratios are below what {kind} has reached in earlier runs.")
    return bool(worse or missing)


def main():
    parser = parser_of("check", __doc__)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS), help="default: all")
    parser.add_argument("--learn", type=int, metavar="RUNS", help="measure RUNS times and write perf/expected.json")
    options = parser.parse_args()
    if options.learn is not None and options.learn < 1:
        parser.error(f"--learn {options.learn}: give at least 1 run, for bands that mean something 10.")
    if "hosts" in options.parts and os.geteuid() != 0:
        sys.exit("error: links between hosts are network namespaces, which take root; or choose --parts without hosts.")
    if options.learn:
        learn(options.parts, options.learn)
        return 0
    return 1 if check(options.parts) else 0


if __name__ == "__main__":
    sys.exit(main())
