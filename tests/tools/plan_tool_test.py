"""stretto-plan: plans, proofs, predictions, explanations and errors."""
import unittest

from plan_harness import LINKS, PLAN, PlanTool
from support.programs import ProgramTest


class Plans(PlanTool):
    def test_every_rank_with_cost_and_bytes(self):
        lines = self.lines("all_reduce", "--algo", "ring", "--ranks", 3, "--bytes", 24)
        self.assertIn("all_reduce by ring, rank 0 of 3, 6 elements, 0 of scratch", lines)
        self.assertIn("  lane 0 round 1: recv_reduce output[0..2) = input[0..2) with 2 finishes", lines)
        self.assertEqual(sum("rank" in line and "elements" in line for line in lines), 3)
        self.assertEqual(lines[-2:], ["sent: 96 bytes in all, 32 by a rank; 4 rounds",
                                      "cost: 4 alpha + 4 overhead + 32 bytes beta + 16 bytes gamma"])

    def test_one_rank(self):
        lines = self.lines("broadcast", "--algo", "binomial", "--ranks", 4, "--rank", 2, "--root", 1, "--dtype", "f64")
        self.assertEqual([line for line in lines if "elements" in line],
                         ["broadcast by binomial, rank 2 of 4, 128 elements, 0 of scratch"])

    def test_shared_memory(self):
        lines = self.lines("all_reduce", "--algo", "push", "--ranks", 3, "--bytes", 24, "--rank", 1)
        self.assertEqual(lines[1:-2], ["  lane 0 round 0: signal", "  lane 0 round 1: wait for 2",
                                       "  lane 0 round 1: wait for 0",
                                       "  lane 0 round 2: read_reduce output[2..4) = input[2..4) of everybody finishes",
                                       "  lane 0 round 3: signal", "  lane 0 round 4: wait for 2",
                                       "  lane 0 round 4: wait for 0"])
        self.assertEqual(lines[-2], "sent: 96 bytes in all, 32 by a rank; 5 rounds")

    def test_all_algorithms(self):
        lines = self.lines("all_gather", "--ranks", 4, "--rank", 0)
        for algorithm in ["ring", "bidirectional_ring", "recursive_halving_doubling"]:
            self.assertTrue(any(line.startswith(f"all_gather by {algorithm}, rank 0") for line in lines), algorithm)


    def test_servers(self):
        lines = self.lines("all_reduce", "--algo", "server_set", "--ranks", 4, "--servers", 2, "--bytes", 4000, "--rank", 5)
        self.assertEqual(lines[0], "all_reduce by server_set, rank 5 of 6, 1000 elements, 750 of scratch")
        self.assertEqual(lines[-2], "sent: 28800 bytes in all, 4800 by a rank; 5 rounds")
        self.assertRegex(self.lines("all_reduce", "--ranks", 4, "--servers", 2, "--bytes", "1M", "--simulate", LINKS)[0], "4 ranks and 2 servers")
        self.refused("only an all_reduce that is not quantized", "broadcast", "--ranks", 4, "--servers", 2)


class Proofs(PlanTool):
    def test_everything(self):
        lines = self.lines("all", "--verify", "--ranks", "1..9")
        self.assertRegex(lines[-1], r"^Proved \d+ cases of \d+ algorithms at 1\.\.9 ranks in [\d.]+ s\.$")
        self.assertRegex(lines[0], r"^all_reduce +ring +\d+ cases +[\d.]+ s  in and out of place$")
        rooted = [line for line in lines if line.startswith("broadcast")]
        self.assertTrue(rooted and all(line.endswith("every root") for line in rooted), rooted)

    def test_one_method_with_its_parameters(self):
        lines = self.lines("all_reduce", "--algo", "ring*4", "--verify", "--ranks", "2..5")
        self.assertEqual(len(lines), 2)
        self.assertIn("ring*4", lines[0])

    def test_where_there_is_nothing_to_prove(self):
        self.refused("cannot be done by binomial", "all_reduce", "--algo", "binomial", "--verify", "--ranks", 4)


class Predictions(PlanTool):
    def test_fastest_first_with_bytes_at_each_level(self):
        lines = self.lines("all_reduce", "--ranks", 16, "--bytes", "1M", "--simulate", LINKS)
        self.assertTrue(lines[0].startswith("all_reduce of 1 MiB, 16 ranks"), lines[0])
        self.assertEqual(lines[1].split()[-2:], ["node", "network"])
        times = [float(line.split()[1]) for line in lines[2:]]
        self.assertEqual(times, sorted(times))
        ring = next(line.split() for line in lines if line.startswith("ring "))
        self.assertEqual(ring[-4:], ["26.25", "MiB", "3.75", "MiB"])
        self.assertAlmostEqual(float(ring[3]), 2 * 15 / 16 * 2**20 / float(ring[1]) * 1e-3, delta=1e-3)

    def test_what_is_too_large_is_told(self):
        lines = self.lines("all_gather", "--algo", "ring", "--ranks", 16384, "--bytes", "64M", "--simulate", LINKS)
        self.assertGreater(float(lines[2].split()[1]), 0)
        self.refused("bytes that divide evenly", "all_reduce", "--algo", "ring", "--ranks", 16383, "--bytes", "4K",
                     "--simulate", LINKS)

    def test_memory_is_shared_within_a_node(self):
        methods = lambda ranks: [line.split()[0] for line in self.lines(
            "all_reduce", "--ranks", ranks, "--bytes", "64K", "--simulate", LINKS)[2:]]
        self.assertIn("pull", methods(8))
        self.assertNotIn("pull", methods(16))
        self.assertNotIn("packet", methods(8))
        self.refused("pull needs all ranks on one host; a node of these links holds 8 of the 16",
                     "all_reduce", "--algo", "pull", "--ranks", 16, "--simulate", LINKS)
        self.refused("A packet holds 16384 bytes; 65536", "all_reduce", "--algo", "packet", "--ranks", 8,
                     "--bytes", "64K", "--simulate", LINKS)

    def test_vectors_are_cut_to_a_multiple_of_the_ranks(self):
        lines = self.lines("all_reduce", "--algo", "ring", "--ranks", 10000, "--bytes", "64M", "--simulate", LINKS)
        self.assertGreater(float(lines[2].split()[1]), 0)
        bytes_of = lambda *words: self.lines("broadcast", "--algo", "chain", "--ranks", 8, *words, "--simulate", LINKS)[0]
        self.assertIn("of 992 B,", bytes_of("--bytes", 1000))
        self.assertIn("of 20 B,", bytes_of("--bytes", 20))


