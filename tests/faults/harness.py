"""Shared by the fault tests, which run stretto-train on a small model and check its messages and what it leaves behind."""
import contextlib
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

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support.programs import clean_environment, free_port, in_turns, of_today  # noqa: E402, F401 (the tests import them from here)

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
FOREVER = 1000000  # steps; the test ends the run
SECONDS_TO_END = 10  # a job must end within this time after one of its ranks dies


def training(flags):
    """The words of a command. The value True is of a flag without a value, None of one that is left out."""
    words = [TRAIN]
    for flag, value in flags.items():
        if value is not None:
            words += [flag] if value is True else [flag, str(value)]
    return words


def processes():
    """(pid, parent, group) of every process but zombies."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            fields = pathlib.Path("/proc", entry, "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:  # the process has just ended
            continue
        if fields[0] != "Z":
            found.append((int(entry), int(fields[1]), int(fields[2])))
    return found


def group_of(leader):
    return [pid for pid, _, group in processes() if group == leader]


def ranks_under(parent):
    """The pids of the ranks that a program with --nproc has started, in rank order."""
    pids = int(pathlib.Path("/proc/sys/kernel/pid_max").read_text())  # behind the largest pid come small ones
    return sorted((pid for pid, its_parent, *_ in processes() if its_parent == parent), key=lambda pid: (pid - parent) % pids)


def listeners_of(pid):
    """The addresses and ports on which a process listens, as `ss -ltnp` shows them."""
    sockets = set()
    for descriptor in pathlib.Path("/proc", str(pid), "fd").iterdir():
        try:
            sockets.add(os.readlink(descriptor))
        except OSError:  # closed meanwhile
            pass
    found = set()
    for line in pathlib.Path("/proc", str(pid), "net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
            address, port = fields[1].split(":")
            found.add((socket.inet_ntoa(bytes.fromhex(address)[::-1]), int(port, 16)))
    return found


def shared_memory():
    """What the library, UCX or NCCL has made in /dev/shm. Other programs use it, too."""
    return {name for name in os.listdir("/dev/shm") if name.startswith(("stretto", "ucx", "nccl"))}


def threads_of(pid):
    """What each thread of a process that does not end is doing: its kernel function and, where gdb is installed, its stack."""
    if shutil.which("gdb"):
        return subprocess.run(["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all backtrace 16"], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    tasks = sorted(pathlib.Path("/proc", str(pid), "task").iterdir())
    return "\n".join(f"{(task / 'comm').read_text().strip()}: {(task / 'wchan').read_text()}" for task in tasks)


def until(condition, seconds):
    # Counted in looks, not by the clock: a virtual machine that was halted for a minute has not run for that minute.
    for _ in range(int(seconds / 0.02)):
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def losses(log_directory):
    """The losses of a run as text; equal text means equal bits."""
    lines = pathlib.Path(log_directory, "metrics.jsonl").read_text().splitlines()
    return [re.search(r'"loss":([^,}]+)', line).group(1) for line in lines]


class Run:
    """A program in a process group of its own, so that all processes that it starts can be found. Not in a session of its own: Linux
    shares the cores among sessions first, and on 6.18 one whose threads wake each other all the time leaves the others next to nothing."""

    def __init__(self, command, environment, files):
        self.output_path = f"{files}.out"
        self.error_path = f"{files}.err"
        with open(self.output_path, "w") as out, open(self.error_path, "w") as err:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, process_group=0)

    @property
    def output(self):
        return pathlib.Path(self.output_path).read_text(errors="replace")  # samples are any bytes

    @property
    def errors(self):
        return pathlib.Path(self.error_path).read_text().splitlines()

    def kill_all(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def end_by_exception(*_):
    sys.exit("terminated")


# A test that gets SIGTERM still runs its cleanups: it unmounts its disks and ends its processes.
signal.signal(signal.SIGTERM, end_by_exception)


class FaultTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="faults-"))
        self.addCleanup(shutil.rmtree, self.directory, True)
        self.text = self.directory / "text"
        self.text.write_text("".join(f"{i} times {i} is {i * i}; " for i in range(1000)))
        self.runs = []
        self.shared_memory_before = shared_memory()

    def need(self, part):
        if part not in BUILT_WITH:
            self.skipTest(f"this build of Stretto is without {part}")

    def command(self, flags):
        return training({**SMALL_MODEL, "--train-data": self.text, **flags})

    def start(self, flags, variables=None, before=()):
        return self.start_program([*before, *self.command(flags)], clean_environment(variables or {}))

    def start_program(self, words, environment):
        run = Run(words, environment, self.directory / f"run{len(self.runs)}")
        self.runs.append(run)
        self.addCleanup(run.kill_all)
        return run

    def start_rank(self, rank, size, port, flags, host="127.0.0.1", variables=None, before=()):
        """Starts one rank as a launcher like torchrun would."""
        meeting = {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": host, "MASTER_PORT": str(port)}
        return self.start(flags, {**meeting, **(variables or {})}, before)

    def status(self, run, seconds=60):
        if not until(lambda: run.process.poll() is not None, seconds):
            self.fail(f"Not ended after {seconds} s: it said {run.errors}\n{threads_of(run.process.pid)}")
        return run.process.returncode

    def expect_success(self, *runs):
        for run in runs:
            self.assertEqual(self.status(run), 0, run.errors)
            self.assertEqual(run.errors, [])

    def kill_one_of(self, pair, victim):
        """The other one must say so, and end."""
        os.kill(pair[victim].process.pid, signal.SIGKILL)
        survivor = pair[1 - victim]
        self.assertNotIn(self.status(survivor, SECONDS_TO_END), (0, -signal.SIGKILL))
        self.assertEqual(len(survivor.errors), 1, survivor.errors)
        self.assertIn(f"Rank {victim} ", survivor.errors[0])
        self.assertIn("killed or crashed", survivor.errors[0])
        self.expect_nothing_left()

    def log(self, name):
        return self.directory / name

    def wait_for_steps(self, log_directory, steps):
        metrics = pathlib.Path(log_directory, "metrics.jsonl")
        there = lambda: metrics.exists() and len(metrics.read_text().splitlines()) >= steps
        until(lambda: there() or self.runs[-1].process.poll() is not None, 60)
        self.assertTrue(there(), [run.errors for run in self.runs])

    def expect_steps_again(self, notice, of_step, reported):
        """`notice` of a job that goes on must end with the step behind which it does, and with the microbatches that it computes again: `of_step`
        for each step that had begun, and not one less than were reported. Returns the step."""
        found = re.search(r" after step (\d+)(?:, and computes (\d+) microbatch(?:es)? again)?\.$", notice)
        self.assertTrue(found, notice)
        step, again = int(found[1]), int(found[2] or 0)
        self.assertEqual(again % of_step, 0, notice)
        self.assertGreaterEqual(step + again // of_step, reported, notice)
        return step

    def steps_reported(self, log_directory):
        return len(pathlib.Path(log_directory, "metrics.jsonl").read_text().splitlines())

    def expect_nothing_left(self):
        for run in self.runs:
            self.assertTrue(until(lambda: not group_of(run.process.pid), SECONDS_TO_END),
                            f"processes remain: {group_of(run.process.pid)}")
        # Entries that vanish again are another job's.
        fresh = lambda: shared_memory() - self.shared_memory_before
        self.assertTrue(until(lambda: not fresh(), 5), f"left in /dev/shm: {fresh()}")
        self.assertEqual(list(self.directory.rglob("*.unfinished")), [])
