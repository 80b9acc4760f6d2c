"""What a job measures at its first start on a machine: what it keeps, who uses it, and when nothing is measured."""
import fcntl
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from clean_environment import clean_environment  # noqa: E402
from free_port import free_port  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from perf.comparisons.namespaces import Network, obstacle  # noqa: E402

PERF = os.environ["PERF_PROGRAM"]
MEASURED = re.compile(r"Measured this machine with 2 ranks|too busy to be measured with 2 ranks")


class Calibration(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="calibration-")
        self.addCleanup(temporary.cleanup)
        self.cache = pathlib.Path(temporary.name) / "a" / "cache"

    def start(self, ranks=2, on_one_core=False, **settings):
        environment = clean_environment({"STRETTO_CALIBRATE": "auto", "STRETTO_CACHE_DIR": str(self.cache), "STRETTO_LOG": "info",
                                         "STRETTO_EXPLAIN": "1", **settings})
        pinned = ["taskset", "-c", str(min(os.sched_getaffinity(0)))] if on_one_core else []
        return subprocess.Popen([*pinned, PERF, "all_reduce", "--nproc", str(ranks), "-b", "4096", "-e", "4096", "-n", "1"], env=environment,
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def said_by(self, *jobs):
        """What jobs say on stderr, each until its end."""
        said = [job.communicate(timeout=60)[1] for job in jobs]
        self.assertEqual([job.returncode for job in jobs], [0] * len(jobs), said)
        return said

    def job(self, **settings):
        """What a job of 2 ranks says on stderr."""
        return self.said_by(self.start(**settings))[0]

    def written(self):
        """The only file of measurements in the cache. The others are that by which jobs take turns, and the times of all methods."""
        files = list(self.cache.iterdir())
        measurements = [file for file in files if file.suffix == ".json"]
        self.assertEqual(len(measurements), 1, files)
        self.assertLessEqual({*files}, {*measurements, *(pathlib.Path(f"{measurements[0]}.{of}") for of in ("turn", "times"))})
        return measurements[0]

    def ten_minutes_later(self):
        turn, = self.cache.glob("*.turn")
        content = json.loads(turn.read_text())
        for pause in content.values():
            pause["again"] = int(time.time())
        turn.write_text(json.dumps(content))

    def unlucky(self):
        """Forgets that the machine was too busy, which would keep the next job from trying again."""
        for file in self.cache.glob("*.turn"):
            file.unlink()

    def measure(self, **settings):
        """A busy machine may need several jobs."""
        for _ in range(20):
            said = self.job(**settings)
            self.assertRegex(said, MEASURED)
            if "Measured" in said:
                return said
            self.unlucky()
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

    def test_two_later_jobs_measure_once_more(self):
        self.measure()
        for measurements in (2, 3):
            self.assertNotRegex(self.job(), MEASURED, "the machine may still do what it did before")
            for _ in range(20):
                self.ten_minutes_later()
                said = self.job()
                self.assertRegex(said, MEASURED)
                if "Measured" in said:
                    break
            else:
                self.skipTest("the machine is too busy to be measured")
            route, = json.loads(self.written().read_text())["routes"]
            self.assertEqual(route["measurements"], measurements)
        self.ten_minutes_later()
        self.assertNotRegex(self.job(), MEASURED)
        # Who cannot read the times begins anew, and keeps a table all the while.
        path = self.written()
        path.with_name(f"{path.name}.times").write_text("{")
        self.measure(STRETTO_CALIBRATE="now")
        route, = json.loads(self.written().read_text())["routes"]
        self.assertNotIn("measurements", route)

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
        nowhere["XDG_CACHE_HOME"] = str(self.cache)
        self.cache /= "stretto"
        self.measure(**nowhere)
        self.written()

    def test_several_hosts(self):
        if obstacle():
            self.skipTest(obstacle())
        with Network([2, 2], "1gbit") as network:
            network.known.update(STRETTO_CACHE_DIR=str(self.cache), STRETTO_CALIBRATE="auto")
            for _ in range(20):
                network.run([PERF, "all_reduce", "-b", "4096", "-e", "4096", "-n", "1"])
                routes = json.loads(self.written().read_text())["routes"] if list(self.cache.glob("*.json")) else []
                if {route["route"] for route in routes} == {"shm", "network"}:
                    break
                self.unlucky()
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

    def test_jobs_that_start_at_once_measure_in_turn(self):
        for _ in range(10):
            said = self.said_by(*[self.start() for _ in range(3)])
            self.assertEqual(sum(text.count("Measuring this machine") for text in said), 1, said)
            if self.cache.exists() and list(self.cache.glob("*.json")):
                break
            self.unlucky()
        else:
            self.skipTest("the machine is too busy to be measured")
        for text in said:
            self.assertIn(f"by measurement, in {self.written()}", text)

    def test_jobs_that_write_at_once_keep_what_each_has_measured(self):
        for _ in range(10):
            said = self.said_by(*[self.start(ranks) for ranks in (2, 3)])
            if all("Measured this machine" in text for text in said):
                break
            shutil.rmtree(self.cache)
        else:
            self.skipTest("the machine is too busy to be measured")
        self.assertEqual({route["ranks"] for route in json.loads(self.written().read_text())["routes"]}, {2, 3})
        for text in self.said_by(*[self.start(ranks) for ranks in (2, 3)]):
            self.assertIn(f"by measurement, in {self.written()}", text)
            self.assertNotIn("Measuring", text)

    def test_a_job_that_measures_for_too_long_is_not_waited_for(self):
        self.measure()
        path = self.written()
        path.unlink()
        with open(f"{path}.turn", "a") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            said = self.job()
        self.assertIn("Another job has been measuring this machine", said)
        self.assertNotIn("Measuring this machine", said)

    def test_all_ranks_take_the_first_rank_s_measurements(self):
        """Each rank finds other ones."""
        self.measure()
        content = json.loads(self.written().read_text())
        caches = []
        for rank, method in enumerate(("ring", "two_shot")):
            content["routes"][0].update(measurements=3, table=f"all_reduce:0-inf:{method}", symmetric_table=f"all_reduce:0-inf:{method}")
            caches.append(self.cache.parent / f"cache{rank}")
            caches[-1].mkdir()
            (caches[-1] / self.written().name).write_text(json.dumps(content))
        port = str(free_port())
        ranks = [subprocess.Popen([PERF, "all_reduce", "-b", "4096", "-e", "4096", "-n", "1"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                  text=True, env=clean_environment({
                                      "STRETTO_CALIBRATE": "auto", "STRETTO_CACHE_DIR": str(cache), "STRETTO_EXPLAIN": "1", "STRETTO_TIMEOUT": "20",
                                      "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}))
                 for rank, cache in enumerate(caches)]
        self.assertRegex(self.said_by(*ranks)[0], rf"all_reduce of 1024 f32 in 'world'.* ring, by measurement, in {caches[0]}/")

    def job_in_vain(self, wait):
        """What a job says whose measurement gets nowhere, as on a machine that is very busy: its ranks share a core, and one of them is
        halted, so many seconds after the measurement has begun, for as long as it may take."""
        job = self.start(on_one_core=True)
        before = ""
        while "Measuring this machine" not in before:
            before += (line := job.stderr.readline())
            self.assertTrue(line, before)
        rank = int(pathlib.Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()[1])
        time.sleep(wait)
        os.kill(rank, signal.SIGSTOP)
        time.sleep(6.5)
        os.kill(rank, signal.SIGCONT)
        return before + self.said_by(job)[0]

    def test_not_every_job_tries_to_measure_a_busy_machine(self):
        for i in range(10):  # the halt may come before the clock of the measurement, or too late
            said = self.job_in_vain(0.1 * i)
            if "Measured" not in said:
                break
            shutil.rmtree(self.cache)
        self.assertIn("jobs try again in 1 min", said)
        turn, = self.cache.iterdir()  # nothing else is kept
        said = self.job(on_one_core=True)
        self.assertNotIn("Measuring this machine", said)
        self.assertIn("jobs try again in 1 min", said)
        # The time has come.
        (_, tries), = (content := json.loads(turn.read_text())).items()
        tries["again"] = int(time.time())
        turn.write_text(json.dumps(content))
        self.assertIn("Measuring this machine", self.job(on_one_core=True))
        self.measure(on_one_core=True, STRETTO_CALIBRATE="now")
        self.assertEqual([name for name in json.loads(turn.read_text()) if "once more" not in name], [])
        self.written()

    def test_what_a_killed_job_left_is_tidied_up(self):
        self.measure()
        path = self.written()
        left, young = (path.with_name(f"{path.name}.{name}.unfinished") for name in ("0badcafe", "600dcafe"))
        for file in (left, young):
            file.write_text("{")
        os.utime(left, (0, time.time() - 3600))
        self.measure(STRETTO_CALIBRATE="now")
        self.assertFalse(left.exists())
        self.assertTrue(young.exists(), "its job may still be writing")


if __name__ == "__main__":
    unittest.main()
