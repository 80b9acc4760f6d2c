"""Compares data-parallel training between two hosts over a slow link with PyTorch DDP over Gloo. Takes root.

Network namespaces of this machine stand for hosts, with one rank of one thread each; a token bucket limits both ends of the cables
between them to the rate. Both sides train the same model of 10.8 million parameters on the same shapes, in turn: over that link,
over unlimited cables, and on one host.

Exposed communication is the time of a step over the link minus its time on one host. If communication alone takes longer than
computation, taken as the step on one host, no more than the computation can hide it; the rest is the bound of exposed communication.
Communication alone takes the bytes of the gradients x 2 (p-1)/p over the rate of the link. Prints medians; exits 1 if Stretto takes
fewer than 1.7 times the steps of DDP, or exposes more than 0.15 s beyond that bound, which is 0 if communication is the shorter.
"""
import statistics

from perf.comparisons import namespaces
from perf.comparisons.programs import BIN, ROOT, last_json, model_text, parser_of, run, write_json
from perf.pages.text import MARKS

WANTED = 1.7
EXPOSED_MS = 150
SIDES = {"stretto": "Stretto", "ddp": "PyTorch DDP"}


def medians(rounds):
    """For each side: milliseconds of a step in each setting, and the figures derived from them."""
    result = {}
    for side in SIDES:
        step = {setting: statistics.median(each[setting][side]["step_ms"] for each in rounds) for setting in rounds[0]}
        result[side] = {"step_ms": step, "steps_per_s": 1e3 / step["link"], "exposed_ms": step["link"] - step["host"]}
    return result


def exposed_bound(sides, parameters, rate, ranks=2):
    """Milliseconds of communication alone, and of the part that cannot be hidden behind Stretto's computation."""
    communication = 1e3 * 4 * parameters * 2 * (ranks - 1) / ranks / namespaces.bytes_per_second(rate)
    return communication, max(0.0, communication - sides["stretto"]["step_ms"]["host"])


def main():
    parser = parser_of("ddp", __doc__)
    parser.add_argument("--program", default=str(BIN / "train_speed"))
    parser.add_argument("--rate", default="300mbit", help="rate of the link, as tc writes it (default 300mbit)")
    parser.add_argument("--burst", default="128kb", help="burst of its token bucket (default 128kb)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5, help="timed steps of each run")
    parser.add_argument("--warmup", type=int, default=4, help="steps before them; in the first three, Stretto measures what to gather when")
    parser.add_argument("--batch", type=int, default=6, help="sequences a rank")
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    namespaces.require()

    flags = ["--steps", str(options.steps), "--warmup", str(options.warmup), "--batch", str(options.batch)]
    # DDP keeps everything on every rank, and so does ZeRO-0.
    commands = {"stretto": [options.program, "--zero", "0", *flags],
                "ddp": ["/usr/bin/python3", ROOT / "perf/comparisons/peers/ddp_gpt.py", *flags]}
    print(f"{model_text(options.batch)}, 2 ranks, fp32; milliseconds of a step over {options.rate}, over unlimited cables, on one host")
    networks = []
    try:
        settings = {}
        for setting, rate in (("link", options.rate), ("cable", None)):
            networks.append(namespaces.Network([1, 1], rate, options.burst))
            settings[setting] = lambda command, network=networks[-1]: last_json(network.output_of([*command, "--nproc", 0]))
        settings["host"] = lambda command: last_json(run([*command, "--nproc", 2]).stdout)
        rounds = []
        for i in range(options.rounds):
            order = list(SIDES) if i % 2 == 0 else list(SIDES)[::-1]
            rounds.append({setting: {side: start(commands[side]) for side in order} for setting, start in settings.items()})
            print(f"round {i + 1}: " + "; ".join(
                f"{SIDES[side]} " + ", ".join(f"{rounds[-1][setting][side]['step_ms']:.0f}" for setting in settings)
                for side in SIDES), flush=True)
    finally:
        for network in networks:
            network.close()

    sides = medians(rounds)
    ratio = sides["stretto"]["steps_per_s"] / sides["ddp"]["steps_per_s"]
    for side, name in SIDES.items():
        figures = sides[side]
        print(f"{name}: {figures['steps_per_s']:.3f} steps/s over the link; a step takes {figures['step_ms']['link']:.0f} ms, "
              f"on one host {figures['step_ms']['host']:.0f} ms: {figures['exposed_ms']:.0f} ms of communication exposed")
    chosen = rounds[-1]["link"]["stretto"]
    exposed = sides["stretto"]["exposed_ms"]
    communication, bound = exposed_bound(sides, chosen["parameters"], options.rate)
    fast, hidden = ratio >= WANTED, exposed <= bound + EXPOSED_MS
    print(f"ratio {ratio:.2f} (wanted {WANTED}): {MARKS[fast]}")
    print(f"exposed beyond the bound of {bound:.0f} ms: {exposed - bound:.0f} (wanted at most {EXPOSED_MS}): {MARKS[hidden]}; "
          f"communication alone takes {communication:.0f} ms, computation {sides['stretto']['step_ms']['host']:.0f}")
    if options.json:
        summary = {"rate": options.rate, "ratio": ratio, "wanted": WANTED, "exposed_ms": exposed,
                   "communication_ms": communication, "bound_ms": bound, "sides": sides, "rounds": rounds}
        write_json(options.json, summary)
    return 0 if fast and hidden else 1


if __name__ == "__main__":
    namespaces.exit_with(main)
