#!/usr/bin/env python3
"""The rules of the rooms (CONTRIBUTING.md): no folder of src/ grows too large, no room includes one above it, only the rooms that are
there for it name UCX, NCCL, CUDA or MPI (comments and texts do not count), no two files define types of one name, and each file of src/
has a test (docs/contributors.md).
Prints what breaks a rule and exits 1."""
import collections
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MOST_FILES = 20
ROOMS = ["core", "device", "transport", "collectives", "overlap", "server", "program", "layers", "models", "planning"]  # each may include those before it
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
                                         "apps/train/main.cpp"]),
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
    if path == "perf/gpu/collective_cases.cpp":  # collectives' own kernels on a GPU are not among the public headers
        return there[0] == "device" or there[0] not in ROOMS
    if path.startswith("src/interop/c/") and there[0] == "core":  # the C interface is part of the library, and fails as it does
        return True
    # Doors, programs, examples and tools see the public headers and what is their own.
    return there[0] not in ROOMS and (there[0] != "interop" or room == "interop")


def sources():
    for folder in ("src", "include", "apps", "perf", "examples"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".cpp", ".hpp", ".h", ".c", ".cu", ".cuh"):
                yield path


def without_own_test():
    """Files of src/ that have no test of their name, and whose header no test includes."""
    tests = [path for path in (ROOT / "tests").rglob("*") if path.suffix in (".cpp", ".hpp", ".py", ".c")]
    stems = {path.stem for path in tests}
    included = {name for path in tests for name in re.findall(r'#include "(?:stretto/)?([^"]+)\.hpp"', path.read_text())}
    for path in sorted((ROOT / "src").rglob("*.cpp")):
        name = path.relative_to(ROOT / "src").with_suffix("").as_posix()
        if f"{path.stem}_test" not in stems and not {name, path.stem} & included:
            yield f"src/{name}.cpp"


def untested():
    """What docs/contributors.md says of finding a file's test, where it does not hold."""
    listed = {}
    for line in (ROOT / "tests/tested_by.txt").read_text().splitlines():
        if not line.startswith("#"):
            folder, tests, files = line.split(":")
            listed.update({f"{folder}/{file}.cpp": tests.split() for file in files.split()})
    own = set(without_own_test())
    for file in sorted(own - set(listed)):
        yield f"{file} has no test: write one of its name, or name the one that covers it in tests/tested_by.txt."
    for file in sorted(set(listed) - own):
        yield f"tests/tested_by.txt names {file}, which is gone or has a test of its own."
    for test in sorted({test for tests in listed.values() for test in tests}):
        if not (ROOT / "tests" / test).exists():
            yield f"tests/tested_by.txt names tests/{test}, which does not exist."


SCOPE = re.compile(r"namespace\s*([\w:]*)\s*\{|(?<!<)(?<!, )\b(?:struct|class)\s+(?:STRETTO_\w+\s+)?(\w+)\b(?!\s*(?:::|<))[^;{}()=]*\{|\{|\}")
STAND_INS = {"UcxWorker"}  # of a build without UCX


def doubles():
    """Types that two files define by one name outside unnamed namespaces: the linker takes one of them for both, without a word."""
    places = collections.defaultdict(set)
    for path in sources():
        if path.relative_to(ROOT).parts[0] not in ("src", "include") or path.suffix == ".h":
            continue
        scopes = []  # names of namespaces; None of what else has braces
        for scope in SCOPE.finditer("\n".join(code_of(path))):
            if scope[0] == "}":
                scopes = scopes[:-1]
                continue
            is_namespace = scope[0].startswith("namespace")
            if scope[2] and None not in scopes and "" not in scopes:
                places["::".join([*scopes, scope[2]])].add(path.relative_to(ROOT))
            scopes.append(scope[1] if is_namespace else None)
    for name, paths in sorted(places.items()):
        if len(paths) > 1 and name.rpartition("::")[2] not in STAND_INS:
            yield f"{name} is defined in {' and '.join(map(str, sorted(paths)))}: two types of one name."


def main():
    broken = [*untested(), *doubles()]
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
