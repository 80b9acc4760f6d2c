"""libstretto-nccl.so as a program of NCCL's gets it: what it exports, and that it finds NCCL behind itself. Without a GPU."""
import os
import re
import subprocess
import unittest

DOOR = os.environ["DOOR"]
PROGRAM = os.environ["PROGRAM"]
NCCL = os.environ["NCCL_LIBRARY"]
INCLUDE = os.environ["NCCL_INCLUDE_DIR"]
SOURCE = os.environ["SOURCE"]


def exported(library):
    """Names by their kinds, as nm gives them."""
    lines = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    return {line.split()[-1]: line.split()[-2] for line in lines.splitlines()}


def declared_with_communicator():
    """Functions of NCCL's headers that take a communicator, or make one."""
    names = set()
    for header in ("nccl.h", "nccl_device/core.h", "nccl_device/gin_barrier.h"):
        path = os.path.join(INCLUDE, header)
        if not os.path.exists(path):
            continue
        with open(path) as file:
            text = re.sub(r"/\*.*?\*/|//[^\n]*", "", file.read(), flags=re.S)
        for name, parameters in re.findall(r"\b(nccl[A-Z]\w*)\s*\(([^;{}()]*)\)\s*;", text):
            if "ncclComm_t" in parameters:
                names.add(name)
    return names


def run(preload, **variables):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("STRETTO_", "NCCL_"))}
    environment.update(variables)
    if preload:
        environment["LD_PRELOAD"] = DOOR
    environment["CUDA_VISIBLE_DEVICES"] = ""  # the same with a GPU there
    done = subprocess.run([PROGRAM], env=environment, capture_output=True, text=True, timeout=60)
    said = [re.match(r"(version|id|lone rank|several|group|no communicator) (-?\d.*)", line) for line in done.stdout.splitlines()]
    lines = dict(match.groups() for match in said if match)  # the others are NCCL's
    return done, lines


class Exports(unittest.TestCase):
    def test_are_those_that_are_listed_and_no_others(self):
        with open(os.path.join(SOURCE, "exports.map")) as file:
            listed = set(re.findall(r"^\s+(nccl\w+);", file.read(), re.M))
        with open(os.path.join(SOURCE, "nccl_names.hpp")) as file:
            named = {"nccl" + name for name in re.findall(r"\bF\((\w+)\)", file.read())}
        self.assertEqual(set(exported(DOOR)), listed)
        self.assertEqual(named, listed)

    def test_are_all_that_could_meet_a_communicator_of_the_doors(self):
        behind = exported(NCCL)
        there = {name for name in declared_with_communicator() if name in behind}
        self.assertIn("ncclAllReduce", there)
        self.assertEqual(there - set(exported(DOOR)), set())

    def test_have_their_strong_names_behind_the_door(self):
        behind = exported(NCCL)
        for name in exported(DOOR):
            self.assertEqual(behind.get("p" + name), "T", name)
            self.assertEqual(behind.get(name), "W", name)


class Preloaded(unittest.TestCase):
    def test_nccl_is_found_behind_the_door(self):
        plain, without = run(False)
        done, lines = run(True)
        self.assertEqual((plain.returncode, done.returncode), (0, 0), done.stderr)
        for same in ("version", "several", "group", "no communicator"):
            self.assertEqual(lines[same], without[same], same)
        self.assertEqual(lines["id"], "0 53740001")
        self.assertNotIn("53740001", without["id"])  # the control

    def test_without_a_gpu_the_sentence_says_so(self):
        done, lines = run(True, NCCL_DEBUG="WARN")
        self.assertTrue(lines["lone rank"].startswith("1 CUDA could not say which GPU the thread uses"), lines)
        self.assertIn("stretto-nccl: CUDA could not", done.stderr)

    def test_a_place_to_meet_by_nccl_is_left_to_it(self):
        _, lines = run(True, NCCL_COMM_ID="127.0.0.1:24242")
        self.assertNotIn("53740001", lines["id"])

    def test_the_report_accounts_for_the_calls(self):
        done, _ = run(True, STRETTO_NCCL_REPORT="1")
        report = [line.split(None, 3)[1:] for line in done.stderr.splitlines() if line.startswith("stretto-nccl:  ")]
        counted = {(name, rest.split("  ")[0]): int(count) for count, name, rest in report}
        self.assertEqual(counted[("ncclGetUniqueId", "served by Stretto")], 1, done.stderr)
        self.assertEqual(counted[("ncclCommInitAll", "handed to NCCL")], 1, done.stderr)
        self.assertEqual(counted[("ncclAllReduce", "handed to NCCL")], 1, done.stderr)
        self.assertNotIn("stretto-nccl", run(True)[0].stderr)


if __name__ == "__main__":
    unittest.main()
