"""PyTorch 2's own tests of torch.distributed, on Gloo and on this backend: what passes there, and what of that does not here.

The wheel of PyTorch carries DistributedTest, which runs as it is. Its gates ("only Gloo supports ...") are lifted, except those
for GPUs; the ranks of a test are forked processes. Of the other suites the wheel has no file; what they test (FSDP2, DTensor,
pipelining, checkpoints) is in the files torch2_*_test.py, whose tests compare the results of both backends.
"""

import argparse
import importlib
import os
import pathlib
import re
import sys
import tempfile
import unittest

import torch
import torch.distributed as dist

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3]))
import stretto_torch
from beside_gloo import BesideGloo, FailsOnGloo
from perf.comparisons import programs
from perf.pages.text import DocsSection, machine_text, markdown_table

SECTION = DocsSection("./dev torch2 --suite")
LOG = programs.ROOT / "runs/torch_suites.log"
PYTORCHS = "PyTorch's DistributedTest"
# What passes on Gloo and not here, and why that is so.
DIFFERENCES = {
    "test_ddp_logging_data_cpu": "PyTorch calls every backend that is not its own `custom` in the log of DistributedDataParallel",
}
FOR_GPUS = re.compile("cuda|gpu|nccl|accelerator|torchvision", re.IGNORECASE)


def lift_gates():
    """Must precede the import of the tests, whose decorators read these."""
    from torch.testing._internal import common_distributed, common_utils

    def unless(condition, reason):
        return unittest.skipIf(condition, reason) if FOR_GPUS.search(reason) else lambda test: test

    common_utils.skip_but_pass_in_sandcastle_if = unless
    common_utils.skip_but_pass_in_sandcastle = lambda reason: unless(True, reason)
    common_distributed.skip_if_small_worldsize = lambda test: test


