"""stretto-train in pipelines, seen from outside: every layout trains, validates and writes like one rank, and the trace of a pipeline
shows its computations and messages."""
import collections
import json
import os
import re
import unittest

from pipeline_harness import INTERLEAVED, STEPS, TOLERANCE, PipelineTest
from support.programs import in_turns

PLAN = os.environ.get("PLAN_PROGRAM", "")
LAYOUTS = {
    "dp 2 pp 2": ["--nproc", 4, "--dp", 2, "--pp", 2, "--schedule", "zb-h1", "--zero", 2],
    "tp 2 pp 2": ["--nproc", 4, "--tp", 2, "--pp", 2, *INTERLEAVED, "--recompute", "selective"],
    "dp 2 tp 2 pp 2": ["--nproc", 8, "--dp", 2, "--tp", 2, "--pp", 2, "--pipeline-layers", "5,3"],
}


@in_turns()
class Layouts(PipelineTest):
    def test_train_like_one_rank(self):
        self.assertEqual([metrics["step"] for metrics in self.one_rank.metrics], list(range(1, STEPS + 1)))
        for name, words in LAYOUTS.items():
            with self.subTest(name):
                result = self.train(*words)
                self.assertEqual(len(result.metrics), STEPS)
                self.assertLess(self.difference(self.one_rank, result), TOLERANCE)
                self.assertEqual(self.sample(result), self.sample(self.one_rank))
                losses = [re.findall(r"\| loss ([\d.]+) ", each.output) for each in (result, self.one_rank)]
                self.assertEqual(*losses)
                self.assertEqual(len(losses[0]), STEPS)
        other = self.train("--nproc", 2, "--pp", 2, "--seed", 2)  # the control
        self.assertGreater(self.difference(self.one_rank, other), 1e-4)
        self.assertNotEqual(self.sample(other), self.sample(self.one_rank))

    def test_without_overlap_nothing_changes(self):
        plain, beside = (self.train("--nproc", 4, "--tp", 2, "--pp", 2, *INTERLEAVED, *words) for words in (["--no-overlap"], []))
        self.assertEqual(self.numbers(plain), self.numbers(beside))

    def test_bubbles(self):
        result = self.train("--nproc", 2, "--pp", 2, "--pipeline-layers", "3,5")
        self.assertIn("2 ranks: dp 1 x tp 1 x pp 2; ", result.output)
        self.assertIn("1f1b pipeline: stage 0: 3 layers, stage 1: 5 layers\n", result.output)
        printed = re.findall(r"^step +\d+/4 .* \| bubble ([\d.]+)% \(simulated ([\d.]+)%\)", result.output, re.M)
        self.assertEqual(len(printed), STEPS)
        for (bubble, simulated), metrics in zip(printed, result.metrics):
            self.assertAlmostEqual(metrics["bubble"] * 100, float(bubble), delta=0.051)
            self.assertAlmostEqual(metrics["simulated_bubble"] * 100, float(simulated), delta=0.051)
            self.assertGreaterEqual(metrics["bubble"], 0)
            # One stage waits while the other computes the first forward, and the last backward.
            self.assertGreater(metrics["simulated_bubble"], 0)
        self.assertNotIn("bubble", self.one_rank.output)
        self.assertNotIn("bubble", self.one_rank.metrics[0])

    def test_without_a_flush(self):
        result = self.train("--nproc", 2, "--pp", 2, "--schedule", "pipedream", "--model", "llama", "--untied", "--eval-interval", 2)
        self.assertIn("There is no flush between steps: stages keep 2, 1 versions of their weights, and read some that lack 1, 0 updates.", result.output)
        self.assertEqual(re.findall(r"^step +(\d)/4 .* \| delay 1 \|", result.output, re.M), ["1", "2", "3", "4"])
        self.assertEqual([("val_loss" in metrics, "bubble" in metrics) for metrics in result.metrics], [(False, False), (True, True)] * 2)
        flushed = self.train("--nproc", 2, "--pp", 2, "--model", "llama", "--untied")
        self.assertEqual(flushed.metrics[0]["bytes_sent"] * STEPS, sum(metrics["bytes_sent"] for metrics in flushed.metrics))
        for words, part in ((["--comm-report"], "has no flush between steps, in which --replicate-state and --comm-report"),
                            (["--zero", 2], "ZeRO stage 2"), (["--schedule", "pipedream", "--dtype", "fp16"], "train in bf16 or fp32")):
            done = self.refused_training("--nproc", 2, "--pp", 2, "--schedule", "2bw", "--model", "llama", "--untied", *words)
            self.assertIn(part, done)
        corrected = self.train("--nproc", 2, "--pp", 2, "--schedule", "pipemare", "--model", "llama", "--untied")
        self.assertIn("stages keep 2, 1 versions of their weights, corrected ones included, and read some that lack 1, 0 updates.", corrected.output)
        self.assertNotEqual(corrected.metrics[-1]["loss"], result.metrics[-1]["loss"])
        for words in (["--pipemare-annealing", 3], ["--pipemare-decay", 0.5]):
            self.assertIn(f"{words[0]} has no effect without --schedule pipemare", self.refused_training("--nproc", 2, "--pp", 2, *words))
        self.assertIn("untie it", self.refused_training("--nproc", 2, "--pp", 2, "--schedule", "pipedream"))

    def test_stages_that_update_together(self):
        tied = self.train("--nproc", 2, "--pp", 2, "--schedule", "2bw")
        self.assertIn("\n2bw-joint pipeline: ", tied.output)
        self.assertIn("There is no flush between steps: stages keep 2, 1 versions of their weights, and read some that lack 1, 1 updates.", tied.output)
        halves = ["--nproc", 4, "--pp", 2, "--schedule", "2bw", "--dtype", "fp16", "--train-iters", 12]
        scaled = self.train(*halves)
        skipped = [metrics["skipped"] for metrics in scaled.metrics]
        scales = [metrics["loss_scale"] for metrics in scaled.metrics]
        self.assertNotIn(True, skipped[6:])
        overflows = self.train(*halves, "--loss-scale", 2 ** 30)
        self.assertIn(True, [metrics["skipped"] for metrics in overflows.metrics], "the control")
        self.assertEqual(len(scales), 12)
        for words, sentence in ((["--no-overlap"], "needs overlap on a host"), (["--clip-by-step-before"], "knows the norm of a step's own gradients")):
            self.assertIn(sentence, self.refused_training("--nproc", 2, "--pp", 2, "--schedule", "2bw", *words))

    def test_start_lines(self):
        for words, line in ((["--pp", 2, "--schedule", "interleaved", "--pipeline-layers", "1,2,3,2"],
                             "interleaved pipeline: stage 0: 1 + 3 layers, stage 1: 2 + 2 layers"),
                            (["--schedule", "gpipe"], "gpipe pipeline: stage 0: 8 layers"),
                            (["--pp", 4, "--schedule", "zb-h1"], "zb-h1 pipeline: stage 0: ")):
            with self.subTest(words):
                few = self.train("--nproc", words[1] if words[0] == "--pp" else 1, *words, "--micro-batch-size", 4, "--train-iters", 1)
                self.assertIn(f"\n{line}", few.output)
                warning = "fewer microbatches (2) than stages (4), so that stages wait; give --global-batch-size 16 or more."
                self.assertEqual(warning in few.output, 4 in words)
        self.assertNotIn("pipeline: ", self.one_rank.output)

    def test_schedule_of_a_file(self):
        if not PLAN:
            self.skipTest("there is no stretto-plan")
        file = self.directory / "schedule"
        self.succeeds(PLAN, "pipeline", "--schedule", "zb-h1", "--pp", "2", "--microbatches", "4", "--text", file)
        text = file.read_text()
        self.assertTrue(text.startswith("schedule zb-h1\n"))
        file.write_text(text.replace("zb-h1", "of-a-file", 1))
        named, read = (self.train("--nproc", 4, "--dp", 2, "--pp", 2, "--schedule", schedule) for schedule in ("zb-h1", file))
        self.assertEqual(self.numbers(read), self.numbers(named))
        self.assertLess(self.difference(self.one_rank, read), TOLERANCE)
        self.assertIn("of-a-file pipeline: ", read.output)

    def test_comm_report(self):
        for words in (["--pp", 2, *INTERLEAVED], ["--pp", 4, "--zero", 3, "--schedule", "zb-h2"], ["--tp", 2, "--pp", 2]):
            with self.subTest(words):
                result = self.train("--nproc", 4, *words, "--train-iters", 1, "--comm-report")
                times = re.search(r"full ([\d.]+) ms, computation only ([\d.]+) ms, communication only ([\d.]+) ms, serial ([\d.]+) ms",
                                  result.output)
                self.assertTrue(times, result.output)
                for time in times.groups():
                    self.assertGreater(float(time), 0)


