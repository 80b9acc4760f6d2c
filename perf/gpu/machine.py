"""The machine of ./dev gpu run: its GPU as the library sees it, its processor, and the versions of libraries."""
import importlib.metadata
import platform
import re
import subprocess
import sys

from perf.comparisons.programs import cores, processor
from perf.gpu import programs as gpu_programs

PACKAGES = ("torch", "triton", "nvidia-cublas", "nvidia-cudnn-cu13", "nvidia-nccl-cu13", "nvidia-cuda-nvrtc")
GPU = re.compile(r"^GPU\n  (.+), compute capability .+\n  number \d+ of the \d+ here, (\S+)$", re.M)
NO_GPU = re.compile(r"^GPU\n  (.+)$", re.M)
PARTS = re.compile(r"^  with (CUDA|NCCL|cuDNN) +(.+)$", re.M)


def of_the_driver():
    query = "driver_version,memory.total,clocks.max.sm,clocks.max.memory,power.limit"
    try:
        done = subprocess.run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    words = [word.strip() for word in done.stdout.partition("\n")[0].split(",")]
    return dict(zip(query.split(","), words)) if len(words) == len(query.split(",")) else {}


def packages():
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    return found


def machine(programs, log):
    """The machine as JSON. Exits with an error if the library sees no GPU, since no step could run."""
    info = gpu_programs.run([programs.path("stretto-info")], programs.environment(), log, 60)
    if info.status != 0:
        sys.exit(f"error: {info.sentence('stretto-info')}; no step can run then.")
    gpu = GPU.search(info.text)
    if gpu is None:
        why = NO_GPU.search(info.text)
        sys.exit(f"error: the library sees no GPU; stretto-info says: {why[1] if why else 'nothing about GPUs'}")
    return {"gpu": gpu[1], "uuid": gpu[2], **of_the_driver(), "cpu": processor(), "cores": cores(),
            "kernel": platform.release(), "stretto": dict(PARTS.findall(info.text)), "packages": packages(),
            "libraries": gpu_programs.cuda_directories()}


def short(machine):
    """Tells the figures of one machine from those of another."""
    return f"{machine['uuid'][:12]}, driver {machine.get('driver_version', 'unknown')}"
