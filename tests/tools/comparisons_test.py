"""./dev perf: every comparison runs with answers in the place of programs. Its figures land in the table, in the file and in the section
of its page, and it exits 1 where a program is much slower. Then the harness itself; and programs that are quick enough to be run."""
import contextlib
import importlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(os.environ["ROOT"])
BIN = pathlib.Path(os.environ["PERF_PROGRAM"]).parent
sys.path.insert(0, str(ROOT))
from perf.__main__ import COMMANDS  # noqa: E402
from perf.comparisons import harness, host, hosts, larger, mpi_programs, namespaces, servers, startup_and_idle  # noqa: E402
from perf.pages.text import Verdict  # noqa: E402

MIB = 1 << 20
SPEED = {"torch": "2", "parameters": 10**7, "weight_flops_per_token": 6e7, "gemm_share": 0.95, "gemm_gflops_per_rank": 100, "comm_ms": 100, "exposed_ms": 10, "bubble": 0.13,
         "simulated_bubble": 0.125, "steps": 8, "checkpoints": 4, "memory_bytes": 3e6, "planned_activation_bytes": 2e6, "sent_per_step": 10**6}


def after(words, flag, default="0"):
    return words[words.index(flag) + 1] if flag in words else default


def sizes_between(words):
    first, last = (int(after(words, flag)) for flag in ("-b", "-e"))
    return [size for size in (first << i for i in range(40)) if size <= last]


def train_speed(words, slow):
    tokens = 1000 * (2 if "train_speed" in words[0] else 1) * (1.02 if "zb-h1" in words else 1) / slow
    tokens *= 3 if "--qwz" in words else 1.5 if "2bw" in words else 1
    return {**SPEED, "deepspeed": "0.19", "tokens_per_s": tokens, "step_ms": 1e6 / tokens, "mean_ms": 500 * slow, "pipeline_ms": 470, "simulated_ms": 480,
            "plain_s": [0.4] * 4, "replicating_s": [0.4 * slow] * 4, "activation_bytes": 1e6 if "--cp" in words else 2e6,
            "forward_ms": 150, "backward_ms": 300, "ms": 450}


def ring_attention_speed(words, slow):
    found = {}
    for core in after(words, "--cores").split(","):
        times = {key: [100 * slow * (2 if core == "local" else 1)] * 3 for key in ("forward_ms", "backward_ms", "ms")}
        passes = {name: {"t_compute_ms": 400, "t_comm_ms": 100, "t_serial_ms": 500, "t_full_ms": 405, "exposed_ms": 5, "efficiency": 0.95 / slow}
                  for name in after(words, "--passes", "forward,backward").split(",")}
        found[core] = passes if "--overlap" in words else times
    return found


def stretto_plan(words, slow):
    if words[1] == "step":
        return {"blocking_ms": 30, "unpartitioned_ms": 20, "buckets_ms": 15, "by_level_ms": 12, "planned_ms": 10, "bound_ms": 9, "choice": "4 buckets"}
    return {"layouts": [{"ms": 500 * slow}]}


