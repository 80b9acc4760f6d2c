"""The machine that ./dev gpu run is on: its GPU as the library sees it, its processor, and the versions of libraries."""
import importlib.metadata
import os
import platform
import re
import subprocess
import sys

import gpu_programs

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
    """As JSON; ends the program where the library has no GPU: no step could tell anything."""
    info = gpu_programs.run([programs.path("stretto-info")], programs.environment(), log, 60)
    if info.status != 0:
        sys.exit(f"error: {info.sentence('stretto-info')}; no step can run like that.")
    gpu = GPU.search(info.text)
    if gpu is None:
        why = NO_GPU.search(info.text)
        sys.exit(f"error: the library sees no GPU; stretto-info says: {why[1] if why else 'nothing of it'}")
    with open("/proc/cpuinfo") as file:
        cpu = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "unknown processor")
    return {"gpu": gpu[1], "uuid": gpu[2], **of_the_driver(), "cpu": cpu, "cores": len(os.sched_getaffinity(0)),
            "kernel": platform.release(), "stretto": dict(PARTS.findall(info.text)), "packages": packages(),
            "libraries": gpu_programs.cuda_directories()}


def short(machine):
    """What tells the figures of one machine from another's."""
    return f"{machine['uuid'][:12]}, driver {machine.get('driver_version', 'unknown')}"
