"""Compares where training in fewer bits ends: the demo's model on 2 ranks, with values and gradients of ZeRO-3 quantized (ZeRO++),
and in 16 bits.

Each way trains the same steps on the same text, and its validation loss after the last step is compared with that of fp32. Runs are
deterministic, so that each is made once. Prints the losses and verdicts; exits 1 if a verdict falls short.
"""
import json
import pathlib
import sys
import tempfile

from perf.comparisons.programs import BIN, ROOT, add_outputs, command_text, machine, parser_of, read_json, run, write_json
from perf.pages.text import DocsSection, Verdict, machine_text, markdown_table, terminal_table, verdict_text

SECTION = DocsSection("./dev perf convergence")
ZERO_PP = ["--zero", 3, "--qwz", "int8", "--qgz", "int4"]
BASE = "ZeRO-3 in fp32"
WAYS = {
    BASE: (["--zero", 3], None),
    "ZeRO++: values in int8, gradients in int4": (ZERO_PP, 0.02),
    "the same with error feedback": ([*ZERO_PP, "--qgz-error-feedback"], 0.01),
    "fp16, loss scaled": (["--dtype", "fp16"], 0.01),
    "fp16, gradients in fp16": (["--dtype", "fp16", "--grad-dtype", "fp16"], None),
    "bf16": (["--dtype", "bf16"], None),
    "bf16, gradients in bf16": (["--dtype", "bf16", "--grad-dtype", "bf16"], None),
}
DEMO = ["--nproc", 2, "--num-layers", 4, "--hidden-size", 192, "--num-attention-heads", 6, "--seq-length", 128, "--micro-batch-size", 8,
        "--global-batch-size", 16, "--lr", 3e-3, "--lr-warmup-iters", 50, "--weight-decay", 0.1]


def measured(options):
    losses = {}
    for way, (flags, _) in WAYS.items():
        with tempfile.TemporaryDirectory() as directory:
            run([options.program, *DEMO, "--train-data", options.train_data, "--train-iters", options.steps, "--log-dir", directory, *flags])
            lines = (pathlib.Path(directory) / "metrics.jsonl").read_text().splitlines()
        losses[way] = json.loads(lines[-1])["val_loss"]
        print(f"{way}: {losses[way]:.4f}", file=sys.stderr)
    return {"machine": machine(), "command": options.command, "steps": options.steps, "losses": losses}


def rows(figures):
    base = figures["losses"][BASE]
    return ["way", "validation loss, nats a byte", "above fp32"], [[way, f"{loss:.4f}", f"{loss - base:+.4f}"]
                                                                 for way, loss in figures["losses"].items()]


def verdicts(figures):
    for way, (_, most) in WAYS.items():
        above = figures["losses"][way] - figures["losses"][BASE]
        if most:
            yield Verdict(above <= most, f"{way} ends {above:+.4f} nats from fp32, wanted at most {most} above.")


def section(figures):
    intro = (f"Measured by `{figures['command']}` on {machine_text(figures['machine'])}: the demo's model after {figures['steps']} steps "
             "on the King James text, 2 ranks.")
    return "\n\n".join([intro, "\n".join(markdown_table(*rows(figures))), "\n".join(f"- {verdict_text(each)}" for each in verdicts(figures))])


def main():
    parser = parser_of("convergence", __doc__)
    parser.add_argument("--program", default=str(BIN / "stretto-train"))
    parser.add_argument("--train-data", default=str(ROOT / "build/data/king_james.txt"))
    steps = parser.add_argument("--steps", type=int, default=600, help="steps of each run (default 600)")
    add_outputs(parser, "convergence", "docs/training.md")
    options = parser.parse_args()
    options.command = command_text(parser, options, [steps])
    if options.write_docs:
        SECTION.around(options.write_docs)
    if options.earlier:
        figures = read_json(options.earlier)
    else:
        figures = measured(options)
        write_json(options.json, figures)
    print("\n".join(terminal_table(*rows(figures))))
    print("\n".join(verdict_text(verdict) for verdict in verdicts(figures)))
    if options.write_docs:
        SECTION.replace(options.write_docs, section(figures))
    return 0 if all(verdict.holds for verdict in verdicts(figures)) else 1


if __name__ == "__main__":
    sys.exit(main())
