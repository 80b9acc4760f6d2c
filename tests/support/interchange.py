"""Packages of PyPI that tests compare with: ./dev interchange and ./dev test --all install them into .cache/interchange."""
import os
import pathlib
import sys
import unittest

PACKAGES = pathlib.Path(os.environ["INTERCHANGE_PACKAGES"])
sys.path.insert(0, str(PACKAGES))


def need(*modules):
    """The modules, or a skipped test."""
    if not PACKAGES.is_dir():
        obstacle = pathlib.Path(f"{PACKAGES}.obstacle")
        raise unittest.SkipTest(obstacle.read_text().strip() if obstacle.exists() else f"{PACKAGES} does not exist; ./dev interchange installs it")
    found = []
    for module in modules:
        try:
            found.append(__import__(module))
        except ImportError as error:
            raise unittest.SkipTest(f"{module} cannot be imported: {error}")
    return found
