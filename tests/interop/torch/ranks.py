"""Ranks of a process group as forked processes: PyTorch is loaded once, and a rank starts in milliseconds."""

import datetime
import os
import pathlib
import pickle
import select
import signal
import sys
import time
import traceback
import warnings

import torch
import torch.distributed as dist

import stretto_torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from support.programs import free_port  # noqa: E402


def _be_rank(body, rank, size, port, backend, seconds, out):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of what is deprecated, and tested nevertheless
    try:
        if backend is not None:
            # All ranks have started before the group's own timeout, which may be short, begins.
            store = dist.TCPStore("127.0.0.1", port, size, rank == 0, timeout=datetime.timedelta(seconds=60))
            dist.init_process_group(backend, timeout=datetime.timedelta(seconds=seconds), store=store, rank=rank,
                                    world_size=size)
        result = (True, body(rank))
        if backend is not None:
            dist.destroy_process_group()
    except BaseException:
        result = (False, traceback.format_exc())
    stretto_torch._leave()  # a fork ends without its exit handlers
    os.write(out, pickle.dumps(result))


def run(size, body, backend="stretto", seconds=30, killed=(), patience=90):
    """body(rank) on so many ranks of a process group; what they return, by rank. killed: ranks that are to die."""
    port = free_port()
    ends = {}
    for rank in range(size):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            _be_rank(body, rank, size, port, backend, seconds, write)
            os._exit(0)
        os.close(write)
        ends[read] = (rank, child)
    said = {rank: b"" for rank in range(size)}
    until = time.monotonic() + patience
    hung = []
    while ends:
        ready, _, _ = select.select(list(ends), [], [], max(0, until - time.monotonic()))
        if not ready:
            hung = sorted(rank for rank, _ in ends.values())
            for _, child in ends.values():
                os.kill(child, signal.SIGKILL)
            until = time.monotonic() + 10
        for end in ready:
            some = os.read(end, 1 << 20)
            rank, child = ends[end]
            said[rank] += some
            if not some:
                os.close(end)
                os.waitpid(child, 0)
                del ends[end]
    results = []
    failures = [f"ranks {hung} hung"] if hung else []
    for rank in range(size):
        if rank in killed and not said[rank]:
            results.append(None)
            continue
        good, value = pickle.loads(said[rank]) if said[rank] else (False, "ended without a word")
        results.append(value)
        if not good:
            failures.append(f"rank {rank}: {value}")
    if failures:
        raise AssertionError("\n".join(failures))
    return results


def gloo():
    """The same ranks as a group of Gloo's."""
    return dist.new_group(backend="gloo")


def error_of(call):
    """What it raises; None where it does not."""
    try:
        call()
    except Exception as error:
        return error
    return None
