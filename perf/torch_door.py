#!/usr/bin/env python3
"""torch.distributed over Stretto and over Gloo, in the same processes and in turn: all_reduce of f32 sums, and a training step
of a GPT by DistributedDataParallel, with few and many tokens to a step: the fewer, the more of the step is communication.
Stretto's sums and buckets also in symmetric memory (stretto_torch.symmetric_memory, stretto_torch.DistributedDataParallel).
Beside it stands DistributedDataParallel's step with a hook that communicates nothing, which no backend can beat. 2 ranks of
one thread.

Prints medians and ratios, and exits 1 where Stretto falls short of what is asked: all_reduce of 1 MiB at least 3 times as fast
as over Gloo, and the step 1.1 times, wherever Gloo's is more than 1.1 times as long as that without communication. The step is
held to that with its buckets in symmetric memory; with PyTorch's own class it is to be no slower than over Gloo. The sum is held
to it in ordinary memory.
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "perf"), str(ROOT / "perf/peers"), str(ROOT / "build/torch")]

import torch
import torch.distributed as dist
import torch.multiprocessing

import ddp_gpt
import marked_text
import stretto_torch

SIZES = [8, 1 << 10, 64 << 10, 1 << 20, 16 << 20]  # bytes
MARKS = "<!-- figures: perf/torch_door.py --write-docs replaces what follows -->", "<!-- end of figures -->"
WANTED_SUM, WANTED_AT, WANTED_STEP = 3.0, 1 << 20, 1.1


def size_text(size):
    for unit, name in [(1 << 20, "MiB"), (1 << 10, "KiB")]:
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def sides_of(groups):
    """What is timed: the group, and what to make its memory in."""
    ordinary = contextlib.nullcontext
    return {"stretto": (groups["stretto"], ordinary), "symmetric": (groups["stretto"], stretto_torch.symmetric_memory),
            "gloo": (groups["gloo"], ordinary)}


def time_sums(groups, size, rounds, seconds):
    """Microseconds of each side's all_reduce, by round: the mean of a loop, and of the slower rank."""
    times, tensors = {}, {}
    for name, (_, memory) in sides_of(groups).items():
        times[name] = []
        with memory():
            tensors[name] = torch.ones(size // 4)
    loops = {}
    for turn in range(rounds + 1):
        for name, (group, _) in sides_of(groups).items():
            tensor = tensors[name]
            count = loops.get(name, 10)
            dist.barrier(group)
            start = time.perf_counter()
            for _ in range(count):
                dist.all_reduce(tensor, group=group)
            each = torch.tensor((time.perf_counter() - start) / count, dtype=torch.float64)
            dist.all_reduce(each, dist.ReduceOp.MAX, group=group)
            tensor.fill_(1)
            if turn == 0:  # tells how many fit into the time
                loops[name] = max(3, min(10000, int(seconds / each.item())))
            else:
                times[name].append(1e6 * each.item())
    return times


def no_communication(_, bucket):
    done = torch.futures.Future()
    done.set_result(bucket.buffer().div_(2))  # DistributedDataParallel's own part of an average
    return done


def time_steps(groups, shape, options):
    """Milliseconds of training steps by each side, and without communication, by round: the median of some."""
    options.seq_length = shape[1]
    sides = {}
    for name in ["stretto", "symmetric", "gloo", "none"]:
        torch.manual_seed(0)
        kind = stretto_torch.DistributedDataParallel if name == "symmetric" else torch.nn.parallel.DistributedDataParallel
        model = kind(ddp_gpt.Gpt(options), process_group=groups["gloo" if name == "gloo" else "stretto"],
                     gradient_as_bucket_view=True)
        if name == "none":
            model.register_comm_hook(None, no_communication)
        sides[name] = model, torch.optim.AdamW(model.parameters(), lr=3e-4, foreach=False)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    times = {name: [] for name in sides}
    for turn in range(options.rounds + 1):
        for name, (model, optimizer) in sides.items():
            seconds = []
            for _ in range(options.steps):
                inputs, targets = torch.randint(options.vocab, shape), torch.randint(options.vocab, shape)
                start = time.perf_counter()
                model(inputs, targets).backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                seconds.append(time.perf_counter() - start)
            if turn > 0:  # the first one warms up: DDP forms its buckets anew after the first step
                times[name].append(1e3 * statistics.median(seconds))
    return times, parameters


def be_rank(rank, options, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("stretto", rank=rank, world_size=2)
    groups = {"stretto": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    cores = len(os.sched_getaffinity(0))
    result = {"torch": torch.__version__, "cores": cores, "rounds": options.rounds, "all_reduce": {}}
    for size in SIZES:
        result["all_reduce"][size] = time_sums(groups, size, options.rounds, options.seconds)
    result["steps"] = {}
    for shape in options.shapes:
        result["steps"]["{} x {}".format(*shape)], result["parameters"] = time_steps(groups, shape, options)
    if rank == 0:
        pathlib.Path(options.json).parent.mkdir(parents=True, exist_ok=True)
        pathlib.Path(options.json).write_text(json.dumps(result, indent=1) + "\n")
    dist.barrier()
    dist.destroy_process_group()


def report(result):
    """A page's section, and whether Stretto is as fast as is asked."""
    lines = [f"PyTorch {result['torch']}, 2 ranks of one thread, {result['cores']} cores; medians of {result['rounds']} rounds in "
             "turn; in brackets how many times as fast as Gloo, and that round by round.", "",
             "| | Gloo | Stretto | in symmetric memory |", "| --- | ---: | ---: | ---: |"]

    def line(what, unit, times):
        """A row; how many times as fast each side is."""
        gloo = statistics.median(times["gloo"])
        lines.append(f"| {what} | {gloo:.1f} {unit} |")
        faster = {}
        for side in ["stretto", "symmetric"]:
            median = statistics.median(times[side])
            ratios = [theirs / ours for ours, theirs in zip(times[side], times["gloo"])]
            faster[side] = gloo / median
            lines[-1] += f" {median:.1f} {unit} ({faster[side]:.2f}; {min(ratios):.2f} to {max(ratios):.2f}) |"
        return faster

    fast = True
    for size, times in result["all_reduce"].items():
        faster = line(f"all_reduce, {size_text(int(size))}", "us", times)
        fast &= int(size) != WANTED_AT or faster["stretto"] >= WANTED_SUM
    lines += ["", f"Steps of a GPT of {result['parameters'] / 1e6:.1f} M parameters, by tokens:", "",
              "| | Gloo | Stretto | buckets in symmetric memory | no communication |", "| --- | ---: | ---: | ---: | ---: |"]
    for tokens, times in result["steps"].items():
        faster = line(tokens, "ms", times)
        none = statistics.median(times["none"])
        most = statistics.median(times["gloo"]) / none
        lines[-1] += f" {none:.1f} ms ({most:.2f}) |"
        fast &= most < WANTED_STEP or (faster["symmetric"] >= WANTED_STEP and faster["stretto"] >= 1)
    return "\n".join(lines), fast


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shape = dict(layers=6, hidden=384, heads=6, vocab=65, steps=5)
    for name, value in shape.items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=value)
    parser.add_argument("--tokens", default="6x256,1x64,1x16", help="of a rank's step, batch x sequence (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="of a loop of all_reduce")
    parser.add_argument("--json", default=str(ROOT / "runs/torch_door.json"), help="where the figures go")
    parser.add_argument("--write-docs", action="store_true", help="put the figures into docs/pytorch.md")
    options = parser.parse_args()
    try:
        options.shapes = [tuple(map(int, each.split("x", 1))) for each in options.tokens.split(",")]
    except ValueError:
        parser.error(f"--tokens {options.tokens}: give batch x sequence, like 6x256,1x64.")
    wanted = ddp_gpt.fastest_environment()
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.execve(sys.executable, [sys.executable, "-B", *sys.argv], {**os.environ, **wanted})
    torch.multiprocessing.spawn(be_rank, (options, ddp_gpt.free_port()), nprocs=2)
    result = json.loads(pathlib.Path(options.json).read_text())
    section, fast = report(result)
    print(section)
    if options.write_docs:
        marked_text.replace(ROOT / "docs/pytorch.md", *MARKS, section)
    if not fast:
        print(f"\nAsked: all_reduce of {size_text(WANTED_AT)} {WANTED_SUM} times, the step {WANTED_STEP} times.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
