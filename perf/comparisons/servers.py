"""Compares pushes and pulls of parameter servers with the same messages by ZeroMQ, with a copy, and with the time that links allow.
Takes root.

On one host, two workers push a table to a server and pull the sum, in processes, sides in turn. ZeroMQ, ps-lite's transport, sends the same
bytes between three processes by ipc://. Then the workers push rows of one float for random keys of a sparse table, and pull them, all the same
keys in each round. Then network namespaces stand for hosts: 4 have a worker each, and servers have hosts of their own, whose
links are spare or share those of the workers. Then stretto-perf times the all_reduce of 4 ranks with servers on spare hosts, by the method that the
library chooses, beside a ring without them. Exits 1 if a push and pull takes more than half as long as ZeroMQ's, if one, or an all_reduce
with servers, takes over 1.1 times as long as links allow, or if servers that only share the workers' links are faster than any all-reduce could be.
"""
import json
import statistics

from perf.comparisons import namespaces
from perf.comparisons.harness import Comparison, Table, flag, rounds_of
from perf.comparisons.programs import BIN, figures_of, run
from perf.pages.text import Verdict, size_text

KEYS = 100_000
SIZES = [4 << 10, 64 << 10, 1 << 20, 16 << 20]
WORKERS = 4
# Ranks of each host. The first one of a worker's host is the worker, and all others are servers, which have equally many parts.
PLACES = {"4 hosts of a server": [1] * 8, "2 hosts of a server": [1] * 6}
SHARED = "one beside each worker"  # the control
SPARE = [1, 2, 3, 4]  # hosts, in the all_reduce
NET_BYTES, PARTS, MOST, TIMES = 16 << 20, 64, 1.1, 2
ALL_REDUCE = 2 * (WORKERS - 1) / WORKERS  # of the bytes, through each worker's link and direction


def rows(output):
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def measured(options):
    namespaces.require()
    figures = {"rounds": [], "keys": [], "hosts": [], "sums": []}
    for _ in rounds_of(options.rounds):
        ours = rows(run([options.program, "--nproc", 3, "--servers", 1, "--rounds", options.steps, "--bytes", *SIZES]).stdout)
        theirs = rows(run([BIN / "zmq_server", options.steps, *SIZES]).stdout)
        figures["rounds"].append({size_text(one["bytes"]): {"us": one["seconds"] * 1e6, "zmq_us": other["seconds"] * 1e6, "copy_us": one["copy_s"] * 1e6}
                                  for one, other in zip(ours, theirs)})
        figures["keys"].append(rows(run([options.program, "--nproc", 3, "--servers", 1, "--rounds", options.steps, "--keys", KEYS]).stdout))
    for rate in options.rates.split(","):
        for place, ranks in {**PLACES, SHARED: [2] * WORKERS}.items():
            with namespaces.Network(ranks, rate) as network:
                words = ["--nproc", 0, "--worker-hosts", WORKERS, "--parts", PARTS, "--rounds", 5, "--bytes", NET_BYTES]
                seconds = rows(network.output_of([options.program, *words]))[0]["seconds"]
            figures["hosts"].append({"place": place, "rate": rate, "allowed": busiest(ranks) * crossing(rate), "seconds": seconds})
        for servers in SPARE:
            chosen, ring = all_reduce(rate, servers)
            figures["sums"].append({"servers": servers, "rate": rate, "method": chosen["algo"], "allowed": balanced(servers) * crossing(rate),
                                    "seconds": chosen["time_us"] * 1e-6, "ring": ring["time_us"] * 1e-6})
    yield figures


def of_size(figures, size, key):
    return statistics.median(each[size][key] for each in figures["rounds"])


def times_of_zmq(figures, size):
    return statistics.median(each[size]["zmq_us"] / each[size]["us"] for each in figures["rounds"])


def keys_a_second(figures, key_cache, key):
    return statistics.median(its["keys"] / its[key] for each in figures["keys"] for its in each if its["key_cache"] == key_cache)


def busiest(ranks):
    """How often the table crosses the busiest link, in one direction."""
    servers = sum(ranks) - WORKERS
    beside = [each - 1 for each in ranks[:WORKERS]]
    return max([1 - here / servers + (WORKERS - 1) * here / servers for here in beside] + [WORKERS * here / servers for here in ranks[WORKERS:]])


