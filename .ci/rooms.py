#!/usr/bin/env python3
"""The rules of the rooms (CONTRIBUTING.md): no folder of src/ grows too large, no room includes one above it, and only the rooms that
are there for it name UCX, NCCL, CUDA or MPI. Comments and texts do not count. Prints what breaks a rule and exits 1."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MOST_FILES = 20
ROOMS = ["core", "device", "transport", "collectives", "overlap", "layers"]  # each may include those before it
# Within collectives/: each part may include those before it.
PARTS = ["plan", "plans", "proof", "simulation", "selection", "ledger", "execution", "job", "calls", "communicator",
         "calibration", "launch"]
FOREIGN = {  # who may name what, by the path's beginning
    "UCX": (r"\b(ucp|ucs|uct)_\w+|<uc[pst]/", ["src/transport/ucx/"]),
    "NCCL": (r"\b\w*(?:nccl|Nccl|NCCL)\w*\b", ["src/transport/nccl/", "src/transport/gpu/", "src/interop/nccl/", "src/interop/torch/",
                                                  "perf/tools/perf/peers/", "include/stretto/method.hpp"]),
    "CUDA": (r"\bcuda[A-Z]\w*|\bcublas\w*|\bcudnn\w*|<cuda|<cudnn|<cublas", ["src/device/", "src/transport/nccl/", "src/interop/nccl/",
                                                                                    "perf/tools/perf/peers/"]),
    "MPI": (r"\bMPI_\w+|<mpi\.h>", ["src/interop/mpi/", "include/stretto/mpi.hpp", "perf/tools/perf/peers/", "perf/comparisons/peers/",
                                         "examples/gpt/main.cpp"]),
}
PUBLIC_NAMES = r"Algorithm::nccl|Device::cuda|STRETTO_\w+"  # users say them, so any room may


def code_of(path):
    """A file's text without comments and, but for includes, without what stands between quotation marks."""
    text = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
    lines = []
    for line in text.splitlines():
        line = re.sub(r"//.*", "", line) if '"' not in line else re.sub(r'^((?:[^"/]|"(?:[^"\\]|\\.)*"|/(?!/))*)//.*', r"\1", line)
        lines.append(line if line.lstrip().startswith("#") else re.sub(r'"(?:[^"\\]|\\.)*"', '""', line))
    return lines


def may_include(path, included):
    here, there = path.split("/"), included.split("/")
    room = here[1] if here[0] == "src" else here[0]
    if room in ROOMS and there[0] in ROOMS:
        if ROOMS.index(there[0]) > ROOMS.index(room):
            return False
        if room == there[0] == "collectives" and here[2] in PARTS and there[1] in PARTS:
            return PARTS.index(there[1]) <= PARTS.index(here[2])
        return True
    if path == "perf/gpu/gpu_kernels.cpp":  # collectives' own kernels on a GPU are not among the public headers
        return there[0] == "device" or there[0] not in ROOMS
    if path.startswith("src/interop/c/") and there[0] == "core":  # the C interface is part of the library, and fails as it does
        return True
    # Doors, examples and tools see the public headers and what is their own.
    return there[0] not in ROOMS and (there[0] != "interop" or room == "interop")


def sources():
    for folder in ("src", "include", "perf", "examples"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".cpp", ".hpp", ".h", ".c", ".cu", ".cuh"):
                yield path


def main():
    broken = []
    for folder in sorted({path.parent for path in (ROOT / "src").rglob("*") if path.is_file()}):
        files = [path for path in folder.iterdir() if path.is_file() and path.name != "__pycache__"]
        if len(files) > MOST_FILES:
            broken.append(f"{folder.relative_to(ROOT)} has {len(files)} files of its own; at most {MOST_FILES} are found again.")
    for path in sources():
        name = path.relative_to(ROOT).as_posix()
        for number, line in enumerate(code_of(path), 1):
            include = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            if include and not may_include(name, include[1]):
                broken.append(f"{name}:{number} includes {include[1]}, which is of a room above it or hidden from it.")
            plain = re.sub(PUBLIC_NAMES, "", line)
            for what, (pattern, homes) in FOREIGN.items():
                if re.search(pattern, plain) and not name.startswith(tuple(homes)) and not (include and "stretto/mpi.hpp" in line):
                    broken.append(f"{name}:{number} names {what}: {line.strip()[:100]}")
    print("\n".join(broken))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
