"""Verdicts on the results of `./dev gpu run`, and the results as text on a terminal and as a section of docs/performance.md."""
import collections
import statistics

from perf.pages.text import DocsSection, markdown_table, terminal_table, verdict_text

SECTION = DocsSection("./dev gpu run")

AT_COPY = 0.85  # share of the copy's bandwidth
HELD_TO_COPY = ("reduce", "quantize", "layer_norm_forward", "layer_norm_backward", "adamw", "cross_entropy")
FLOP_UTILISATION = 0.5
OVERLAP = 0.8
WHAT = {"tests": "kernels, tensors, streams and graphs", "collectives": "collectives of 1 to 8 ranks on the GPU",
        "processes": "collectives of ranks that are processes on the GPU",
        "parity": "the trainer compared with numbers of the host and of PyTorch", "sanitizer": "kernels under compute-sanitizer",
        "kernels": f"kernels at {AT_COPY:.0%} of a copy's bandwidth", "gpt2": "GPT-2 124M compared with PyTorch",
        "overlap": "overlap of 2 ranks on the GPU"}
LOST = {"failed": "failed", "crashed": "crashed", "hung": "hung", "out_of_time": "not run in time"}

Verdict = collections.namedtuple("Verdict", "step holds text")  # holds: as in text.Verdict


def figures(results, name, key):
    """The results of a step that have this key, or None. A step that failed is shown as well, although none of its verdicts hold."""
    step = results["steps"].get(name, {})
    return step if step.get(key) else None


# ---- figures

def matrix_rate(results, name):
    """The best rate of matrix products that Stretto or PyTorch reached on the machine of that step, in FLOP/s, or None."""
    rates = [step.get(rate, 0) for step, rate in ((results["steps"].get("kernels", {}), "matrix_flops_a_second"),
                                                  (results["steps"].get("gpt2", {}), "torch_matrix_flops_a_second"))
             if step.get("machine") == results["steps"][name].get("machine")]
    return max(rates, default=0) or None


def utilisation(results):
    """The share of that rate that a training step uses, by side."""
    gpt2 = figures(results, "gpt2", "step_ms")
    rate = matrix_rate(results, "gpt2") if gpt2 else None
    return {side: gpt2["flops_per_step"] / (ms * 1e-3) / rate for side, ms in gpt2["step_ms"].items()} if rate else {}


def counts_text(counts):
    numbers = {"skipped": counts["skipped"], **{words: len(counts[name]) for name, words in LOST.items()}}
    return ", ".join([f"{counts['passed']} of {counts['tests']} tests passed",
                      *(f"{number} {words}" for words, number in numbers.items() if number)])


def all_passed(counts):
    lost = any(counts[name] for name in LOST)  # including crashes outside of any test
    return not lost and counts["passed"] > 0 and counts["passed"] + counts["skipped"] == counts["tests"]


# ---- verdicts: pairs (holds, text)

def test_verdicts(results, name):
    counts = results["steps"][name]
    yield all_passed(counts), f"{WHAT[name]}: {counts_text(counts)}"


def sanitizer_verdicts(results, name):
    for check in ("memcheck", "racecheck"):
        counts = results["steps"][name][check]
        clean = counts["findings"] == 0 and counts["summaries"] > 0 and all_passed(counts)
        yield clean, f"compute-sanitizer {check}: {counts['findings']} findings; {counts_text(counts)}"


def kernel_verdicts(results, name):
    rows = results["steps"][name]["rows"]
    for row in rows:
        if "error" in row:
            yield False, f"{row['kernel']}, {row['what']}: {row['error']}"
    for kernel in HELD_TO_COPY:
        ratios = [(row.get("ratio_to_copy", 0), row["what"]) for row in rows if row["kernel"] == kernel]
        if not ratios:
            yield None, kernel
            continue
        worst, what = min(ratios)
        yield worst >= AT_COPY, f"{kernel}: at least {worst:.0%} of a copy's bandwidth ({what}); asked {AT_COPY:.0%}"


def training_verdicts(results, name):
    gpt2 = results["steps"][name]
    left_out = "".join(f"; {mode} could not train: {error}" for mode, error in gpt2.get("errors", {}).items())
    yield gpt2["times_as_fast"] >= 1, (f"GPT-2 124M: {gpt2['times_as_fast']:.2f} times as fast as PyTorch "
                                       f"({gpt2['best_peer'].removeprefix('torch_')}); asked 1{left_out}")
    part, rate = utilisation(results)["stretto"], matrix_rate(results, name)
    yield part >= FLOP_UTILISATION, f"GPT-2 124M: {part:.0%} of the matrix rate, {rate * 1e-12:.0f} TFLOP/s; asked {FLOP_UTILISATION:.0%}"


def overlap_verdicts(results, name):
    of_step = collections.defaultdict(list)
    for row in results["steps"][name]["rows"]:
        of_step[row["step"]].append(row)
    if not of_step:
        yield None, WHAT[name]
    for step, rows in of_step.items():
        failed = [row for row in rows if "error" in row]
        for row in failed:
            yield False, f"overlap, {step.replace('_', ' ')}, {row['rows']} rows: {row['error']}"
        if not failed:
            middle = statistics.median(row["efficiency"] for row in rows)
            counts = ", ".join(str(row["rows"]) for row in rows)
            yield middle >= OVERLAP, f"overlap efficiency, {step.replace('_', ' ')}: median {middle:.2f} of {counts} rows; asked {OVERLAP}"


