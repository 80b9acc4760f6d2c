"""Measures the cost of ranks of one host that do not communicate. Exits 1 if a limit is exceeded.

startup: seconds from exec until the first barrier is over, the memory of a rank by the number of its peers, and what it costs to start
stretto-train.
idle: processor time of 8 ranks, of which 7 wait for one that sleeps, or none has anything to do.
"""
import os
import pathlib
import re
import resource
import statistics
import subprocess
import sys
import time

from perf.comparisons.harness import Comparison, Table, flag
from perf.comparisons.programs import BIN
from perf.pages.text import Verdict

ROUTES = {"shm": {}, "ucx": {"STRETTO_TRANSPORT": "ucx"}}
MOST_SECONDS = 2.0  # until 64 ranks are connected
MOST_OF_ALL = 0.01  # share of a core that all ranks together may use while they wait
LATE = re.compile(r"lib(dnnl|openblas|blas|nccl|uc[pst]|cublas|cudnn|nvrtc)\w*\.so")  # to be loaded when they are first used


def output_of(command, variables=None):
    return subprocess.run(command, env={**os.environ, **(variables or {})}, stdout=subprocess.PIPE, check=True, text=True).stdout


# ---- startup

def started(options):
    rows = []
    for route, variables in ROUTES.items():
        for ranks in (2, 8, 64):
            command = [options.program, "--nproc", str(ranks)]
            times = []
            for _ in range(options.rounds):
                begin = time.monotonic()
                times.append(float(output_of([*command, "start"], variables)) - begin)
            rows.append({"route": route, "ranks": ranks, "seconds": statistics.median(times),
                         "mib": [float(word) / 2**20 for word in output_of([*command, "memory"], variables).split()]})
    yield {"rounds": options.rounds, "rows": rows, "train": start_of_train(options.rounds)}


def start_of_train(rounds):
    train = BIN / "stretto-train"
    linked = [line.split() for line in output_of(["ldd", train]).splitlines()]
    libraries = {words[0]: pathlib.Path(words[2]) for words in linked if len(words) > 2 and words[1] == "=>"}
    spent = []
    for _ in range(rounds):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        output_of([train, "--help"])
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
    return {"ms": statistics.median(spent), "libraries": len(libraries), "megabytes": sum(path.stat().st_size for path in libraries.values()) / 1e6,
            "early": sorted(filter(LATE.match, libraries))}


def started_tables(figures):
    yield Table("", ["route", "ranks", "seconds until the first barrier is over", "MiB of a rank with 2 peers (reserved for messages)",
                     "with all ranks as peers"],
                [[row["route"], str(row["ranks"]), f"{row['seconds']:.2f}", *(f"{row['mib'][i]:.1f} ({row['mib'][i + 1]:.1f})" for i in (0, 2))]
                 for row in figures["rows"]])


def started_verdicts(figures):
    for row in figures["rows"]:
        if row["ranks"] == 64:
            yield Verdict(row["seconds"] <= MOST_SECONDS, f"64 ranks are connected within {MOST_SECONDS} s, {row['route']}: {row['seconds']:.2f}")
    train = figures["train"]
    yield Verdict(not train["early"], f"stretto-train --help: {train['ms']:.0f} ms of a core, {train['libraries']} shared libraries of "
                                      f"{train['megabytes']:.0f} MB, none of which may wait for its first use: {', '.join(train['early']) or 'none'}")


# ---- idle

def processor_seconds(pid):
    """Processor time of all threads of a process, to the nanosecond."""
    return sum(int(task.joinpath("schedstat").read_text().split()[0]) for task in pathlib.Path("/proc", str(pid), "task").iterdir()) / 1e9


def use_of_cores(program, variables, what, stream, seconds):
    """Shares of a core: that of the whole job, and that of the busiest rank apart from rank 0."""
    job = subprocess.Popen([program, "--nproc", "8", "wait", what, stream, "--seconds", str(seconds + 2)],
                           env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True)
    try:
        job.stdout.readline()
        time.sleep(0.5)
        children = pathlib.Path("/proc", str(job.pid), "task", str(job.pid), "children").read_text().split()
        ranks = [job.pid, *map(int, children)]
        before = [processor_seconds(pid) for pid in ranks]
        time.sleep(seconds)
        used = [(processor_seconds(pid) - b) / seconds for pid, b in zip(ranks, before)]
    finally:
        if job.wait() != 0:
            sys.exit(f"error: {' '.join(job.args)} failed.")
    return sum(used), max(used[2:])


def idled(options):
    rows = []
    for route, variables in ROUTES.items():
        for what, stream in [("receive", "inline"), ("receive", "worker"), ("barrier", "inline"), ("barrier", "worker"), ("nothing", "worker")]:
            rows.append([route, what, stream, *use_of_cores(options.program, variables, what, stream, options.seconds)])
    yield {"seconds": options.seconds, "rows": rows}


def idled_tables(figures):
    yield Table("", ["route", "wait", "stream", "% of a core, all ranks", "the busiest rank"],
                [[*words, f"{100 * used:.2f}", f"{100 * most:.2f}"] for *words, used, most in figures["rows"]])


def idled_verdicts(figures):
    worst = max(used for *_, used, _ in figures["rows"])
    yield Verdict(worst <= MOST_OF_ALL, f"at most {MOST_OF_ALL:.0%} of a core for all ranks; at most {worst:.2%}")


FLAGS = (flag("--rounds", 5), flag("--seconds", 10))
Comparison("startup", __doc__, started, started_tables, started_verdicts, program="startup_and_idle", flags=FLAGS,
           about=lambda figures: f"medians of {figures['rounds']}")
Comparison("idle", __doc__, idled, idled_tables, idled_verdicts, program="startup_and_idle", flags=FLAGS,
           about=lambda figures: f"8 ranks over {figures['seconds']} s")
