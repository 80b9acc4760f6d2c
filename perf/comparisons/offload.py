"""Compares training steps whose optimizer state lies in files (stretto-train --offload) with steps whose state lies in memory.

A bare loop in the same round reads and writes as many bytes of a file in the same directory, in pieces of 1 MiB past the page cache, as
the ranks do in a step: the reads of one rank at a time with its writes behind them. A step with state in files then takes at most as long
as one in memory and that loop after each other. Exits 1 if it takes over 1.1 times as long as that.

Then updates of forced times: a gate lets so many bytes a second pass to and from the file, and each unit's update sleeps. Beside each
other, both take as long as the longer of the two, and the first read and the last write; with --no-overlap's waits, as both together.

Where DeepSpeed is installed (./dev deps deepspeed), its ZeRO stage 3 trains the same models in the same rounds, with all in memory and with
values and optimizer in files (ZeRO-Infinity), beside the library's stage 3. Exits 1 if the library's step with all in files takes longer.
"""
import mmap
import os
import pathlib
import statistics
import tempfile
import time

from perf.comparisons.harness import Comparison, Table, flag, median, rounds_of
from perf.comparisons.programs import ROOT, last_json, run
from perf.pages.text import Verdict, rounds_text

# Layers, width, heads, vocabulary, tokens of a sequence, sequences of a rank.
CASES = {"10.8 million, as in GPT-2's shape": (6, 384, 6, 65, 256, 6), "a tenth of SmolLM2: 576 wide": (4, 576, 9, 8192, 256, 4)}
RANKS, PIECE, MOST = 2, 1 << 20, 1.1
STATE_BYTES = 8  # of a parameter in fp32
# Seconds that each of 16 updates computes, where a block of 1 MiB takes 10.5 ms each way: less than files, as much, and more.
COMPUTED, UNITS = (0.01, 0.021, 0.04), 16
PEER = [ROOT / ".cache/torch2/bin/python", ROOT / "perf/comparisons/peers/deepspeed_gpt.py"]


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
            words = ["--nproc", RANKS, "--layers", layers, "--hidden", width, "--heads", heads, "--vocab", vocabulary, "--seq-length", tokens,
                     "--batch", batch, "--steps", options.steps, "--warmup", 3]
            sides = {"memory": [options.program], "file": [options.program, "--offload", f"optimizer={options.directory}"],
                     "half": [options.program, "--offload", f"optimizer={options.directory},ratio=0.5"], **stage_3(options)}
            order = list(sides)[::1 if i % 2 == 0 else -1]
            found = {side: last_json(run([*sides[side], *words], **variables(options)).stdout) for side in order}
            found["loop_s"] = loop_seconds(options.directory, found["memory"]["parameters"] * STATE_BYTES)
            rounds[-1][name] = found
    found = {"steps": options.steps, "rounds": rounds}
    yield found
    yield {**found, "forced": forced(options)}


def stage_3(options):
    """Sides beside DeepSpeed's, if that is installed."""
    if not pathlib.Path(options.deepspeed).is_dir():
        return {}
    in_files = [word for what in ("optimizer", "gradients", "values") for word in ("--offload", f"{what}={options.directory}")]
    return {"stage 3": [options.program, "--zero", 3], "stage 3 file": [options.program, "--zero", 3, *in_files],
            "DeepSpeed": PEER, "DeepSpeed file": [*PEER, "--directory", options.directory]}


def variables(options):
    """Of DeepSpeed: where it is, and where it puts the operators that it compiles."""
    return {"PYTHONPATH": str(options.deepspeed), "TORCH_EXTENSIONS_DIR": f"{options.deepspeed}/operators"}


def forced(options):
    """Updates of forced times: a row for each time that they compute."""
    words = [pathlib.Path(options.program).with_name("file_speed"), "--directory", options.directory, "--units", UNITS, "--rate", 1e8]
    return [last_json(run([*words, "--seconds", seconds]).stdout) for seconds in COMPUTED]


def bounds(row):
    """Of reads and writes beside updates, and of those that are waited for."""
    return max(row["compute_s"], row["files_s"]) + 2 * row["block_s"], row["compute_s"] + row["files_s"]


