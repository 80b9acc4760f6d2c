"""A random job for soak.py: it trains in a random layout, is disturbed, and goes on in other layouts, which may be disturbed, too. One
number, the seed, gives all of it. And what soak_servers.py and soak_programs.py have in common with it."""
import functools
import math
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time

from harness import Run, clean_environment, free_port, losses, processes, ranks_under, threads_of, training, until

TIMEOUTS = {"stop": 6}  # seconds, by fault
LONG_TIMEOUT = 600  # a busy machine must not look like a fault
SECONDS_OF_A_STEP = 180  # after which it hangs
MODEL = {"--num-layers": 4, "--hidden-size": 32, "--num-attention-heads": 4, "--seq-length": 32, "--global-batch-size": 24}
# How much a loss may differ between layouts, which add in different orders.
TOLERANCES = {"fp64": 1e-7, "fp32": 1e-3, "bf16": 0.05, "fp16": 0.05}
CHOICES = {
    "--tp": [1, 1, 2, 4], "--pp": [1, 1, 2, 3, 4], "--cp": [1, 1, 2], "--ulysses": [1, 1, 2], "--zero": [0, 1, 2, 3],
    "--micro-batch-size": [1, 2], "--schedule": ["1f1b", "gpipe", "1f1b-eager", "interleaved", "zb-h1", "zb-h2", "zb-v"],
    "--recompute": ["none", "selective", "full"], "--cp-layout": ["zigzag", "contiguous", "striped"], "--sp": [None, None, True],
    "--no-overlap": [None, None, True], "--deterministic": [None, None, True],
}
WAYS = {"plain": {}, "restarts": {"--max-restarts": 2}, "elastic": {"--elastic": True},
        "replicated": {"--elastic": True, "--replicate-state": True}}
FAULTS = ["kill one", "kill one", "kill one", "kill all", "kill parent", "stop one", "pause one", "end one", "end all", "end parent"]
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "pause": signal.SIGSTOP, "end": signal.SIGTERM}


class Wrong(Exception):
    """A sentence about what a job did and must not."""


def need(condition, sentence):
    if not condition:
        raise Wrong(sentence)


def need_nothing(left_over):
    """left_over() says what of a job has remained."""
    until(lambda: not left_over(), 10)
    need(not left_over(), f"left behind: {left_over()}")


def hangs(runs, said):
    """What to raise for a job that does not end: with the stacks of its processes."""
    own = {pid for run in runs for pid in [run.process.pid, *ranks_under(run.process.pid)]}
    stacks = "\n".join(f"process {pid}:\n{threads_of(pid)}" for pid, *_ in processes() if pid in own)
    return Wrong(f"it hangs: {said}\n{stacks}")


class SingleRun:
    """A job that is one run of a program, in a directory of its own."""
    run = None

    @functools.cached_property
    def directory(self):
        return pathlib.Path(tempfile.mkdtemp(prefix="soak-"))

    def start(self, words, variables):
        self.run = Run([*map(str, words)], clean_environment(variables), self.directory / "run")

    def has_ended(self):
        return self.run.process.poll() is not None

    def said(self):
        return (self.run.output + "\n".join(self.run.errors))[-5000:]

    def close(self):
        if self.run:
            self.run.kill_all()
            shutil.rmtree(self.directory, True)


def text_of(flags):
    return " ".join(flag if value is True else f"{flag} {value}" for flag, value in flags.items()
                    if value not in (None, 1, "none", "1f1b", "zigzag"))


