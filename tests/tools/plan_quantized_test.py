"""stretto-plan of quantized collectives."""
import unittest

from plan_harness import LINKS, PlanTool


class Quantized(PlanTool):
    two_levels = ["--ranks", 8, "--ranks-per-node", 4]

    def test_plans(self):
        lines = self.lines("reduce_scatter", "--quantize", "int4", "--algo", "two_level", "--ranks", 4,
                           "--ranks-per-node", 2, "--rank", 1, "--bytes", "4K")
        self.assertIn("reduce_scatter by two_level, rank 1 of 4, 256 elements, 0 of scratch, 2304 packed in int4", lines)
        self.assertIn("  lane 0 round 2: requantize int4[1536..1792) = int4[768..1024) vectors 2 apart 512 errors node_sum 256",
                      lines)
        block = 256 // 64 * 34  # bytes of records; two of them go inside the node, one between
        self.assertEqual(lines[-3:], [f"sent: {4 * 3 * block} bytes in all, {3 * block} by a rank; 5 rounds",
                                      f"cost: 2 alpha + 2 overhead + {3 * block} bytes beta + 0 bytes gamma",
                                      "quantized: 2560 elements packed or unpacked by a rank"])

    def test_proofs(self):
        lines = self.lines("all", "--quantize", "int4", "--quantize-result", "int8", "--verify", "--ranks", "1..5")
        self.assertEqual([line.split()[:2] for line in lines[:-1]],
                         [["all_reduce", "two_shot"], ["all_reduce", "two_level"], ["reduce_scatter", "direct"],
                          ["reduce_scatter", "two_level"], ["all_gather", "direct"], ["all_gather", "two_level"]])
        self.assertIn("two_level/5", self.lines("all_gather", "--quantize", "onebit", "--algo", "two_level/5",
                                                "--verify", "--ranks", 6)[0])

    def test_types(self):
        for dtype in ["f32", "bf16", "f16"]:
            self.assertTrue(self.lines("all_gather", "--quantize", "int8", "--dtype", dtype, "--ranks", 4))
        self.assertTrue(self.lines("broadcast", "--quantize", "none", "--dtype", "i32", "--ranks", 4))

    def test_predictions(self):
        lines = self.lines("all_gather", "--quantize", "int8", "--bytes", "1M", *self.two_levels, "--simulate", LINKS)
        self.assertTrue(lines[0].startswith("all_gather of 1 MiB, in int8, 8 ranks"), lines[0])
        self.assertEqual({line.split()[0] for line in lines[2:]}, {"direct", "direct/16", "two_level", "two_level/16"})

    def test_explanations(self):
        words = ["all_reduce", "--bytes", "16M", *self.two_levels, "--explain", "--ranks-per-core", 1,
                 "--quantize", "int4", "--quantize-result", "int8"]
        lines = self.lines(*words)
        self.assertIn(" in int4, the sum in int8, ", lines[0])
        self.assertTrue(any("an element packed or unpacked" in line for line in lines), lines)
        candidates = lambda lines: [line.split()[0] for line in lines if line.endswith(("  int4", "  f32"))]
        self.assertEqual(len(candidates(lines)), 6)
        both = candidates(self.lines(*words, "--only-if-faster"))
        self.assertTrue({"two_level/16", "ring"} <= set(both), both)

    def test_pictures(self):
        file = self.directory / "picture.svg"
        for links in [[], ["--simulate", LINKS]]:
            self.lines("reduce_scatter", "--quantize", "int4", "--algo", "two_level/4", "--bytes", "1M",
                       *self.two_levels, "--svg", file, *links)
            text = file.read_text()
            for word in ["in int4", ">quantize<", ">requantize<", ">dequantize_reduce<", ">send<", ">recv<"]:
                self.assertIn(word, text)

    def test_refusals(self):
        for part, words in [
            ("'int2' is no quantized format", ["all_reduce", "--quantize", "int2"]),
            ("A quantized all_reduce cannot be done by ring", ["all_reduce", "--algo", "ring", "--quantize", "int8"]),
            ("broadcast cannot be quantized", ["broadcast", "--algo", "direct", "--quantize", "int8"]),
            ("broadcast cannot be quantized", ["broadcast", "--quantize", "int8"]),
            ("i32 cannot be quantized; give --dtype", ["all_reduce", "--quantize", "int8", "--dtype", "i32"]),
            ("f64 cannot be quantized; give --dtype", ["all_gather", "--quantize", "int8", "--dtype", "f64"]),
            ("has no result to quantize", ["all_gather", "--quantize", "int8", "--quantize-result", "int8"]),
            ("--quantize-result requires --quantize", ["all_reduce", "--quantize-result", "int8"]),
            ("--only-if-faster requires", ["all_reduce", "--explain", "--only-if-faster"]),
        ]:
            with self.subTest(words):
                self.refused(part, *words, "--ranks", 4)


if __name__ == "__main__":
    unittest.main()
