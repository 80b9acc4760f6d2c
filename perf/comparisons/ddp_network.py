"""Compares data-parallel training between two hosts over a slow link with PyTorch DDP over Gloo. Takes root.

Network namespaces of this machine stand for hosts, with one rank of one thread each; a token bucket limits both ends of the cables
between them to the rate. Both sides train the same model, in turn: over that link, over unlimited cables, and on one host.

Exposed communication is the time of a step over the link minus its time on one host. Communication alone takes the bytes of the
gradients x 2 (p-1)/p over the rate of the link; computation, taken as the step on one host, can hide no more than its own duration of it.
Exits 1 if Stretto takes fewer than 1.7 times the steps of DDP, or exposes more than 0.15 s beyond what cannot be hidden.
"""
import contextlib

from perf.comparisons import namespaces
from perf.comparisons.harness import Comparison, Table, flag, median, rounds_of
from perf.comparisons.programs import ROOT, last_json, model_text, run
from perf.pages.text import Verdict, rounds_text

WANTED, EXPOSED_MS, RANKS = 1.7, 150, 2
SIDES = {"stretto": "Stretto", "ddp": "PyTorch DDP"}
SETTINGS = ("link", "cable", "host")


def measured(options):
    namespaces.require()
    words = ["--steps", options.steps, "--warmup", options.warmup, "--batch", options.batch]
    # DDP keeps everything on every rank, and so does ZeRO-0.
    commands = {"stretto": [options.program, "--zero", "0", *words],
                "ddp": ["/usr/bin/python3", ROOT / "perf/comparisons/peers/ddp_gpt.py", *words]}
    with contextlib.ExitStack() as stack:
        networks = {setting: stack.enter_context(namespaces.Network([1] * RANKS, rate, options.burst))
                    for setting, rate in (("link", options.rate), ("cable", None))}

        def start(setting, side):
            if setting == "host":
                return last_json(run([*commands[side], "--nproc", RANKS]).stdout)
            return last_json(networks[setting].output_of([*commands[side], "--nproc", 0]))

        rounds = []
        for i in rounds_of(options.rounds):
            order = list(SIDES)[::1 if i % 2 == 0 else -1]
            rounds.append({setting: {side: start(setting, side) for side in order} for setting in SETTINGS})
            yield {"rate": options.rate, "batch": options.batch, "rounds": rounds}


def step_ms(figures, side, setting):
    return median([each[setting] for each in figures["rounds"]], side, "step_ms")


def exposed_ms(figures, side):
    return step_ms(figures, side, "link") - step_ms(figures, side, "host")


def communication_ms(figures):
    parameters = figures["rounds"][-1]["link"]["stretto"]["parameters"]
    return 1e3 * 4 * parameters * 2 * (RANKS - 1) / RANKS / namespaces.bytes_per_second(figures["rate"])


def verdicts(figures):
    ratio = step_ms(figures, "ddp", "link") / step_ms(figures, "stretto", "link")
    yield Verdict(ratio >= WANTED, f"{ratio:.2f} times the steps of PyTorch DDP, wanted {WANTED}")
    alone, computation = communication_ms(figures), step_ms(figures, "stretto", "host")
    bound = max(0.0, alone - computation)
    over = exposed_ms(figures, "stretto") - bound
    yield Verdict(over <= EXPOSED_MS, f"{over:.0f} ms exposed beyond the bound of {bound:.0f} ms, wanted at most {EXPOSED_MS}; communication alone "
                                      f"takes {alone:.0f} ms, computation {computation:.0f}")


def tables(figures):
    yield Table("", ["side", "steps/s over the link", *(f"ms a step, {where}" for where in ("link", "unlimited cable", "one host")), "exposed ms"],
                [[name, f"{1e3 / step_ms(figures, side, 'link'):.3f}", *(f"{step_ms(figures, side, setting):.0f}" for setting in SETTINGS),
                  f"{exposed_ms(figures, side):.0f}"] for side, name in SIDES.items()])


Comparison(
    "ddp", __doc__, measured, tables, verdicts, program="train_speed",
    about=lambda figures: f"{model_text(figures['batch'])}, {RANKS} ranks, fp32, a link of {figures['rate']}; {rounds_text(len(figures['rounds']))}",
    flags=(flag("--rate", "300mbit", "rate of the link, as tc writes it"), flag("--burst", "128kb", "burst of its token bucket"),
           flag("--rounds", 3), flag("--steps", 5, "timed steps of each run"),
           flag("--warmup", 4, "steps before them; in the first three, Stretto measures what to gather when"),
           flag("--batch", 6, "sequences a rank")))
