"""What a job measures at its first start on a machine: what it keeps, who uses it, and when nothing is measured."""
import fcntl
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

from perf.comparisons.namespaces import Network, obstacle
from support.programs import ProgramTest, clean_environment, free_port, in_turns

PERF = os.environ["PERF_PROGRAM"]
MEASURES = "Measuring this machine"


@in_turns(3)
class Calibration(ProgramTest):
    def setUp(self):
        super().setUp()
        self.cache = self.directory / "a" / "cache"

    def start(self, ranks=2, on_one_core=False, **settings):
        environment = clean_environment({"STRETTO_CALIBRATE": "auto", "STRETTO_CACHE_DIR": str(self.cache), "STRETTO_LOG": "info",
                                         "STRETTO_EXPLAIN": "1", **settings})
        pinned = ["taskset", "-c", str(min(os.sched_getaffinity(0)))] if on_one_core else []
        return subprocess.Popen([*pinned, PERF, "all_reduce", "--nproc", str(ranks), "-b", "4096", "-e", "4096", "-n", "1"], env=environment,
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def said_by(self, *jobs, status=0):
        """What jobs say on stderr, each until its end."""
        said = [job.communicate(timeout=60)[1] for job in jobs]
        self.assertEqual([job.returncode for job in jobs], [status] * len(jobs), said)
        return said

    def job(self, **settings):
        """What a job of 2 ranks says on stderr."""
        return self.said_by(self.start(**settings))[0]

    def written(self):
        """The only file in the cache."""
        path, = self.cache.iterdir()
        return path

    def measured(self, **settings):
        """The file of a job that measures."""
        self.assertIn(MEASURES, self.job(**settings))
        return self.written()

    def expect_use_of(self, path, said):
        """A machine that was too busy has no table, so that its costs decide."""
        if "table" in json.loads(path.read_text())["routes"][0]:
            self.assertIn(f"by measurement, in {path}", said)

    def test_all_later_jobs_use_what_the_first_has_measured(self):
        said = self.job()
        self.assertIn(MEASURES, said)
        self.assertNotIn("'calibration'", said, "the measurement's own plans are nobody's business")
        path = self.written()
        content = path.read_bytes()
        route, = json.loads(content)["routes"]
        self.assertEqual((route["route"], route["ranks"]), ("shm", 2))
        for _ in range(3):
            again = self.job()
            self.assertNotIn(MEASURES, again)
            self.expect_use_of(path, again)
            self.assertEqual((self.written(), path.read_bytes()), (path, content))
        # It is an ordinary tuning file.
        self.expect_use_of(path, self.job(STRETTO_CALIBRATE="off", STRETTO_TUNING=str(path)))

    def test_now_measures_anew_whatever_is_known(self):
        path = self.measured()
        old = json.loads(path.read_text())
        old["routes"][0]["table"] = "all_reduce:0-inf:ring"
        path.write_text(json.dumps(old))
        self.measured(STRETTO_CALIBRATE="now", STRETTO_TUNING=str(path))
        self.assertEqual(len(json.loads(self.written().read_text())["routes"]), 1)

    def test_a_command_measures_for_all_jobs(self):
        command = [PERF, "calibrate", "--this-machine", "--nproc", "2,3"]
        environment = clean_environment({"STRETTO_CACHE_DIR": str(self.cache)})
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if "too busy" in done.stderr:
            self.skipTest(done.stderr)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([route["ranks"] for route in json.loads(self.written().read_text())["routes"]], [2, 3])
        self.assertNotIn(MEASURES, self.job())
        done = subprocess.run(command, env={**environment, "STRETTO_CACHE_DIR": "/dev/null/no"}, capture_output=True, text=True)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("/dev/null/no", done.stderr)

    def test_a_busy_machine_is_not_measured(self):
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in os.sched_getaffinity(0)]
        try:
            said = self.job()
        finally:
            for each in busy:
                each.kill()
                each.wait()
        self.assertIn("too busy", said)
        content = self.written().read_bytes()
        self.assertNotIn(MEASURES, self.job(), "later jobs choose alike")
        self.assertEqual(self.written().read_bytes(), content)

    def test_nothing_is_measured(self):
        tuning = self.cache.parent.parent / "tuning.json"
        tuning.write_text(json.dumps({"routes": [{"route": name, "ranks": 2, "ranks_per_core": 1, "alpha_us": 1, "overhead_us": 1,
                                                  "bandwidth_gbs": 1, "local_gbs": 1, "lane_gain": 0} for name in ("shm", "ucx")]}))
        hidden = [{"STRETTO_LINKS": "intra=1Gb/s,20us"}, {"STRETTO_RANKS_PER_NODE": "1"}, {"STRETTO_CHECK": "1"}, {"STRETTO_DETERMINISTIC": "1"}]
        for settings in ({"STRETTO_CALIBRATE": "off"}, {"STRETTO_TUNING": str(tuning)}, *hidden):
            with self.subTest(settings):
                self.assertNotIn(MEASURES, self.job(**settings))
                self.assertFalse(self.cache.exists())
        for settings in hidden:
            with self.subTest(settings):
                said, = self.said_by(self.start(STRETTO_CALIBRATE="now", **settings), status=1)
                self.assertIn(next(iter(settings)), said)
                self.assertFalse(self.cache.exists())

    def test_nothing_is_measured_that_cannot_be_kept(self):
        for nowhere, named in (({"STRETTO_CACHE_DIR": "", "HOME": "", "XDG_CACHE_HOME": ""}, "XDG_CACHE_HOME"),
                               ({"STRETTO_CACHE_DIR": "/dev/null/no"}, "/dev/null/no")):
            said = self.job(**nowhere)
            self.assertNotIn(MEASURES, said)
            self.assertIn(named, said)
            said, = self.said_by(self.start(STRETTO_CALIBRATE="now", **nowhere), status=1)
            self.assertIn(named, said)
        xdg = {"STRETTO_CACHE_DIR": "", "HOME": "", "XDG_CACHE_HOME": str(self.cache)}
        self.cache /= "stretto"
        self.measured(**xdg)

    def test_several_hosts(self):
        if obstacle():
            self.skipTest(obstacle())
        with Network([2, 2], "1gbit") as network:
            network.known.update(STRETTO_CACHE_DIR=str(self.cache), STRETTO_CALIBRATE="auto", STRETTO_EXPLAIN="1", STRETTO_LOG="info")
            said = []
            for _ in range(2):
                said.append(network.output_of([PERF, "all_reduce", "-b", "4096", "-e", "4096", "-n", "1"], stream="stderr"))
        routes = json.loads(self.written().read_text())["routes"]
        self.assertEqual([(route["route"], route["ranks"], route.get("ranks_per_node")) for route in routes],
                         [("shm", 2, None), ("network", 4, 2)])
        self.assertEqual([MEASURES in each for each in said], [True, False])
        if "all_reduce:" in routes[1].get("table", ""):
            self.assertRegex(said[1], "all_reduce of 1024 f32 in 'world'.*by measurement, in ")

    def test_a_cache_that_cannot_be_read(self):
        path = self.measured()
        path.write_text("{\"routes\": [")
        said = self.job()
        self.assertIn(str(path), said)
        self.assertIn(MEASURES, said)
        json.loads(path.read_text())

    def test_of_jobs_that_start_at_once_one_measures(self):
        said = self.said_by(*[self.start() for _ in range(3)])
        self.assertEqual(sum(MEASURES in text for text in said), 1, said)
        for text in said:
            self.expect_use_of(self.written(), text)

    def test_jobs_of_other_numbers_of_ranks_keep_what_each_has_measured(self):
        self.said_by(*[self.start(ranks) for ranks in (2, 3)])
        self.assertEqual({route["ranks"] for route in json.loads(self.written().read_text())["routes"]}, {2, 3})
        for text in self.said_by(*[self.start(ranks) for ranks in (2, 3)]):
            self.assertNotIn(MEASURES, text)

    def test_a_job_that_measures_for_too_long_is_not_waited_for(self):
        self.cache.mkdir(parents=True)
        directory = os.open(self.cache, os.O_RDONLY)
        self.addCleanup(os.close, directory)
        fcntl.flock(directory, fcntl.LOCK_EX)
        said = self.job()
        self.assertIn("another job has been measuring this machine", said)
        self.assertNotIn(MEASURES, said)

    def test_all_ranks_take_the_first_rank_s_measurements(self):
        """Each rank finds other ones."""
        path = self.measured()
        content = json.loads(path.read_text())
        caches = []
        for rank, method in enumerate(("ring", "two_shot")):
            content["routes"][0].update(table=f"all_reduce:0-inf:{method}", symmetric_table=f"all_reduce:0-inf:{method}")
            caches.append(self.cache.parent / f"cache{rank}")
            caches[-1].mkdir()
            (caches[-1] / path.name).write_text(json.dumps(content))
        port = str(free_port())
        ranks = [subprocess.Popen([PERF, "all_reduce", "-b", "4096", "-e", "4096", "-n", "1"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                  text=True, env=clean_environment({
                                      "STRETTO_CALIBRATE": "auto", "STRETTO_CACHE_DIR": str(cache), "STRETTO_EXPLAIN": "1", "STRETTO_TIMEOUT": "20",
                                      "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}))
                 for rank, cache in enumerate(caches)]
        self.assertRegex(self.said_by(*ranks)[0], rf"all_reduce of 1024 f32 in 'world'.* ring, by measurement, in {caches[0]}/")

    def test_what_a_busy_machine_was_too_slow_for_is_not_tried_again(self):
        """A rank is halted, soon after the measurement has begun, for as long as it may take."""
        for i in range(10):  # the halt may come before the clock of the measurement, or too late
            job = self.start(on_one_core=True)
            before = ""
            while MEASURES not in before:
                before += (line := job.stderr.readline())
                self.assertTrue(line, before)
            rank = int(pathlib.Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()[1])
            time.sleep(0.1 * i)
            os.kill(rank, signal.SIGSTOP)
            time.sleep(6.5)
            os.kill(rank, signal.SIGCONT)
            if "too busy" in before + self.said_by(job)[0]:
                break
            self.written().unlink()
        else:
            self.skipTest("no halt came in the middle of a measurement")
        path = self.written()
        content = path.read_bytes()
        self.assertNotIn("table", json.loads(content)["routes"][0])
        self.assertNotIn(MEASURES, self.job(on_one_core=True))
        self.assertEqual(path.read_bytes(), content)

    def test_what_a_killed_job_left_is_tidied_up(self):
        path = self.measured()
        left, young = (path.with_name(f"{path.name}.{name}.unfinished") for name in ("0badcafe", "600dcafe"))
        for file in (left, young):
            file.write_text("{")
        os.utime(left, (0, time.time() - 3600))
        for _ in range(10):
            os.utime(young)  # a busy machine's attempts take longer than it takes to grow old
            if "too busy" not in self.job(STRETTO_CALIBRATE="now"):
                break
        else:
            self.skipTest("the machine is too busy to be measured, and the file stays as it is")
        self.assertFalse(left.exists())
        self.assertTrue(young.exists(), "its job may still be writing")


if __name__ == "__main__":
    unittest.main()
