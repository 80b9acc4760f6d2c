"""The parts of ./dev perf layouts on how data-parallel ranks divide memory: Stretto's ZeRO stages, ZeRO++ and PyTorch FSDP2, on one
host and between hosts that are network namespaces."""
from perf.comparisons import namespaces
from perf.comparisons.programs import ROOT, last_json, model_text, run
from perf.comparisons.rounds import given_or, in_turn, median, ratio
from perf.pages.text import Verdict, rounds_text

ZERO = [f"Stretto ZeRO-{stage}" for stage in range(4)]
ZERO_PP = "Stretto ZeRO-3 with ZeRO++"
FSDP = "PyTorch FSDP2 over Gloo"
HOSTS, RANKS_PER_HOST = 4, 2
STEPS, WARMUP = 5, 6
FLAGS = {**{ZERO[stage]: ["--zero", stage] for stage in range(4)},
         ZERO_PP: ["--zero", 3, "--hpz-size", RANKS_PER_HOST, "--qwz", "int8", "--qgz", "int4"]}
SIDES = {"one_host": [*ZERO, FSDP], "between_hosts": [ZERO[3], ZERO_PP, FSDP]}
WANTED = {  # at least so many times the tokens per second of the other
    "one_host": [(ZERO[1], ZERO[0], 0.98), (ZERO[2], ZERO[0], 0.98), (ZERO[3], ZERO[0], 0.95), (ZERO[3], FSDP, 1.3)],
    "between_hosts": [(ZERO_PP, ZERO[3], 2.16), (ZERO[3], FSDP, 1.0)],
}


def measure(part, options, about, flags, start):
    """The figures of one table: about, with the results of every side in every round. start runs a command and returns its output."""
    steps, warmup = given_or(options.steps, STEPS), given_or(options.warmup, WARMUP)

    def figures_of(side):
        program = [ROOT / ".cache/torch2/bin/python", ROOT / "perf/comparisons/peers/fsdp_gpt.py"] if side == FSDP else [options.program]
        return last_json(start([*program, *FLAGS.get(side, []), *flags, "--warmup", warmup, "--steps", steps]))

    rounds = in_turn(SIDES[part], options.rounds, figures_of)
    return {"part": part, **about, "steps": steps, "torch": rounds[0][FSDP]["torch"], "rounds": rounds}


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
    return tables


# ---- what the figures say

def verdicts(table):
    where = f"over {table['rate']}" if "rate" in table else "on one host"
    for side, other, least in WANTED[table["part"]]:
        found = ratio(table["rounds"], side, other)
        yield Verdict(found >= least, f"{side} reaches {found:.2f} times the tokens per second of {other} {where}, wanted {least}.")


def rows(table):
    """The header, and a row for each side."""
    between, rounds = "rate" in table, table["rounds"]
    base = ZERO[3] if between else ZERO[0]
    header = ["side", "tokens/s", "s a step", f"ratio to {base}", "in flight, s", "exposed, s"]
    result = []
    for side in SIDES[table["part"]]:
        flight, exposed = (median(rounds, side, key) for key in ("comm_ms", "exposed_ms"))
        result.append([side, f"{median(rounds, side, 'tokens_per_s'):.0f}", f"{median(rounds, side, 'step_ms') / 1e3:.3f}",
                       f"{ratio(rounds, side, base):.2f}", *("-" if ms is None else f"{ms / 1e3:.2f}" for ms in (flight, exposed))])
        if between:
            sent = median(rounds, side, "sent_per_step")
            result[-1] += [f"{sent / 1e6:.1f}", f"{sent / namespaces.bytes_per_second(table['rate']):.3f}"]
    return header + (["MB that a host sends a step", "s that they take at least"] if between else []), result


def heading(table):
    where = f"{HOSTS} hosts x {RANKS_PER_HOST} ranks, links of {table['rate']}" if "rate" in table else f"One host, {table['ranks']} ranks"
    return f"{where}; {table['model']}, fp32; {rounds_text(len(table['rounds']))} of {table['steps']} steps; PyTorch {table['torch']}"