def balanced(servers):
    """The same for an all_reduce whose servers and ranks with vectors are equally busy (Jiang et al. 2020)."""
    return 2 * WORKERS * (WORKERS - 1) / (WORKERS ** 2 + servers * WORKERS - 2 * servers)


def all_reduce(rate, servers):
    """The rows of the library's choice and of a ring, times of the slowest rank."""
    words = ["all_reduce", "-b", NET_BYTES, "-e", NET_BYTES, "-n", 5, "-w", 1, "-N", 5, "-a", 3, "-c", 0, "--in-place", 0, "--algo", "auto,ring", "--servers", servers]
    with namespaces.Network([1] * (WORKERS + servers), rate) as network:
        return figures_of([BIN / "stretto-perf", *words], network.output_of)["rows"]


def crossing(rate):
    """Seconds in which a link of that rate carries the table."""
    return NET_BYTES / namespaces.bytes_per_second(rate)


def tables(figures):
    yield Table("2 workers and a server on one host, a push and pull", ["size", "us", "ZeroMQ, us", "ZeroMQ over it", "a copy, us"],
                [[size, *(f"{of_size(figures, size, key):.0f}" for key in ("us", "zmq_us")), f"{times_of_zmq(figures, size):.1f}",
                  f"{of_size(figures, size, 'copy_us'):.0f}"] for size in figures["rounds"][0]])
    yield Table(f"2 workers and a server on one host, {KEYS:,} keys a push: millions of keys a second, of each worker", ["key_cache", "pushed", "pulled"],
                [[name, *(f"{keys_a_second(figures, key_cache, key) / 1e6:.2f}" for key in ("push_s", "pull_s"))] for name, key_cache in (("no", False), ("yes", True))])
    yield Table(f"all_reduce of {size_text(NET_BYTES)} by {WORKERS} ranks, and servers, each on a host of its own", ["links", "servers", "chosen", "ms", "links allow, ms", "ratio", "a ring, ms"],
                [[its["rate"], str(its["servers"]), its["method"], f"{its['seconds'] * 1e3:.0f}", f"{its['allowed'] * 1e3:.0f}", f"{its['seconds'] / its['allowed']:.2f}",
                  f"{its['ring'] * 1e3:.0f}"] for its in figures["sums"]])
    yield Table(f"{WORKERS} hosts of a worker, {size_text(NET_BYTES)}, and the least time of an all-reduce", ["links", "servers", "ms", "links allow, ms", "ratio", "all-reduce, ms"],
                [[its["rate"], its["place"], f"{its['seconds'] * 1e3:.0f}", f"{its['allowed'] * 1e3:.0f}", f"{its['seconds'] / its['allowed']:.2f}",
                  f"{ALL_REDUCE * crossing(its['rate']) * 1e3:.0f}"] for its in figures["hosts"]])


def verdicts(figures):
    for size in figures["rounds"][0]:
        found = times_of_zmq(figures, size)
        yield Verdict(found >= TIMES, f"{size}: {found:.1f} times as fast as ZeroMQ, wanted {TIMES}.")
    for its in figures["hosts"]:
        found, where = its["seconds"] / its["allowed"], f"{its['place']}, {its['rate']}"
        if its["place"] == SHARED:
            yield Verdict(found >= 0.98, f"{where}: {found:.2f} times what links allow, which is what they allow an all-reduce; wanted no gain.")
        else:
            yield Verdict(found <= MOST, f"{where}: {found:.2f} times what links allow, wanted at most {MOST}.")
    for its in figures["sums"]:
        found = its["seconds"] / its["allowed"]
        yield Verdict(found <= MOST and its["method"] != "ring",
                      f"all_reduce with {its['servers']} servers, {its['rate']}, by {its['method']}: {found:.2f} times what links allow, wanted at most {MOST} and no ring.")


Comparison("servers", __doc__, measured, tables, verdicts, page="docs/parameter-server.md", program="server_speed",
           about=lambda figures: f"medians of {len(figures['rounds'])} rounds",
           flags=(flag("--rounds", 3), flag("--steps", 100, "pushes and pulls of a size and round"), flag("--rates", "1gbit,250mbit", "of every link, as tc writes them")))
