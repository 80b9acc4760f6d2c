"""Compares moves of a matrix from 4 hosts, which have its rows, to 4 other hosts with the time that their links allow, and with a gather
at one host and a broadcast. Takes root.

Network namespaces stand for hosts, of one rank each; a token bucket holds every end of a cable between them to the rate. By columns, each
host sends and receives a fourth of the matrix; as copies, each target receives all of it. Exits 1 if a move takes over 1.1 times as long as
links allow.
"""
from perf.comparisons import namespaces
from perf.comparisons.harness import Comparison, Table, flag
from perf.comparisons.programs import last_json
from perf.pages.text import Verdict

HOSTS, MOST = 8, 1.1
KINDS = {"columns": ("rows of 4 hosts to columns of 4 others", 4), "copies": ("rows of 4 hosts to a copy on each of 4 others", 1)}


def measured(options):
    namespaces.require()
    with namespaces.Network([1] * HOSTS, options.rate) as network:
        found = last_json(network.output_of([options.program, "--nproc", 0, "--mib", options.mib, "--rounds", options.rounds]))
    yield {"rate": options.rate, "rounds": options.rounds, **found}


def bound(figures, kind):
    return figures["bytes"] / KINDS[kind][1] / namespaces.bytes_per_second(figures["rate"])


def tables(figures):
    rows = [[KINDS[kind][0], f"{figures[kind + '_s'] * 1e3:.0f}", f"{bound(figures, kind) * 1e3:.0f}",
             f"{figures[kind + '_s'] / bound(figures, kind):.3f}", f"{figures['broadcast_s'] / figures[kind + '_s']:.1f}"] for kind in KINDS]
    yield Table("", ["move", "ms", "links allow, ms", "ratio", "gather and broadcast, over it"], rows)


def verdicts(figures):
    for kind, (text, _) in KINDS.items():
        ratio = figures[kind + "_s"] / bound(figures, kind)
        yield Verdict(ratio <= MOST, f"{text}: {ratio:.3f} times what links allow, wanted at most {MOST}.")


Comparison("moves", __doc__, measured, tables, verdicts, page="docs/moves.md", program="move_speed",
           about=lambda figures: f"{figures['bytes'] >> 20} MiB of fp32, links of {figures['rate']}; medians of {figures['rounds']} moves",
           flags=(flag("--mib", 64, "of the matrix"), flag("--rounds", 3, "timed moves of each kind"), flag("--rate", "1gbit", "of every link, as tc writes it")))
