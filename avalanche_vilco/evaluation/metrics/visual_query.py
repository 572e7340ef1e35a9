"""Visual-query metrics: a torchmetrics state and two plugins for Avalanche.

Values are named ``tAP``, ``tAP25``, ``stAP``, ``stAP25``, ``success`` and ``recovery``
on all queries, and ``tAP_small``, ``..._medium``, ``..._large`` by size of the object.
"""

from typing import Any, Protocol

import torch
from avalanche.evaluation import PluginMetric
from torch import Tensor

from avalanche_vilco.evaluation.functional.references import Reference, check_reference
from avalanche_vilco.evaluation.functional.visual_query import (
    AP_IOU,
    RECOVERY_IOU,
    SIZE_BINS,
    SUCCESS_IOU,
    SUMMARY,
    Tracks,
    VisualQueryHits,
    VisualQueryScores,
    flat_summary,
    pooled_visual_query_scores,
    visual_query_hits,
)
from avalanche_vilco.evaluation.metrics.emission import value_plugins
from avalanche_vilco.evaluation.metrics.pooled import PooledMetric

_LISTS = ("scores", "sizes", "temporal", "tube")


class TrackTargets(Protocol):
    """The tracks that a mini-batch asks for."""

    @property
    def tracks(self) -> Tracks:
        """Boxes; the owner is the query, in 0..n_queries-1."""

    @property
    def n_queries(self) -> int:
        """Number of queries."""


class TrackPredictions(Protocol):
    """Scored tracks of a mini-batch."""

    @property
    def tracks(self) -> Tracks:
        """Boxes; the owner is the place in ``scores``."""

    @property
    def scores(self) -> Tensor:
        """Score of each track, ``(P,)``."""

    @property
    def queries(self) -> Tensor:
        """Query that each track answers, ``(P,)`` int64, -1 marks padding."""


class VisualQueryMetrics(PooledMetric):
    """tAP, stAP, success and recovery, on all queries and by size of the object.

    Tracks are compared batch by batch, and all tracks of a query belong to one batch;
    of each track its score, size and hits stay on its device.

    :param reference: public evaluator to reproduce, None for our own rules.
    :param kwargs: options of ``torchmetrics.Metric``.
    :raises ValueError: if there is no such evaluator.
    """

    def __init__(self, *, reference: Reference | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_reference(reference)
        self.reference = reference
        self.set_apart(reference)
        self.add_rows("scores", dtype=torch.float64)
        self.add_rows("sizes", dtype=torch.int64)
        self.add_rows("temporal", len(AP_IOU), dtype=torch.bool)
        self.add_rows("tube", len(AP_IOU), dtype=torch.bool)
        n_sizes = len(SIZE_BINS)
        for name, shape in (
            ("n_queries", (n_sizes,)),
            ("n_frames", (n_sizes,)),
            ("n_recovered", (n_sizes, len(RECOVERY_IOU))),
            ("n_success", (n_sizes, len(SUCCESS_IOU))),
            ("n_broken", ()),
        ):
            self.add_counts(name, *shape)

    def update(self, predictions: TrackPredictions, targets: TrackTargets) -> None:
        """Compare the tracks of a mini-batch.

        :param predictions: scored tracks.
        :param targets: the tracks asked for.
        """
        self.follow(predictions.scores)
        hits = visual_query_hits(
            predictions.tracks,
            predictions.scores.detach(),
            predictions.queries,
            targets.tracks,
            targets.n_queries,
            reference=self.reference,
        )
        values = hits._asdict()
        rows = {name: values.pop(name).clone() for name in _LISTS}
        self.append_rows(rows, mark="sizes")
        for name, value in values.items():
            setattr(self, name, getattr(self, name) + value)

    def compute(self) -> dict[str, float]:
        """Scores by name, NaN for sizes that no query has.

        :return: floats in [0, 1].
        :raises ValueError: if a track had gaps or repeated a frame.
        """
        return flat_summary(self._by_size())

    def by_size(self) -> dict[str, VisualQueryScores]:
        """All scores with the number of queries, by size, of all processes together.

        :return: scores by "all", "small", "medium" and "large".
        :raises ValueError: if a track had gaps or repeated a frame.
        """
        with self.sync_context(
            dist_sync_fn=self.dist_sync_fn,
            should_sync=self.sync_on_compute and not self._is_synced,
            should_unsync=not self._is_synced,
        ):
            return self._by_size()

    def _by_size(self) -> dict[str, VisualQueryScores]:
        state = {
            name: self.rows(name) if name in _LISTS else getattr(self, name)
            for name in VisualQueryHits._fields
        }
        return pooled_visual_query_scores(
            VisualQueryHits(**state), reference=self.reference
        )

    @property
    def names(self) -> list[str]:
        """Names of the values that :meth:`compute` gives."""
        return [
            f"{name}{suffix}"
            for suffix in ("", *(f"_{size}" for size in SIZE_BINS))
            for name in SUMMARY
        ]


def visual_query_metrics(
    *, reference: Reference | None = None, experience: bool = True, stream: bool = True
) -> list[PluginMetric[dict[str, float]]]:
    """Plugins that log the metrics of visual queries in evaluation.

    The model's ``decode`` gives :class:`TrackPredictions`, the targets of the
    mini-batch are :class:`TrackTargets`.

    :param reference: public evaluator to reproduce, None for our own rules.
    :param experience: True logs the values on each experience.
    :param stream: True logs the values on all evaluated experiences together.
    :return: plugins for ``EvaluationPlugin``.
    :raises ValueError: if there is no such evaluator.
    """
    return value_plugins(
        lambda: VisualQueryMetrics(reference=reference),
        "VisualQuery",
        experience=experience,
        stream=stream,
    )
