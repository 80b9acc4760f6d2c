"""stretto-plan move: divided tensors that come to other ranks."""
import unittest

from plan_harness import PlanTool


class Move(PlanTool):
    def test_a_copy_for_each_target_crosses_once(self):
        lines = self.lines("move", "--shape", "1024,1024", "--from", "0@0..3", "--to", "all@4..7", "--ranks-per-node", 4, "--gbit", 1)
        self.assertIn("phase 0: tensor 0 [0..64, 0..1024] from 0 to 4", lines)
        self.assertIn("proved: every element arrives once; 2 exchanges", lines)
        self.assertIn("between nodes: 4 MiB", lines)
        self.assertIn("links allow 33.55 ms", lines)
        self.assertIn("rank 4: 0 B before, 4 MiB behind it; sends 3 MiB, receives 4 MiB, buffers 6 MiB", lines)

    def test_buffers_are_bounded(self):
        words = ["move", "--shape", "1000,1000", "--dtype", "f64", "--from", "0@0,1", "--to", "1@0,1"]
        self.assertIn("proved: every element arrives once; 1 exchange", self.lines(*words))
        self.assertIn("proved: every element arrives once; 4 exchanges", self.lines(*words, "--buffer", "1M"))

    def test_formats_make_messages_smaller(self):
        lines = self.lines("move", "--shape", "1024,1024", "--from", "0@0", "--to", "all@1", "--format", "int8")
        self.assertIn("phase 0: tensor 0 [0..1024, 0..1024] from 0 to 1 in int8", lines)
        self.assertIn("rank 1: 0 B before, 4 MiB behind it; sends 0 B, receives 1.016 MiB, buffers 1.016 MiB", lines)

    def test_refusals(self):
        for words, sentence in {("--from", "0"): "--from '0' is no division; give a dimension or all, '@', and ranks, like 0@0..3 or all@4,5.",
                                ("--from", "0@3..1"): "--from '0@3..1' has a range whose end is below its beginning.",
                                ("--from", "2@0"): "A tensor of 2 dimensions cannot be divided along dimension 2; the first is 0.",
                                ("--from", "all@x"): "--from 'all@x' has 'x' where a number below 4096 belongs.",
                                ("--from", "all@1,1"): "Tensor 0 of a move names rank 1 twice before it; give it all of its boxes at once.",
                                }.items():
            with self.subTest(words=words):
                self.refused(sentence, "move", "--shape", "4,4", "--to", "all@0", *words)


if __name__ == "__main__":
    unittest.main()