@in_turns()
class Traces(PipelineTest):
    MICROBATCHES = 4

    def trace(self, *words):
        """Of two steps with MICROBATCHES, on 4 ranks."""
        file = self.directory / "trace.json"
        replicas = 4 // words[words.index("--pp") + 1]
        self.train("--nproc", 4, "--train-iters", 2, "--global-batch-size", self.MICROBATCHES * replicas, *words, "--trace", file)
        trace = json.loads(file.read_text())
        self.assertEqual(trace["otherData"]["lost_operations"], [0] * 4)
        return trace["traceEvents"]

    def planned(self, *words):
        """The computations of each stage, in their order."""
        file = self.directory / "plan"
        self.succeeds(PLAN, "pipeline", *map(str, words), "--microbatches", str(self.MICROBATCHES), "--text", file)
        stages = file.read_text().split("\nstage ")[1:]
        return [[line for line in stage.splitlines()[1:] if re.match("forward|backward", line)] for stage in stages]

    @staticmethod
    def slices(events, category):
        return [event for event in events if event["ph"] == "X" and event["cat"] == category]

    def test_every_computation_is_a_part_of_its_step(self):
        if not PLAN:
            self.skipTest("there is no stretto-plan")
        for words in (["--pp", 2, "--schedule", "zb-h1"], ["--pp", 4, *INTERLEAVED]):
            with self.subTest(words):
                events = self.trace(*words)
                names = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
                parts = self.slices(events, "part")
                self.assertEqual({names[part["pid"], part["tid"]] for part in parts}, {"steps"})
                planned = self.planned(*words)
                for rank in range(4):
                    steps = [event for event in self.slices(events, "step") if event["pid"] == rank]
                    self.assertEqual(len(steps), 2)
                    for step in steps:
                        inside = [part for part in parts if part["pid"] == rank and step["ts"] <= part["ts"] < step["ts"] + step["dur"]]
                        self.assertEqual([part["name"] for part in sorted(inside, key=lambda part: part["ts"])],
                                         planned[rank * len(planned) // 4])
        self.assertNotEqual(*self.planned("--pp", 2, "--schedule", "zb-h1"))  # the control: stages have different orders

    def messages(self, events):
        """The slices of send and receive that an arrow joins, by the arrow's number; and the sends without one."""
        slices = collections.defaultdict(list)
        for event in self.slices(events, "communication"):
            if event["name"] in ("send", "recv") and event["args"]["tag"].endswith("activations"):
                slices[event["pid"], event["tid"]].append(event)

        def around(end):
            return next((each for each in slices[end["pid"], end["tid"]] if each["ts"] <= end["ts"] <= each["ts"] + each["dur"]), None)

        ends = {event["id"]: event for event in events if event["ph"] == "f"}
        arrows = [(event["id"], around(event), around(ends[event["id"]])) for event in events if event["ph"] == "s"]
        joined = {number: (send, receive) for number, send, receive in arrows if send or receive}
        with_arrow = [id(send) for send, _ in joined.values()]
        return joined, [each for of_track in slices.values() for each in of_track if each["name"] == "send" and id(each) not in with_arrow]

    def test_arrows_join_the_messages_of_stages(self):
        for words, parts, replicas in ((["--pp", 2], 2, 2), (["--pp", 4, *INTERLEAVED], 8, 1)):
            with self.subTest(words):
                events = self.trace(*words)
                joined, alone = self.messages(events)
                self.assertEqual(alone, [])
                routes = collections.defaultdict(list)
                for send, receive in joined.values():
                    self.assertEqual((send["name"], receive["name"]), ("send", "recv"))
                    for name in ("tag", "count", "dtype"):
                        self.assertEqual(send["args"][name], receive["args"][name])
                    routes[send["pid"], receive["pid"], send["args"]["tag"]].append((send["ts"], receive["ts"]))
                for pairs in routes.values():  # the first that is sent is received first, and so on
                    self.assertEqual([receive for _, receive in sorted(pairs)], sorted(receive for _, receive in pairs))
                back = sum(len(pairs) for (_, _, tag), pairs in routes.items() if tag.startswith("gradients"))
                self.assertEqual(back, 2 * (parts - 1) * self.MICROBATCHES * replicas)
                lost = next(iter(joined))
                _, alone = self.messages([event for event in events if event.get("id") != lost])
                self.assertEqual(len(alone), 1)  # the control: an arrow is missing


if __name__ == "__main__":
    unittest.main()
