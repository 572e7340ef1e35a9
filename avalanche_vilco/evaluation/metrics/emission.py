"""Plugins that emit the values of a metric state, per experience or per stream."""

import warnings
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch
from avalanche.evaluation import PluginMetric
from avalanche.evaluation.metric_results import MetricValue

from avalanche_vilco.core.random import generators_now
from avalanche_vilco.evaluation.metrics.strategy import (
    check_loggers,
    decoded,
    metric_value,
    n_experiences_of,
    release_decoded,
)

_Result = TypeVar("_Result")


class MetricState(Protocol):
    """A ``torchmetrics.Metric`` that gives floats by name."""

    @property
    def names(self) -> list[str]:
        """Names of the values that :meth:`compute` gives."""

    @property
    def update_called(self) -> bool:
        """True once something was added since the last reset."""

    def update(self, predictions: Any, targets: Any) -> None:
        """Add a mini-batch."""

    def compute(self) -> dict[str, float]:
        """Values by name."""

    def reset(self) -> None:
        """Forget what was added."""


def start_anew(state: MetricState, strategy: Any) -> None:
    """Empty a state and take it to where the strategy computes.

    A process without batches sends its empty state from there.
    """
    check_loggers(strategy)
    state.reset()
    device = getattr(strategy, "device", None)
    if device is not None and isinstance(state, torch.nn.Module):
        state.to(device)


def values_of(state: MetricState) -> dict[str, float]:
    """Values of a state, NaN where nothing was added.

    Every process computes, whether it had batches or not: the others wait for it.
    """
    if state.update_called:
        return state.compute()
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return dict.fromkeys(state.names, float("nan"))
    with warnings.catch_warnings():
        # torchmetrics warns that this process added nothing.
        warnings.simplefilter("ignore", UserWarning)
        return state.compute()


class EvaluationMetric(PluginMetric[_Result]):
    """What all of our metrics share in a strategy.

    An evaluation that is not interrupted leaves the global generators of random numbers
    as it found them, under stock strategies too, whose loaders draw a seed.
    """

    _put_back: Callable[[], None] | None = None

    def before_training(self, strategy: Any) -> None:
        """Refuse loggers that cannot write the values before hours of training."""
        check_loggers(strategy)

    def before_eval(self, strategy: Any) -> None:
        """Note the generators."""
        self._put_back = generators_now()

    def after_eval(self, strategy: Any) -> list[MetricValue]:
        """Put the generators back."""
        if self._put_back is not None:
            self._put_back()
            self._put_back = None
        return []


class _StatePlugin(EvaluationMetric[dict[str, float]]):
    """What the two levels share: adding every evaluated mini-batch to the state."""

    def __init__(self, state: MetricState, title: str) -> None:
        super().__init__()
        self._state, self._title = state, title

    def reset(self) -> None:
        """Forget what was added so far."""
        self._state.reset()

    def result(self) -> dict[str, float]:
        """Values by name since the last reset."""
        return values_of(self._state)

    def after_eval_iteration(self, strategy: Any) -> None:
        """Add the current mini-batch."""
        self._state.update(*decoded(strategy))


class ExperienceValues(_StatePlugin):
    """Values on each evaluated experience.

    :param state: the state to fill.
    :param title: what the values are.
    """

    def before_eval_exp(self, strategy: Any) -> None:
        """Start a new experience."""
        start_anew(self._state, strategy)

    def after_eval_exp(self, strategy: Any) -> list[MetricValue]:
        """Emit the values on the experience."""
        release_decoded(strategy)
        return [
            metric_value(self, f"{name}_Exp", value, strategy, experience=True)
            for name, value in self.result().items()
        ]

    def __str__(self) -> str:
        return f"{self._title}_Exp"


class StreamValues(_StatePlugin):
    """Values on all evaluated experiences together.

    Whatever is counted weighs the same in every experience. If only a part of the
    stream was evaluated, the name says how much: ``Recall@1x_tIoU0.5_Stream_1of3``.

    :param state: the state to fill.
    :param title: what the values are.
    """

    def __init__(self, state: MetricState, title: str) -> None:
        super().__init__(state, title)
        self._evaluated: set[int] = set()

    def before_eval(self, strategy: Any) -> None:
        """Start a new evaluation."""
        super().before_eval(strategy)
        start_anew(self._state, strategy)
        self._evaluated.clear()

    def after_eval_exp(self, strategy: Any) -> None:
        """Note that the experience was evaluated."""
        release_decoded(strategy)
        self._evaluated.add(strategy.experience.current_experience)

    def after_eval(self, strategy: Any) -> list[MetricValue]:
        """Emit the values on the experiences evaluated."""
        super().after_eval(strategy)
        if not self._evaluated:
            return []
        n_all = n_experiences_of(strategy.experience.origin_stream)
        n_evaluated, suffix = len(self._evaluated), "Stream"
        if n_all is not None and n_evaluated < n_all:
            suffix = f"Stream_{n_evaluated}of{n_all}"
        return [
            metric_value(self, f"{name}_{suffix}", value, strategy, experience=False)
            for name, value in self.result().items()
        ]

    def __str__(self) -> str:
        return f"{self._title}_Stream"


def value_plugins(
    make_state: Callable[[], MetricState],
    title: str,
    *,
    experience: bool = True,
    stream: bool = True,
) -> list[PluginMetric[dict[str, float]]]:
    """Plugins that log a state's values, each with a state of its own.

    :param make_state: gives an empty state.
    :param experience: True logs the values on each experience.
    :param stream: True logs the values on all evaluated experiences together.
    """
    kinds = ((experience, ExperienceValues), (stream, StreamValues))
    return [kind(make_state(), title) for wanted, kind in kinds if wanted]
