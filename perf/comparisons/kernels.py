"""Compares kernels with what the processor allows: those of training with plain loops that read and write as many bytes in the same
mix, attention with matrix products, and quantization with a copy. One thread; both sides in turn.

Exits 1 if a kernel of training reaches less than 0.9 of the loops' speed where its data lie in memory, or attention less than its
share of the products' rate.
"""
import sys

from perf.comparisons.programs import BIN, add_outputs, command_text, figures_of, machine, parser_of, read_json, run, write_json
from perf.pages.text import DocsSection, Verdict, beside, machine_text, markdown_table, verdict_text

SECTION = DocsSection("./dev perf kernels")
WANTED = 0.9
SIZES = ["memory", "trainer"]
# Of the products' rate, by shape (batch x tokens x heads x width of a head).
WANTED_OF_ATTENTION = {"8x128x4x32": {"forward": 0.29, "backward": 0.37}, "4x256x4x64": {"forward": 0.45, "backward": 0.45}}


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


def share(row, passes):
    return row[f"{passes}_flops"] / row["product_flops"]


def attention_table(rows):
    header = ["attention", "type", "product GFLOP/s", "forward", "backward"]
    return header, [[row["shape"], row["dtype"], f"{row['product_flops'] * 1e-9:.0f}", f"{share(row, 'forward'):.2f}",
                     f"{share(row, 'backward'):.2f}"] for row in rows]


def verdicts(figures):
    for row in figures.get("training", []):
        if row["size"] == "memory":
            yield Verdict(row["ratio"] >= WANTED,
                          f"{row['kernel']}, {row['dtype']}: {beside(row['ratio'], WANTED)} of the loop's speed, wanted {WANTED}")
    for row in figures.get("attention", []):
        for passes, wanted in WANTED_OF_ATTENTION.get(row["shape"], {}).items():
            yield Verdict(share(row, passes) >= wanted,
                          f"attention, {passes}, {row['shape']}, {row['dtype']}: {beside(share(row, passes), wanted)} of the products' rate, "
                          f"wanted {wanted}")


def section(figures):
    return "\n\n".join([f"Measured by `{figures['command']}` on {machine_text(figures['machine'])}.",
                        "\n".join(markdown_table(*table(figures["training"]))),
                        "\n".join(markdown_table(*attention_table(figures["attention"]))),
                        "\n".join(f"- {verdict_text(verdict)}" for verdict in verdicts(figures))])


def measured(options):
    def printed(command):
        print(run(command).stdout, end="", flush=True)

    figures = {"machine": machine(), "command": options.command}
    if options.only in (None, "training"):
        figures["training"] = figures_of([BIN / "kernel_speed"], printed)["rows"]
    if options.only in (None, "attention"):
        figures["attention"] = figures_of([BIN / "attention_speed"], printed)["rows"]
    return figures if options.only else {**figures, **figures_of([BIN / "quantize_speed"], printed)}


def main():
    parser = parser_of("kernels", __doc__)
    cuts = [parser.add_argument("--only", choices=["training", "attention"], help="one part alone")]
    add_outputs(parser, "kernels", "docs/performance.md")
    options = parser.parse_args()
    options.command = command_text(parser, options, cuts)
    if options.write_docs:
        if options.only:
            parser.error("--write-docs takes all parts: leave --only out.")
        SECTION.around(options.write_docs)
    if options.earlier:
        figures = read_json(options.earlier)
        if options.write_docs and not {"training", "attention"} <= figures.keys():
            parser.error(f"--write-docs takes all parts, and {options.earlier} has one: measure without --only.")
    else:
        figures = measured(options)
        write_json(options.json, figures)
    for verdict in verdicts(figures):
        print(verdict_text(verdict))
    if options.write_docs:
        SECTION.replace(options.write_docs, section(figures))
    return 0 if all(verdict.holds for verdict in verdicts(figures)) else 1


if __name__ == "__main__":
    sys.exit(main())
