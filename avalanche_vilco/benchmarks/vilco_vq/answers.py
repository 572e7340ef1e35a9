"""Answers to visual queries, and the annotation file that asks them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from avalanche_vilco.benchmarks.sources import checked_sources
from avalanche_vilco.benchmarks.vilco_vq.sources import VQSources, annotation_file
from avalanche_vilco.benchmarks.vilco_vq.track_document import track_document
from avalanche_vilco.evaluation.functional.response_track import (
    FrameRows,
    QueryAnswers,
    frame_rows,
    query_answers,
)


class TrackAnswers:
    """The track of each query, from its frame windows.

    :param n_samples: of the stream, frame windows here.
    """

    def __init__(self, n_samples: int) -> None:
        self._rows: list[FrameRows] = []

    def add(self, predictions: Any, targets: Any) -> None:
        """Take a mini-batch."""
        rows = frame_rows(predictions)
        self._rows.append(FrameRows(*(column.cpu() for column in rows)))

    def answers(self) -> QueryAnswers:
        """One track for each query."""
        columns = zip(*self._rows, strict=True)
        return query_answers(FrameRows(*(torch.cat(column) for column in columns)))


def visual_document(
    data: Any,
    answers: QueryAnswers,
    scenario: Any,
    options: Mapping[str, Any],
    subset: str,
) -> dict[str, Any]:
    """Write tracks as Ego4D's Visual-Queries-2D challenge takes them.

    Query sets that the protocol leaves out are in it, without boxes.

    :param data: dataset of the queries that are answered.
    :param answers: a track for each.
    :param scenario: that the model has learnt.
    :param options: of the generator.
    :param subset: ``"val"`` or ``"test"``.
    """
    sources = checked_sources(VQSources, options.get("sources"))
    file = annotation_file(options.get("dataset_root"), sources, subset)
    keys = [(q.clip_id, q.annotation_uid, q.set_number) for q in data.queries]
    return track_document(file, keys, answers)