def figures_of_case(figures, name):
    rounds = [each[name] for each in figures["rounds"]]
    seconds = {side: median(rounds, side, "step_ms") / 1e3 for side in ("memory", "file", "half")}
    return rounds[0]["memory"]["parameters"], seconds, statistics.median(each["loop_s"] for each in rounds)


def has_deepspeed(figures):
    return all("DeepSpeed" in case for case in figures["rounds"][0].values())


def seconds_beside_deepspeed(figures, name):
    rounds = [each[name] for each in figures["rounds"]]
    return {side: median(rounds, side, "step_ms") / 1e3 for side in ("stage 3", "stage 3 file", "DeepSpeed", "DeepSpeed file")}


def notes(figures):
    if not has_deepspeed(figures):
        yield "DeepSpeed is not installed here, and no side of this: `./dev deps deepspeed` installs it."


def tables(figures):
    rows = []
    for name in CASES:
        parameters, seconds, loop = figures_of_case(figures, name)
        rows.append([name, f"{parameters / 1e6:.1f} million", *(f"{seconds[side]:.3f}" for side in seconds), f"{loop:.3f}",
                     f"{seconds['file'] / (seconds['memory'] + loop):.2f}"])
    yield Table("", ["model", "parameters", "in memory, s a step", "in files, s", "half of it in files, s", "bare loop, s", "in files / (memory + loop)"], rows)
    if has_deepspeed(figures):
        rows = []
        for name in CASES:
            seconds = seconds_beside_deepspeed(figures, name)
            rows.append([name, *(f"{seconds[side]:.3f}" for side in seconds), f"{seconds['stage 3 file'] / seconds['DeepSpeed file']:.2f}"])
        about = figures["rounds"][0][name]["DeepSpeed"]
        yield Table(f"ZeRO stage 3, beside DeepSpeed {about['deepspeed']} on PyTorch {about['torch']} and Gloo",
                    ["model", "in memory, s a step", "all in files, s", "DeepSpeed in memory, s", "DeepSpeed in files, s", "in files / DeepSpeed's"], rows)
    if "forced" in figures:
        rows = [[*(f"{row[key]:.3f}" for key in ("compute_s", "files_s", "beside_s")), f"{bounds(row)[0]:.3f}", f"{row['waited_s']:.3f}", f"{bounds(row)[1]:.3f}"]
                for row in figures["forced"]]
        yield Table(f"Updates of {UNITS} units that sleep, with 1 MiB of state each in a file of 100 MB/s",
                    ["they compute, s", "files take, s", "beside each other, s", "max(both) + first + last, s", "one after the other, s", "both, s"], rows)


def verdicts(figures):
    for name in CASES:
        _, seconds, loop = figures_of_case(figures, name)
        found = seconds["file"] / (seconds["memory"] + loop)
        yield Verdict(found <= MOST, f"{name}: a step takes {found:.2f} times one in memory and a bare loop over its bytes, wanted at most {MOST}.")
    for name in CASES if has_deepspeed(figures) else []:
        seconds = seconds_beside_deepspeed(figures, name)
        found = seconds["stage 3 file"] / seconds["DeepSpeed file"]
        yield Verdict(found <= 1, f"{name}: at ZeRO stage 3 a step with all in files takes {found:.2f} times DeepSpeed's, wanted at most 1.")
    for row in figures.get("forced", []):
        beside, waited = bounds(row)
        where = f"Updates of {row['compute_s']:.2f} s beside files of {row['files_s']:.2f} s"
        yield Verdict(row["beside_s"] <= MOST * beside,
                      f"{where} take {row['beside_s'] / beside:.2f} times the longer of both and the first and last block, wanted at most {MOST}.")
        yield Verdict(row["waited_s"] >= 0.9 * waited, f"{where} take {row['waited_s'] / waited:.2f} times both together without overlap, the control, wanted at least 0.9.")


Comparison("offload", __doc__, measured, tables, verdicts, notes=notes, page="docs/larger-than-memory.md", program="train_speed",
           about=lambda figures: f"{RANKS} ranks, fp32, AdamW, ZeRO 1; {rounds_text(len(figures['rounds']))} of {figures['steps']} steps",
           flags=(flag("--steps", 8, "timed steps of each run"), flag("--rounds", 3),
                  flag("--directory", tempfile.gettempdir(), "where the files are", told=False),
                  flag("--deepspeed", str(ROOT / ".cache/deepspeed"), "where DeepSpeed is installed", told=False)))
