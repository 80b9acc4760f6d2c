"""Random small jobs, each disturbed at random, one after the other, beside one job that runs all the time. Of four jobs, two are of
stretto-train: losses go on as without a fault, and the lost rank is named. One is of parameter servers, whose counts are exact; and one of
programs, whose clients go on without those that are lost, and name them. Nothing is left behind. Takes root, for namespaces of its own.

    ./dev soak [--minutes M] [--seed N] [--jobs J] [--alone] [--servers | --programs]

A job that fails prints its seed; `./dev soak --seed N --jobs 1` repeats it."""
import argparse
import contextlib
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import threading
import time

from harness import FOREVER, Run, clean_environment, group_of, processes, ranks_under, training, until
from soak_jobs import MODEL, Job, Wrong, need
from soak_programs import ProgramsJob
from soak_servers import ServedJob

# Processes, ports, /dev/shm and System V's memory of these namespaces are this program's alone.
ENTER = ["unshare", "--mount", "--pid", "--net", "--ipc", "--fork", "--kill-child", "--mount-proc", "sh", "-c",
         'mount -t tmpfs none /dev/shm && ip link set lo up && "$@"; exit $?', "sh"]
MEGABYTE = 1 << 20
LONGEST_STALL = 2  # seconds


class Stalls:
    """How long this program stood still at most, because others had the cores: as long, a rank looks as if it were stopped."""

    def __init__(self):
        self.longest = 0
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self):
        while True:
            before = time.monotonic()
            time.sleep(0.05)
            self.longest = max(self.longest, time.monotonic() - before)

    def take(self):
        longest, self.longest = self.longest, 0
        return longest


class LongJob:
    """Trains, validates, samples and saves until the end; its descriptors and its memory must not grow."""

    def __init__(self, draw, text):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="soak-long-"))
        self.log = self.directory / "log"
        layout = draw.choice([{"--zero": 1}, {"--zero": 3}, {"--tp": 2}, {"--pp": 2, "--schedule": "zb-h1"}, {"--cp": 2}, {"--ulysses": 2}])
        self.transport = draw.choice(["auto", "ucx"])
        self.run = Run(training({**MODEL, **layout, "--nproc": 2, "--train-data": text, "--train-iters": FOREVER, "--log-dir": self.log,
                                 "--save": self.directory / "save", "--save-interval": 20, "--async-save": True, "--keep": 2,
                                 "--eval-interval": 50, "--sample-interval": 50}),
                       clean_environment({"STRETTO_TRANSPORT": self.transport, "STRETTO_LEDGER": "1000"}), self.directory / "run")
        self.layout = layout
        self.first_step, self.first = 0, None
        need(until(lambda: self.steps() >= 1, 300), f"the long job makes no step: {self.run.errors}")

    def steps(self):
        metrics = self.log / "metrics.jsonl"
        return metrics.read_text().count("\n") if metrics.exists() else 0

    def use(self):
        """Of all its processes: the smallest number of descriptors, and the memory, of several looks."""
        looks = []
        for _ in range(20):
            pids = [self.run.process.pid, *ranks_under(self.run.process.pid)]
            looks.append((sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids), sum(map(memory_of, pids))))
            time.sleep(0.05)
        return tuple(min(values) for values in zip(*looks))

    def look(self):
        """Between other jobs. The first look counts at which it has validated, sampled and saved."""
        if self.first is None and (step := self.steps()) >= 100:
            self.first_step, self.first = step, self.use()

    def end(self):
        """Returns a sentence; raises Wrong."""
        need(self.run.process.poll() is None, f"the long job ended with {self.run.process.returncode}: {self.run.errors}")
        self.look()
        descriptors, memory = self.use()
        steps = self.steps()
        os.kill(self.run.process.pid, signal.SIGTERM)
        need(until(lambda: self.run.process.poll() is not None, 60), "the long job does not stop")
        need(self.run.process.returncode == 0 and not self.run.errors, f"the long job stopped with {self.run.errors}")
        if self.first is None:
            return f"The long job came to step {steps} only, which says nothing."
        use = (f"The long job ({self.layout}, {self.transport}) had {self.first[0]} descriptors and {self.first[1] / MEGABYTE:.1f} MiB after step "
               f"{self.first_step}, {descriptors} and {memory / MEGABYTE:.1f} MiB after step {steps}.")
        need(descriptors <= self.first[0] and memory <= self.first[1] + 4 * MEGABYTE, use)
        return use

    def close(self):
        self.run.kill_all()
        shutil.rmtree(self.directory, True)


