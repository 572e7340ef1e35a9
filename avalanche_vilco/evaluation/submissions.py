"""Official annotation and submission files of the three tasks, as tensors to score.

Paths and parsed JSON are accepted alike. By default everything that the annotations
ask for counts, answered or not, and whatever they do not know is an error.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from avalanche_vilco.evaluation.functional.references import (
    Reference,
    check_reference,
)
from avalanche_vilco.evaluation.functional.visual_query import Tracks

Source = str | Path | Mapping[str, Any] | Sequence[Any]
_Window = tuple[float, float, float, int]  # start, end, score, label


class MomentSubmission(NamedTuple):
    """Arguments of :func:`~avalanche_vilco.evaluation.functional.detection_ap`.

    :param segments: predicted windows in seconds, ``(B, M, 2)``.
    :param scores: their scores, float64 ``(B, M)``.
    :param labels: places in ``names``, ``(B, M)``, -1 marks padding.
    :param target_segments: ground-truth windows in seconds, ``(B, N, 2)``.
    :param target_labels: places in ``names``, ``(B, N)``, -1 marks padding.
    """

    segments: Tensor
    scores: Tensor
    labels: Tensor
    target_segments: Tensor
    target_labels: Tensor


class QuerySubmission(NamedTuple):
    """A row per language query; ``moments`` are arguments of ``moment_recall``.

    :param moments: windows, all with label 0, one ground-truth window a row.
    :param queries: (clip uid, annotation uid, number of the query) of each row.
    :param templates: template of each row, None where the annotations give none.
    """

    moments: MomentSubmission
    queries: list[tuple[str, str, int]]
    templates: list[str | None]


class TrackSubmission(NamedTuple):
    """Arguments of ``visual_query_scores``."""

    predicted: Tracks
    scores: Tensor
    queries: Tensor
    targets: Tracks
    n_queries: int


def read_moments(
    annotations: Source,
    predictions: Source,
    *,
    subset: str = "val",
    clip_key: str = "clip_uid",
    reference: Reference | None = None,
) -> tuple[MomentSubmission, list[str]]:
    """Read Moment-Queries files.

    Rows are the clips of the predictions in their order, then those of the subset
    that have none. A clip outside the subset keeps its predictions and has no ground
    truth, as in the public evaluators.

    :param annotations: clip uid -> {"subset", "annotations": [{"label", "start_time",
        "end_time"}]}.
    :param predictions: {"results": clip uid -> [{"label", "score", "segment"}]}.
    :param subset: name of the subset to score.
    :param clip_key: "clip_uid" looks predictions up by the key of the record,
        "clip_id" by its field of that name, as the public recall does.
    :param reference: "ego4d" and "vilco" take every subset whose name is part of
        ``subset``.
    :return: the arguments of the metrics, and the names of the labels.
    :raises ValueError: if there is no ground truth in the subset, or a field is
        missing or of another form.
    """
    check_reference(reference)
    records, results = _parsed(annotations), _parsed(predictions)
    if not isinstance(results, Mapping) or "results" not in results:
        raise ValueError("expected predictions with the key 'results'")
    results = results["results"]
    names: dict[str, int] = {}
    targets: dict[str, list[_Window]] = {}
    for uid, record in records.items():
        of_subset = _field(record, "subset", uid)
        if of_subset == subset or (reference is not None and of_subset in subset):
            key = uid if clip_key == "clip_uid" else _field(record, clip_key, uid)
            targets[key] = [
                (
                    _number(item, "start_time", uid),
                    _number(item, "end_time", uid),
                    0.0,
                    names.setdefault(_field(item, "label", uid), len(names)),
                )
                for item in _field(record, "annotations", uid)
            ]
    if not names:
        raise ValueError(f"expected ground truth in subset {subset!r} but got none")
    answers = {
        uid: [_scored_window(item, names, uid) for item in items]
        for uid, items in results.items()
    }
    clips = list(dict.fromkeys([*answers, *targets]))
    moments = _moments(
        [answers.get(clip, []) for clip in clips],
        [targets.get(clip, []) for clip in clips],
    )
    return moments, list(names)


def read_queries(
    annotations: Source, predictions: Source, *, reference: Reference | None = None
) -> QuerySubmission:
    """Read Natural-Language-Queries files.

    By default there is a row per query of the annotations, without predictions where
    it was not answered. A third number of a predicted window is its score, if all
    windows of the query have one; otherwise the first window is the best.

    :param annotations: {"videos": [{"clips": [{"clip_uid", "annotations":
        [{"annotation_uid", "language_queries": [{"clip_start_sec", "clip_end_sec",
        "template"}]}]}]}]}.
    :param predictions: [{"clip_uid", "annotation_uid", "query_idx",
        "predicted_times": [[start, end], ...]}], or such a list under "results".
    :param reference: "ego4d" and "vilco" give a row per answer, twice for an id
        answered twice, accept query numbers from the end and ignore scores.
    :return: rows to score.
    :raises ValueError: if an answer is to no query or of another form, by default also
        if two answers are to one query.
    """
    check_reference(reference)
    asked = {
        (clip["clip_uid"], part["annotation_uid"], number): query
        for video in _parsed(annotations)["videos"]
        for clip in video["clips"]
        for part in clip["annotations"]
        for number, query in enumerate(part["language_queries"])
    }
    answers = _parsed(predictions)
    answers = answers["results"] if isinstance(answers, Mapping) else answers
    pairs = [_answer(item, asked, reference) for item in answers]
    if reference is None:
        answered = dict(pairs)
        if len(answered) < len(pairs):
            twice = {key for key, _ in pairs if [k for k, _ in pairs].count(key) > 1}
            raise ValueError(f"expected one answer per query but got two to {twice}")
        pairs = [(key, answered.get(key, [])) for key in asked]
    targets: list[list[_Window]] = [
        [
            (
                _number(asked[key], "clip_start_sec", key),
                _number(asked[key], "clip_end_sec", key),
                0.0,
                0,
            )
        ]
        for key, _ in pairs
    ]
    return QuerySubmission(
        _moments([windows for _, windows in pairs], targets),
        [key for key, _ in pairs],
        [asked[key].get("template") for key, _ in pairs],
    )


def read_tracks(annotations: Source, predictions: Source) -> TrackSubmission:
    """Read Visual-Queries files.

    :param annotations: {"videos": [{"clips": [{"clip_uid", "annotations":
        [{"annotation_uid", "query_sets": {number: {"is_valid", "response_track":
        [{"frame_number", "x", "y", "width", "height"}]}}}]}]}]}; query sets that are
        not valid do not count.
    :param predictions: {"results": {"videos": [{"clips": [{"clip_uid", "predictions":
        [{"annotation_uid", "query_sets": {number: {"bboxes": [{"fno", "x1", "y1",
        "x2", "y2"}], "score"}}}]}]}]}}.
    :return: the arguments of ``visual_query_scores``.
    :raises ValueError: if an answer is to no query, a query has no boxes, a track has
        gaps or repeats a frame, or a score is missing.
    """
    known = {
        (clip["clip_uid"], part["annotation_uid"], number): query
        for video in _parsed(annotations)["videos"]
        for clip in video["clips"]
        for part in clip["annotations"]
        for number, query in part["query_sets"].items()
    }
    answers = [
        ((clip["clip_uid"], part["annotation_uid"], number), answer)
        for video in _parsed(predictions)["results"]["videos"]
        for clip in video["clips"]
        for part in clip["predictions"]
        for number, answer in part["query_sets"].items()
    ]
    unknown = [key for key, _ in answers if key not in known]
    if unknown:
        raise ValueError(f"expected answers to queries asked but got {unknown[:3]}")
    by_query: dict[tuple[str, str, str], list[Any]] = {key: [] for key in known}
    for key, answer in answers:
        by_query[key].append(answer)
    asked = [key for key, query in known.items() if query.get("is_valid", True)]
    return tracks_of(
        [known[key]["response_track"] for key in asked],
        [by_query[key] for key in asked],
    )


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
    :raises ValueError: as :func:`read_tracks`.
    """
    asked = [
        [
            (
                b["frame_number"],
                b["x"],
                b["y"],
                b["x"] + b["width"],
                b["y"] + b["height"],
            )
            for b in boxes
        ]
        for boxes in targets
    ]
    for query, boxes in enumerate(asked):
        if not boxes:
            raise ValueError(
                f"expected a response track for query {query} but got none"
            )
        _check_frames(boxes, f"response track of query {query}")
    given, scores, queries = [], [], []
    for query, tracks in enumerate(predictions):
        for track in tracks:
            scores.append(_number(track, "score", f"query {query}"))
            queries.append(query)
            boxes = [
                (b["fno"], b["x1"], b["y1"], b["x2"], b["y2"]) for b in track["bboxes"]
            ]
            _check_frames(boxes, f"prediction for query {query}")
            given.append(boxes)
    return TrackSubmission(
        _tracks(given),
        torch.tensor(scores, dtype=torch.float64),
        torch.tensor(queries, dtype=torch.long),
        _tracks(asked),
        len(asked),
    )


