"""stretto-train's adapters: what the flags say, what a checkpoint of adapters needs to go on, and what is refused by name."""
import os
import pathlib
import re
import shutil
import struct
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support.programs import ProgramTest, run_program  # noqa: E402

TRAIN = os.environ["TRAIN_PROGRAM"]
LLAMA = pathlib.Path(__file__).resolve().parents[1] / "reference/decoders/llama"


class AdapterFlags(ProgramTest):
    def setUp(self):
        super().setUp()
        tokens = self.directory / "tokens.bin"
        tokens.write_bytes(struct.pack("<1000H", *[place * 7 % 32 for place in range(1000)]))
        self.data = ["--train-data", tokens, "--data-format", "nanogpt", "--micro-batch-size", 1, "--global-batch-size", 2, "--lr", 0.01, "--min-lr", 0.01,
                     "--log-interval", 1]

    def losses(self, output):
        return re.findall(r"loss +([0-9.]+)", output)

    def test_checkpoints_hold_adapters_and_need_their_model(self):
        base = ["--load-hf", LLAMA, "--seq-length", 16]
        lora = ["--lora", 4, "--lora-targets", "q_proj,down_proj", "--lora-rank-pattern", "down_proj=2", "--lora-layers", "1"]
        saved = self.directory / "adapters"
        whole = self.succeeds(TRAIN, "--nproc", 1, *self.data, *base, *lora, "--train-iters", 4)
        begun = self.succeeds(TRAIN, "--nproc", 2, "--tp", 2, *self.data, *base, *lora, "--train-iters", 4, "--save", saved, "--save-interval", 2)
        self.assertRegex(whole, r"\d+ parameters, of which \d+ are trained: 2 layers")
        self.assertEqual(len(self.losses(whole)), 5)  # four steps, and the validation
        for found, expected in zip(self.losses(begun), self.losses(whole), strict=True):
            self.assertAlmostEqual(float(found), float(expected), places=4)
        shard = next(saved.glob("step_*4/rank_00000.safetensors")).read_bytes()
        self.assertIn(b"h.1.attn.c_attn.q.lora_B.weight", shard)
        self.assertNotIn(b'"h.0.', shard)
        self.assertNotIn(b"wte", shard)
        # The flags of the adapters come from the checkpoint; the model must be given.
        rest = self.succeeds(TRAIN, "--nproc", 1, *self.data, *base, "--resume", "--save", saved, "--train-iters", 5)
        self.assertTrue(self.losses(rest))
        for words, part in (([], "give the model that they adapt, with --load-hf"), (base + ["--lora", 8], "--lora is '8', and '4' in the checkpoint")):
            result = run_program(TRAIN, "--nproc", 1, *self.data, *words, "--resume", "--save", saved, "--train-iters", 6)
            self.assertEqual(result.returncode, 1)
            self.assertIn(part, result.stderr)
        self.succeeds(TRAIN, "--nproc", 1, "--load", saved, *base, "--sample-only", "--prompt", "1 2", "--sample-length", 2, "--vocab-size", 32)

    def test_dropout_goes_on_where_it_stopped(self):
        dropping = ["--load-hf", LLAMA, "--seq-length", 16, "--lora", 4, "--lora-targets", "all-linear", "--lora-dropout", 0.2]
        saved = self.directory / "adapters"
        whole = self.losses(self.succeeds(TRAIN, "--nproc", 1, *self.data, *dropping, "--train-iters", 4))
        plain = self.losses(self.succeeds(TRAIN, "--nproc", 1, *self.data, *dropping[:-2], "--train-iters", 4))
        self.assertEqual(whole[0], plain[0])  # B is zero
        self.assertNotEqual(whole[1:], plain[1:])
        self.succeeds(TRAIN, "--nproc", 2, *self.data, *dropping, "--train-iters", 4, "--save", saved, "--save-interval", 2)
        shutil.rmtree(saved / "step_00000004")
        (saved / "latest").write_text("step_00000002\n")
        rest = self.losses(self.succeeds(TRAIN, "--nproc", 1, *self.data, *dropping[:4], "--resume", "--save", saved, "--train-iters", 4,
                                         "--save-adapter", self.directory / "peft"))
        for found, expected in zip(rest, whole[2:], strict=True):
            self.assertAlmostEqual(float(found), float(expected), places=4)
        self.assertIn('"lora_dropout": 0.2', (self.directory / "peft/adapter_config.json").read_text())
        self.assertEqual(len(rest), len(whole) - 2)

    def test_adapters_are_trained_beside_others(self):
        base = ["--load-hf", LLAMA, "--seq-length", 16]
        first, saved = self.directory / "first", self.directory / "saved"
        beside = ["--lora", 2, "--lora-targets", "down_proj", "--with-adapter"]

        def trained(*words):
            return [float(loss) for loss in self.losses(self.succeeds(TRAIN, *self.data, *base, *words))]

        trained("--nproc", 1, "--lora", 4, "--train-iters", 3, "--save-adapter", first)
        alone = trained("--nproc", 1, "--load-adapter", first, "--train-iters", 1)
        whole = trained("--nproc", 2, "--tp", 2, *beside, first, "--train-iters", 3)
        self.assertAlmostEqual(whole[0], alone[0], places=4)  # B of the second one begins with zeros
        self.assertNotEqual(trained("--nproc", 1, *beside, f"{first},weight=0", "--train-iters", 1)[0], alone[0])  # the control
        # A checkpoint has the second one alone, and knows where the first is.
        trained("--nproc", 2, *beside, first, "--train-iters", 3, "--save", saved, "--save-interval", 2)
        shard = next(saved.glob("step_*2/rank_00000.safetensors")).read_bytes()
        self.assertIn(b"lora_B.weight", shard)
        self.assertNotIn(b"lora_B.1.weight", shard)
        shutil.rmtree(saved / "step_00000003")
        (saved / "latest").write_text("step_00000002\n")
        rest = trained("--nproc", 1, "--resume", "--save", saved, "--train-iters", 3)
        self.assertAlmostEqual(rest[0], whole[2], places=4)

    def test_what_cannot_be_is_refused_by_name(self):
        begin = [TRAIN, "--nproc", 1, *self.data, "--load-hf", LLAMA, "--train-iters", 1]
        for words, part in ((["--lora-alpha", 4], "--lora-alpha is of adapters; give --lora RANK"),
                            (["--lora", 2, "--lora-targets", "c_attn"], "no module c_attn to adapt"),
                            (["--lora", 2, "--lora-targets", "(q|k)_proj"], "'(q|k)_proj' matches no module"),
                            (["--lora", 2, "--lora-layers", "0-7"], "There is no layer 2 to adapt"),
                            (["--lora", 2, "--lora-layers", "x"], "'x' is no whole number"),
                            (["--lora", 2, "--lora-rank-pattern", "q_proj"], "is no NAME=NUMBER"),
                            (["--lora", 2, "--lora-alpha-pattern", "up_proj=2"], "The alpha of up_proj is for no module"),
                            (["--lora", 2, "--lora-dropout", 1], "cannot drop 1 of their inputs"),
                            (["--lora-dropout", 0.1], "--lora-dropout is of adapters; give --lora RANK"),
                            (["--lora", 2, "--lora-modules-to-save", "wte"], "There is no module wte to save"),
                            (["--save-adapter", self.directory / "out"], "has no adapter to write"),
                            (["--base", "nf4"], "--base is of adapters; give --lora RANK"),
                            (["--load-adapter", self.directory / "none"], "adapter_config.json"),
                            (["--with-adapter", self.directory / "none"], "--with-adapter adds adapters beside others"),
                            (["--lora", 2, "--with-adapter", self.directory / "none"], "adapter_config.json"),
                            (["--lora", 2, "--with-adapter", f"{self.directory}/none,weight=x"], "'x' is no number"),
                            (["--lora", -2], "--lora -2 is no rank")):
            result = run_program(*begin, *words)
            self.assertEqual((result.returncode, result.stdout), (1, ""), words)
            self.assertIn(part, result.stderr)

    def test_a_layout_is_chosen_for_adapters(self):
        auto = ["--nproc", 2, *self.data, "--load-hf", LLAMA, "--seq-length", 16, "--layout", "auto", "--train-iters", 2, "--lora", 4]
        output = self.succeeds(TRAIN, *auto)
        self.assertIn("The first is taken: ", output)
        self.assertRegex(output, r"step +2/2 \| loss ", output)
        result = run_program(TRAIN, *auto, "--base", "nf4")
        self.assertIn("--layout auto predicts nothing of how --base nf4 is restored", result.stderr)

    def test_a_plan_counts_adapters(self):
        plan = self.succeeds(TRAIN, "--dry-run", "--ranks", 2, "--num-layers", 2, "--hidden-size", 64, "--num-attention-heads", 4, "--lora", 4)
        # c_attn of two layers: 4 x (64 + 192) x 2 elements, of 4 bytes, a half of 8 bytes of slots.
        self.assertIn("gradients 8.00 KiB", plan)


if __name__ == "__main__":
    unittest.main()
