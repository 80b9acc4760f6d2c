"""Runs a comparison of ./dev perf on figures of an earlier run."""
import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest.mock


def run_on(main, section, figures):
    """The status, what was printed, and the page that was written, which had something stale in the section."""
    with tempfile.TemporaryDirectory() as directory:
        page, earlier = pathlib.Path(directory) / "page.md", pathlib.Path(directory) / "figures.json"
        page.write_text(f"before\n{section.begin}\nstale\n{section.end}\nafter\n")
        earlier.write_text(json.dumps(figures))
        printed = io.StringIO()
        words = ["perf", "--from", str(earlier), "--write-docs", str(page)]
        with unittest.mock.patch.object(sys, "argv", words), contextlib.redirect_stdout(printed):
            status = main()
        return status, printed.getvalue(), page.read_text()
