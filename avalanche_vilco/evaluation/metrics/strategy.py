"""What the metrics read from a strategy that evaluates, and how they name values."""

import warnings
from collections.abc import Sized
from typing import Any, Protocol

from avalanche.evaluation.metric_results import MetricValue
from avalanche.evaluation.metric_utils import (
    default_metric_name_template,
    generic_get_metric_name,
)
from avalanche.evaluation.metrics.loss import LossPluginMetric
from avalanche.logging import CSVLogger
from torch import Tensor

from avalanche_vilco.core.experiences import whole_experience

_MEMO = "_decoded_minibatch"


class LabelledWindows(Protocol):
    """Windows of a mini-batch, such as those of the ground truth."""

    @property
    def segments_sec(self) -> Tensor:
        """Windows in clip seconds, ``(B, N, 2)`` float64 as (start, end)."""

    @property
    def labels(self) -> Tensor:
        """Class indices of their queries, ``(B, N)`` int64, -1 marks padding."""


class ScoredWindows(LabelledWindows, Protocol):
    """Scored windows of a mini-batch, best first."""

    @property
    def scores(self) -> Tensor:
        """Scores, ``(B, N)`` float32, 0 for padding."""


def decoded(strategy: Any) -> tuple[ScoredWindows, LabelledWindows]:
    """Predictions and targets of the current mini-batch, decoded once.

    The result is kept on the strategy for as long as ``strategy.mb_output`` is the
    same object, so that all metrics of an evaluator share one decoding.

    :param strategy: strategy in or after its forward pass.
    :return: ``strategy.model.decode(mb_output, mb_y)`` and ``mb_y``.
    :raises TypeError: if the model has no method ``decode``.
    """
    memo = getattr(strategy, _MEMO, None)
    if memo is None or memo[0] is not strategy.mb_output:
        decode = getattr(strategy.model, "decode", None)
        if not callable(decode):
            raise TypeError(
                "expected a model with a method decode(output, targets) that gives "
                "predictions with .segments_sec (B, M, 2), .scores (B, M) and "
                f".labels (B, M), but got {type(strategy.model).__name__}"
            )
        predictions = decode(strategy.mb_output, strategy.mb_y)
        memo = (strategy.mb_output, predictions)
        setattr(strategy, _MEMO, memo)
    return memo[1], strategy.mb_y


def release_decoded(strategy: Any) -> None:
    """Drop what :func:`decoded` keeps on the strategy."""
    if hasattr(strategy, _MEMO):
        delattr(strategy, _MEMO)


def check_loggers(strategy: Any) -> None:
    """Refuse a logger that would write 0 for every value.

    :param strategy: begins to train or to evaluate.
    :raises TypeError: its evaluator has Avalanche's ``CSVLogger``, and no loss.
    """
    evaluator = getattr(strategy, "evaluator", None)
    kinds = {type(logger) for logger in getattr(evaluator, "loggers", ())}
    if evaluator is None or CSVLogger not in kinds:
        return
    message = (
        "Avalanche's CSVLogger has columns for accuracy, forgetting and loss alone, "
        "and writes 0 where there is none: pass loggers=[MetricCSVLogger(path)] of "
        "avalanche_vilco.evaluation.logger, which writes every metric"
    )
    if not any(isinstance(metric, LossPluginMetric) for metric in evaluator.metrics):
        raise TypeError(message)
    warnings.warn(message, stacklevel=2)


def n_experiences_of(stream: Any) -> int | None:
    """Length of a stream, None if it is produced on the fly."""
    return len(stream) if isinstance(stream, Sized) else None


def trained_experiences(strategy: Any) -> list[Any]:
    """Experiences in training: JointTraining has several at once."""
    # It iterates over the first of them only.
    experiences = getattr(strategy, "_experiences", None) or [strategy.experience]
    return [whole_experience(experience) for experience in experiences]


def metric_value(
    origin: Any, name: str, value: float, strategy: Any, *, experience: bool
) -> MetricValue:
    """Package a value under Avalanche's name for it.

    Values of a stream carry no task label: Avalanche would take that of the
    experience evaluated last.

    :param name: name of the value, such as ``Recall@1x_tIoU0.5_Exp``.
    :param experience: True for a value of the current experience, False for a value
        of its stream.
    :return: value named ``name/eval_phase/test_stream[/Task000/Exp000]``.
    """
    current = strategy.experience
    labels = getattr(current, "task_labels", None) or []
    info = {
        "metric_name": name,
        "phase_name": "eval",
        "stream_name": current.origin_stream.name,
        "task_label": labels[0] if experience and len(labels) == 1 else None,
        "experience_id": current.current_experience if experience else None,
    }
    full_name = generic_get_metric_name(default_metric_name_template, info)
    return MetricValue(origin, full_name, value, strategy.clock.train_iterations)
