#!/usr/bin/env python3
"""Checks that every link of a page to a file or a heading of this tree leads somewhere. Prints those that do not and exits 1."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def pages():
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def prose(path):
    """The lines of a page outside of blocks of code."""
    in_code = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code:
            yield number, line


def anchors(path):
    """As GitHub makes them: lower case, without punctuation, hyphens for spaces; of equal ones the later are numbered."""
    found = set()
    for _, line in prose(path):
        heading = re.match(r"#+ +(.*?) *#*$", line)
        if heading:
            words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading[1])
            anchor = plain = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
            count = 0
            while anchor in found:
                count += 1
                anchor = f"{plain}-{count}"
            found.add(anchor)
    return found


def broken_links():
    for page in pages():
        for number, line in prose(page):
            for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", line)):
                if re.match(r"[a-z]+:", link):
                    continue
                name, _, anchor = link.partition("#")
                target = page.parent / name if name else page
                if not target.exists() or (anchor and anchor not in anchors(target)):
                    yield f"{page.relative_to(ROOT)}:{number} links to {link}, which is not there."


if __name__ == "__main__":
    broken = list(broken_links())
    print("\n".join(broken))
    sys.exit(1 if broken else 0)
