"""libstretto-mpi.so under programs that know nothing of it: they give what they give without, what became of their calls adds
up, and nothing remains of them. The variables say for which: MPI (openmpi, mpich), DOOR, LAUNCHER, RANDOM_CALLS, RANDOM_STARTS, SITUATIONS.

mpi_door_test.py --calls N [--seed S] [--ranks 2,3,4,8] [--without-starts]: the comparison alone, of so many calls, and of so many programs that start
collectives in random orders, on all these ranks together.
"""
import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from support.programs import clean_environment  # noqa: E402

DOOR = os.environ["DOOR"]
LAUNCHER = os.environ["LAUNCHER"]
RANDOM_CALLS = os.environ["RANDOM_CALLS"]
RANDOM_STARTS = os.environ["RANDOM_STARTS"]
SITUATIONS = os.environ["SITUATIONS"]
IS_OPEN_MPI = {"openmpi": True, "mpich": False}[os.environ["MPI"]]

# Each MPI spins where it waits, so that with more ranks than cores every call takes many time slices.
CALLS = {2: 300, 3: 150, 4: 150, 8: 80} if IS_OPEN_MPI else {2: 200, 3: 80, 4: 60}


def mpirun(ranks, program, *arguments, door=True, variables=None, timeout=60):
    words = [LAUNCHER, "-n", str(ranks)]
    given = {**({"LD_PRELOAD": DOOR} if door else {}), **(variables or {})}
    if IS_OPEN_MPI:
        words += ["--oversubscribe", "--bind-to", "none", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]
        for name, value in given.items():
            words += ["-x", f"{name}={value}"]
    else:
        for name, value in given.items():
            words += ["-genv", name, value]
    words += [program, *map(str, arguments)]
    return subprocess.run(words, env=clean_environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=timeout)


def report_of(errors):
    """{call: (served, forwarded, {reason: times})}"""
    rows = {}
    for line in errors.splitlines():
        if row := re.fullmatch(r"stretto-mpi: (MPI_\w+): served (\d+), forwarded (\d+)(?: \((.*)\))?", line):
            reasons = {}
            for part in (row.group(4) or "").split("; "):
                if part:
                    times, reason = part.split(" ", 1)
                    reasons[reason] = int(times)
            rows[row.group(1)] = (int(row.group(2)), int(row.group(3)), reasons)
    return rows


