"""Compares training speed of the ways in which data-parallel ranks divide memory: Stretto's ZeRO stages and PyTorch FSDP2, in turn.

On one host, 2 ranks of 1 thread train at ZeRO 0, 1, 2 and 3, and under FSDP2 (fully_shard) over Gloo. Between hosts, which takes root,
network namespaces of this machine stand for 4 hosts of 2 ranks each, and a token bucket limits every end of a cable to the rate:
ZeRO-3; ZeRO-3 with ZeRO++ (values gathered in int8 from the ranks of all hosts in forward, in fp32 from those of the same host in
backward, gradients summed in int4); and FSDP2. There the batch is small: 8 ranks share few cores, and the network must dominate.

Every round runs each side once, and ratios are of the same round. Between hosts the table also has the bytes that leave a host in a
step, by its interface's counter, and the time that they take at the rate of the link, below which no step can be. Prints medians and
verdicts; exits 1 if a verdict falls short.
"""
import statistics
import sys

from perf.comparisons import namespaces
from perf.comparisons.programs import (BIN, ROOT, add_outputs, command_text, last_json, machine, model_text, parser_of, read_json, run,
                                       write_json)
from perf.pages.text import DocsSection, Verdict, machine_text, markdown_table, rounds_text, terminal_table, verdict_text

SECTION = DocsSection("./dev perf layouts")
ZERO = [f"Stretto ZeRO-{stage}" for stage in range(4)]
ZERO_PP = "Stretto ZeRO-3 with ZeRO++"
FSDP = "PyTorch FSDP2 over Gloo"
HOSTS, RANKS_PER_HOST = 4, 2
FLAGS = {**{ZERO[stage]: ["--zero", stage] for stage in range(4)},
         ZERO_PP: ["--zero", 3, "--hpz-size", RANKS_PER_HOST, "--qwz", "int8", "--qgz", "int4"]}
SIDES = {"one_host": [*ZERO, FSDP], "between_hosts": [ZERO[3], ZERO_PP, FSDP]}
WANTED = {  # at least so many times the tokens per second of the other
    "one_host": [(ZERO[1], ZERO[0], 0.98), (ZERO[2], ZERO[0], 0.98), (ZERO[3], ZERO[0], 0.95), (ZERO[3], FSDP, 1.3)],
    "between_hosts": [(ZERO_PP, ZERO[3], 2.16), (ZERO[3], FSDP, 1.0)],
}


def command_of(side, options, flags):
    program = [ROOT / ".cache/torch2/bin/python", ROOT / "perf/comparisons/peers/fsdp_gpt.py"] if side == FSDP else [options.program]
    return [*program, *FLAGS.get(side, []), *flags, "--warmup", options.warmup, "--steps", options.steps]


def measure(part, options, about, flags, start):
    """The figures of one table: about, with the results of every side in every round. start runs a command and returns its output."""
    rounds = []
    for i in range(options.rounds):
        order = SIDES[part] if i % 2 == 0 else SIDES[part][::-1]
        rounds.append({side: last_json(start(command_of(side, options, flags))) for side in order})
        print(f"round {i + 1} of {options.rounds}: " + ", ".join(f"{side} {rounds[-1][side]['tokens_per_s']:.0f}" for side in SIDES[part])
              + " tokens/s", file=sys.stderr)
    return {"part": part, **about, "steps": options.steps, "torch": rounds[0][FSDP]["torch"], "rounds": rounds}


def measured(options):
    tables = []
    if options.only != "between-hosts":
        about = {"model": model_text(6), "ranks": 2}
        tables.append(measure("one_host", options, about, ["--batch", 6], lambda command: run([*command, "--nproc", 2]).stdout))
    for rate in options.rates if options.only != "one-host" else []:
        about = {"model": model_text(1, options.seq_length), "ranks": HOSTS * RANKS_PER_HOST, "rate": rate}
        flags = ["--batch", 1, "--seq-length", options.seq_length, "--interface", namespaces.INTERFACE, "--nproc", 0]
        with namespaces.Network([RANKS_PER_HOST] * HOSTS, rate) as network:
            tables.append(measure("between_hosts", options, about, flags, network.output_of))
    return {"machine": machine(), "command": options.command, "tables": tables}


# ---- what the figures say

