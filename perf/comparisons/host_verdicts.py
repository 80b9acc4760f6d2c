"""Verdicts on the figures of `./dev perf host`: what is asked of collectives on one host, and whether that holds."""
import math

from perf.pages.text import Verdict, beside, size_text, time_text

# The forms in which each peer is run. At each size, the fastest of them counts.
PEERS = {"Open MPI": ["openmpi", "openmpi_ucx", "openmpi_sm"], "MPICH": ["mpich"], "Gloo": ["gloo"]}
ALL_REDUCE = "all_reduce"
OTHERS = ["reduce_scatter", "all_gather", "all_to_all", "broadcast"]
LARGEST = 64 << 20
LIMIT_SIZES = [1 << 20, 4 << 20, 16 << 20, LARGEST]
OTHER_LIMITS = ["all_gather", "all_to_all"]  # of which the bare loop is measured, too


def side(figures, collective, ranks, name):
    """Microseconds of one side, by size; empty if it was not measured."""
    times = figures["times"].get(collective, {}).get(str(ranks), {}).get(name, {})
    return {int(size): us for size, us in times.items()}


def fastest(figures, collective, ranks, names):
    """Microseconds of the fastest of several sides, by size."""
    best = {}
    for name in names:
        for size, us in side(figures, collective, ranks, name).items():
            best[size] = min(best.get(size, math.inf), us)
    return best


def best_peer(figures, collective, ranks):
    return fastest(figures, collective, ranks, sum(PEERS.values(), []))


def ratios(figures, collective, ranks, name):
    """By size: the best peer's time over that of one of our sides."""
    ours = side(figures, collective, ranks, name)
    return {size: us / ours[size] for size, us in sorted(best_peer(figures, collective, ranks).items()) if size in ours}


def bare_loops(figures, collective, ranks):
    """Microseconds of a loop that does the collective's work without any library, by size; empty if it was not measured."""
    loops = figures["limit"].get(str(ranks), {}).get("loops", {}).get(collective, {})
    return {int(size): us for size, us in loops.items()}


def geometric_mean(values):
    values = list(values)
    return math.exp(sum(map(math.log, values)) / len(values))


def unmeasured(what):
    return Verdict(None, what)


def everywhere(what, by_size, least, strictly=False):
    if not by_size:
        return unmeasured(what)
    size, worst = min(by_size.items(), key=lambda item: item[1])
    sign = ">" if strictly else ">="
    return Verdict(worst > least if strictly else worst >= least,
                   f"{what}: best peer / Stretto {sign} {least} at every size; least {beside(worst, least)}, at {size_text(size)}")


def on_average(what, by_size, least):
    if not by_size:
        return unmeasured(what)
    mean = geometric_mean(by_size.values())
    return Verdict(mean >= least, f"{what}: geometric mean of best peer / Stretto >= {least}; {beside(mean, least)} over {len(by_size)} sizes")


def at_most(what, us, limit, why):
    return Verdict(us <= limit, f"{what}: at most {time_text(limit)} ({why}); {time_text(us)}")


def within(what, ours, loops, sizes, most):
    """Asks for at most so many times the bare loop's time at each of the sizes."""
    factors = {size: ours[size] / loops[size] for size in sizes if size in ours and size in loops}
    if len(factors) < len(sizes):
        return unmeasured(f"{what}, beside the bare loop")
    size, worst = max(factors.items(), key=lambda item: item[1])
    return Verdict(worst <= most, f"{what}: at most {most} times the bare loop; {beside(worst, most)} times {time_text(loops[size])}, at {size_text(size)}")


def eight_bytes(what, us, absolute, factor, exchange):
    """Asks for an absolute time or, on cores that are further apart, for a multiple of the time in which they exchange a cache line."""
    if us is None:
        return unmeasured(what)
    if exchange is None or absolute >= factor * exchange:
        why = "absolutely" if exchange is None else f"absolutely; {factor} times the bare exchange would be {time_text(factor * exchange)}"
        return at_most(what, us, absolute, why)
    return at_most(what, us, factor * exchange,
                   f"{factor} times the bare exchange of {time_text(exchange)}; absolutely it would be {time_text(absolute)}")


