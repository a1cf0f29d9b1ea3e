"""The arithmetic behind every published number, on plain lists: order of trials, drop rule, ratios, means."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

NULL_LIMIT = 0.01  # a pass whose two identical arms differ by more is dropped


def trial_orders(count: int) -> list[list[int]]:
    """The orders in which `count` arms run, one list a trial: a Williams design.

    Each arm stands at each place equally often, and each arm follows each other arm equally often, so neither drift
    nor what a neighbour leaves in the caches favours anyone. An even count needs `count` orders, an odd one twice as
    many.
    """
    if count < 1:
        raise ValueError(f"count: {count}, at least one arm is needed")
    zigzag = [(position + 1) // 2 if position % 2 else (count - position // 2) % count for position in range(count)]
    orders = [[(arm + shift) % count for arm in zigzag] for shift in range(count)]
    if count > 1 and count % 2:
        orders += [order[::-1] for order in orders]
    return orders


def rounded_trials(wanted: int, arms: int) -> int:
    """The number of trials, at least `wanted`, that completes the design of `trial_orders`."""
    length = len(trial_orders(arms))
    return -(-wanted // length) * length


def quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile."""
    if len(samples) == 1:
        return samples[0], samples[0], samples[0]
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return low, middle, high


def null_difference(first: Sequence[float], second: Sequence[float]) -> float:
    """How far the medians of two identical arms lie apart, as a share of the smaller one."""
    a, b = statistics.median(first), statistics.median(second)
    return abs(a - b) / min(a, b)


@dataclass(frozen=True)
class Kept:
    """What the drop rule left of a cell: which passes count, and the smallest difference that may be claimed."""

    passes: tuple[int, ...]
    dropped: int
    resolution: float


def drop_rule(passes: Sequence[Mapping[str, Sequence[float]]], arm: str, twin: str, limit: float = NULL_LIMIT) -> Kept:
    """Keep the passes whose two identical arms agree within `limit`.

    `resolution` is the null difference of the worst kept pass: nothing smaller is claimed. With no pass kept it is
    infinite.
    """
    differences = [null_difference(samples[arm], samples[twin]) for samples in passes]
    kept = tuple(index for index, difference in enumerate(differences) if difference <= limit)
    resolution = max((differences[index] for index in kept), default=math.inf)
    return Kept(kept, len(passes) - len(kept), resolution)


@dataclass(frozen=True)
class Ratio:
    """A ratio of medians, with the quartiles of the trial-by-trial ratios beside it."""

    value: float
    low: float
    high: float


def ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Ratio:
    """Both sequences hold one sample a trial, in the order of the trials."""
    if len(numerator) != len(denominator):
        raise ValueError(f"numerator: {len(numerator)} trials, denominator: {len(denominator)}, they must be pairs")
    low, _, high = quartiles([a / b for a, b in zip(numerator, denominator)])
    return Ratio(statistics.median(numerator) / statistics.median(denominator), low, high)


def geometric_mean(values: Sequence[float]) -> float:
    if not values:
        raise ValueError("values: empty, a geometric mean needs at least one")
    return math.exp(statistics.fmean(math.log(value) for value in values))
