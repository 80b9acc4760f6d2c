"""metrics.jsonl after a crash, with numbers that JSON has not, and with two jobs."""
import json
import unittest

from harness import FOREVER, FaultTest


class Metrics(FaultTest):

    def setUp(self):
        super().setUp()
        self.metrics = self.log("log") / "metrics.jsonl"
        self.flags = {"--nproc": 2, "--log-dir": self.log("log"), "--save": self.directory / "save", "--save-interval": 4}

    def steps(self):
        return [json.loads(line)["step"] for line in self.metrics.read_text().splitlines()]

    def test_resume_after_a_crash_repeats_no_step(self):
        self.expect_success(self.start({**self.flags, "--train-iters": 6}))
        (self.directory / "save" / "latest").write_text("step_00000004\n")
        with open(self.metrics, "a") as metrics:
            metrics.write('{"step":7,"loss":5.')
        resumed = self.start({**self.flags, "--train-iters": 8, "--resume": True})
        self.expect_success(resumed)
        self.assertIn("Continues after step 4.", resumed.output)
        self.assertEqual(self.steps(), list(range(1, 9)))

    def test_numbers_that_json_has_not(self):
        self.expect_success(self.start({**self.flags, "--train-iters": 4}))
        lines = self.metrics.read_text().splitlines()
        for key in ("val_loss", "loss"):
            line = json.loads(lines[-1])
            self.assertIn(key, line)
            line[key] = None  # as NaN is written
            lines[-1] = json.dumps(line)
        self.metrics.write_text("\n".join(lines) + "\n")
        resumed = self.start({**self.flags, "--train-iters": 5, "--resume": True})
        self.expect_success(resumed)
        self.assertIn("Continues after step 4.", resumed.output)
        self.assertEqual(self.steps(), list(range(1, 6)))

    def test_numbers_that_no_axis_tells_apart(self):
        self.expect_success(self.start({**self.flags, "--train-iters": 4}))
        lines = [json.loads(line) for line in self.metrics.read_text().splitlines()]
        for loss, step in ((1e20, 1), (1e20, -1e300)):
            with self.subTest(loss=loss, step=step):
                lines[0]["step"] = step
                for line in lines:
                    line["loss"] = loss
                self.metrics.write_text("\n".join(map(json.dumps, lines)) + "\n")
                self.expect_success(self.start({**self.flags, "--train-iters": 5, "--resume": True}))
                (self.directory / "save" / "latest").write_text("step_00000004\n")
                self.assertTrue((self.log("log") / "loss.svg").read_text().endswith("</svg>\n"))

    def test_two_jobs(self):
        first = self.start({"--nproc": 2, "--train-iters": FOREVER, "--log-dir": self.log("log")})
        self.wait_for_steps(self.log("log"), 3)
        second = self.start({"--nproc": 2, "--log-dir": self.log("log")})
        self.assertEqual(self.status(second), 1)
        self.assertEqual(second.errors, [f"error: rank 0: Another job writes {self.metrics}; give each job a --log-dir of its own."])
        self.assertIsNone(first.process.poll())
        first.kill_all()
        steps = self.steps()
        self.assertEqual(steps, list(range(1, len(steps) + 1)))


if __name__ == "__main__":
    unittest.main()
