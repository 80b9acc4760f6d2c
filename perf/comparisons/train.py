"""Compares training speed with PyTorch DDP over Gloo: the same model on 2 ranks of 1 thread, whole programs in turn.

The bound of a ratio is the ratio if nothing but the products with weights took time. Exits 1 if Stretto falls short of a target.
"""
import os
import statistics
import sys

from perf.comparisons.harness import Comparison, Table, flag, in_turn, median, ratio
from perf.comparisons.programs import ROOT, cpu_field, last_json, model_text, run
from perf.pages.text import Verdict, beside, rounds_text

RANKS = 2
DTYPES = ("fp32", "bf16")
SMOLLM2 = "the shape of SmolLM2-135M (30 layers, width 576, 9 and 3 heads, MLP 1536, vocabulary 49,152), sequences of 512, 2 a rank"
# Wanted of tokens per second over PyTorch's, in which adapters are peft's; of bf16 if the processor has AVX512_BF16.
RATIO = {"fp32": 1.35, "bf16": 1.5}
RATIO_OF_LORA = 1.4
SIZES_OF_SMOLLM2 = ["--layers", 30, "--hidden", 576, "--heads", 9, "--kv-heads", 3, "--mlp", 1536, "--seq-length", 512, "--vocab", 49152,
                    "--batch", 2]
# Sizes for both sides: that of the demo, and SmolLM2-135M's, trained whole and by adapters of all linear modules.
MODELS = {
    "gpt2": ([], [], "ddp_gpt.py"),
    "llama": (SIZES_OF_SMOLLM2, ["--llama"], "ddp_llama.py"),
    "lora": ([*SIZES_OF_SMOLLM2, "--lora", 8], ["--llama"], "ddp_lora.py"),
}
SHARE = 0.92  # wanted of matrix products in fp32
# What makes each side compute as on a processor of that level.
LEVELS = {
    "native": {},
    "avx2": {"STRETTO_CPU_LEVEL": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "DNNL_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2",
             "OPENBLAS_CORETYPE": "Haswell"},
}


def bound(stretto, ddp):
    """The ratio if a step consisted of the products with weights (6 FLOP per weight and token; 4 of a frozen one) at their best rate."""
    products_only = RANKS * stretto["gemm_gflops_per_rank"] * 1e9 / stretto["weight_flops_per_token"]
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
    variables, sides = LEVELS[options.level], {}
    dtypes = [options.dtype] if options.dtype else DTYPES
    sizes, ours, peer = MODELS[options.model]
    for dtype in dtypes:
        words = ["--nproc", RANKS, "--steps", options.steps, "--warmup", 6, "--dtype", dtype, *sizes]
        sides[f"Stretto {dtype}"] = [options.program, *words, *ours]
        # PyTorch asks the processor whether it has bf16 products, and then fails at those that it may not use.
        if options.level == "native" or dtype == "fp32":
            sides[f"PyTorch {dtype}"] = [ROOT / ".cache/torch2/bin/python", ROOT / "perf/comparisons/peers" / peer, *words]
    rounds = in_turn(list(sides), options.rounds, lambda side: last_json(run(sides[side], **variables).stdout))
    of_dtypes = {dtype: summary(rounds, dtype) for dtype in dtypes}
    if len(of_dtypes) == 2:
        of_dtypes["bf16"]["over_fp32"] = ratio(rounds, "Stretto bf16", "Stretto fp32")
    yield {"level": options.level, "model": options.model, "bf16_instructions": options.level == "native" and "avx512_bf16" in cpu_field("flags").split(),
           "torch": next((figures["torch"] for figures in rounds[0].values() if "torch" in figures), "none"), "rounds": options.rounds,
           "dtypes": of_dtypes}


def verdicts(figures):
    for dtype, of in figures["dtypes"].items():
        if dtype == "fp32" or figures["bf16_instructions"]:
            times = statistics.median(of["ratios"])
            wanted = RATIO_OF_LORA if figures["model"] == "lora" else RATIO[dtype]
            yield Verdict(times >= wanted, f"{dtype}: {beside(times, wanted)} times PyTorch's tokens per second, wanted {wanted}"
                                           f" ({of['bound']:.2f} if nothing but the products with weights took time)")
        if figures["model"] == "lora":
            continue
        if dtype == "fp32":
            yield Verdict(of["gemm_share"] >= SHARE, f"fp32: a share of {beside(of['gemm_share'], SHARE)} of matrix products, wanted {SHARE}")
        elif not figures["bf16_instructions"]:
            over = of.get("over_fp32")
            yield Verdict(None if over is None else over >= 1,
                          "bf16, without bf16 instructions: tokens per second over those in fp32" + (f": {beside(over, 1)}" if over else ""))


def tables(figures):
    rows = []
    for dtype, of in figures["dtypes"].items():
        peer = ["-"] * 4
        if "ratios" in of:
            peer = [f"{of['ddp_tokens_per_s']:,.0f}", f"{statistics.median(of['ratios']):.2f}",
                    f"{min(of['ratios']):.2f} to {max(of['ratios']):.2f}", f"{of['bound']:.2f}"]
        rows.append([dtype, f"{of['stretto_tokens_per_s']:,.0f}", *peer, f"{of['gemm_share']:.2f}", f"{of['gemm_gflops_per_rank']:.0f}"])
    yield Table("", ["", "Stretto, tokens/s", "PyTorch DDP", "ratio", "by round", "at most", "GEMM share", "GFLOP/s a rank"], rows)


def check(parser, options):
    if os.environ.get("STRETTO_CPU_LEVEL"):
        sys.exit("error: STRETTO_CPU_LEVEL would hold for Stretto alone; give --level, which holds for PyTorch as well.")


Comparison(
    "train", __doc__, measured, tables, verdicts, page="docs/performance.md", program="train_speed", check=check,
    about=lambda figures: f"{model_text(6) if figures['model'] == 'gpt2' else SMOLLM2}{', LoRA of rank 8 in all linear modules' * (figures['model'] == 'lora')}, {RANKS} ranks; PyTorch {figures['torch']}; {rounds_text(figures['rounds'])}",
    section=lambda options: "./dev perf train" + (f" --model {options.model}" if options.model != "gpt2" else "")
    + (" --level avx2" if options.level == "avx2" else ""),
    flags=(flag("--model", "gpt2", "the shape: the demo's, or SmolLM2-135M's, trained whole or by LoRA", choices=MODELS), flag("--dtype", text="only this type", choices=DTYPES),
           flag("--level", "native", "avx2: all sides as on a processor without AVX-512", choices=LEVELS),
           flag("--rounds", 5), flag("--steps", 5)))