def _answer(
    item: Mapping[str, Any],
    asked: Mapping[tuple[str, str, int], Any],
    reference: Reference | None,
) -> tuple[tuple[str, str, int], list[_Window]]:
    key = (item["clip_uid"], item["annotation_uid"], int(item["query_idx"]))
    if key[2] < 0 and reference is not None:
        n_asked = sum(known[:2] == key[:2] for known in asked)
        key = (*key[:2], key[2] + n_asked)
    if key not in asked:
        raise ValueError(f"expected an answer to a query asked but got {key}")
    windows = item["predicted_times"]
    if any(not isinstance(window, Sequence) or len(window) < 2 for window in windows):
        raise ValueError(
            f"expected predicted_times of [[start, end], ...] for {key} but got "
            f"{windows}"
        )
    has_scores = reference is None and all(len(window) > 2 for window in windows)
    return key, [
        (float(w[0]), float(w[1]), float(w[2]) if has_scores else -float(place), 0)
        for place, w in enumerate(windows)
    ]


def _scored_window(
    item: Mapping[str, Any], names: dict[str, int], clip: str
) -> _Window:
    start, end = _field(item, "segment", clip)
    label = names.setdefault(_field(item, "label", clip), len(names))
    return float(start), float(end), _number(item, "score", clip), label


