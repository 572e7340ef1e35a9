"""Keep the weights of the best epoch of each experience."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

from avalanche.training.plugins import SupervisedPlugin
from torch import Tensor

from avalanche_vilco.evaluation.metrics.recall import MomentRecall
from avalanche_vilco.training.experiences import whole_experience
from avalanche_vilco.training.passes import batches_of, evaluating


class Score(Protocol):
    """A metric of what a model decodes, such as ``MomentRecall``."""

    def reset(self) -> None:
        """Forget what was counted."""

    def update(self, predictions: Any, targets: Any) -> None:
        """Count a mini-batch."""

    def compute(self) -> dict[str, float]:
        """Values by name, higher is better, NaN without ground truth."""


class BestCheckpointPlugin(SupervisedPlugin):
    """Scores the model after each epoch and restores the best one in the end.

    Scored are the experiences of a stream up to the one in training, from epoch
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
        metric: Score | None = None,
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
        self._weights: dict[str, Tensor] | None = None

    def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Start anew.

        :param strategy: strategy in its training loop.
        :raises ValueError: the stream has no sample at all.
        """
        if not any(len(e.dataset) for e in self._stream(strategy)):
            raise ValueError(
                f"expected samples to select by but got none in stream {self.stream!r}"
            )
        self.scores.append({})
        self.chosen.append(None)

    def after_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
        """Score the model, and copy its weights if it is the best so far.

        :param strategy: strategy in its training loop.
        """
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
        """Restore the best weights.

        :param strategy: strategy in its training loop.
        """
        if self._weights is not None:
            strategy.model.load_state_dict(self._weights)
        self._weights = None

    def _stream(self, strategy: Any) -> Sequence[Any]:
        benchmark = _trained(strategy)[0].origin_stream.benchmark
        return benchmark.streams[self.stream]

    def _experiences(self, strategy: Any) -> list[Any]:
        """The stream's experiences that have samples, up to the one in training."""
        last = max(e.current_experience for e in _trained(strategy))
        return [e for e in self._stream(strategy)[: last + 1] if len(e.dataset)]

    def _score(self, strategy: Any) -> float:
        with evaluating(strategy.model):
            scores = [
                self._score_on(experience.dataset, strategy)
                for experience in self._experiences(strategy)
            ]
        return _mean(scores)

    def _score_on(self, dataset: Any, strategy: Any) -> float:
        self.metric.reset()
        for inputs, targets in batches_of(dataset, strategy):
            predictions = strategy.model.decode(strategy.model(inputs), targets)
            self.metric.update(predictions, targets)
        values = self.metric.compute()
        self.metric.reset()
        names = values if self.value is None else [self.value]
        return _mean([values[name] for name in names])


def _trained(strategy: Any) -> list[Any]:
    """Experiences in training: JointTraining has several at once."""
    experiences = getattr(strategy, "_experiences", None) or [strategy.experience]
    return [whole_experience(experience) for experience in experiences]


def _mean(values: Sequence[float]) -> float:
    """Mean of the values that are numbers, NaN if none is."""
    known = [float(value) for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
