"""What each benchmark is run with, where a run does not say otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from avalanche_vilco.benchmarks.query_incremental import QueryIncrementalBenchmark
from avalanche_vilco.benchmarks.vilco_mq import vilco_mq
from avalanche_vilco.benchmarks.vilco_nlq import vilco_nlq
from avalanche_vilco.evaluation.functional.recall import Budget
from avalanche_vilco.evaluation.metrics.continual import Future
from avalanche_vilco.models.build import (
    vilco_mq_base,
    vilco_mq_base_lower,
    vilco_mq_tiny,
    vilco_mq_tiny_lower,
    vilco_nlq_base,
    vilco_nlq_tiny,
)
from avalanche_vilco.reports.results import MAIN_METRIC

MODELS: Mapping[str, Callable[..., nn.Module]] = {
    "vilco_mq_tiny": vilco_mq_tiny,
    "vilco_mq_base": vilco_mq_base,
    "vilco_mq_tiny_lower": vilco_mq_tiny_lower,
    "vilco_mq_base_lower": vilco_mq_base_lower,
    "vilco_nlq_tiny": vilco_nlq_tiny,
    "vilco_nlq_base": vilco_nlq_base,
}
"""Builders by name."""


@dataclass(frozen=True, kw_only=True)
class Hyperparameters:
    """What a run may set; the defaults of a benchmark suit its embedded data."""

    model: str
    """Name in :data:`MODELS`."""
    epochs: int
    batch_size: int
    eval_batch_size: int
    learning_rate: float = 2e-3
    weight_decay: float = 1e-2


@dataclass(frozen=True, kw_only=True)
class BenchmarkSettings:
    """A benchmark by name."""

    build: Callable[..., QueryIncrementalBenchmark]
    defaults: Hyperparameters
    budgets: tuple[Budget, ...]
    """Recalls that are measured: ``"per_gt"`` is R@kx, ``"fixed"`` R@k."""
    future: Future
    """Whether experiences not yet learnt have a score."""
    main_metric: str
    """The one that is told while a run goes on."""
    strategy_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Options that differ from the registry's, by strategy."""
    has_quirks: bool = False
    """Whether the public recipe's parts have names here."""


BENCHMARKS: Mapping[str, BenchmarkSettings] = {
    "vilco_mq": BenchmarkSettings(
        build=vilco_mq,
        defaults=Hyperparameters(
            model="vilco_mq_tiny", epochs=7, batch_size=8, eval_batch_size=16
        ),
        budgets=("per_gt", "fixed"),
        future="nan",
        main_metric=MAIN_METRIC,
        has_quirks=True,
    ),
    "vilco_nlq": BenchmarkSettings(
        build=vilco_nlq,
        defaults=Hyperparameters(
            model="vilco_nlq_tiny", epochs=4, batch_size=8, eval_batch_size=64
        ),
        # A question has one window, so R@kx is R@k.
        budgets=("fixed",),
        future="value",
        main_metric="Recall@1_tIoU0.3",
        strategy_options={"vilco": {"prompt_mode": "prepend"}},
    ),
}
"""Benchmarks by name."""