def _moments(
    predictions: list[list[_Window]], targets: list[list[_Window]]
) -> MomentSubmission:
    segments, scores, labels = _padded(predictions)
    target_segments, _, target_labels = _padded(targets)
    return MomentSubmission(segments, scores, labels, target_segments, target_labels)


def _padded(rows: list[list[_Window]]) -> tuple[Tensor, Tensor, Tensor]:
    width = max(map(len, rows), default=0)
    padding: _Window = (0.0, 0.0, -math.inf, -1)
    table = torch.tensor(
        [row + [padding] * (width - len(row)) for row in rows], dtype=torch.float64
    ).reshape(len(rows), width, 4)
    return table[..., :2], table[..., 2], table[..., 3].long()


def _tracks(tracks: Sequence[Sequence[tuple[float, ...]]]) -> Tracks:
    owners = [owner for owner, boxes in enumerate(tracks) for _ in boxes]
    boxes = [box for track in tracks for box in track]
    return Tracks(
        torch.tensor([box[1:] for box in boxes], dtype=torch.float64).reshape(-1, 4),
        torch.tensor([int(box[0]) for box in boxes], dtype=torch.long),
        torch.tensor(owners, dtype=torch.long),
    )


def _check_frames(boxes: Iterable[tuple[float, ...]], what: str) -> None:
    frames = sorted(int(box[0]) for box in boxes)
    if frames and frames != list(range(frames[0], frames[-1] + 1)):
        raise ValueError(
            f"expected consecutive frames, each once, but got {frames} in the {what}"
        )


def _parsed(source: Source) -> Any:
    if isinstance(source, str | Path):
        return json.loads(Path(source).read_text())
    return source


def _field(record: Mapping[str, Any], name: str, where: object) -> Any:
    if name not in record:
        raise ValueError(f"expected the field {name!r} in {where} but got {record}")
    return record[name]


def _number(record: Mapping[str, Any], name: str, where: object) -> float:
    value = _field(record, name, where)
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(
            f"expected a number as {name!r} in {where} but got {value!r}"
        ) from None
