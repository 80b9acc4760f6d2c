"""Checkpoints of pipelines: training goes on from them in every other layout as if it had never stopped."""
import pathlib
import shutil
import tempfile
import unittest

from pipeline_harness import INTERLEAVED, STEPS, TOLERANCE, PipelineTest
from support.programs import EVERYTHING, in_turns, of_today


@in_turns()
class Checkpoints(PipelineTest):
    def copy_of_step(self, save, step):
        """A directory of checkpoints that ends with this one."""
        copy = pathlib.Path(tempfile.mkdtemp(dir=self.directory))
        name = f"step_{step:08}"
        shutil.copytree(save / name, copy / name)
        (copy / "latest").write_text(name + "\n")
        return copy

    def train_and_save(self, *words):
        save = pathlib.Path(tempfile.mkdtemp(dir=self.directory))
        return save, self.train(*words, "--save", save, "--save-interval", 1)

    def go_on(self, save, step, *words):
        """What trained and saved on goes on from a step, and saves each further one. Returns where."""
        save = self.copy_of_step(save, step)
        result = self.train(*words, "--save", save, "--save-interval", 1, "--resume")
        self.assertIn(f"Continues after step {step}.", result.output)
        self.assertEqual([metrics["step"] for metrics in result.metrics], list(range(step + 1, STEPS + 1)))
        return save, result

    def test_go_on_in_other_layouts(self):
        chains = [[["--nproc", 4, "--pp", 2, "--zero", 1],
                   ["--nproc", 2, "--zero", 3],
                   ["--nproc", 4, "--pp", 4, *INTERLEAVED, "--zero", 0],
                   ["--nproc", 4, "--pp", 2, "--tp", 2, "--zero", 2]],
                  [["--nproc", 1, "--zero", 0],
                   ["--nproc", 4, "--pp", 2, "--schedule", "zb-h1", "--zero", 3],
                   ["--nproc", 2, "--tp", 2, "--zero", 2],
                   ["--nproc", 4, "--pp", 2, "--schedule", "zb-v", "--zero", 1]]]
        for chain in of_today(chains):
            save, result = self.train_and_save(*chain[0])
            self.assertLess(self.difference(self.one_rank, result), TOLERANCE)
            for step, words in enumerate(chain[1:], 1):
                with self.subTest(words, step=step):
                    save, result = self.go_on(save, step, *words)
                    self.assertLess(self.difference(self.one_rank, result), TOLERANCE)
                    self.assertEqual(self.sample(result), self.sample(self.one_rank))
        save, _ = self.train_and_save("--nproc", 2, "--pp", 2, "--seed", 2)
        _, result = self.go_on(save, 2, "--nproc", 2, "--pp", 2, "--allow-changes")
        self.assertGreater(self.difference(self.one_rank, result), 1e-4)  # the control: the state of another training

    def test_without_a_flush_go_on_with_the_same_bits(self):
        for words in of_today((["--schedule", "2bw"], ["--schedule", "pipedream", "--zero", 0], ["--schedule", "2bw", "--dp", 2],
                               ["--schedule", "pipemare", "--dp", 2], ["--schedule", "2bw", "--clip-grad", 0.1, "--clip-by-step-before"],
                               ["--schedule", "2bw", "--model", "gpt2", "--dp", 2], ["--schedule", "2bw", "--model", "gpt2", "--dtype", "fp16"])):
            with self.subTest(words):
                untied = [] if "gpt2" in words else ["--model", "llama", "--untied"]
                flags = ["--nproc", 4 if "--dp" in words else 2, "--pp", 2, *untied, *words, "--save-interval", 2]
                save = pathlib.Path(tempfile.mkdtemp(dir=self.directory))
                whole = self.train(*flags, "--save", save)
                rest = self.train(*flags, "--save", self.copy_of_step(save, 2), "--resume")
                self.assertEqual(self.numbers(rest), self.numbers(whole)[2:])
                if "pipemare" in words:
                    longer = self.train(*flags, "--save", self.copy_of_step(save, 2), "--resume", "--train-iters", 2 * STEPS)
                    self.assertIn("--pipemare-annealing 2 instead of 1", longer.output)
                if "--clip-by-step-before" in words:
                    by_stage = self.train(*(word for word in flags if word != "--clip-by-step-before"), "--save", pathlib.Path(tempfile.mkdtemp(dir=self.directory)))
                    self.assertNotEqual(self.numbers(by_stage), self.numbers(whole), "the control: each stage clips by its own norm")
                if "pipemare" in words or "--clip-by-step-before" in words:
                    continue  # other schedules refuse what is left: the slots of the state, or the flag
                emptied = self.train(*(word for word in flags if word not in words[:2]), "--save", self.copy_of_step(save, 2), "--resume")
                self.assertIn(f"--schedule with a flush instead of {words[1]}", emptied.output)
                self.assertNotIn("--pipemare", emptied.output)
                never_emptied = self.train(*flags[:-2])
                self.assertEqual(self.numbers(never_emptied)[:2], self.numbers(whole)[:2])
                self.assertNotEqual(self.numbers(never_emptied), self.numbers(whole), "the control: a checkpoint empties the pipeline")

    def test_in_flight_change_no_bit(self):
        """Neither of the run that saves them nor of the one that goes on."""
        for words in of_today((["--nproc", 2, "--pp", 2, "--schedule", "2bw"],
                               ["--nproc", 4, "--pp", 4, "--schedule", "2bw"],
                               ["--nproc", 4, "--pp", 4, "--schedule", "pipedream", "--zero", 0],
                               ["--nproc", 4, "--pp", 2, "--schedule", "pipedream-vertical", "--dp", 2],
                               ["--nproc", 4, "--pp", 2, "--schedule", "2bw", "--dp", 2, "--dtype", "bf16", "--clip-grad", 0.1,
                                "--clip-by-step-before"])):
            with self.subTest(words):
                flags = [*words, "--model", "llama", "--untied"]
                saving = [*flags, "--save-interval", 1, "--checkpoint-in-flight", *(["--async-save"] if "--dp" in words else [])]
                undisturbed = self.numbers(self.train(*flags))
                save = pathlib.Path(tempfile.mkdtemp(dir=self.directory))
                self.assertEqual(self.numbers(self.train(*saving, "--save", save)), undisturbed)
                for step in (1, 2, 3):
                    rest = self.train(*saving, "--save", self.copy_of_step(save, step), "--resume")
                    self.assertEqual(self.numbers(rest), undisturbed[step:])
                emptied = self.numbers(self.train(*flags, "--save", pathlib.Path(tempfile.mkdtemp(dir=self.directory)), "--save-interval", 1))
                self.assertNotEqual(emptied, undisturbed, "the control")
                if "--clip-by-step-before" in words:
                    by_stage = self.numbers(self.train(*(word for word in flags if word != "--clip-by-step-before")))
                    self.assertNotEqual(by_stage, undisturbed, "the control: each stage clips by its own norm")
                refused = self.refused_training(*flags, "--num-layers", 8, "--global-batch-size", 8, "--save", self.copy_of_step(save, 2), "--resume", "--train-iters", STEPS)
                self.assertIn("was saved with microbatches under way", refused)
        for words, sentence in ((["--schedule", "pipemare"], "keeps no older weights"), (["--schedule", "1f1b"], "empties the pipeline behind each step"),
                                (["--schedule", "2bw", "--no-overlap"], "without overlap lets a stage wait")):
            refused = self.refused_training("--nproc", 2, "--pp", 2, *words, "--model", "llama", "--untied", "--save", self.directory / "none", "--checkpoint-in-flight")
            self.assertIn(sentence, refused)

    def test_in_flight_go_on_where_the_versions_are_the_same(self):
        flags = ["--model", "llama", "--untied", "--checkpoint-in-flight", "--clip-grad", 0]  # other stages have other norms
        for schedule, stages, others in (("2bw", 2, [(["--pp", 1], "1 older versions of "),
                                                     (["--pp", 2, "--schedule", "pipedream-vertical"], "microbatches of schedule 2bw under way")]),
                                         ("pipedream", 4, [(["--pp", 2], " older versions of "), (["--pp", 4, "--schedule", "2bw"], " older versions of ")])):
            save = pathlib.Path(tempfile.mkdtemp(dir=self.directory))
            whole = self.train("--nproc", stages, "--pp", stages, "--schedule", schedule, *flags, "--save", save, "--save-interval", 1)
            for words, sentence in others:
                with self.subTest(words, schedule=schedule):
                    refused = self.refused_training("--nproc", words[1], "--schedule", schedule, *flags, "--num-layers", 8, "--global-batch-size", 8,
                                                    "--train-iters", STEPS, "--save", self.copy_of_step(save, 2), "--resume", *words)
                    self.assertIn(sentence, refused)
            if schedule == "2bw":
                rest = self.train("--nproc", 4, "--pp", 4, "--schedule", schedule, *flags, "--save", self.copy_of_step(save, 2), "--resume")
                self.assertLess(self.difference(whole, rest), TOLERANCE)

    def test_go_on_in_the_same_layout_with_the_same_bits(self):
        for zero in range(4) if EVERYTHING else (1, 3):
            for words in (["--pp", 2, *INTERLEAVED], *([["--tp", 2, "--pp", 2, "--schedule", "zb-h2"], ["--pp", 4]] if EVERYTHING else [])):
                with self.subTest(words, zero=zero):
                    flags = ["--nproc", 4, *words, "--zero", zero]
                    save, whole = self.train_and_save(*flags)
                    _, rest = self.go_on(save, 2, *flags)
                    self.assertEqual(self.numbers(rest), self.numbers(whole)[2:])
                    self.assertEqual(self.sample(rest), self.sample(whole))

    def test_load(self):
        """Training that begins with the weights of a pipeline, in another pipeline and on one rank."""
        save, _ = self.train_and_save("--nproc", 2, "--pp", 2, "--zero", 1)
        load = ["--load", save / "step_00000002"]
        alone = self.train("--nproc", 1, *load)
        piped = self.train("--nproc", 4, "--pp", 4, *INTERLEAVED, "--zero", 3, *load)
        self.assertEqual([metrics["step"] for metrics in piped.metrics], list(range(1, STEPS + 1)))
        self.assertLess(self.difference(alone, piped), TOLERANCE)
        self.assertGreater(self.difference(alone, self.one_rank), 1e-4)  # the control: weights that were not loaded


if __name__ == "__main__":
    unittest.main()
