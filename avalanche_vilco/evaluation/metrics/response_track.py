"""Visual-query metrics of models that answer frame by frame, in windows.

Values are named ``tAP``, ``tAP25``, ``stAP``, ``stAP25``, ``success`` and ``recovery``.
Models that give whole tracks are scored by
:class:`~avalanche_vilco.evaluation.metrics.visual_query.VisualQueryMetrics`.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from avalanche.evaluation import PluginMetric
from torch import Tensor

from avalanche_vilco.evaluation.functional.order import by_content
from avalanche_vilco.evaluation.functional.pairs import select
from avalanche_vilco.evaluation.functional.references import Reference, check_reference
from avalanche_vilco.evaluation.functional.response_track import (
    FramePredictions,
    FrameRows,
    QueryAnswers,
    frame_rows,
    query_answers,
)
from avalanche_vilco.evaluation.functional.visual_query import (
    SUMMARY,
    Tracks,
    visual_query_scores,
)
from avalanche_vilco.evaluation.metrics.emission import value_plugins
from avalanche_vilco.evaluation.metrics.pooled import PooledMetric
from avalanche_vilco.ops.response_track import PeakRule


class WindowTargets(Protocol):
    """The queries that a mini-batch of windows belongs to."""

    @property
    def query(self) -> Tensor:
        """Number of the query of each window, ``(B,)`` int64."""

    @property
    def track_boxes(self) -> Tensor:
        """All boxes asked for, in the window or not, ``(B, N, 4)`` float64 pixels."""

    @property
    def track_frames(self) -> Tensor:
        """Their frames, ``(B, N)`` int64, -1 marks padding."""


class ResponseTrackMetrics(PooledMetric):
    """tAP, stAP, success and recovery of tracks that are joined from windows.

    The windows of a query may come in several batches or processes, in any order, also
    repeatedly; what counts is which frames came. Of each searched frame its score and
    box are kept on their device (60 bytes), of each query its track.

    :param reference: public evaluator to reproduce, None for our own rules.
    :param rule: how the frames of a track are chosen, None for ``PeakRule()``.
    :param kwargs: options of ``torchmetrics.Metric``.
    :raises ValueError: if there is no such evaluator.
    """

    def __init__(
        self,
        *,
        reference: Reference | None = None,
        rule: PeakRule | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_reference(reference)
        self.reference, self.rule = reference, rule
        self.set_apart(reference, rule)
        self.add_rows("queries", dtype=torch.int64)
        self.add_rows("query_frames", dtype=torch.int64)
        self.add_rows("frames", dtype=torch.int64)
        self.add_rows("logits", dtype=torch.float32)
        self.add_rows("boxes", 4, dtype=torch.float64)
        self.add_rows("asked_queries", dtype=torch.int64)
        self.add_rows("asked_frames", dtype=torch.int64)
        self.add_rows("asked_boxes", 4, dtype=torch.float64)

    def update(self, predictions: FramePredictions, targets: WindowTargets) -> None:
        """Keep the frames of a mini-batch of windows."""
        self.follow(predictions.scores)
        self.append_rows(frame_rows(predictions)._asdict(), mark="queries")
        # Where windows of a query follow each other, the first says what is asked for.
        query, frames = targets.query, targets.track_frames
        is_new = torch.ones_like(query, dtype=torch.bool)
        is_new[1:] = query[1:] != query[:-1]
        queries = torch.where(is_new[:, None] & (frames >= 0), query[:, None], -1)
        asked = {
            "asked_queries": queries.flatten().long(),
            "asked_frames": frames.flatten().long(),
            "asked_boxes": targets.track_boxes.flatten(0, 1).double(),
        }
        self.append_rows(asked, mark="asked_queries")

    def compute(self) -> dict[str, float]:
        """Scores by name, NaN if nothing was asked.

        :return: floats in [0, 1].
        :raises ValueError: if a track asked for has gaps, or a window's query has none.
        """
        queries, tracks = self._targets()
        answers = self.answers()
        places = torch.searchsorted(queries, answers.queries)
        is_known = torch.isin(answers.queries, queries)
        scores = visual_query_scores(
            answers.tracks,
            answers.scores,
            torch.where(is_known, places, len(queries)),
            tracks,
            len(queries),
            reference=self.reference,
        )
        return scores["all"].summary()

    def answers(self) -> QueryAnswers:
        """Join the track of each query so far, of this process."""
        rows = FrameRows(*(self.rows(name) for name in FrameRows._fields))
        return query_answers(rows, rule=self.rule)

    def _targets(self) -> tuple[Tensor, Tracks]:
        """Find queries asked, ascending, and their tracks, each frame once."""
        numbers, frames = self.rows("asked_queries"), self.rows("asked_frames")
        boxes = self.rows("asked_boxes")
        order = by_content(numbers, frames, *boxes.unbind(1))
        numbers, frames, boxes = select(order, numbers, frames, boxes)
        is_first = torch.ones_like(numbers, dtype=torch.bool)
        is_first[1:] = (numbers[1:] != numbers[:-1]) | (frames[1:] != frames[:-1])
        queries, owners = numbers[is_first].unique(return_inverse=True)
        return queries, Tracks(boxes[is_first], frames[is_first], owners)

    @property
    def names(self) -> list[str]:
        """Names of the values that :meth:`compute` gives."""
        return list(SUMMARY)


def response_track_metrics(
    *, experience: bool = True, stream: bool = True, **options: Any
) -> list[PluginMetric[dict[str, float]]]:
    """Plugins that log the metrics of visual queries in evaluation.

    The model's ``decode`` gives :class:`FramePredictions`, the targets of the
    mini-batch are :class:`WindowTargets`.

    :param experience: True logs the values on each experience.
    :param stream: True logs the values on all evaluated experiences together.
    :param options: ``reference`` and ``rule`` of :class:`ResponseTrackMetrics`.
    :return: plugins for ``EvaluationPlugin``.
    :raises ValueError: if there is no such evaluator.
    """
    return value_plugins(
        lambda: ResponseTrackMetrics(**options),
        "ResponseTrack",
        experience=experience,
        stream=stream,
    )
