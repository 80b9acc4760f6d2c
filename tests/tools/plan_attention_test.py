"""stretto-plan attention: layouts of long sequences."""
import json
import os
import unittest

from plan_harness import LINKS, PlanTool

TRAIN = os.environ.get("TRAIN_PROGRAM")


class Attention(PlanTool):
    SHAPE = ["attention", "--seq", 8192, "--heads", 8, "--hidden", 512]
    TIMES = ["--links", LINKS, "--flops-per-second", 1e14]

    def plan(self, *words):
        path = self.directory / "plan.json"
        lines = self.lines(*words, "--json", path)
        return lines, json.loads(path.read_text())

    def test_all_layouts_of_some_ranks(self):
        lines, plan = self.plan(*self.SHAPE, "--ranks", 16, *self.TIMES, "--cp-layout", "all")
        layouts = {(each["cp"], each["ulysses"], each["cp_layout"]): each for each in plan["layouts"]}
        self.assertEqual(set(layouts), {(16 // u, u, layout) for u in (1, 2, 4, 8) for layout in ("zigzag", "contiguous", "striped")})
        self.assertEqual([(each["cp"], each["ulysses"]) for each in plan["refused"]], [(1, 16)])
        self.assertTrue(any(line.startswith("not cp 1 x ulysses 16: 8 attention heads do not divide over") for line in lines), lines)
        times = [each["forward"]["ms"] + each["backward"]["ms"] for each in plan["layouts"]]
        self.assertEqual(times, sorted(times))
        self.assertEqual(plan["choice"], 0)
        for each in plan["layouts"]:
            for way in ("forward", "backward"):
                self.assertAlmostEqual(each[way]["computing_ms"] + each[way]["exposed_ms"], each[way]["ms"])
        self.assertIn("choice: stretto-train " + plan["layouts"][0]["flags"], lines)
        self.assertRegex(lines[-1], r"^because: cp .* takes .* a layer, forward and backward; next, cp ")
        self.assertAlmostEqual(layouts[16, 1, "contiguous"]["balance"], 16 / 31, places=2)
        self.assertEqual(layouts[16, 1, "zigzag"]["balance"], 1)

    def test_figures(self):
        """Two all-reduces of a block and pass, or with --sp halves of them; and the formulas of docs/long-sequences.md."""
        _, plan = self.plan(*self.SHAPE, "--cp", 2, "--ulysses", 2, "--tp", 2, "--batch", 3)
        whole, divided = plan["layouts"]
        self.assertEqual((whole["sp"], divided["sp"], plan["choice"]), (False, True, None))
        rows = 3 * 8192 // 4
        residual = rows * 512 * 2
        keys_and_values = 2 * rows * 256 * 2
        self.assertEqual(whole["forward"]["sent"], {"cp": keys_and_values, "ulysses": rows * 256 * 4 * 2 // 2, "tp": 2 * residual})
        self.assertEqual(whole["backward"]["sent"], {"cp": 3 * keys_and_values, "ulysses": rows * 256 * 4 * 2 // 2, "tp": 2 * residual})
        self.assertEqual(divided["backward"]["sent"]["tp"], 3 * residual)
        self.assertEqual(whole["forward"]["flops"], 4 * 3 * (8192 * 8193 // 2) * 512 / 8)
        self.assertEqual(whole["core_kept"], 4 * rows * 256 * 2 + rows * 4 * 4)
        self.assertLess(divided["layer_kept"], whole["layer_kept"])
        self.assertNotIn("ms", whole["forward"])

    def test_the_reason_of_the_choice(self):
        lines, plan = self.plan(*self.SHAPE, "--ranks", 8, "--tp", 2, *self.TIMES)
        self.assertTrue(plan["layouts"][0]["sp"])
        self.assertIn("; with --sp a layer keeps ", lines[-1])
        fastest = lambda mask: self.plan(*self.SHAPE, "--cp", 8, "--attention", mask, "--cp-layout", "all", *self.TIMES)[1]["layouts"][0]
        self.assertNotEqual(fastest("dense")["cp_layout"], "contiguous")
        narrow = fastest("window:64")  # a part's keys are its rank's own and its neighbour's
        self.assertEqual(narrow["cp_layout"], "contiguous")
        self.assertIn("--attention window:64", narrow["flags"])

    def test_a_million_tokens(self):
        _, plan = self.plan("attention", "--seq", 1 << 20, "--heads", 64, "--hidden", 8192, "--ranks", 256, "--cp-layout", "all", *self.TIMES)
        pairs = (1 << 20) * ((1 << 20) + 1) // 2
        for each in plan["layouts"]:
            self.assertGreaterEqual(each["forward"]["flops"], 4 * pairs * 8192 / 256)

    def test_refusals(self):
        for part, words in [
            ("8 attention heads do not divide over 4 tensor-parallel x 4 ulysses ranks", [*self.SHAPE, "--cp", 1, "--ulysses", 4, "--tp", 4]),
            ("A sequence of 8192 tokens does not divide over 3 ring (zigzag) x 1 ulysses ranks", [*self.SHAPE, "--cp", 3]),
            ("A sequence of 4 tokens does not divide over 8 ring", ["attention", "--seq", 4, "--heads", 1, "--hidden", 64, "--ranks", 8]),
            ("A hidden size of 510 does not divide", [*self.SHAPE[:-1], 510, "--cp", 2]),
            ("do not divide over 4096 tensor-parallel x 4096 ulysses ranks", [*self.SHAPE, "--cp", 4096, "--ulysses", 4096, "--tp", 4096, *self.TIMES]),
            ("2 sequences of 1073741824 tokens has more than 2^30", ["attention", "--seq", 1 << 30, "--heads", 1, "--hidden", 64, "--ranks", 8, "--batch", 2]),
            ("--ranks excludes", [*self.SHAPE, "--ranks", 8, "--cp", 2]),
            ("Give --ranks N", self.SHAPE),
            ("is no mask of attention", [*self.SHAPE, "--ranks", 8, "--attention", "windows:4"]),
            ("is no layout of a sequence", [*self.SHAPE, "--ranks", 8, "--cp-layout", "zagzig"]),
            ("--links requires --flops-per-second", [*self.SHAPE, "--ranks", 8, "--links", LINKS]),
            ("--flops-per-second requires --links", [*self.SHAPE, "--ranks", 8, "--flops-per-second", 1]),
            ("does not fit a cluster of 12 ranks, 8 a node", [*self.SHAPE[:2], 8448, *self.SHAPE[3:], "--cp", 12, *self.TIMES]),
            ("no_such.json", [*self.SHAPE, "--ranks", 8, "--links", "no_such.json", "--flops-per-second", 1]),
            ("--json", [*self.SHAPE, "--ranks", 8, "--json", "/no/such/directory/plan.json"]),
            ("--dtype", [*self.SHAPE, "--ranks", 8, "--dtype", "f33"]),
            ("--seq", ["attention", "--heads", 1, "--hidden", 64, "--ranks", 8]),
        ]:
            with self.subTest(words):
                self.refused(part, *words)

    @unittest.skipUnless(TRAIN, "this build has no stretto-train")
    def test_the_flags_run(self):
        """A dry run takes them for all layouts, with the plan's bytes for each microbatch; a step runs in the chosen one."""
        def dry_run(flags, ranks, batch):
            path = self.directory / "dry.json"
            self.succeeds(TRAIN, *flags, "--dry-run", "--ranks", ranks, "--global-batch-size", batch, "--json", path)
            return json.loads(path.read_text())["sent"]

        shape = ["attention", "--seq", 48, "--heads", 4, "--hidden", 32, "--tp", 2, "--dtype", "fp32"]
        for more in (["--ranks", 4], ["--ranks", 2, "--attention", "window:5", "--cp-layout", "all"]):
            _, plan = self.plan(*shape, *more, *self.TIMES)
            for each in plan["layouts"]:
                flags = [*each["flags"].split(), "--num-layers", "1"]
                ranks = each["cp"] * each["ulysses"] * 2
                with self.subTest(flags):
                    once, twice = (dry_run(flags, ranks, batch) for batch in (1, 2))
                    for group in ("cp", "ulysses"):
                        sent = twice.get(group, 0) - once.get(group, 0)
                        most = sum(each[way]["sent"][group] for way in ("forward", "backward"))
                        if "dense" in each["flags"]:
                            self.assertEqual(sent, most)
                        self.assertLessEqual(sent, most)  # the first rank may send less than another
        best = plan["layouts"][0]
        text = self.directory / "text"
        text.write_text("the quick brown fox jumps over the lazy dog. " * 40)
        said = self.succeeds(TRAIN, *best["flags"].split(), "--num-layers", 1, "--nproc", 4, "--train-iters", 1, "--train-data", text)
        self.assertRegex(said, r"step +1/1 ")


if __name__ == "__main__":
    unittest.main()
