#!/usr/bin/env python3
"""Collectives on one host beside every other library: Stretto, Open MPI, MPICH and Gloo in turn, each in a program of its own
(Gloo inside stretto-perf), and what the machine allows without any library.

Prints the times and what is asked of them, writes a JSON, and exits 1 where Stretto falls short.
"""
import argparse
import datetime
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

import host_page
from host_verdicts import ALL_REDUCE, LARGEST, LIMIT_SIZES, OTHERS, falls_short, size_text

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = ROOT / "build/bin"
PREPARED_UP_TO = 4 << 10  # beyond, what is saved by preparing is not seen
# The MPIs: wrapper and launcher by names that do not depend on which of them is the system's, and the forms in which they run.
MPIS = {"openmpi": ("mpicxx.openmpi", "mpirun.openmpi"), "mpich": ("mpicxx.mpich", "mpiexec.mpich")}
FORMS = {
    "openmpi": [],  # as it comes
    "openmpi_ucx": "--mca pml ucx --mca opal_common_ucx_tls any --mca opal_common_ucx_devices any".split(),
    "openmpi_sm": "--mca coll_sm_priority 100".split(),  # where ranks share cores, it is slower by magnitudes
    "mpich": [],
}
# Variables that would make a program believe in another launcher, or change what is measured.
FOREIGN = re.compile(r"(RANK|LOCAL_RANK|WORLD_SIZE|MASTER_\w+|(OMPI|PMIX?|MPIR|SLURM|STRETTO|TORCHELASTIC)_\w+)$")


def cores():
    return len(os.sched_getaffinity(0))


