"""Keep the weights of the best epoch of each experience."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from avalanche.training.plugins import SupervisedPlugin
from torch import Tensor

from avalanche_vilco.evaluation.metrics.emission import MetricState
from avalanche_vilco.evaluation.metrics.recall import MomentRecall
from avalanche_vilco.evaluation.metrics.strategy import trained_experiences
from avalanche_vilco.training.passes import batches_of, evaluating


class BestCheckpointPlugin(SupervisedPlugin):
    """Scores the model after each epoch and restores the best one in the end.

    Scored are the experiences of a stream that have been trained so far, from epoch
    ``train_epochs // 3`` on (counted from 0), as the public code does. The score is
    the plain mean over experiences of the metric's mean value, or of the one value that
    is named; of equal scores the
    earliest epoch is kept, and without any score the last. Weights and buffers are
    restored when training on the experience ends, before the other plugins measure
    importances or fill memories if this one is first in the list. An optimizer's
    moments stay those of the last epoch.

    ``stream="valid"`` selects honestly. With ``"test"`` the numbers that a run reports
    on the test stream are those that it was chosen by.

    The strategy's evaluation loop is not used and loaders have their own generator:
    metrics and their task matrix see nothing, and no random number is drawn, so
    training goes the way it goes without the plugin up to the end of the experience.

    :param stream: name of the stream that is scored.
    :param metric: what is measured; R@1x at tIoU 0.5 by default.
    :param value: name of the one of its values that counts; None: all, equally.
    """

    def __init__(
        self,
        stream: str = "valid",
        *,
        metric: MetricState | None = None,
        value: str | None = None,
    ) -> None:
        super().__init__()
        self.stream = stream
        self.metric = metric or MomentRecall(k=(1,), tiou=(0.5,))
        self.value = value
        self.scores: list[dict[int, float]] = []
        """For each experience trained, its score in [0, 1] after each epoch."""
        self.chosen: list[int | None] = []
        """For each experience trained, the epoch kept; None: no score, the last."""
        self._trained: set[int] = set()
        self._weights: dict[str, Tensor] | None = None

    def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Start anew.

        :raises ValueError: the stream has no sample at all.
        """
        if not any(len(e.dataset) for e in self._stream(strategy)):
            raise ValueError(
                f"expected samples to select by but got none in stream {self.stream!r}"
            )
        trained = trained_experiences(strategy)
        self._trained.update(each.current_experience for each in trained)
        self.scores.append({})
        self.chosen.append(None)

    def after_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
        """Score the model, and copy its weights if it is the best so far."""
        epoch = strategy.clock.train_exp_epochs
        if epoch < strategy.train_epochs // 3:
            return
        best = max(self.scores[-1].values(), default=-math.inf)
        score = self._score(strategy)
        if math.isnan(score):
            return
        self.scores[-1][epoch] = score
        if score > best:
            self.chosen[-1] = epoch
            state = strategy.model.state_dict()
            self._weights = {name: t.detach().clone() for name, t in state.items()}

    def after_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Restore the best weights."""
        if self._weights is not None:
            strategy.model.load_state_dict(self._weights)
        self._weights = None

    def _stream(self, strategy: Any) -> Sequence[Any]:
        benchmark = trained_experiences(strategy)[0].origin_stream.benchmark
        return benchmark.streams[self.stream]

    def _score(self, strategy: Any) -> float:
        """Of the experiences with samples that have been trained."""
        stream = self._stream(strategy)
        trained = (stream[number] for number in sorted(self._trained))
        scored = [e for e in trained if len(e.dataset)]
        with evaluating(strategy.model):
            return _mean([self._score_on(e.dataset, strategy) for e in scored])

    def _score_on(self, dataset: Any, strategy: Any) -> float:
        self.metric.reset()
        for inputs, targets in batches_of(dataset, strategy):
            predictions = strategy.model.decode(strategy.model(inputs), targets)
            self.metric.update(predictions, targets)
        values = self.metric.compute()
        self.metric.reset()
        names = values if self.value is None else [self.value]
        return _mean([values[name] for name in names])


def _mean(values: Sequence[float]) -> float:
    """Mean of the values that are numbers, NaN if none is."""
    known = [float(value) for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
