"""Runs GoogleTest programs in several processes at a time, each with a part of the tests. The tests that a crash or a hang leaves
undone are run again without the test that crashed or hung. A test that fails is run again alone, since on a GPU one test's failure
can be another's fault."""
import concurrent.futures
import pathlib
import re
import time

from perf.gpu import programs as gpu_programs

RESULT = re.compile(r"^\[ +(OK|FAILED|SKIPPED) +\] ([^\s,]+).*\(\d+ ms\)$", re.M)
BEGUN = re.compile(r"^\[ RUN +\] (\S+)$", re.M)
MOST_LOST = 5     # crashes and hangs of a part, after which its remaining tests are given up
MOST_ALONE = 20   # tests that are run again alone
SILENCE = 45      # seconds without output after which a test counts as hung; the library waits less for a lost rank
UNDER_TOOL = 4    # factor of that time if the program runs under a tool
RANKS_WAIT = "30"  # STRETTO_TIMEOUT of the programs in seconds, so that they report themselves which rank waits for which
OUTSIDE = "outside of any test"
LISTS = ("passed", "failed", "skipped", "crashed", "hung", "undone", "texts")


def listed(text):
    """The full names in the output of --gtest_list_tests."""
    names = []
    suite = ""
    for line in text.splitlines():
        name = line.split("#")[0].rstrip()
        if name.startswith("  "):
            names.append(suite + name.strip())
        elif re.fullmatch(r"\S+\.", name):
            suite = name
    return names


def tests_of(command, environment, log, limit):
    """The names of a program's tests."""
    ended = gpu_programs.run([*command, "--gtest_list_tests"], environment, log, min(limit, 60))
    names = listed(ended.text)
    if ended.status != 0 or not names:
        raise RuntimeError(f"no tests were listed: {ended.sentence(pathlib.Path(command[-1]).name)}")
    return names


class Tally:
    def __init__(self):
        for name in LISTS:
            setattr(self, name, [])

    def read(self, text):
        """Counts the results in a program's output; returns the test in which the program ended, if it ended in one."""
        self.texts.append(text)
        lists = {"OK": self.passed, "FAILED": self.failed, "SKIPPED": self.skipped}
        done = set()
        for result, name in RESULT.findall(text):
            if name not in done:  # failures are listed once more at the end
                lists[result].append(name)
                done.add(name)
        begun = BEGUN.findall(text)
        return begun[-1] if begun and begun[-1] not in done else None

    def add(self, other):
        for name in LISTS:
            getattr(self, name).extend(getattr(other, name))


def run_part(command, names, environment, log, deadline, silence):
    tally = Tally()
    left = list(names)
    while left and time.monotonic() < deadline:
        ended = gpu_programs.run([*command, "--gtest_filter=" + ":".join(left)], environment, log, deadline - time.monotonic(), silence)
        last = tally.read(ended.text)
        done = {*tally.passed, *tally.failed, *tally.skipped}
        left = [name for name in left if name not in done]
        if ended.status is None and not ended.hung:
            break
        if last is None and ended.status in (0, 1):  # 1: tests failed
            break
        (tally.hung if ended.hung else tally.crashed).append(last or OUTSIDE)
        if last is None or len(tally.hung) + len(tally.crashed) == MOST_LOST:
            break
        left.remove(last)
    tally.undone += left
    return tally


def run_tests(command, environment, log, limit, parts, words=()):
    """The counts of a program's tests as JSON, and all output. words: a tool that runs the command, with its options."""
    start = time.monotonic()
    deadline = start + limit
    environment = {"STRETTO_TIMEOUT": RANKS_WAIT, **environment}
    silence = SILENCE * (UNDER_TOOL if words else 1)
    names = tests_of(command, environment, f"{log}.txt", limit)
    tally = Tally()
    with concurrent.futures.ThreadPoolExecutor(parts) as pool:
        runs = [pool.submit(run_part, [*words, *command], names[part::parts], environment, f"{log}_{part}.txt", deadline, silence)
                for part in range(min(parts, len(names)))]
        for one in runs:
            tally.add(one.result())
    only_in_company = []
    if not words:
        for name in tally.failed[:MOST_ALONE]:
            alone = run_part(command, [name], environment, f"{log}_alone.txt", min(deadline, time.monotonic() + 60), silence)
            if alone.passed:
                only_in_company.append(name)
    return {"tests": len(names), "passed": len(tally.passed), "skipped": len(tally.skipped), "failed": sorted(tally.failed),
            "failed_only_in_company": only_in_company, "crashed": sorted(tally.crashed), "hung": sorted(tally.hung),
            "out_of_time": sorted(tally.undone), "seconds": round(time.monotonic() - start, 1)}, "\n".join(tally.texts)
