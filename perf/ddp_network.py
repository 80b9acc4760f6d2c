#!/usr/bin/env python3
"""Data-parallel training between two hosts over a slow link, against PyTorch DDP over Gloo. Takes root.

Network namespaces of this machine stand for hosts, with one rank of one thread each; both ends of the cables between them are
held to the rate by a token bucket. Both sides train the same model of 10.8 million parameters on the same shapes, in turn:
over that link, over cables that carry what they can, and on one host. What a step takes over the link more than on one host
is the communication that was not hidden: exposed. Where communication alone takes longer than computation, taken as the step on
one host, no more than the latter can be hidden: what is left over is the bound of what is exposed. Communication alone takes
the bytes of the gradients x 2 (p-1)/p / rate of the link. Prints medians; exits 1 where Stretto takes fewer than 1.7 times the
steps of DDP, or exposes more than 0.15 s beyond that bound, which is 0 where communication is the shorter.
"""

import argparse
import json
import pathlib
import signal
import statistics
import subprocess
import sys

import namespaces

PERF = pathlib.Path(__file__).resolve().parent
WANTED = 1.7
EXPOSED_MS = 150
SIDES = {"stretto": "Stretto", "ddp": "PyTorch DDP"}


def last_json(output):
    return json.loads(output.strip().splitlines()[-1])


def run_here(command):
    return last_json(subprocess.run([*command, "--nproc", "2"], check=True, stdout=subprocess.PIPE, text=True).stdout)


def run_on(network, command):
    """Rank 0 says what came out; it has ended when the others have."""
    ranks = network.start([*command, "--nproc", "0"], stdout=lambda rank: subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                          text=True)
    output = ranks[0].communicate()[0]
    statuses = [rank.wait() for rank in ranks]
    if any(statuses):
        raise namespaces.CommandFailed(f"{' '.join(map(str, command))} ended with {statuses}")
    return last_json(output)


def medians(rounds):
    """Of each side: milliseconds of a step in each place, and what follows from them."""
    result = {}
    for side in SIDES:
        step = {place: statistics.median(each[place][side]["step_ms"] for each in rounds) for place in rounds[0]}
        result[side] = {"step_ms": step, "steps_per_s": 1e3 / step["link"], "exposed_ms": step["link"] - step["host"]}
    return result


def exposed_bound(sides, parameters, rate, ranks=2):
    """Milliseconds: of communication alone, and what of it cannot be hidden behind Stretto's computation."""
    communication = 1e3 * 4 * parameters * 2 * (ranks - 1) / ranks / namespaces.bytes_per_second(rate)
    return communication, max(0.0, communication - sides["stretto"]["step_ms"]["host"])


def verdict(holds):
    return "holds" if holds else "falls short"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(PERF.parent / "build/bin/train_speed"))
    parser.add_argument("--rate", default="300mbit", help="of the link, as tc writes it")
    parser.add_argument("--burst", default="128kb", help="of its token bucket")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5, help="timed in each run")
    # Stretto has chosen what to postpone after four, PostponementChoice::steps_to_settle.
    parser.add_argument("--warmup", type=int, default=6, help="before them; Stretto measures three of them to choose what to postpone")
    parser.add_argument("--batch", type=int, default=6, help="sequences of a rank")
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    if why := namespaces.obstacle():
        sys.exit(f"error: {why}")

    flags = ["--steps", str(options.steps), "--warmup", str(options.warmup), "--batch", str(options.batch)]
    commands = {"stretto": [options.program, *flags],
                "ddp": ["/usr/bin/python3", str(PERF / "peers/ddp_gpt.py"), *flags]}
    print(f"6 layers, 384 wide, 6 heads, 256 tokens, vocabulary 65, {options.batch} sequences a rank, 2 ranks, fp32; "
          f"milliseconds of a step over {options.rate}, over unlimited cables, on one host")
    networks = []
    try:
        places = {}
        for place, rate in (("link", options.rate), ("cable", None)):
            networks.append(namespaces.Network([1, 1], rate, options.burst))
            places[place] = lambda command, network=networks[-1]: run_on(network, command)
        places["host"] = run_here
        rounds = []
        for i in range(options.rounds):
            order = list(SIDES) if i % 2 == 0 else list(SIDES)[::-1]
            rounds.append({place: {side: run(commands[side]) for side in order} for place, run in places.items()})
            print(f"round {i + 1}: " + "; ".join(
                f"{SIDES[side]} " + ", ".join(f"{rounds[-1][place][side]['step_ms']:.0f}" for place in places)
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
    print(f"Stretto postponed {chosen['postponed']} of {chosen['buckets']} buckets.")
    exposed = sides["stretto"]["exposed_ms"]
    communication, bound = exposed_bound(sides, chosen["parameters"], options.rate)
    fast, hidden = ratio >= WANTED, exposed <= bound + EXPOSED_MS
    print(f"ratio {ratio:.2f} (wanted {WANTED}): {verdict(fast)}")
    print(f"exposed {exposed:.0f} ms (wanted under {EXPOSED_MS}): {verdict(exposed < EXPOSED_MS)}")
    print(f"exposed beyond the bound of {bound:.0f} ms: {exposed - bound:.0f} (wanted at most {EXPOSED_MS}): {verdict(hidden)}; "
          f"communication alone takes {communication:.0f} ms, computation {sides['stretto']['step_ms']['host']:.0f}")
    if options.json:
        summary = {"rate": options.rate, "ratio": ratio, "wanted": WANTED, "exposed_ms": exposed,
                   "communication_ms": communication, "bound_ms": bound, "sides": sides, "rounds": rounds}
        pathlib.Path(options.json).write_text(json.dumps(summary, indent=1) + "\n")
    return 0 if fast and hidden else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, namespaces.end_by_exception)
    try:
        sys.exit(main())
    except namespaces.CommandFailed as reason:
        sys.exit(f"error: {reason}")
