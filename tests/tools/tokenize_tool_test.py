"""stretto-tokenize seen from outside, and stretto-train on its tokens: what is written where, and what comes back."""
import base64
import gzip
import json
import os
import pathlib
import struct
import subprocess
import unittest

from support.programs import ProgramTest, run_program

TOKENIZE, TRAIN = os.environ["TOKENIZE_PROGRAM"], os.environ["TRAIN_PROGRAM"]
END_OF_TEXT = 258


def small_vocabulary():
    """The 256 bytes in GPT-2's alphabet, two merges and <|endoftext|>."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    symbols = [chr(byte if byte in printable else next(others)) for byte in range(256)]
    return {token: i for i, token in enumerate([*symbols, "th", "the", "<|endoftext|>"])}, "#version: 0.2\nt h\nth e\n"


class Tokenize(ProgramTest):
    def setUp(self):
        super().setUp()
        vocabulary, merges = small_vocabulary()
        (self.directory / "encoder.json").write_text(json.dumps(vocabulary))
        (self.directory / "vocab.bpe").write_text(merges)
        self.text = self.directory / "text"
        self.output = self.directory / "out.bin"

    def tool(self, *words):
        return [TOKENIZE, "--vocab", self.directory / "encoder.json", "--merges", self.directory / "vocab.bpe", *words]

    def tokenize(self, *words):
        return self.succeeds(*self.tool(*words))

    def llmc_tokens(self, path):
        data = path.read_bytes()
        header = struct.unpack("<256i", data[:1024])
        self.assertEqual(header[:2], (20240520, 1))
        self.assertEqual(header[3:], (0,) * 253)
        self.assertEqual(len(data), 1024 + 2 * header[2])
        return list(struct.unpack(f"<{header[2]}H", data[1024:]))

    def test_documents(self):
        """llm.c's tiny-shakespeare: <|endoftext|> at the beginning and behind each empty line."""
        self.text.write_text("the\n\nof\n\n\n\nx")
        the = 257
        self.assertIn("11 tokens in", self.tokenize(self.text, "--out", self.output))
        newline, o, f, x = map(ord, "\nofx")
        self.assertEqual(self.llmc_tokens(self.output), [END_OF_TEXT, the, newline, newline, o, f, *4 * [newline], x])
        self.tokenize(self.text, "--out", self.output, "--documents", "sections")
        sections = [[the, newline, newline], [o, f, newline, newline], [newline, newline], [x]]
        expected = [token for section in sections for token in (END_OF_TEXT, *section)]
        self.assertEqual(self.llmc_tokens(self.output), expected)
        self.tokenize(self.text, self.text, "--out", self.output, "--documents", "none")
        self.assertEqual(self.llmc_tokens(self.output), 2 * [token for section in sections for token in section])
        self.tokenize(self.text, "--out", self.output, "--documents", "sections", "--val-tokens", 6, "--val-out", self.directory / "val.bin")
        self.assertEqual(self.llmc_tokens(self.directory / "val.bin"), expected[:6])
        self.assertEqual(self.llmc_tokens(self.output), expected[6:])

    def test_round_trip(self):
        text = "the other\n\ncafé 東京 <|endoftext|> the\n\n".encode() + bytes(range(256)) * 3 + b"\xe6\x9d"
        self.text.write_bytes(text)
        back = self.directory / "back"
        for form in ("llm.c", "nanogpt", "megatron"):
            for documents in ("none", "sections"):
                with self.subTest(form=form, documents=documents):
                    self.tokenize(self.text, "--out", self.output, "--format", form, "--documents", documents)
                    said = self.tokenize("--decode", self.output, "--out", back, "--no-separators", *(["--format", form] if form == "nanogpt" else []))
                    self.assertIn(f"out.bin: {form}, ", said)
                    self.assertEqual(back.read_bytes(), text)
                    for file in self.directory.glob("out.*"):
                        file.unlink()
        self.text.write_bytes(text := gzip.compress(b"the"))
        self.tokenize(self.text, "--any-input", "--out", self.output)
        self.tokenize("--decode", self.output, "--out", back)
        self.assertEqual(back.read_bytes(), b"<|endoftext|>" + text)

    def test_other_tokenizers(self):
        """The same vocabulary as tokenizer.json, as ranks, and as a directory; a special token in a text is text unless asked for."""
        vocabulary, _ = small_vocabulary()
        special = {"id": END_OF_TEXT, "content": "<|endoftext|>", "special": True, "normalized": False}
        model = {"type": "BPE", "vocab": {token: number for token, number in vocabulary.items() if number != END_OF_TEXT}, "merges": ["t h", "th e"]}
        folder = self.directory / "folder"
        folder.mkdir()
        (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": [special], "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
                                                           "decoder": {"type": "ByteLevel"}, "model": model}))
        tokens = [bytes([byte]) for byte in range(256)] + [b"th", b"the"]
        ranks = self.directory / "x.tiktoken"
        ranks.write_text("".join(f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens)))
        self.text.write_bytes(text := b"the other's\n <|endoftext|> \xff")
        self.tokenize(self.text, "--out", self.output)
        expected = self.llmc_tokens(self.output)
        back = self.directory / "back"
        for words in (["--tokenizer", folder], ["--tokenizer", folder / "tokenizer.json"], ["--tokenizer", ranks, "--pattern", "gpt2"]):
            with self.subTest(words=words):
                said = self.succeeds(TOKENIZE, *words, self.text, "--out", self.output)
                self.assertIn("259 tokens, <|endoftext|> before each document", said)
                self.assertEqual(self.llmc_tokens(self.output), expected)
                self.succeeds(TOKENIZE, *words, "--decode", self.output, "--no-separators", "--out", back)
                self.assertEqual(back.read_bytes(), text)
                self.succeeds(TOKENIZE, *words, self.text, "--out", self.output, "--special-tokens")
                self.assertEqual(self.llmc_tokens(self.output).count(END_OF_TEXT), 2)
        out = ["--out", self.directory / "new.bin"]
        self.refused(["--tokenizer-pattern gpt2"], TOKENIZE, "--tokenizer", ranks, self.text, *out)
        self.refused(["'mine'"], TOKENIZE, "--tokenizer", ranks, "--pattern", "mine", self.text, *out)
        self.refused(["leave it out"], TOKENIZE, "--tokenizer", folder, "--pattern", "gpt2", self.text, *out)
        self.refused(["two ways"], *self.tool("--tokenizer", folder, self.text, *out))
        self.refused(["two ways"], TOKENIZE, self.text, *out)
        self.refused(["belong together"], TOKENIZE, "--vocab", folder, self.text, *out)
        self.refused(["tokenizer.json"], TOKENIZE, "--tokenizer", folder, self.text, "--out", folder / "tokenizer.json")
        self.refused([self.text, "no tokenizer"], TOKENIZE, "--tokenizer", self.text, self.text, *out)
        self.assertFalse((self.directory / "new.bin").exists())
        self.text.write_bytes(20 * text)
        self.succeeds(TOKENIZE, "--tokenizer", folder, self.text, "--out", self.output)
        said = self.succeeds(*self.training("--train-data", self.output, "--tokenizer", folder, "--prompt", "the th"))
        self.assertIn("--- a sample ---\nthe th", said)
        self.refused(["two tokenizers"], *self.training("--train-data", self.output, "--tokenizer", folder, "--vocab-file", folder, "--merges-file", folder))
        self.refused(["--tokenizer-pattern"], *self.training("--train-data", self.output, "--tokenizer-pattern", "gpt2"))

    def test_index_of_megatron(self):
        self.text.write_text("the\n\nx")
        self.tokenize(self.text, "--out", self.output, "--format", "megatron", "--documents", "sections")
        self.assertEqual(struct.unpack("<6H", self.output.read_bytes()), (END_OF_TEXT, 257, 10, 10, END_OF_TEXT, 120))
        self.assertEqual((self.directory / "out.idx").read_bytes(),
                         b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 2, 3) + struct.pack("<2i", 4, 2) + struct.pack("<2q", 0, 8) +
                         struct.pack("<3q", 0, 1, 2))

    def test_mistakes(self):
        self.text.write_text("the")

        def refused(words, *fragments):
            self.refused(fragments, *self.tool(*words))
            self.assertEqual(list(self.directory.glob("*.unfinished")), [])
            self.assertFalse(self.output.exists())

        out = ["--out", self.output]
        refused([self.text], "--out")
        refused([self.directory / "missing", *out], "missing", "No such file")
        refused([self.text, *out, "--format", "bytes"], "'bytes'")
        refused([self.text, *out, "--format", "tiktoken"], "'tiktoken'", "megatron")
        refused([self.text, *out, "--val-tokens", 5], "--val-tokens 5", "--val-out ''")
        refused([self.text, *out, "--val-tokens", 5, "--val-out", self.directory / "v"], "2 tokens", "--val-tokens")
        refused([self.text, *out, "--decode", "--documents", "none"], "--decode")
        refused([self.text, *out, "--no-separators"], "--decode")
        refused([self.text, *out, "--decode"], "text", "no file of tokens")
        packed = self.directory / "packed"
        packed.write_bytes(gzip.compress(b"the"))
        refused([packed, *out], packed, "gzip -dk", "--any-input")
        refused([self.output, "--any-input", *out, "--decode"], "--any-input", "--decode")
        (self.directory / "headerless.bin").write_bytes(b"\xff\xff")
        refused([self.directory / "headerless.bin", *out, "--decode"], "by --format nanogpt")
        refused([self.directory / "headerless.bin", *out, "--decode", "--format", "nanogpt"], "the --vocab of", "another --format.")
        (self.directory / "encoder.json").write_text("{}")
        refused([self.text, *out], "encoder.json", "no vocabulary")

    def test_outputs_that_would_overwrite_what_is_read(self):
        """Under the same name, another spelling of it, a symbolic and a hard link; also of the vocabulary and of each other."""
        self.text.write_text("the other")
        self.tokenize(self.text, "--out", self.output, "--format", "megatron")
        (self.directory / "symbolic").symlink_to(self.text)
        (self.directory / "hard").hardlink_to(self.text)
        before = {path: path.read_bytes() for path in self.directory.iterdir()}

        def refused(words, *fragments):
            self.refused([" would overwrite ", "; give another file.", *fragments], *self.tool(*words))
            self.assertEqual({path: path.read_bytes() for path in self.directory.iterdir()}, before)

        for spelling in (self.text, f"{self.directory}/../{self.directory.name}/./text", self.directory / "symbolic", self.directory / "hard"):
            refused([self.text, "--out", spelling], f"--out {spelling}", self.text)
        refused([self.output, self.text, "--out", self.text], self.text)
        refused([self.text, "--out", self.directory / "x", "--val-tokens", 1, "--val-out", self.text], "--val-out", self.text)
        refused([self.text, "--out", self.directory / "x", "--val-tokens", 1, "--val-out", f"{self.directory}/./x"], "--val-out")
        refused([self.text, "--out", self.directory / "vocab.bpe"], "vocab.bpe")
        refused([self.output, "--out", self.directory / "out", "--format", "megatron"], "out.bin")
        for read in (self.output, self.directory / "out"):
            for written in (self.output, self.directory / "out.idx"):
                refused([read, "--decode", "--out", written], written)
        self.tokenize(self.text, "--out", self.directory / "text.bin")

    def test_outputs_that_are_no_regular_files(self):
        """Nothing takes the place of a device, a pipe or a link; the file behind a link gets the tokens."""
        self.text.write_text("the other")
        self.tokenize(self.text, "--out", self.output)
        tokens = self.output.read_bytes()
        (self.directory / "link.bin").symlink_to(self.directory / "target.bin")
        (self.directory / "target.bin").write_text("old")
        (self.directory / "full.bin").symlink_to("/dev/full")
        os.mkfifo(self.directory / "pipe")
        self.tokenize(self.text, "--out", self.directory / "link.bin")
        self.assertTrue((self.directory / "link.bin").is_symlink())
        self.assertEqual((self.directory / "target.bin").read_bytes(), tokens)
        for words in ([self.text, "--out", "/dev/full"], [self.text, "--out", self.directory / "full.bin", "--format", "megatron"],
                      [self.text, "--out", self.directory / "x", "--val-tokens", 1, "--val-out", "/dev/full"],
                      ["--decode", self.output, "--out", "/dev/full"]):
            done = run_program(*self.tool(*words))
            self.assertEqual((done.returncode, "No space left on device" in done.stderr), (1, True), done.stderr)
            self.assertTrue(pathlib.Path("/dev/full").is_char_device())
        with subprocess.Popen(["cat", self.directory / "pipe"], stdout=subprocess.PIPE) as reader:
            self.tokenize("--decode", self.output, "--no-separators", "--out", self.directory / "pipe")
            self.assertEqual(reader.stdout.read(), b"the other")
        self.assertEqual([path for path in self.directory.iterdir() if "unfinished" in path.name or path.name == "x"], [])

    def training(self, *words):
        return [TRAIN, "--nproc", 2, "--num-layers", 1, "--hidden-size", 16, "--num-attention-heads", 2, "--seq-length", 16, "--micro-batch-size", 2,
                 "--train-iters", 2, *words]

    def test_training(self):
        """The trainer says what it took the file for, and samples are text where the vocabulary is known."""
        self.text.write_text("the other then " * 100)
        self.tokenize(self.text, "--out", self.output)
        vocabulary = ["--vocab-file", self.directory / "encoder.json", "--merges-file", self.directory / "vocab.bpe"]
        said = self.succeeds(*self.training("--train-data", self.output, *vocabulary, "--prompt", "the th"))
        self.assertRegex(said, r"out\.bin: llm\.c, \d+ tokens of 16 bits; validation on its last \d+ tokens")
        self.assertIn("--- a sample ---\nthe th", said)
        numbers = self.succeeds(*self.training("--train-data", self.output, "--vocab-size", 300, "--prompt", "257 32"))
        self.assertRegex(numbers, r"--- a sample ---\n257 32 \d+ \d+ ")

        def refused(words, *fragments):
            self.refused(fragments, *self.training("--train-data", self.output, *words))

        refused([], self.output, "token 258 at position 0", "a vocabulary of 256", "--vocab-size")
        refused(["--vocab-size", 300, "--prompt", "the"], "'the'", "--vocab-file")
        refused([*vocabulary, "--vocab-size", 256], "--vocab-size 256", "259 tokens")
        refused(vocabulary[:2], "--merges-file ''")
        refused([*vocabulary, "--train-data", self.text], "taken for bytes", "stretto-tokenize")
        refused(["--vocab-size", 300, "--val-data", self.text], "one kind")
        refused(["--data-format", "tiktoken"], "'tiktoken'", "nanogpt")


if __name__ == "__main__":
    unittest.main()
