"""The arithmetic of the benchmark, on plain numbers: nothing here is timed."""

import itertools
import math
from collections import Counter

import pytest

from edge_ops.bench import stats


@pytest.mark.parametrize("count", [1, 2, 3, 6, 7, 11])  # one arm, a pair, odd and even
def test_every_arm_stands_at_every_place_equally_often(count):
    orders = stats.trial_orders(count)
    assert all(sorted(order) == list(range(count)) for order in orders)
    for place in range(count):
        assert set(Counter(order[place] for order in orders).values()) == {len(orders) // count}


@pytest.mark.parametrize("count", [2, 3, 6, 7, 11])
def test_every_arm_follows_every_other_equally_often(count):
    followed = Counter(pair for order in stats.trial_orders(count) for pair in itertools.pairwise(order))
    assert set(followed) == {(a, b) for a in range(count) for b in range(count) if a != b}
    assert len(set(followed.values())) == 1


def test_no_arm_has_no_order():
    with pytest.raises(ValueError, match="at least one arm"):
        stats.trial_orders(0)


@pytest.mark.parametrize("wanted, arms, expected", [(24, 6, 24), (25, 6, 30), (1, 5, 10), (20, 11, 22)])
def test_trials_complete_the_design(wanted, arms, expected):
    assert stats.rounded_trials(wanted, arms) == expected


def test_quartiles():
    assert stats.quartiles([4.0, 1.0, 2.0, 3.0, 5.0]) == (2.0, 3.0, 4.0)
    assert stats.quartiles([7.0]) == (7.0, 7.0, 7.0)


def test_null_difference_is_a_share_of_the_smaller_median_whichever_comes_first():
    assert stats.null_difference([100.0, 1.0, 900.0], [102.0]) == pytest.approx(0.02)
    assert stats.null_difference([102.0], [100.0]) == pytest.approx(0.02)


def _pass(arm, twin):
    return {"a": [arm] * 3, "a (twin)": [twin] * 3}


def test_drop_rule_keeps_up_to_the_limit_and_counts_the_rest():
    passes = [_pass(100, 100.2), _pass(100, 103), _pass(100.5, 100), _pass(90, 100)]
    kept = stats.drop_rule(passes, "a", "a (twin)")
    assert kept.passes == (0, 2)
    assert kept.dropped == 2
    assert kept.resolution == pytest.approx(0.005)  # of the worst kept pass, not of the dropped ones


def test_drop_rule_limit_is_inclusive():
    assert stats.drop_rule([_pass(100, 101)], "a", "a (twin)", limit=0.01).passes == (0,)
    assert stats.drop_rule([_pass(100, 101.001)], "a", "a (twin)", limit=0.01).passes == ()


def test_nothing_is_claimed_without_a_kept_pass():
    kept = stats.drop_rule([_pass(100, 150)], "a", "a (twin)")
    assert kept.passes == () and kept.dropped == 1
    assert kept.resolution == math.inf


def test_ratio_is_of_medians_and_its_quartiles_of_pairs():
    # Drift doubles both arms half-way: the paired ratios do not see it.
    slow, fast = [20.0, 21.0, 40.0, 42.0, 44.0], [10.0, 10.0, 20.0, 20.0, 20.0]
    found = stats.ratio(slow, fast)
    assert found.value == 2.0
    assert (found.low, found.high) == pytest.approx((2.0, 2.1))


def test_ratio_wants_pairs():
    with pytest.raises(ValueError, match="must be pairs"):
        stats.ratio([1.0, 2.0, 3.0], [1.0, 2.0])


def test_geometric_mean_of_a_ratio_and_its_inverse_is_one():
    assert stats.geometric_mean([4.0, 0.25]) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="empty"):
        stats.geometric_mean([])
