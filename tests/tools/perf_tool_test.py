"""stretto-perf and perf/report, seen from outside, at sizes at which they take no time."""
import json
import os
import re
import sys
import unittest
import unittest.mock

from support.programs import ProgramTest, in_turns, run_program

PERF = os.environ["PERF_PROGRAM"]
REPORT = os.environ["REPORT_PROGRAM"]
BUILT_WITH = os.environ.get("BUILT_WITH", "").split()
MPIRUN = os.environ.get("MPIRUN_PROGRAM", "")
SANITIZED = os.environ.get("SANITIZED", "")  # the peers are not built with the sanitizer, which takes them for faulty

SMALL = ["-b", "96", "-e", "9600", "-f", "10", "-n", "3", "-w", "1"]
FACTORS = {  # busbw / algbw as in nccl-tests, for 3 ranks
    "all_reduce": 2 * 2 / 3, "reduce_scatter": 2 / 3, "all_gather": 2 / 3, "all_to_all": 2 / 3, "broadcast": 1, "reduce": 1,
    "gather": 2 / 3, "scatter": 2 / 3, "sendrecv": 1, "barrier": 1, "all_to_all_v": 2 / 3, "all_gather_v": 2 / 3,
    "reduce_scatter_v": 2 / 3, "gather_v": 2 / 3, "scatter_v": 2 / 3,
}


