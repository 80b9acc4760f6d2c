"""The parts of ./dev perf long on training.

sp: tensor parallelism with and without sequence parallelism, on links that the library models (STRETTO_LINKS), of the speed of part ring.
length: a long sequence over a ring of two ranks, beside one rank, and beside two data-parallel ranks with a sequence each, which shows
what two ranks reach here when they hardly communicate.
fits: by formula (stretto-train --dry-run), the longest sequence for which a rank's memory suffices.
"""
from perf.comparisons.harness import SPEED, TRAVEL, Table, column, in_turn, ratio, ratio_column, table_of_sides
from perf.comparisons.long_attention import RANKS, part, rounds_of, slow_links
from perf.comparisons.programs import BIN, figures_of, last_json, run
from perf.pages.text import Verdict, rounds_text

WANTED_SP, WANTED_ACTIVATIONS, WANTED_SPEED_UP = 1.0, 0.55, 0.9
MODEL = "{} layers, {} wide, {} heads, {} tokens, 1 sequence a microbatch, fp32"
MEMORY_COLUMNS = [column("activations, MB", "activation_bytes", 1, 1e6), column("by formula, MB", "planned_activation_bytes", 1, 1e6),
                  column("all tensors, MB", "memory_bytes", 1, 1e6)]


def train(model, flags, **variables):
    """The figures of train_speed, for a model of (layers, hidden, heads, tokens)."""
    words = sum(([f"--{name}", value] for name, value in zip(("layers", "hidden", "heads", "seq-length"), model)), [])
    return last_json(run([BIN / "train_speed", *words, "--batch", 1, *flags], **variables).stdout)


def about(figures):
    return MODEL.format(*figures["model"])


def table(title, figures, sides, base):
    yield table_of_sides(f"{title}; {about(figures)}; {rounds_text(len(figures['rounds']))}", figures["rounds"], sides,
                         [*SPEED, ratio_column(base), *TRAVEL, *MEMORY_COLUMNS])


# ---- sequence parallelism

TP, SP, KEEPS = f"tp {RANKS}", f"tp {RANKS} --sp", f"tp {RANKS} --sp --sp-keep-gathered"
TENSOR_SIDES = {TP: [], SP: ["--sp"], KEEPS: ["--sp", "--sp-keep-gathered"]}


def sp_measured(options):
    links = slow_links(options)[0]["forward"]
    model = (2, 512, 8, 512 if options.quick else 2048)
    steps = ["--warmup", 1, "--steps", 1 if options.quick else 3]
    rounds = in_turn(list(TENSOR_SIDES), rounds_of(options, 3),
                     lambda side: train(model, ["--nproc", RANKS, "--tp", RANKS, *TENSOR_SIDES[side], *steps], **links))
    yield {"model": model, "steps": steps[-1], "links": links["STRETTO_LINKS"], "rounds": rounds}


def sp_verdicts(figures):
    found = ratio(figures["rounds"], SP, TP)
    yield Verdict(found >= WANTED_SP, f"{SP} reaches {found:.3f} times the tokens per second of {TP}, wanted {WANTED_SP}.")


def sp_tables(figures):
    return table(f"Sequence parallelism, {RANKS} ranks of 1 thread, {figures['steps']} steps a round; links {figures['links']} (those of part ring, "
                 "by forward)", figures, TENSOR_SIDES, TP)


# ---- length

ONE, RING, DATA_PARALLEL = "one rank", f"cp {RANKS}", f"dp {RANKS}, a sequence each"
LENGTH_SIDES = {ONE: ["--nproc", 1], RING: ["--nproc", RANKS, "--cp", RANKS], DATA_PARALLEL: ["--nproc", RANKS]}


def length_measured(options):
    model = (2, 256, 4, 4096 if options.quick else 32768)
    yield {"model": model, "rounds": in_turn(list(LENGTH_SIDES), rounds_of(options, 2),
                                             lambda side: train(model, [*LENGTH_SIDES[side], "--warmup", 0, "--steps", 1]))}


def length_verdicts(figures):
    rounds = figures["rounds"]
    memory = ratio(rounds, RING, ONE, "activation_bytes")
    yield Verdict(memory < WANTED_ACTIVATIONS, f"A rank of {RING} holds {memory:.3f} of the activations of {ONE}, wanted less than "
                                               f"{WANTED_ACTIVATIONS}.")
    found, limit, share = ratio(rounds, RING, ONE), ratio(rounds, DATA_PARALLEL, ONE), ratio(rounds, RING, DATA_PARALLEL)
    yield Verdict(share >= WANTED_SPEED_UP, f"{RING} is {found:.2f} times as fast as {ONE}, {share:.2f} of the {limit:.2f} times that "
                                            f"{DATA_PARALLEL}, reach; wanted {WANTED_SPEED_UP}.")


def length_tables(figures):
    return table("Length, ranks of 1 thread, a step a round", figures, LENGTH_SIDES, ONE)


# ---- what fits

MEMORY = 4 << 30
STEP = 1024  # of tokens
FITTED = ["--num-layers", 4, "--hidden-size", 256, "--num-attention-heads", 4, "--micro-batch-size", 1, "--global-batch-size", 1]


def bytes_of(ranks, tokens):
    plan = figures_of([BIN / "stretto-train", "--dry-run", "--ranks", ranks, "--cp", ranks, *FITTED, "--seq-length", tokens])
    return sum(plan["memory"].values())


def longest(ranks):
    """In multiples of STEP, by halving what lies between one that fits and one that does not."""
    fits, too_long = 0, 1
    while bytes_of(ranks, too_long * STEP) <= MEMORY:
        fits, too_long = too_long, 2 * too_long
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        fits, too_long = (middle, too_long) if bytes_of(ranks, middle * STEP) <= MEMORY else (fits, middle)
    return fits * STEP


def fits_measured(options):
    yield {"tokens": {str(ranks): longest(ranks) for ranks in (1, 2, 4)}}


def fits_tables(figures):
    tokens = figures["tokens"]
    yield Table(f"The longest sequence, in multiples of {STEP} tokens, with which a rank needs at most {MEMORY >> 30} GiB by formula: "
                "4 layers, 256 wide, 4 heads, 1 sequence, fp32, ZeRO-1", ["ranks (--cp)", "tokens", "ratio to one rank"],
                [[ranks, str(count), f"{count / tokens['1']:.2f}"] for ranks, count in tokens.items()])


def fits_notes(figures):
    yield (f"Longest sequences of a model of 4 layers, 256 wide, with which a rank needs at most {MEMORY >> 30} GiB by formula: "
           + ", ".join(f"{count} tokens on {ranks}" for ranks, count in figures["tokens"].items()) + " ranks (--cp)")


PARTS = {"sp": part("sp", sp_measured, sp_tables, sp_verdicts, about=about), "length": part("length", length_measured, length_tables, length_verdicts, about=about),
         "fits": part("fits", fits_measured, fits_tables, notes=fits_notes)}
