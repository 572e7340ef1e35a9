"""Files of answers to Visual Queries, written, read and scored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import torch
from msgspec import UNSET, UnsetType
from torch import Tensor

from avalanche_vilco.benchmarks.sources import checked_sources
from avalanche_vilco.benchmarks.submissions import (
    OTHER_ANNOTATIONS,
    Document,
    Note,
    Role,
    Row,
    Score,
    Source,
    annotation_fields,
    check_any,
    clips_of,
    open_document,
    score_row,
)
from avalanche_vilco.benchmarks.vilco_vq.sources import VQSources, annotation_file
from avalanche_vilco.evaluation.functional import Tracks, visual_query_scores
from avalanche_vilco.evaluation.functional.response_track import (
    FrameRows,
    QueryAnswers,
    frame_rows,
    query_answers,
)
from avalanche_vilco.evaluation.functional.visual_query import (
    AP_IOU,
    RECOVERY_IOU,
    SUCCESS_IOU,
    VisualQueryScores,
)
from avalanche_vilco.ops.boxes import box_area

_Id = str | int | None
_Box = tuple[int, float, float, float, float]  # frame, x1, y1, x2, y2
_Answer = tuple[float, list[_Box]]
_Key = tuple[_Id, _Id, str]
_MAX_FRAME = 2**31 - 1


class _TrackBox(msgspec.Struct):
    frame_number: float
    x: float
    y: float
    width: float
    height: float

    def corners(self) -> tuple[float, ...]:
        """Frame, x1, y1, x2, y2."""
        right, low = self.x + self.width, self.y + self.height
        return (self.frame_number, self.x, self.y, right, low)


class _AnswerBox(msgspec.Struct):
    fno: float
    x1: float
    y1: float
    x2: float
    y2: float

    def corners(self) -> tuple[float, ...]:
        """Frame, x1, y1, x2, y2."""
        return (self.fno, self.x1, self.y1, self.x2, self.y2)


class _Track(msgspec.Struct):
    response_track: list[_TrackBox]


class _Prediction(msgspec.Struct):
    score: float
    bboxes: list[_AnswerBox]


class _Part(msgspec.Struct):
    query_sets: dict[str, dict[str, Any]]
    annotation_uid: _Id | UnsetType = UNSET


class _AskedClip(msgspec.Struct):
    clip_uid: _Id
    annotations: list[_Part]


class _AnsweredClip(msgspec.Struct):
    clip_uid: _Id
    predictions: list[_Part]


class TrackSubmission(NamedTuple):
    """Arguments of ``visual_query_scores``."""

    predicted: Tracks
    scores: Tensor
    queries: Tensor
    targets: Tracks
    n_queries: int


class TrackFile(NamedTuple):
    """What :func:`read_tracks` gives."""

    tracks: TrackSubmission
    queries: list[_Key]
    """(clip uid, annotation uid, number of the query set) by number."""
    notes: list[Note]
    """What counts otherwise than its author may expect."""


def role_of(content: Any) -> Role | None:
    """Whether content of a file is of Visual Queries, and what it is.

    :param content: as decoded.
    """
    if not isinstance(content, Mapping):
        return None
    if isinstance(content.get("results"), Mapping) and "videos" in content["results"]:
        return "predictions"
    return "annotations" if "query_sets" in annotation_fields(content) else None


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
    :raises DataError: if an answer is to no query, two are to one, a query has no
        boxes, a track has gaps or repeats a frame, or a field is missing or of another
        form.
    """
    asked_file = open_document(annotations, "annotations")
    given = open_document(predictions, "predictions")
    results = given.convert(given.content, dict[str, Any]).get("results")
    clips = [clip for _, clip in clips_of(asked_file, _AskedClip)]
    known = _query_sets(asked_file, [(c.clip_uid, c.annotations) for c in clips], {})
    answered_clips = clips_of(Document(results, given.file), _AnsweredClip)
    answers = _query_sets(
        given, [(c.clip_uid, c.predictions) for _, c in answered_clips], _uids(clips)
    )
    for key in answers:
        if key not in known:
            problem = "the annotations do not ask this query"
            given.fail(problem, record=_named(key), hint=OTHER_ANNOTATIONS)
    asked = [key for key, query in known.items() if query.get("is_valid", True)]
    if not asked:
        asked_file.fail("no valid queries are asked", hint="is it the right file?")
    tracks = _arranged(
        [_target(known[key], asked_file, _named(key)) for key in asked],
        [
            [_answer(answers[key], given, _named(key))] if key in answers else []
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
    :raises DataError: as :func:`read_tracks`.
    """
    asked = Document(targets, "annotations")
    given = Document(predictions, "predictions")
    return _arranged(
        [
            _target({"response_track": boxes}, asked, f"query {query}")
            for query, boxes in enumerate(targets)
        ],
        [
            [_answer(one, given, f"query {query}") for one in tracks]
            for query, tracks in enumerate(predictions)
        ],
    )


def _named(key: _Key) -> str:
    return " ".join(map(str, key))


def _uids(clips: Sequence[_AskedClip]) -> dict[_Id, list[Any]]:
    """Annotations of each clip by place; none for ids that several clips have."""
    uids: dict[_Id, list[Any]] = {}
    for clip in clips:
        is_repeated = clip.clip_uid in uids
        parts = [] if is_repeated else clip.annotations
        uids[clip.clip_uid] = [part.annotation_uid for part in parts]
    return uids


def _query_sets(
    document: Document,
    clips: Sequence[tuple[_Id, Sequence[_Part]]],
    uids: Mapping[_Id, Sequence[Any]],
) -> dict[_Key, dict[str, Any]]:
    """Query sets by id; parts without the id of their annotation come by place."""
    found: dict[_Key, dict[str, Any]] = {}
    for clip, parts in clips:
        by_place = dict(enumerate(uids.get(clip, [])))
        for i, part in enumerate(parts):
            uid = part.annotation_uid
            uid = by_place.get(i, UNSET) if uid is UNSET else uid
            if isinstance(uid, UnsetType):
                problem = f"expected 'annotation_uid' of part {i + 1} but got none"
                document.fail(problem, record=f"clip {clip}")
            for number, query in part.query_sets.items():
                key = (clip, uid, number)
                if key in found:
                    hint = "leave one of each clip, annotation and number"
                    document.fail("occurs twice", record=_named(key), hint=hint)
                found[key] = query
    return found


def _target(query: Mapping[str, Any], document: Document, record: str) -> list[_Box]:
    track = document.convert(query, _Track, record, strict=False).response_track
    if not track:
        problem = "expected at least one box but got none"
        document.fail(problem, record=record, field="response_track")
    return _boxes([box.corners() for box in track], document, record, "response_track")


def _answer(raw: Any, document: Document, record: str) -> _Answer:
    answer = document.convert(raw, _Prediction, record, strict=False)
    document.check_finite([answer.score], record, "score")
    corners = [box.corners() for box in answer.bboxes]
    return answer.score, _boxes(corners, document, record, "bboxes")


def _boxes(
    rows: Sequence[tuple[float, ...]], document: Document, record: str, field: str
) -> list[_Box]:
    """Boxes whose numbers are finite and whose frames are consecutive."""
    document.check_rows(rows, record, f"{field}[{{}}]")
    for i, (frame, *_) in enumerate(rows):
        if frame % 1 or abs(frame) > _MAX_FRAME:
            problem = f"expected a frame, a whole number of 31 bits, but got {frame}"
            document.fail(problem, record=record, field=f"{field}[{i}]")
    frames = sorted(int(row[0]) for row in rows)
    if frames and frames != list(range(frames[0], frames[0] + len(frames))):
        problem = f"expected consecutive frames, each once, but got {frames!r:.80}"
        document.fail(problem, record=record, field=field)
    return [(int(frame), x1, y1, x2, y2) for frame, x1, y1, x2, y2 in rows]


def _arranged(
    asked: Sequence[list[_Box]], answers: Sequence[Sequence[_Answer]]
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
        torch.tensor([box[0] for box in boxes], dtype=torch.long),
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
    return Note.told(
        Note.of(
            "queries without an answer, counted as misses",
            [key for query, key in enumerate(asked) if query not in answered],
        ),
        Note.of(
            "query sets that are not valid, left out",
            [key for key in known if key not in valid],
        ),
        Note.of(
            "answers to query sets that are not valid, ignored",
            [key for key in answers if key not in valid],
        ),
        Note(
            "predicted boxes without area, which match nothing",
            int((box_area(boxes) == 0).sum()),
        ),
    )


# --- Scores ---------------------------------------------------------------------------


def score(
    result: Score, predictions: Document, annotations: Document, *, device: str = "cpu"
) -> None:
    """Add tAP, stAP, success and recovery, over all queries and by size.

    :param result: says which evaluator is reproduced, and gets the numbers.
    """
    found = read_tracks(annotations, predictions)
    tracks = found.tracks
    answered = tracks.queries[tracks.predicted.owners.unique()].unique()
    check_any(predictions, len(answered))
    result.counts = {
        "queries": tracks.n_queries,
        "answered": len(answered),
        "predictions": len(tracks.scores),
    }
    result.notes = found.notes
    by_size = visual_query_scores(
        Tracks(*(column.to(device) for column in tracks.predicted)),
        tracks.scores.to(device),
        tracks.queries.to(device),
        Tracks(*(column.to(device) for column in tracks.targets)),
        tracks.n_queries,
        reference=result.reference,
    )
    for size, scores in by_size.items():
        result.counts[f"{size} queries"] = scores.n_queries
        suffix = "" if size == "all" else f" {size}"
        for name, row in _rows(scores).items():
            result.scores[name + suffix] = row


def _rows(scores: VisualQueryScores) -> dict[str, Row]:
    return {
        "tAP": score_row(AP_IOU, scores.temporal_ap),
        "stAP": score_row(AP_IOU, scores.tube_ap),
        "success": score_row(SUCCESS_IOU, scores.success, has_mean=False),
        "recovery": score_row(RECOVERY_IOU, scores.recovery, has_mean=False),
    }


# --- Answers of a run ---------------------------------------------------------------


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
    annotations: Source, queries: Sequence[_Key], answers: QueryAnswers
) -> dict[str, Any]:
    """Write answers as the challenge takes them.

    The document has every video, clip, annotation and query set of the official file,
    in its order, since public code tells annotations by their place. Query sets that
    are not answered, valid or not, have no boxes and score 0. Coordinates are not
    rounded, as public code rounds them. The version is the annotations'.

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
        # The public evaluator compares it with the annotations'.
        "version": asked.content.get("version", "1.0"),
        "challenge": "ego4d_vq2d_challenge",
        "results": {"videos": videos},
    }


def _listed(asked: Document, holder: Any, name: str) -> Iterable[Mapping[str, Any]]:
    """The objects of a list in a field."""
    fields = asked.convert(holder, dict[str, Any])
    return asked.convert(fields.get(name), list[dict[str, Any]], within=name)


def _records(
    queries: Sequence[_Key], answers: QueryAnswers
) -> dict[_Key, dict[str, Any]]:
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
