"""Compares training steps whose optimizer state lies in files (stretto-train --offload) with steps whose state lies in memory.

A bare loop in the same round reads and writes as many bytes of a file in the same directory, in pieces of 1 MiB past the page cache, as
the ranks do in a step: the reads of one rank at a time with its writes behind them. A step with state in files then takes at most as long
as one in memory and that loop after each other. Exits 1 if it takes over 1.1 times as long as that.
"""
import mmap
import os
import statistics
import tempfile
import time

from perf.comparisons.harness import Comparison, Table, flag, median, rounds_of
from perf.comparisons.programs import last_json, run
from perf.pages.text import Verdict, rounds_text

# Layers, width, heads, vocabulary, tokens of a sequence, sequences of a rank.
CASES = {"10.8 million, as in GPT-2's shape": (6, 384, 6, 65, 256, 6), "a tenth of SmolLM2: 576 wide": (4, 576, 9, 8192, 256, 4)}
RANKS, PIECE, MOST = 2, 1 << 20, 1.1
STATE_BYTES = 8  # of a parameter in fp32


def loop_seconds(directory, size):
    """To read and write so many bytes of a file, once each."""
    size = max(PIECE, size // PIECE * PIECE)
    with tempfile.TemporaryFile(dir=directory) as file:
        os.posix_fallocate(file.fileno(), 0, size)
        handle = os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDWR | getattr(os, "O_DIRECT", 0))
        try:
            with mmap.mmap(-1, PIECE) as piece:
                begin = time.monotonic()
                for offset in range(0, size, PIECE):
                    os.preadv(handle, [piece], offset)
                    os.pwritev(handle, [piece], offset)
                return time.monotonic() - begin
        finally:
            os.close(handle)


def measured(options):
    rounds = []
    for i in rounds_of(options.rounds):
        rounds.append({})
        for name, (layers, width, heads, vocabulary, tokens, batch) in CASES.items():
            words = [options.program, "--nproc", RANKS, "--layers", layers, "--hidden", width, "--heads", heads, "--vocab", vocabulary, "--seq-length", tokens,
                     "--batch", batch, "--steps", options.steps, "--warmup", 3]
            sides = {"memory": [], "file": ["--offload", f"optimizer={options.directory}"],
                     "half": ["--offload", f"optimizer={options.directory},ratio=0.5"]}
            order = list(sides)[::1 if i % 2 == 0 else -1]
            found = {side: last_json(run([*words, *sides[side]]).stdout) for side in order}
            found["loop_s"] = loop_seconds(options.directory, found["memory"]["parameters"] * STATE_BYTES)
            rounds[-1][name] = found
    yield {"steps": options.steps, "rounds": rounds}


def figures_of_case(figures, name):
    rounds = [each[name] for each in figures["rounds"]]
    seconds = {side: median(rounds, side, "step_ms") / 1e3 for side in ("memory", "file", "half")}
    return rounds[0]["memory"]["parameters"], seconds, statistics.median(each["loop_s"] for each in rounds)


def tables(figures):
    rows = []
    for name in CASES:
        parameters, seconds, loop = figures_of_case(figures, name)
        rows.append([name, f"{parameters / 1e6:.1f} million", *(f"{seconds[side]:.3f}" for side in seconds), f"{loop:.3f}",
                     f"{seconds['file'] / (seconds['memory'] + loop):.2f}"])
    yield Table("", ["model", "parameters", "in memory, s a step", "in files, s", "half of it in files, s", "bare loop, s", "in files / (memory + loop)"], rows)


def verdicts(figures):
    for name in CASES:
        _, seconds, loop = figures_of_case(figures, name)
        found = seconds["file"] / (seconds["memory"] + loop)
        yield Verdict(found <= MOST, f"{name}: a step takes {found:.2f} times one in memory and a bare loop over its bytes, wanted at most {MOST}.")


Comparison("offload", __doc__, measured, tables, verdicts, page="docs/larger-than-memory.md", program="train_speed",
           about=lambda figures: f"{RANKS} ranks, fp32, AdamW, ZeRO 1; {rounds_text(len(figures['rounds']))} of {figures['steps']} steps",
           flags=(flag("--steps", 8, "timed steps of each run"), flag("--rounds", 3),
                  flag("--directory", tempfile.gettempdir(), "where the files are", told=False)))
