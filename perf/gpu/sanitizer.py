"""Runs the tests of kernels under compute-sanitizer, which finds accesses out of bounds and races in shared memory."""
import re
import time

from perf.gpu import programs as gpu_programs
from perf.gpu import test_runs

# Only the library's own kernels, recognised by the mangled name of its namespace: NVIDIA's libraries are slow under the tool, and
# findings in them are not ours to mend.
KERNELS = ["--kernel-name", "kns=7stretto"]
# memcheck reports an unsuccessful call as a finding, and asking the driver for a function that it lacks is an unsuccessful call.
CHECKS = {"memcheck": ["--report-api-errors", "no"], "racecheck": []}
SUMMARY = {"memcheck": re.compile(r"ERROR SUMMARY: (\d+) error"),
           "racecheck": re.compile(r"RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) errors?, (\d+) warnings?\)")}
FINDING = re.compile(r"^========= ((?:Invalid|Misaligned|Error|Warning|Race|Program hit|Potential).*)$", re.M)
REFUSAL = re.compile(r"^.*not supported.*$", re.M | re.I)
FIRST_TRY = 90  # seconds


def obstacle(words, command, environment, log, limit):
    """Why the tool cannot check this GPU, or None. One test is enough to find out; all of them would take minutes."""
    name = test_runs.tests_of(command, environment, f"{log}_first.txt", limit)[0]
    tally = test_runs.run_part([*words, *command], [name], environment, f"{log}_first.txt", time.monotonic() + limit, limit)
    text = "\n".join(tally.texts).strip()
    refusal = REFUSAL.search(text)
    if not refusal and (tally.passed or tally.failed):
        return None
    if tally.skipped and not refusal:
        return f"under compute-sanitizer {name} is skipped, as all others would be; its log says why"
    said = refusal[0] if refusal else (text or "nothing").splitlines()[-1]
    return f"compute-sanitizer cannot check this GPU; for {name} it says: {said.strip('= ')}"


def findings(check, text):
    numbers = [sum(map(int, found)) if isinstance(found, tuple) else int(found) for found in SUMMARY[check].findall(text)]
    return {"summaries": len(numbers), "findings": sum(numbers), "examples": sorted(set(FINDING.findall(text)))[:20]}


def run(program, environment, log, limit, parts):
    tool = gpu_programs.compute_sanitizer()
    if tool is None:
        return {"error": "there is no compute-sanitizer on this machine"}
    deadline = time.monotonic() + limit
    words = {check: [tool, "--tool", check, *KERNELS, *options] for check, options in CHECKS.items()}
    if why := obstacle(words["memcheck"], [program], environment, log, min(limit, FIRST_TRY)):
        return {"error": why}
    result = {}
    for number, check in enumerate(CHECKS):
        share = (deadline - time.monotonic()) / (len(CHECKS) - number)
        counts, text = test_runs.run_tests([program], environment, f"{log}_{check}", share, parts, words[check])
        result[check] = {**counts, **findings(check, text)}
    return result