@in_turns()
class PerfToolTest(ProgramTest):
    def perf(self, *words):
        return run_program(PERF, *words)

    def test_help_is_text(self):
        for words in ([], ["overlap"]):
            done = self.perf(*words, "--help")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertTrue(all(character.isprintable() or character == "\n" for character in done.stdout), done.stdout)
            self.assertIn("--json", done.stdout)

    def figures(self, *words):
        path = self.directory / f"{len(list(self.directory.iterdir()))}.json"
        done = self.perf(*words, "--json", path)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        self.assertIn("Out of bounds values : 0 OK", done.stdout)
        return json.loads(path.read_text())

    def refused(self, *words):
        """It stops with one sentence, which is returned."""
        return super().refused([], PERF, *words)

    def check(self, run, collective):
        self.assertEqual(run["ranks"], 3)
        for key in ("cpu", "cores", "date", "version", "command"):
            self.assertTrue(run["machine"][key], key)
        self.assertTrue(run["rows"])
        for row in run["rows"]:
            self.assertEqual(row["collective"], collective)
            self.assertEqual(row["wrong"], 0)
            self.assertTrue(row["algo"])
            self.assertLessEqual(row["p50_us"], row["p99_us"])
            self.assertAlmostEqual(row["algbw"], row["bytes"] / row["time_us"] / 1e3)
            self.assertAlmostEqual(row["busbw"], row["algbw"] * FACTORS[collective])
            self.assertEqual(row["peers"], {})
            self.assertEqual((row["max_error"], row["rms_error"], row["wire_bytes_inter"]), (None, None, 0))

    def test_every_collective_by_processes(self):
        for collective in FACTORS:
            with self.subTest(collective):
                self.check(self.figures(collective, *SMALL, "--nproc", 3), collective)

    def test_servers(self):
        for method in ("auto", "server_set/2"):
            run = self.figures("all_reduce", "--nproc", 5, "--servers", 2, "-b", 4000, "-e", 4000, "-n", 2, "-d", "all", "-o", "all", "--algo", method)
            self.assertEqual((run["ranks"], run["servers"]), (5, 2))
            for row in run["rows"]:
                self.assertEqual((row["bytes"], row["wrong"]), (4000, 0))
                self.assertAlmostEqual(row["busbw"], row["algbw"] * 4 / 3)

    def test_every_collective_by_threads(self):
        for collective in FACTORS:
            with self.subTest(collective):
                run = self.figures(collective, *SMALL, "--nproc", 3, "--threads", "-r", "all")
                self.check(run, collective)
                rooted = collective in ("broadcast", "reduce", "gather", "scatter", "gather_v", "scatter_v")
                self.assertEqual({row["root"] for row in run["rows"]}, {0, 1, 2} if rooted else {-1})

    def test_sizes(self):
        sizes = lambda *words: sorted({row["bytes"] for row in self.figures(
            "all_reduce", "-n", 1, "--nproc", 2, "--threads", *words)["rows"]})
        self.assertEqual(sizes("-b", "1K", "-e", "4K"), [1024, 2048, 4096])
        self.assertEqual(sizes("-b", "4", "-e", "16", "-i", "4"), [4, 8, 12, 16])
        self.assertEqual(sizes("-b", "0", "-e", "0"), [0])

    def test_placements(self):
        for given, expected in (("0", {False}), ("1", {True}), ("both", {False, True})):
            run = self.figures("all_gather", *SMALL, "--nproc", 2, "--threads", "--in-place", given)
            self.assertEqual({row["in_place"] for row in run["rows"]}, expected)
        run = self.figures("all_to_all", *SMALL, "--nproc", 2, "--threads")
        self.assertEqual({row["in_place"] for row in run["rows"]}, {False})

    def test_memory_and_prepared_operations(self):
        for words, memory, prepared in (([], "symmetric", False), (["--memory", "symmetric", "--copies", 3], "symmetric", False),
                                        (["--memory", "malloc"], "malloc", False), (["--prepared"], "symmetric", True),
                                        (["--memory", "malloc", "--prepared", "--copies", 1], "malloc", True)):
            for collective in ("all_reduce", "all_to_all_v", "broadcast", "barrier"):
                with self.subTest(collective, words=words):
                    run = self.figures(collective, *SMALL, "--nproc", 3, *words)
                    self.check(run, collective)
                    self.assertEqual((run["memory"], run["prepared"]), (memory, prepared))

    def test_prepared_among_all(self):
        run = self.figures("all", *SMALL, "--nproc", 2, "--threads", "--prepared")
        self.assertEqual({row["collective"] for row in run["rows"]}, set(FACTORS) - {"sendrecv"})

    def test_loops_of_seconds(self):
        for row in self.figures("all_reduce", "-b", 8, "-e", "1M", "-f", 512, "--nproc", 2, "--seconds", 0.01)["rows"]:
            self.assertGreater(row["time_us"], 0)
            self.assertLessEqual(row["p50_us"], row["p99_us"])

    def test_a_loop_that_is_shorter_than_the_copies(self):
        row, = self.figures("broadcast", "-b", 8, "-e", 8, "-w", 0, "--seconds", 1e-9, "--in-place", 0, "--nproc", 2)["rows"]
        self.assertEqual(row["wrong"], 0)

    def test_every_algorithm(self):
        named = {row["algo"] for row in self.figures("all_reduce", *SMALL, "--nproc", 3, "--algo", "ring,ring*2")["rows"]}
        self.assertEqual(named, {"ring", "ring*2"})
        every = {row["algo"] for row in self.figures("all_reduce", *SMALL, "--nproc", 3, "--algo", "all")["rows"]}
        self.assertLess({"ring", "recursive_doubling", "packet", "push"}, every)

    def test_every_algorithm_takes_levels_if_there_are_nodes(self):
        for more in ([], ["--quantize", "int8"]):
            for ranks_per_node, levels in ((2, True), (4, False)):
                with self.subTest(more, ranks_per_node=ranks_per_node):
                    done = run_program("env", f"STRETTO_RANKS_PER_NODE={ranks_per_node}", PERF, "all_reduce", *SMALL, "-n", 1,
                                            "--nproc", 4, "--threads", "--algo", "all", *more)
                    self.assertEqual(done.returncode, 0, done.stderr)
                    rows = [line for line in done.stdout.splitlines() if not line.startswith("#")]
                    self.assertEqual(any(" two_level" in row for row in rows), levels, done.stdout)
                    self.assertEqual("# two_level is left out: all ranks are on one node" in done.stdout, not levels)

    def test_every_algorithm_that_can(self):
        rows = self.figures("all_reduce", "-b", "16K", "-e", "32K", "-n", 1, "--nproc", 2, "--algo", "all", "--memory",
                            "malloc")["rows"]
        by_size = {size: {row["algo"] for row in rows if row["bytes"] == size} for size in (16 << 10, 32 << 10)}
        self.assertEqual(by_size[16 << 10] - by_size[32 << 10], {"packet"})
        self.assertNotIn("push", by_size[16 << 10])  # it reaches symmetric memory only

    def test_types_and_operators(self):
        run = self.figures("all_reduce", *SMALL, "--nproc", 3, "--threads", "-o", "all", "-d", "all", "-n", 1)
        self.assertEqual(len({(row["dtype"], row["op"]) for row in run["rows"]}), 12 * 6)

    def test_bytes_on_the_wire(self):
        words = ["-b", "96K", "-e", "96K", "-n", 1, "--nproc", 4, "--threads", "--memory", "malloc"]
        row = self.figures("all_gather", *words, "--algo", "direct", "--ranks-per-node", 2)["rows"][0]
        self.assertEqual((row["wire_bytes"], row["wire_bytes_inter"]), (3 * 24 * 1024, 2 * 24 * 1024))
        for node in ("4", "1"):
            row = self.figures("reduce_scatter", *words, "--algo", "direct", "--ranks-per-node", node)["rows"][0]
            self.assertEqual((row["wire_bytes"], row["wire_bytes_inter"]), (3 * 24 * 1024, 0 if node == "4" else 3 * 24 * 1024))

    def test_quantized(self):
        records = {"int8": (256, 260), "int4": (64, 34), "fp8": (256, 260), "1bit": (1024, 132)}
        errors = []
        for name, (group, record) in records.items():
            share = 6 * 1024 // group * record  # of 6144 elements
            for collective, sent in (("all_gather", 3 * share), ("reduce_scatter", 3 * share), ("all_reduce", 6 * share)):
                for dtype in ("f32", "bf16", "f16"):
                    with self.subTest(collective, format=name, dtype=dtype):
                        size = 4 * 6144 * (4 if dtype == "f32" else 2)
                        run = self.figures(collective, "-b", size, "-e", size, "-n", 2, "--nproc", 4, "--threads", "-d", dtype,
                                           "--quantize", name, "--algo", "two_shot" if collective == "all_reduce" else "direct")
                        self.assertEqual(run["quantize"], name.replace("1bit", "onebit"))
                        for row in run["rows"]:
                            self.assertEqual((row["wrong"], row["wire_bytes"]), (0, sent))
                            self.assertGreater(row["max_error"], row["rms_error"])
                            self.assertGreater(row["rms_error"], 0)
                        if (collective, dtype) == ("reduce_scatter", "f32"):
                            errors.append(run["rows"][0]["rms_error"])
        int8, int4, fp8, onebit = errors  # errors of a sum of 4 deviates of variance 1
        self.assertLess(0, int8)
        self.assertLess(int8, fp8)
        self.assertLess(fp8, int4)
        self.assertLess(int4, onebit)
        self.assertLess(onebit, 2)

    def test_quantized_in_other_ways(self):
        words = ["-b", "96K", "-e", "96K", "-n", 1, "--nproc", 4, "--threads"]
        for more in (["--quantize-result", "int8"], ["--rounding", "stochastic"], ["-o", "avg"], ["-o", "mulsum"],
                     ["--prepared"], ["--ranks-per-node", 2, "--algo", "all"]):
            with self.subTest(more):
                self.assertTrue(self.figures("all_reduce", *words, "--quantize", "int4", *more)["rows"])
        run = self.figures("all", *words, "--quantize", "int4", "--quantize-result", "int8")
        self.assertEqual({row["collective"] for row in run["rows"]},
                         {"all_reduce", "all_gather", "reduce_scatter", "all_gather_v", "reduce_scatter_v"})

    def test_unchecked_results_are_not_called_right(self):
        path = self.directory / "unchecked.json"
        done = self.perf("all_reduce", *SMALL, "--nproc", 2, "-c", 0, "--json", path)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("OK", done.stdout)
        self.assertEqual({row["wrong"] for row in json.loads(path.read_text())["rows"]}, {None})

    def test_unchecked_results_have_no_error(self):
        path = self.directory / "unchecked.json"
        for check in (0, 1):
            done = self.perf("all_gather", *SMALL, "--nproc", 2, "--quantize", "int8", "-c", check, "--json", path)
            self.assertEqual(done.returncode, 0, done.stderr)
            for row in json.loads(path.read_text())["rows"]:
                for key in ("max_error", "rms_error"):
                    self.assertEqual(row[key] is not None, check == 1, row)

    def test_bad_arguments(self):
        for words, said in (
            (["bogus"], "no collective"),
            ([], "COLLECTIVE"),
            (["all_reduce", "--bogus"], "--bogus"),
            (["all_reduce", "-b", "4X"], "4X"),
            (["all_reduce", "-e", "999999999999G"], "'999999999999G' is more than 2^50 bytes"),
            (["all_reduce", "-e", "99999999999999999999"], "more than 2^50 bytes"),
            (["all_reduce", "-b", "64M"], "above"),
            (["all_reduce", "-b", "0", "-e", "8"], "-b 0"),
            (["all_reduce", "-f", "1"], "-f 1"),
            (["all_reduce", "-n", "0"], "-n 0"),
            (["all_reduce", "--seconds", "-1"], "--seconds -1"),
            (["all_reduce", "--seconds", "nan"], "--seconds nan"),
            (["all_reduce", "--copies", "-1"], "--copies -1"),
            (["all_reduce", "--copies", "1000000000"], "--copies 1000000000"),
            (["all_reduce", "--memory", "heap"], "'heap' is not among symmetric and malloc"),
            (["sendrecv", "--prepared", "--nproc", "2"], "sendrecv cannot be prepared"),
            (["all_reduce", "--device", "tpu"], "'tpu'; choose cpu or cuda"),
            (["all_reduce", "--device", "cuda", "--memory", "symmetric"], "leave --memory out"),
            (["all_reduce", "-d", "f31"], "f31"),
            (["all_reduce", "-o", "xor"], "xor"),
            (["all_reduce", "-a", "4"], "-a 4"),
            (["broadcast", "-r", "3", "--nproc", "3"], "-r 3"),
            (["broadcast", "--algo", "ring", "--nproc", "2"], "ring"),
            (["broadcast", "--algo", "ring"], "ring"),
            (["sendrecv", "--nproc", "1"], "sendrecv"),
            (["all_reduce", "--threads"], "--nproc"),
            (["all_reduce", "--vs", "bogus", "--nproc", "2"], "bogus"),
            (["all_reduce", "--nproc", "2", "--json", self.directory / "none" / "x.json"], "--json"),
            (["all_reduce", "--nproc", "2", "--json", self.directory], "--json"),
            (["all_reduce", "--nproc", "3", "--ranks-per-node", "2"], "choose a divisor, or name every node's"),
            (["all_reduce", "--nproc", "3", "--ranks-per-node", "2,2"], "3 ranks do not divide into nodes"),
            (["all_reduce", "--nproc", "3", "--ranks-per-node", "2,x"], "'x' is no number of ranks"),
            (["all_reduce", "--nproc", "2", "--servers", "2"], "--servers 2 leaves none of 2 ranks a vector"),
            (["broadcast", "--servers", "1", "--nproc", "2"], "only all_reduce has ranks without a vector"),
            (["all_reduce", "--servers", "1", "--nproc", "2", "--quantize", "int8"], "leave out --quantize and --vs"),
            (["all_reduce", "--quantize", "int9"], "'int9' is no quantized format"),
            (["broadcast", "--quantize", "int8"], "broadcast cannot be quantized"),
            (["all_reduce", "--quantize", "int8", "-d", "f64"], "f64 cannot be quantized"),
            (["all_reduce", "--quantize", "int8", "-o", "max"], "max cannot be quantized"),
            (["all_gather", "--quantize", "int8", "--quantize-result", "int4"], "all_gather quantizes no result"),
            (["all_reduce", "--rounding", "stochastic"], "give --quantize"),
            (["all_reduce", "--quantize", "int8", "--rounding", "up"], "'up' is not among nearest and stochastic"),
            (["all_reduce", "--quantize", "fp8", "--rounding", "stochastic", "--nproc", "2"], "cannot round stochastically"),
            (["all_reduce", "--quantize", "fp8", "--algo", "ring", "--nproc", "2"], "cannot be done by ring"),
            (["selection", "--collectives", "barrier"], "'barrier' has no methods to measure; choose among all_reduce"),
            (["selection", "--collectives", "bogus"], "'bogus' has no methods"),
            (["selection", "--nproc", "1"], "2 or more"),
            (["selection", "--nproc", "2,8", "-e", "16"], "at least 32 bytes"),
            (["selection", "--memory", "heap"], "--memory"),
            (["selection", "--json", self.directory / "none" / "x.json"], "--json"),
            (["calibrate"], "--write"),
            (["calibrate", "--write", self.directory], "--write"),
            (["calibrate", "--write", self.directory / "x.json", "--collectives", "send"], "'send' has no methods"),
        ):
            with self.subTest(words=words):
                self.assertIn(said, self.refused(*words))
        self.assertEqual(list(self.directory.iterdir()), [])

    def test_selection(self):
        few = ["--nproc", 2, "-e", "1K", "-f", 128, "--runs", 1, "--collectives", "all_reduce,broadcast"]
        path = self.directory / "selection.json"
        done = self.perf("selection", *few, "--tolerance", 1e9, "--json", path)
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = json.loads(path.read_text())
        methods = {(row["memory"], row["collective"], row["bytes"]): set(row["us"]) for row in rows}
        self.assertEqual({(memory, size) for memory, _, size in methods},
                         {(memory, size) for memory in ("malloc", "symmetric") for size in (8, 1024)})
        rings = {"ring", "ring*2", "ring*4", "bidirectional_ring"}
        trees = {"double_binary_tree", *(f"double_binary_tree/{pieces}" for pieces in (4, 16, 64, 256))}
        chains = {"chain", "chain/4", "chain/16", "chain/64", "chain/256"}
        for memory in ("malloc", "symmetric"):
            self.assertLess(rings | trees | {"packet", "staged"}, methods[memory, "all_reduce", 1024])
            self.assertEqual(trees & methods[memory, "all_reduce", 8], {"double_binary_tree"})  # of two elements
            self.assertLess(chains, methods[memory, "broadcast", 1024])
            self.assertEqual("push" in methods[memory, "all_reduce", 8], memory == "symmetric")
        done = self.perf("selection", *few, "--tolerance", 1e9, "--memory", "malloc", "--json", path)
        self.assertEqual({row["memory"] for row in json.loads(path.read_text())}, {"malloc"})

    def test_calibration(self):
        few = ["-e", "1K", "-f", 128, "--runs", 1, "--collectives", "all_reduce,broadcast"]
        path = self.directory / "tuning.json"
        path.write_text("what was there")
        done = self.perf("calibrate", "--nproc", 2, *few, "--write", path)
        self.assertEqual(done.returncode, 0, done.stderr)
        first, = json.loads(path.read_text())["routes"]
        for table in ("table", "symmetric_table"):
            self.assertIn("broadcast:", first[table])
        self.assertNotIn("push", first["table"])
        done = self.perf("calibrate", "--nproc", 3, *few, "--keep", "--write", path)
        self.assertEqual(done.returncode, 0, done.stderr)
        routes = json.loads(path.read_text())["routes"]
        self.assertEqual((routes[0], [route["ranks"] for route in routes]), (first, [2, 3]))
        path.write_text('{"routes": []}')
        self.assertIn("has no routes", self.refused("calibrate", "--nproc", 2, *few, "--keep", "--write", path))

    def test_packets_end_when_they_are_full(self):
        path = self.directory / "selection.json"
        done = self.perf("selection", "--nproc", 2, "-e", "128K", "-f", 1024, "--runs", 1, "--tolerance", 1e9,
                         "--collectives", "all_reduce", "--json", path)
        self.assertEqual(done.returncode, 0, done.stderr)
        for row in json.loads(path.read_text()):
            self.assertEqual("packet" in row["us"], row["bytes"] <= 16384)

    def test_files_that_cannot_be_completed(self):
        if not os.path.exists("/dev/full"):
            self.skipTest("this system has no /dev/full")
        for words in (["all_reduce", *SMALL, "--nproc", 2, "--json"],
                      ["selection", "--nproc", 2, "-e", 8, "--runs", 1, "--tolerance", 1e9, "--json"],
                      ["calibrate", "--nproc", 2, "-e", 8, "--runs", 1, "--write"]):
            done = self.perf(*words, "/dev/full")
            self.assertNotEqual(done.returncode, 0, words)
            self.assertIn(f"{words[-1]} /dev/full cannot be written", done.stderr)

    def test_peers(self):
        for peer in ("mpi", "gloo"):
            with self.subTest(peer):
                if peer.upper() not in BUILT_WITH:
                    self.assertIn("no peer of this build", self.refused("all_reduce", "--nproc", 2, "--vs", peer))
                    continue
                if SANITIZED or (peer == "mpi" and not MPIRUN):
                    self.skipTest("a sanitizer is in, or this machine has no mpirun")
                run = self.figures("all_gather", *SMALL, "--nproc", 2, "--vs", peer)
                for row in run["rows"]:
                    self.assertGreater(row["peers"][peer]["time_us"], 0)
                averages = self.figures("all_reduce", *SMALL, "--nproc", 2, "--vs", peer, "-o", "avg")
                self.assertEqual([row["peers"] for row in averages["rows"]], [{}] * len(averages["rows"]))

    def test_peers_with_wrong_results_are_left_out(self):
        """Debian's Open MPI adds up i8 wrongly where the processor has AVX; elsewhere it is right."""
        if "MPI" not in BUILT_WITH or not MPIRUN or SANITIZED:
            self.skipTest("this build or machine has no MPI, or a sanitizer is in")
        path = self.directory / "bytes.json"
        done = self.perf("all_reduce", *SMALL, "--nproc", 2, "--vs", "mpi", "-d", "i8", "--json", path)
        self.assertEqual(done.returncode, 0, done.stderr)
        said = {(int(size), place == "in place") for size, place in re.findall(
            r"^# mpi gave \d+ wrong values in all_reduce of i8, sum, (\d+) bytes, (in place|out of place), and is left out",
            done.stdout, re.M)}
        rows = json.loads(path.read_text())["rows"]
        self.assertEqual({(row["bytes"], row["in_place"]) for row in rows if not row["peers"]}, said)
        self.assertEqual(len(rows), 6)

    def test_peers_know_the_memory_of_one_device(self):
        for peer, device, said in (("mpi", "cuda", "--vs mpi reads and writes the host's memory"),
                                   ("gloo", "cuda", "--vs gloo reads and writes the host's memory"),
                                   ("nccl", "cpu", "--vs nccl reads and writes a GPU's memory")):
            with self.subTest(peer):
                refusal = self.refused("all_reduce", "--nproc", 2, "--vs", peer, "--device", device)
                self.assertIn(said if peer.upper() in BUILT_WITH else "no peer of this build", refusal)

    def test_a_device_that_is_not_there(self):
        nowhere = unittest.mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": ""})
        nowhere.start()
        self.addCleanup(nowhere.stop)
        for words in (["--nproc", 1], ["--nproc", 2], ["--nproc", 2, "--threads"], ["--nproc", 2, "--algo", "nccl"]):
            with self.subTest(words=words):
                self.assertIn("CUDA", self.refused("all_reduce", *SMALL, "--device", "cuda", *words))

    def test_mpi_needs_ranks(self):
        if "MPI" not in BUILT_WITH:
            self.skipTest("this build has no MPI")
        self.assertIn("give --nproc N", self.refused("all_reduce", *SMALL, "--vs", "mpi"))

    def test_under_mpirun(self):
        if "MPI" not in BUILT_WITH or not MPIRUN or SANITIZED:
            self.skipTest("this build or machine has no MPI, or a sanitizer is in")
        path = self.directory / "mpi.json"
        done = run_program(MPIRUN, "--allow-run-as-root", "--oversubscribe", "-n", 3, PERF, "all_reduce", *SMALL,
                                "--json", path)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.check(json.loads(path.read_text()), "all_reduce")

    def test_report(self):
        words = [*SMALL, "--nproc", 3, "--threads"]
        for collective in ("all_reduce", "barrier"):
            self.figures(collective, *words)
        page = self.directory / "page.html"
        done = run_program(sys.executable, REPORT, *sorted(self.directory.glob("*.json")), "-o", page)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        text = page.read_text()
        self.assertIn("<polyline", text)
        self.assertIn("all_reduce, f32, sum", text)
        self.assertNotRegex(text, r"(src|href)\s*=|https?://|@import|NaN")
        page.write_text("{}")
        done = run_program(sys.executable, REPORT, page, "-o", self.directory / "other.html")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(len(done.stderr.splitlines()), 1)


if __name__ == "__main__":
    unittest.main()
