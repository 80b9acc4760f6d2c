"""The parts of ./dev perf long on training.

sp: tensor parallelism with and without sequence parallelism, on links that the library models (STRETTO_LINKS), of the speed of part ring.
length: a long sequence over a ring of two ranks, beside one rank, and beside two data-parallel ranks with a sequence each, which shows
what two ranks reach here when they hardly communicate.
fits: by formula (stretto-train --dry-run), the longest sequence for which a rank's memory suffices.
"""
from perf.comparisons.long_attention import RANKS, rounds_of, slow_links
from perf.comparisons.programs import BIN, figures_of, last_json, run
from perf.comparisons.rounds import in_turn, median, ratio
from perf.pages.text import Verdict, rounds_text

WANTED_SP, WANTED_ACTIVATIONS, WANTED_SPEED_UP = 1.0, 0.55, 0.9


def train(model, flags, **variables):
    """The figures of train_speed, for a model of (layers, hidden, heads, tokens)."""
    words = sum(([f"--{name}", value] for name, value in zip(("layers", "hidden", "heads", "seq-length"), model)), [])
    return last_json(run([BIN / "train_speed", *words, "--batch", 1, *flags], **variables).stdout)


def model_text(model):
    return "{} layers, {} wide, {} heads, {} tokens, 1 sequence a microbatch, fp32".format(*model)


def training_rows(rounds, sides, base):
    header = ["side", "tokens/s", "s a step", f"ratio to {base}", "in flight, s", "exposed, s", "activations, MB", "by formula, MB",
              "all tensors, MB"]
    memory = ["activation_bytes", "planned_activation_bytes", "memory_bytes"]
    return header, [[side, f"{median(rounds, side, 'tokens_per_s'):.0f}", f"{median(rounds, side, 'step_ms') / 1e3:.3f}",
                     f"{ratio(rounds, side, base):.2f}",
                     *(f"{median(rounds, side, key) / 1e3:.2f}" for key in ("comm_ms", "exposed_ms")),
                     *(f"{median(rounds, side, key) / 1e6:.1f}" for key in memory)] for side in sides]


# ---- sequence parallelism

TP, SP, KEEPS = f"tp {RANKS}", f"tp {RANKS} --sp", f"tp {RANKS} --sp --sp-keep-gathered"


class SequenceParallel:
    SIDES = {TP: [], SP: ["--sp"], KEEPS: ["--sp", "--sp-keep-gathered"]}

    def measured(self, options):
        links = slow_links(options)[0]["forward"]
        model = (2, 512, 8, 512 if options.quick else 2048)
        steps = ["--warmup", 1, "--steps", 1 if options.quick else 3]
        rounds = in_turn(list(self.SIDES), rounds_of(options, 3),
                         lambda side: train(model, ["--nproc", RANKS, "--tp", RANKS, *self.SIDES[side], *steps], **links))
        return {"model": model, "steps": steps[-1], "links": links["STRETTO_LINKS"], "rounds": rounds}

    def verdicts(self, figures):
        found = ratio(figures["rounds"], SP, TP)
        yield Verdict(found >= WANTED_SP, f"{SP} reaches {found:.3f} times the tokens per second of {TP}, wanted {WANTED_SP}.")

    def rows(self, figures):
        return training_rows(figures["rounds"], self.SIDES, TP)

    def heading(self, figures):
        return (f"Sequence parallelism, {RANKS} ranks of 1 thread; {model_text(figures['model'])}; links {figures['links']} (those of part "
                f"ring, by forward); {rounds_text(len(figures['rounds']))} of {figures['steps']} steps")


# ---- length

ONE, RING, DATA_PARALLEL = "one rank", f"cp {RANKS}", f"dp {RANKS}, a sequence each"


class Length:
    SIDES = {ONE: ["--nproc", 1], RING: ["--nproc", RANKS, "--cp", RANKS], DATA_PARALLEL: ["--nproc", RANKS]}

    def measured(self, options):
        model = (2, 256, 4, 4096 if options.quick else 32768)
        rounds = in_turn(list(self.SIDES), rounds_of(options, 2),
                         lambda side: train(model, [*self.SIDES[side], "--warmup", 0, "--steps", 1]))
        return {"model": model, "rounds": rounds}

    def verdicts(self, figures):
        rounds = figures["rounds"]
        memory = ratio(rounds, RING, ONE, "activation_bytes")
        yield Verdict(memory < WANTED_ACTIVATIONS, f"A rank of {RING} holds {memory:.3f} of the activations of {ONE}, wanted less than "
                                                   f"{WANTED_ACTIVATIONS}.")
        found, limit = ratio(rounds, RING, ONE), ratio(rounds, DATA_PARALLEL, ONE)
        share = ratio(rounds, RING, DATA_PARALLEL)
        yield Verdict(share >= WANTED_SPEED_UP, f"{RING} is {found:.2f} times as fast as {ONE}, {share:.2f} of the {limit:.2f} times that "
                                                f"{DATA_PARALLEL}, reach; wanted {WANTED_SPEED_UP}.")

    def rows(self, figures):
        return training_rows(figures["rounds"], self.SIDES, ONE)

    def heading(self, figures):
        return f"Length, ranks of 1 thread; {model_text(figures['model'])}; {rounds_text(len(figures['rounds']))} of 1 step"


# ---- what fits

MEMORY = 4 << 30
STEP = 1024  # of tokens


class Fits:
    RANKS = [1, 2, 4]
    MODEL = ["--num-layers", 4, "--hidden-size", 256, "--num-attention-heads", 4, "--micro-batch-size", 1, "--global-batch-size", 1]

    def bytes_of(self, ranks, tokens):
        plan = figures_of([BIN / "stretto-train", "--dry-run", "--ranks", ranks, "--cp", ranks, *self.MODEL, "--seq-length", tokens])
        return sum(plan["memory"].values())

    def longest(self, ranks):
        """In multiples of STEP, by halving what lies between one that fits and one that does not."""
        fits, too_long = 0, 1
        while self.bytes_of(ranks, too_long * STEP) <= MEMORY:
            fits, too_long = too_long, 2 * too_long
        while too_long - fits > 1:
            middle = (fits + too_long) // 2
            fits, too_long = (middle, too_long) if self.bytes_of(ranks, middle * STEP) <= MEMORY else (fits, middle)
        return fits * STEP

    def measured(self, options):
        return {"tokens": {ranks: self.longest(ranks) for ranks in self.RANKS}}

    def verdicts(self, figures):
        return []

    def rows(self, figures):
        tokens = {int(ranks): count for ranks, count in figures["tokens"].items()}  # JSON has no numbers for keys
        return ["ranks (--cp)", "tokens", "ratio to one rank"], [[str(ranks), str(count), f"{count / tokens[1]:.2f}"]
                                                                  for ranks, count in tokens.items()]

    def heading(self, figures):
        return (f"The longest sequence, in multiples of {STEP} tokens, with which a rank needs at most {MEMORY >> 30} GiB by formula: "
                "4 layers, 256 wide, 4 heads, 1 sequence, fp32, ZeRO-1")


PARTS = {"sp": SequenceParallel(), "length": Length(), "fits": Fits()}
