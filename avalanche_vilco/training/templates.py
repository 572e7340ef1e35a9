"""What a stock Avalanche strategy lacks for batches of clips."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.plugins.evaluation import default_evaluator

from avalanche_vilco.training.clock import tell_epoch


def localization_evaluator(*, future: Any = "nan", **options: Any) -> EvaluationPlugin:
    """Evaluator with Ego4D's R@kx and the task matrix; no logger.

    :param future: as for ``task_matrix_metrics``: ``"value"`` for language queries.
    :param options: ``k``, ``tiou`` and ``budget`` as for ``recall_metrics``.
    """
    from avalanche_vilco.evaluation.metrics.continual import task_matrix_metrics
    from avalanche_vilco.evaluation.metrics.recall import recall_metrics

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="No loggers specified")
        return EvaluationPlugin(
            recall_metrics(**options),
            task_matrix_metrics(future=future, **options),
            loggers=[],
        )


def track_evaluator(*, future: Any = "value", **options: Any) -> EvaluationPlugin:
    """Evaluator of visual queries with their task matrix; no logger.

    :param future: as for ``TaskMatrixMetric``.
    :param options: of ``ResponseTrackMetrics``.
    """
    from avalanche_vilco.evaluation.metrics.continual import TaskMatrixMetric
    from avalanche_vilco.evaluation.metrics.response_track import (
        ResponseTrackMetrics,
        response_track_metrics,
    )

    matrix = TaskMatrixMetric(ResponseTrackMetrics(**options), future=future)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="No loggers specified")
        return EvaluationPlugin(response_track_metrics(**options), matrix, loggers=[])


class BatchObjectMixin:
    """Put in front of a stock strategy, as in ``class X(BatchObjectMixin, Naive)``.

    Mini-batches may hold any object with ``to``: Avalanche 0.6.0 moves such objects
    anyway, its development head raises TypeError. Where the strategy's default
    evaluator is Avalanche's, it becomes :func:`localization_evaluator`, since accuracy has
    no meaning for windows; visual queries want :func:`track_evaluator`. Arguments are
    those of the strategy.

    Before each epoch, datasets that draw something of a sample when it is read (the
    window of a visual query) are told the experience and the epoch, so that each epoch
    draws anew. A stock class without this mixin, whose strategies do not tell, meets in
    every epoch the draws of epoch 0 of experience 0. Where several experiences are
    trained at once, the number is that of the first.
    """

    device: Any
    mbatch: Any

    def __init_subclass__(cls, **kwargs: Any) -> None:
        # An __init__ of this class would hide the strategy's parameters: Avalanche
        # reads them to map positional arguments and to find misspelt ones.
        cls.__init__ = _with_moment_evaluator(cls.__init__)  # type: ignore[method-assign]
        super().__init_subclass__(**kwargs)

    def _before_training_epoch(self, **kwargs: Any) -> None:
        tell_epoch(self)
        super()._before_training_epoch(**kwargs)  # type: ignore[misc]

    def _unpack_minibatch(self) -> None:
        self.mbatch = [part.to(self.device, non_blocking=True) for part in self.mbatch]


def _with_moment_evaluator(init: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(init)
    stock = signature.parameters.get("evaluator")
    if stock is None or stock.default is not default_evaluator:
        return init

    @functools.wraps(init)
    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("evaluator", localization_evaluator)
        init(self, *args, **kwargs)

    ours = {"evaluator": stock.replace(default=localization_evaluator)}
    parameters = {**signature.parameters, **ours}
    initialise.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=list(parameters.values())
    )
    return initialise
