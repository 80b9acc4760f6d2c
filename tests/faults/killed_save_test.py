"""Jobs that are killed while they save in the background leave a newest checkpoint that loads."""
import os
import random
import re
import signal
import time
import unittest

from harness import FOREVER, FaultTest, losses, ranks_under
from support.programs import EVERYTHING  # noqa: E402

# Most of their time goes to bringing files to the disk.
KILLS = int(os.environ.get("STRETTO_TEST_KILLS", 12 if EVERYTHING else 6))
LAYOUTS = ({"--nproc": 2, "--zero": 1}, {"--nproc": 3, "--pp": 3, "--num-layers": 3}, {"--nproc": 4, "--tp": 2, "--zero": 3})


class KilledSave(FaultTest):

    def latest(self, save):
        return int((save / "latest").read_text().strip().removeprefix("step_")) if (save / "latest").exists() else 0

    def test_at_random_moments(self):
        seed = random.randrange(1 << 32)
        print(f"seed {seed}", flush=True)
        moments = random.Random(seed)
        save = self.directory / "save"
        always = {"--num-layers": 3, "--save": save, "--save-interval": 1, "--async-save": True, "--keep": 2, "--log-interval": 1}
        begun = 0
        for kill in range(KILLS):
            flags = {**always, **LAYOUTS[kill % len(LAYOUTS)], "--train-iters": FOREVER}
            run = self.start({**flags, "--resume": True} if begun else flags)
            while "Saved" not in run.output and run.process.poll() is None:
                time.sleep(0.002)
            time.sleep(moments.uniform(0, 0.1))
            if kill % 2 == 0:
                run.kill_all()
            else:
                ranks = ranks_under(run.process.pid)
                os.kill(moments.choice(ranks), signal.SIGKILL)
                self.assertEqual(self.status(run), 128 + signal.SIGKILL, run.errors)
            if begun:
                continued = re.search(r"Continues after step (\d+)\.", run.output)
                self.assertTrue(continued, (kill, run.output, run.errors))
                self.assertEqual(int(continued.group(1)), begun, kill)
            newest = self.latest(save)
            self.assertGreater(newest, begun, (kill, run.output))
            begun = newest
        last = {**always, **LAYOUTS[0], "--train-iters": begun + 3, "--resume": True}
        self.expect_success(self.start(last))
        left = sorted(path.name for path in save.iterdir())  # and nothing that a killed job had begun
        self.assertEqual(left, ["latest", f"step_{begun + 2:08}", f"step_{begun + 3:08}"])
        self.expect_nothing_left()

    def test_the_newest_is_incomplete(self):
        flags = {"--nproc": 2, "--save": self.directory / "save", "--save-interval": 4}
        self.expect_success(self.start({**flags, "--train-iters": 6, "--log-dir": self.log("whole")}))
        (self.directory / "save/step_00000006/index.json").unlink()
        run = self.start({**flags, "--train-iters": 6, "--resume": True, "--log-dir": self.log("resumed")})
        self.expect_success(run)
        self.assertIn("save/step_00000006 has no index.json and is left out; loaded ", run.output)
        self.assertIn("Continues after step 4.", run.output)
        self.assertEqual(losses(self.log("resumed")), losses(self.log("whole"))[4:])
        again = self.start({**flags, "--train-iters": 7, "--resume": True})
        self.expect_success(again)
        self.assertIn("Continues after step 6.", again.output)
        self.assertNotIn("left out", again.output)


if __name__ == "__main__":
    unittest.main()
