"""Trains a model whose values, gradients and optimizer state are three times as large as the memory that its ranks may have.

All three lie in files (stretto-train --offload), and the ranks run in a memory cgroup with a limit of so many MiB for each of them; that
takes root and a file system of cgroups that may be written to. The same steps then run with everything in memory and no limit. Exits 1 if
a loss differs in any bit, or if the kernel saw more than the limit resident in a rank.
"""
import contextlib
import json
import os
import pathlib
import signal
import sys
import tempfile
import time

from perf.comparisons.harness import Comparison, Table, flag
from perf.comparisons.programs import ROOT, last_json, run
from perf.pages.text import Verdict

RANKS, TOKENS, BYTES, TIMES = 2, 64, 18, 3  # 18 bytes of a parameter in bf16: values 2, gradients 4, master weight and moments 12
MIB = 1 << 20


def parameters_of(layers, width):
    return layers * (12 * width**2 + 13 * width) + (256 + TOKENS + 2) * width


@contextlib.contextmanager
def memory_limit(limit):
    """The folder of a cgroup whose processes may have so many bytes of memory, page cache included."""
    first = pathlib.Path("/sys/fs/cgroup/memory")
    root, name = (first, "memory.limit_in_bytes") if first.is_dir() else (pathlib.Path("/sys/fs/cgroup"), "memory.max")
    group = root / f"stretto-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        sys.exit(f"error: no memory cgroup can be made in {root}: {error.strerror}; run this as root where cgroups may be written to")
    try:
        try:
            (group / name).write_text(str(limit))
        except OSError as error:
            sys.exit(f"error: {group / name} cannot be written: {error.strerror}; the cgroup above must give memory to its children "
                     f"(write +memory to {root / 'cgroup.subtree_control'})")
        yield group
    finally:
        end_all(group)
        group.rmdir()


def end_all(group):
    """Kills what still runs in a cgroup, such as ranks behind a time limit, and waits until it is empty."""
    for _ in range(100):
        left = (group / "cgroup.procs").read_text().split()
        if not left:
            return
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)
        time.sleep(0.1)


# Joins the cgroup, runs a program, and prints last the bytes that the largest of its processes had resident, mapped files and shared
# memory included.
LIMITED = """
import json, os, pathlib, resource, subprocess, sys
pathlib.Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
done = subprocess.run(sys.argv[2:])
print(json.dumps({"peak_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024}))
sys.exit(done.returncode if done.returncode >= 0 else 1)
"""


def peak_of(output):
    return last_json(output)["peak_bytes"]


def train(options, words, before=()):
    with tempfile.TemporaryDirectory() as log:
        done = run([*before, options.program, "--nproc", RANKS, "--train-data", options.train_data, "--num-layers", options.layers, "--hidden-size", options.hidden,
                    "--num-attention-heads", options.hidden // 64, "--seq-length", TOKENS, "--micro-batch-size", 1, "--global-batch-size", RANKS, "--dtype", "bf16",
                    "--zero", 3, "--recompute", "full", "--train-iters", options.steps, "--sample-length", 1, "--log-dir", log, *words],
                   seconds=options.seconds, OMP_NUM_THREADS="1")
        lines = [json.loads(line) for line in (pathlib.Path(log) / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines], done.stdout


def measured(options):
    files = [word for what in ("optimizer", "gradients", "values") for word in ("--offload", f"{what}={options.directory}")]
    with memory_limit(options.limit * RANKS * MIB) as group:
        losses, output = train(options, files, [sys.executable, "-c", LIMITED, group])
    found = {"files": losses, "peak_bytes": peak_of(output), "memory": train(options, [])[0]}
    yield {**found, "parameters": parameters_of(options.layers, options.hidden), "limit_bytes": options.limit * MIB, "steps": options.steps,
           "layers": options.layers, "hidden": options.hidden}


def tables(figures):
    state = figures["parameters"] * BYTES / RANKS
    yield Table("", ["parameters", "values, gradients and state of a rank, MiB", "limit, MiB", "resident at most, MiB"],
                [[f"{figures['parameters'] / 1e6:.1f} million", f"{state / MIB:.0f}", f"{figures['limit_bytes'] / MIB:.0f}", f"{figures['peak_bytes'] / MIB:.0f}"]])


def verdicts(figures):
    times = figures["parameters"] * BYTES / RANKS / figures["limit_bytes"]
    yield Verdict(times >= TIMES, f"Values, gradients and state of a rank are {times:.2f} times its memory, wanted {TIMES} times or more.")
    same = sum(a == b for a, b in zip(figures["files"], figures["memory"]))
    yield Verdict(same == figures["steps"], f"{same} of {figures['steps']} losses have the bits of training in memory, wanted all.")
    share = figures["peak_bytes"] / figures["limit_bytes"]
    yield Verdict(share <= 1, f"The largest rank had {100 * share:.0f}% of its limit resident, wanted at most 100%.")


Comparison("larger", __doc__, measured, tables, verdicts, page="docs/larger-than-memory.md", program="stretto-train",
           about=lambda figures: f"{RANKS} ranks, bf16, AdamW, ZeRO 3, {figures['layers']} layers {figures['hidden']} wide, full recomputation, "
                                 f"{figures['steps']} steps of {RANKS * TOKENS} tokens",
           section=lambda options: options.command,
           flags=(flag("--layers", 16), flag("--hidden", 512, "their width"), flag("--limit", 144, "MiB of memory for each rank"),
                  flag("--steps", 20), flag("--seconds", 600, "that each run may take", told=False),
                  flag("--directory", tempfile.gettempdir(), "where the files are", told=False),
                  flag("--train-data", str(ROOT / "build/data/king_james.txt"), told=False)))
