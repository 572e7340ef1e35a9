"""One number over several seeds: mean, spread and a bootstrap interval."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


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
    confidence: float = 0.95,
    n_resamples: int = 10_000,
    seed: int = 0,
) -> SeedSummary:
    """Mean, standard deviation and percentile-bootstrap interval of the mean.

    A run without the number (NaN) makes all of them NaN: leaving it out would flatter
    a method that fails on some seeds.

    >>> summarise_seeds([0.30, 0.34, 0.32]).mean
    0.32

    :param values: the number in each run.
    :param confidence: share of resampled means inside the interval, in (0, 1).
    :param n_resamples: number of resamples, >= 1.
    :param seed: seed of the resampling.
    :return: the summary.
    :raises ValueError: if there are no runs or an option is out of range.
    """
    runs = np.asarray(values, dtype=np.float64)
    if runs.ndim != 1 or not len(runs):
        raise ValueError(f"expected one number or more per seed but got {values}")
    if not 0 < confidence < 1:
        raise ValueError(f"expected confidence in (0, 1) but got {confidence}")
    if n_resamples < 1:
        raise ValueError(f"expected n_resamples >= 1 but got {n_resamples}")
    mean = float(runs.mean())
    if len(runs) == 1 or math.isnan(mean):
        return SeedSummary(len(runs), mean, math.nan, math.nan, math.nan)
    draws = np.random.default_rng(seed).integers(
        len(runs), size=(n_resamples, len(runs))
    )
    tail = (1 - confidence) / 2
    low, high = np.quantile(runs[draws].mean(axis=1), [tail, 1 - tail])
    return SeedSummary(
        len(runs), mean, float(runs.std(ddof=1)), float(low), float(high)
    )
