"""Files of Visual Queries."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from avalanche_vilco.benchmarks.submission_files import (
    Document,
    Note,
    Source,
    Where,
    check_task,
    clips_of,
    open_document,
)
from avalanche_vilco.evaluation.functional.visual_query import Tracks
from avalanche_vilco.ops.boxes import box_area

_Box = tuple[float, float, float, float, float]  # frame, x1, y1, x2, y2
_Key = tuple[Any, Any, str]


class TrackSubmission(NamedTuple):
    """Arguments of ``visual_query_scores``."""

    predicted: Tracks
    scores: Tensor
    queries: Tensor
    targets: Tracks
    n_queries: int


class TrackFile(NamedTuple):
    """What :func:`read_tracks` gives.

    :param tracks: tracks to score.
    :param queries: (clip uid, annotation uid, number of the query set) by number.
    :param notes: what counts otherwise than its author may expect.
    """

    tracks: TrackSubmission
    queries: list[_Key]
    notes: list[Note]


def read_tracks(annotations: Source, predictions: Source) -> TrackFile:
    """Read Visual-Queries files.

    :param annotations: {"videos": [{"clips": [{"clip_uid", "annotations":
        [{"annotation_uid", "query_sets": {number: {"is_valid", "response_track":
        [{"frame_number", "x", "y", "width", "height"}]}}}]}]}]}; query sets that are
        not valid do not count.
    :param predictions: {"results": {"videos": [{"clips": [{"clip_uid", "predictions":
        [{"annotation_uid", "query_sets": {number: {"bboxes": [{"fno", "x1", "y1",
        "x2", "y2"}], "score"}}}]}]}]}}; without "annotation_uid", as the public code
        writes it, predictions belong to the annotations of the clip by their place.
    :return: the arguments of ``visual_query_scores`` with the queries.
    :raises SubmissionError: if an answer is to no query, two are to one, a query has
        no boxes, a track has gaps or repeats a frame, or a field is missing or of
        another form.
    """
    document = open_document(annotations, "annotations")
    check_task(document, "annotations", "vq")
    given = open_document(predictions, "predictions")
    check_task(given, "predictions", "vq")
    uids = _annotation_uids(document)
    known = _query_sets(document, "annotations", uids)
    answers = _query_sets(_results(given), "predictions", uids)
    for key in answers:
        if key not in known:
            given.where.at(*key).fail(
                "the annotations do not ask this query",
                hint="are these the annotations that the predictions were made for?",
            )
    asked = [key for key, query in known.items() if query.get("is_valid", True)]
    if not asked:
        document.where.fail("no valid queries are asked", hint="is it the right file?")
    tracks = _arranged(
        [_target(known[key], document.where.at(*key)) for key in asked],
        [
            _answer(answers[key], given.where.at(*key)) if key in answers else []
            for key in asked
        ],
    )
    return TrackFile(tracks, asked, _notes(known, asked, answers, tracks))


def tracks_of(
    targets: Sequence[Sequence[Mapping[str, Any]]],
    predictions: Sequence[Sequence[Mapping[str, Any]]],
) -> TrackSubmission:
    """Arrange tracks given as records, a list of them per query.

    :param targets: for each query its boxes, {"frame_number", "x", "y", "width",
        "height"}.
    :param predictions: for each query its tracks, {"bboxes": [{"fno", "x1", "y1",
        "x2", "y2"}], "score"}.
    :return: the arguments of ``visual_query_scores``.
    :raises SubmissionError: as :func:`read_tracks`.
    """
    asked, given = Where("annotations"), Where("predictions")
    return _arranged(
        [
            _target({"response_track": boxes}, asked.at(f"query {query}"))
            for query, boxes in enumerate(targets)
        ],
        [
            [
                each
                for one in tracks
                for each in _answer(one, given.at(f"query {query}"))
            ]
            for query, tracks in enumerate(predictions)
        ],
    )


def _results(document: Document) -> Document:
    content, where = document
    return Document(where.take(content, "results", dict), where)


def _annotation_uids(document: Document) -> dict[Any, list[Any]]:
    """Annotations of each clip by place; none for ids that several clips have."""
    uids: dict[Any, list[Any]] = {}
    for _, clip, where in clips_of(document):
        parts = where.take(clip, "annotations", list)
        own = [
            where.name(part, "annotation_uid", f"annotations[{i}]")
            for i, part in enumerate(parts)
        ]
        uids[clip["clip_uid"]] = [] if clip["clip_uid"] in uids else own
    return uids


def _query_sets(
    document: Document, name: str, uids: Mapping[Any, list[Any]]
) -> dict[_Key, Any]:
    """Query sets by id; parts without the id of their annotation come by place."""
    found: dict[_Key, Any] = {}
    for _, clip, where in clips_of(document):
        own = uids.get(clip["clip_uid"], [])
        for i, part in enumerate(where.take(clip, name, list)):
            spot = f"{name}[{i}]"
            query_sets = where.take(part, "query_sets", dict, spot)
            is_by_place = "annotation_uid" not in part and i < len(own)
            uid = own[i] if is_by_place else where.name(part, "annotation_uid", spot)
            for number, query in query_sets.items():
                key = (clip["clip_uid"], uid, number)
                here = where.at(*key)
                if not isinstance(query, Mapping):
                    here.refuse("an object", query)
                if key in found:
                    here.fail("occurs twice", hint="leave one answer to each query")
                found[key] = query
    return found


def _target(query: Any, where: Where) -> list[_Box]:
    items = where.take(query, "response_track", list)
    boxes = []
    for i, box in enumerate(items):
        spot = f"response_track[{i}]"
        frame = where.integer(box, "frame_number", spot)
        x, y, width, height = (
            where.number(box, name, spot) for name in ("x", "y", "width", "height")
        )
        boxes.append((float(frame), x, y, x + width, y + height))
    if not boxes:
        where.fail("expected at least one box but got none", "response_track")
    _check_frames(boxes, where, "response_track")
    return boxes


def _answer(track: Any, where: Where) -> list[tuple[float, list[_Box]]]:
    score, boxes = where.number(track, "score"), []
    for i, box in enumerate(where.take(track, "bboxes", list)):
        spot = f"bboxes[{i}]"
        frame = where.integer(box, "fno", spot)
        x1, y1, x2, y2 = (
            where.number(box, name, spot) for name in ("x1", "y1", "x2", "y2")
        )
        boxes.append((float(frame), x1, y1, x2, y2))
    _check_frames(boxes, where, "bboxes")
    return [(score, boxes)]


def _check_frames(boxes: Sequence[_Box], where: Where, field: str) -> None:
    frames = sorted(int(box[0]) for box in boxes)
    if frames and frames != list(range(frames[0], frames[0] + len(frames))):
        where.refuse("consecutive frames, each once,", frames, field)


def _arranged(
    asked: list[list[_Box]], answers: list[list[tuple[float, list[_Box]]]]
) -> TrackSubmission:
    scores = [score for tracks in answers for score, _ in tracks]
    queries = [query for query, tracks in enumerate(answers) for _ in tracks]
    return TrackSubmission(
        _tracks([boxes for tracks in answers for _, boxes in tracks]),
        torch.tensor(scores, dtype=torch.float64),
        torch.tensor(queries, dtype=torch.long),
        _tracks(asked),
        len(asked),
    )


def _tracks(tracks: Sequence[Sequence[_Box]]) -> Tracks:
    owners = [owner for owner, boxes in enumerate(tracks) for _ in boxes]
    boxes = [box for track in tracks for box in track]
    return Tracks(
        torch.tensor([box[1:] for box in boxes], dtype=torch.float64).reshape(-1, 4),
        torch.tensor([int(box[0]) for box in boxes], dtype=torch.long),
        torch.tensor(owners, dtype=torch.long),
    )


def _notes(
    known: Mapping[_Key, Any],
    asked: list[_Key],
    answers: Mapping[_Key, Any],
    tracks: TrackSubmission,
) -> list[Note]:
    valid = set(asked)
    boxes, _, owners = tracks.predicted
    answered = set(tracks.queries[owners.unique()].tolist())
    notes = [
        _note(
            "queries without an answer, counted as misses",
            [key for query, key in enumerate(asked) if query not in answered],
        ),
        _note(
            "query sets that are not valid, left out",
            [key for key in known if key not in valid],
        ),
        _note(
            "answers to query sets that are not valid, ignored",
            [key for key in answers if key not in valid],
        ),
        Note(
            "predicted boxes without area, which match nothing",
            int((box_area(boxes) == 0).sum()),
        ),
    ]
    return [note for note in notes if note.count]


def _note(reason: str, keys: Sequence[_Key]) -> Note:
    return Note(reason, len(keys), tuple(" ".join(map(str, key)) for key in keys))