def stretto_train(words, slow):
    if "--log-dir" in words:
        ms = 250 if "onebit-adam" in words else 100 if "--diloco" in words else 1000
        lines = [{"step": i + 1, "step_ms": ms * slow, "bytes_sent": 37500000, "loss": 1.75 * slow, "val_loss": 1.75 * slow} for i in range(int(after(words, "--train-iters")))]
        pathlib.Path(after(words, "--log-dir"), "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return {"memory": {"all": int(after(words, "--seq-length")) * 40000 // int(after(words, "--ranks", "1"))}}


def stretto_perf(words, slow):
    if words[1] == "selection":
        return [{"collective": "reduce", "symmetric": False, "bytes": 8, "us": {"ring": slow, "direct": 2.0}, "chosen": "ring"}]
    if words[1] == "overlap":
        hides = "--no-overlap" not in words and ("--ratio" in words or after(words, "--nproc") == "0")
        full = 1010 if hides else 1500
        return {"case": after(words, "--case"), "t_compute_ms": 1000, "t_comm_ms": 700, "t_serial_ms": 1500, "t_full_ms": full,
                "exposed_ms": full - 1000, "efficiency": 0.95 / slow if hides else 0.05, "same_bits": True, "bytes_sent": MIB}
    rows = []
    for size in sizes_between(words):
        us = 1 if "--memory" in words else 1.575 * size / (4 if "--quantize" in words else 1)  # that is the bound of a stream of 1 MB/s, or a fourth
        for name in after(words, "--algo", "auto").split(","):
            crossings = servers.balanced(int(after(words, "--servers"))) if name == "auto" and "--servers" in words else None
            rows.append({"collective": words[1], "bytes": size, "time_us": (us if crossings is None else crossings * size) * slow, "wrong": 0, "algo": "server_set" if crossings is not None else "ring" if name == "auto" else name, "chosen": name == "auto",
                         "peers": {"gloo": {"time_us": 3.2 * us}} if "--vs" in words else {}, "busbw": 0.0012 / slow})
    return {"machine": {"version": "9", "peers": ["gloo (Gloo 0.5)"]}, "rows": rows}


def mpi_loop(words, slow):
    """Behind the seconds of a loop the words are the warm-up and the sizes."""
    count = next(i for i, word in enumerate(reversed(words)) if not word.isdigit())
    sizes = [int(word) for word in words[len(words) - count + 1:]]
    through_door, launched = "LD_PRELOAD" in " ".join(words), words[0].startswith("mpi")
    us = [(1 if through_door else 3.2) if launched else 1.575 * 3.2 * size for size in sizes]
    return [{"version": "MPI 4"}, *({"bytes": size, "time_us": each * slow, "wrong": 0} for size, each in zip(sizes, us))]


def host_limit(words, slow):
    if words[2] == "exchange":
        return {"exchange_us": 1.0, "clock_us": 0.1}
    return {"loops": {size: 1.0 for size in words[3:]}}


def pipeline_speed(words, slow):
    stages = int(after(words, "--stages"))
    ms = 100 * stages * slow if "2bw" in words else 100 * (2 * stages - 1)
    return {"step_ms": ms, "pipeline_ms": ms, "simulated_ms": ms}


def kernel_rows(key):
    def rows(words, slow):
        row = {"kernel": "AdamW", "dtype": "f32", "bytes_a_second": 2e10, "loop_bytes_a_second": 2e10, "ratio": 0.95 / slow, "format": "int8",
               "shape": "4x256x4x64", "product_flops": 1e11, "forward_flops": 5e10, "backward_flops": 6e10}
        return {"vectors": "AVX3", "version": "9", "rows": [{**row, key: value} for value in (["memory", "trainer"] if key == "size" else ["64M"])]}
    return rows


def server_speed(words, slow):
    if after(words, "--nproc", "") == "0":
        ranks = [int(word) for word in words[-1].removeprefix("ranks=").split(",")]
        return [{"bytes": 16 * MIB, "seconds": 16.777216 * servers.busiest(ranks) * slow}]
    if "--keys" in words:
        return [{"keys": 10**5, "key_cache": cached, "push_s": (0.02 if cached else 0.04) * slow, "pull_s": 0.05 * slow} for cached in (False, True)]
    sizes = [int(word) for word in words if word.isdigit() and int(word) >= 4096]
    us = 30 if "zmq_server" in words[0] else 10 * slow
    return [{"bytes": size, "seconds": us / 1e6, "copy_s": 1e-6} for size in sizes]


def file_speed(words, slow):
    compute, files, block = 16 * float(after(words, "--seconds")), 2 * 16 * 0.0105, 0.0105
    return {"compute_s": compute, "files_s": files, "block_s": block, "beside_s": (max(compute, files) + 0.014) * slow, "waited_s": compute + files}


ANSWERS = {"train_speed": train_speed, "_gpt.py": train_speed, "context_parallel.py": train_speed, "ring_attention_speed": ring_attention_speed, "pipeline_speed": pipeline_speed,
           "stretto-plan": stretto_plan, "stretto-train": stretto_train, "stretto-perf": stretto_perf, "/mpi_": mpi_loop, "host_limit": host_limit,
           "kernel_speed": kernel_rows("size"), "attention_speed": kernel_rows("shape_"), "quantize_speed": kernel_rows("bytes"),
           "server_speed": server_speed, "zmq_server": server_speed,
           "move_speed": lambda words, slow: {"bytes": MIB, "columns_s": 0.262144 * slow, "copies_s": 1.048576 * slow, "broadcast_s": 2.097152},
           "file_speed": file_speed,
           "relayout_speed": lambda words, slow: {"parameters": 10**7, "moved_s": 0.2 * slow, "saved_s": 0.5, "received_bytes": 10**8},
           "dispatch_speed": lambda words, slow: {"loop_us": 5, "parallel_us": 7 * slow, "sequential_us": 20, "op_by_op_us": 25, "between_us": 8 * slow},
           "startup_and_idle": lambda words, slow: slow}


# Words of the command; what a line of the report has; and a word of the programs that are ten times slower in the second run.
CASES = {
    "train": ("--rounds 1", "fp32 2,000 1,000 2.00", "train_speed"),
    "ddp": ("--rounds 1", "Stretto 2.000 500 500 500 0", "train_speed"),
    "convergence": ("--train-data x", "bf16 1.7500 +0.0000", "--qwz"),
    "old-weights": ("--train-data x --seeds 2 --steps 8", "2bw, Muon 1.7500 0.0000 1f1b, Muon +0.0000 +0.0000 to +0.0000", "2bw --optimizer muon"),
    "slow-links": ("--train-data x --seeds 1 --steps 20 --rate 100mbit", "1-bit Adam 1.7500 0.0000 4.00 1", "onebit-adam"),
    "saving": ("--rounds 1", "a checkpoint before every step 0.500 1.000 0.50", "--save-in-background"),
    "relayout": ("--rounds 1", "in memory 0.200 600", "relayout_speed"),
    "replicated-state": ("--rounds 1", "10.0 million 8 (tp 2) 6144 0.100 1.000", "--batch 6"),
    "offload": ("--rounds 1 --deepspeed /none", "10.0 million 0.500 0.500 0.500", "--offload"),
    "offload --deepspeed /": ("--rounds 1", "0.500 0.500 1.000 1.000 0.50", "values="),
    "larger": ("--train-data x", "50.6 million 434 144 100", "--offload"),
    "layouts": ("--rounds 2", "Stretto zb-h1 2040 0.490 1.020 13.0% 12.5% 0.470 0.480", "train_speed"),
    "layouts --predict": ("--rounds 1", "4: tp 2, pp 2 500 500 +0.0%", "train_speed"),
    "long": ("--quick", "cp 2 2000 0.500 1.00 0.10 0.01 1.0 2.0 3.0", "ring_attention_speed"),
    "overlap": ("--rounds 1 --ratios 0.7 --socket-ratios 0.7", "dp sockets 0.70 1000 700 1500 1010 10 0.95 1.01", "--ratio"),
    "plans": ("", "8 1:1 20.0 15.0 12.0 10.0 1.50x 1.20x 9.0 4 buckets", None),
    "host": ("--quick", "4 MiB 1.000 us 1.000 us 3.200 us 3.200 us 3.200 us 1.000 us 3.20 3.20", "--memory symmetric"),
    "selection": ("--layouts 0 --nproc 2", "2 ranks, ordinary memory 1 100.0% 0 1.00 100.0% 0 1.00 100.0% 0", "selection"),
    "moves": ("--rate 8mbit", "rows of 4 hosts to columns of 4 others 262 262 1.000 8.0", "move_speed"),
    "dispatch": ("--rounds 1", "2 5.0 7.0 20.0 25.0 8.0 380", "dispatch_speed"),
    "servers": ("--rates 8mbit --rounds 1", "8mbit 2 server_set 20133 20133 1.00 26424", "server_speed"),
    "servers --steps 5": ("--rates 8mbit --rounds 1", "no 2.50 2.00\nyes 5.00 2.00", "server_speed"),
    "mpi": ("--rounds 1 --ranks 2 --cases all_reduce,communicators", "1 MiB 3.200 us / 1.000 us = 3.20", "LD_PRELOAD"),
    "hosts": ("--layout 2x1", "2 hosts x 1 rank all_gather 16 MiB ring 1.2 1.200", "stretto-perf"),
    "netlab": ("--rounds 2 --rate 8mbit", "16 MiB 25165.8 26424.1 ring", "stretto-perf all_reduce"),
    "startup": ("--rounds 1", "shm 64 ", "--nproc 64"),
    "idle": ("", "ucx barrier worker 0.10 0.05", "any"),
    "kernels": ("", "AdamW f32 20.0 20.0 0.95 20.0 20.0 0.95", "kernel_speed"),
    "torch": ("", "all_reduce, 1 MiB 100.0 us 20.0 us (5.00; 5.00 to 5.00) 10.0 us", "any"),
}


class FakeNetwork:
    """Of hosts whose links carry a megabyte a second."""

    def __init__(self, ranks=(), *_):
        self.run = self.output_of = lambda command: answer([*command, f"ranks={','.join(map(str, ranks))}"]).stdout

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def stream(self):
        return 1e6

    def start_mpi(self, command, **_):
        return mock.Mock(communicate=lambda: (answer(command).stdout, None), returncode=0)


slow_word = ""


def answer(command, **_):
    """Of a program that ends at once: what it prints, and what it writes for --json and --calibrate."""
    words = [str(word) for word in command]
    program = next((program for program in ANSWERS if any(program in word for word in words[:12])), None)
    text = " ".join(words)
    found = ANSWERS[program](words, 10 if slow_word and slow_word in text else 1) if program else {}
    if "--json" in words:
        pathlib.Path(after(words, "--json")).write_text(json.dumps(found))
    if "--calibrate" in words:
        pathlib.Path(after(words, "--calibrate")).write_text(json.dumps({"cluster": {}, "system": {}}))
    if program == "startup_and_idle":
        found = "1 2 3 4" if words[-1] == "memory" else f"{startup_and_idle.time.monotonic() + found / 2}"
    lines = [json.dumps(line) for line in found] if isinstance(found, list) else ["a line", found if isinstance(found, str) else json.dumps(found)]
    if program in ("startup_and_idle", "host_limit"):
        lines = lines[1:]
    return subprocess.CompletedProcess(words, 0, stdout="\n".join(lines) + "\n", stderr="Measured this machine." if "barrier" in words else "")


class Comparisons(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="comparisons-")
        self.addCleanup(directory.cleanup)
        self.at = pathlib.Path(directory.name)
        patches = [(subprocess, "run", answer), (namespaces, "Network", FakeNetwork), (namespaces, "obstacle", lambda: ""), (mpi_programs, "NEWER", {}),
                   (hosts, "cpu_share", lambda *_: 0.1), (larger, "memory_limit", contextlib.nullcontext), (larger, "peak_of", lambda _: 100 * MIB),
                   (startup_and_idle, "use_of_cores", lambda *_: (0.1 if slow_word else 0.001, 0.0005))]
        for patch in [mock.patch.object(*each) for each in patches] + [mock.patch("shutil.which", lambda name: name)]:
            patch.start()
            self.addCleanup(patch.stop)

    def run_main(self, name, words):
        """The status, and what was printed, with single spaces."""
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
            status = harness.COMPARISONS[name].main(words)
        return status, "\n".join(" ".join(line.split()) for line in said.getvalue().splitlines())

    def torch_figures(self, slow):
        times = {"gloo": [100.0], "stretto": [20.0 * slow], "symmetric": [10.0], "none": [50.0]}
        return {"torch": "1", "cores": 2, "rounds": 1, "parameters": 10**7, "all_reduce": {str(MIB): times}, "steps": {"DDP, 1 x 64": times, "FSDP2, 1 x 64": {"gloo": [100.0], "stretto": [50.0]}}}

    def test_each(self):
        global slow_word
        for case, (words, cell, slowed) in CASES.items():
            name, *more = case.split()
            with self.subTest(case):
                try:
                    module = importlib.import_module(f"perf.comparisons.{COMMANDS[name][0]}")
                except ImportError as missing:
                    print(f"{name} is left out: {missing}")
                    continue
                figures, page = self.at / "figures.json", self.at / "page.md"
                comparison = harness.COMPARISONS[name]
                with mock.patch.object(comparison, "check", harness.nothing) if name == "torch" else contextlib.nullcontext():
                    options = comparison.parse([*more, *words.split()])
                marks = [section for *_, section in comparison.of_parts(options)]
                for slow_word in ["", slowed] if slowed else [""]:
                    if name == "torch":
                        figures.write_text(json.dumps({"machine": harness.machine(), "command": "x", **self.torch_figures(10 if slow_word else 1)}))
                    source = ["--from" if name == "torch" else "--json", str(figures)]
                    page.write_text("before\n" + "".join(f"{mark.begin}\nstale\n{mark.end}\n" for mark in marks) + "after\n")
                    to_page = ["--write-docs", str(page)] if comparison.page else []
                    status, said = self.run_main(name, [*more, *words.split(), *source, *to_page])
                    self.assertEqual((status, "FALLS SHORT" in said), (1, True) if slow_word else (0, False), said)
                    again = self.run_main(name, [*more, "--from", str(figures)])
                    self.assertEqual((again[0], again[1].splitlines()[-1]), (status, said.splitlines()[-1]))
                    text = page.read_text()
                    if to_page:
                        self.assertTrue(text.startswith("before\n") and text.endswith("after\n") and "stale" not in text, text)
                        self.assertEqual("missed" in text, status == 1)
                    if not slow_word:
                        self.assertIn(cell, said)
                if comparison.page:
                    for mark in marks:
                        mark.around(ROOT / comparison.page)
                        page.write_text("no marks")
                    with self.assertRaises(SystemExit):
                        self.run_main(name, [*more, "--from", str(figures), "--write-docs", str(page)])

    def test_slow_links_goes_on(self):
        importlib.import_module("perf.comparisons.slow_links")
        figures = self.at / "figures.json"
        words = [*CASES["slow-links"][0].split(), "--json", str(figures)]
        status, said = self.run_main("slow-links", words)
        measured = json.loads(figures.read_text())
        measured["curves"]["Muon"].pop()
        figures.write_text(json.dumps(measured))
        with mock.patch.object(subprocess, "run", mock.Mock(side_effect=answer)) as started:
            self.assertEqual(self.run_main("slow-links", [*words, "--go-on"]), (status, said))
            self.assertEqual([("muon" in call.args[0], "--delay" in call.args[0]) for call in started.call_args_list], [(True, False)])
            with self.assertRaisesRegex(SystemExit, "steps: 20 3, and now 30 3"):
                self.run_main("slow-links", [*words, "--steps", "30", "--go-on"])


class Harness(unittest.TestCase):
    def test_sides_take_turns(self):
        started = []

        def start(side):
            started.append(side)
            return {"tokens_per_s": len(started)}

        with contextlib.redirect_stderr(io.StringIO()):
            rounds = harness.in_turn(["a", "b"], 3, start, before=lambda: started.append("begin"))
        self.assertEqual(started, ["begin", "a", "b", "begin", "b", "a", "begin", "a", "b"])
        self.assertEqual([each["b"]["tokens_per_s"] for each in rounds], [3, 5, 9])

    def test_medians_and_ratios_are_of_the_same_round(self):
        rounds = [{"a": {"x": 1}, "b": {"x": 2}}, {"a": {"x": 10}, "b": {"x": 5}}, {"a": {"x": 4}, "b": {"x": 1, "y": 7}}]
        self.assertEqual((harness.median(rounds, "a", "x"), harness.median(rounds, "b", "y"), harness.median(rounds, "a", "y")), (4, 7, None))
        self.assertEqual(harness.ratio(rounds, "a", "b", "x"), 2)
        self.assertEqual(host.lower_fifth([0.27, 0.065, 0.28, 0.27, 0.066, 0.27, 0.27, 0.27]), 0.066)

    def status(self, *holds, excused=False):
        comparison = harness.Comparison("a trial", "", verdicts=lambda figures: [Verdict(each, "") for each in holds], excused=lambda _: excused)
        return comparison.holds({})

    def test_a_wish_that_fails(self):
        self.assertTrue(self.status(True) and self.status(True, None, excused=True))
        self.assertFalse(self.status(True, False) or self.status(False, excused=True) or self.status(None))

    def test_rates_of_links(self):
        for rate, expected in (("1gbit", 125e6), ("8Mbit", 1e6), ("0.5gbps", 5e8), ("2mbps", 2e6)):
            self.assertEqual(expected, namespaces.bytes_per_second(rate))
        for rate in ("0gbit", "-1gbit", "fastgbit", "1tbit", "1"):
            with self.assertRaises(namespaces.CommandFailed):
                namespaces.bytes_per_second(rate)


class Programs(unittest.TestCase):
    """Real ones."""

    def test_newest_mpis(self):
        with tempfile.TemporaryDirectory() as root, mock.patch.object(mpi_programs, "ROOT", pathlib.Path(root)), \
                mock.patch("shutil.which", lambda name: name):
            self.assertEqual(mpi_programs.newest(), ["openmpi", "mpich"])
            for name in ("mpich", "impi_rt"):
                (pathlib.Path(root) / ".cache/mpi" / name).mkdir(parents=True)
            self.assertEqual(mpi_programs.newest(), ["openmpi", "mpich5", "impi"])
            compiler, libraries = mpi_programs.compiler_of("impi")  # with MPICH's headers
            self.assertIn(f"{root}/.cache/mpi/mpich/include", map(str, compiler))
            self.assertIn(f"{root}/.cache/mpi/impi_rt/lib", map(str, libraries))
            alone, sharing = (list(map(str, mpi_programs.launcher_of("impi", ranks))) for ranks in (1, mpi_programs.cores() + 1))
            self.assertEqual(alone[:3], [f"{root}/.cache/mpi/impi_rt/bin/mpiexec", "-n", "1"])
            self.assertNotIn("I_MPI_THREAD_YIELD", alone)
            self.assertIn("I_MPI_THREAD_YIELD", sharing)
            self.assertIn("coll_sm_priority", mpi_programs.launcher_of("ompi5_sm", 2))

    def perf(self, *words):
        done = subprocess.run([sys.executable, "-B", "-m", "perf", *map(str, words)], cwd=ROOT, capture_output=True, text=True, timeout=300,
                              env={**os.environ, "PERF_PREPARED": "yes"})
        return done

    def test_quantization(self):
        with tempfile.TemporaryDirectory() as directory:
            path, page = pathlib.Path(directory, "run.json"), pathlib.Path(directory, "page.md")
            page.write_text((ROOT / "docs/quantization.md").read_text())
            done = self.perf("quantization", "--program", BIN / "stretto-perf", "--nodes", 2, "--rates", "1,100", "--mib", 1, "--dtypes", "bf16",
                             "--rounds", 1, "--seconds", "0.001", "--json", path, "--write-docs", page)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("polyline", pathlib.Path(directory, "quantization-crossover.svg").read_text())
            rows = json.loads(path.read_text())["rows"]
        self.assertEqual([(row["rate"], row["collective"]) for row in rows],
                         [(rate, each) for rate in (1, 100) for each in ("reduce_scatter", "all_gather", "all_reduce")])
        for row in rows:
            self.assertLess(row["quantized"]["bytes_between_nodes"], row["plain"]["bytes_between_nodes"])
            self.assertTrue(row["quantized"]["rms_error"] > 0 and row["plain"]["expected_us"] > 0)

    def test_planners(self):
        done = self.perf("scale", ROOT / "docs/links/two_level.json", "all_reduce", "--ranks", 8, "--sizes", "4K", "--program", BIN / "stretto-plan")
        self.assertRegex(done.stdout, r"8 +4K +`\w+` +\d+ us")
        done = self.perf("published", "--program", BIN / "stretto-plan", "--json", os.devnull)
        self.assertEqual((done.returncode, done.stdout.count("holds:")), (0, 27), done.stdout + done.stderr)

    def test_limits_of_the_host(self):
        for words, names in (([2, "exchange"], {"exchange_us", "clock_us"}), ([4, "all_reduce", 512, MIB], {"512", str(MIB)}),
                             ([2, "all_to_all", 512], {"512"})):
            found = json.loads(subprocess.run([BIN / "host_limit", *map(str, words)], capture_output=True, text=True, timeout=120).stdout)
            self.assertEqual({name for name, us in found.get("loops", found).items() if us > 0}, names)
        for words in ([3], [2, "all_reduce", 100], [8, "all_gather", 64], ["two", "exchange"], [2, "reduce", 128]):
            done = subprocess.run([BIN / "host_limit", *map(str, words)], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout, len(done.stderr.splitlines())), (1, "", 1))

    def test_bad_arguments_are_told_in_a_line(self):
        for words in (["host", "--sizes", "8,4X"], ["host", "--sizes", "12"], ["host", "--ranks", "3"], ["host", "--write-docs", "/none"],
                      ["quantization", "--rates", "1,x"], ["quantization", "--dtypes", "f64"], ["quantization", "--from", "/none"],
                      ["quantization", "--program", "false", "--mib", "1"]):
            done = self.perf(*words)
            self.assertEqual((done.returncode, len(done.stderr.splitlines())), (1, 1), done.stderr)


if __name__ == "__main__":
    unittest.main()
