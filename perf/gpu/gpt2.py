"""Times a training step of GPT-2 124M in bf16 on one GPU: Stretto (perf/comparisons/train_speed.cpp) and PyTorch with torch.compile
and its own scaled_dot_product_attention, in turn; and measures the best rate of matrix products that PyTorch reaches.

PyTorch trains in two modes, and the faster one counts: parameters in f32 under autocast, as is usual, and parameters in bf16, which
AdamW then updates in bf16. Stretto keeps bf16 parameters and f32 masters. Both clip the norm of the gradient. The vocabulary is
padded from 50257 to a multiple of 128, as is usual.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import torch
from torch import nn
from torch.nn import functional

from perf.comparisons.peers import gpt
from perf.comparisons.programs import BIN

TIMEOUT = 120  # seconds; a run of Stretto takes a small part of that
MODEL = {"layers": 12, "hidden": 768, "heads": 12, "seq_length": 1024, "vocab": 50304, "batch": 32}


class Clock:
    """Seconds by the device's clock; on a CPU, which serves to try this file only, by the host's."""

    def __init__(self, device):
        self.on_gpu = device == "cuda"

    def __call__(self, function):
        if not self.on_gpu:
            start = time.perf_counter()
            function()
            return time.perf_counter() - start
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        function()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e-3


class Training:
    """PyTorch's model and optimizer in one mode; made and compiled once."""

    def __init__(self, mode, options):
        torch.manual_seed(0)
        self.options = options
        self.clock = Clock(options.device)
        model = gpt.Gpt(options, gpt.FusedBlock).to(options.device)
        model.positions = model.positions.to(options.device)
        for block in model.blocks:
            block.mask = None  # used by the attention on CPUs only
        if mode == "bf16":
            model = model.to(torch.bfloat16)
        self.autocast = mode == "autocast"
        self.parameters = list(model.parameters())
        groups = [{"params": [p for p in self.parameters if p.dim() >= 2], "weight_decay": 0.1},
                  {"params": [p for p in self.parameters if p.dim() < 2], "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), fused=options.device == "cuda")
        self.model = torch.compile(model) if options.compile else model
        shape = (options.batch, options.seq_length)
        self.inputs, self.targets = (torch.randint(options.vocab, shape, device=options.device) for _ in range(2))
        self.seconds(options.warmup)

    def step(self):
        with torch.autocast(self.options.device, dtype=torch.bfloat16, enabled=self.autocast):
            loss = self.model(self.inputs, self.targets)
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        loss.item()

    def seconds(self, steps):
        return statistics.median(self.clock(self.step) for _ in range(steps))

    def seconds_after_others(self, steps):
        self.seconds(2)  # refills its caches and raises the clocks
        return self.seconds(steps)


def random(*shape, device):
    return torch.randn(*shape, device=device, dtype=torch.bfloat16)


def matrix_rate(device, size=8192):
    """The best FLOP/s of a few products of random numbers, since zeros are multiplied faster."""
    a, b = random(size, size, device=device), random(size, size, device=device)
    clock = Clock(device)

    def ten():
        for _ in range(10):
            a @ b.t()

    ten()
    return 10 * 2 * size**3 / min(clock(ten) for _ in range(5))


def attention_times(options, calls=10):
    """Microseconds a call of PyTorch's attention alone, forward and backward, to compare with perf/gpu/gpu_kernels.cpp."""
    shape = (options.batch, options.heads, options.seq_length, options.hidden // options.heads)
    inputs = [random(*shape, device=options.device).requires_grad_() for _ in range(3)]
    gradient = random(*shape, device=options.device)
    clock = Clock(options.device)
    results = []

    def forward():
        results[:] = (functional.scaled_dot_product_attention(*inputs, is_causal=True) for _ in range(calls))

    def backward():
        for result in results:
            torch.autograd.grad(result, inputs, gradient)  # not accumulated: the additions would be timed as well

    times = [(clock(forward), clock(backward)) for _ in range(10)]
    return {which: statistics.median(seconds) / calls * 1e6 for which, seconds in zip(("forward", "backward"), zip(*times))}


def stretto(options, steps, warmup):
    words = [options.program, "--nproc", "1", "--device", options.device, "--dtype", "bf16", "--steps", str(steps),
             "--warmup", str(warmup)]
    for flag in ("layers", "hidden", "heads", "seq_length", "vocab", "batch"):
        words += ["--" + flag.replace("_", "-"), str(getattr(options, flag))]
    environment = dict(os.environ)
    if options.library_path:
        environment["LD_LIBRARY_PATH"] = options.library_path
    try:
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired as error:
        sys.stderr.write((error.stderr or b"").decode(errors="replace"))
        sys.exit(f"error: '{' '.join(words)}' did not end within {TIMEOUT} s.")
    sys.stderr.write(done.stderr)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines() or ["nothing"]
        sys.exit(f"error: '{' '.join(words)}' ended with status {done.returncode}: {said[-1]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


class Peers:
    """PyTorch's modes of training. A mode that fails is left out from then on, and the reason is kept."""

    def __init__(self, options):
        self.modes, self.errors = {}, {}
        for mode in options.modes.split(","):
            self.modes[mode] = self.attempt(mode, Training, mode, options)

    def attempt(self, mode, function, *arguments):
        try:
            return function(*arguments)
        except Exception as error:  # compilers, drivers and memory raise many kinds
            self.errors[mode] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            print(f"{mode} is left out: {self.errors[mode]}", flush=True)
        return None

    def step_ms(self, steps):
        times = {}
        for mode, training in self.modes.items():
            seconds = training and self.attempt(mode, training.seconds_after_others, steps)
            if seconds:
                times["torch_" + mode] = seconds * 1e3
            else:
                self.modes[mode] = None  # frees its memory
        return times


def summary(options, rounds, parameters, errors):
    """Medians of the sides that are in the last round, and so in all: a side that fails is left out from then on."""
    sides = {side: statistics.median(each[side] for each in rounds) for side in rounds[-1]}
    flops_per_token = 6 * parameters + 12 * options.layers * options.hidden * options.seq_length
    best = min((side for side in sides if side != "stretto"), key=sides.get, default=None)
    return {"parameters": parameters, "flops_per_step": flops_per_token * options.batch * options.seq_length, "step_ms": sides,
            "best_peer": best, "times_as_fast": statistics.median(each[best] / each["stretto"] for each in rounds) if best else None,
            "rounds": rounds, "errors": errors}


def main():
    parser = argparse.ArgumentParser(prog="python3 -m perf.gpu.gpt2", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(BIN / "train_speed"))
    parser.add_argument("--library-path", default="", help="LD_LIBRARY_PATH of the program, but not of PyTorch")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=8)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--modes", default="autocast,bf16")
    for name, value in MODEL.items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=value)
    options = parser.parse_args()
    figures = {"model": {name: getattr(options, name) for name in MODEL}, "torch": torch.__version__}

    def keep(found):
        figures.update(found)
        if options.json:  # after each figure: the time on the machine may end at any moment
            new = options.json.with_suffix(".new")
            new.write_text(json.dumps(figures, indent=1) + "\n")
            new.replace(options.json)

    stretto(options, 2, 1)  # fails, if it does, before PyTorch has taken minutes
    torch.set_float32_matmul_precision("high")
    keep({"torch_matrix_flops_a_second": matrix_rate(options.device, 8192 if options.device == "cuda" else 256)})
    keep({"torch_attention_us": attention_times(options)})
    peers = Peers(options)
    rounds = []
    for number in range(options.rounds):
        if options.device == "cuda":
            torch.cuda.empty_cache()
        ours = stretto(options, options.steps, options.warmup)
        rounds.append({"stretto": ours["step_ms"], **peers.step_ms(options.steps)})
        print(f"round {number + 1}: " + ", ".join(f"{side} {ms:.1f} ms" for side, ms in rounds[-1].items()), flush=True)
        keep(summary(options, rounds, ours["parameters"], peers.errors))
    best = figures["best_peer"]
    if best is None:
        sys.exit(f"error: PyTorch could train in none of the modes {options.modes}: {'; '.join(peers.errors.values())}")
    print(f"median: Stretto {figures['step_ms']['stretto']:.1f} ms a step, {best} {figures['step_ms'][best]:.1f} ms, "
          f"{figures['times_as_fast']:.2f} times as fast")


if __name__ == "__main__":
    main()
