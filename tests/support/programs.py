"""Programs under test, seen from outside: how they run, what they say, the environment and the ports that they get."""
import os
import pathlib
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
import unittest

# With daily tests, the day and the name of the test decide, as in tiers.hpp.
DAY = int(time.time() // 86400)
TURN = DAY + sum(pathlib.Path(sys.argv[0]).name.encode())
DAYS_OF_A_ROUND = 16
EVERYTHING = {"1": True, "daily": TURN % DAYS_OF_A_ROUND == 0}.get(os.environ.get("STRETTO_TEST_ALL"), False)
# ./dev test --daily names here what the last commit has changed, without folder, ending and "_test".
CHANGED = pathlib.Path(sys.argv[0]).stem.removesuffix("_test") in os.environ.get("STRETTO_TEST_CHANGED", "").split()
TAKES_TURNS = os.environ.get("STRETTO_TEST_ALL") == "daily" and not EVERYTHING and not CHANGED
# UCX_MEM_* is kept: a build with sanitizers needs it.
FOREIGN = re.compile(r"(RANK|LOCAL_RANK|WORLD_SIZE|MASTER_\w+|(OMPI|PMIX?|MPIR|SLURM|STRETTO|NCCL|UCX(?!_MEM)|TORCHELASTIC)_\w+)$")
# The system gives ports from here on to connections that name none.
FIRST_OF_CONNECTIONS = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
choices = random.SystemRandom()  # processes that are forked from one test do not choose alike


ROUND_OF_TESTS = 6  # days in which every part of in_turns() has its turn
day_of_cases = DAY


def of_today(cases, parts=2):
    """The cases of a test that runs a program for each: all of them, but with daily tests, unless all cases have their turn or the last
    commit has changed what the test is named after, one in `parts`, every day others."""
    cases = list(cases)
    return cases[day_of_cases % parts::parts] if TAKES_TURNS else cases


def in_turns(parts=2):
    """Decorates a class whose tests take minutes together: it keeps the tests of today, as of_today() does cases. Cases within these tests
    change more slowly, so that each of them meets each day of its test."""
    assert ROUND_OF_TESTS % parts == 0

    def with_those_of_today(tests):
        global day_of_cases
        day_of_cases = DAY // ROUND_OF_TESTS
        if TAKES_TURNS:
            names = [name for name in vars(tests) if name.startswith("test_")]
            for name in set(names) - set(names[DAY % parts::parts]):
                delattr(tests, name)
        return tests
    return with_those_of_today


def clean_environment(more=None):
    """That of the test, without what looks like a launcher's or would change the tested behaviour."""
    own = {name: value for name, value in os.environ.items() if not FOREIGN.match(name)}
    return {**own, "OMP_NUM_THREADS": "1", "STRETTO_CALIBRATE": "off", **(more or {})}


def launched(rank, size, port, host="127.0.0.1", **more):
    """The environment that a launcher like torchrun gives a rank."""
    return clean_environment({"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": host, "MASTER_PORT": str(port), **more})


def free_port(count=1):
    """The first of so many neighbouring ports on which nothing listens, and which no connection of another test takes in the meantime."""
    while True:
        first = choices.randrange(10000, FIRST_OF_CONNECTIONS - count)
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("", port))
            return first
        except OSError:
            pass


def run_program(*words, timeout=300, **variables):
    """Runs a program to its end; its output may have any bytes."""
    return subprocess.run([*map(str, words)], env=clean_environment(variables), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          errors="replace", timeout=timeout)


class ProgramTest(unittest.TestCase):
    """Each test has a directory of its own."""

    def setUp(self):
        self.directory = self.fresh_directory(self)

    @staticmethod
    def fresh_directory(test):
        """Removed behind the test, or behind a class of tests."""
        directory = tempfile.TemporaryDirectory(prefix="stretto-test-")
        (test.addClassCleanup if isinstance(test, type) else test.addCleanup)(directory.cleanup)
        return pathlib.Path(directory.name)

    def succeeds(self, *words, **how):
        """What the program prints; it must say nothing on stderr."""
        done = run_program(*words, **how)
        self.assertEqual((done.returncode, done.stderr), (0, ""), (words, done.stdout[-2000:]))
        return done.stdout

    def refused(self, fragments, *words, **how):
        """The program must say one sentence with these fragments and nothing else."""
        done = run_program(*words, **how)
        self.assertEqual(done.returncode, 1, (words, done.stdout[-2000:], done.stderr))
        self.assertRegex(done.stderr, r"\Aerror: [^\n]*\.\n\Z", words)
        for fragment in fragments:
            self.assertIn(str(fragment), done.stderr, words)
        return done.stderr
