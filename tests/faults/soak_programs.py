"""A random job of programs for soak.py: several clients run random programs on the same executors (random_programs), some of which are
killed, stopped or halted for a while. All others must go on with right results, and every error must name a lost executor. One number, the
seed, gives all of it."""
import os
import random
import re
import signal
import time

from harness import until
from soak_jobs import LONG_TIMEOUT, SIGNALS, TIMEOUTS, SingleRun, hangs, need, need_nothing, send

SECONDS_TO_BEGIN, SECONDS_TO_END = 120, 180
BAD_LUCK = "bad luck"  # what functions throw by themselves


class Fault:
    def __init__(self, draw, kind, whom):
        self.kind, self.whom = kind, whom  # whom: as the program prints it, "executor 1"
        self.delay, self.pause = draw.uniform(0, 2), draw.uniform(0.1, 2)

    def __str__(self):
        return f"{self.kind} {self.whom} after {self.delay:.2f} s"

    def strike(self, pid):
        time.sleep(self.delay)
        send(SIGNALS[self.kind], [pid])
        if self.kind == "pause":
            time.sleep(self.pause)
            send(signal.SIGCONT, [pid])


class ProgramsJob(SingleRun):
    def __init__(self, seed, _text=None):
        draw = random.Random(seed)
        self.seed, self.transport = seed, draw.choice(["auto", "ucx"])
        self.executors, self.clients = draw.randint(2, 4), draw.randint(2, 3)
        # Executor 0 has the scheduler, and client 0 sees the end.
        others = [f"executor {i}" for i in range(1, self.executors)] + [f"client {i}" for i in range(1, self.clients)]
        draw.shuffle(others)
        self.faults = [Fault(draw, draw.choice(["kill", "kill", "stop", "pause"]), whom) for whom in others[:draw.randint(1, len(others))]]

    def __str__(self):
        return f"{self.executors} executors, {self.clients} clients ({self.transport}): {', '.join(map(str, self.faults))}"

    def stops_any(self):
        return any(fault.kind == "stop" for fault in self.faults)

    def perform(self, left_over):
        """Raises Wrong. left_over() says what of a job has remained."""
        timeout = TIMEOUTS["stop"] if self.stops_any() else LONG_TIMEOUT
        self.start([os.environ["RANDOM_PROGRAMS"], self.executors, self.clients, self.seed, self.directory / "end"],
                   {"STRETTO_TRANSPORT": self.transport, "STRETTO_TIMEOUT": str(timeout)})
        everybody = self.executors + self.clients
        need(until(lambda: len(self.pids()) == everybody, SECONDS_TO_BEGIN), f"it does not begin: {self.said()}")
        pids = self.pids()
        for fault in self.faults:
            fault.strike(pids[fault.whom])
        time.sleep(0.5)
        (self.directory / "end").touch()
        if not until(self.has_ended, SECONDS_TO_END):
            raise hangs([self.run], self.said())
        self.expect_end()
        need_nothing(left_over)

    def pids(self):
        return {whom: int(pid) for whom, pid in re.findall(r"^(\w+ \d+) is process (\d+)$", self.run.output, re.MULTILINE)}

    def expect_end(self):
        said = self.said()
        lost = {fault.whom for fault in self.faults if fault.kind != "pause"}
        executors = {f"Rank {whom.split()[1]} (process" for whom in lost if whom.startswith("executor")}
        killed = {f"Rank {fault.whom.split()[1]} (process" for fault in self.faults if fault.kind == "kill" and fault.whom.startswith("executor")}
        need(self.run.process.returncode == 0 and not self.run.errors, f"it ends with {self.run.process.returncode}: {said}")
        for sentence in re.findall(r"^client \d+ meets: (.*)$", self.run.output, re.MULTILINE):
            need(BAD_LUCK in sentence or any(name in sentence for name in executors), f"nobody was lost for this: {sentence}")
        for client in range(self.clients):
            if f"client {client}" in lost:
                continue
            end = re.search(rf"^client {client} ends after (\d+) runs: (.*)$", self.run.output, re.MULTILINE)
            need(end and int(end[1]) > 0, f"client {client} made no runs, or did not end: {said}")
            need(executors or end[2] == "on all executors", f"all executors are there, and client {client} ends with: {end[2]}")
            # Who stops is known to be lost some seconds later: a client may have ended with another loss by then.
            for name in killed:
                need(name in end[2], f"{name.split(' (')[0]} is lost, which client {client} does not name: {end[2]}")
            need(not executors or any(name in end[2] for name in executors), f"client {client} names no lost executor: {end[2]}")
