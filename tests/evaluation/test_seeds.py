import doctest
import math
import statistics

import pytest

from avalanche_vilco.evaluation import seeds as module
from avalanche_vilco.evaluation.seeds import summarise_seeds


def test_the_example_in_the_documentation_holds():
    assert doctest.testmod(module).attempted == 1
    assert doctest.testmod(module).failed == 0


def test_mean_and_sample_deviation_are_those_of_the_textbook():
    runs = [0.30, 0.36, 0.33, 0.41]
    summary = summarise_seeds(runs)
    assert summary.n_seeds == 4
    assert summary.mean == pytest.approx(statistics.mean(runs))
    assert summary.std == pytest.approx(statistics.stdev(runs))
    assert min(runs) <= summary.low < summary.mean < summary.high <= max(runs)
    assert summarise_seeds(runs) == summary


def test_more_confidence_is_a_wider_interval():
    runs = [0.1, 0.5, 0.2, 0.9, 0.4]
    narrow = summarise_seeds(runs, confidence=0.5)
    wide = summarise_seeds(runs, confidence=0.99)
    assert wide.low < narrow.low < narrow.high < wide.high


def test_one_seed_has_no_spread_and_an_unknown_run_makes_all_unknown():
    one = summarise_seeds([0.25])
    assert one.mean == 0.25
    assert all(map(math.isnan, (one.std, one.low, one.high)))
    assert all(map(math.isnan, summarise_seeds([0.25, math.nan])[1:]))


def test_the_interval_of_student_is_that_of_the_textbook():
    """t = 3.182 for 95 % and three degrees of freedom."""
    runs = [0.30, 0.36, 0.33, 0.41]
    summary = summarise_seeds(runs, interval="t")
    half = 3.1824463 * statistics.stdev(runs) / 2
    assert summary.low == pytest.approx(statistics.mean(runs) - half)
    assert summary.high == pytest.approx(statistics.mean(runs) + half)
    assert summary[:3] == summarise_seeds(runs)[:3]


@pytest.mark.parametrize(
    "runs, options, message",
    [
        ([0.5], {"interval": "z"}, "interval 'bootstrap' or 't' but got 'z'"),
        ([], {}, r"one number or more per seed but got \[\]"),
        ([0.5], {"confidence": 95}, "confidence in .* but got 95"),
    ],
)
def test_impossible_requests_are_refused(runs, options, message):
    with pytest.raises(ValueError, match=message):
        summarise_seeds(runs, **options)
