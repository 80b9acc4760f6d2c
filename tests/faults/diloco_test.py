"""Replicas that agree every H steps, seen from outside: what they print and save, how they go on, and what is refused by name."""
import json
import os
import re
import signal
import unittest

from harness import FOREVER, SECONDS_TO_END, FaultTest, group_of, losses, ranks_under, until

ROUNDS = {"--nproc": 4, "--tp": 2, "--replicas": 2, "--diloco": 4, "--diloco-fragments": 2, "--diloco-delay": 1, "--diloco-alpha": 0.5}


class DiLoCo(FaultTest):
    def expect_refusal(self, flags, words):
        with self.subTest(flags=flags):
            run = self.start({"--nproc": 2, **flags})
            self.assertEqual(self.status(run), 1)
            self.assertEqual(len(run.errors), 1, run.errors)
            self.assertRegex(run.errors[0], r"^error: .*[.]$")
            for word in words:
                self.assertIn(word, run.errors[0])
            self.expect_nothing_left()

    def shards(self, directory):
        return sorted(path.name for path in directory.glob("rank_*"))

    def tensors(self, shard):
        """The bytes behind the header, which names the checkpoint."""
        content = shard.read_bytes()
        return content[8 + int.from_bytes(content[:8], "little"):]

    def test_goes_on_bit_for_bit_from_any_step_of_a_round(self):
        whole = self.start({**ROUNDS, "--train-iters": 12, "--log-dir": self.log("whole"), "--log-interval": 1})
        self.expect_success(whole)
        self.assertIn("4 ranks: 2 replicas of dp 1 x tp 2 x pp 1; 8 sequences", whole.output)
        self.assertIn("Replicas agree every 4 steps: outer lr 0.7, momentum 0.9; every 2 steps one of 2 fragments", whole.output)
        merged = {3: 0, 5: 1, 7: 0, 9: 1, 11: 0}
        lines = [json.loads(line) for line in (self.log("whole") / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual({line["step"]: line["merged_fragment"] for line in lines if "merged_fragment" in line}, merged)
        self.assertEqual({int(step): int(part) for step, part in re.findall(r"step +(\d+)/12 .* \| merged (\d)", whole.output)}, merged)
        self.assertRegex(whole.output, r"diloco +all_reduce +two_shot +changes of weights +6 ")
        for saved in (4, 5):  # with a fragment in flight, and without
            save, log = self.directory / f"save{saved}", self.log(f"log{saved}")
            flags = {**ROUNDS, "--save": save, "--log-dir": log, "--lr": 1e-3, "--min-lr": 1e-3, "--keep": 1}
            steady = self.start({**flags, "--save": None, "--keep": None, "--log-dir": self.log(f"steady{saved}"), "--train-iters": 9})
            self.expect_success(steady)
            self.expect_success(self.start({**flags, "--train-iters": saved}))
            self.assertEqual(self.shards(save / f"step_{saved:08}"), [f"rank_{rank:05}.safetensors" for rank in range(4)])
            self.assertEqual(json.loads((save / f"step_{saved:08}/index.json").read_text())["replicas"], 2)
            self.expect_success(self.start({**flags, "--train-iters": 9, "--resume": True}))
            self.assertEqual(losses(log), losses(self.log(f"steady{saved}")))

    def test_a_checkpoint_of_replicas(self):
        save = self.directory / "save"
        self.expect_success(self.start({**ROUNDS, "--save": save, "--train-iters": 5, "--async-save": True, "--save-interval": 2, "--keep": 1}))
        self.assertEqual(sorted(path.name for path in save.glob("step_*")), ["step_00000005"])
        again = {**ROUNDS, "--save": save, "--resume": True, "--train-iters": 7}
        # Another layout inside the replicas; another number of them, or another course of rounds, is refused.
        self.expect_success(self.start({**again, "--tp": 1, "--zero": 3}))
        self.expect_refusal({**again, "--replicas": 4, "--tp": 1}, ["saved by 2 replicas, and this job has 4", "--load"])
        self.expect_refusal({**again, "--diloco": 8}, ["--diloco is 8, and 4 in the checkpoint"])
        self.expect_refusal({**again, "--diloco-delay": 0}, ["--diloco-delay is 0, and 1"])
        alone = {flag: None for flag in ROUNDS if flag.startswith("--diloco")}
        self.expect_refusal({**again, **alone, "--replicas": None, "--nproc": 2}, ["saved by 2 replicas, and this job has 1"])
        changed = self.start({**again, "--outer-lr": 0.5, "--train-iters": 8})
        self.expect_success(changed)
        self.assertIn("--outer-lr 0.5 instead of 0.7", changed.output)
        # The first replica's weights are a model.
        self.expect_success(self.start({"--nproc": 1, "--load": save, "--sample-only": True, "--prompt": "7 times", "--train-data": None}))
        self.expect_success(self.start({**ROUNDS, "--load": save, "--train-iters": 4}))

    def test_a_rank_is_killed_between_two_rounds(self):
        save = self.directory / "save"
        flags = {**ROUNDS, "--diloco": 1000, "--diloco-fragments": 1, "--save": save, "--save-interval": 3, "--lr": 1e-3, "--min-lr": 1e-3}
        for victim in (0, 3):
            log = self.log(f"log{victim}")
            run = self.start({**flags, "--train-iters": FOREVER, "--resume": "auto", "--log-dir": log})
            self.wait_for_steps(log, 5)
            os.kill(ranks_under(run.process.pid)[victim], signal.SIGKILL)
            self.assertEqual(self.status(run, SECONDS_TO_END), 128 + signal.SIGKILL)
            for rank in set(range(4)) - {victim}:
                mine = [line for line in run.errors if line.startswith(f"error: rank {rank}: ")]
                self.assertEqual(len(mine), 1, run.errors)
                self.assertIn(f"Rank {victim} ", mine[0])
            self.assertIn("give the same command again", run.errors[-1])
            self.assertTrue(until(lambda: not group_of(run.process.pid), SECONDS_TO_END))  # an unfinished checkpoint may be left
        newest = max(int(path.name[5:]) for path in save.glob("step_*"))
        done = self.start({**flags, "--train-iters": newest + 3, "--resume": True})
        self.expect_success(done)
        self.assertIn(f"Continues after step {newest}.", done.output)
        restarted = self.start({**flags, "--train-iters": FOREVER, "--save": self.directory / "again", "--max-restarts": 1, "--log-dir": self.log("again")})
        self.wait_for_steps(self.log("again"), 5)
        os.kill(ranks_under(restarted.process.pid)[2], signal.SIGKILL)
        steps = len(losses(self.log("again")))
        self.wait_for_steps(self.log("again"), steps + 10)
        os.kill(restarted.process.pid, signal.SIGTERM)
        self.assertEqual(self.status(restarted), 0)
        self.assertTrue(any("restart 1 of 1 goes on after step" in line for line in restarted.errors), restarted.errors)

    def test_a_rank_is_killed_while_a_fragment_travels(self):
        """One does in the 19 steps behind steps 20, 40 and so on. The run that loses a rank ends with the tensors of one that loses none."""
        last = 80
        plain = {**ROUNDS, "--tp": 1, "--zero": 2, "--diloco": 40, "--diloco-delay": 19, "--lr": 1e-3, "--train-iters": last}
        for victim, form in ((0, "none"), (3, "int4")):
            with self.subTest(victim=victim):
                names = "whole", "restarted"
                runs = [{**plain, "--diloco-format": form, "--save": self.directory / f"{name}{victim}", "--save-interval": 5, "--log-dir": self.log(f"{name}-log{victim}")} for name in names]
                self.expect_success(self.start(runs[0]))
                run = self.start({**runs[1], "--max-restarts": 1})
                self.wait_for_steps(runs[1]["--log-dir"], 26)
                os.kill(ranks_under(run.process.pid)[victim], signal.SIGKILL)
                reported = self.steps_reported(runs[1]["--log-dir"])
                self.assertEqual(self.status(run), 0, run.errors)
                notice = next(line for line in run.errors if not line.startswith("error: rank "))
                self.assertRegex(notice, rf"^Rank {victim} was killed by SIGKILL; restart 1 of 1 goes on after step ")
                step = self.expect_steps_again(notice, 1, reported)
                self.assertGreaterEqual(step, 20, "its checkpoint has the fragment")
                whole, restarted = (losses(flags["--log-dir"]) for flags in runs)
                self.assertEqual(restarted, whole)
                saved = [[self.tensors(flags["--save"] / f"step_{last:08}" / name) for name in self.shards(flags["--save"] / f"step_{last:08}")] for flags in runs]
                self.assertEqual(len(saved[0]), 4)
                self.assertTrue(saved[0] == saved[1], "tensors of the last step differ")
                self.expect_nothing_left()
        at_once = self.start({**plain, "--diloco-delay": 0, "--log-dir": self.log("at-once")})
        self.expect_success(at_once)
        self.assertNotEqual(losses(self.log("at-once")), losses(self.log("whole-log0")), "the control, in the same format")

    def test_formats_and_plans(self):
        sent = {}
        for form in ("none", "int8", "int4"):
            run = self.start({**ROUNDS, "--tp": 1, "--diloco-format": form, "--train-iters": 8, "--dtype": "bf16"})
            self.expect_success(run)
            sent[form] = re.search(r"changes of weights +4 +([\d.]+) (\w+)", run.output).groups()
        self.assertEqual({unit for _, unit in sent.values()}, {"KiB"})
        amount = {form: float(number) for form, (number, _) in sent.items()}
        self.assertAlmostEqual(amount["int8"] / amount["none"], 1.016 / 4, delta=0.03)
        self.assertAlmostEqual(amount["int4"] / amount["none"], 0.531 / 4, delta=0.03)
        # Where nothing else is on its way at a time, the buffers are those of the exchange.
        for form in ("none", "int8", "int4"):
            run = self.start({"--nproc": 4, "--replicas": 2, "--diloco": 1, "--hidden-size": 128, "--diloco-format": form})
            self.expect_success(run)
            formula, unit, measured, unit_of_measured = re.search(r"\n  buffers +([\d.]+) (\w+) +([\d.]+) (\w+)\n", run.output).groups()
            self.assertEqual(unit, unit_of_measured)
            self.assertAlmostEqual(float(measured) / float(formula), 1, delta=0.05)
        plan = self.start({**ROUNDS, "--nproc": None, "--dry-run": True, "--ranks": 4})
        self.expect_success(plan)
        self.assertRegex(plan.output, r"on 4 ranks\n(?s:.*)Sent by a rank in a step by formula: diloco [\d.]+ KiB; tp ")

    def test_adapters_and_traces(self):
        trace = self.directory / "trace.json"
        adapters = {**ROUNDS, "--lora": 2, "--save": self.directory / "adapters"}
        self.expect_success(self.start({**adapters, "--train-iters": 5, "--trace": trace}))
        self.assertEqual({event["pid"] for event in json.loads(trace.read_text())["traceEvents"]}, {0, 1, 2, 3})
        self.assertIn("diloco", trace.read_text())
        self.expect_success(self.start({**adapters, "--train-iters": 7, "--resume": True}))

    def test_what_cannot_be_is_refused_by_name(self):
        two = {"--replicas": 2, "--diloco": 4}
        self.expect_refusal({"--diloco": 4}, ["--diloco 4", "--replicas 2"])
        self.expect_refusal({"--replicas": 2}, ["--replicas", "--diloco 100"])
        self.expect_refusal({"--outer-lr": 0.5}, ["--outer-lr has no effect without --diloco"])
        self.expect_refusal({**two, "--nproc": 3}, ["--replicas 2 does not divide 3 ranks"])
        self.expect_refusal({**two, "--tp": 2}, ["1 ranks of each of --replicas 2"])
        self.expect_refusal({**two, "--diloco-fragments": 3}, ["--diloco-fragments 3 does not divide --diloco 4"])
        self.expect_refusal({**two, "--diloco-delay": 4}, ["arrives 4 steps"])
        self.expect_refusal({**two, "--diloco-alpha": 2}, ["2 of the local values"])
        self.expect_refusal({**two, "--outer-momentum": 1}, ["momentum of 1"])
        self.expect_refusal({**two, "--outer-lr": 0}, ["rate of 0"])
        self.expect_refusal({**two, "--diloco-format": "onebit"}, ["--diloco-format", "onebit"])
        self.expect_refusal({**two, "--diloco-format": "int8", "--dtype": "fp16"}, ["fp16", "int8"])
        self.expect_refusal({**two, "--global-batch-size": 6}, ["global batch of 6", "2 replicas"])
        self.expect_refusal({**two, "--comm-report": True}, ["--diloco 4", "--comm-report"])
        self.expect_refusal({**two, "--elastic": True, "--save": self.directory / "save"}, ["--diloco 4", "--elastic"])
        self.expect_refusal({**two, "--layout": "auto"}, ["--diloco 4", "--layout auto"])
        self.expect_refusal({**two, "--diloco-fragments": 400, "--diloco": 400}, ["400 fragments"])
        self.expect_refusal({"--sync-every": 4}, ["--sync-every is unknown; did you mean --diloco?"])


if __name__ == "__main__":
    unittest.main()
