"""stretto-plan step and stretto-plan pipeline: schedules of a step and of stages."""
import json
import re
import unittest

from plan_harness import LINKS, Drawn, PlanTool
from support.programs import in_turns


class Steps(PlanTool):
    STEP = ["step", "--ranks", 64, "--links", LINKS, "--gflops", 100000, "--layers", 4, "--hidden", 1024]

    def times(self, lines):
        """The time of each schedule in ms."""
        names = {"planned  ": "planned", "no partition, blocking": "blocking", "no partition, as early": "early",
                 "buckets of 25 MiB": "buckets", "those buckets, and all by level": "levels",
                 "no schedule can be faster": "bound"}
        return {short: float(re.search(r"([\d.]+) ms", line).group(1))
                for line in lines for begin, short in names.items() if line.startswith(begin)}

    def test_is_never_worse_than_what_it_is_beside(self):
        for more in ([], ["--tp", 8], ["--zero", 3], ["--dp", 8, "--tp", 8, "--slowdown", 0.1]):
            lines = self.lines(*self.STEP, *more)
            times = self.times(lines)
            self.assertEqual(len(times), 6, lines)
            self.assertLessEqual(times["planned"], min(times[name] for name in ("blocking", "early", "buckets", "levels")))
            self.assertGreaterEqual(times["planned"], times["bound"])
            self.assertTrue(any(line.startswith("because: ") for line in lines))

    def test_json_says_every_collective(self):
        path = self.directory / "plan.json"
        lines = self.lines(*self.STEP, "--tp", 8, "--json", path)
        plan = json.loads(path.read_text())
        self.assertAlmostEqual(plan["planned_ms"], self.times(lines)["planned"], places=2)
        gradients = [each for each in plan["collectives"] if each["carries"] == "gradients"]
        self.assertEqual(sum(each["bytes"] for each in gradients), 4 * 12 * 1024 * 1024 // 8 * 4)
        activations = [each for each in plan["collectives"] if each["carries"] == "activations"]
        self.assertEqual(len(activations), 4 * 8)
        self.assertEqual({each["ranks"] for each in activations}, {8})

    def test_refusals(self):
        self.refused("--tp 3 does not divide --ranks 64", *self.STEP, "--tp", 3)
        self.refused("--dp 4 x --tp 8 are not --ranks 64", *self.STEP, "--dp", 4, "--tp", 8)
        self.refused("--gflops", "step", "--ranks", 8, "--links", LINKS)
        self.refused("no_such.json", "step", "--ranks", 8, "--links", "no_such.json", "--gflops", 1)
        self.refused("cut a group of 12 ranks", *self.STEP[:1], "--ranks", 24, "--tp", 12, *self.STEP[3:])
        self.refused("--zero", *self.STEP, "--zero", 2)
        self.refused("--json", *self.STEP, "--json", "/no/such/directory/plan.json")


@in_turns()
class Pipelines(Drawn):
    def schedule(self, name, *words):
        return self.lines("pipeline", "--schedule", name, *words)

    def json(self, name, *words):
        path = self.file.with_suffix(".json")
        self.schedule(name, "--json", path, *words)
        return json.loads(path.read_text())

    def test_figures(self):
        lines = self.schedule("1f1b", "--pp", 4, "--microbatches", 8)
        self.assertEqual(lines[0], "1f1b, 4 stages, 8 microbatches, 1 chunk a stage: proved")
        self.assertRegex(lines[1], r"^bubble +37\.50% ")
        self.assertRegex(lines[3], r"^under way +4 3 2 1 by stage")
        self.assertEqual(self.json("interleaved", "--pp", 2, "--microbatches", 4, "--virtual-stages", 3),
                         {"schedule": "interleaved", "stages": 2, "microbatches": 4, "chunks": 3, "step": 39.0, "ideal": 36.0,
                          "bubble": 39 / 36 - 1, "under_way": [7, 5], "versions": [1, 1], "delay": [0, 0]})
        self.assertEqual(self.json("zb-v", "--pp", 4, "--microbatches", 8)["bubble"], 0)
        self.assertEqual(self.json("gpipe", "--pp", 2, "--microbatches", 1, "--times", "1,2,3,0.5")["step"], 13)

    def test_a_file_is_a_schedule(self):
        text = self.file.with_suffix(".txt")
        lines = self.schedule("zb-h1", "--pp", 3, "--microbatches", 5, "--text", text)
        self.assertEqual(self.schedule(text), lines)
        self.refused("is for 3 stages, not for 4", "pipeline", "--schedule", text, "--pp", 4)
        text.write_text(text.read_text().replace("send_forward 3 0", "send_forward 4 0", 1))
        self.refused("Stage 0 has send_forward 4 0 before", "pipeline", "--schedule", text)
        text.write_text("garbage")
        self.refused("Line 1 of the schedule", "pipeline", "--schedule", text)

    def test_windows_say_how_many_versions_they_keep(self):
        lines = self.schedule("pipedream", "--pp", 4, "--microbatches", 6)
        self.assertEqual(lines[0], "pipedream, 4 stages, 6 steps of 1 microbatch, 1 chunk a stage: proved")
        self.assertRegex(lines[1], r"^bubble +0\.00% ")
        self.assertRegex(lines[5], r"^versions +4 3 2 1 by stage")
        self.assertRegex(lines[6], r"^delay +3 2 1 0 by stage")
        figures = self.json("2bw", "--pp", 4, "--microbatches", 6)
        self.assertEqual((figures["versions"], figures["delay"], figures["step"]), ([2] * 4, [1] * 4, 18))
        text = self.file.with_suffix(".txt")
        self.assertEqual(self.schedule("pipedream", "--pp", 4, "--microbatches", 6, "--text", text), lines)
        self.assertEqual(self.schedule(text), lines)
        self.schedule("2bw", "--pp", 2, "--microbatches", 4, "--svg", self.file)
        self.assertIn("update", self.texts())

    def test_picture(self):
        self.schedule("zb-h1", "--pp", 8, "--microbatches", 16, "--svg", self.file)
        texts = self.texts()
        for text in ["zb-h1, 8 stages, 16 microbatches: 14.6% bubble", "stage 7", "forward", "backward_input", "backward_weight"]:
            self.assertIn(text, texts)
        for microbatch in range(16):  # each has room for its number: forward, and both gradients, on each stage
            self.assertGreaterEqual(texts.count(str(microbatch)), 3 * 8)

    def test_all_are_proved(self):
        lines = self.lines("pipeline", "all", "--verify")
        self.assertEqual([line.split()[0] for line in lines[:-1]], ["gpipe", "1f1b", "1f1b-eager", "interleaved", "zb-h1", "zb-h2", "zb-v", "pipedream", "pipedream-vertical", "2bw", "2bw-joint", "pipemare"])
        self.assertRegex(lines[-1], r"^Proved 11508 schedules ")

    def test_refusals(self):
        for part, words in [
            ("'2f2b' is neither", ["--schedule", "2f2b", "--pp", 2]),
            ("'/' is neither", ["--schedule", "/"]),
            ("needs --pp and --microbatches", ["--schedule", "gpipe", "--pp", 2]),
            ("a multiple of its 4 stages", ["--schedule", "interleaved", "--pp", 4, "--microbatches", 6]),
            ("2bw needs at least as many", ["--schedule", "2bw", "--pp", 4, "--microbatches", 3]),
            ("1 chunk a stage, not 2", ["--schedule", "gpipe", "--pp", 4, "--microbatches", 6, "--virtual-stages", 2]),
            ("--times", ["--schedule", "gpipe", "--pp", 4, "--microbatches", 6, "--times", "1,2,3"]),
            ("--times", ["--schedule", "gpipe", "--pp", 4, "--microbatches", 6, "--times", "1,2,3,-4"]),
            ("--svg draws up to 64", ["--schedule", "gpipe", "--pp", 65, "--microbatches", 1, "--svg", self.file]),
            ("cannot be written", ["--schedule", "gpipe", "--pp", 2, "--microbatches", 1, "--svg", "/none/picture.svg"]),
            ("--pp 0 must be at least 1.", ["--schedule", "gpipe", "--pp", 0, "--microbatches", 4]),
            ("--microbatches 0 must be at least 1.", ["--schedule", "gpipe", "--pp", 2, "--microbatches", 0]),
            ("--virtual-stages 0 must be at least 1.", ["--schedule", "zb-v", "--pp", 2, "--microbatches", 4, "--virtual-stages", 0]),
            ("Name a schedule", []),
        ]:
            with self.subTest(words):
                self.refused(part, "pipeline", *words)

    def test_chunks_that_are_left_out(self):
        for schedule in ("interleaved", "zb-v"):
            words = ["--pp", 4, "--microbatches", 8]
            self.assertEqual(self.schedule(schedule, *words), self.schedule(schedule, *words, "--virtual-stages", 2))


if __name__ == "__main__":
    unittest.main()