class Stage:
    """One start of the job, and the fault that it meets."""

    def __init__(self, draw, always, disturbed=True):
        self.ranks, self.layout = self.accepted_layout(draw, always)
        self.transport = draw.choice(["auto", "ucx"])
        self.fault, self.whom = draw.choice(FAULTS).split() if disturbed else ("no fault", "")
        self.way = draw.choice(list(WAYS))
        self.by_parent = not disturbed or self.way == "restarts" or self.whom == "parent" or draw.random() < 0.5
        self.victim = draw.randrange(self.ranks)
        self.after_steps = draw.choice([0, draw.randint(1, 20), draw.randint(1, 20)])
        self.delay = draw.uniform(0, 0.05 if self.after_steps else 0.8)
        self.pause = draw.uniform(0.1, 3)

    @staticmethod
    def accepted_layout(draw, always):
        """Flags that stretto-train accepts for a number of ranks."""
        while True:
            ranks = draw.randint(2, 4)
            flags = {flag: draw.choice(values) for flag, values in CHOICES.items()}
            if flags["--pp"] == 1:
                flags["--schedule"] = "1f1b"
            if flags["--cp"] == 1:
                flags["--cp-layout"] = None
            if ranks % math.prod(flags[axis] for axis in ("--tp", "--pp", "--cp", "--ulysses")) != 0:
                continue  # it would be refused
            if subprocess.run(training({**always, **flags, "--dry-run": True, "--ranks": ranks}), capture_output=True).returncode == 0:
                return ranks, flags

    def __str__(self):
        whom = f"rank {self.victim}" if self.whom == "one" else self.whom
        when = f"{self.delay:.2f} s behind " + (f"{self.after_steps} steps" if self.after_steps else "its start")
        fault = f"{self.fault} {whom} {when}" if self.whom else self.fault
        return f"{self.ranks} ranks {text_of(self.layout)} ({self.transport}, {'parent' if self.by_parent else 'launcher'}, {self.way}): {fault}"

    def pids(self, runs):
        """The processes that get the signal."""
        ranks = ranks_under(runs[0].process.pid) if self.by_parent else [run.process.pid for run in runs]
        if self.whom == "one":
            return ranks[self.victim:self.victim + 1]
        return ([] if self.whom == "parent" else ranks) + ([runs[0].process.pid] if self.by_parent else [])

    def of_others(self, runs):
        """All but the rank that is lost; a parent is one of the others."""
        return [run for rank, run in enumerate(runs) if self.by_parent or self.whom != "one" or rank != self.victim]


