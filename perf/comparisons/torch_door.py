"""Compares torch.distributed over Stretto and over Gloo, in the same processes and in turn: all_reduce of f32 sums, and a training
step of a GPT by DistributedDataParallel, and by FSDP2 where PyTorch has it, with few and with many tokens a step (the fewer tokens, the
more of the step is communication). Stretto's sums are measured in symmetric memory as well (stretto_torch.symmetric_memory), where
its buckets lie; FSDP2's tensors lie in ordinary memory. The last column is DistributedDataParallel's step with a hook that communicates
nothing: no backend can be faster. 2 ranks of one thread.

Exits 1 if Stretto falls short: it is asked to sum 1 MiB of ordinary memory at least 3 times as fast as Gloo and, wherever Gloo's step is
more than 1.1 times as long as the one without communication, to make a step 1.1 times as fast.
"""
import contextlib
import os
import statistics
import sys
import time

from perf.comparisons.harness import Comparison, Table, flag
from perf.comparisons.peers import gpt
from perf.comparisons.programs import ROOT, cores, read_json, write_json
from perf.pages.text import Verdict, rounds_text, size_text

import torch
import torch.distributed as dist
import torch.multiprocessing
try:  # PyTorch 2
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard
except ImportError:
    fully_shard = None

SIZES = [8, 1 << 10, 64 << 10, 1 << 20, 16 << 20]  # bytes
WANTED_SUM, WANTED_AT, WANTED_STEP = 3.0, 1 << 20, 1.1


def time_sums(sides, size, rounds, seconds):
    """Microseconds of each side's all_reduce in each round: the mean of a loop on the slower rank. sides: each a group, and the context
    in which its memory is made."""
    times, tensors = {name: [] for name in sides}, {}
    for name, (_, memory) in sides.items():
        with memory():
            tensors[name] = torch.ones(size // 4)
    loops = {}
    for turn in range(rounds + 1):
        for name, (group, _) in sides.items():
            tensor, count = tensors[name], loops.get(name, 10)
            dist.barrier(group)
            start = time.perf_counter()
            for _ in range(count):
                dist.all_reduce(tensor, group=group)
            each = torch.tensor((time.perf_counter() - start) / count, dtype=torch.float64)
            dist.all_reduce(each, dist.ReduceOp.MAX, group=group)
            tensor.fill_(1)
            if turn == 0:  # finds the number of iterations that last that long
                loops[name] = max(3, min(10000, int(seconds / each.item())))
            else:
                times[name].append(1e6 * each.item())
    return times


def no_communication(_, bucket):
    done = torch.futures.Future()
    done.set_result(bucket.buffer().div_(2))  # the averaging that DistributedDataParallel leaves to hooks
    return done


def with_ddp(model, group):
    return torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True, process_group=group)


def with_fsdp2(model, group):
    mesh = DeviceMesh.from_group(group, "cpu")
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def time_steps(groups, way, shape, options):
    """Milliseconds of each side's training step, and by DDP of one without communication, in each round: the median of a few steps."""
    options.seq_length = shape[1]
    sides = {}
    for name in ["stretto", "gloo", "none"] if way is with_ddp else ["stretto", "gloo"]:
        torch.manual_seed(0)
        model = gpt.Gpt(options, gpt.FusedBlock if fully_shard else gpt.Block)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        model = way(model, groups["gloo" if name == "gloo" else "stretto"])
        if name == "none":
            model.register_comm_hook(None, no_communication)
        sides[name] = model, torch.optim.AdamW(model.parameters(), lr=3e-4, **({"fused": True} if fully_shard else {"foreach": False}))
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
            if turn > 0:  # the first round warms up: DDP rebuilds its buckets after the first step
                times[name].append(1e3 * statistics.median(seconds))
    return times, parameters


