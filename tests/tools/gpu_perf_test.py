"""./dev gpu: that it says so where there is no GPU; how it counts tests, judges results and writes them into the page, with a
control beside each. Nothing here needs a GPU: programs are scripts that print what the real ones would."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

ROOT = pathlib.Path(os.environ["ROOT"])
sys.path.insert(0, str(ROOT / "perf"))
import gpu  # noqa: E402
import gpu_page as page  # noqa: E402
import gpu_programs  # noqa: E402
import gpu_test_runs  # noqa: E402


def counts(tests=10, **others):
    made = {"tests": tests, "passed": tests, "skipped": 0, "failed": [], "failed_only_in_company": [], "crashed": [],
            "out_of_time": [], "seconds": 1.0, **others}
    missing = sum(len(made[name]) for name in ("failed", "crashed", "out_of_time")) + made["skipped"]
    return {**made, "passed": tests - missing}


def row(kernel, ratio, what="some"):
    return {"kernel": kernel, "what": what, "us": 100.0, "bytes": ratio * 4e8, "ratio_to_copy": ratio}


def good_results():
    ran = {"commit": "abc", "date": "2000-01-01", "command": "./dev gpu run", "seconds": 1.0}
    checked = {**counts(), "summaries": 4, "findings": 0, "examples": []}
    return {
        "gpu": "A GPU",
        "machine": {"gpu": {"driver_version": "1.2"}, "cpu": "A processor", "cores": 2, "torch_cuda_cudnn_nccl": "9 9 9"},
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


class Verdicts(unittest.TestCase):
    def test_all_that_is_asked_holds(self):
        self.assertEqual(set(held(good_results()).values()), {True})
        self.assertEqual(len(page.verdicts(good_results())), 4 + 2 + len(page.HELD_TO_COPY) + 2 + 1)

    def test_each_can_fall_short(self):
        def failing_test(steps):
            steps["collectives"].update(counts(failed=["A.b"]))

        def finding(steps):
            steps["sanitizer"]["racecheck"]["findings"] = 1

        def no_summary(steps):
            steps["sanitizer"]["memcheck"]["summaries"] = 0

        def slow_kernel(steps):
            steps["kernels"]["rows"][3]["ratio_to_copy"] = 0.84

        def slow_step(steps):
            steps["gpt2"]["times_as_fast"] = 0.99

        def idle(steps):
            steps["kernels"]["matrix_flops_a_second"] = 9e14

        def exposed(steps):
            for each in steps["overlap"]["rows"]:
                each["efficiency"] = 0.79

        for spoil in (failing_test, finding, no_summary, slow_kernel, slow_step, idle, exposed):
            results = good_results()
            spoil(results["steps"])
            self.assertEqual(sum(verdict.holds is False for verdict in page.verdicts(results)), 1, spoil.__name__)

    def test_nothing_is_judged_that_has_not_run(self):
        results = good_results()
        results["steps"] = {"kernels": {"commit": "abc", "date": "2000-01-01", "error": "no luck"}}
        self.assertEqual(set(held(results).values()), {None})
        self.assertIn("no luck", page.report(results))
        self.assertIn("kernels failed: no luck.", page.section(results).replace("luck\n", "luck.\n"))

    def test_tests_that_were_all_skipped_prove_nothing(self):
        self.assertFalse(page.all_passed(counts(5, skipped=5)))
        self.assertTrue(page.all_passed(counts(5, skipped=4)))

    def test_utilisation_is_of_the_best_rate(self):
        self.assertAlmostEqual(page.utilisation(good_results())["stretto"], 4e13 / 0.1 / 7.5e14)


class Page(unittest.TestCase):
    def test_figures_go_between_the_marks(self):
        with tempfile.TemporaryDirectory() as directory:
            file = pathlib.Path(directory) / "page.md"
            file.write_text(f"before\n{page.BEGIN}\nstale\n{page.END}\nafter\n")
            page.write_docs(good_results(), file)
            text = file.read_text()
            self.assertTrue(text.startswith("before\n") and text.endswith("after\n"))
            self.assertNotIn("stale", text)
            self.assertIn("| gemm | square | 1000.0 | 700 TFLOP/s | 0.93 of the matrix rate |", text)
            self.assertIn("| Stretto | 100.0 | 327,680 | 0.53 |", text)
            self.assertIn("overlap efficiency, summed gradients: 0.90 at 8192 rows; asked 0.8: holds.", text)

    def test_the_committed_page_has_the_marks(self):
        page.marked(ROOT / "docs/performance.md")

    def test_the_command_judges_a_file(self):
        with tempfile.TemporaryDirectory() as directory:
            file = pathlib.Path(directory) / "a_gpu.json"
            for results, status in ((good_results(), 0), ({**good_results(), "steps": {}}, 1)):
                file.write_text(json.dumps(results))
                done = subprocess.run([sys.executable, "-B", ROOT / "perf/gpu.py", "--from", file], capture_output=True, text=True)
                self.assertEqual(done.returncode, status, done.stderr)
                self.assertIn("overlap", done.stdout)

    def test_results_are_named_like_the_gpu(self):
        self.assertEqual(gpu.results_name("NVIDIA H200"), "h200")
        self.assertEqual(gpu.results_name("NVIDIA H100 80GB HBM3"), "h100_80gb_hbm3")


# Speaks as GoogleTest programs do. Good.two crashes where it is not alone in its process from there on, Good.three fails in
# company, Bad.one always.
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
        if name == "Good.three" and SLEEPS:
            time.sleep(60)
        failed = name == "Bad.one" or name == "Good.three" and len(chosen) > 1
        words = "  FAILED  " if failed else "  SKIPPED " if "skips" in name else "       OK "
        print(f"[{words}] {name}{', where GetParam() = 7' if failed else ''} (1 ms)")
    print("[  FAILED  ] Bad.one")
'''


class TestRuns(unittest.TestCase):
    def run_program(self, limit=60, sleeps=False, parts=1):
        with tempfile.TemporaryDirectory() as directory:
            program = pathlib.Path(directory) / "program.py"
            program.write_text(textwrap.dedent(PROGRAM).replace("SLEEPS", str(sleeps)))
            found, text = gpu_test_runs.run_tests([sys.executable, str(program)], dict(os.environ), pathlib.Path(directory) / "log",
                                                  limit, parts)
            self.assertIn("Running main()", text)
            self.assertIn("$ ", (pathlib.Path(directory) / "log_0.txt").read_text())
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
        found = self.run_program(limit=2, sleeps=True)
        self.assertEqual(found["out_of_time"], ["Bad.one", "Good.three", "Odd/Good.skips/0"])
        self.assertLess(found["seconds"], 30)

    def test_what_the_sanitizer_says_is_found(self):
        self.assertEqual(gpu.SUMMARY["memcheck"].findall("========= ERROR SUMMARY: 3 errors"), ["3"])
        self.assertEqual(gpu.SUMMARY["racecheck"].findall("========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)"),
                         [("1", "1")])
        self.assertEqual(gpu.FINDING.findall("========= Invalid __global__ write of size 4 bytes\n=========     at here"),
                         ["Invalid __global__ write of size 4 bytes"])


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
