"""The submission file of the VQ2D challenge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from avalanche_vilco.benchmarks.submission_files import (
    Source,
    Where,
    check_task,
    open_document,
)
from avalanche_vilco.evaluation.functional.response_track import QueryAnswers

TrackKey: TypeAlias = tuple[Any, Any, str]
"""Clip uid, annotation uid, number of the query set."""
_Answer: TypeAlias = dict[str, Any]


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
    :raises SubmissionError: the annotations are of another form.
    :raises ValueError: an answer is to no query of the file.
    """
    document = open_document(annotations, "annotations")
    check_task(document, "annotations", "vq")
    left = _records(queries, answers)
    content, where = document
    videos = [
        _video(video, left, where) for video in where.take(content, "videos", list)
    ]
    if left:
        raise ValueError(
            f"expected answers to queries of {where.file} but got {len(left)} to "
            f"others, such as {next(iter(left))}"
        )
    return {
        "version": "1.0",
        "challenge": "ego4d_vq2d_challenge",
        "results": {"videos": videos},
    }


def _records(
    queries: Sequence[TrackKey], answers: QueryAnswers
) -> dict[TrackKey, _Answer]:
    """Answers by query set."""
    keys = [queries[number] for number in answers.queries.tolist()]
    records = [
        _Answer(bboxes=list[Any](), score=score) for score in answers.scores.tolist()
    ]
    boxes, frames, owners = (column.tolist() for column in answers.tracks)
    for (x1, y1, x2, y2), frame, owner in zip(boxes, frames, owners, strict=True):
        box = {"fno": frame, "x1": x1, "y1": y1, "x2": x2, "y2": y2}
        records[owner]["bboxes"].append(box)
    return dict(zip(keys, records, strict=True))


def _video(video: Any, left: dict[TrackKey, _Answer], where: Where) -> dict[str, Any]:
    clips = where.take(video, "clips", list)
    return {
        **_named(video, "video_uid", "split"),
        "clips": [_clip(clip, left, where) for clip in clips],
    }


def _clip(clip: Any, left: dict[TrackKey, _Answer], where: Where) -> dict[str, Any]:
    uid = where.name(clip, "clip_uid")
    here = where.at(f"clip {uid}")
    predictions = []
    for i, part in enumerate(here.take(clip, "annotations", list)):
        sets = here.take(part, "query_sets", dict, f"annotations[{i}]")
        own = (uid, part.get("annotation_uid"))
        answered = {number: _taken(left, (*own, number)) for number in sets}
        predictions.append({**_named(part, "annotation_uid"), "query_sets": answered})
    return {"clip_uid": uid, "predictions": predictions}


def _taken(left: dict[TrackKey, _Answer], key: TrackKey) -> _Answer:
    """The answer to a query set, once."""
    return left.pop(key, None) or {"bboxes": [], "score": 0.0}


def _named(record: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Those of the fields that the record has."""
    return {name: record[name] for name in names if name in record}