def exchanges(what, us, factor, exchange):
    """Asks for at most so many times the bare exchange."""
    if us is None or exchange is None:
        return unmeasured(f"{what}, beside the bare exchange")
    return at_most(what, us, factor * exchange, f"{factor} times the bare exchange of {time_text(exchange)}")


def two_ranks(figures):
    symmetric = ratios(figures, ALL_REDUCE, 2, "symmetric")
    malloc = ratios(figures, ALL_REDUCE, 2, "malloc")
    limit = figures["limit"].get("2", {})
    ours = side(figures, ALL_REDUCE, 2, "symmetric")
    what = "all_reduce, 2 ranks, symmetric"
    yield everywhere(what, symmetric, 1, strictly=True)
    yield on_average(what, symmetric, 2.5)
    yield eight_bytes(f"{what}, 8 B", ours.get(8), 0.14, 1.8, limit.get("exchange_us"))
    prepared = side(figures, ALL_REDUCE, 2, "prepared")
    yield exchanges(f"{what}, 8 B, prepared", prepared.get(8), 1.28, limit.get("exchange_us"))
    yield everywhere(f"{what}, 64 MiB", {size: ratio for size, ratio in symmetric.items() if size == LARGEST}, 2)
    yield within(f"{what}, 64 MiB", ours, bare_loops(figures, ALL_REDUCE, 2), [LARGEST], 1.25)
    what = "all_reduce, 2 ranks, malloc"
    yield on_average(what, malloc, 1.3)
    yield everywhere(what, malloc, 1)
    for collective in OTHERS:
        what = f"{collective}, 2 ranks, symmetric"
        by_size = ratios(figures, collective, 2, "symmetric")
        yield on_average(what, by_size, 1.5)
        yield everywhere(what, by_size, 1)
        yield everywhere(f"{collective}, 2 ranks, malloc", ratios(figures, collective, 2, "malloc"), 1)
        if collective in OTHER_LIMITS:
            ours = side(figures, collective, 2, "symmetric")
            yield within(f"{what}, 1 to 16 MiB", ours, bare_loops(figures, collective, 2), LIMIT_SIZES[:-1], 1.15)


def more_ranks(figures):
    for ranks in (4, 8):
        yield everywhere(f"all_reduce, {ranks} ranks, symmetric", ratios(figures, ALL_REDUCE, ranks, "symmetric"), 3)
        yield everywhere(f"all_reduce, {ranks} ranks, malloc", ratios(figures, ALL_REDUCE, ranks, "malloc"), 1.5)
        ours = side(figures, ALL_REDUCE, ranks, "symmetric").get(8)
        exchange = figures["limit"].get(str(ranks), {}).get("exchange_us")
        yield exchanges(f"all_reduce, {ranks} ranks, symmetric, 8 B", ours, 1.25, exchange)
    ours = side(figures, ALL_REDUCE, 4, "symmetric").get(8)
    what = "all_reduce, 4 ranks, symmetric, 8 B"
    yield unmeasured(what) if ours is None else Verdict(ours < 4, f"{what}: under 4 us; {time_text(ours)}")


def complete(figures):
    """Stretto gave no wrong value, and a full run has every peer at every size."""
    if figures["wrong"]:
        yield Verdict(False, f"Stretto gave wrong values: {'; '.join(figures['wrong'])}")
    if figures["partial"]:
        return
    for ranks in (2, 4, 8):
        sides = {"Stretto, symmetric": ["symmetric"], "Stretto, malloc": ["malloc"], **PEERS}
        missing = [name for name, forms in sides.items() if len(fastest(figures, ALL_REDUCE, ranks, forms)) < len(figures["sizes"])]
        if missing:
            yield Verdict(False, f"all_reduce, {ranks} ranks: {', '.join(missing)} were not measured at all sizes")


def verdicts(figures):
    return [*two_ranks(figures), *more_ranks(figures), *complete(figures)]


def falls_short(figures):
    """Whether any verdict fails. In a full run, a figure that was not measured fails as well."""
    return any(verdict.holds is False or (verdict.holds is None and not figures["partial"]) for verdict in verdicts(figures))
