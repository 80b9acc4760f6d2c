"""Compares pushes and pulls of parameter servers with the same messages by ZeroMQ, with a copy, and with the time that links allow.
Takes root.

On one host, two workers push a table to a server and pull the sum, in processes, sides in turn. ZeroMQ, ps-lite's transport, sends the same
bytes between three processes by ipc://. Then network namespaces stand for hosts of one rank each: 4 workers with 4 servers, where the
servers' links are spare, and with 2. Exits 1 if a push and pull takes more than half as long as ZeroMQ's, or over 1.1 times as long as links allow.
"""
import json
import statistics

from perf.comparisons import namespaces
from perf.comparisons.harness import Comparison, Table, flag, rounds_of
from perf.comparisons.programs import BIN, run
from perf.pages.text import Verdict

SIZES = [4 << 10, 64 << 10, 1 << 20, 16 << 20]
WORKERS, SERVERS = 4, (4, 2)
NET_BYTES, MOST, TIMES = 16 << 20, 1.1, 2


def rows(output):
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def size_text(size):
    return f"{size >> 20} MiB" if size >> 20 else f"{size >> 10} KiB"


def measured(options):
    namespaces.require()
    figures = {"rounds": [], "rate": options.rate, "hosts": {}}
    for _ in rounds_of(options.rounds):
        ours = rows(run([options.program, "--nproc", 3, "--servers", 1, "--rounds", options.steps, "--bytes", *SIZES]).stdout)
        theirs = rows(run([BIN / "zmq_server", options.steps, *SIZES]).stdout)
        figures["rounds"].append({size_text(one["bytes"]): {"us": one["seconds"] * 1e6, "zmq_us": other["seconds"] * 1e6, "copy_us": one["copy_s"] * 1e6}
                                  for one, other in zip(ours, theirs)})
    for servers in SERVERS:
        with namespaces.Network([1] * (WORKERS + servers), options.rate) as network:
            figures["hosts"][str(servers)] = rows(network.output_of([options.program, "--nproc", 0, "--servers", servers, "--rounds", 5, "--bytes", NET_BYTES]))[0]["seconds"]
    yield figures


def of_size(figures, size, key):
    return statistics.median(each[size][key] for each in figures["rounds"])


def times_of_zmq(figures, size):
    return statistics.median(each[size]["zmq_us"] / each[size]["us"] for each in figures["rounds"])


def bound(figures, servers):
    return NET_BYTES * max(1, WORKERS / servers) / namespaces.bytes_per_second(figures["rate"])


def tables(figures):
    yield Table("2 workers and a server on one host, a push and pull", ["size", "us", "ZeroMQ, us", "ZeroMQ over it", "a copy, us"],
                [[size, *(f"{of_size(figures, size, key):.0f}" for key in ("us", "zmq_us")), f"{times_of_zmq(figures, size):.1f}",
                  f"{of_size(figures, size, 'copy_us'):.0f}"] for size in figures["rounds"][0]])
    yield Table(f"{WORKERS} workers, {size_text(NET_BYTES)}, links of {figures['rate']}", ["servers", "ms", "links allow, ms", "ratio"],
                [[servers, f"{seconds * 1e3:.0f}", f"{bound(figures, int(servers)) * 1e3:.0f}", f"{seconds / bound(figures, int(servers)):.2f}"]
                 for servers, seconds in figures["hosts"].items()])


def verdicts(figures):
    for size in figures["rounds"][0]:
        found = times_of_zmq(figures, size)
        yield Verdict(found >= TIMES, f"{size}: {found:.1f} times as fast as ZeroMQ, wanted {TIMES}.")
    for servers, seconds in figures["hosts"].items():
        found = seconds / bound(figures, int(servers))
        yield Verdict(found <= MOST, f"{WORKERS} workers and {servers} servers: {found:.2f} times what links allow, wanted at most {MOST}.")


Comparison("servers", __doc__, measured, tables, verdicts, page="docs/parameter-server.md", program="server_speed",
           about=lambda figures: f"medians of {len(figures['rounds'])} rounds",
           flags=(flag("--rounds", 3), flag("--steps", 100, "pushes and pulls of a size and round"), flag("--rate", "1gbit", "of every link, as tc writes it")))
