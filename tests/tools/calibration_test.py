"""What a job measures at its first start on a machine: what it keeps, who uses it, and when nothing is measured."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from clean_environment import clean_environment  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from perf.comparisons.namespaces import Network, obstacle  # noqa: E402

PERF = os.environ["PERF_PROGRAM"]
MEASURED = re.compile(r"Measured this machine with 2 ranks|too busy to be measured with 2 ranks")


class Calibration(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="calibration-")
        self.addCleanup(temporary.cleanup)
        self.cache = pathlib.Path(temporary.name) / "a" / "cache"

    def job(self, **settings):
        """What a job of 2 ranks says on stderr."""
        environment = clean_environment({"STRETTO_CALIBRATE": "auto", "STRETTO_CACHE_DIR": str(self.cache), "STRETTO_LOG": "info",
                                         "STRETTO_EXPLAIN": "1", **settings})
        done = subprocess.run([PERF, "all_reduce", "--nproc", "2", "-b", "4096", "-e", "4096", "-n", "1"], env=environment,
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stderr

    def written(self):
        """The only file of the cache."""
        files = list(self.cache.iterdir())
        self.assertEqual(len(files), 1, files)
        return files[0]

    def measure(self, **settings):
        """A busy machine may need several jobs."""
        for _ in range(20):
            said = self.job(**settings)
            self.assertRegex(said, MEASURED)
            if "Measured" in said:
                return said
        self.skipTest("the machine is too busy to be measured")

    def test_the_next_job_uses_what_the_first_has_measured(self):
        self.assertNotIn("'calibration'", self.measure(), "the measurement's own plans are nobody's business")
        path = self.written()
        content = path.read_text()
        route, = json.loads(content)["routes"]
        self.assertEqual((route["route"], route["ranks"]), ("shm", 2))
        self.assertIn("all_reduce:", route["table"])
        again = self.job()
        self.assertNotRegex(again, MEASURED)
        self.assertIn(f"by measurement, in {path}", again)
        self.assertEqual(path.read_text(), content)
        # It is an ordinary tuning file.
        self.assertIn(f"by measurement, in {path}", self.job(STRETTO_CALIBRATE="off", STRETTO_TUNING=str(path)))

    def test_now_measures_again_whatever_is_known(self):
        self.measure()
        self.measure(STRETTO_CALIBRATE="now", STRETTO_TUNING=str(self.written()))
        self.assertEqual(len(json.loads(self.written().read_text())["routes"]), 1)

    def test_nothing_is_measured(self):
        tuning = self.cache.parent.parent / "tuning.json"
        tuning.write_text(json.dumps({"routes": [{"route": name, "ranks": 2, "ranks_per_core": 1, "alpha_us": 1, "overhead_us": 1,
                                                  "bandwidth_gbs": 1, "local_gbs": 1, "lane_gain": 0} for name in ("shm", "ucx")]}))
        for settings in ({"STRETTO_CALIBRATE": "off"}, {"STRETTO_TUNING": str(tuning)}, {"STRETTO_LINKS": "intra=1Gb/s,20us"},
                         {"STRETTO_RANKS_PER_NODE": "1"}, {"STRETTO_CHECK": "1"}):
            with self.subTest(settings):
                self.assertNotRegex(self.job(**settings), MEASURED)
                self.assertFalse(self.cache.exists())

    def test_without_a_place_for_the_cache(self):
        nowhere = {"STRETTO_CACHE_DIR": "", "HOME": "", "XDG_CACHE_HOME": ""}
        said = self.job(**nowhere)
        self.assertRegex(said, MEASURED)
        if "Measured" in said:
            self.assertRegex(said, "neither STRETTO_CACHE_DIR, XDG_CACHE_HOME nor HOME")
        self.measure(**{**nowhere, "XDG_CACHE_HOME": str(self.cache)})
        self.cache = self.cache / "stretto"
        self.written()

    def test_several_hosts(self):
        if obstacle():
            self.skipTest(obstacle())
        with Network([2, 2], "1gbit") as network:
            network.known.update(STRETTO_CACHE_DIR=str(self.cache), STRETTO_CALIBRATE="auto")
            for _ in range(20):
                network.run([PERF, "all_reduce", "-b", "4096", "-e", "4096", "-n", "1"])
                routes = json.loads(self.written().read_text())["routes"] if self.cache.exists() else []
                if {route["route"] for route in routes} == {"shm", "network"}:
                    break
            else:
                self.skipTest("the machine is too busy to be measured")
            network.known["STRETTO_EXPLAIN"] = "1"
            ranks = network.start([PERF, "all_reduce", "-b", "4096", "-e", "4096", "-n", "1"], stdout=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE, text=True)
            said = [rank.communicate()[1] for rank in ranks]
        between, = (route for route in routes if route["route"] == "network")
        self.assertEqual((between["ranks"], between["ranks_per_node"]), (4, 2))
        self.assertIn("all_reduce:", between["table"])
        self.assertRegex(said[0], "all_reduce of 1024 f32 in 'world'.*by measurement, in ")

    def test_a_cache_that_cannot_be_read_or_written(self):
        self.measure()
        path = self.written()
        path.write_text("{\"routes\": [")
        self.assertIn(str(path), self.measure())
        json.loads(path.read_text())
        said = self.job(STRETTO_CACHE_DIR="/dev/null/no")
        self.assertRegex(said, MEASURED)
        if "Measured" in said:
            self.assertIn("/dev/null/no", said)
            self.assertIn("STRETTO_CALIBRATE=off", said)


if __name__ == "__main__":
    unittest.main()
