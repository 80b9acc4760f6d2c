#!/usr/bin/env python3
"""./dev gpu run: what Stretto does on this machine's GPU, tested and measured in one go, step by step; a step that fails stops
none of the others. Writes perf/results/NAME.json, named like the GPU, and a log for each step.

  tests        kernels, tensors, streams and graphs
  collectives  every collective by every plan, 1 to 8 ranks that share the GPU; NCCL with one rank
  processes    the same of 3 ranks that are processes, by CUDA IPC and by way of the host
  parity       the trainer beside the host's and PyTorch's numbers
  kernels      how fast kernels are beside a copy and the best matrix product
  overlap      how much communication of two ranks is hidden behind products
  gpt2         a step of GPT-2 124M beside PyTorch's
  sanitizer    the tests of kernels again under compute-sanitizer: memcheck, racecheck
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import tempfile

import gpu_page
import gpu_programs
import gpu_test_runs

# Of a step, seconds: a machine with a GPU is lent for short.
LIMITS = {"tests": 240, "collectives": 180, "processes": 120, "parity": 150, "kernels": 180, "overlap": 120, "gpt2": 420, "sanitizer": 420}
SUMMARY = {"memcheck": re.compile(r"ERROR SUMMARY: (\d+) error"),
           "racecheck": re.compile(r"RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) errors?, (\d+) warnings?\)")}
FINDING = re.compile(r"^========= ((?:Invalid|Misaligned|Error|Warning|Race|Program hit|Potential).*)$", re.M)


def first_line(command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip().splitlines()[0] if done.stdout.strip() else ""


def machine():
    query = "name,driver_version,memory.total,clocks.max.sm,clocks.max.memory,power.limit"
    words = [word.strip() for word in first_line(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]).split(",")]
    gpu = dict(zip(query.split(","), words)) if len(words) == len(query.split(",")) else {}
    with open("/proc/cpuinfo") as file:
        cpu = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "unknown processor")
    versions = "import torch; print(torch.__version__, torch.version.cuda, torch.backends.cudnn.version(), torch.cuda.nccl.version())"
    return {"gpu": gpu, "cpu": cpu, "cores": len(os.sched_getaffinity(0)), "kernel": platform.release(),
            "torch_cuda_cudnn_nccl": first_line([sys.executable, "-c", versions]),
            "libraries": gpu_programs.cuda_directories()}


def results_name(gpu):
    """NVIDIA H100 80GB HBM3 becomes h100_80gb_hbm3."""
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"^nvidia\s+", "", gpu.lower())).strip("_")


class Run:
    def __init__(self, programs, logs, parts):
        self.programs, self.logs, self.parts = programs, logs, parts
        self.environment = programs.environment()

    def log(self, name):
        return self.logs / name

    def forget_logs(self, step):
        for name in SUMMARY if step == "sanitizer" else (step,):
            for old in (*self.logs.glob(f"{name}.txt"), *self.logs.glob(f"{name}_*.txt")):
                old.unlink()

    def tests(self, step, program):
        return gpu_test_runs.run_tests([self.programs.path(program)], self.environment, self.log(step), LIMITS[step],
                                       self.parts)[0]

    def figures(self, step, command, environment=None):
        """What a program writes where its --json says."""
        with tempfile.TemporaryDirectory() as directory:
            file = pathlib.Path(directory) / "figures.json"
            ended = gpu_programs.run([*command, "--json", file], environment or self.environment, f"{self.log(step)}.txt",
                                     LIMITS[step])
            if ended.status != 0 or not file.exists():
                last = ended.text.strip().splitlines()[-1:] or ["nothing"]
                how = "ran out of time" if ended.status is None else f"ended with status {ended.status}"
                return {"error": f"{pathlib.Path(command[0]).name} {how}, its last word: {last[0]}"}
            return json.loads(file.read_text())

    def gpt2(self):
        script = [sys.executable, gpu_programs.ROOT / "perf/gpu_gpt2.py", "--program", self.programs.path("train_speed"),
                  "--library-path", self.environment["LD_LIBRARY_PATH"]]
        return self.figures("gpt2", script, dict(os.environ))

    def sanitizer(self):
        tool = gpu_programs.compute_sanitizer()
        if tool is None:
            return {"error": "There is no compute-sanitizer on this machine."}
        result = {}
        for check, summary in SUMMARY.items():
            counts, text = gpu_test_runs.run_tests([self.programs.path("gpu_tests")], self.environment, self.log(check),
                                                   LIMITS["sanitizer"] / len(SUMMARY), self.parts, [tool, "--tool", check])
            found = [sum(int(number) for number in numbers) if isinstance(numbers, tuple) else int(numbers)
                     for numbers in summary.findall(text)]
            result[check] = {**counts, "summaries": len(found), "findings": sum(found),
                             "examples": sorted(set(FINDING.findall(text)))[:20]}
        return result

    def step(self, step):
        return {
            "tests": lambda: self.tests("tests", "gpu_tests"),
            "collectives": lambda: self.tests("collectives", "gpu_collectives_tests"),
            "processes": lambda: self.tests("processes", "gpu_processes_tests"),
            "parity": lambda: self.tests("parity", "gpu_parity_tests"),
            "kernels": lambda: self.figures("kernels", [self.programs.path("gpu_kernels")]),
            "overlap": lambda: self.figures("overlap", [self.programs.path("gpu_overlap")]),
            "gpt2": self.gpt2,
            "sanitizer": self.sanitizer,
        }[step]()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", metavar="STEP", help="all of them, in this order, where none is named")
    parser.add_argument("--json", type=pathlib.Path, help="where the results go; steps that are not run keep theirs")
    parser.add_argument("--logs", type=pathlib.Path, default=gpu_programs.ROOT / "runs/gpu")
    parser.add_argument("--parts", type=int, default=min(8, len(os.sched_getaffinity(0))), help="processes that test at a time")
    parser.add_argument("--from", dest="from_file", type=pathlib.Path, help="measure nothing: judge the results of this file")
    parser.add_argument("--write-docs", action="store_true", help="write the figures into docs/performance.md")
    options = parser.parse_args()
    for step in options.steps:
        if step not in LIMITS:
            parser.error(f"there is no step '{step}'; choose of {', '.join(LIMITS)}")
    page = gpu_programs.ROOT / "docs/performance.md"
    if options.write_docs:
        gpu_page.marked(page)
    if options.from_file:
        results = json.loads(options.from_file.read_text())
    else:
        if not gpu_programs.has_gpu():
            sys.exit("error: this machine has no GPU of NVIDIA's; run './dev gpu run' on one that has.")
        results = measure(options)
    print(gpu_page.report(results))
    if options.write_docs:
        gpu_page.write_docs(results, page)
    return 0 if all(verdict.holds for verdict in gpu_page.verdicts(results)) else 1


def measure(options):
    here = machine()
    name = here["gpu"].get("name") or "unknown GPU"
    file = options.json or gpu_programs.ROOT / "perf/results" / f"{results_name(name)}.json"
    results = json.loads(file.read_text()) if file.exists() else {}
    if results.get("gpu") != name:
        results = {"gpu": name, "steps": {}}
    results["machine"] = here
    options.logs.mkdir(parents=True, exist_ok=True)
    file.parent.mkdir(parents=True, exist_ok=True)
    with gpu_programs.programs() as programs:
        run = Run(programs, options.logs, options.parts)
        gpu_programs.run([programs.path("stretto-info")], run.environment, options.logs / "info.txt", 60)
        for step in options.steps or LIMITS:
            print(f"{step} ...", flush=True)
            run.forget_logs(step)
            start = datetime.datetime.now(datetime.timezone.utc)
            try:
                outcome = run.step(step)
            except Exception as error:  # the next step may do better
                outcome = {"error": f"{type(error).__name__}: {error}"}
            results["steps"][step] = {"command": "./dev gpu run " + step, "commit": programs.version.get("commit", "unknown"),
                                      "date": start.date().isoformat(),
                                      "seconds": round((datetime.datetime.now(datetime.timezone.utc) - start).total_seconds(), 1),
                                      **outcome}
            new = file.with_suffix(".new")
            new.write_text(json.dumps(results, indent=1) + "\n")
            new.replace(file)  # after each step: the machine may be gone before the next
            for line in gpu_page.lines_of_step(step, results["steps"][step]):
                print("  " + line, flush=True)
    return results


if __name__ == "__main__":
    sys.exit(main())
