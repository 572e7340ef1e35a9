"""Answers to visual queries, and the challenge's file of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from avalanche_vilco.benchmarks.sources import checked_sources
from avalanche_vilco.benchmarks.submissions import Document, Source, open_document
from avalanche_vilco.benchmarks.vilco_vq.sources import VQSources, annotation_file
from avalanche_vilco.evaluation.functional.response_track import (
    FrameRows,
    QueryAnswers,
    frame_rows,
    query_answers,
)

TrackKey: TypeAlias = tuple[Any, Any, str]
"""Clip uid, annotation uid, number of the query set."""


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
    """
    sources = checked_sources(VQSources, options.get("sources"))
    file = annotation_file(options.get("dataset_root"), sources, subset)
    keys = [(q.clip_id, q.annotation_uid, q.set_number) for q in data.queries]
    return track_document(file, keys, answers)


def track_document(
    annotations: Source, queries: Sequence[TrackKey], answers: QueryAnswers
) -> dict[str, Any]:
    """Write answers as the challenge takes them.

    The document has every video, clip, annotation and query set of the official file,
    in its order, since public code tells annotations by their place. Query sets that
    are not answered, valid or not, have no boxes and score 0. Coordinates are not
    rounded, as public code rounds them.

    :param annotations: official file that asks the queries, ``vq_val.json`` or
        ``vq_test_unannotated.json``, or what it holds.
    :param queries: which query set each number of ``answers.queries`` is.
    :param answers: one track for each answered query.
    :return: content of the file, which ``read_tracks`` reads.
    :raises DataError: the annotations are of another form.
    :raises ValueError: an answer is to no query of the file.
    """
    asked = open_document(annotations, "annotations")
    left = _records(queries, answers)
    videos = []
    for video in _listed(asked, asked.content, "videos"):
        clips = []
        for clip in _listed(asked, video, "clips"):
            uid, predictions = clip.get("clip_uid"), []
            for part in _listed(asked, clip, "annotations"):
                sets = asked.convert(part.get("query_sets"), dict[str, Any], str(uid))
                keys = {n: (uid, part.get("annotation_uid"), n) for n in sets}
                empty: dict[str, Any] = {"bboxes": [], "score": 0.0}
                taken = {n: left.pop(keys[n], empty) for n in sets}
                predictions.append(
                    {**_fields(part, "annotation_uid"), "query_sets": taken}
                )
            clips.append({"clip_uid": uid, "predictions": predictions})
        videos.append({**_fields(video, "video_uid", "split"), "clips": clips})
    if left:
        raise ValueError(
            f"expected answers to queries of {asked.file} but got {len(left)} to "
            f"others, such as {next(iter(left))}"
        )
    return {
        "version": "1.0",
        "challenge": "ego4d_vq2d_challenge",
        "results": {"videos": videos},
    }


def _listed(asked: Document, holder: Any, name: str) -> Iterable[Mapping[str, Any]]:
    """The objects of a list in a field."""
    fields = asked.convert(holder, dict[str, Any])
    return asked.convert(fields.get(name), list[dict[str, Any]], within=name)


def _records(
    queries: Sequence[TrackKey], answers: QueryAnswers
) -> dict[TrackKey, dict[str, Any]]:
    """Answers by query set."""
    keys = [queries[number] for number in answers.queries.tolist()]
    records: list[dict[str, Any]] = [
        {"bboxes": [], "score": score} for score in answers.scores.tolist()
    ]
    boxes, frames, owners = (column.tolist() for column in answers.tracks)
    for (x1, y1, x2, y2), frame, owner in zip(boxes, frames, owners, strict=True):
        box = {"fno": frame, "x1": x1, "y1": y1, "x2": x2, "y2": y2}
        records[owner]["bboxes"].append(box)
    return dict(zip(keys, records, strict=True))


def _fields(record: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Those of the fields that the record has."""
    return {name: record[name] for name in names if name in record}
