"""./dev gpu run: tests and measures Stretto on this machine's GPU, step by step. A step that fails stops none of the others. Writes
perf/results/NAME.json, named like the GPU, and logs of each step (runs/gpu/). Exits with status 0 if all that is asked of the steps
of this call holds.

  tests        kernels, tensors, streams and graphs
  collectives  every collective by every plan, 1 to 8 ranks that share the GPU; NCCL with one rank
  processes    the same for 3 ranks that are processes, by CUDA IPC and through the host
  parity       the trainer compared with numbers of the host and of PyTorch
  kernels      speed of kernels compared with a copy and with the best matrix product
  overlap      part of the communication of two ranks that is hidden behind matrix products
  gpt2         a step of GPT-2 124M compared with PyTorch's
  sanitizer    the tests of kernels again under compute-sanitizer: memcheck, racecheck
"""
import argparse
import datetime
import json
import math
import os
import pathlib
import re
import sys
import time

from perf.gpu import machine as gpu_machine
from perf.gpu import programs as gpu_programs
from perf.gpu import results as gpu_results
from perf.gpu import sanitizer, test_runs
from perf.pages import gpu as page

# Seconds that each step may take.
LIMITS = {"tests": 240, "collectives": 180, "processes": 120, "parity": 150, "kernels": 180, "overlap": 120, "gpt2": 420, "sanitizer": 540}
LEAST = 30  # seconds; a step that has less is not begun
TEST_PROGRAMS = {"tests": "gpu_tests", "collectives": "gpu_collectives_tests", "processes": "gpu_processes_tests",
                 "parity": "gpu_parity_tests"}
CASES_FAILED = 3  # status of a program that came to its end although cases failed; their rows have an error
NOTE = re.compile(r"^(?:\[[^\]]*\] )*(.*own kernels.*)$", re.M)  # logged if cuDNN refuses a case, which is then slower


class Run:
    def __init__(self, programs, logs, parts):
        self.programs, self.logs, self.parts = programs, logs, parts

    def environment(self, **others):
        """The variables that the user has set stay."""
        return {**others, **self.programs.environment()}

    def tests(self, step, limit):
        return test_runs.run_tests([self.programs.path(TEST_PROGRAMS[step])], self.environment(), self.logs / step, limit,
                                       self.parts)[0]

    def figures(self, step, command, environment, limit):
        """The file that a program wrote for --json; if the program failed, the figures that it had written until then."""
        file = self.logs / f"{step}_figures.json"
        ended = gpu_programs.run([*command, "--json", file], environment, self.logs / f"{step}.txt", limit)
        try:
            found = json.loads(file.read_text())
        except (OSError, ValueError):
            found = {}
        complete = ended.status == 0 or ended.status == CASES_FAILED and any("error" in row for row in found.get("rows", []))
        if not found or not complete:
            found["error"] = ended.sentence(step)
        if notes := sorted(set(NOTE.findall(ended.text))):
            found["notes"] = notes
        return found

    def step(self, step, limit):
        for old in self.logs.glob(f"{step}[_.]*"):
            old.unlink()
        if step in TEST_PROGRAMS:
            return self.tests(step, limit)
        if step == "kernels":
            return self.figures(step, [self.programs.path("gpu_kernels")], self.environment(STRETTO_LOG="info"), limit)
        if step == "overlap":
            return self.figures(step, [self.programs.path("gpu_overlap")], self.environment(), limit)
        if step == "gpt2":  # PyTorch keeps the environment as it is; train_speed gets the path of its libraries
            script = [sys.executable, "-B", "-m", "perf.gpu.gpt2", "--program", self.programs.path("train_speed"),
                      "--library-path", self.environment()["LD_LIBRARY_PATH"]]
            return self.figures(step, script, {"STRETTO_LOG": "info", **os.environ}, limit)
        return sanitizer.run(self.programs.path("gpu_tests"), self.environment(), self.logs / step, limit, self.parts)

    def outcome(self, step, left):
        try:
            return self.step(step, min(LIMITS[step], left))
        except Exception as error:  # the other steps still run
            return {"error": f"{type(error).__name__}: {error}"}


