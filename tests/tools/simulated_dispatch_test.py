"""The simulation of programs on many hosts has the closed formulas, where there are any."""
import unittest

from perf.comparisons.simulated_dispatch import WAYS, parity, seconds_of_a_function

MESSAGE, BETWEEN = 4e-6, 1e-6


class SimulatedDispatch(unittest.TestCase):
    def near(self, found, expected):
        self.assertAlmostEqual(found / expected, 1, places=6)

    def test_op_by_op_adds_all_messages_to_each_function(self):
        for hosts in (1, 16, 512):
            for function in (1e-5, 1e-2):
                found = seconds_of_a_function("op_by_op", hosts, function, MESSAGE, BETWEEN, 1000)
                self.assertAlmostEqual(found / (function + BETWEEN + 2 * hosts * MESSAGE), 1, places=2)  # none between the last and the first

    def test_sequential_hides_messages_behind_long_functions(self):
        self.near(seconds_of_a_function("sequential", 16, 1e-2, MESSAGE, BETWEEN, 64), 1e-2 + BETWEEN)
        short = seconds_of_a_function("sequential", 512, 1e-5, MESSAGE, BETWEEN, 1000)
        self.assertAlmostEqual(short / (BETWEEN + 2 * 512 * MESSAGE), 1, places=1)

    def test_parallel_sends_one_message_for_a_chain(self):
        self.near(seconds_of_a_function("parallel", 16, 1e-3, MESSAGE, BETWEEN, 64), 1e-3 + BETWEEN)
        self.near(seconds_of_a_function("parallel", 512, 1e-6, MESSAGE, 0, 64), 2 * 512 * MESSAGE / 64)  # messages alone
        self.assertEqual(len({seconds_of_a_function(way, 16, 1e-3, MESSAGE, BETWEEN, 1) for way in WAYS}), 1)  # a chain of one

    def test_parity_is_where_the_loop_has_a_twentieth_more(self):
        self.assertAlmostEqual(parity("op_by_op", 16, MESSAGE, BETWEEN, 2000) / (19 * (BETWEEN + 32 * MESSAGE)), 1, places=2)
        for way in WAYS:
            shortest = parity(way, 512, MESSAGE, BETWEEN, 64)
            self.assertLess(0.95 * seconds_of_a_function(way, 512, 1.01 * shortest, MESSAGE, BETWEEN, 64), 1.01 * shortest)
            self.assertGreater(0.95 * seconds_of_a_function(way, 512, 0.9 * shortest, MESSAGE, BETWEEN, 64), 0.9 * shortest)  # the control
            self.assertLess(parity(way, 16, MESSAGE, BETWEEN, 64), shortest)


if __name__ == "__main__":
    unittest.main()
