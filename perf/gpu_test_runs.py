"""GoogleTest programs in several processes at a time, each with a part of the tests. What a crash leaves undone is run again
without the test that crashed, and what fails is run again alone: on a GPU, one test's failure can be another's fault."""
import concurrent.futures
import re
import time

import gpu_programs

RESULT = re.compile(r"^\[ +(OK|FAILED|SKIPPED) +\] ([^\s,]+).*\(\d+ ms\)$", re.M)
BEGUN = re.compile(r"^\[ RUN +\] (\S+)$", re.M)
MOST_CRASHES = 5  # of a part, until its rest is given up
MOST_ALONE = 20   # tests that are run again alone


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


class Tally:
    def __init__(self):
        self.passed, self.failed, self.skipped, self.crashed, self.undone = [], [], [], [], []
        self.texts = []

    def read(self, text):
        """Counts what a program printed; returns the test in which it ended, if in one."""
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
        for name in ("passed", "failed", "skipped", "crashed", "undone", "texts"):
            getattr(self, name).extend(getattr(other, name))


def run_part(command, names, environment, log, deadline):
    tally = Tally()
    left = list(names)
    while left:
        ended = gpu_programs.run([*command, "--gtest_filter=" + ":".join(left)], environment, log, deadline - time.monotonic())
        last = tally.read(ended.text)
        done = {*tally.passed, *tally.failed, *tally.skipped}
        left = [name for name in left if name not in done]
        if ended.status is None or not left:
            break
        if last is None or len(tally.crashed) == MOST_CRASHES:
            break
        tally.crashed.append(last)
        left.remove(last)
    tally.undone += left
    return tally


def run_tests(command, environment, log, limit, parts, words=()):
    """The counts of a program's tests as JSON, and all that was printed. words stand before the command: a tool that looks at
    it."""
    deadline = time.monotonic() + limit
    start = time.monotonic()
    names = listed(gpu_programs.run([*command, "--gtest_list_tests"], environment, f"{log}.txt", 60).text)
    tally = Tally()
    with concurrent.futures.ThreadPoolExecutor(parts) as pool:
        runs = [pool.submit(run_part, [*words, *command], names[part::parts], environment, f"{log}_{part}.txt", deadline)
                for part in range(min(parts, len(names)))]
        for one in runs:
            tally.add(one.result())
    only_in_company = []
    if not words:
        for name in tally.failed[:MOST_ALONE]:
            alone = run_part(command, [name], environment, f"{log}_alone.txt", min(deadline, time.monotonic() + 60))
            if alone.passed:
                only_in_company.append(name)
    return {"tests": len(names), "passed": len(tally.passed), "skipped": len(tally.skipped), "failed": sorted(tally.failed),
            "failed_only_in_company": only_in_company, "crashed": sorted(tally.crashed), "out_of_time": sorted(tally.undone),
            "seconds": round(time.monotonic() - start, 1)}, "\n".join(tally.texts)
