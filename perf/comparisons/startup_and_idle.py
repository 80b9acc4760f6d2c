"""Measures the cost of ranks of one host that do not communicate. Exits 1 if a limit is exceeded.

startup: seconds from exec until the first barrier is over, the memory of a rank by the number of its peers, and what it costs to start
stretto-train.
idle: processor time of 8 ranks, of which 7 wait for one that sleeps, or none has anything to do.
"""
import argparse
import os
import pathlib
import re
import resource
import statistics
import subprocess
import sys
import time

from perf.comparisons.programs import BIN, cores

ROUTES = {"shm": {}, "ucx": {"STRETTO_TRANSPORT": "ucx"}}
MOST_SECONDS = 2.0  # until 64 ranks are connected
MOST_OF_ALL = 0.01  # share of a core that all ranks together may use while they wait
LATE = re.compile(r"lib(dnnl|openblas|blas|nccl|uc[pst]|cublas|cudnn|nvrtc)\w*\.so")  # to be loaded when they are first used


def processor_seconds(pid):
    """Processor time of all threads of a process, to the nanosecond."""
    return sum(int(task.joinpath("schedstat").read_text().split()[0]) for task in pathlib.Path("/proc", str(pid), "task").iterdir()) / 1e9


def children(pid):
    return [int(child) for child in pathlib.Path("/proc", str(pid), "task", str(pid), "children").read_text().split()]


def startup(program, rounds):
    slow = False
    print(f"{cores()} cores; medians of {rounds}")
    print("route | ranks | seconds until the first barrier is over | MiB of a rank with 2 peers (reserved for messages) | with all ranks as peers")
    for route, variables in ROUTES.items():
        for ranks in (2, 8, 64):
            command = [program, "--nproc", str(ranks)]
            environment = {**os.environ, **variables}
            times = []
            for _ in range(rounds):
                begin = time.monotonic()
                times.append(float(subprocess.run([*command, "start"], env=environment, stdout=subprocess.PIPE, check=True).stdout) - begin)
            said = subprocess.run([*command, "memory"], env=environment, stdout=subprocess.PIPE, check=True).stdout
            few, few_shared, many, many_shared = (float(word) / 2**20 for word in said.split())
            print(f"{route} | {ranks} | {statistics.median(times):.2f} | {few:.1f} ({few_shared:.1f}) | {many:.1f} ({many_shared:.1f})",
                  flush=True)
            slow |= ranks == 64 and statistics.median(times) > MOST_SECONDS
    late = start_of_train(rounds)
    return f"64 ranks were not connected within {MOST_SECONDS} s." if slow else late


def start_of_train(rounds):
    train = BIN / "stretto-train"
    linked = [line.split() for line in subprocess.run(["ldd", train], capture_output=True, text=True, check=True).stdout.splitlines()]
    libraries = {words[0]: pathlib.Path(words[2]) for words in linked if len(words) > 2 and words[1] == "=>"}
    megabytes = sum(path.stat().st_size for path in libraries.values()) / 1e6
    spent = []
    for _ in range(rounds):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([train, "--help"], stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
    early = sorted(filter(LATE.match, libraries))
    print(f"stretto-train --help: {statistics.median(spent):.0f} ms of a core, {len(libraries)} shared libraries of {megabytes:.0f} MB, "
          f"none of which may wait for its first use: {'FALLS SHORT: ' + ', '.join(early) if early else 'holds'}")
    return f"stretto-train loads {', '.join(early)} at its start." if early else None


def use_of_cores(program, variables, what, stream, seconds):
    """Shares of a core: that of the whole job, and that of the busiest rank apart from rank 0."""
    job = subprocess.Popen([program, "--nproc", "8", "wait", what, stream, "--seconds", str(seconds + 2)],
                           env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True)
    try:
        job.stdout.readline()
        time.sleep(0.5)
        ranks = [job.pid, *children(job.pid)]
        before = [processor_seconds(pid) for pid in ranks]
        time.sleep(seconds)
        used = [(processor_seconds(pid) - b) / seconds for pid, b in zip(ranks, before)]
    finally:
        if job.wait() != 0:
            sys.exit(f"error: {' '.join(job.args)} failed.")
    return sum(used), max(used[2:])


def idle(program, seconds):
    above = False
    print(f"{cores()} cores; 8 ranks over {seconds} s; limit {MOST_OF_ALL:.0%} of a core for all ranks")
    print("route | wait | stream | % of a core, all ranks | the busiest rank")
    for route, variables in ROUTES.items():
        for what, stream in [("receive", "inline"), ("receive", "worker"), ("barrier", "inline"), ("barrier", "worker"),
                             ("nothing", "worker")]:
            all_ranks, most = use_of_cores(program, variables, what, stream, seconds)
            print(f"{route} | {what} | {stream} | {100 * all_ranks:.2f} | {100 * most:.2f}", flush=True)
            above |= all_ranks > MOST_OF_ALL
    return "Idle ranks exceed the limit." if above else None


def main():
    parser = argparse.ArgumentParser(prog="./dev perf", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["startup", "idle"])
    parser.add_argument("--program", default=str(BIN / "startup_and_idle"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=10)
    options = parser.parse_args()
    sys.exit(startup(options.program, options.rounds) if options.what == "startup" else idle(options.program, options.seconds))


if __name__ == "__main__":
    main()
