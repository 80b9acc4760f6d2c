"""./dev gpu: its error without a GPU; how it counts tests, judges results, merges them and writes them into the page, with a control
beside each. Nothing here needs a GPU: scripts print the output of the real programs."""
import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
from unittest import mock

ROOT = pathlib.Path(os.environ["ROOT"])
sys.path.insert(0, str(ROOT))
from perf.gpu import programs as gpu_programs  # noqa: E402
from perf.gpu import results as gpu_results  # noqa: E402
from perf.gpu import run as gpu_run  # noqa: E402
from perf.gpu import sanitizer, test_runs  # noqa: E402
from perf.pages import gpu as page  # noqa: E402


def counts(tests=10, **others):
    made = {"tests": tests, "passed": tests, "skipped": 0, "failed": [], "failed_only_in_company": [], "crashed": [],
            "hung": [], "out_of_time": [], "seconds": 1.0, **others}
    missing = sum(len(made[name]) for name in page.LOST) + made["skipped"]
    return {**made, "passed": tests - missing}


def row(kernel, ratio, what="some"):
    return {"kernel": kernel, "what": what, "us": 100.0, "bytes": ratio * 4e8, "ratio_to_copy": ratio}


def good_results():
    ran = {"commit": "abc", "date": "2000-01-01", "command": "./dev gpu run", "seconds": 1.0, "machine": "GPU-1, driver 1.2"}
    checked = {**counts(), "summaries": 4, "findings": 0, "examples": []}
    return {
        "gpu": "A GPU",
        "machine": {"cpu": "A processor", "cores": 2, "stretto": {"CUDA": "13"}, "packages": {"torch": "9"}},
        "steps": {
            "tests": {**ran, **counts(100, skipped=3)}, "collectives": {**ran, **counts()},
            "processes": {**ran, **counts()}, "parity": {**ran, **counts()},
            "kernels": {**ran, "copy_bytes_a_second": 4e12, "matrix_flops_a_second": 7e14,
                        "rows": [row(kernel, ratio) for kernel in page.HELD_TO_COPY for ratio in (0.9, 0.86)]
                        + [{"kernel": "gemm", "what": "square", "us": 1000.0, "flops": 7e11}]},
            "overlap": {**ran, "ranks": 2, "layers": 16, "hidden": 4096, "rows": [
                {"step": "summed_gradients", "rows": rows, "t_full_ms": 10.5, "t_compute_ms": 10.0, "t_comm_ms": 5.0,
                 "t_serial_ms": 15.5, "exposed_ms": 0.5, "efficiency": efficiency} for rows, efficiency in ((4096, 0.7), (8192, 0.9))]},
            "gpt2": {**ran, "model": {"layers": 12, "hidden": 768, "seq_length": 1024, "batch": 32}, "flops_per_step": 4e13,
                     "step_ms": {"stretto": 100.0, "torch_autocast": 110.0}, "best_peer": "torch_autocast", "times_as_fast": 1.1,
                     "torch_matrix_flops_a_second": 7.5e14, "torch": "9"},
            "sanitizer": {**ran, "memcheck": dict(checked), "racecheck": dict(checked)},
        },
    }


def held(results):
    return {verdict.text.split(":")[0]: verdict.holds for verdict in page.verdicts(results)}


class WithoutAGpu(unittest.TestCase):
    def test_one_sentence(self):
        if gpu_programs.has_gpu():
            self.skipTest("this machine has a GPU")
        for words in (["./dev", "gpu"], ["./dev", "gpu", "run"]):
            done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertRegex(done.stderr, r"\Aerror: this machine has no GPU of NVIDIA's; [^\n]*\.\n\Z")


def put(value, *path):
    """Sets what lies on that path of the steps."""
    def spoil(steps):
        for key in path[:-1]:
            steps = steps[key]
        steps[path[-1]] = value
    return spoil


