"""The parts of ./dev perf long on attention alone: one causal layer over one sequence that two ranks share, forward and backward.

balance: the ring's layouts of tokens beside half of what one rank needs for the whole sequence while the other does the same.
ring, ulysses: how much of their communication is hidden on links that the library models (STRETTO_LINKS), at the speed at which the
hop of a block of keys and values takes HOP of the attention to a block, by the four ways of docs/overlap.md.
torch: the same ring in PyTorch over Gloo, the two in turn.
"""
import statistics

from perf.comparisons.harness import Comparison, Table, column, given_or, in_turn, ratio, ratio_column, table_of_sides
from perf.comparisons.programs import BIN, ROOT, last_json, run
from perf.pages.text import Verdict, rounds_text

RANKS, HEADS, HEAD_SIZE = 2, 8, 64
TOKENS, QUICK_TOKENS = 8192, 2048
HOP = 0.7  # of the attention to a block
LATENCY = 20e-6
RING = {"zigzag": "1", "contiguous": f"{RANKS / (2 * RANKS - 1):.2f}", "striped": "nearly 1"}  # layouts, and their balance by formula
WANTED_BALANCE, WANTED_RING, WANTED_ULYSSES, WANTED_OF_PEER = 0.95, 0.85, 0.5, 1.3
STRETTO = "Stretto RingAttention"
PEERS = {"PyTorch over Gloo": [], "PyTorch over Gloo, a head's tokens together": ["--by-head"]}  # the faster counts
PASSES = {"forward_ms": "forward ms", "backward_ms": "backward ms", "ms": "both ms"}


def part(name, *functions, **more):
    return Comparison(f"long {name}", __doc__, *functions, section=lambda options: f"./dev perf long --only {name}", targets_only=True, **more)


def tokens(options):
    return QUICK_TOKENS if options.quick else TOKENS


def rounds_of(options, default):
    return given_or(options.rounds, 1 if options.quick else default)


def size_flags(options):
    return ["--nproc", RANKS, "--seq-length", tokens(options), "--heads", HEADS, "--head-size", HEAD_SIZE]


def attention(options, words, **variables):
    """The figures of ring_attention_speed."""
    return last_json(run([BIN / "ring_attention_speed", *size_flags(options), *words], **variables).stdout)


def setting(figures):
    return f"Causal attention to {figures['tokens']} tokens, {HEADS} heads of {HEAD_SIZE}, fp32, {RANKS} ranks of 1 thread"


# ---- links

def links_of(hop, seconds):
    """Variables of links on which so many bytes take so many seconds."""
    rate = hop / (seconds - LATENCY)
    return {"STRETTO_RANKS_PER_NODE": "1", "STRETTO_LINKS": f"inter={rate / 1e6:.3f}MB/s,{LATENCY * 1e6:.0f}us"}


def slow_links(options):
    """Variables of the links of each pass, and the seconds of its attention to one block, by a run that communicates nothing: in the
    zigzag layout all blocks are equally much work. All parts of a run have the same links."""
    if "blocks" not in options:
        found = attention(options, ["--overlap", "--cores", "zigzag", "--rounds", rounds_of(options, 3)])["zigzag"]
        options.blocks = {name: figures["t_compute_ms"] / 1e3 / RANKS for name, figures in found.items()}
    hop = 2 * tokens(options) // RANKS * HEADS * HEAD_SIZE * 4  # bytes of the keys and values of a block
    return {name: links_of(hop, HOP * seconds) for name, seconds in options.blocks.items()}, options.blocks