def run(command):
    """What it prints; ends everything when it fails, since a comparison with a hole is none."""
    environment = {name: value for name, value in os.environ.items() if not FOREIGN.match(name)}
    words = [str(word) for word in command]
    done = subprocess.run(words, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        sys.exit(f"error: '{' '.join(words)}' ended with status {done.returncode}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def doublings(sizes):
    """The sizes as runs of which each is twice the one before: [(first, last)]."""
    runs = []
    for size in sizes:
        if runs and size == 2 * runs[-1][1]:
            runs[-1] = (runs[-1][0], size)
        else:
            runs.append((size, size))
    return runs


def compiled_loop(mpi):
    """perf/peers/mpi_host_loop.cpp, compiled for that MPI; None where it is absent."""
    compiler, launcher = MPIS[mpi]
    if not shutil.which(compiler) or not shutil.which(launcher):
        print(f"{mpi} is absent: this machine has no {compiler} or {launcher}")
        return None
    directory = ROOT / "build/perf_host"
    directory.mkdir(parents=True, exist_ok=True)
    program = directory / f"mpi_host_loop_{mpi}"
    run([compiler, "-std=c++20", "-O2", ROOT / "perf/peers/mpi_host_loop.cpp", "-o", program])
    return program


def launcher_of(form, ranks):
    mpi = form.split("_")[0]
    words = [MPIS[mpi][1], "-n", ranks]
    if mpi == "openmpi":
        words += ["--bind-to", "core"] if ranks <= cores() else ["--oversubscribe", "--bind-to", "none"]
        if os.geteuid() == 0:
            words.append("--allow-run-as-root")
    elif ranks <= cores():
        words += ["-bind-to", "core"]
    return words + FORMS[form]


class Measurement:
    def __init__(self, options):
        self.options = options
        self.seconds = 0.02 if options.quick else 0.05
        self.samples = {}  # (collective, ranks, side, size) -> microseconds, one a round
        self.limits = {}  # (ranks, what) -> microseconds, one a round
        self.wrong = set()
        self.versions = {}
        self.commands = {}
        self.loops = self.compiled_loops()

    def compiled_loops(self):
        """By form."""
        loops = {}
        for mpi in MPIS:
            if program := compiled_loop(mpi):
                loops.update({form: program for form in FORMS if form.startswith(mpi)})
        if "openmpi" in loops and "MCA pml: ucx" not in run(["ompi_info"]):
            print("Open MPI has no UCX here and is measured without")
            del loops["openmpi_ucx"]
        return loops

    def forms(self, ranks, mpi=""):
        return [form for form in self.loops if form.startswith(mpi) and (form != "openmpi_sm" or ranks <= cores())]

    def add(self, collective, ranks, side, size, us):
        self.samples.setdefault((collective, ranks, side, size), []).append(us)

    def stretto(self, collective, ranks, side, sizes):
        words = [BIN / "stretto-perf", collective, "--nproc", ranks, "-f", 2, "-w", 2, "--seconds", self.seconds, "--copies", 1]
        words += ["--in-place", int(collective == "broadcast"), "--memory", "malloc" if side == "malloc" else "symmetric"]
        if side == "prepared":
            words.append("--prepared")
        if side == "malloc":
            words += ["--vs", "gloo"]
        for first, last in doublings(sizes):
            with tempfile.NamedTemporaryFile(suffix=".json") as file:
                run([*words, "-b", first, "-e", last, "--json", file.name])
                result = json.load(open(file.name))
            self.versions["stretto"] = f"Stretto {result['machine']['version']}"
            for row in result["rows"]:
                self.add(collective, ranks, side, row["bytes"], row["time_us"])
                if row["wrong"]:
                    self.wrong.add(f"{row['wrong']} in {collective}, {ranks} ranks, {side}, {size_text(row['bytes'])}")
                if "gloo" in row["peers"]:
                    self.add(collective, ranks, "gloo", row["bytes"], row["peers"]["gloo"]["time_us"])
            for text in result["machine"]["peers"]:
                self.versions["gloo"] = text[text.index("(") + 1:-1]

    def mpi(self, collective, ranks, form, sizes):
        launcher = launcher_of(form, ranks)
        self.commands[f"{form}, {ranks} ranks"] = " ".join(str(word) for word in launcher)
        command = [*launcher, self.loops[form], collective, self.seconds, 2]
        for line in run([*command, *sizes]).splitlines():
            row = json.loads(line)
            if "version" in row:
                self.versions[form.split("_")[0]] = row["version"].replace(" Version:", "")
            elif row["wrong"]:
                print(f"{form} gave {row['wrong']} wrong values in {collective} of {size_text(row['bytes'])} and is left out there")
            else:
                self.add(collective, ranks, form, row["bytes"], row["time_us"])

    def limit(self, ranks, sizes):
        result = json.loads(run([BIN / "host_limit", ranks, *sizes]))
        if "exchange_us" in result:
            self.limits.setdefault((ranks, "exchange_us"), []).append(result["exchange_us"])
        for size, us in result["loops"].items():
            self.limits.setdefault((ranks, size), []).append(us)

    def round(self):
        """Every side once, whole programs in turn."""
        sizes = self.options.sizes
        for ranks in self.options.ranks:
            small = [size for size in sizes if size <= PREPARED_UP_TO]
            if ranks == 2 and small:
                self.stretto(ALL_REDUCE, ranks, "prepared", small)
            for side in ("symmetric", "malloc"):
                self.stretto(ALL_REDUCE, ranks, side, sizes)
            for form in self.forms(ranks):
                self.mpi(ALL_REDUCE, ranks, form, sizes)
            self.limit(ranks, [size for size in sizes if size in LIMIT_SIZES])
        if 2 in self.options.ranks:
            for collective in OTHERS:
                self.stretto(collective, 2, "symmetric", sizes)
                for form in self.forms(2, "openmpi"):
                    self.mpi(collective, 2, form, sizes)

    def figures(self):
        """Medians over the rounds."""
        times = {}
        for (collective, ranks, side, size), samples in sorted(self.samples.items()):
            by_ranks = times.setdefault(collective, {})
            by_ranks.setdefault(str(ranks), {}).setdefault(side, {})[str(size)] = statistics.median(samples)
        limit = {}
        for (ranks, what), samples in self.limits.items():
            here = limit.setdefault(str(ranks), {"loops": {}})
            (here if what == "exchange_us" else here["loops"])[what] = statistics.median(samples)
        return {
            "machine": machine(),
            "command": self.options.command,
            "rounds": self.options.rounds,
            "seconds": self.seconds,
            "sizes": self.options.sizes,
            "partial": self.options.partial,
            "versions": self.versions,
            "commands": self.commands,
            "wrong": sorted(self.wrong),
            "times": times,
            "limit": limit,
        }


def machine():
    lines = open("/proc/cpuinfo").read().splitlines()
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    release = pathlib.Path("/etc/os-release")
    system = re.search(r'^PRETTY_NAME="?([^"\n]*)', release.read_text(), re.M) if release.exists() else None
    return {
        "cpu": models[0] if models else os.uname().machine,
        "cores": cores(),
        "system": f"{system.group(1) if system else os.uname().sysname}, Linux {os.uname().release}",
        "date": datetime.date.today().isoformat(),
    }


def numbers(text, pattern, what):
    units = {"": 1, "K": 1 << 10, "M": 1 << 20}
    found = [re.fullmatch(pattern, word) for word in text.split(",")]
    if not all(found):
        sys.exit(f"error: '{text}' is no list of {what}.")
    return sorted({int(word.group(1)) * units[word.group(2) if word.lastindex == 2 else ""] for word in found})


def parse():
    parser = argparse.ArgumentParser(prog="./dev perf host", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of short loops over few sizes, 2 ranks: a look, no measurement")
    parser.add_argument("--sizes", help="instead of every power of two from 8 bytes to 64M, such as 8,64K,64M")
    parser.add_argument("--ranks", help="instead of 2,4,8")
    parser.add_argument("--rounds", type=int, help="of which the medians count (default 3)")
    parser.add_argument("--json", default=str(ROOT / "runs/host.json"), help="where the figures go (default runs/host.json)")
    parser.add_argument("--from", dest="earlier", metavar="JSON", help="measure nothing, judge what an earlier run wrote")
    parser.add_argument("--write-docs", nargs="?", const=str(ROOT / "docs/performance.md"), metavar="FILE",
                        help="put the figures into the section between the marks of docs/performance.md, or of FILE")
    options = parser.parse_args()
    cuts = [f" --{name} {value}" for name in ("sizes", "ranks", "rounds") if (value := getattr(options, name))]
    options.command = "./dev perf host" + " --quick" * options.quick + "".join(cuts)
    if options.write_docs:
        host_page.marked(pathlib.Path(options.write_docs))  # says now, not in ten minutes, that it cannot be done
    options.partial = bool(options.quick or options.sizes or options.ranks)
    options.rounds = options.rounds or (1 if options.quick else 3)
    quick_sizes = "8,64K,4M"
    every_size = [8 << i for i in range(24)]
    sizes = options.sizes or (quick_sizes if options.quick else None)
    options.sizes = numbers(sizes, r"(\d{1,9})([KM]?)", "sizes: give bytes with suffix K or M") if sizes else every_size
    for size in options.sizes:
        if size < 8 or size % 8 != 0 or size > LARGEST:
            sys.exit(f"error: --sizes {size} is no multiple of 8 bytes up to 64M.")
    options.ranks = numbers(options.ranks or ("2" if options.quick else "2,4,8"), r"(\d{1,2})", "ranks: choose among 2, 4 and 8")
    if not set(options.ranks) <= {2, 4, 8}:
        sys.exit("error: --ranks takes 2, 4 and 8.")
    return options


def main():
    options = parse()
    if options.earlier:
        figures = json.loads(pathlib.Path(options.earlier).read_text())
    else:
        measurement = Measurement(options)
        for i in range(options.rounds):
            measurement.round()
            print(f"round {i + 1} of {options.rounds} is done", file=sys.stderr)
        figures = measurement.figures()
        pathlib.Path(options.json).parent.mkdir(parents=True, exist_ok=True)
        pathlib.Path(options.json).write_text(json.dumps(figures, indent=1) + "\n")
    print(host_page.report(figures))
    if options.write_docs:
        host_page.write_docs(figures, pathlib.Path(options.write_docs))
    return 1 if falls_short(figures) else 0


if __name__ == "__main__":
    sys.exit(main())
