"""What each benchmark is run with, where a run does not say otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import nn

from avalanche_vilco.benchmarks.scenario import QueryIncrementalScenario
from avalanche_vilco.benchmarks.vilco_mq.deviations import ReferenceDeviations
from avalanche_vilco.benchmarks.vilco_mq.generator import vilco_mq
from avalanche_vilco.benchmarks.vilco_mq.models import (
    vilco_mq_base,
    vilco_mq_base_lower,
    vilco_mq_tiny,
    vilco_mq_tiny_lower,
)
from avalanche_vilco.benchmarks.vilco_nlq.generator import vilco_nlq
from avalanche_vilco.benchmarks.vilco_nlq.models import vilco_nlq_base, vilco_nlq_tiny
from avalanche_vilco.benchmarks.vilco_vq.generator import vilco_vq
from avalanche_vilco.benchmarks.vilco_vq.models import vilco_vq_base, vilco_vq_tiny
from avalanche_vilco.evaluation.functional.recall import Budget
from avalanche_vilco.evaluation.metrics.continual import Future
from avalanche_vilco.evaluation.metrics.emission import MetricState
from avalanche_vilco.evaluation.metrics.recall import MomentRecall
from avalanche_vilco.evaluation.metrics.response_track import ResponseTrackMetrics
from avalanche_vilco.models.anchors import TRACK_REGRESSION_CHANNELS
from avalanche_vilco.models.losses import MomentLoss
from avalanche_vilco.models.output import MOMENT_REGRESSION_CHANNELS
from avalanche_vilco.training.plugins.best_checkpoint import BestCheckpointPlugin

MAIN_TRACK_METRIC = "stAP25"
TOP_K = (1, 5)
TIOU = (0.3, 0.5)

MODELS: Mapping[str, Callable[..., nn.Module]] = {
    "vilco_mq_tiny": vilco_mq_tiny,
    "vilco_mq_base": vilco_mq_base,
    "vilco_mq_tiny_lower": vilco_mq_tiny_lower,
    "vilco_mq_base_lower": vilco_mq_base_lower,
    "vilco_nlq_tiny": vilco_nlq_tiny,
    "vilco_nlq_base": vilco_nlq_base,
    "vilco_vq_tiny": vilco_vq_tiny,
    "vilco_vq_base": vilco_vq_base,
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

    build: Callable[..., QueryIncrementalScenario]
    defaults: Hyperparameters
    states: Callable[[], Sequence[MetricState]]
    """Makes the metrics, empty: values in [0, 1] by names that no two share."""
    states_title: str
    """What the values are, for logs."""
    selection: Callable[[str], BestCheckpointPlugin]
    """Keeps each experience's best epoch on a stream, by its name."""
    future: Future
    """Whether experiences not yet learnt have a score."""
    main_metric: str
    """The one that is told while a run goes on."""
    loss: Callable[[ReferenceDeviations], nn.Module]
    """The criterion, of a run's deviations."""
    model_arguments: Callable[[QueryIncrementalScenario], Mapping[str, Any]]
    """What a builder takes of the data."""
    n_regression: int = MOMENT_REGRESSION_CHANNELS
    """Regression channels of the model's output."""
    caches_backbone: Callable[[QueryIncrementalScenario], bool] | None = None
    """Whether a run computes the embeddings of the model's frozen ``backbone`` once,
    before it trains, unless told otherwise; None: there is no backbone."""
    strategy_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Options that differ from the registry's, by strategy."""
    has_deviations: bool = False
    """Whether the public recipe's parts have names here."""


def moment_states(*budgets: Budget) -> list[MetricState]:
    """Recall of moments.

    :param budgets: ``"per_gt"`` is R@kx, ``"fixed"`` R@k.
    """
    return [MomentRecall(k=TOP_K, tiou=TIOU, budget=budget) for budget in budgets]


def moment_loss(deviations: ReferenceDeviations) -> MomentLoss:
    """Loss of moments.

    :param deviations: of the run.
    """
    return MomentLoss(negatives=deviations.negatives)


def feature_widths(benchmark: QueryIncrementalScenario) -> dict[str, int]:
    """Widths of video features and of token features.

    :param benchmark: of moments.
    """
    return {
        "feature_dim": benchmark.info["feature_dim"],
        "text_dim": benchmark.text_dim,
    }


def track_states() -> list[MetricState]:
    """tAP, stAP, success and recovery of response tracks."""
    return [ResponseTrackMetrics()]


def track_selection(stream: str) -> BestCheckpointPlugin:
    """Best epochs by the main metric of visual queries.

    :param stream: that is scored.
    """
    return BestCheckpointPlugin(
        stream, metric=ResponseTrackMetrics(), value=MAIN_TRACK_METRIC
    )


def track_loss(deviations: ReferenceDeviations) -> nn.Module:
    """Loss of response tracks.

    :param deviations: of the run; there are none.
    """
    # Needs torchvision, which other benchmarks do without.
    from avalanche_vilco.models.visual_losses import VisualQueryLoss

    return VisualQueryLoss()


def picture_size(benchmark: QueryIncrementalScenario) -> dict[str, int]:
    """Size of the square pictures.

    :param benchmark: of visual queries.
    """
    return {"image_size": benchmark.info["image_size"]}


def is_small_and_fixed(benchmark: QueryIncrementalScenario) -> bool:
    """Whether the embeddings of all frames may be kept unasked.

    They are small, as those of the embedded default, and frames are read as they are.

    :param benchmark: of visual queries.
    """
    is_embedded = str(benchmark.info["data"]).startswith("embedded")
    return is_embedded and not benchmark.info["augment"]


BENCHMARKS: Mapping[str, BenchmarkSettings] = {
    "vilco_mq": BenchmarkSettings(
        build=vilco_mq,
        defaults=Hyperparameters(
            model="vilco_mq_tiny", epochs=7, batch_size=8, eval_batch_size=16
        ),
        states=partial(moment_states, "per_gt", "fixed"),
        states_title="Recall",
        selection=BestCheckpointPlugin,
        future="nan",
        main_metric="Recall@1x_tIoU0.5",
        loss=moment_loss,
        model_arguments=feature_widths,
        has_deviations=True,
    ),
    "vilco_nlq": BenchmarkSettings(
        build=vilco_nlq,
        defaults=Hyperparameters(
            model="vilco_nlq_tiny", epochs=4, batch_size=8, eval_batch_size=64
        ),
        # A question has one window, so R@kx is R@k.
        states=partial(moment_states, "fixed"),
        states_title="Recall",
        selection=BestCheckpointPlugin,
        future="value",
        main_metric="Recall@1_tIoU0.3",
        loss=moment_loss,
        model_arguments=feature_widths,
        strategy_options={"vilco": {"prompt_mode": "prepend"}},
    ),
    "vilco_vq": BenchmarkSettings(
        build=vilco_vq,
        defaults=Hyperparameters(
            model="vilco_vq_tiny",
            epochs=8,
            batch_size=2,
            eval_batch_size=16,
            learning_rate=1e-3,
        ),
        states=track_states,
        states_title="ResponseTrack",
        selection=track_selection,
        future="value",
        main_metric=MAIN_TRACK_METRIC,
        loss=track_loss,
        model_arguments=picture_size,
        n_regression=TRACK_REGRESSION_CHANNELS,
        caches_backbone=is_small_and_fixed,
        strategy_options={
            "replay": {"mem_size": 32},
            "gdumb": {"mem_size": 32},
            "vilco": {"mem_size": 32, "prompt_mode": "prepend"},
        },
    ),
}
"""Benchmarks by name."""
