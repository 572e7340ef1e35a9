"""One number over several seeds: mean, spread and an interval of the mean."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

N_RESAMPLES = 10_000
"""Resamples of a bootstrap."""

Interval = Literal["bootstrap", "t"]


class SeedSummary(NamedTuple):
    """A number over seeds.

    :param n_seeds: number of runs.
    :param mean: mean of the runs.
    :param std: sample standard deviation (n - 1), NaN for one run.
    :param low: lower end of the interval of the mean, NaN for one run.
    :param high: upper end.
    """

    n_seeds: int
    mean: float
    std: float
    low: float
    high: float


def summarise_seeds(
    values: Sequence[float],
    *,
    interval: Interval = "bootstrap",
    confidence: float = 0.95,
    seed: int = 0,
) -> SeedSummary:
    """Mean, standard deviation and interval of the mean.

    A run without the number (NaN) makes all of them NaN: leaving it out would flatter
    a method that fails on some seeds.

    >>> summarise_seeds([0.30, 0.34, 0.32]).mean
    0.32

    :param values: the number in each run.
    :param interval: "bootstrap" for percentiles of resampled means, which never leave
        the range of the runs; "t" for Student's t, which is honest about few seeds.
    :param confidence: of the interval, in (0, 1).
    :param seed: seed of the resampling.
    :return: the summary.
    :raises ValueError: if there are no runs or an option is out of range.
    """
    runs = np.asarray(values, dtype=np.float64)
    if runs.ndim != 1 or not len(runs):
        raise ValueError(f"expected one number or more per seed but got {values}")
    if not 0 < confidence < 1:
        raise ValueError(f"expected confidence in (0, 1) but got {confidence}")
    if interval not in ("bootstrap", "t"):
        raise ValueError(f"expected interval 'bootstrap' or 't' but got {interval!r}")
    mean = float(runs.mean())
    if len(runs) == 1 or math.isnan(mean):
        return SeedSummary(len(runs), mean, math.nan, math.nan, math.nan)
    std = float(runs.std(ddof=1))
    if interval == "t":
        from scipy.stats import t

        half = (
            std
            / math.sqrt(len(runs))
            * float(t.ppf((1 + confidence) / 2, len(runs) - 1))
        )
        return SeedSummary(len(runs), mean, std, mean - half, mean + half)
    draws = np.random.default_rng(seed).integers(
        len(runs), size=(N_RESAMPLES, len(runs))
    )
    tail = (1 - confidence) / 2
    low, high = np.quantile(runs[draws].mean(axis=1), [tail, 1 - tail])
    return SeedSummary(len(runs), mean, std, float(low), float(high))
