#!/usr/bin/env python3
"""Training speed against PyTorch DDP over Gloo: the same model, 2 ranks of 1 thread, the two timed in turn.

Prints medians and the ratio of each round; exits 1 where Stretto falls short of the wanted ratio. With --dtype bf16 the wanted
ratio holds where the processor has AVX512_BF16; elsewhere the figures are printed and nothing is asked of them.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

PERF = pathlib.Path(__file__).resolve().parent
WANTED = {"fp32": 1.25, "bf16": 2.0}


def run(command):
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(output.strip().splitlines()[-1])


def cpu(field):
    for line in open("/proc/cpuinfo"):
        if line.startswith(field):
            return line.split(":", 1)[1].strip()
    return ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(PERF.parent / "build/bin/train_speed"))
    parser.add_argument("--dtype", choices=sorted(WANTED), default="fp32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    steps = ["--steps", str(options.steps), "--warmup", "6", "--dtype", options.dtype]
    sides = {
        "stretto": [options.program, *steps],
        "ddp": ["/usr/bin/python3", str(PERF / "peers/ddp_gpt.py"), *steps],
    }

    print(f"{cpu('model name')}; 6 layers, 384 wide, 6 heads, 256 tokens, vocabulary 65, 6 sequences a rank, 2 ranks, {options.dtype}")
    rounds = []
    for i in range(options.rounds):
        result = {side: run(command) for side, command in sides.items()}
        ratio = result["stretto"]["tokens_per_s"] / result["ddp"]["tokens_per_s"]
        rounds.append({**result, "ratio": ratio})
        print(
            f"round {i + 1}: Stretto {result['stretto']['tokens_per_s']:.0f} tokens/s, PyTorch DDP {result['ddp']['tokens_per_s']:.0f}, "
            f"ratio {ratio:.2f}, GEMM share {result['stretto']['gemm_share']:.2f}",
            flush=True,
        )

    def median(get):
        return statistics.median(get(each) for each in rounds)

    summary = {
        "machine": cpu("model name"),
        "dtype": options.dtype,
        "stretto_tokens_per_s": median(lambda r: r["stretto"]["tokens_per_s"]),
        "ddp_tokens_per_s": median(lambda r: r["ddp"]["tokens_per_s"]),
        "ratio": median(lambda r: r["ratio"]),
        "gemm_share": median(lambda r: r["stretto"]["gemm_share"]),
        "gemm_gflops_per_rank": median(lambda r: r["stretto"]["gemm_gflops_per_rank"]),
        "torch": rounds[0]["ddp"]["torch"],
        "rounds": rounds,
    }
    print(
        f"median: Stretto {summary['stretto_tokens_per_s']:.0f} tokens/s, PyTorch DDP {summary['ddp_tokens_per_s']:.0f}, "
        f"ratio {summary['ratio']:.2f} (wanted {WANTED[options.dtype]}); GEMM share {summary['gemm_share']:.2f} of "
        f"{summary['gemm_gflops_per_rank']:.0f} GFLOP/s a rank"
    )
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(summary, indent=1) + "\n")
    if options.dtype == "bf16" and "avx512_bf16" not in cpu("flags").split():
        print("This processor has no AVX512_BF16: bf16 is not held to its ratio here.")
        return 0
    return 0 if summary["ratio"] >= WANTED[options.dtype] else 1


if __name__ == "__main__":
    sys.exit(main())
