"""What is asked of the figures of `./dev perf host`, and whether it holds."""
import math

from perf.pages.text import Verdict, beside, size_text, time_text

# The forms in which each peer is run. At each size, the fastest of them counts.
PEERS = {"Open MPI": ["openmpi", "openmpi_ucx", "openmpi_sm", "ompi5", "ompi5_ucx", "ompi5_sm"], "MPICH": ["mpich", "mpich5"], "Intel MPI": ["impi"],
         "Gloo": ["gloo"]}
ALL_REDUCE = "all_reduce"
OTHERS = ["reduce_scatter", "all_gather", "all_to_all", "broadcast"]
RANKS = (2, 4, 8)
LARGEST = 64 << 20
LIMIT_SIZES = [1 << 20, 4 << 20, 16 << 20, LARGEST]
OTHER_LIMITS = ["all_gather", "all_to_all"]  # of which the bare loop is measured, too


def side(figures, collective, ranks, *names):
    """Microseconds of the fastest of these sides, by size; empty if none was measured."""
    best = {}
    for name in names:
        for size, us in figures["times"].get(collective, {}).get(str(ranks), {}).get(name, {}).items():
            best[int(size)] = min(best.get(int(size), math.inf), us)
    return best


def best_peer(figures, collective, ranks):
    return side(figures, collective, ranks, *sum(PEERS.values(), []))


def ratios(figures, collective, ranks, name):
    """By size: the best peer's time over that of one of our sides."""
    ours = side(figures, collective, ranks, name)
    return {size: us / ours[size] for size, us in sorted(best_peer(figures, collective, ranks).items()) if size in ours}


def exchange_us(figures, ranks):
    return figures["limit"].get(str(ranks), {}).get("exchange_us")


def bare_loops(figures, collective, ranks):
    """Microseconds of a loop that does the collective's work without any library, by size; empty if it was not measured."""
    loops = figures["limit"].get(str(ranks), {}).get("loops", {}).get(collective, {})
    return {int(size): us for size, us in loops.items()}


def geometric_mean(values):
    values = list(values)
    return math.exp(sum(map(math.log, values)) / len(values))


def everywhere(what, by_size, least, strictly=False):
    if not by_size:
        return Verdict(None, what)
    size, worst = min(by_size.items(), key=lambda item: item[1])
    return Verdict(worst > least if strictly else worst >= least,
                   f"{what}: best peer / Stretto {'>' if strictly else '>='} {least} at every size; least {beside(worst, least)}, at {size_text(size)}")


def on_average(what, by_size, least):
    if not by_size:
        return Verdict(None, what)
    mean = geometric_mean(by_size.values())
    return Verdict(mean >= least, f"{what}: geometric mean of best peer / Stretto >= {least}; {beside(mean, least)} over {len(by_size)} sizes")


def within(what, ours, loops, sizes, most):
    """Asks for at most so many times the bare loop's time at each of the sizes."""
    factors = {size: ours[size] / loops[size] for size in sizes if size in ours and size in loops}
    if len(factors) < len(sizes):
        return Verdict(None, f"{what}, beside the bare loop")
    size, worst = max(factors.items(), key=lambda item: item[1])
    return Verdict(worst <= most, f"{what}: at most {most} times the bare loop; {beside(worst, most)} times {time_text(loops[size])}, at {size_text(size)}")


def exchanges(what, us, factor, exchange, absolute=0):
    """Asks for at most so many times the bare exchange or, if that is more, for an absolute time."""
    if us is None or exchange is None:
        return Verdict(None, f"{what}, beside the bare exchange")
    limit = max(absolute, factor * exchange)
    why = f"{factor} times the bare exchange of {time_text(exchange)}"
    return Verdict(us <= limit, f"{what}: at most {time_text(limit)} ({f'absolutely; {why} is less' if limit == absolute else why}); {time_text(us)}")


def two_ranks(figures):
    symmetric, malloc = (ratios(figures, ALL_REDUCE, 2, name) for name in ("symmetric", "malloc"))
    exchange = exchange_us(figures, 2)
    ours = side(figures, ALL_REDUCE, 2, "symmetric")
    what = "all_reduce, 2 ranks, symmetric"
    yield everywhere(what, symmetric, 1, strictly=True)
    yield on_average(what, symmetric, 2.5)
    yield exchanges(f"{what}, 8 B", ours.get(8), 1.8, exchange, absolute=0.14)
    yield exchanges(f"{what}, 8 B, prepared", side(figures, ALL_REDUCE, 2, "prepared").get(8), 1.28, exchange)
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
    for ranks in RANKS[1:]:
        yield everywhere(f"all_reduce, {ranks} ranks, symmetric", ratios(figures, ALL_REDUCE, ranks, "symmetric"), 3)
        yield everywhere(f"all_reduce, {ranks} ranks, malloc", ratios(figures, ALL_REDUCE, ranks, "malloc"), 1.5)
        ours = side(figures, ALL_REDUCE, ranks, "symmetric").get(8)
        what = f"all_reduce, {ranks} ranks, symmetric, 8 B"
        yield exchanges(what, ours, 1.25, exchange_us(figures, ranks))
        if ranks == 4:
            yield Verdict(None, what) if ours is None else Verdict(ours < 4, f"{what}: under 4 us; {time_text(ours)}")


def complete(figures):
    """Stretto gave no wrong value, and a full run has every peer at every size."""
    if figures["wrong"]:
        yield Verdict(False, f"Stretto gave wrong values: {'; '.join(figures['wrong'])}")
    if figures["partial"]:
        return
    for ranks in RANKS:
        sides = {"Stretto, symmetric": ["symmetric"], "Stretto, malloc": ["malloc"], **PEERS}
        if "impi" not in figures["versions"]:
            del sides["Intel MPI"]
        missing = [name for name, forms in sides.items() if len(side(figures, ALL_REDUCE, ranks, *forms)) < len(figures["sizes"])]
        if missing:
            yield Verdict(False, f"all_reduce, {ranks} ranks: {', '.join(missing)} were not measured at all sizes")


def verdicts(figures):
    return [*two_ranks(figures), *more_ranks(figures), *complete(figures)]