def pytorchs_tests(limit):
    """The class of tests, and what makes them use a backend."""
    lift_gates()
    from torch.testing._internal import common_distributed
    from torch.testing._internal.distributed import distributed_test

    common_distributed.get_timeout = lambda test: limit
    for supported in [distributed_test.PROFILING_SUPPORTED_BACKENDS, distributed_test.SEND_RECV_PROFILING_SUPPORTED_BACKENDS]:
        supported.append("stretto")

    class Here(str):
        """The name of this backend, which the tests take for Gloo's, too."""

        __hash__ = str.__hash__

        def __eq__(self, other):
            return other in (str(self), "gloo")

        def __ne__(self, other):
            return not self == other

    class DistributedTest(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            distributed_test.INIT_METHOD = os.environ["INIT_METHOD"]
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        @classmethod
        def _run(cls, *arguments, **keywords):
            if os.environ["BACKEND"] == "stretto":
                take_gloos_place()
            try:
                super()._run(*arguments, **keywords)
            finally:
                stretto_torch._leave()  # a fork ends without its exit handlers

    def use(backend):
        os.environ["BACKEND"] = backend
        distributed_test.BACKEND = Here(backend) if backend == "stretto" else backend

    return DistributedTest, use


def take_gloos_place():
    """In groups for which a test asks Gloo by name."""
    make = dist.new_group

    def new_group(*arguments, **keywords):
        if keywords.get("backend") == "gloo":
            keywords["backend"] = "stretto"
        return make(*arguments, **keywords)

    dist.new_group = new_group


class Result(unittest.TestResult):
    """Of one test: "passes", or why it does not."""

    def __init__(self):
        super().__init__()
        self.said, self.error = "passes", None

    def addError(self, test, error):
        super().addError(test, error)
        self.error = error[1]
        lines = [line.strip() for line in str(error[1]).splitlines() if re.search(r"Error|rror:|timed out", line)]
        self.said = f"fails: {(lines or [str(error[1]).strip() or repr(error[1])])[-1]}"

    addFailure = addError

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.said = f"skipped: {reason}"


def outcome(test, log):
    """How it ended, and the error. What the test and its ranks print goes into the log."""
    log.write(f"==== {test.id()}\n")
    log.flush()
    kept = [os.dup(1), os.dup(2)]
    sys.stdout.flush()
    try:
        for stream in [1, 2]:
            os.dup2(log.fileno(), stream)
        result = Result()
        test.run(result)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for stream in [1, 2]:
            os.dup2(kept[stream - 1], stream)
            os.close(kept[stream - 1])
    for _, trace in result.errors + result.failures:
        log.write(trace)
    return result.said, result.error


def own_tests():
    for file in sorted(pathlib.Path(__file__).parent.glob("torch2_*_test.py")):
        for kind in vars(importlib.import_module(file.stem)).values():
            if isinstance(kind, type) and issubclass(kind, BesideGloo) and kind.suite:
                yield kind


def chosen(kind, options):
    return [name for name in unittest.TestLoader().getTestCaseNames(kind) if options.filter.search(name)]


def run_pytorchs(options, log):
    kind, use = pytorchs_tests(options.seconds)
    outcomes = {}
    for name in chosen(kind, options):
        outcomes[name] = {}
        for backend in ["gloo", "stretto"]:
            use(backend)
            said = outcomes[name][backend] = outcome(kind(name), log)[0]
            print(f"{name} on {backend}: {said}", flush=True)
            if said.startswith("skipped"):
                break
    return outcomes


def run_own(kind, options, log):
    outcomes = {}
    for name in chosen(kind, options):
        said, error = outcome(kind(name), log)
        on_gloo = not isinstance(error, FailsOnGloo)
        outcomes[name] = {"gloo": "passes", "stretto": said} if on_gloo else {"gloo": said}
        print(f"{kind.__name__}.{name}: {said}", flush=True)
    return outcomes


def report(result):
    """The section of the page, and whether all is well."""
    rows, missing, only_here, well = [], [], 0, True
    for suite, outcomes in result["suites"].items():
        on_gloo = {name: each for name, each in outcomes.items() if each["gloo"] == "passes"}
        on_both = [name for name, each in on_gloo.items() if each["stretto"] == "passes"]
        only_here += sum(each.get("stretto") == "passes" for name, each in outcomes.items() if name not in on_gloo)
        if on_gloo:
            rows.append([suite, str(len(on_gloo)), str(len(on_both))])
        for name, each in on_gloo.items():
            if name not in on_both:
                missing.append(f"- `{name}`: {DIFFERENCES.get(name, each['stretto'])}")
                well = well and name in DIFFERENCES
    text = [f"Measured by `{result['command']}` with PyTorch {result['torch']}; {PYTORCHS} on {result['ranks']} ranks, the others on 2 "
            f"to 4; on {machine_text(result['machine'])}.", "",
            *markdown_table(["tests", "pass on Gloo", "of these on Stretto"], rows), "",
            f"{only_here} more pass on Stretto and not on Gloo. These pass on Gloo alone:" if missing else
            f"{only_here} more pass on Stretto and not on Gloo.", *([""] if missing else []), *missing]
    return "\n".join(text), well


def main():
    parser = argparse.ArgumentParser(prog="./dev torch2 --suite", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--filter", type=re.compile, default=re.compile(""), metavar="PATTERN", help="names of tests to run")
    ranks = parser.add_argument("--ranks", type=int, default=4, help=f"of {PYTORCHS} (default %(default)s)")
    parser.add_argument("--seconds", type=int, default=90, help="after which a test has failed (default %(default)s)")
    programs.add_outputs(parser, "torch_suites", "docs/pytorch.md")
    options = parser.parse_args()
    if options.earlier:
        result = programs.read_json(options.earlier)
    else:
        os.environ.update(WORLD_SIZE=str(options.ranks), BACKEND="gloo")
        suites = {}
        LOG.parent.mkdir(exist_ok=True)
        with open(LOG, "w") as log, tempfile.TemporaryDirectory() as folder:
            tempfile.tempdir = folder  # PyTorch's tests leave files
            suites[PYTORCHS] = run_pytorchs(options, log)
            for kind in own_tests():
                suites.setdefault(f"{kind.suite} (this project's)", {}).update(run_own(kind, options, log))
        result = {"torch": torch.__version__, "ranks": options.ranks, "machine": programs.machine(), "suites": suites,
                  "command": programs.command_text(parser, options, [ranks])}
        programs.write_json(options.json, result)
    section, well = report(result)
    print(section)
    if options.write_docs:
        SECTION.replace(options.write_docs, section)
    return 0 if well else f"What the failed tests said is in {LOG}."


if __name__ == "__main__":
    sys.exit(main())
