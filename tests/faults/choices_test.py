"""Which methods a job chooses does not change behind a user's back: what the first job on a machine has measured stays, a resumed
job chooses as the job that saved, and with STRETTO_DETERMINISTIC=1 nothing measured decides."""
import json
import re
import shutil
import unittest

from harness import FaultTest, losses

STEPS = 8


class Choices(FaultTest):
    def setUp(self):
        super().setUp()
        self.cache = self.directory / "cache"
        self.defaults = {"STRETTO_CALIBRATE": "auto", "STRETTO_CACHE_DIR": str(self.cache)}

    def train(self, name, flags, variables):
        """The losses of a job as text, and the lines on its output and on stderr that tell of choices."""
        run = self.start({"--train-iters": STEPS, "--log-dir": self.log(name), **flags}, variables)
        self.assertEqual(self.status(run), 0, run.errors)
        return losses(self.log(name)), [line for line in run.output.splitlines() if "chosen" in line], run.errors

    def invent(self, method):
        """What another measurement of this machine might find: sums are formed by this method."""
        path, = self.cache.iterdir()
        content = json.loads(path.read_text())
        content["routes"][0].update({name: f"all_reduce:0-inf:{method};reduce_scatter:0-inf:{method}" for name in ("table", "symmetric_table")})
        path.write_text(json.dumps(content))

    def resume(self, name, ranks=4, **variables):
        """A job that goes on in the middle, after step 4."""
        save = self.directory / name
        shutil.copytree(self.directory / "save" / "step_00000004", save / "step_00000004")
        if name == "control":
            index = save / "step_00000004" / "index.json"
            index.write_text(json.dumps(json.loads(index.read_text()) | {"choices": ""}))
        return self.train(f"{name}.log", {"--nproc": ranks, "--save": save, "--resume": True}, {**self.defaults, **variables})

    def test_a_resumed_job_chooses_as_the_one_that_saved(self):
        first = self.train("first", {"--nproc": 4}, self.defaults)
        self.assertEqual(first[1:], ([], []))
        measured, = self.cache.iterdir()
        kept = measured.read_bytes()
        for name in "second", "third":
            self.assertEqual(self.train(name, {"--nproc": 4}, self.defaults), first)
            self.assertEqual((list(self.cache.iterdir()), measured.read_bytes()), ([measured], kept))

        self.invent("ring")
        whole, *_ = self.train("whole", {"--nproc": 4, "--save": self.directory / "save", "--save-interval": 4}, self.defaults)
        self.invent("recursive_halving_doubling")
        self.assertEqual(self.resume("resumed"), (whole[4:], [], []))
        self.assertNotEqual(self.resume("control")[0], whole[4:])
        for name, ranks, settings in (("STRETTO_ALGO", 4, {"STRETTO_ALGO": "broadcast:binomial"}),
                                      ("STRETTO_TUNING", 4, {"STRETTO_TUNING": str(measured)}), ("ranks", 2, {})):
            with self.subTest(name):
                _, (notice,), _ = self.resume(name, ranks, **settings)
                self.assertIn("step_00000004", notice)
                self.assertIn(name, notice)

    def test_nothing_measured_decides_if_it_is_to_be_deterministic(self):
        """The number of chunks of a product follows from costs, and may change its last bits."""
        flags = {"--nproc": 2, "--tp": 2, "--dtype": "fp32", "--hidden-size": 256, "--seq-length": 128, "--micro-batch-size": 8, "--num-layers": 1,
                 "--train-iters": 2}
        most_of_a_sample = 128 * 256  # elements; products of training have more, in each chunk

        def trained(deterministic, microseconds):
            tuning = self.directory / f"{microseconds}.json"
            costs = {"ranks": 2, "ranks_per_core": 1, "alpha_us": microseconds, "overhead_us": microseconds, "bandwidth_gbs": 0.2, "local_gbs": 5,
                     "lane_gain": 0}
            tuning.write_text(json.dumps({"routes": [{"route": route, **costs} for route in ("shm", "ucx")]}))
            settings = {"STRETTO_DETERMINISTIC": deterministic, "STRETTO_EXPLAIN": "1", "STRETTO_TUNING": str(tuning)}
            its_losses, _, said = self.train(f"{deterministic}-{microseconds}", flags, settings)
            self.assertEqual(any("STRETTO_TUNING" in line and "not used" in line for line in said), deterministic == "1", said)
            sums = {int(count) for line in said for count in re.findall(r"all_reduce of (\d+) f32 in 'tp'", line)}
            return its_losses, {count for count in sums if count > most_of_a_sample}

        self.assertEqual(trained("1", 1), trained("1", 100))
        self.assertNotEqual(trained("0", 1)[1], trained("0", 100)[1], "the products were cut alike, so that this test shows nothing")


if __name__ == "__main__":
    unittest.main()
