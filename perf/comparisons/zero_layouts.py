"""The part of ./dev perf layouts on how data-parallel ranks divide memory: Stretto's ZeRO stages, ZeRO++ and PyTorch FSDP2, on one
host and between hosts that are network namespaces."""
from perf.comparisons import namespaces
from perf.comparisons.harness import SPEED, TRAVEL, Comparison, column, given_or, in_turn, ratio, ratio_column, table_of_sides
from perf.comparisons.programs import ROOT, last_json, model_text, run
from perf.pages.text import Verdict, rounds_text

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


def measure(part, options, about, words, start):
    """The figures of one table: about, with the results of every side in every round. start runs a command and returns its output."""
    steps, warmup = given_or(options.steps, 5), given_or(options.warmup, 6)

    def figures_of(side):
        program = [ROOT / ".cache/torch2/bin/python", ROOT / "perf/comparisons/peers/fsdp_gpt.py"] if side == FSDP else [options.program]
        return last_json(start([*program, *FLAGS.get(side, []), *words, "--warmup", warmup, "--steps", steps]))

    rounds = in_turn(SIDES[part], options.rounds, figures_of)
    return {"part": part, **about, "steps": steps, "torch": rounds[0][FSDP]["torch"], "rounds": rounds}


def measured(options):
    found = []
    if options.only != "between-hosts":
        about = {"model": model_text(6), "ranks": 2}
        found.append(measure("one_host", options, about, ["--batch", 6], lambda command: run([*command, "--nproc", 2]).stdout))
        yield {"tables": found}
    for rate in options.rates if options.only != "one-host" else []:
        about = {"model": model_text(1, options.seq_length), "ranks": HOSTS * RANKS_PER_HOST, "rate": rate}
        words = ["--batch", 1, "--seq-length", options.seq_length, "--interface", namespaces.INTERFACE, "--nproc", 0]
        with namespaces.Network([RANKS_PER_HOST] * HOSTS, rate) as network:
            found.append(measure("between_hosts", options, about, words, network.output_of))
        yield {"tables": found}


def verdicts(figures):
    for table in figures["tables"]:
        where = f"over {table['rate']}" if "rate" in table else "on one host"
        for side, other, least in WANTED[table["part"]]:
            found = ratio(table["rounds"], side, other)
            yield Verdict(found >= least, f"{side} reaches {found:.2f} times the tokens per second of {other} {where}, wanted {least}.")


def tables(figures):
    for table in figures["tables"]:
        columns = [*SPEED, ratio_column(ZERO[3] if "rate" in table else ZERO[0]), *TRAVEL]
        where = f"One host, {table['ranks']} ranks"
        if "rate" in table:
            where = f"{HOSTS} hosts x {RANKS_PER_HOST} ranks, links of {table['rate']}"
            columns += [column("MB that a host sends a step", "sent_per_step", 1, 1e6),
                        column("s that they take at least", "sent_per_step", 3, namespaces.bytes_per_second(table["rate"]))]
        title = f"{where}; {table['model']}, fp32; {rounds_text(len(table['rounds']))} of {table['steps']} steps; PyTorch {table['torch']}"
        yield table_of_sides(title, table["rounds"], SIDES[table["part"]], columns)


MEMORY = Comparison("layouts memory", __doc__, measured, tables, verdicts, section=lambda options: "./dev perf layouts", targets_only=True)
