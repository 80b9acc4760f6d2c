"""A random job of parameter servers for soak.py: workers count their pushes (served_counters), and every second or so a rank is killed, or
stopped for a while; or servers join. The counts of all workers that are left are exact. One number, the seed, gives all of it."""
import os
import random
import re
import signal
import time

from harness import ranks_under, until
from soak_jobs import LONG_TIMEOUT, SingleRun, hangs, need, need_nothing, send

SECONDS_TO_END = 180  # after which it hangs


class ServedJob(SingleRun):

    def __init__(self, seed, _text):
        self.draw = draw = random.Random(seed)
        self.workers, self.servers = draw.randint(1, 3), draw.randint(2, 4)
        self.copies = draw.choice([0, 1, 1, self.servers - 1])
        self.spares = draw.randint(1, self.servers - 1) if self.copies == 0 else 0
        self.consistency = draw.choice(["sequential", "bounded", "eventual"])
        self.transport = draw.choice(["auto", "ucx"])
        self.pushes = draw.choice([300, 1000])
        self.killed = []  # ranks, in the order of their ends

    def __str__(self):
        kind = f"{self.copies} copies" if self.copies else f"{self.spares} spares"
        killed = f"; killed: {' '.join(map(str, self.killed))}" if self.killed else ""
        return f"{self.workers} workers, {self.servers} servers, {kind}, {self.consistency} ({self.transport}), {self.pushes} pushes{killed}"

    def perform(self, left_over):
        """Raises Wrong. left_over() says what of a job has remained."""
        words = [os.environ["SERVED_COUNTERS"], self.workers, self.servers, self.copies, self.spares, self.consistency, self.pushes]
        self.start(words, {"STRETTO_TIMEOUT": str(LONG_TIMEOUT), "STRETTO_TRANSPORT": self.transport})
        need(until(lambda: self.has_ended() or len(ranks_under(self.run.process.pid)) == self.workers + self.servers, 60), "it does not start")
        ranks = dict(enumerate(ranks_under(self.run.process.pid)))
        time.sleep(1)  # the set is made; before, a loss ends the job
        deadline = time.monotonic() + SECONDS_TO_END
        while not self.has_ended():
            self.disturb(ranks)
            until(self.has_ended, self.draw.uniform(0.5, 2))
            if time.monotonic() > deadline:
                raise hangs([self.run], self.said())
        self.expect_end()
        need_nothing(left_over)

    def disturb(self, ranks):
        """Of `ranks`, those that are left. Rank 0 and one server live on; a killed server's parts have been copied by the next kill."""
        servers = [rank for rank in ranks if rank >= self.workers]
        may_die = [rank for rank in ranks if 0 < rank < self.workers] + (servers if len(servers) > 1 else [])
        if self.copies and may_die and self.draw.random() < 0.4:
            victim = self.draw.choice(may_die)
            send(signal.SIGKILL, [ranks.pop(victim)])
            self.killed.append(victim)
            time.sleep(1)
        else:
            pid = self.draw.choice(list(ranks.values()))
            send(signal.SIGSTOP, [pid])
            time.sleep(self.draw.uniform(0.05, 1.5))
            send(signal.SIGCONT, [pid])

    def expect_end(self):
        need(self.run.process.returncode == 0, f"it ends with {self.run.process.returncode}: {self.run.errors}")
        exact = {int(found) for found in re.findall(rf"worker (\d+) has counted {self.pushes} pushes", self.run.output)}
        expected = set(range(self.workers)) - set(self.killed)
        need(expected <= exact, f"workers {expected} were to count all, and {exact} did")
        strange = [line for line in self.run.errors if "The servers go on without" not in line]
        need(not strange, f"it says {strange}")
