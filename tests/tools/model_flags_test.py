"""stretto-train's models of other shapes than GPT-2's: what --model, --load-hf and checkpoints say, and flags that contradict them."""
import json
import os
import pathlib
import struct
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support.programs import ProgramTest, run_program  # noqa: E402

TRAIN = os.environ["TRAIN_PROGRAM"]
DECODERS = pathlib.Path(__file__).resolve().parents[1] / "reference/decoders"


class ModelFlags(ProgramTest):
    def setUp(self):
        super().setUp()
        tokens = self.directory / "tokens.bin"
        tokens.write_bytes(struct.pack("<1000H", *[place * 7 % 32 for place in range(1000)]))
        self.data = ["--train-data", tokens, "--data-format", "nanogpt", "--micro-batch-size", 1, "--global-batch-size", 2]

    def test_checkpoints_say_the_model(self):
        for name in ("llama_dynamic", "llama_biases", "mistral", "qwen3"):
            with self.subTest(model=name):
                saved, exported = self.directory / name, self.directory / f"exported_{name}"
                self.succeeds(TRAIN, "--nproc", 1, *self.data, "--load-hf", DECODERS / name, "--seq-length", 8, "--train-iters", 2, "--save", saved)
                output = self.succeeds(TRAIN, "--nproc", 1, *self.data, "--load", saved, "--train-iters", 1)
                self.assertIn("2 sequences x 8 tokens", output)
                self.succeeds(TRAIN, "--nproc", 1, "--load", saved, "--train-iters", 0, "--export-hf", exported)
                config, before = (json.loads((path / "config.json").read_text()) for path in (exported, DECODERS / name))
                for key in set(config) & set(before) - {"max_position_embeddings", "bos_token_id", "eos_token_id", "rope_scaling"}:
                    self.assertEqual(config[key], before[key], key)
                # Of dynamic scaling, they are the original ones.
                self.assertEqual(config["max_position_embeddings"], 16 if name == "llama_dynamic" else 8)

    def test_a_configuration_is_a_model(self):
        config = DECODERS / "qwen3/config.json"
        output = self.succeeds(TRAIN, "--nproc", 1, *self.data, "--model", config, "--seq-length", 16, "--train-iters", 1)
        self.assertIn("2 sequences x 16 tokens", output)

    def test_flags_must_agree(self):
        begin = [TRAIN, "--nproc", 1, *self.data, "--load-hf", DECODERS / "llama", "--train-iters", 1]
        for words in (["--num-layers", 3], ["--seq-length", 65], ["--head-dim", 8], ["--num-key-value-heads", 1], ["--rope-theta", 500.0],
                      ["--untied"], ["--model", "gpt2"], ["--model", DECODERS / "qwen2/config.json"]):
            result = run_program(*begin, *words)
            self.assertEqual((result.returncode, result.stdout), (1, ""), words)
            self.assertIn(words[0], result.stderr)
            self.assertIn("leave it out", result.stderr)
        self.succeeds(*begin, "--num-layers", 2, "--head-dim", 4, "--model", DECODERS / "llama/config.json")


if __name__ == "__main__":
    unittest.main()
