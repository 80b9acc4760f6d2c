"""If the disk fills up while a checkpoint is written, the new checkpoint is lost and the previous one stays valid."""
import os
import shutil
import subprocess
import unittest

from harness import FaultTest, losses


@unittest.skipUnless(os.geteuid() == 0, "mounting a small disk takes root")
class FullDisk(FaultTest):

    def mount(self, size):
        disk = self.directory / "disk"
        disk.mkdir()
        mounting = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", disk], stderr=subprocess.PIPE,
                                  text=True)
        if mounting.returncode != 0:
            self.skipTest(f"a tmpfs cannot be mounted here: {mounting.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", "-l", disk], check=True)
        return disk

    def test_second_checkpoint_does_not_fit(self):
        flags = {"--nproc": 2, "--tp": 2, "--train-iters": 4, "--save-interval": 2}
        roomy = self.directory / "roomy"
        self.expect_success(self.start({**flags, "--save": roomy, "--log-dir": self.log("whole")}))
        one = sum(file.stat().st_size for file in (roomy / "step_00000002").iterdir())

        disk = self.mount(one * 3 // 2)
        run = self.start({**flags, "--save": disk})
        self.assertNotEqual(self.status(run), 0)
        self.assertEqual(len([line for line in run.errors if line.startswith("error: ")]), 1, run.errors)
        self.assertIn(str(disk), run.errors[0])
        self.assertIn("No space left on device", run.errors[0])
        self.expect_nothing_left()
        self.assertEqual(sorted(path.name for path in disk.iterdir()), ["latest", "step_00000002"])

        copy = self.directory / "copy"
        shutil.copytree(disk, copy)
        self.expect_success(self.start({**flags, "--save": copy, "--resume": True, "--log-dir": self.log("resumed")}))
        self.assertEqual(losses(self.log("resumed")), losses(self.log("whole"))[2:])

    def test_no_room_for_the_log(self):
        disk = self.mount("8k")
        (disk / "filler").write_bytes(bytes(4096))
        run = self.start({"--nproc": 2, "--train-iters": 1000, "--log-dir": disk})
        self.assertNotEqual(self.status(run), 0)
        errors = [line for line in run.errors if line.startswith("error: ")]
        self.assertEqual(len(errors), 1, run.errors)
        self.assertIn(f"{disk}/metrics.jsonl", errors[0])
        self.assertIn("No space left on device", errors[0])
        # Each rank has no room for its last operations, either.
        for line in set(run.errors) - set(errors):
            self.assertIn(f"The record of the last operations {disk}/flight/", line)


if __name__ == "__main__":
    unittest.main()
