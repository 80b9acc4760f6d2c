"""stretto-train on examples in JSON lines, seen from outside: the same losses in every layout and after a restart, and lines that will not do."""
import json
import os
import unittest

from support.programs import ProgramTest

TRAIN = os.environ["TRAIN_PROGRAM"]
CHATML = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
          "{% endfor %}")


def characters_of_bytes():
    """GPT-2's alphabet: printable bytes stand for themselves, the others for characters from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{byte: chr(byte) for byte in printable}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}


class Examples(ProgramTest):
    def setUp(self):
        super().setUp()
        special = [{"id": 256 + i, "content": name, "special": True, "normalized": False}
                   for i, name in enumerate(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])]
        (self.directory / "tokenizer.json").write_text(json.dumps({
            "added_tokens": special, "normalizer": None, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
            "post_processor": None, "decoder": {"type": "ByteLevel"},
            "model": {"type": "BPE", "vocab": {character: byte for byte, character in characters_of_bytes().items()}, "merges": []}}))
        (self.directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "chat_template": CHATML}))
        lines = [{"messages": [{"role": "user", "content": f"{i} + {i}?"}, {"role": "assistant", "content": "=" * (i % 7) + f" {2 * i}"}]}
                 for i in range(60)]
        lines += [{"prompt": f"{i} times 3 is ", "completion": str(3 * i)} for i in range(40)] + [{"text": "counting " * i} for i in range(10)]
        self.data = self.directory / "chat.jsonl"
        self.data.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def command(self, *words):
        return [TRAIN, "--num-layers", 2, "--hidden-size", 32, "--num-attention-heads", 4, "--seq-length", 64, "--global-batch-size", 8,
                "--micro-batch-size", 1, "--tokenizer", self.directory, "--train-data", self.data, "--train-iters", 4, "--eval-interval", 2, *words]

    def losses(self, name, *words):
        said = self.succeeds(*self.command("--log-dir", self.directory / name, *words))
        lines = [json.loads(line) for line in (self.directory / name / "metrics.jsonl").read_text().splitlines()]
        return said, [(line["step"], line["loss"], line.get("val_loss")) for line in lines]

    def test_losses_are_those_of_every_layout(self):
        said, expected = self.losses("one", "--nproc", 1)
        self.assertIn("99 examples, written as chatml in ", said)
        self.assertIn("validation on its last 11 examples", said)
        self.assertEqual([step for step, _, _ in expected], [1, 2, 3, 4])
        self.assertEqual([step for step, _, validation in expected if validation is not None], [2, 4])
        for words in (["--nproc", 2], ["--nproc", 2, "--cp", 2], ["--nproc", 2, "--ulysses", 2], ["--nproc", 2, "--pp", 2], ["--nproc", 4, "--tp", 2, "--zero", 3]):
            _, losses = self.losses("-".join(map(str, words)), *words)
            for (step, loss, validation), (_, other, other_validation) in zip(expected, losses, strict=True):
                self.assertAlmostEqual(loss, other, places=4, msg=(words, step))
                if validation is not None:
                    self.assertAlmostEqual(validation, other_validation, places=4, msg=(words, step))
        _, others = self.losses("seed", "--nproc", 1, "--seed", 2)
        self.assertNotAlmostEqual(others[0][1], expected[0][1], places=4, msg="the control")

    def test_resumes_where_it_was(self):
        _, expected = self.losses("whole", "--nproc", 2)
        save = ["--save", self.directory / "saved", "--nproc", 2]
        schedule = ["--lr", 1e-3, "--min-lr", 1e-3]
        self.losses("first", *save, *schedule, "--train-iters", 2)
        _, second = self.losses("second", *save, *schedule, "--resume")
        _, undisturbed = self.losses("undisturbed", "--nproc", 2, *schedule)
        self.assertEqual(second[-2:], undisturbed[-2:])
        self.refused(["--train-data is", "--allow-changes"], *self.command(*save, "--resume", "--seq-length", 64, "--train-data", self.other_data()))
        self.assertEqual(len(expected), 4)

    def other_data(self):
        other = self.directory / "other.jsonl"
        other.write_text(self.data.read_text().replace("times 3", "times 4"))
        return other

    def test_names_what_will_not_do(self):
        broken = self.directory / "broken.jsonl"
        broken.write_text(self.data.read_text() + '{"messages": []}\n')
        self.refused([f"{broken}, line 111 has no message"], *self.command("--nproc", 2, "--train-data", broken))
        self.refused(["'vicuna'"], *self.command("--nproc", 1, "--chat-template", "vicuna"))
        self.refused(["global:4"], *self.command("--nproc", 1, "--attention", "window:8+global:4"))
        text = self.directory / "text"
        text.write_text("text " * 1000)
        self.refused(["--chat-template chatml is for conversations"],
                     *self.command("--nproc", 1, "--chat-template", "chatml", "--train-data", text))
        without = [word for word in self.command("--nproc", 1) if word not in ("--tokenizer", self.directory)]
        self.refused([self.data, "need a tokenizer"], *without)


if __name__ == "__main__":
    unittest.main()
