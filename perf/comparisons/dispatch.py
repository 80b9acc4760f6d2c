"""Compares the ways in which the functions of a controller's program reach executors, and a loop without a controller.

A program is a chain of functions, each of which is an all-reduce of 8 bytes over all executors, in processes of one host. A run's time is
the client's, from run() until its wait() returns. Exits 1 if an executor takes over 50 us between two functions of a chain, on 2 executors
by parallel dispatch. Where executors outnumber cores, most of a function's time is the kernel's, which lets them take turns.

What a message to an executor and back costs on 2 executors, and the time between two functions, then go into a simulation of many hosts.
"""
import statistics

from perf.comparisons.harness import Comparison, Table, flag, rounds_of
from perf.comparisons.programs import last_json, run
from perf.comparisons.simulated_dispatch import WAYS as SIMULATED_WAYS, parity, seconds_of_a_function
from perf.pages.text import Verdict

EXECUTORS, MOST = (2, 4, 8), 50
WAYS = {"loop_us": "a loop, us", "parallel_us": "parallel, us", "sequential_us": "sequential, us", "op_by_op_us": "op by op, us",
        "between_us": "parallel, between two functions, us"}
MARGIN = 19  # an overhead of a twentieth of the whole is a nineteenth of the function
HOSTS, FUNCTION_MS = (16, 512), (0.1, 1, 10, 100)  # simulated


def measured(options):
    figures = {"functions": options.functions, "rounds": []}
    for _ in rounds_of(options.rounds):
        figures["rounds"].append({str(executors): last_json(run([options.program, "--executors", executors, "--functions", options.functions,
                                                                 "--runs", options.runs]).stdout) for executors in EXECUTORS})
    yield figures


def of(figures, executors, key):
    return statistics.median(each[str(executors)][key] for each in figures["rounds"])


def tables(figures):
    yield Table("a function of the chain", ["executors", *WAYS.values(), "shortest function for which op by op costs at most 5%, us"],
                [[str(executors), *(f"{of(figures, executors, key):.1f}" for key in WAYS),
                  f"{MARGIN * max(0, of(figures, executors, 'op_by_op_us') - of(figures, executors, 'loop_us')):.0f}"] for executors in EXECUTORS])
    between = of(figures, 2, "between_us")
    message = max(0, of(figures, 2, "op_by_op_us") - of(figures, 2, "loop_us") - between) / 4  # two hosts, there and back
    costs = (message * 1e-6, between * 1e-6, figures["functions"])
    rows = []
    for hosts in HOSTS:
        for way in SIMULATED_WAYS:
            shares = [milliseconds * 1e-3 / seconds_of_a_function(way, hosts, milliseconds * 1e-3, *costs) for milliseconds in FUNCTION_MS]
            rows.append([str(hosts), way.replace("_", " "), *(f"{100 * share:.0f}%" for share in shares), f"{float(f'{parity(way, hosts, *costs) * 1e3:.2g}'):g}"])
    yield Table(f"simulated, with {message:.1f} us a message: throughput by the time of a function, of that of a loop without a controller",
                ["hosts", "dispatch", *(f"{milliseconds:g} ms" for milliseconds in FUNCTION_MS), "95% from, ms"], rows)


def verdicts(figures):
    found = of(figures, 2, "between_us")
    yield Verdict(found <= MOST, f"2 executors: {found:.1f} us between two functions, wanted at most {MOST}.")


Comparison("dispatch", __doc__, measured, tables, verdicts, page="docs/programs.md", program="dispatch_speed",
           about=lambda figures: f"chains of {figures['functions']} functions, medians of {len(figures['rounds'])} rounds",
           flags=(flag("--rounds", 3), flag("--functions", 64, "of the chain"), flag("--runs", 50, "of each way and round")))
