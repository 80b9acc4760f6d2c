"""Parts of a page between two marks, which scripts replace by what was measured."""
import sys


def around(path, begin, end):
    """What the file holds up to the first mark, and from the second on."""
    try:
        text = path.read_text()
    except OSError as error:
        sys.exit(f"error: {path} cannot be read ({error.strerror}).")
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        sys.exit(f"error: {path} has not the two marks between which the figures go: '{begin}' and '{end}'.")
    return text[:text.index(begin)], text[text.index(end):]


def replace(path, begin, end, section):
    before, after = around(path, begin, end)
    path.write_text(f"{before}{begin}\n\n{section}\n{after}")