def median(table, side, key):
    """None where the side has no such figure."""
    values = [each[side][key] for each in table["rounds"] if key in each[side]]
    return statistics.median(values) if values else None


def ratio(table, side, other):
    return statistics.median(each[side]["tokens_per_s"] / each[other]["tokens_per_s"] for each in table["rounds"])


def verdicts(table):
    where = f"over {table['rate']}" if "rate" in table else "on one host"
    for side, other, least in WANTED[table["part"]]:
        found = ratio(table, side, other)
        yield Verdict(found >= least, f"{side} reaches {found:.2f} times the tokens per second of {other} {where}, wanted {least}.")


def rows(table):
    """The header, and a row for each side."""
    between = "rate" in table
    base = ZERO[3] if between else ZERO[0]
    header = ["side", "tokens/s", "s a step", f"ratio to {base}", "in flight, s", "exposed, s"]
    result = []
    for side in SIDES[table["part"]]:
        flight, exposed = (median(table, side, key) for key in ("comm_ms", "exposed_ms"))
        result.append([side, f"{median(table, side, 'tokens_per_s'):.0f}", f"{median(table, side, 'step_ms') / 1e3:.3f}",
                       f"{ratio(table, side, base):.2f}", *("-" if ms is None else f"{ms / 1e3:.2f}" for ms in (flight, exposed))])
        if between:
            sent = median(table, side, "sent_per_step")
            result[-1] += [f"{sent / 1e6:.1f}", f"{sent / namespaces.bytes_per_second(table['rate']):.3f}"]
    return header + (["MB that a host sends a step", "s that they take at least"] if between else []), result


def heading(table):
    where = f"{HOSTS} hosts x {RANKS_PER_HOST} ranks, links of {table['rate']}" if "rate" in table else f"One host, {table['ranks']} ranks"
    return f"{where}; {table['model']}, fp32; {rounds_text(len(table['rounds']))} of {table['steps']} steps; PyTorch {table['torch']}"


def section(figures):
    parts = [f"Measured by `{figures['command']}` on {machine_text(figures['machine'])}."]
    for table in figures["tables"]:
        parts += ["\n".join([f"{heading(table)}:", "", *markdown_table(*rows(table))]),
                  "\n".join(f"- {verdict_text(verdict)}" for verdict in verdicts(table))]
    return "\n\n".join(parts)


def main():
    parser = parser_of("layouts", __doc__)
    parser.add_argument("--program", default=str(BIN / "train_speed"))
    parser.add_argument("--only", choices=["one-host", "between-hosts"], help="measure only one of the two; one host does not take root")
    cuts = [
        parser.add_argument("--rates", default="1gbit", help="rates of links between hosts as tc writes them, as in 1gbit,300mbit (default 1gbit)"),
        parser.add_argument("--seq-length", type=int, default=64, help="tokens of a rank between hosts (default 64)"),
        parser.add_argument("--rounds", type=int, default=5, help="rounds, over which medians are taken (default 5)"),
        parser.add_argument("--steps", type=int, default=5, help="timed steps of each run (default 5)"),
        parser.add_argument("--warmup", type=int, default=6, help="steps before them (default 6)"),
    ]
    add_outputs(parser, "layouts", "docs/performance.md")
    options = parser.parse_args()
    if options.only and options.write_docs and not options.earlier:
        parser.error("--write-docs takes both parts; leave --only out")
    options.command = command_text(parser, options, cuts)
    options.rates = options.rates.split(",")
    for rate in options.rates:
        namespaces.bytes_per_second(rate)  # refuses a wrong rate before anything is measured
    if options.only != "one-host" and not options.earlier and namespaces.obstacle():
        sys.exit(f"error: {namespaces.obstacle()} To measure one host alone, give --only one-host.")
    if options.write_docs:
        SECTION.around(options.write_docs)

    if options.earlier:
        figures = read_json(options.earlier)
    else:
        figures = measured(options)
        write_json(options.json, figures)
    every = [verdict for table in figures["tables"] for verdict in verdicts(table)]
    for table in figures["tables"]:
        print("\n".join([heading(table), *terminal_table(*rows(table)), ""]))
    print("\n".join(verdict_text(verdict) for verdict in every))
    if options.write_docs:
        SECTION.replace(options.write_docs, section(figures))
    return 0 if all(verdict.holds for verdict in every) else 1


if __name__ == "__main__":
    namespaces.exit_with(main)