def catches(pid, number):
    """Whether the process has a handler of the signal; a program has none when it has just begun."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    return int(re.search(r"^SigCgt:\s*(\w+)", status, re.MULTILINE)[1], 16) >> (number - 1) & 1 == 1


def send(number, pids):
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


class Job:

    def __init__(self, seed, text):
        draw = random.Random(seed)
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="soak-"))
        self.log, self.save, self.temporary = (self.directory / name for name in ("log", "save", "tmp"))
        self.temporary.mkdir()
        self.dtype = draw.choice(list(TOLERANCES))
        self.steps = draw.randint(25, 60)
        self.always = {**MODEL, "--train-data": text, "--dtype": self.dtype, "--train-iters": self.steps, "--seed": draw.randint(1, 99)}
        self.saving = {"--save-interval": draw.randint(2, 12), "--async-save": draw.choice([None, True]), "--keep": draw.choice([0, 2])}
        self.stages = [Stage(draw, self.always) for _ in range(draw.randint(1, 3))] + [Stage(draw, self.always, disturbed=False)]
        self.runs = []
        self.same_until = self.steps  # the step until which losses are, bit for bit, those without a fault

    def __str__(self):
        return f"{self.dtype}, {self.steps} steps, {text_of(self.saving)}; " + "; ".join(map(str, self.stages))

    def start(self, stage, flags, by_parent, timeout=LONG_TIMEOUT):
        flags = {**self.always, **stage.layout, **flags}
        variables = {"STRETTO_TIMEOUT": str(timeout), "STRETTO_TRANSPORT": stage.transport, "TMPDIR": str(self.temporary)}
        ranks = [{}]
        if by_parent:
            flags["--nproc"] = stage.ranks
        else:
            meeting = {"WORLD_SIZE": str(stage.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
            ranks = [{**meeting, "RANK": str(rank)} for rank in range(stage.ranks)]
        started = [Run(training(flags), clean_environment({**variables, **its}), self.directory / f"run{len(self.runs) + i}")
                   for i, its in enumerate(ranks)]
        self.runs += started
        return started

    def wait(self, runs):
        ended = lambda: all(run.process.poll() is not None for run in runs)
        written = lambda: sum(file.stat().st_size for file in self.directory.rglob("metrics.jsonl"))
        before = -1
        while before != (before := written()):
            if until(ended, SECONDS_OF_A_STEP):
                return
        raise hangs(runs, self.said(runs))

    @staticmethod
    def said(runs):
        return [line for run in runs for line in run.errors]

    def steps_done(self):
        metrics = self.log / "metrics.jsonl"
        return metrics.read_text().count("\n") if metrics.exists() else 0

    def newest_saved(self):
        return max((int(index.parent.name.removeprefix("step_")) for index in self.save.glob("step_*/index.json")), default=0)

    def undisturbed(self):
        log = self.directory / "undisturbed"
        runs = self.start(self.stages[0], {"--log-dir": log}, by_parent=True)
        self.wait(runs)
        need(runs[0].process.returncode == 0, f"without a fault it ends with {runs[0].process.returncode}: {self.said(runs)}")
        return losses(log)

    def perform(self, left_over):
        """Raises Wrong. left_over() says what of a job has remained."""
        whole = self.undisturbed()
        for number, stage in enumerate(self.stages):
            if self.steps_done() == self.steps:
                break
            begun, saved = self.steps_done(), self.newest_saved()
            flags = {**self.saving, "--save": self.save, "--log-dir": self.log, "--resume": "auto" if number else None}
            runs = self.start(stage, {**flags, **(WAYS[stage.way] if stage.whom else {})}, stage.by_parent,
                              TIMEOUTS.get(stage.fault, LONG_TIMEOUT))
            if stage.whom:
                self.disturb(stage, runs, begun)
            self.wait(stage.of_others(runs) if stage.fault == "stop" else runs)
            send(signal.SIGKILL, [run.process.pid for run in runs if run.process.poll() is None])
            self.wait(runs)
            if number and self.steps_done() > 0:
                self.same_until = min(self.same_until, saved)
            self.expect_end(stage, runs)
            self.expect_nothing(left_over)
        self.expect_losses(losses(self.log), whole)
        self.expect_files()

    def disturb(self, stage, runs, begun):
        ended = lambda: all(run.process.poll() is not None for run in runs)
        until(lambda: ended() or self.steps_done() >= min(begun + stage.after_steps, self.steps), SECONDS_OF_A_STEP)
        time.sleep(stage.delay)
        pids = stage.pids(runs)
        # Before the ranks have met, the signal ends a process at once.
        self.caught = pids != [] and self.steps_done() > begun and all(catches(pid, SIGNALS[stage.fault]) for pid in pids)
        if not ended():
            send(SIGNALS[stage.fault], pids)
        if stage.fault == "pause":
            time.sleep(stage.pause)
            send(signal.SIGCONT, pids)

    def expect_end(self, stage, runs):
        statuses = [run.process.returncode for run in stage.of_others(runs)]
        said = self.said(runs)
        for line in said:
            if "Training goes on with" in line:
                step = re.search(r"after step (\d+)[,.]", line)
                self.same_until = min(self.same_until, int(step[1]) if step else 0)
        complete = self.steps_done() == self.steps and set(statuses) == {0}
        if stage.fault in ("no fault", "pause"):
            return need(complete and not said, f"{stage.fault} ends with {statuses}: {said}")
        if stage.fault == "end":
            stopped = set(statuses) == {0} and not said
            return need(stopped or not self.caught, f"SIGTERM ends it with {statuses}: {said}")
        if stage.whom != "one" or complete:
            return
        named = [line for line in said if re.search(rf"\b[Rr]ank {stage.victim}\b", re.sub(r"^error: rank \d+: ", "", line))]
        need(named, f"nobody names rank {stage.victim}; statuses {statuses}: {said}")
        need(stage.way != "restarts", f"it did not start again; statuses {statuses}: {said}")
        need(0 not in statuses, f"statuses {statuses} after a lost rank: {said}")

    def expect_losses(self, own, whole):
        need(len(own) == self.steps, f"{len(own)} of {self.steps} steps are in metrics.jsonl")
        for step, (one, other) in enumerate(zip(own, whole), 1):
            if step <= self.same_until:
                need(one == other, f"the loss of step {step} is {one} instead of {other}; they must be equal until {self.same_until}")
            else:
                need(abs(float(one) - float(other)) <= TOLERANCES[self.dtype], f"the loss of step {step} is {one} instead of {other}")

    def expect_nothing(self, left_over):
        need_nothing(left_over)
        need(not list(self.temporary.iterdir()), f"left in TMPDIR: {list(self.temporary.iterdir())}")

    def expect_files(self):
        for file in self.save.iterdir():
            need(file.name == "latest" or re.fullmatch(r"step_\d{8}", file.name) and (file / "index.json").exists(),
                 f"{file} is no complete checkpoint")
        strays = [file.name for file in self.log.rglob("*.unfinished")]
        # A rank that is killed while it writes why others were lost can take nothing away.
        if any(stage.fault == "kill" and stage.whom != "one" for stage in self.stages):
            strays = [name for name in strays if not name.startswith("flight_")]
        need(not strays, f"left in --log-dir: {strays}")

    def close(self):
        for run in self.runs:
            run.kill_all()
        shutil.rmtree(self.directory, True)
