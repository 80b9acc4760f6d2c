"""Ranks that a launcher starts with different flags or data end before they train, and one sentence names flag, ranks and values."""
import unittest

from harness import FaultTest, free_port


class DifferentRanks(FaultTest):

    def run_ranks(self, *flags):
        port = free_port()
        ranks = [self.start_rank(rank, len(flags), port, each) for rank, each in enumerate(flags)]
        return [self.status(rank) for rank in ranks], [line for rank in ranks for line in rank.errors]

    def expect_refusal(self, words, *flags):
        with self.subTest(flags=flags):
            statuses, errors = self.run_ranks(*flags)
            self.assertEqual(statuses, [1] * len(flags), errors)
            self.assertEqual(len(errors), 1, errors)
            for word in words:
                self.assertIn(word, errors[0])
            self.expect_nothing_left()

    def test_flags(self):
        self.expect_refusal(["--lr is '0.001' on ranks 0 and 2, '0.01' on rank 1"], {}, {"--lr": 0.01}, {})
        self.expect_refusal(["--seed is '1' on rank 0, '7' on rank 1", "--weight-decay is"], {}, {"--seed": 7, "--weight-decay": 0.5})
        self.expect_refusal(["--tensor-model-parallel-size is '1' on rank 0, '2' on rank 1"], {}, {"--tp": 2})
        self.expect_refusal(["--global-batch-size", "--num-attention-heads", "--clip-grad", "--dtype is 'fp32' on rank 0, 'bf16'"],
                            {}, {"--global-batch-size": 16, "--num-attention-heads": 2, "--clip-grad": 2, "--dtype": "bf16"})
        self.expect_refusal(["--save is 'given' on rank 0, '' on rank 1"], {"--save": self.directory / "save"}, {})

    def test_data(self):
        other = self.directory / "other"
        text = self.text.read_text()
        other.write_text(text[:-1] + "!")
        self.expect_refusal([f"--train-data is '{len(text)} tokens of 8 bits with the digest "], {}, {"--train-data": other})
        self.expect_refusal(["--val-data is '"], {"--val-data": self.text}, {"--val-data": other})

    def test_the_same_in_other_words(self):
        copy = self.directory / "copy"
        copy.write_text(self.text.read_text())
        self.assertEqual(self.run_ranks({}, {"--lr": "1e-3", "--min-lr": 0.0001, "--train-data": copy}), ([0, 0], []))


if __name__ == "__main__":
    unittest.main()
