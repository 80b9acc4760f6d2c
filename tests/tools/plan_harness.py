"""Shared by the tests of stretto-plan: its output, its pictures and its errors, seen from outside."""
import os
import pathlib
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree

PLAN = os.environ["PLAN_PROGRAM"]
LINKS = os.environ["LINKS_FILE"]


def run(*words):
    return subprocess.run([PLAN, *map(str, words)], capture_output=True, text=True, timeout=240)


class PlanTool(unittest.TestCase):
    def lines(self, *words):
        result = run(*words)
        self.assertEqual((result.returncode, result.stderr), (0, ""), words)
        return result.stdout.splitlines()

    def refused(self, part, *words):
        result = run(*words)
        self.assertEqual((result.returncode, result.stdout), (1, ""), words)
        self.assertRegex(result.stderr, r"\Aerror: [^\n]*\.\n\Z", words)
        self.assertIn(part, result.stderr)


class Drawn(PlanTool):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="plan-tool-")
        self.addCleanup(directory.cleanup)
        self.file = pathlib.Path(directory.name, "picture.svg")

    def texts(self):
        root = xml.etree.ElementTree.parse(self.file).getroot()
        return [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