class Verdicts(unittest.TestCase):
    def test_all_that_is_asked_holds(self):
        self.assertEqual(set(held(good_results()).values()), {True})
        self.assertAlmostEqual(page.utilisation(good_results())["stretto"], 4e13 / 0.1 / 7.5e14)  # of the best rate

    def test_what_falls_short(self):
        """A change of the steps; the verdicts that do not hold any more (of None it is not known); and what the page has."""
        error = {"error": "out of | memory\nat all."}
        for spoil, expected, shown in (
                (put(["A.b"], "collectives", "failed"), [False], ""),
                (put(["outside of any test"], "tests", "crashed"), [False], ""),
                (put(1, "sanitizer", "racecheck", "findings"), [False], ""), (put(0, "sanitizer", "memcheck", "summaries"), [False], ""),
                (put(0.84, "kernels", "rows", 3, "ratio_to_copy"), [False], "84% of a copy"),
                (put(0.99, "gpt2", "times_as_fast"), [False], ""), (put(9e14, "kernels", "matrix_flops_a_second"), [False], "| gemm |"),
                (put([], "overlap", "rows"), [None], ""), (put([], "kernels", "rows"), [None] * len(page.HELD_TO_COPY), ""),
                (put("no luck\nat all.", "kernels", "error"), [False], "| gemm |"), (put("no luck", "gpt2", "error"), [False], "| Stretto | 100.0 |"),
                (put({"kernel": "gelu", "what": "any", **error}, "kernels", "rows", -1), [False], "| gelu | any |  |  | out of \\| memory at all. |"),
                (put({"step": "summed_gradients", "rows": 4096, **error}, "overlap", "rows", 0), [False], "| summed gradients | 4096 |  |"),
                (lambda steps: steps.pop("gpt2"), [None], "")):
            results = good_results()
            spoil(results["steps"])
            self.assertEqual([verdict.holds for verdict in page.verdicts(results) if not verdict.holds], expected, (expected, shown))
            self.assertIn(shown, page.section(results))
            page.report(results)

    def test_notes_and_rates_of_another_machine(self):
        results = good_results()
        results["steps"]["kernels"]["notes"] = gpu_run.NOTE.findall("[x] [stretto] [info] Attention takes the library's own kernels: [why]\nmore")
        self.assertIn("- note of kernels: Attention takes the library's own kernels: [why]\n", page.section(results))
        results["steps"]["kernels"].update(machine="GPU-2, driver 1.2", matrix_flops_a_second=8e14)
        self.assertAlmostEqual(page.utilisation(results)["stretto"], 4e13 / 0.1 / 7.5e14)

    def test_tests_that_prove_nothing(self):
        self.assertTrue(page.all_passed(counts(5, skipped=4)))
        for nothing in (counts(5, skipped=5), {**counts(5), "hung": [test_runs.OUTSIDE]}):
            self.assertFalse(page.all_passed(nothing))


