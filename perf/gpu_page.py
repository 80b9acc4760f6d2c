"""The results of ./dev gpu as text on a terminal and as a section of docs/performance.md."""
import collections

import marked_text

BEGIN = "<!-- gpu figures: ./dev gpu run --write-docs replaces what follows -->"
END = "<!-- end of gpu figures -->"

AT_COPY = 0.85  # of the copy's bandwidth
HELD_TO_COPY = ("reduce", "quantize", "layer_norm_forward", "layer_norm_backward", "adamw", "cross_entropy")
FLOP_UTILISATION = 0.5
OVERLAP = 0.8
TESTS = {"tests": "kernels, tensors, streams and graphs", "collectives": "collectives of 1 to 8 ranks on the GPU",
         "processes": "collectives of ranks that are processes on the GPU",
         "parity": "the trainer beside the host and PyTorch's numbers"}

Verdict = collections.namedtuple("Verdict", "holds text")


def step_of(results, name):
    """What a step found; None where it has not run, or could not."""
    step = results["steps"].get(name)
    return step if step and "error" not in step else None


# ---- figures

def matrix_rate(results):
    """The best rate of matrix products that either side has reached in this run, FLOP/s; None where nobody has measured."""
    rates = []
    if kernels := step_of(results, "kernels"):
        rates.append(kernels["matrix_flops_a_second"])
    if gpt2 := step_of(results, "gpt2"):
        rates.append(gpt2["torch_matrix_flops_a_second"])
    return max(rates) if rates and max(rates) > 0 else None


def utilisation(results):
    """The part of that rate which a training step's operations make use of, by side."""
    gpt2, rate = step_of(results, "gpt2"), matrix_rate(results)
    if not gpt2 or not rate:
        return {}
    return {side: gpt2["flops_per_step"] / (ms * 1e-3) / rate for side, ms in gpt2["step_ms"].items()}


def counts_text(counts):
    text = f"{counts['passed']} of {counts['tests']} tests passed"
    for name, words in (("skipped", "skipped"), ("failed", "failed"), ("crashed", "crashed"), ("out_of_time", "not run in time")):
        number = counts[name] if isinstance(counts[name], int) else len(counts[name])
        if number:
            text += f", {number} {words}"
    return text


def all_passed(counts):
    return counts["tests"] > 0 and counts["passed"] + counts["skipped"] == counts["tests"] and counts["passed"] > 0


# ---- what is asked

def test_verdicts(results):
    for name, what in TESTS.items():
        if step := step_of(results, name):
            yield Verdict(all_passed(step), f"{what}: {counts_text(step)}")
        else:
            yield Verdict(None, f"{what}: not run")
    sanitizer = step_of(results, "sanitizer")
    for check in ("memcheck", "racecheck"):
        if not sanitizer:
            yield Verdict(None, f"compute-sanitizer {check}: not run")
            continue
        counts = sanitizer[check]
        clean = counts["findings"] == 0 and counts["summaries"] > 0 and all_passed(counts)
        yield Verdict(clean, f"compute-sanitizer {check}: {counts['findings']} findings; {counts_text(counts)}")


def kernel_verdicts(results):
    kernels = step_of(results, "kernels")
    if not kernels:
        yield Verdict(None, f"kernels at {AT_COPY:.0%} of a copy's bandwidth: not measured")
        return
    for name in HELD_TO_COPY:
        rows = [row for row in kernels["rows"] if row["kernel"] == name]
        if not rows:
            yield Verdict(None, f"{name}: not measured")
            continue
        worst = min(rows, key=lambda row: row["ratio_to_copy"])
        yield Verdict(worst["ratio_to_copy"] >= AT_COPY,
                      f"{name}: at least {worst['ratio_to_copy']:.0%} of a copy's bandwidth ({worst['what']}); asked {AT_COPY:.0%}")


def training_verdicts(results):
    gpt2 = step_of(results, "gpt2")
    if not gpt2:
        yield Verdict(None, "GPT-2 124M beside PyTorch: not measured")
        return
    yield Verdict(gpt2["times_as_fast"] >= 1, f"GPT-2 124M: {gpt2['times_as_fast']:.2f} times as fast as PyTorch "
                  f"({gpt2['best_peer'].removeprefix('torch_')}); asked 1")
    part = utilisation(results).get("stretto")
    yield Verdict(part is not None and part >= FLOP_UTILISATION, f"GPT-2 124M: {part:.0%} of the measured matrix rate; asked "
                  f"{FLOP_UTILISATION:.0%}" if part is not None else "GPT-2 124M: no matrix rate was measured")


