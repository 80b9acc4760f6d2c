"""Prints in a line which tests the last run of ctest skipped, and why: from the log of a build directory."""
import collections
import pathlib
import re
import sys

GTEST = re.compile(r"^\S+:\d+: Skipped\n(.*?)\n+(?:.*\n)*?\[  SKIPPED \] (\S+)", re.M)
UNITTEST = re.compile(r"^(\w+) \([\w.]+\)(?:\n.*)? \.\.\. skipped ['\"](.*)['\"]$", re.M)


def main(build):
    log = (pathlib.Path(build) / "Testing/Temporary/LastTest.log").read_text(errors="replace")
    reasons = collections.defaultdict(list)
    for reason, name in GTEST.findall(log):
        reasons[reason.strip() or "no reason"].append(name.rstrip(","))
    for name, reason in UNITTEST.findall(log):
        reasons[reason].append(name)
    total = sum(map(len, reasons.values()))
    parts = [f"{len(names)} because {reason.rstrip('.')!r} ({', '.join(sorted(set(names))[:2])}{', ...' if len(set(names)) > 2 else ''})"
             for reason, names in sorted(reasons.items(), key=lambda item: -len(item[1]))]
    print(f"Skipped: {total} tests{': ' if parts else ''}{'; '.join(parts)}.")


if __name__ == "__main__":
    main(sys.argv[1])
