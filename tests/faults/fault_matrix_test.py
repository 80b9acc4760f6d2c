"""Every way in which one of four ranks can go wrong, in every kind of parallelism and over every transport: the other ranks end in
time, a sentence names the rank that went wrong, and nothing is left behind. A part of all cells, every day another one, unless
STRETTO_TEST_ALL=1."""
import concurrent.futures
import datetime
import itertools
import os
import random
import re
import time
import unittest

from harness import SECONDS_TO_END, FaultTest, Run, clean_environment, free_port, threads_of, until

from perf.comparisons.namespaces import PORT, CommandFailed, Network, obstacle

RANKS = 4
TIMEOUT = 6  # seconds
TRANSPORTS = ["shared memory", "UCX", "two hosts"]
LAYOUTS = ["dp", "tp", "pp", "ring", "ulysses", "zero3"]
# Of each fault: whether the ranks must wait for their timeout to notice it, and what the sentence that names the rank says.
FAULTS = {
    "stopped": (True, "no sign of life"),
    "killed": (False, "killed or crashed"),
    "throws": (False, "the disk burns"),
    "exits": (False, "has called exit"),
    "loops": (True, "is in no operation"),
    "mismatch": (True, "all_reduce"),
}
EVERYTHING = os.environ.get("STRETTO_TEST_ALL") == "1"
AT_ONCE = 4


def cells():
    every = list(itertools.product(TRANSPORTS, LAYOUTS, FAULTS, (0, 1, RANKS - 1)))
    if EVERYTHING:
        return every
    seed = int(os.environ.get("STRETTO_TEST_SEED", datetime.date.today().toordinal()))
    print(f"STRETTO_TEST_SEED={seed}", flush=True)
    return random.Random(seed).sample(every, 16)


class FaultMatrix(FaultTest):

    def network(self):
        if obstacle() or "UCX" not in os.environ["BUILT_WITH"]:
            return None
        try:
            network = Network([2, 2], rate=None)
        except CommandFailed:
            return None
        self.addCleanup(network.close)
        return network

    def start_cell(self, number, cell, network):
        transport, layout, fault, victim = cell
        variables = {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
                     "STRETTO_TIMEOUT": str(TIMEOUT), "STRETTO_JOB_SECRET": "of this cell"}
        if transport == "UCX":
            variables["STRETTO_TRANSPORT"] = "ucx"
        if transport == "two hosts":
            variables.update(MASTER_ADDR=network.addresses[0], MASTER_PORT=str(PORT + number))
        runs = []
        for rank in range(RANKS):
            before = network.hosts[rank // 2].inside() if transport == "two hosts" else []
            command = [*before, os.environ["FAULTY_TRAINING"], layout, fault, str(victim)]
            runs.append(Run(command, clean_environment({**variables, "RANK": str(rank)}), self.directory / f"cell{number}_{rank}"))
            self.addCleanup(runs[-1].kill_all)
        self.runs += runs
        return runs

    def complaint(self, number, cell, network):
        """What is wrong with a cell; empty if nothing is."""
        _, _, fault, victim = cell
        waits, sentence = FAULTS[fault]
        runs = self.start_cell(number, cell, network)
        others = [run for rank, run in enumerate(runs) if rank != victim]
        begin = time.monotonic()
        try:
            if not until(lambda: "now" in runs[victim].output, 60):
                return f"rank {victim} has not come to its fault: {[run.errors for run in runs]}"
            begin = time.monotonic()
            # Where ranks must wait: to their timeout, then 2 s to ask, tell and end; and 5 s for a busy machine.
            limit = TIMEOUT + 2 + 5 if waits else SECONDS_TO_END
            until(lambda: all(run.process.poll() is not None for run in others), limit)
            alive = [run for run in others if run.process.poll() is None]
            if alive:
                return f"{len(alive)} ranks have not ended after {limit} s: {threads_of(alive[0].process.pid)}"
            if any(run.process.returncode <= 0 for run in others):
                return f"statuses {[run.process.returncode for run in others]} of the others"
            said = [line for run in runs for line in run.errors]
            named = [line for line in said if re.search(rf"ank {victim}[ :]", line) and sentence in line]
            return "" if named else f"no line names rank {victim} with '{sentence}': {said}"
        finally:
            print(f"{', '.join(map(str, cell))}: {time.monotonic() - begin:.1f} s", flush=True)
            for run in runs:
                run.kill_all()

    def test_cells(self):
        network = self.network()
        possible = [cell for cell in cells() if "UCX" in os.environ["BUILT_WITH"] or cell[0] == "shared memory"]
        possible = [cell for cell in possible if network or cell[0] != "two hosts"]
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            complaints = pool.map(lambda item: self.complaint(*item, network), enumerate(possible))
        wrong = [f"{cell}: {complaint}" for cell, complaint in zip(possible, complaints) if complaint]
        self.assertEqual(wrong, [], "\n\n".join(wrong))
        self.expect_nothing_left()


if __name__ == "__main__":
    unittest.main()
