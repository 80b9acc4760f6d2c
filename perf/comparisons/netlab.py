"""Runs a command as a job of several hosts, all of them on this machine. Takes root.

  perf/netlab --hosts 4 --ranks-per-host 2 --rate 1gbit -- build/bin/stretto-perf all_reduce -b 16M -e 64M

Network namespaces stand for hosts. Each has a cable to a switch, and a token bucket holds every end of a cable to the rate.
Every rank gets the variables that torchrun sets: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT. The output of rank 0 is
shown, and the standard error of every rank. The exit status is that of the first rank that fails; the other ranks are then ended.
No process and no network is left behind, even if this command is killed.
"""
import argparse
import queue
import subprocess
import sys
import threading
import time

from perf.comparisons import namespaces

SECONDS_TO_END = 2  # time that ranks get to end after SIGTERM


def parse():
    parser = argparse.ArgumentParser(prog="perf/netlab", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, help="default 2")
    parser.add_argument("--ranks-per-host", type=int, help="default 1")
    parser.add_argument("--ranks", help="ranks of each host, as in 3,1,2, instead of both")
    parser.add_argument("--rate", default="1gbit", help="rate of every link, as tc writes it (default 1gbit)")
    parser.add_argument("--burst", default="128kb", help="burst of every token bucket, as tc writes it (default 128kb)")
    parser.add_argument("--all-output", action="store_true", help="show the output of every rank; each line begins with its rank")
    parser.add_argument("--mpirun", action="store_true", help="let Open MPI's mpirun start the ranks: TCP between hosts, shared memory inside")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    options = parser.parse_args()
    options.command = options.command[options.command[:1] == ["--"]:]
    if not options.command:
        parser.error("give a command to run, after --")
    even = options.hosts, options.ranks_per_host
    if options.ranks is not None and even != (None, None):
        parser.error("--ranks counts the ranks of every host; give either that or --hosts and --ranks-per-host")
    hosts, ranks_per_host = [default if given is None else given for given, default in zip(even, (2, 1))]
    try:
        ranks = [ranks_per_host] * hosts if options.ranks is None else [int(word) for word in options.ranks.split(",")]
    except ValueError:
        parser.error(f"--ranks '{options.ranks}' is no list of numbers such as 3,1,2")
    if not ranks or min(ranks) < 1 or len(ranks) > 250:
        parser.error("there must be 1 to 250 hosts with at least 1 rank each")
    return options, ranks


def pass_on(rank, stream):
    for line in stream:
        sys.stdout.write(f"[{rank}] {line}")
        sys.stdout.flush()


def run(network, options):
    """The status of the job: 0, or the status of the first rank that failed."""
    if options.mpirun:
        more = ["--tag-output"] if options.all_output else []
        ranks = [network.start_mpi(options.command, options=more)]
    elif options.all_output:
        ranks = network.start(options.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    else:
        ranks = network.start(options.command, stdin=lambda rank: None if rank == 0 else subprocess.DEVNULL,
                              stdout=lambda rank: None if rank == 0 else subprocess.DEVNULL)
    readers = []
    if options.all_output and not options.mpirun:
        readers = [threading.Thread(target=pass_on, args=(i, rank.stdout), daemon=True) for i, rank in enumerate(ranks)]
    ended = queue.SimpleQueue()
    waiters = [threading.Thread(target=lambda rank=rank: ended.put(rank.wait()), daemon=True) for rank in ranks]
    for thread in readers + waiters:
        thread.start()
    status = 0
    try:
        for _ in ranks:
            status = ended.get()
            if status != 0:
                break
    finally:
        end(ranks)
    for thread in readers:
        thread.join(SECONDS_TO_END)
    return status if status >= 0 else 128 - status


def end(ranks):
    for rank in ranks:
        rank.terminate()
    deadline = time.monotonic() + SECONDS_TO_END
    for rank in ranks:
        try:
            rank.wait(max(0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.kill()


def job():
    options, ranks = parse()
    namespaces.require()
    with namespaces.Network(ranks, options.rate, options.burst) as network:
        return run(network, options)


def main():
    namespaces.exit_with(job)
