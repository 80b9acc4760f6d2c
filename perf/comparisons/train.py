"""Compares training speed with PyTorch DDP over Gloo: the same model on 2 ranks of 1 thread, the two timed in turn.

Prints medians, the ratio of each round, and its bound: the ratio if nothing but the products with weights took time. Exits 1 if
Stretto falls short of the wanted ratio. With --dtype bf16 the wanted ratio applies to processors with AVX512_BF16; elsewhere the
figures are printed only.
"""
import statistics
import sys

from perf.comparisons.programs import BIN, ROOT, cpu_field, last_json, model_text, parser_of, run, write_json

WANTED = {"fp32": 1.25, "bf16": 2.0}
RANKS = 2


def bound(stretto, ddp):
    """The ratio if a step consisted of the products with weights (6 FLOP per parameter and token) at their best rate."""
    products_only = RANKS * stretto["gemm_gflops_per_rank"] * 1e9 / (6 * stretto["parameters"])
    return products_only / ddp["tokens_per_s"]


def main():
    parser = parser_of("train", __doc__)
    parser.add_argument("--program", default=str(BIN / "train_speed"))
    parser.add_argument("--dtype", choices=sorted(WANTED), default="fp32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    steps = ["--nproc", str(RANKS), "--steps", str(options.steps), "--warmup", "6", "--dtype", options.dtype]
    sides = {
        "stretto": [options.program, *steps],
        "ddp": ["/usr/bin/python3", ROOT / "perf/comparisons/peers/ddp_gpt.py", *steps],
    }
    machine = cpu_field("model name")

    print(f"{machine}; {model_text(6)}, {RANKS} ranks, {options.dtype}")
    rounds = []
    for i in range(options.rounds):
        result = {side: last_json(run(command).stdout) for side, command in sides.items()}
        ratio = result["stretto"]["tokens_per_s"] / result["ddp"]["tokens_per_s"]
        rounds.append({**result, "ratio": ratio})
        print(
            f"round {i + 1}: Stretto {result['stretto']['tokens_per_s']:.0f} tokens/s, PyTorch DDP {result['ddp']['tokens_per_s']:.0f}, "
            f"ratio {ratio:.2f} (at most {bound(**result):.2f}), GEMM share {result['stretto']['gemm_share']:.2f}",
            flush=True,
        )

    def median(get):
        return statistics.median(get(each) for each in rounds)

    summary = {
        "machine": machine,
        "dtype": options.dtype,
        "stretto_tokens_per_s": median(lambda r: r["stretto"]["tokens_per_s"]),
        "ddp_tokens_per_s": median(lambda r: r["ddp"]["tokens_per_s"]),
        "ratio": median(lambda r: r["ratio"]),
        "bound": median(lambda r: bound(r["stretto"], r["ddp"])),
        "gemm_share": median(lambda r: r["stretto"]["gemm_share"]),
        "gemm_gflops_per_rank": median(lambda r: r["stretto"]["gemm_gflops_per_rank"]),
        "torch": rounds[0]["ddp"]["torch"],
        "rounds": rounds,
    }
    print(
        f"median: Stretto {summary['stretto_tokens_per_s']:.0f} tokens/s, PyTorch DDP {summary['ddp_tokens_per_s']:.0f}, "
        f"ratio {summary['ratio']:.2f} (wanted {WANTED[options.dtype]}; at most {summary['bound']:.2f}, if nothing but the products with "
        f"weights took time); GEMM share {summary['gemm_share']:.2f} of {summary['gemm_gflops_per_rank']:.0f} GFLOP/s a rank"
    )
    if options.json:
        write_json(options.json, summary)
    if options.dtype == "bf16" and "avx512_bf16" not in cpu_field("flags").split():
        print("This processor has no AVX512_BF16, so that no ratio is required of bf16.")
        return 0
    return 0 if summary["ratio"] >= WANTED[options.dtype] else 1


if __name__ == "__main__":
    sys.exit(main())
