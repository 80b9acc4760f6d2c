"""Sides that run in turn, round by round: in every round each side once, in every second round in reverse order. Ratios are of the
same round, and a table has their medians."""
import statistics
import sys


def in_turn(sides, count, start, before=lambda: None):
    """The figures of every side in every round; start(side) runs a side and returns its figures. before() begins each round."""
    rounds = []
    for i in range(count):
        before()
        rounds.append({side: start(side) for side in (sides if i % 2 == 0 else sides[::-1])})
        print(f"round {i + 1} of {count}: " + ", ".join(f"{side} {rounds[-1][side]['tokens_per_s']:.0f}" for side in sides) + " tokens/s",
              file=sys.stderr)
    return rounds


def median(rounds, side, key):
    """None where the side has no such figure."""
    values = [each[side][key] for each in rounds if key in each[side]]
    return statistics.median(values) if values else None


def ratio(rounds, side, other, key="tokens_per_s"):
    return statistics.median(each[side][key] / each[other][key] for each in rounds)


def given_or(value, default):
    """Of a flag whose default depends on the part that is measured."""
    return default if value is None else value
