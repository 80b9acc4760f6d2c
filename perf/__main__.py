"""Measures the library beside others, and beside what the machine allows. What a comparison needs is built and installed first. Each has
--help; most have --json for the figures, --from to judge those of an earlier run, and --write-docs for the section of a page.
"""
import argparse
import functools
import importlib
import os
import subprocess
import sys

from perf.comparisons import harness, namespaces
from perf.comparisons.programs import BIN, ROOT
from perf.pages import collectives as page

TORCH2 = ROOT / ".cache/torch2/bin/python"
# By name: module, targets to build, what ./dev deps installs, and what is measured.
COMMANDS = {
    "train": ("train", "train_speed", "torch2", "training speed beside PyTorch DDP, in turn"),
    "ddp": ("ddp_network", "train_speed", "peers", "the same between two hosts over a link of 300 Mb/s (root)"),
    "slow-links": ("slow_links", "stretto-train", "text", "time to a loss over slow links, of optimizers and rounds that send less (root)"),
    "convergence": ("convergence", "stretto-train", "text", "where training ends with quantized ZeRO-3 and in 16 bits"),
    "old-weights": ("old_weights", "stretto-train", "text", "where training ends with pipelines that are never emptied"),
    "saving": ("saving", "train_speed", "", "steps while checkpoints are written"),
    "relayout": ("relayout", "relayout_speed", "", "another layout of a training in memory beside a checkpoint that is saved and loaded"),
    "offload": ("offload", "train_speed file_speed", "", "steps whose optimizer state lies in files"),
    "larger": ("larger", "stretto-train", "text", "a model three times as large as the memory that its ranks may have (root)"),
    "replicated-state": ("replicated_state", "train_speed", "", "steps after which each rank's state is kept in another one's memory"),
    "layouts": ("layouts", "train_speed pipeline_speed stretto-plan", "torch2", "ZeRO 0 to 3 and PyTorch FSDP2, on one host and between hosts; pipeline "
                "schedules and PyTorch's 1F1B (root, or --only one-host, --only pipelines); with --predict, predicted steps beside measured ones"),
    "long": ("long", "ring_attention_speed train_speed stretto-train", "torch2", "long sequences: balance and overlap of ring attention, Ulysses, "
             "sequence parallelism, length, PyTorch's ring attention"),
    "overlap": ("overlap", "stretto-perf", "", "how much of communication is hidden behind computation (root, or --no-sockets)"),
    "plans": ("step_plans", "stretto-plan", "", "the planner's table of steps on simulated clusters"),
    "published": ("published", "stretto-plan", "", "the layout planner's predictions beside published training runs"),
    "host": ("host", "stretto-perf host_limit", "", "collectives on one host beside Open MPI, MPICH and Gloo, in turn"),
    "collectives": ("", "stretto-perf", "", "all of them beside MPI and Gloo, as a page; takes the flags of stretto-perf all"),
    "selection": ("selection", "stretto-perf", "", "how good the library's choices are (root, or --layouts 0)"),
    "scale": ("scale", "stretto-plan", "", "the tables of docs/scale.md"),
    "moves": ("moves", "move_speed", "", "moves of a matrix between hosts beside what links allow (root)"),
    "dispatch": ("dispatch", "dispatch_speed", "", "functions of a controller's program beside a loop without a controller"),
    "servers": ("servers", "server_speed zmq_server stretto-perf", "zmq", "parameter servers beside ZeroMQ, and between hosts beside what links allow (root)"),
    "mpi": ("mpi_door", "stretto-mpi-openmpi stretto-mpi-mpich", "", "an MPI program with and without libstretto-mpi.so, under Open MPI and MPICH"),
    "hosts": ("hosts", "stretto-perf", "", "collectives between hosts beside a TCP stream (root)"),
    "netlab": ("netlab_report", "stretto-perf", "", "all-reduce over 4 hosts beside its bound, Open MPI, Gloo and the link model (root)"),
    "startup": ("startup_and_idle", "startup_and_idle stretto-train", "", "what it costs to start ranks"),
    "idle": ("startup_and_idle", "startup_and_idle", "", "what ranks cost that do nothing"),
    "kernels": ("kernels", "kernel_speed attention_speed quantize_speed", "", "kernels of training beside plain loops over as much memory, attention "
                "beside products, quantization beside a copy"),
    "quantization": ("quantization", "stretto-perf", "", "from which bandwidth on it no longer pays"),
    "torch": ("torch_door", "stretto", "torch2", "torch.distributed over Stretto and over Gloo"),
}


def collectives(words):
    figures, target = ROOT / "runs/collectives.json", ROOT / "runs/collectives.html"
    figures.parent.mkdir(exist_ok=True)
    subprocess.run([BIN / "stretto-perf", "all", "--nproc", "2", "--vs", "mpi,gloo", "-N", "5", "-b", "8", "-e", "64M", "-f", "8", "--json", figures,
                    *words], check=True)
    page.main([str(figures), "-o", str(target)])


def prepare(targets, needs, with_door):
    """Installs and builds, unless the caller has: a process that this one becomes, or a test."""
    if os.environ.setdefault("PERF_PREPARED", "") != "yes":
        os.environ["PERF_PREPARED"] = "yes"
        door = [[TORCH2, "-m", "pip", "install", "--quiet", "--force-reinstall", "--no-deps", "src/interop/torch"]]
        for command in ([["./dev", "deps", needs]] if needs else []) + [["./dev", "build", *targets.split()]] + door * with_door:
            if status := subprocess.run(command, cwd=ROOT).returncode:
                sys.exit(status)


def main():
    parser = argparse.ArgumentParser(prog="./dev perf", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="name", required=True, metavar="COMPARISON")
    for name, (*_, text) in COMMANDS.items():
        commands.add_parser(name, help=text, add_help=False)
    name, words = parser.parse_args(sys.argv[1:2]).name, sys.argv[2:]
    module, targets, needs, _ = COMMANDS[name]
    measures = not {"-h", "--help", "--from"} & {word.split("=")[0] for word in words}
    ready = functools.partial(prepare, targets, "" if "--predict" in words else needs, name == "torch") if measures else lambda: None
    if name == "torch":  # it imports PyTorch
        ready()
        if not os.environ.get("PERF_PYTHON"):
            python = str(TORCH2 if TORCH2.exists() else "/usr/bin/python3")
            os.execve(python, [python, "-B", "-m", "perf", *sys.argv[1:]], {**os.environ, "PERF_PYTHON": python})
    if not module:
        ready()
        return collectives(words)
    importlib.import_module(f"perf.comparisons.{module}")
    return harness.COMPARISONS[name].main(words, ready)


if __name__ == "__main__":
    namespaces.exit_with(main)
