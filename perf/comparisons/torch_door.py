"""Compares torch.distributed over Stretto and over Gloo, in the same processes and in turn: all_reduce of f32 sums, and a training
step of a GPT by DistributedDataParallel with few and with many tokens a step (the fewer tokens, the more of the step is
communication). Stretto's sums are measured in symmetric memory as well (stretto_torch.symmetric_memory), where its buckets lie. The
last column is DistributedDataParallel's step with a hook that communicates nothing: no backend can be faster. 2 ranks of one thread.

Prints medians and ratios, and exits 1 if Stretto falls short. It is asked to sum 1 MiB of ordinary memory at least 3 times as fast as
Gloo. Wherever Gloo's step is more than 1.1 times as long as the one without communication, Stretto's step must be 1.1 times as fast.
"""
import contextlib
import os
import statistics
import sys
import time

from perf.comparisons.peers import gpt
from perf.comparisons.programs import ROOT, add_outputs, cores, parser_of, read_json, write_json
from perf.pages.text import DocsSection, markdown_table, rounds_text, size_text

import torch
import torch.distributed as dist
import torch.multiprocessing

sys.path.insert(0, str(ROOT / "build/torch"))
import stretto_torch

SIZES = [8, 1 << 10, 64 << 10, 1 << 20, 16 << 20]  # bytes
SECTION = DocsSection("./dev perf torch")
WANTED_SUM, WANTED_AT, WANTED_STEP = 3.0, 1 << 20, 1.1


def sides_of(groups):
    """The timed sides: each a group, and the context in which its memory is made."""
    ordinary = contextlib.nullcontext
    return {"stretto": (groups["stretto"], ordinary), "symmetric": (groups["stretto"], stretto_torch.symmetric_memory),
            "gloo": (groups["gloo"], ordinary)}


def time_sums(groups, size, rounds, seconds):
    """Microseconds of each side's all_reduce in each round: the mean of a loop on the slower rank."""
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
            if turn == 0:  # finds the number of iterations that last that long
                loops[name] = max(3, min(10000, int(seconds / each.item())))
            else:
                times[name].append(1e6 * each.item())
    return times


def no_communication(_, bucket):
    done = torch.futures.Future()
    done.set_result(bucket.buffer().div_(2))  # the averaging that DistributedDataParallel leaves to hooks
    return done


def time_steps(groups, shape, options):
    """Milliseconds of each side's training step, and of one without communication, in each round: the median of a few steps."""
    options.seq_length = shape[1]
    sides = {}
    for name in ["stretto", "gloo", "none"]:
        torch.manual_seed(0)
        model = torch.nn.parallel.DistributedDataParallel(gpt.Gpt(options), gradient_as_bucket_view=True,
                                                          process_group=groups["gloo" if name == "gloo" else "stretto"])
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
            if turn > 0:  # the first round warms up: DDP rebuilds its buckets after the first step
                times[name].append(1e3 * statistics.median(seconds))
    return times, parameters


def be_rank(rank, options, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("stretto", rank=rank, world_size=2)
    groups = {"stretto": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    result = {"torch": torch.__version__, "cores": cores(), "rounds": options.rounds, "all_reduce": {}}
    for size in SIZES:
        result["all_reduce"][size] = time_sums(groups, size, options.rounds, options.seconds)
    result["steps"] = {}
    for shape in options.shapes:
        result["steps"]["{} x {}".format(*shape)], result["parameters"] = time_steps(groups, shape, options)
    if rank == 0:
        write_json(options.json, result)
    dist.barrier()
    dist.destroy_process_group()


def compared(what, unit, times):
    """Cells of a row, and by side how many times as fast as Gloo it is."""
    gloo = statistics.median(times["gloo"])
    cells, faster = [what, f"{gloo:.1f} {unit}"], {}
    for side in [each for each in ("stretto", "symmetric") if each in times]:
        ratios = [theirs / ours for ours, theirs in zip(times[side], times["gloo"])]
        median = statistics.median(times[side])
        faster[side] = gloo / median
        cells.append(f"{median:.1f} {unit} ({faster[side]:.2f}; {min(ratios):.2f} to {max(ratios):.2f})")
    return cells, faster


def report(result):
    """A section of the page, and whether Stretto is as fast as is asked."""
    fast = True
    sums, steps = [], []
    for size, times in result["all_reduce"].items():
        cells, faster = compared(f"all_reduce, {size_text(int(size))}", "us", times)
        sums.append(cells)
        fast &= int(size) != WANTED_AT or faster["stretto"] >= WANTED_SUM
    for tokens, times in result["steps"].items():
        cells, faster = compared(tokens, "ms", times)
        none = statistics.median(times["none"])
        most = statistics.median(times["gloo"]) / none
        steps.append([*cells, f"{none:.1f} ms ({most:.2f})"])
        fast &= most < WANTED_STEP or faster["stretto"] >= WANTED_STEP
    return "\n".join([f"PyTorch {result['torch']}, 2 ranks of one thread, {result['cores']} cores; {rounds_text(result['rounds'])}, the sides in turn. "
                      "In brackets: Gloo's time over this one, of the medians; then its range over the rounds.", "",
                      *markdown_table(["", "Gloo", "Stretto", "in symmetric memory"], sums), "",
                      f"Steps of a GPT of {result['parameters'] / 1e6:.1f} M parameters, by tokens:", "",
                      *markdown_table(["", "Gloo", "Stretto", "no communication"], steps)]), fast


def main():
    parser = parser_of("torch", __doc__)
    shape = dict(layers=6, hidden=384, heads=6, vocab=65, steps=5)
    for name, value in shape.items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=value)
    parser.add_argument("--tokens", default="6x256,1x64,1x16", help="tokens of a rank's step, batch x sequence (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="length of a loop of all_reduce (default %(default)s)")
    add_outputs(parser, "torch_door", "docs/pytorch.md")
    options = parser.parse_args()
    try:
        options.shapes = [tuple(map(int, each.split("x", 1))) for each in options.tokens.split(",")]
    except ValueError:
        parser.error(f"--tokens {options.tokens}: give batch x sequence, like 6x256,1x64.")
    if options.earlier:
        result = read_json(options.earlier)
    else:
        wanted = gpt.fastest_environment()
        if any(os.environ.get(name) != value for name, value in wanted.items()):
            os.execve(sys.executable, [sys.executable, "-B", "-m", __spec__.name, *sys.argv[1:]], {**os.environ, **wanted})
        torch.multiprocessing.spawn(be_rank, (options, gpt.free_port()), nprocs=2)
        result = read_json(options.json)
    section, fast = report(result)
    print(section)
    if options.write_docs:
        SECTION.replace(options.write_docs, section)
    if not fast:
        print(f"\nAsked: all_reduce of {size_text(WANTED_AT)} {WANTED_SUM} times as fast, the step {WANTED_STEP} times.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
