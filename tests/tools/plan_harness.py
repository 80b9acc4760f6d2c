"""Shared by the tests of stretto-plan: its output, its pictures and its errors, seen from outside."""
import os
import xml.etree.ElementTree

from support.programs import ProgramTest

PLAN = os.environ["PLAN_PROGRAM"]
LINKS = os.environ["LINKS_FILE"]


class PlanTool(ProgramTest):
    def lines(self, *words):
        return self.succeeds(PLAN, *words).splitlines()

    def refused(self, part, *words):
        super().refused([part], PLAN, *words)


class Drawn(PlanTool):
    def setUp(self):
        super().setUp()
        self.file = self.directory / "picture.svg"

    def texts(self):
        root = xml.etree.ElementTree.parse(self.file).getroot()
        return [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
