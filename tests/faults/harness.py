"""What the tests of faults share: they run stretto-train on a small model and look at what it says and leaves behind."""
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

TRAIN = os.environ["TRAIN_PROGRAM"]
BUILT_WITH = os.environ.get("BUILT_WITH", "").split()

SMALL_MODEL = {
    "--num-layers": 2,
    "--hidden-size": 32,
    "--num-attention-heads": 4,
    "--seq-length": 32,
    "--global-batch-size": 8,
    "--micro-batch-size": 2,
    "--train-iters": 5,
}
FOREVER = 1000000  # steps of a run that a test ends
SECONDS_TO_END = 10  # in which a job must be over after one of its ranks died

# What would make a rank believe in a launcher, or change what is tested.
# UCX_MEM_*: what a build with sanitizers needs is no business of a launcher.
FOREIGN_VARIABLES = re.compile(r"(RANK|LOCAL_RANK|WORLD_SIZE|MASTER_\w+|(OMPI|PMIX?|SLURM|STRETTO|UCX(?!_MEM)|TORCHELASTIC)_\w+)$")


def clean_environment(extra):
    environment = {name: value for name, value in os.environ.items() if not FOREIGN_VARIABLES.match(name)}
    environment["OMP_NUM_THREADS"] = "1"
    return {**environment, **extra}


def processes():
    """Of every process but zombies: pid, parent, session, start time."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            fields = pathlib.Path("/proc", entry, "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:  # it has just ended
            continue
        if fields[0] != "Z":
            found.append((int(entry), int(fields[1]), int(fields[3]), int(fields[19])))
    return found


def session_of(leader):
    return [pid for pid, _, session, _ in processes() if session == leader]


def ranks_under(parent):
    """The ranks that a program with --nproc has started, in their order."""
    return [pid for _, pid in sorted((start, pid) for pid, its_parent, _, start in processes() if its_parent == parent)]


def until(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def losses(log_directory):
    """As text: equal text is equal bits."""
    lines = pathlib.Path(log_directory, "metrics.jsonl").read_text().splitlines()
    return [re.search(r'"loss":([^,}]+)', line).group(1) for line in lines]


class Run:
    """A program in a session of its own, so that everything it has started can be found again."""

    def __init__(self, command, environment, files):
        self.output_path = f"{files}.out"
        self.error_path = f"{files}.err"
        with open(self.output_path, "w") as out, open(self.error_path, "w") as err:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment,
                                            start_new_session=True)

    @property
    def output(self):
        return pathlib.Path(self.output_path).read_text()

    @property
    def errors(self):
        return pathlib.Path(self.error_path).read_text().splitlines()

    def kill_all(self):
        for pid in session_of(self.process.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()


def end_by_exception(*_):
    sys.exit("terminated")


# So that what a test has mounted and started goes also when the test is told to end.
signal.signal(signal.SIGTERM, end_by_exception)


class FaultTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="faults-"))
        self.addCleanup(shutil.rmtree, self.directory, True)
        self.text = self.directory / "text"
        self.text.write_text("".join(f"{i} times {i} is {i * i}; " for i in range(1000)))
        self.runs = []
        self.shared_memory_before = set(os.listdir("/dev/shm"))

    def need(self, part):
        if part not in BUILT_WITH:
            self.skipTest(f"this build of Stretto is without {part}")

    def command(self, flags):
        merged = {**SMALL_MODEL, "--train-data": self.text, **flags}
        words = [TRAIN]
        for flag, value in merged.items():
            if value is not None:  # None takes a flag of the small model away, True is a flag without a value
                words += [flag] if value is True else [flag, str(value)]
        return words

    def start(self, flags, variables=None, before=()):
        run = Run([*before, *self.command(flags)], clean_environment(variables or {}),
                  self.directory / f"run{len(self.runs)}")
        self.runs.append(run)
        self.addCleanup(run.kill_all)
        return run

    def start_rank(self, rank, size, port, flags, host="127.0.0.1", variables=None, before=()):
        """One of several processes that a launcher like torchrun would start."""
        meeting = {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": host, "MASTER_PORT": str(port)}
        return self.start(flags, {**meeting, **(variables or {})}, before)

    def status(self, run, seconds=60):
        try:
            return run.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.fail(f"{run.process.args} has not ended after {seconds} s; it said {run.errors}")

    def expect_success(self, *runs):
        for run in runs:
            self.assertEqual(self.status(run), 0, run.errors)
            self.assertEqual(run.errors, [])

    def log(self, name):
        return self.directory / name

    def wait_for_steps(self, log_directory, steps):
        metrics = pathlib.Path(log_directory, "metrics.jsonl")
        there = lambda: metrics.exists() and len(metrics.read_text().splitlines()) >= steps
        until(lambda: there() or self.runs[-1].process.poll() is not None, 60)
        self.assertTrue(there(), [run.errors for run in self.runs])

    def expect_nothing_left(self):
        for run in self.runs:
            self.assertTrue(until(lambda: not session_of(run.process.pid), SECONDS_TO_END),
                            f"processes remain: {session_of(run.process.pid)}")
        # Other programs of the machine may use it meanwhile: what vanishes again was not ours.
        fresh = lambda: set(os.listdir("/dev/shm")) - self.shared_memory_before
        self.assertTrue(until(lambda: not fresh(), 5), f"left in /dev/shm: {fresh()}")
        self.assertEqual(list(self.directory.rglob(".*.unfinished")), [])