JUDGES = {"tests": test_verdicts, "collectives": test_verdicts, "processes": test_verdicts, "parity": test_verdicts,
          "sanitizer": sanitizer_verdicts, "kernels": kernel_verdicts, "gpt2": training_verdicts, "overlap": overlap_verdicts}


def verdicts_of(name, results):
    step = results["steps"].get(name)
    if step is None:
        found = [(None, WHAT[name])]
    elif "error" in step:
        found = [(False, f"{WHAT[name]}: {step['error']}")]
    else:
        found = JUDGES[name](results, name)
    return [Verdict(name, holds, " ".join(text.split()).rstrip(".")) for holds, text in found]


def verdicts(results):
    return [verdict for name in WHAT for verdict in verdicts_of(name, results)]


# ---- tables

def kernel_table(kernels, rate):
    rows = []
    for row in kernels["rows"]:
        if "error" in row:
            rows.append([row["kernel"], row["what"], "", "", row["error"]])
            continue
        if "bytes" in row:
            ratio = f"{row['ratio_to_copy']:.2f} of a copy"
            speed = f"{row['bytes'] / row['us'] * 1e-3:.0f} GB/s"
        else:
            flops = row["flops"] / row["us"] * 1e6
            ratio = f"{flops / rate:.2f} of the matrix rate" if rate else ""
            speed = f"{flops * 1e-12:.0f} TFLOP/s"
        rows.append([row["kernel"], row["what"], f"{row['us']:.1f}", speed, ratio])
    return ["kernel", "on", "us", "rate", "ratio"], rows


def training_table(results, gpt2):
    parts = utilisation(results)
    rows = []
    tokens = gpt2["model"]["batch"] * gpt2["model"]["seq_length"]
    for side, ms in gpt2["step_ms"].items():
        name = "Stretto" if side == "stretto" else f"PyTorch {gpt2['torch']}, {side.removeprefix('torch_')}"
        rows.append([name, f"{ms:.1f}", f"{tokens / ms * 1e3:,.0f}", f"{parts[side]:.2f}" if side in parts else ""])
    return ["side", "ms a step", "tokens/s", "FLOP utilisation"], rows


def overlap_table(overlap):
    names = {"t_full_ms": "full", "t_compute_ms": "computation", "t_comm_ms": "communication", "t_serial_ms": "serial",
             "exposed_ms": "exposed"}
    rows = []
    for row in overlap["rows"]:
        times = [""] * len(names) if "error" in row else [f"{row[name]:.2f}" for name in names]
        rows.append([row["step"].replace("_", " "), str(row["rows"]), *times, row.get("error") or f"{row['efficiency']:.2f}"])
    return ["step", "rows", *(f"{name}, ms" for name in names.values()), "efficiency"], rows


def tables(results):
    """(title, header, rows) of all that was measured."""
    if kernels := figures(results, "kernels", "rows"):
        yield (f"Kernels; a copy moves {kernels['copy_bytes_a_second'] * 1e-9:,.0f} GB/s",
               *kernel_table(kernels, matrix_rate(results, "kernels")))
    if gpt2 := figures(results, "gpt2", "step_ms"):
        model = gpt2["model"]
        yield (f"GPT-2, {model['layers']} layers, {model['hidden']} wide, {model['seq_length']} tokens, batch {model['batch']}, bf16",
               *training_table(results, gpt2))
    if overlap := figures(results, "overlap", "rows"):
        yield (f"Overlap, {overlap['ranks']} ranks on the GPU, {overlap['layers']} layers of {overlap['hidden']} x {overlap['hidden']}",
               *overlap_table(overlap))


# ---- text

def lines_of_step(name, results):
    """The lines to print after a step."""
    step = results["steps"][name]
    for verdict in verdicts_of(name, results):
        yield verdict_text(verdict)
    for check, counts in (("", step), ("memcheck ", step.get("memcheck", {})), ("racecheck ", step.get("racecheck", {}))):
        for key in ("failed", "crashed", "hung", "failed_only_in_company", "examples"):
            yield from (f"{check}{key.replace('_', ' ')}: {what}" for what in counts.get(key, []))
    yield from step.get("notes", [])
    yield f"{step['seconds']:.0f} s"


def notes(results):
    return [f"{name}: {note}" for name, step in results["steps"].items() for note in step.get("notes", [])]


def machine_line(results):
    machine = results["machine"]
    versions = {**machine["stretto"], **machine["packages"]}
    return ", ".join([results["gpu"], machine["cpu"], f"{machine['cores']} cores", *(f"{name} {what}" for name, what in versions.items())])


def ran_line(results):
    runs = collections.defaultdict(list)
    for name, step in results["steps"].items():
        runs[f"at {step['commit']} ({step['date'][:10]}; {step['machine']})"].append(name)
    return "; ".join(f"{', '.join(names)} {where}" for where, names in runs.items())


def report(results):
    lines = [machine_line(results)]
    for title, header, rows in tables(results):
        lines += ["", title, *terminal_table(header, rows)]
    return "\n".join([*lines, "", *map(verdict_text, verdicts(results)), *(f"note: {note}" for note in notes(results))])


def section(results):
    lines = [f"### {results['gpu']}", "", f"Measured by `./dev gpu run` on {machine_line(results)}: {ran_line(results)}.", ""]
    lines += [f"- {verdict_text(verdict)}" for verdict in verdicts(results)]
    lines += [f"- note of {note}" for note in notes(results)]
    for title, header, rows in tables(results):
        lines += ["", f"#### {title}", "", *markdown_table(header, rows)]
    return "\n".join(lines)
