"""Answers to visual queries, and the annotation file that asks them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import torch

from avalanche_vilco.benchmarks.vilco_vq.annotations import (
    OFFICIAL_VQ_FILES,
    find_vq_files,
)
from avalanche_vilco.benchmarks.vilco_vq.embedded import mini_vq_root
from avalanche_vilco.benchmarks.vilco_vq.track_document import track_document
from avalanche_vilco.evaluation.functional.response_track import (
    FrameRows,
    QueryAnswers,
    frame_rows,
    query_answers,
)

DATA_ROOT_VARIABLE = "AVALANCHE_VILCO_DATA"


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
    keys = [(q.clip_id, q.annotation_uid, q.set_number) for q in data.queries]
    return track_document(annotation_file(options, subset), keys, answers)


def annotation_file(options: Mapping[str, Any], subset: str) -> Path:
    """Annotation file of a subset, found as the benchmark does.

    :param options: of the generator.
    :param subset: ``"val"`` or ``"test"``.
    :raises FileNotFoundError: there is none.
    """
    sources = options.get("sources") or {}
    sources = vars(sources) if is_dataclass(sources) else sources
    given = {**options, **sources}.get("annotations")
    if isinstance(given, Mapping) and subset in given:
        return Path(given[subset]).expanduser()
    if given is not None and not isinstance(given, Mapping):
        base = Path(given).expanduser()
    else:
        root = options.get("dataset_root") or os.environ.get(DATA_ROOT_VARIABLE)
        base = Path(root).expanduser() if root else mini_vq_root()
    found = {**find_vq_files(base / "annotations"), **find_vq_files(base)}
    if subset not in found:
        raise FileNotFoundError(f"no {OFFICIAL_VQ_FILES[subset]} in {base}")
    return found[subset]
