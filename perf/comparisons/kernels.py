"""Compares kernels with what the processor allows: those of training with plain loops that read and write as many bytes in the same
mix, attention with matrix products, and quantization with a copy. One thread; both sides in turn.

Exits 1 if a kernel of training reaches less than 0.9 of the loops' speed where its data lie in memory, or attention less than its
share of the products' rate.
"""
from perf.comparisons.harness import Comparison, Table, flag
from perf.comparisons.programs import BIN, figures_of, read_json, run
from perf.pages.text import Verdict, beside

WANTED = 0.9
SIZES = ["memory", "trainer"]
# Of the products' rate, by shape (batch x tokens x heads x width of a head).
WANTED_OF_ATTENTION = {"8x128x4x32": {"forward": 0.29, "backward": 0.37}, "4x256x4x64": {"forward": 0.45, "backward": 0.45}}


def measured(options):
    figures = {}
    for part, program in (("training", "kernel_speed"), ("attention", "attention_speed"), (None, "quantize_speed")):
        if options.only in (None, part):
            found = figures_of([BIN / program], lambda command: print(run(command).stdout, end="", flush=True))
            figures |= {part: found["rows"]} if part else found
    yield figures


def share(row, passes):
    return row[f"{passes}_flops"] / row["product_flops"]


def tables(figures):
    by_size = {size: {(row["kernel"], row["dtype"]): row for row in figures.get("training", []) if row["size"] == size} for size in SIZES}
    rows = []
    for kernel in by_size["memory"]:
        both = [by_size[size][kernel] for size in SIZES]
        rows.append([*kernel, *(text for row in both for text in (f"{row['bytes_a_second'] * 1e-9:.1f}", f"{row['loop_bytes_a_second'] * 1e-9:.1f}",
                                                                  f"{row['ratio']:.2f}"))])
    if rows:
        yield Table("", ["kernel", "type", "GB/s", "loop", "ratio", "GB/s, trainer's size", "loop", "ratio"], rows, in_page=False)
    if figures.get("attention"):
        yield Table("", ["attention", "type", "product GFLOP/s", "forward", "backward"],
                    [[row["shape"], row["dtype"], f"{row['product_flops'] * 1e-9:.0f}", f"{share(row, 'forward'):.2f}",
                      f"{share(row, 'backward'):.2f}"] for row in figures["attention"]], in_page=False)


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


def check(parser, options):
    if options.write_docs and options.only:
        parser.error("--write-docs takes all parts: leave --only out.")
    if options.write_docs and options.earlier and not {"training", "attention"} <= read_json(options.earlier).keys():
        parser.error(f"--write-docs takes all parts, and {options.earlier} has one: measure without --only.")


Comparison("kernels", __doc__, measured, tables, verdicts, page="docs/performance.md", check=check,
           flags=(flag("--only", text="one part alone", choices=["training", "attention"]),))