class Door(unittest.TestCase):
    maxDiff = None

    def run_well(self, *arguments, **options):
        done = mpirun(*arguments, **options)
        self.assertEqual(done.returncode, 0, f"{done.args}: {done.stdout}{done.stderr}")
        return done

    def run_badly(self, sentence, *arguments, **options):
        """The program fails and says the sentence."""
        for _ in range(5):  # MPICH's launcher may drop what a rank writes just before it aborts
            done = mpirun(*arguments, **options)
            said = done.stdout + done.stderr
            self.assertNotEqual(done.returncode, 0, f"{done.args}: {said}")
            if sentence in said:
                return
        self.fail(f"{done.args} does not say '{sentence}': {said}")

    def compare(self, ranks, calls, seed, timeout=60):
        without = self.run_well(ranks, RANDOM_CALLS, calls, seed, door=False, timeout=timeout)
        through = self.run_well(ranks, RANDOM_CALLS, calls, seed, variables={"STRETTO_MPI_REPORT": "1"}, timeout=timeout)
        self.assertEqual(through.stdout, without.stdout, f"{ranks} ranks, seed {seed}")
        made = {name: int(times) for name, times in (line.split() for line in through.stdout.splitlines()[1:])}
        report = report_of(through.stderr)
        self.assertEqual({name: served + forwarded for name, (served, forwarded, _) in report.items()}, made)
        for name, (served, forwarded, reasons) in report.items():
            self.assertEqual(forwarded, sum(reasons.values()), name)
        sums = [sum(row[i] for row in report.values()) for i in range(2)]
        self.assertIn(f"{ranks} ranks: served {sums[0]}, forwarded {sums[1]} to ", through.stderr)
        return report

    def test_random_calls_give_the_same_as_without_and_all_are_accounted_for(self):
        served, reasons = set(), set()
        for ranks, calls in CALLS.items():
            with self.subTest(ranks=ranks):
                report = self.compare(ranks, calls, 100 + ranks)
                served |= {name for name, row in report.items() if row[0] > 0}
                reasons |= {reason for row in report.values() for reason in row[2]}
        self.assertLessEqual({"MPI_Allreduce", "MPI_Iallreduce", "MPI_Alltoallv", "MPI_Gather_init"}, served)
        self.assertLessEqual({"type that Stretto does not reduce", "operation that Stretto does not have", "inter-communicator",
                              "communicator of one rank", "communicator whose making the door does not follow",
                              "call that is always forwarded", "non-blocking call that the MPI does faster"}, reasons)
        self.assertFalse({"MPI_Scan", "MPI_Iexscan", "MPI_Ibarrier", "MPI_Igather", "MPI_Ialltoallv"} & served)

    def compare_starts(self, ranks, programs, seed, timeout=60):
        without = self.run_well(ranks, RANDOM_STARTS, programs, seed, door=False, timeout=timeout)
        through = self.run_well(ranks, RANDOM_STARTS, programs, seed, variables={"STRETTO_MPI_REPORT": "1"}, timeout=timeout)
        self.assertRegex(through.stdout, "^digest [0-9a-f]{16}\n$")
        self.assertEqual(through.stdout, without.stdout, f"{ranks} ranks, seed {seed}")
        report = report_of(through.stderr)
        for i, what in enumerate(["served", "forwarded"]):  # calls that do not block
            self.assertGreater(sum(row[i] for name, row in report.items() if name.startswith("MPI_Ireduce")), 0, what)

    def test_calls_started_in_random_orders_give_the_same_as_without(self):
        for ranks, programs in {2: 40, 3: 15}.items():
            self.compare_starts(ranks, programs, 200 + ranks)

    def test_the_comparison_would_notice(self):
        one, other = (self.run_well(2, RANDOM_CALLS, 40, 1, *wrong).stdout.splitlines() for wrong in ([], ["wrong"]))
        self.assertNotEqual(one[0], other[0])
        self.assertEqual(one[1:], other[1:])

    def test_nothing_is_said_unasked(self):
        self.assertEqual(self.run_well(2, RANDOM_CALLS, 10, 1).stderr, "")

    def test_programs_go_on_where_mpi_promises_it(self):
        names = ["message_behind_collective", "first_call_returns", "crossed", "small_and_large", "outstanding", "freed_early", "in_place_at_every_root",
                 "other_types_elsewhere", "persistent", "persistent_with_freed_types", "persistent_in_any_order",
                 "persistent_independent", "persistent_freed_and_made_again", "overlapping",
                 "sizes_by_pair", "freed_and_made_again", "unused_communicators_take_little", "errors_that_return"]
        for ranks in (2, 3):
            self.run_well(ranks, SITUATIONS, *names, variables={"STRETTO_TIMEOUT": "20"})
        self.run_well(4, SITUATIONS, "freed_in_many_orders", *(name for name in names if name.startswith("persistent")))

    def test_threads_make_communicators(self):
        for transport in ("auto", "ucx"):
            variables = {"STRETTO_TIMEOUT": "20", "STRETTO_TRANSPORT": transport}
            self.run_well(3 if IS_OPEN_MPI else 2, SITUATIONS, "threads_make_communicators", variables=variables)

    def test_a_child_that_calls_ends_at_once(self):
        done = self.run_well(2, SITUATIONS, "a_child_calls", variables={"STRETTO_TIMEOUT": "20"})
        self.assertEqual(done.stderr.count("fork()"), 2, done.stderr)

    def test_another_order_of_persistent_calls_would_be_noticed(self):  # the control
        self.run_badly("a sum is wrong", 2, SITUATIONS, "persistent_in_wrong_order")

    def test_nothing_is_left_of_ranks_that_end_early(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("one_exits", "one_aborts"):
                done = mpirun(3, SITUATIONS, name, variables={"STRETTO_SHM_DIR": folder})
                self.assertNotEqual(done.returncode, 0, name)
            self.assertEqual(os.listdir(folder), [])
        # The folder, which is there no more, was used.
        self.run_badly(folder, 3, SITUATIONS, "crossed", variables={"STRETTO_SHM_DIR": folder})
        for _ in range(100):  # MPICH's launcher returns a moment before its last rank has ended
            found = subprocess.run(["pgrep", "-f", SITUATIONS], capture_output=True, text=True)
            if found.returncode == 1:
                break
            time.sleep(0.1)
        self.assertEqual((found.returncode, found.stdout), (1, ""))

    def test_the_door_of_the_other_mpi_says_so(self):
        other = pathlib.Path(DOOR).parents[1] / ("mpich" if IS_OPEN_MPI else "openmpi") / pathlib.Path(DOOR).name
        if not other.exists():
            self.skipTest(f"{other} is not built")
        self.run_badly(f"preload {DOOR}", 2, SITUATIONS, "crossed", door=False, variables={"LD_PRELOAD": str(other)})

    def test_settings_are_checked(self):
        self.run_badly("STRETTO_MPI_REPROT", 2, SITUATIONS, "crossed", variables={"STRETTO_MPI_REPROT": "1"})


def main():
    if not any(word.startswith("--calls") for word in sys.argv):
        return unittest.main()
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", default="2,3,4,8")
    parser.add_argument("--without-starts", action="store_true")
    options = parser.parse_args()
    all_ranks = list(map(int, options.ranks.split(",")))
    for ranks in all_ranks:
        if not options.without_starts:
            Door().compare_starts(ranks, options.calls // len(all_ranks), options.seed, timeout=1800)
            print(f"{ranks} ranks: {options.calls // len(all_ranks)} programs of starts in random orders, all results as without")
        report = Door().compare(ranks, options.calls, options.seed, timeout=1800)
        print(f"{ranks} ranks: {sum(row[0] for row in report.values())} calls served, "
              f"{sum(row[1] for row in report.values())} forwarded, all results as without")


if __name__ == "__main__":
    main()