def memory_of(pid):
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssShmem")))


def there_is(long_job):
    """All that jobs could leave behind, but what is the long job's or this program's own."""
    known = {1, os.getpid(), *(group_of(long_job.run.process.pid) if long_job else [])}
    found = {f"process {pid}" for pid, parent, *_ in processes() if pid not in known and parent not in known - {1}}
    found |= {f"/dev/shm/{name}" for name in os.listdir("/dev/shm")}
    for table in ("tcp", "tcp6"):
        rows = pathlib.Path("/proc/net", table).read_text().splitlines()[1:]
        found |= {f"{table} {row.split()[1]} listens" for row in rows if row.split()[3] == "0A"}
    found |= {f"memory {row.split()[1]} of System V" for row in pathlib.Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}
    return found


class Soak:

    def __init__(self, kinds):
        self.kinds = kinds  # of jobs, in turns
        self.jobs, self.stalled, self.failed = 0, 0, []
        self.stalls = Stalls()

    def run_job(self, seed, text, left_over):
        job = self.kinds[seed % len(self.kinds)](seed, text)
        begin = time.monotonic()
        self.stalls.take()
        self.jobs += 1
        verdict = ""
        try:
            job.perform(left_over)
        except Wrong as sentence:
            stall = self.stalls.take()
            if stall > LONGEST_STALL:
                verdict = f": does not count, since the machine stood still for {stall:.1f} s: {sentence}"
                self.stalled += 1
            else:
                verdict = f": FAILED: {sentence}"
                self.failed.append(str(seed))
        finally:
            job.close()
        print(f"seed {seed}, {time.monotonic() - begin:.1f} s: {job}{verdict}", flush=True)

    def __str__(self):
        seeds = f", of seeds {', '.join(self.failed)}" if self.failed else ""
        return f"{self.jobs} jobs, {self.stalled} of which do not count; {len(self.failed)} failed{seeds}."


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31), help="of the first job; the next one has the next seed")
    parser.add_argument("--jobs", type=int, default=1 << 31, help="at most so many")
    parser.add_argument("--alone", action="store_true", help="without the job that runs all the time")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--servers", dest="kinds", action="store_const", const=[ServedJob], help="jobs of parameter servers only")
    only.add_argument("--programs", dest="kinds", action="store_const", const=[ProgramsJob], help="jobs of programs only")
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    soak = Soak(options.kinds or [Job, Job, ProgramsJob, ServedJob])
    with tempfile.NamedTemporaryFile("w", prefix="soak-text-") as text, contextlib.ExitStack() as closes:
        text.write("".join(f"{i} times {i} is {i * i}; " for i in range(1000)))
        text.flush()
        long_job = None if options.alone else LongJob(random.Random(options.seed), text.name)
        if long_job:
            closes.callback(long_job.close)
        before = there_is(long_job)
        while soak.jobs < options.jobs and time.monotonic() < end:
            soak.run_job(options.seed + soak.jobs, text.name, lambda: there_is(long_job) - before)
            if long_job:
                long_job.look()
        if long_job:
            print(long_job.end())
    print(soak)
    return 1 if soak.failed else 0


if __name__ == "__main__":
    if "SOAK_INSIDE" not in os.environ:
        if os.geteuid() != 0:
            sys.exit("error: the soak takes root, for namespaces of its own.")
        os.execvpe(ENTER[0], [*ENTER, sys.executable, "-B", *sys.argv], {**os.environ, "SOAK_INSIDE": "1"})
    try:
        sys.exit(main())
    except Wrong as sentence:
        sys.exit(f"error: {sentence}")
