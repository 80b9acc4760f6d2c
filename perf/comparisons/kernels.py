"""Compares kernels with what memory allows: those of training with plain loops that read and write as many bytes in the same mix, and
those of quantization with a copy. One thread; kernel and loop in turn.

Exits 1 if a kernel of training reaches less than 0.9 of the loops' speed where its data lie in memory.
"""
import sys

from perf.comparisons.programs import BIN, add_outputs, command_text, figures_of, machine, parser_of, read_json, run, write_json
from perf.pages.text import DocsSection, Verdict, beside, machine_text, markdown_table, verdict_text

SECTION = DocsSection("./dev perf kernels")
WANTED = 0.9
SIZES = ["memory", "trainer"]


def table(rows):
    """Header and rows, a row for each kernel and type."""
    header = ["kernel", "type", "GB/s", "loop", "ratio", "GB/s, trainer's size", "loop", "ratio"]
    by_size = {size: {(row["kernel"], row["dtype"]): row for row in rows if row["size"] == size} for size in SIZES}
    lines = []
    for kernel, dtype in by_size["memory"]:
        cells = [kernel, dtype]
        for size in SIZES:
            row = by_size[size][kernel, dtype]
            cells += [f"{row['bytes_a_second'] * 1e-9:.1f}", f"{row['loop_bytes_a_second'] * 1e-9:.1f}", f"{row['ratio']:.2f}"]
        lines.append(cells)
    return header, lines


def verdicts(rows):
    for row in rows:
        if row["size"] == "memory":
            yield Verdict(row["ratio"] >= WANTED,
                          f"{row['kernel']}, {row['dtype']}: {beside(row['ratio'], WANTED)} of the loop's speed, wanted {WANTED}")


def section(figures):
    rows = figures["training"]
    return "\n\n".join([f"Measured by `{figures['command']}` on {machine_text(figures['machine'])}.", "\n".join(markdown_table(*table(rows))),
                        "\n".join(f"- {verdict_text(verdict)}" for verdict in verdicts(rows))])


def measured(options):
    def printed(command):
        print(run(command).stdout, end="", flush=True)

    figures = {"machine": machine(), "command": options.command, "training": figures_of([BIN / "kernel_speed"], printed)["rows"]}
    return figures if options.only == "training" else {**figures, **figures_of([BIN / "quantize_speed"], printed)}


def main():
    parser = parser_of("kernels", __doc__)
    cuts = [parser.add_argument("--only", choices=["training"], help="without the kernels of quantization")]
    add_outputs(parser, "kernels", "docs/performance.md")
    options = parser.parse_args()
    options.command = command_text(parser, options, cuts)
    if options.write_docs:
        SECTION.around(options.write_docs)
    if options.earlier:
        figures = read_json(options.earlier)
    else:
        figures = measured(options)
        write_json(options.json, figures)
    for verdict in verdicts(figures["training"]):
        print(verdict_text(verdict))
    if options.write_docs:
        SECTION.replace(options.write_docs, section(figures))
    return 0 if all(verdict.holds for verdict in verdicts(figures["training"])) else 1


if __name__ == "__main__":
    sys.exit(main())