def overlap_verdicts(results):
    overlap = step_of(results, "overlap")
    if not overlap:
        yield Verdict(None, "overlap of 2 ranks on the GPU: not measured")
        return
    for name in dict.fromkeys(row["step"] for row in overlap["rows"]):
        best = max((row for row in overlap["rows"] if row["step"] == name), key=lambda row: row["efficiency"])
        yield Verdict(best["efficiency"] >= OVERLAP, f"overlap efficiency, {name.replace('_', ' ')}: {best['efficiency']:.2f} at "
                      f"{best['rows']} rows; asked {OVERLAP}")


def verdicts(results):
    return [*test_verdicts(results), *kernel_verdicts(results), *training_verdicts(results), *overlap_verdicts(results)]


# ---- tables

def kernel_table(kernels, rate):
    rows = []
    for row in kernels["rows"]:
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
    rows = [[row["step"].replace("_", " "), str(row["rows"]), *(f"{row[name]:.2f}" for name in names), f"{row['efficiency']:.2f}"]
            for row in overlap["rows"]]
    return ["step", "rows", *(f"{name}, ms" for name in names.values()), "efficiency"], rows


def tables(results):
    """Title, header and rows of what was measured."""
    if kernels := step_of(results, "kernels"):
        yield (f"Kernels; a copy moves {kernels['copy_bytes_a_second'] * 1e-9:,.0f} GB/s", *kernel_table(kernels, matrix_rate(results)))
    if gpt2 := step_of(results, "gpt2"):
        model = gpt2["model"]
        yield (f"GPT-2, {model['layers']} layers, {model['hidden']} wide, {model['seq_length']} tokens, batch {model['batch']}, bf16",
               *training_table(results, gpt2))
    if overlap := step_of(results, "overlap"):
        yield (f"Overlap, {overlap['ranks']} ranks on the GPU, {overlap['layers']} layers of {overlap['hidden']} x {overlap['hidden']}",
               *overlap_table(overlap))


# ---- text

def lines_of_step(name, step):
    """What to say when a step has just run."""
    if "error" in step:
        yield step["error"]
        return
    results = {"steps": {name: step}}
    for verdict in verdicts(results):
        if verdict.holds is not None:
            yield verdict.text
    for key in ("failed", "crashed", "failed_only_in_company"):
        for test in step.get(key, []):
            yield f"{key.replace('_', ' ')}: {test}"
    yield f"{step['seconds']:.0f} s"


def machine_line(results):
    machine = results["machine"]
    words = [results["gpu"], f"driver {machine['gpu'].get('driver_version', 'unknown')}", machine["cpu"], f"{machine['cores']} cores",
             f"PyTorch, CUDA, cuDNN, NCCL {machine['torch_cuda_cudnn_nccl'] or 'unknown'}"]
    return ", ".join(words)


def ran_line(results):
    return ", ".join(f"{name} at {step['commit']} ({step['date']})" for name, step in results["steps"].items())


def report(results):
    lines = [machine_line(results)]
    for title, header, rows in tables(results):
        widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
        lines += ["", title]
        lines += ["  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip() for row in [header, *rows]]
    marks = {True: "holds", False: "FALLS SHORT", None: "not judged"}
    lines += ["", *(f"{marks[verdict.holds]:11}  {verdict.text}" for verdict in verdicts(results))]
    lines += [f"failed       {name}: {step['error']}" for name, step in results["steps"].items() if "error" in step]
    return "\n".join(lines)


def section(results):
    lines = [f"Measured by `./dev gpu run` on {machine_line(results)}: {ran_line(results)}.", ""]
    marks = {True: "holds", False: "falls short", None: "not judged"}
    lines += [f"- {verdict.text}: {marks[verdict.holds]}." for verdict in verdicts(results)]
    lines += [f"- {name} failed: {step['error']}" for name, step in results["steps"].items() if "error" in step]
    for title, header, rows in tables(results):
        lines += ["", f"### {title}", ""]
        lines += ["| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *rows)]
    return "\n".join(lines).rstrip() + "\n"


def marked(path):
    """Ends the program where the page has no place for the figures."""
    marked_text.around(path, BEGIN, END)


def write_docs(results, path):
    """Replaces what lies between the marks."""
    marked_text.replace(path, BEGIN, END, section(results))
