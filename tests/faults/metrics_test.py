"""metrics.jsonl after a crash, with numbers that JSON has not, and with two jobs."""
import json
import socket
import unittest

from harness import FOREVER, FaultTest, ranks_under


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
        """The second one may not write where the first does, and is told who does. A job that has been killed is in nobody's way."""
        save = self.directory / "save"
        first = self.start({**self.flags, "--save-interval": 2, "--train-iters": FOREVER, "--keep": 2})
        self.wait_for_steps(self.log("log"), 3)
        rank0 = ranks_under(first.process.pid)[0]
        for flags in ({"--log-dir": self.log("log")}, {"--save": save, "--resume": True, "--train-iters": FOREVER}):
            second = self.start({"--nproc": 2, **flags})
            self.assertEqual(self.status(second), 1)
            self.assertEqual(len(second.errors), 1, second.errors)
            for word in (*list(flags.items())[0], f"process {rank0} on {socket.gethostname()}"):
                self.assertIn(str(word), second.errors[0])
        self.assertIsNone(first.process.poll())
        first.kill_all()
        self.expect_success(self.start({"--nproc": 2, "--save": save, "--resume": True, "--train-iters": int((save / "latest").read_text()[5:])}))
        self.assertEqual([path.name for path in save.iterdir() if path.name.startswith(".")], [])
        steps = self.steps()
        self.assertEqual(steps, list(range(1, len(steps) + 1)))


if __name__ == "__main__":
    unittest.main()
