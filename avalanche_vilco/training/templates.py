"""What a stock Avalanche strategy lacks for batches of clips."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from avalanche.training.plugins import EvaluationPlugin


def moment_evaluator(**options: Any) -> EvaluationPlugin:
    """Evaluator with Ego4D's R@kx and the task matrix; no logger.

    :param options: ``k`` and ``tiou`` as for ``recall_metrics``.
    """
    from avalanche_vilco.evaluation.metrics.continual import task_matrix_metrics
    from avalanche_vilco.evaluation.metrics.recall import recall_metrics

    return EvaluationPlugin(
        recall_metrics(**options), task_matrix_metrics(**options), loggers=[]
    )


class BatchObjectMixin:
    """Put in front of a stock strategy, as in ``class X(BatchObjectMixin, Naive)``.

    Mini-batches may hold any object with ``to``: Avalanche 0.6.0 moves such objects
    anyway, its development head raises TypeError. The default evaluator is
    :func:`moment_evaluator`, since accuracy has no meaning for windows.
    """

    device: Any
    mbatch: Any

    def __init__(
        self,
        *args: Any,
        evaluator: EvaluationPlugin | Callable[[], EvaluationPlugin] = moment_evaluator,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, evaluator=evaluator, **kwargs)  # type: ignore[call-arg]

    def _unpack_minibatch(self) -> None:
        self.mbatch = [part.to(self.device, non_blocking=True) for part in self.mbatch]
