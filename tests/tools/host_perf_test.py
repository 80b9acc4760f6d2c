"""./dev perf host: its verdicts on figures, with a control that fails beside each, and the page that it writes. Nothing is measured,
except that host_limit prints the figures that it promises."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(os.environ["ROOT"])
HOST_LIMIT = os.environ["HOST_LIMIT_PROGRAM"]
sys.path.insert(0, str(ROOT))
from perf.comparisons import host, host_verdicts  # noqa: E402
from perf.pages import host as page_of_host  # noqa: E402

SIZES = [8 << i for i in range(24)]


def good_figures():
    """A full run in which everything holds; ratios to peers hold with nothing to spare."""
    peers = {"openmpi": 3.0, "mpich": 4.0, "gloo": 50.0}

    def sides(ours, best):
        times = {name: {str(size): best * factor / 3 * (1 + size / 1e4) for size in SIZES} for name, factor in peers.items()}
        return {**times, **{name: {str(size): us * (1 + size / 1e4) for size in SIZES} for name, us in ours.items()}}

    times = {"all_reduce": {"2": sides({"symmetric": 0.13, "malloc": 0.26}, 0.35), "4": sides({"symmetric": 3.9, "malloc": 7.8}, 11.8),
                            "8": sides({"symmetric": 3.9, "malloc": 7.8}, 11.8)}}
    times["all_reduce"]["2"]["prepared"] = {"8": 0.085}
    for collective in host_verdicts.OTHERS:
        both = sides({"symmetric": 1.0, "malloc": 1.2}, 1.6)
        times[collective] = {"2": {name: both[name] for name in ("symmetric", "malloc", "openmpi")}}

    def loops(collective, factor):
        ours = times[collective]["2"]["symmetric"]
        return {str(size): ours[str(size)] / factor for size in host_verdicts.LIMIT_SIZES}

    limit = {ranks: {"exchange_us": us, "clock_us": 0.007, "loops": {}} for ranks, us in (("2", 0.07), ("4", 3.5), ("8", 3.5))}
    limit["2"]["loops"] = {"all_reduce": loops("all_reduce", 1.2), **{each: loops(each, 0.95) for each in host_verdicts.OTHER_LIMITS}}
    return {
        "machine": {"cpu": "A processor", "cores": 2, "system": "A system", "date": "2000-01-01"}, "command": "./dev perf host",
        "rounds": 3, "seconds": 0.1, "sizes": SIZES, "partial": False, "versions": {"stretto": "Stretto 1", "mpich": "MPICH 4"},
        "commands": {}, "wrong": [], "times": times, "limit": limit,
    }


def failing(figures):
    return [verdict.text for verdict in host_verdicts.verdicts(figures) if verdict.holds is False]


class Rounds(unittest.TestCase):
    def test_rounds_with_cores_far_from_each_other_do_not_count(self):
        self.assertEqual(host.lower_fifth([0.27, 0.065, 0.28, 0.27, 0.066, 0.27, 0.27, 0.27]), 0.066)
        self.assertEqual(host.lower_fifth([0.27, 0.065, 0.28]), 0.065)
        self.assertEqual(host.lower_fifth([0.27]), 0.27)


class Verdicts(unittest.TestCase):
    def setUp(self):
        self.figures = good_figures()

    def slower(self, collective, ranks, name, factor, sizes=SIZES):
        times = self.figures["times"][collective][str(ranks)][name]
        for size in sizes:
            if str(size) in times:
                times[str(size)] *= factor

    def only(self, *parts):
        """Exactly these verdicts fail; each part belongs to the text of one."""
        texts = failing(self.figures)
        self.assertEqual(len(texts), len(parts), texts)
        for part in parts:
            self.assertTrue(any(part in text for text in texts), (part, texts))
        self.assertTrue(host_verdicts.falls_short(self.figures))

    def test_good_figures_hold(self):
        self.assertEqual(failing(self.figures), [])
        self.assertFalse(host_verdicts.falls_short(self.figures))
        self.assertTrue(all(verdict.holds for verdict in host_verdicts.verdicts(self.figures)))

    def test_one_size_at_which_a_peer_is_faster(self):
        self.slower("all_reduce", 2, "symmetric", 3, [1024])
        self.only("all_reduce, 2 ranks, symmetric: best peer / Stretto > 1 at every size; least 0.90, at 1 KiB")

    def test_the_best_peer_counts(self):
        self.figures["times"]["all_reduce"]["2"]["gloo"]["1024"] = 0.001
        texts = failing(self.figures)
        self.assertTrue(any("symmetric: best peer" in text and "at 1 KiB" in text for text in texts), texts)

    def test_the_best_form_of_a_peer_counts(self):
        sides = self.figures["times"]["all_reduce"]["2"]
        sides["openmpi_sm"] = {"1024": sides["symmetric"]["1024"] / 2}
        self.only("symmetric: best peer / Stretto > 1 at every size; least 0.50, at 1 KiB", "malloc: best peer / Stretto >= 1 at every size",
                  "malloc: geometric mean")

    def test_geometric_means(self):
        self.slower("all_reduce", 2, "symmetric", 1.2, SIZES[1:-1])
        self.only("symmetric: geometric mean of best peer / Stretto >= 2.5")
        for collective in host_verdicts.OTHERS:
            with self.subTest(collective):
                self.figures = good_figures()
                self.slower(collective, 2, "symmetric", 1.2)
                self.only(f"{collective}, 2 ranks, symmetric: geometric mean")

    def test_other_collectives_at_every_size(self):
        for collective in host_verdicts.OTHERS:
            with self.subTest(collective):
                self.figures = good_figures()
                self.slower(collective, 2, "symmetric", 1.7, [2048])
                self.only(f"{collective}, 2 ranks, symmetric: best peer / Stretto >= 1 at every size; least 0.94, at 2 KiB")
                self.figures = good_figures()
                self.slower(collective, 2, "malloc", 1.5, [2048])
                self.only(f"{collective}, 2 ranks, malloc: best peer / Stretto >= 1 at every size; least 0.89, at 2 KiB")

    def test_other_collectives_beside_the_bare_loop(self):
        for collective in host_verdicts.OTHER_LIMITS:
            with self.subTest(collective):
                self.figures = good_figures()
                self.slower(collective, 2, "symmetric", 1.25, [4 << 20])
                self.only(f"{collective}, 2 ranks, symmetric, 1 to 16 MiB: at most 1.15 times the bare loop; 1.19 times")

    def test_malloc(self):
        self.slower("all_reduce", 2, "malloc", 1.1)
        self.only("malloc: geometric mean of best peer / Stretto >= 1.3")
        self.figures = good_figures()
        self.slower("all_reduce", 2, "malloc", 1.5, [4096])
        self.only("malloc: best peer / Stretto >= 1 at every size; least 0.90, at 4 KiB")

    def test_eight_bytes(self):
        self.slower("all_reduce", 2, "symmetric", 1.2, [8])
        self.slower("all_reduce", 2, "prepared", 1.2)
        self.only("8 B: at most 0.140 us (absolutely", "8 B, prepared: at most 0.090 us (1.28 times")
        self.figures["limit"]["2"]["exchange_us"] = 0.1  # cores are further apart: the same times hold
        self.assertEqual(failing(self.figures), [])
        self.assertTrue(any("1.8 times the bare exchange of 0.100 us" in verdict.text for verdict in host_verdicts.verdicts(self.figures)))

    def test_the_largest_size(self):
        self.slower("all_reduce", 2, "symmetric", 1.05, [64 << 20])
        self.only("64 MiB: at most")
        self.figures["limit"]["2"]["loops"]["all_reduce"][str(64 << 20)] *= 2
        self.slower("all_reduce", 2, "symmetric", 1.4, [64 << 20])
        self.only("symmetric, 64 MiB: best peer / Stretto >= 2")

    def test_more_ranks(self):
        for ranks in (4, 8):
            for name, asked in (("symmetric", 3), ("malloc", 1.5)):
                with self.subTest(ranks=ranks, name=name):
                    self.figures = good_figures()
                    self.slower("all_reduce", ranks, name, 1.1, [512])
                    self.only(f"all_reduce, {ranks} ranks, {name}: best peer / Stretto >= {asked} at every size")
        self.figures = good_figures()
        for name in ("symmetric", "openmpi", "mpich", "gloo"):
            self.slower("all_reduce", 4, name, 1.1, [8])
        self.only("8 B: under 4 us")
        for ranks in (4, 8):
            self.figures = good_figures()
            self.figures["limit"][str(ranks)]["exchange_us"] = 3
            self.only(f"all_reduce, {ranks} ranks, symmetric, 8 B: at most 3.750 us")

    def test_missing_figures_fail_in_a_full_run_only(self):
        for lose in (lambda f: f["times"]["all_reduce"]["2"].pop("mpich"),
                     lambda f: f["times"]["all_reduce"]["8"]["gloo"].pop("64"),
                     lambda f: f["times"]["all_reduce"]["2"].pop("prepared"),
                     lambda f: f["times"].pop("broadcast"),
                     lambda f: f["limit"].clear()):
            figures = good_figures()
            lose(figures)
            self.assertTrue(host_verdicts.falls_short(figures))
            figures["partial"] = True
            self.assertFalse(host_verdicts.falls_short(figures))

    def test_wrong_values_fail(self):
        self.figures["partial"] = True
        self.figures["wrong"] = ["3 in all_reduce, 2 ranks, malloc, 8 B"]
        self.only("wrong values: 3 in all_reduce")


class Program(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="host-")
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)

    def judge(self, figures, *words):
        path = self.directory / "figures.json"
        path.write_text(json.dumps(figures))
        return self.run_it("--from", path, *words)

    def run_it(self, *words):
        return subprocess.run([sys.executable, "-B", "-m", "perf.comparisons.host", *map(str, words)], cwd=ROOT, capture_output=True,
                              text=True, timeout=60)

    def test_exit_status(self):
        done = self.judge(good_figures())
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("all_reduce, 8 ranks", done.stdout)
        self.assertNotIn("FALLS SHORT", done.stdout)
        bad = good_figures()
        bad["times"]["all_reduce"]["2"]["symmetric"]["8"] *= 2
        done = self.judge(bad)
        self.assertEqual(done.returncode, 1)
        self.assertIn("FALLS SHORT: all_reduce, 2 ranks, symmetric, 8 B: at most 0.140 us", done.stdout)

    def test_documents(self):
        text = (ROOT / "docs/performance.md").read_text()
        page, section = self.directory / "page.md", page_of_host.SECTION
        page.write_text(text)
        self.assertEqual(self.judge(good_figures(), "--write-docs", page).returncode, 0)
        once = page.read_text()
        self.assertEqual(once[:once.index(section.begin)], text[:text.index(section.begin)])
        self.assertEqual(once[once.index(section.end):], text[text.index(section.end):])
        self.assertIn("| 64 MiB |", once)
        self.assertIn("### Other collectives", once)
        self.judge(good_figures(), "--write-docs", page)
        self.assertEqual(page.read_text(), once)
        page.write_text("no marks")
        done = self.judge(good_figures(), "--write-docs", page)
        self.assertEqual(done.returncode, 1)
        self.assertIn("two marks", done.stderr)
        self.assertEqual(page.read_text(), "no marks")

    def test_sizes_in_runs(self):
        self.assertEqual(host.doublings(SIZES), [(8, 64 << 20)])
        self.assertEqual(host.doublings([8, 16, 64, 1024, 2048]), [(8, 16), (64, 64), (1024, 2048)])

    def test_bad_arguments(self):
        for words, said in ((["--sizes", "8,4X"], "'8,4X' is no list of sizes"), (["--sizes", "12"], "--sizes 12"),
                            (["--sizes", "128M"], "up to 64M"), (["--ranks", "3"], "2, 4 and 8"), (["--ranks", "x"], "'x'"),
                            (["--write-docs", self.directory / "none"], "cannot be read")):
            with self.subTest(words=words):
                done = self.run_it(*words)
                self.assertEqual(done.returncode, 1)
                self.assertIn(said, done.stderr)
                self.assertEqual(len(done.stderr.splitlines()), 1)


class Limit(unittest.TestCase):
    def limit(self, *words):
        return subprocess.run([HOST_LIMIT, *map(str, words)], capture_output=True, text=True, timeout=120)

    def test_figures(self):
        for ranks in (2, 4, 8):
            done = self.limit(ranks, "exchange")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            for what in "exchange_us", "clock_us":
                self.assertGreater(json.loads(done.stdout)[what], 0)
            for collective in ("all_reduce", *host_verdicts.OTHER_LIMITS):
                done = self.limit(ranks, collective, 512, 1 << 20)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                loops = json.loads(done.stdout)["loops"]
                self.assertEqual(set(loops), {"512", str(1 << 20)})
                self.assertTrue(all(us > 0 for us in loops.values()))

    def test_bad_arguments(self):
        for words in ([], [3], [2], [2, "all_reduce", 100], [8, "all_gather", 64], ["two", "exchange"], [2, "exchange", 64], [2, "reduce", 128]):
            done = self.limit(*words)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertEqual(len(done.stderr.splitlines()), 1)


if __name__ == "__main__":
    unittest.main()
