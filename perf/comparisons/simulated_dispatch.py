"""Simulates how a controller's functions reach many hosts, from what a message and the step to the next function cost."""

IN_FLIGHT = 2  # runs, as ProgramRuntime has them
WAYS = ("parallel", "sequential", "op_by_op")  # Dispatch in stretto/program.hpp


def seconds_of_a_function(way, hosts, function, message, between, functions, runs=12):
    """What a function of a chain takes on average, in the second half of the runs. Each function takes `function` seconds, and begins on all
    hosts at once, `between` seconds behind the one before. The scheduler handles one message after the other, to hosts and from them, each in
    `message` seconds."""
    handle = hosts * message
    scheduler = hosts_free = 0.0
    granted, ends = [], []

    def grant(at):
        nonlocal scheduler
        scheduler = max(scheduler, at) + handle
        granted.append(scheduler)

    for _ in range(IN_FLIGHT):
        grant(0)
    for run in range(runs):
        now = max(granted[run], hosts_free)
        for place in range(functions):
            begin = now + between
            now = begin + function
            if place + 1 == functions or way == "parallel":
                continue
            reported = begin if way == "sequential" else now
            scheduler = max(scheduler, reported) + 2 * handle  # the reports, and the messages to go on
            now = max(now, scheduler)
        hosts_free = now
        ends.append(now)
        scheduler = max(scheduler, now) + handle
        grant(scheduler)
    half = runs // 2
    return (ends[-1] - ends[half - 1]) / (functions * (runs - half))


def parity(way, hosts, message, between, functions, share=0.95):
    """The shortest function with which a program has that share of the throughput of a loop without a controller."""
    low, high = 1e-9, 1e3
    for _ in range(60):
        middle = (low * high) ** 0.5
        if middle >= share * seconds_of_a_function(way, hosts, middle, message, between, functions):
            high = middle
        else:
            low = middle
    return high
