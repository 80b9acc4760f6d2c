"""Compares training speed of layouts of ranks: of the ways in which data-parallel ranks divide memory, and of pipeline schedules.

One host: 2 ranks of 1 thread train at ZeRO 0, 1, 2 and 3, and under FSDP2 (fully_shard) over Gloo. Between hosts, which takes root,
network namespaces of this machine stand for 4 hosts of 2 ranks each, and a token bucket limits every end of a cable to the rate:
ZeRO-3; ZeRO-3 with ZeRO++ (values gathered in int8 from the ranks of all hosts in forward, in fp32 from those of the same host in
backward, gradients summed in int4); and FSDP2. There the batch is small: 8 ranks share few cores, and the network must dominate.
Pipelines: 2 stages of 1 thread on one host, with 8 microbatches; each schedule, 1F1B also over modelled slow links, 2 data-parallel
ranks with as many sequences, and torch.distributed.pipelining's Schedule1F1B over Gloo.

Every round runs each side once, and ratios are of the same round. Between hosts the table also has the bytes that leave a host in a
step, by its interface's counter, and the time that they take at the rate of the link, below which no step can be; of pipelines, the
bubble and the time of the stages without the optimizer, beside those that the schedule's simulation predicts. Prints medians and
verdicts; exits 1 if a verdict falls short.

With --predict, 12 layouts of 2 and 4 ranks of this host instead, and 12 of 4 hosts x 2 ranks: the step that stretto-plan layout predicts
from a calibration of the machine, beside the one that is measured (predicted_layouts.py).
"""
import sys

from perf.comparisons import namespaces, pipeline_layouts, predicted_layouts, zero_layouts
from perf.comparisons.programs import BIN, add_outputs, command_text, machine, parser_of, read_json, write_json
from perf.pages.text import DocsSection, machine_text, markdown_table, terminal_table, verdict_text

SECTIONS = {zero_layouts: DocsSection("./dev perf layouts"), pipeline_layouts: DocsSection("./dev perf layouts --only pipelines")}
PREDICTED = {predicted_layouts: DocsSection("./dev perf layouts --predict")}
PARTS = {"pipelines": pipeline_layouts, "predicted": predicted_layouts}


def part_of(table):
    """The module that measures and explains the table."""
    return PARTS.get(table["part"], zero_layouts)


def measured(options):
    if options.predict:
        return {"machine": machine(), "command": options.command, "tables": predicted_layouts.measured(options)}
    parts = {None: [zero_layouts, pipeline_layouts], "pipelines": [pipeline_layouts]}.get(options.only, [zero_layouts])
    return {"machine": machine(), "command": options.command, "tables": [table for part in parts for table in part.measured(options)]}


def verdicts(table):
    return list(part_of(table).verdicts(table))


def tables_of(part, figures):
    return [table for table in figures["tables"] if part_of(table) is part]


def section(part, figures):
    parts = [f"Measured by `{figures['command']}` on {machine_text(figures['machine'])}."]
    for table in tables_of(part, figures):
        parts += ["\n".join([f"{part_of(table).heading(table)}:", "", *markdown_table(*part_of(table).rows(table))]),
                  "\n".join(f"- {verdict_text(verdict)}" for verdict in verdicts(table))]
    return "\n\n".join(parts)


def main():
    parser = parser_of("layouts", __doc__)
    parser.add_argument("--program", default=str(BIN / "train_speed"))
    cuts = [
        parser.add_argument("--only", choices=["one-host", "between-hosts", "pipelines"],
                            help="measure only one of the three; only the one between hosts takes root"),
        parser.add_argument("--predict", action="store_true", help="predicted steps of layouts of one host and of four, beside measured ones"),
        parser.add_argument("--rates", default="1gbit", help="rates of links between hosts as tc writes them, as in 1gbit,300mbit (default 1gbit)"),
        parser.add_argument("--seq-length", type=int, default=64, help="tokens of a rank between hosts (default 64)"),
        parser.add_argument("--rounds", type=int, default=5, help="rounds, over which medians are taken (default 5)"),
        parser.add_argument("--steps", type=int, help=f"timed steps of each run (default {zero_layouts.STEPS}; "
                            f"of pipelines, whose steps are longer, {pipeline_layouts.STEPS})"),
        parser.add_argument("--warmup", type=int, help=f"steps before them (default {zero_layouts.WARMUP}; of pipelines "
                            f"{pipeline_layouts.WARMUP})"),
    ]
    add_outputs(parser, "layouts", "docs/performance.md")
    options = parser.parse_args()
    if options.only in ("one-host", "between-hosts") and options.write_docs and not options.earlier:
        parser.error(f"--write-docs does not take --only {options.only}; leave it out")
    options.command = command_text(parser, options, cuts)
    options.rates = options.rates.split(",")
    for rate in options.rates:
        namespaces.bytes_per_second(rate)  # refuses a wrong rate before anything is measured
    if options.only == "pipelines" and options.predict:
        parser.error("--predict measures other layouts than --only pipelines; leave one of them out")
    if options.only in (None, "between-hosts") and not options.earlier and namespaces.obstacle():
        sys.exit(f"error: {namespaces.obstacle()} To measure one host alone, give --only one-host or --only pipelines.")
    sections = PREDICTED if options.predict else SECTIONS
    if options.write_docs:
        for each in sections.values():
            each.around(options.write_docs)

    if options.earlier:
        figures = read_json(options.earlier)
    else:
        figures = measured(options)
        write_json(options.json, figures)
    every = [verdict for table in figures["tables"] for verdict in verdicts(table)]
    for table in figures["tables"]:
        print("\n".join([part_of(table).heading(table), *terminal_table(*part_of(table).rows(table)), ""]))
    print("\n".join(verdict_text(verdict) for verdict in every))
    for part, place in sections.items():
        if options.write_docs and tables_of(part, figures):
            place.replace(options.write_docs, section(part, figures))
    return 0 if all(verdict.holds for verdict in every) else 1


if __name__ == "__main__":
    namespaces.exit_with(main)
