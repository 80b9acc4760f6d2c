"""Compares training speed with PyTorch DDP over Gloo: the same model on 2 ranks of 1 thread, whole programs in turn.

Prints the ratio of each round, its bound, which is the ratio if nothing but the products with weights took time, and the share of
matrix products; then verdicts on the medians. Exits 1 if Stretto falls short of one.
"""
import os
import statistics
import sys

from perf.comparisons.programs import (BIN, ROOT, add_outputs, command_text, cpu_field, last_json, machine, model_text, parser_of, read_json,
                                       run, write_json)
from perf.comparisons.rounds import in_turn, median, ratio
from perf.pages.text import DocsSection, Verdict, beside, machine_text, markdown_table, rounds_text, verdict_text

RANKS = 2
DTYPES = ("fp32", "bf16")
RATIO = {"fp32": 1.25, "bf16": 2.0}  # wanted of tokens per second over PyTorch's; of bf16 if the processor has AVX512_BF16
SHARE = 0.92  # wanted of matrix products in fp32
# What makes each side compute as on a processor of that level.
LEVELS = {
    "native": {},
    "avx2": {"STRETTO_CPU_LEVEL": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "DNNL_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2",
             "OPENBLAS_CORETYPE": "Haswell"},
}


def bound(stretto, ddp):
    """The ratio if a step consisted of the products with weights (6 FLOP per parameter and token) at their best rate."""
    products_only = RANKS * stretto["gemm_gflops_per_rank"] * 1e9 / (6 * stretto["parameters"])
    return products_only / ddp["tokens_per_s"]


def summary(rounds, dtype):
    ours, ddp = f"Stretto {dtype}", f"PyTorch {dtype}"
    found = {"stretto_tokens_per_s": median(rounds, ours, "tokens_per_s"), "gemm_share": median(rounds, ours, "gemm_share"),
             "gemm_gflops_per_rank": median(rounds, ours, "gemm_gflops_per_rank")}
    if ddp not in rounds[0]:
        return found
    return {**found, "ddp_tokens_per_s": median(rounds, ddp, "tokens_per_s"),
            "ratios": [each[ours]["tokens_per_s"] / each[ddp]["tokens_per_s"] for each in rounds],
            "bound": statistics.median(bound(each[ours], each[ddp]) for each in rounds)}


def measured(options):
    variables = LEVELS[options.level]
    sides = {}
    for dtype in options.dtypes:
        flags = ["--nproc", RANKS, "--steps", options.steps, "--warmup", 6, "--dtype", dtype]
        sides[f"Stretto {dtype}"] = [options.program, *flags]
        # PyTorch asks the processor whether it has bf16 products, and then fails at those that it may not use.
        if options.level == "native" or dtype == "fp32":
            sides[f"PyTorch {dtype}"] = ["/usr/bin/python3", ROOT / "perf/comparisons/peers/ddp_gpt.py", *flags]
    rounds = in_turn(list(sides), options.rounds, lambda side: last_json(run(sides[side], **variables).stdout))
    of_dtypes = {dtype: summary(rounds, dtype) for dtype in options.dtypes}
    if len(of_dtypes) == 2:
        of_dtypes["bf16"]["over_fp32"] = ratio(rounds, "Stretto bf16", "Stretto fp32")
    return {
        "machine": machine(),
        "command": options.command,
        "level": options.level,
        "bf16_instructions": options.level == "native" and "avx512_bf16" in cpu_field("flags").split(),
        "torch": next(figures["torch"] for figures in rounds[0].values() if "torch" in figures),
        "rounds": options.rounds,
        "dtypes": of_dtypes,
    }


def verdicts(figures):
    for dtype, of in figures["dtypes"].items():
        if dtype == "fp32" or figures["bf16_instructions"]:
            times = statistics.median(of["ratios"])
            yield Verdict(times >= RATIO[dtype], f"{dtype}: {beside(times, RATIO[dtype])} times PyTorch's tokens per second, wanted {RATIO[dtype]}"
                                                 f" ({of['bound']:.2f} if nothing but the products with weights took time)")
        if dtype == "fp32":
            yield Verdict(of["gemm_share"] >= SHARE, f"fp32: a share of {beside(of['gemm_share'], SHARE)} of matrix products, wanted {SHARE}")
        if dtype == "bf16" and not figures["bf16_instructions"]:
            over = of.get("over_fp32")
            yield Verdict(None if over is None else over >= 1,
                          "bf16, without bf16 instructions: tokens per second over those in fp32" + (f": {beside(over, 1)}" if over else ""))


def table(figures):
    header = ["", "Stretto, tokens/s", "PyTorch DDP", "ratio", "by round", "at most", "GEMM share", "GFLOP/s a rank"]
    rows = []
    for dtype, of in figures["dtypes"].items():
        peer = ["-"] * 4
        if "ratios" in of:
            peer = [f"{of['ddp_tokens_per_s']:,.0f}", f"{statistics.median(of['ratios']):.2f}",
                    f"{min(of['ratios']):.2f} to {max(of['ratios']):.2f}", f"{of['bound']:.2f}"]
        rows.append([dtype, f"{of['stretto_tokens_per_s']:,.0f}", *peer, f"{of['gemm_share']:.2f}", f"{of['gemm_gflops_per_rank']:.0f}"])
    return markdown_table(header, rows)


def section(figures):
    return "\n\n".join([
        f"Measured by `{figures['command']}` on {machine_text(figures['machine'])}, PyTorch {figures['torch']}; {rounds_text(figures['rounds'])}.",
        "\n".join(table(figures)), "\n".join(f"- {verdict_text(verdict)}" for verdict in verdicts(figures))])


def parse():
    parser = parser_of("train", __doc__)
    parser.add_argument("--program", default=str(BIN / "train_speed"))
    cuts = [
        parser.add_argument("--dtype", choices=DTYPES, help="only this type"),
        parser.add_argument("--level", choices=LEVELS, default="native", help="avx2: all sides as on a processor without AVX-512"),
        parser.add_argument("--rounds", type=int, default=5),
        parser.add_argument("--steps", type=int, default=5),
    ]
    add_outputs(parser, "train", "docs/performance.md")
    options = parser.parse_args()
    if os.environ.get("STRETTO_CPU_LEVEL"):
        sys.exit("error: STRETTO_CPU_LEVEL would hold for Stretto alone; give --level, which holds for PyTorch as well.")
    options.command = command_text(parser, options, cuts)
    options.dtypes = [options.dtype] if options.dtype else list(DTYPES)
    return options


def main():
    options = parse()
    page = DocsSection("./dev perf train" + (" --level avx2" if options.level == "avx2" else ""))
    if options.write_docs:
        page.around(options.write_docs)
    if options.earlier:
        figures = read_json(options.earlier)
    else:
        print(f"{model_text(6)}, {RANKS} ranks", file=sys.stderr)
        figures = measured(options)
        write_json(options.json, figures)
    print("\n".join(table(figures)))
    for verdict in verdicts(figures):
        print(verdict_text(verdict))
    if options.write_docs:
        page.replace(options.write_docs, section(figures))
    return 0 if all(verdict.holds for verdict in verdicts(figures)) else 1


if __name__ == "__main__":
    sys.exit(main())