def measure(options, deadline):
    options.logs.mkdir(parents=True, exist_ok=True)
    with gpu_programs.programs() as programs:
        print(f"programs: {programs.description()}")
        head = gpu_programs.commit()
        if head not in ("unknown", programs.version["commit"]):
            print(f"warning: this checkout is at {head}; './dev gpu bundle' makes a bundle of it.")
        here = gpu_machine.machine(programs, options.logs / "info.txt")
        print(f"library: {here['gpu']}; " + ", ".join(f"{part} {version}" for part, version in here["stretto"].items()), flush=True)
        file = gpu_results.file_of(here["gpu"])
        results = gpu_results.read(file) if file.exists() else {"gpu": here["gpu"], "steps": {}}
        results["machine"] = here
        run = Run(programs, options.logs, options.parts)
        not_begun = []
        for step in options.steps or LIMITS:
            print(f"{step} ...", flush=True)
            begun, start = datetime.datetime.now(datetime.timezone.utc), time.monotonic()
            if deadline - start < LEAST:
                print(f"  not begun: {max(deadline - start, 0):.0f} s of --budget are left, and a step needs {LEAST}", flush=True)
                not_begun.append(step)  # the results of an earlier call stay
                continue
            outcome = run.outcome(step, deadline - start)
            results["steps"][step] = {"command": "./dev gpu run " + step, "commit": programs.version["commit"],
                                      "machine": gpu_machine.short(here), "date": begun.isoformat(timespec="seconds"),
                                      **outcome, "seconds": round(time.monotonic() - start, 1)}
            gpu_results.write(results, file)
            if options.out:
                gpu_results.hand_out(file, options.logs, options.out)
            try:
                lines = list(page.lines_of_step(step, results))
            except Exception as error:  # figures that cannot be shown must not stop the steps that follow
                lines = [f"the figures of this step cannot be shown: {type(error).__name__}: {error}"]
            print("".join(f"  {line}\n" for line in lines), end="", flush=True)
    return results, not_begun


def main():
    parser = argparse.ArgumentParser(prog="./dev gpu run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", metavar="STEP", help="default: all of them, in this order")
    parser.add_argument("--budget", type=float, help="seconds that all steps together may take; the last ones get the rest")
    parser.add_argument("--out", type=pathlib.Path, help="directory for copies of the results after each step, and for logs.tar.gz")
    parser.add_argument("--logs", type=pathlib.Path, default=gpu_programs.ROOT / "runs/gpu")
    parser.add_argument("--parts", type=int, default=min(8, len(os.sched_getaffinity(0))), help="processes that run tests at the same time")
    parser.add_argument("--from", dest="files", nargs="+", type=pathlib.Path, metavar="FILE",
                        help="measure nothing; judge the newest results of each step in these files, all of one kind of GPU")
    parser.add_argument("--write-docs", action="store_true",
                        help="put the figures of all files in perf/results, to which those of --from are added, into docs/performance.md")
    options = parser.parse_args()
    for step in options.steps:
        if step not in LIMITS:
            parser.error(f"there is no step '{step}'; choose among {', '.join(LIMITS)}")
    if options.files and (options.steps or options.budget is not None or options.out):
        parser.error("--from measures nothing; give it no step, --budget or --out")
    options.logs = options.logs.resolve()
    performance = gpu_programs.ROOT / "docs/performance.md"
    not_begun = []
    if options.write_docs:
        page.SECTION.around(performance)
    if options.files:
        results = gpu_results.merged(options.files)
        file = gpu_results.file_of(results["gpu"])
        if options.write_docs:
            results = gpu_results.merged([*options.files, *([file] if file.exists() else [])])
            gpu_results.write(results, file)
    else:
        if not gpu_programs.has_gpu():
            sys.exit("error: this machine has no GPU of NVIDIA's; run './dev gpu run' on one that has.")
        results, not_begun = measure(options, time.monotonic() + (math.inf if options.budget is None else options.budget))
    print(page.report(results))
    if options.write_docs:
        page.SECTION.replace(performance, "\n\n".join(page.section(each) for each in gpu_results.stored()))
    asked = options.steps or LIMITS
    holds = all(verdict.holds for verdict in page.verdicts(results) if verdict.step in asked)
    return 0 if holds and not not_begun else 1


if __name__ == "__main__":
    sys.exit(main())