def overlap(name, core, title, wanted):
    """What ring and ulysses have in common."""
    def measured(options):
        """On the links of forward both passes, with overlap and without; backward also on links that are slow beside its own blocks."""
        links, blocks = slow_links(options)
        rows = []
        for speed, passes, flags in [("forward", "forward,backward", []), ("forward", "forward,backward", ["--no-overlap"]),
                                     ("backward", "backward", [])]:
            words = ["--overlap", "--cores", core, "--passes", passes, "--rounds", rounds_of(options, 3), *flags]
            found = attention(options, words, **links[speed])[core]
            rows += [{"pass": each, "links_by": speed, "overlap": not flags, **figures} for each, figures in found.items()]
        yield {"tokens": tokens(options), "rounds": rounds_of(options, 3), "rows": rows,
               "links": {speed: variables["STRETTO_LINKS"] for speed, variables in links.items()},
               "block_ms": {each: 1e3 * seconds for each, seconds in blocks.items()}}

    def verdicts(figures):
        for row in figures["rows"]:
            if row["overlap"] and row["links_by"] == row["pass"]:
                yield Verdict(row["efficiency"] >= wanted, f"{title} hides {row['efficiency']:.2f} of the communication of {row['pass']}, where a hop "
                                                           f"takes {HOP} of a block's {row['links_by']}; wanted {wanted}.")

    def tables(figures):
        times = ["t_compute_ms", "t_comm_ms", "t_serial_ms", "t_full_ms", "exposed_ms"]
        speeds = " and ".join(f"{figures['links'][each]} ({each} of a block takes {ms:.0f} ms)" for each, ms in figures["block_ms"].items())
        yield Table(f"{title}. {setting(figures)}; links on which the hop of a block's keys and values takes {HOP} of its attention: {speeds}; "
                    f"{rounds_text(figures['rounds'])}",
                    ["pass", f"a hop takes {HOP} of a block's", "overlap", "compute ms", "comm ms", "serial ms", "full ms", "exposed ms", "hidden"],
                    [[row["pass"], row["links_by"], "yes" if row["overlap"] else "no", *(f"{row[key]:.0f}" for key in times),
                      f"{row['efficiency']:.2f}"] for row in figures["rows"]])

    return part(name, measured, tables, verdicts, about=setting)


# ---- balance

def balance(figures, layout, key="ms"):
    times = figures["times"]
    return statistics.median(whole / RANKS / own for whole, own in zip(times["local"][key], times[layout][key]))


def balance_measured(options):
    rounds = rounds_of(options, 5)
    yield {"tokens": tokens(options), "rounds": rounds, "times": attention(options, ["--cores", ",".join(["local", *RING]), "--rounds", rounds])}


def balance_verdicts(figures):
    found = balance(figures, "zigzag")
    yield Verdict(found >= WANTED_BALANCE, f"The zigzag ring reaches {found:.3f} of the ideal's speed, wanted {WANTED_BALANCE}.")


def balance_tables(figures):
    rows = []
    for side, name in (("one rank, the whole sequence", "local"), *((layout, layout) for layout in RING)):
        shares = [*(f"{balance(figures, name, key):.3f}" for key in PASSES), RING[name]] if name in RING else ["-"] * 4
        rows.append([side, *(f"{statistics.median(figures['times'][name][key]):.0f}" for key in PASSES), *shares])
    yield Table("Balance of the ring: half of the time of one rank's attention to the whole sequence, which both ranks compute at once, over the "
                f"ring's time. {setting(figures)}; {rounds_text(figures['rounds'])}, the sides in turn",
                ["side", *PASSES.values(), "balance of forward", "of backward", "of both", "by formula"], rows)


# ---- PyTorch

def torch_measured(options):
    def start(side):
        if side in PEERS:
            found = last_json(run([ROOT / ".cache/torch2/bin/python", ROOT / "perf/comparisons/peers/context_parallel.py",
                                   *size_flags(options), *PEERS[side], "--rounds", 3]).stdout)
        else:
            times = attention(options, ["--cores", "zigzag", "--rounds", 3])["zigzag"]
            found = {key: statistics.median(values) for key, values in times.items()}
        return {**found, "tokens_per_s": tokens(options) / found["ms"] * 1e3}

    rounds = in_turn([STRETTO, *PEERS], rounds_of(options, 3), start)
    yield {"tokens": tokens(options), "torch": rounds[0][list(PEERS)[0]]["torch"], "rounds": rounds}


def torch_verdicts(figures):
    found, peer = min((ratio(figures["rounds"], STRETTO, peer), peer) for peer in PEERS)
    yield Verdict(found >= WANTED_OF_PEER, f"{STRETTO} is {found:.2f} times as fast as {peer}; wanted {WANTED_OF_PEER}.")


def torch_tables(figures):
    yield table_of_sides(f"Ring attention, zigzag, beside PyTorch {figures['torch']}. {setting(figures)}; {rounds_text(len(figures['rounds']))} of "
                         "3 runs each", figures["rounds"], [STRETTO, *PEERS],
                         [*(column(heading, key) for key, heading in PASSES.items()), ratio_column(STRETTO)])


PARTS = {"balance": part("balance", balance_measured, balance_tables, balance_verdicts, about=setting),
         "ring": overlap("ring", "zigzag", "Ring attention", WANTED_RING), "ulysses": overlap("ulysses", "ulysses", "Ulysses", WANTED_ULYSSES),
         "torch": part("torch", torch_measured, torch_tables, torch_verdicts, about=setting)}