class Explanations(PlanTool):
    def test_the_choice_comes_first_and_says_why(self):
        lines = self.lines("all_reduce", "--ranks", 64, "--ranks-per-core", 0.1, "--bytes", "1M", "--explain")
        self.assertIn("by the cost model", lines[0])
        self.assertIn("alpha", lines[1])
        times = [float(line.split()[1]) for line in lines[2:]]
        self.assertGreater(len(times), 5)
        self.assertEqual(times, sorted(times))
        self.assertIn(lines[2].split()[0] + ",", lines[0])

    def test_nodes_and_rules(self):
        lines = self.lines("all_reduce", "--ranks", 64, "--ranks-per-node", 8, "--bytes", "1M", "--explain")
        self.assertTrue(any(line.startswith("route between nodes: ucx") for line in lines), lines)
        lines = self.lines("all_reduce", "--ranks", 4, "--algo", "ring", "--dtype", "bf16", "--explain")
        self.assertIn("ring, by the caller; f32 on the wire", lines[0])


class Refusals(PlanTool):
    def test_sentences(self):
        for part, words in [
            ("'all_reduced' is no collective", ["all_reduced", "--ranks", 4]),
            ("step, pipeline, attention, layout", ["lay-out", "--ranks", 4]),
            ("'rings' is no algorithm", ["all_reduce", "--algo", "rings", "--ranks", 4]),
            ("cannot be done by ring", ["broadcast", "--algo", "ring", "--ranks", 4]),
            ("has no plan to choose", ["send", "--ranks", 4]),
            ("the library's choice", ["all_reduce", "--algo", "auto", "--ranks", 4]),
            ("only --verify takes", ["all_reduce", "--ranks", "2..4"]),
            ("Only --verify takes", ["all", "--ranks", 4]),
            ("its end is below", ["all", "--verify", "--ranks", "4..2"]),
            ("'many' is no number", ["all_reduce", "--ranks", "many"]),
            ("'0' is no number", ["all_reduce", "--ranks", 0]),
            ("--ranks 100000", ["all_reduce", "--ranks", 100000]),
            ("--verify excludes --simulate", ["all_reduce", "--ranks", 4, "--verify", "--simulate", LINKS]),
            ("root or peer 4", ["broadcast", "--ranks", 4, "--root", 4]),
            ("has no root", ["all_reduce", "--ranks", 4, "--root", 1]),
            ("--rank 4 is outside", ["all_reduce", "--ranks", 4, "--rank", 4]),
            ("choose a divisor", ["all_reduce", "--ranks", 4, "--ranks-per-node", 3]),
            ("'1T' is no size", ["all_reduce", "--ranks", 4, "--bytes", "1T"]),
            ("'999999999999G' is more than 2^50 bytes", ["all_reduce", "--ranks", 4, "--bytes", "999999999999G"]),
            ("less than one element", ["all_gather", "--ranks", 4, "--bytes", 8]),
            ("f33", ["all_reduce", "--ranks", 4, "--dtype", "f33"]),
            ("'/none' cannot be read", ["all_reduce", "--ranks", 4, "--simulate", "/none"]),
            ("stretto-plan --help lists the flags", ["all_reduce", "--ranks", 4, "--fast"]),
            ("--byte is unknown; did you mean --bytes?", ["all_reduce", "--ranks", 4, "--byte", 8]),
            ("stretto-plan step --help lists the flags", ["step", "--fast"]),
            ("stretto-plan --help lists the flags", ["all_reduce"]),
        ]:
            with self.subTest(words):
                self.refused(part, *words)

    def test_misspelt_settings(self):
        ProgramTest.refused(self, ["STRETTO_ALGOS is set but "], PLAN, "all_reduce", "--ranks", 4, STRETTO_ALGOS="ring")

    def test_help(self):
        text = "\n".join(self.lines("--help"))
        for word in ("--simulate", "stretto-plan step ", "stretto-plan pipeline ", "stretto-plan attention ", "stretto-plan layout "):
            self.assertIn(word, text)


if __name__ == "__main__":
    unittest.main()