class Files(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.at = pathlib.Path(directory.name)

    def test_figures_go_between_the_marks(self):
        page.SECTION.around(ROOT / "docs/performance.md")
        file = self.at / "page.md"
        file.write_text(f"before\n{page.SECTION.begin}\nstale\n{page.SECTION.end}\nafter\n")
        page.SECTION.replace(file, page.section(good_results()))
        text = file.read_text()
        self.assertTrue(text.startswith("before\n") and text.endswith("after\n") and "stale" not in text, text)
        for line in ("| gemm | square | 1000.0 | 700 TFLOP/s | 0.93 of the matrix rate |", "| Stretto | 100.0 | 327,680 | 0.53 |"):
            self.assertIn(line, text)

    def test_the_command_judges_a_file(self):
        for results, status in ((good_results(), 0), ({**good_results(), "steps": {}}, 1)):
            (self.at / "a_gpu.json").write_text(json.dumps(results))
            done = subprocess.run([sys.executable, "-B", "-m", "perf.gpu.run", "--from", self.at / "a_gpu.json"], cwd=ROOT, capture_output=True,
                                  text=True)
            self.assertEqual(done.returncode, status, done.stderr)

    def test_the_newest_of_each_step_counts(self):
        self.assertEqual([gpu_results.name_of(gpu) for gpu in ("NVIDIA H200", "NVIDIA H100 80GB HBM3")], ["h200", "h100_80gb_hbm3"])
        files = [self.at / f"{name}.json" for name in ("old", "new", "other")]
        old, new, other = good_results(), good_results(), {**good_results(), "gpu": "Another GPU"}
        new["steps"] = {"tests": {**new["steps"]["tests"], "date": "2000-01-01T09:00:00+00:00", **counts(7)}}
        new["machine"]["cores"] = 3
        for file, results in zip(files, (old, new, other)):
            file.write_text(json.dumps(results))
        for order in (files[:2], files[1::-1]):
            found = gpu_results.merged(order)
            self.assertEqual((found["steps"]["tests"]["tests"], found["steps"]["parity"]["tests"], found["machine"]["cores"]), (7, 10, 3))
        with self.assertRaises(SystemExit):
            gpu_results.merged([files[0], files[2]])


# Speaks as GoogleTest programs do. Good.two crashes where it is not alone in its process from there on, Good.three fails in
# company, Bad.one always. The test that SLEEPS names sleeps.
PROGRAM = '''
    import sys, time
    names = ["Good.one", "Good.two", "Good.three", "Bad.one", "Odd/Good.skips/0"]
    if "--gtest_list_tests" in sys.argv:
        print("Good.\\n  one\\n  two\\n  three\\nBad.\\n  one\\nOdd/Good.\\n  skips/0  # GetParam() = 7")
        sys.exit()
    chosen = next(word for word in sys.argv if word.startswith("--gtest_filter=")).split("=", 1)[1].split(":")
    print("Running main() from somewhere\\n[==========] Running tests.")
    for name in (name for name in names if name in chosen):
        print(f"[ RUN      ] {name}", flush=True)
        if name == "Good.two":
            sys.exit(139)
        if name == "SLEEPS":
            time.sleep(60)
        failed = name == "Bad.one" or name == "Good.three" and len(chosen) > 1
        words = "  FAILED  " if failed else "  SKIPPED " if "skips" in name else "       OK "
        print(f"[{words}] {name}{', where GetParam() = 7' if failed else ''} (1 ms)")
    print("[  FAILED  ] Bad.one")
'''


class TestRuns(unittest.TestCase):
    def run_program(self, limit=60, sleeps="", parts=1):
        with tempfile.TemporaryDirectory() as directory:
            program = pathlib.Path(directory) / "program.py"
            program.write_text(textwrap.dedent(PROGRAM).replace("SLEEPS", sleeps))
            found, text = test_runs.run_tests([sys.executable, str(program)], dict(os.environ), pathlib.Path(directory) / "log",
                                                  limit, parts)
            self.assertIn("Running main()", text)
            self.log = (pathlib.Path(directory) / "log_0.txt").read_text()
            self.assertIn("$ ", self.log)
            return found

    def test_a_crash_and_failures_are_told_apart(self):
        for parts in (1, 2):
            found = self.run_program(parts=parts)
            self.assertEqual(found["tests"], 5)
            self.assertEqual(found["crashed"], ["Good.two"])
            self.assertEqual(found["failed"], ["Bad.one", "Good.three"])
            self.assertEqual(found["failed_only_in_company"], ["Good.three"])
            self.assertEqual((found["passed"], found["skipped"], found["out_of_time"]), (1, 1, []))

    def test_the_limit_ends_it(self):
        found = self.run_program(limit=2, sleeps="Good.three")
        self.assertEqual((found["out_of_time"], found["hung"]), (["Bad.one", "Good.three", "Odd/Good.skips/0"], []))
        self.assertLess(found["seconds"], 30)

    @mock.patch.object(test_runs, "SILENCE", 1)
    def test_a_hang_costs_one_test(self):
        found = self.run_program(sleeps="Bad.one")
        self.assertEqual((found["hung"], found["crashed"], found["out_of_time"]), (["Bad.one"], ["Good.two"], []))
        self.assertEqual((found["passed"], found["skipped"]), (1, 1))
        self.assertRegex(self.log, r"\n# \d+/\d+ comm \S+.*\n# fell silent after ")

    def test_a_program_without_tests_is_an_error(self):
        with tempfile.TemporaryDirectory() as directory, self.assertRaisesRegex(RuntimeError, "no tests were listed: .* status 3, .*: no"):
            test_runs.run_tests(["sh", "-c", "echo no; exit 3"], dict(os.environ), pathlib.Path(directory) / "log", 60, 1)

    def test_findings_of_the_sanitizer(self):
        self.assertEqual(sanitizer.findings("memcheck", "========= Invalid __global__ write of size 4 bytes\n=========     at here\n"
                                                "========= ERROR SUMMARY: 3 errors\n"),
                         {"summaries": 1, "findings": 3, "examples": ["Invalid __global__ write of size 4 bytes"]})
        self.assertEqual(sanitizer.findings("racecheck", "========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)\n"),
                         {"summaries": 1, "findings": 2, "examples": []})


INFO = """  with CUDA        13.0
  with NCCL        no

GPU
  NVIDIA A100, compute capability 8.0, 79.1 GiB, 108 multiprocessors
  number 0 of the 1 here, GPU-01234567-89ab
"""


class WholeRuns(unittest.TestCase):
    """With scripts in the place of programs."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.at = pathlib.Path(directory.name)
        self.program("stretto-info", f"print({INFO!r})")
        self.program("gpu_tests", """
            import sys
            print("Good.\\n  one" if "--gtest_list_tests" in sys.argv else "[ RUN      ] Good.one\\n[       OK ] Good.one (1 ms)")""")
        for name, changed in (("programs.ROOT", self.at), ("programs.BUNDLE", self.at / "none"), ("programs.PROGRAMS", ()),
                              ("programs.has_gpu", lambda: True), ("results.DIRECTORY", self.at / "results")):
            patch = mock.patch(f"perf.gpu.{name}", changed)
            patch.start()
            self.addCleanup(patch.stop)
        (self.at / "docs").mkdir()

    def program(self, name, text):
        file = self.at / "build/bin" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!{sys.executable}\n" + textwrap.dedent(text))
        file.chmod(0o755)

    def run_gpu(self, *words):
        out = io.StringIO()
        with mock.patch.object(sys, "argv", ["run", *words]), contextlib.redirect_stdout(out):
            status = gpu_run.main()
        return status, out.getvalue()

    def results(self):
        return json.loads((self.at / "results/a100.json").read_text())

    def test_the_status_is_of_the_steps_of_this_call(self):
        self.program("gpu_kernels", "import sys; sys.exit('error: bad luck')")
        self.assertEqual(self.run_gpu("kernels")[0], 1)
        status, out = self.run_gpu("tests", "--out", str(self.at / "out"))
        self.assertEqual(status, 0)
        self.assertIn("library: NVIDIA A100; CUDA 13.0, NCCL no\n", out)
        self.assertRegex(out, "FALLS SHORT: kernels .*: kernels ended with status 1, its last words: error: bad luck\n")
        self.assertEqual(set(self.results()["steps"]), {"kernels", "tests"})
        self.assertEqual(sorted(file.name for file in (self.at / "out").iterdir()), ["a100.json", "logs.tar.gz"])

    def test_steps_beyond_the_budget_keep_their_earlier_results(self):
        self.assertEqual(self.run_gpu("tests")[0], 0)
        before = self.results()["steps"]["tests"]
        with mock.patch.object(gpu_run, "LEAST", 3):
            self.program("gpu_kernels", "import time; time.sleep(60)")
            status, out = self.run_gpu("kernels", "tests", "--budget", "5")
        self.assertEqual(status, 1)
        self.assertIn("kernels ran out of time", out)
        self.assertRegex(out, r"tests ...\n  not begun: [012] s of --budget are left, and a step needs 3\n")
        self.assertEqual(self.results()["steps"]["tests"], before)
        with mock.patch.object(gpu_run, "LEAST", 3):
            self.assertEqual(self.run_gpu("tests", "--budget", "2")[0], 1)

    def test_figures_of_a_program_that_ended_badly_are_kept(self):
        write = """
            import json, pathlib, sys
            rows = [{"kernel": "reduce", "what": "all", "us": 1.0, "bytes": 1.0, "ratio_to_copy": 0.9}, *LAST]
            pathlib.Path(sys.argv[2]).write_text(json.dumps({"copy_bytes_a_second": 1.0, "matrix_flops_a_second": 0.0, "rows": rows}))
            sys.exit(3)"""
        self.program("gpu_kernels", write.replace("LAST", "[]"))
        self.assertEqual(self.run_gpu("kernels")[0], 1)
        self.assertEqual(self.results()["steps"]["kernels"]["error"], "kernels ended with status 3 without a word")
        self.assertEqual(len(self.results()["steps"]["kernels"]["rows"]), 1)
        self.program("gpu_kernels", write.replace("LAST", '[{"kernel": "gemm", "what": "all", "error": "no"}]'))
        status, out = self.run_gpu("kernels")
        self.assertEqual(status, 1)
        self.assertNotIn("error", self.results()["steps"]["kernels"])
        self.assertIn("FALLS SHORT: gemm, all: no\n", out)
        self.assertIn("holds: reduce: at least 90%", out)

    def test_no_step_runs_if_the_library_sees_no_gpu(self):
        for text, why in (("print('GPU\\n  none: because.')", "sees no GPU; stretto-info says: none: because"),
                          ("import sys; sys.exit('error: bad')", "stretto-info ended with status 1, its last words: error: bad")):
            self.program("stretto-info", text)
            with self.assertRaisesRegex(SystemExit, why):
                self.run_gpu("tests")
            self.assertFalse((self.at / "results").exists())


class Ending(unittest.TestCase):
    def test_nothing_that_a_program_has_started_is_left(self):
        with tempfile.TemporaryDirectory() as directory:
            log = pathlib.Path(directory) / "log.txt"
            ended = gpu_programs.run(["sh", "-c", "sleep 600 & echo $!"], dict(os.environ), log, 60)
            self.assertEqual(ended.status, 0)
            child = pathlib.Path(f"/proc/{ended.text.strip()}/stat")
            for _ in range(100):
                if not child.exists() or child.read_text().split()[2] == "Z":
                    return
                time.sleep(0.1)
            self.fail("it still runs")


if __name__ == "__main__":
    unittest.main()