def be_rank(rank, options, port):
    if not fully_shard:  # PyTorch 2 has a door of its own installed
        sys.path.insert(0, str(ROOT / "build/torch"))
    import stretto_torch
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("stretto", rank=rank, world_size=2)
    groups = {"stretto": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    ordinary = contextlib.nullcontext
    sides = {"stretto": (groups["stretto"], ordinary), "symmetric": (groups["stretto"], stretto_torch.symmetric_memory),
             "gloo": (groups["gloo"], ordinary)}
    result = {"torch": torch.__version__, "cores": cores(), "rounds": options.rounds, "all_reduce": {}, "steps": {}}
    for size in SIZES:
        result["all_reduce"][size] = time_sums(sides, size, options.rounds, options.seconds)
    for name, way in {"DDP": with_ddp, **({"FSDP2": with_fsdp2} if fully_shard else {})}.items():
        for shape in options.shapes:
            result["steps"]["{}, {} x {}".format(name, *shape)], result["parameters"] = time_steps(groups, way, shape, options)
    if rank == 0:
        write_json(options.json, result)
    dist.barrier()
    dist.destroy_process_group()


def measured(options):
    torch.multiprocessing.spawn(be_rank, (options, gpt.free_port()), nprocs=2)
    yield read_json(options.json)


def faster(times, side="stretto"):
    """How many times as fast as Gloo, of the medians."""
    return statistics.median(times["gloo"]) / statistics.median(times[side])


def cells(what, unit, times):
    row = [what, f"{statistics.median(times['gloo']):.1f} {unit}"]
    for side in [each for each in ("stretto", "symmetric") if each in times]:
        ratios = [theirs / ours for ours, theirs in zip(times[side], times["gloo"])]
        row.append(f"{statistics.median(times[side]):.1f} {unit} ({faster(times, side):.2f}; {min(ratios):.2f} to {max(ratios):.2f})")
    return row


def tables(figures):
    yield Table("", ["", "Gloo", "Stretto", "in symmetric memory"],
                [cells(f"all_reduce, {size_text(int(size))}", "us", times) for size, times in figures["all_reduce"].items()])
    yield Table(f"Steps of a GPT of {figures['parameters'] / 1e6:.1f} M parameters, by tokens", ["", "Gloo", "Stretto", "no communication"],
                [[*cells(what, "ms", times), f"{statistics.median(times['none']):.1f} ms ({faster(times, 'none'):.2f})" if "none" in times else ""]
                 for what, times in figures["steps"].items()])


def verdicts(figures):
    for size, times in figures["all_reduce"].items():
        if int(size) == WANTED_AT:
            yield Verdict(faster(times) >= WANTED_SUM, f"all_reduce of {size_text(WANTED_AT)}: {faster(times):.2f} times as fast as Gloo, wanted "
                                                       f"{WANTED_SUM}")
    for what, times in figures["steps"].items():
        if "none" in times and faster(times, "none") >= WANTED_STEP:
            yield Verdict(faster(times) >= WANTED_STEP, f"steps of {what} tokens: {faster(times):.2f} times as fast, wanted {WANTED_STEP}")


def check(parser, options):
    try:
        options.shapes = [tuple(map(int, each.split("x", 1))) for each in options.tokens.split(",")]
    except ValueError:
        parser.error(f"--tokens {options.tokens}: give batch x sequence, like 6x256,1x64.")
    wanted = gpt.fastest_environment()
    if not options.earlier and any(os.environ.get(name) != value for name, value in wanted.items()):
        os.execve(sys.executable, [sys.executable, "-B", "-m", "perf", *sys.argv[1:]], {**os.environ, **wanted})


Comparison(
    "torch", __doc__, measured, tables, verdicts, check=check, page="docs/pytorch.md",
    about=lambda figures: f"PyTorch {figures['torch']}, 2 ranks of one thread; {rounds_text(figures['rounds'])}, the sides in turn. In brackets: "
                          "Gloo's time over this one, of the medians; then its range over the rounds",
    flags=(*(flag(f"--{name}", value) for name, value in dict(layers=6, hidden=384, heads=6, vocab=65, steps=5).items()),
           flag("--tokens", "6x256,1x64,1x16", "tokens of a rank's step, batch x sequence"), flag("--rounds", 5),
           flag("--seconds", 0.3, "length of a loop of all_reduce")))
