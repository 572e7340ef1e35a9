"""Files of Moment Queries."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

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
from avalanche_vilco.evaluation.functional.references import (
    Reference,
    check_reference,
)

Part = Literal["detection", "retrieval"]
Window = tuple[float, float, float, int]  # start, end, score, label

_PART_KEYS = {"detection": "detect_results", "retrieval": "retrieve_results"}


class MomentSubmission(NamedTuple):
    """Arguments of :func:`~avalanche_vilco.evaluation.functional.detection_ap`.

    :param segments: predicted windows in seconds, ``(B, M, 2)``.
    :param scores: their scores, float64 ``(B, M)``.
    :param labels: numbers in ``names``, ``(B, M)``, -1 marks padding.
    :param target_segments: ground-truth windows in seconds, ``(B, N, 2)``.
    :param target_labels: numbers in ``names``, ``(B, N)``, -1 marks padding.
    """

    segments: Tensor
    scores: Tensor
    labels: Tensor
    target_segments: Tensor
    target_labels: Tensor


class MomentFile(NamedTuple):
    """What :func:`read_moments` gives.

    :param moments: windows to score, a row per clip.
    :param names: label by number; first those of the ground truth, as they appear.
    :param clips: clip of each row.
    :param notes: what counts otherwise than its author may expect.
    """

    moments: MomentSubmission
    names: dict[int, str]
    clips: list[str]
    notes: list[Note]


class _Labels:
    """Numbers of labels: labels that are numbers, else the order of appearance."""

    def __init__(self) -> None:
        self.numbers: dict[str | int, int] = {}
        self._are_numbers = False

    def __call__(self, item: Any, where: Where, spot: str) -> int:
        label = where.get(item, "label", spot)
        if not self.numbers:
            self._are_numbers = type(label) is int
        if self._are_numbers:
            number = where.integer(item, "label", spot)
            if number < 0:
                where.refuse("a label >= 0", label, f"{spot}.label")
            return self.numbers.setdefault(number, number)
        if not isinstance(label, str) or not label:
            where.refuse("the name of a label", label, f"{spot}.label")
        return self.numbers.setdefault(label, len(self.numbers))


class _Annotated(NamedTuple):
    """A clip of the annotations."""

    uid: str
    clip_id: Any
    subset: Any
    windows: Sequence[Any]
    where: Where


def read_moments(
    annotations: Source,
    predictions: Source,
    *,
    subset: str = "val",
    clip_key: str = "clip_uid",
    part: Part = "detection",
    reference: Reference | None = None,
) -> MomentFile:
    """Read Moment-Queries files.

    Rows are the clips of the predictions in their order, then those of the subset
    that have none. A clip outside the subset keeps its predictions and has no ground
    truth, as in the public evaluators.

    Labels are names, or numbers >= 0 in both files, which then keep their number.

    :param annotations: clip uid -> {"subset", "annotations": [{"label"} with "segment"
        or with "start_time" and "end_time"]}; or Ego4D's own file, {"videos":
        [{"split", "clips": [{"clip_uid", "annotations": [{"labels": [{"label",
        "primary", "start_time", "end_time"}]}]}]}]}, of which labels that are not
        primary do not count.
    :param predictions: {"results": clip uid -> [{"label", "score", "segment"}]}, or
        the challenge's file with "detect_results" and "retrieve_results" instead.
    :param subset: name of the subset to score.
    :param clip_key: "clip_uid" looks predictions up by the key of the record,
        "clip_id" by its field of that name, as the public recall does.
    :param part: which results of a challenge's file to read.
    :param reference: "ego4d", "vilco" and "actionformer" take clips that the
        annotations do not know; "ego4d" and "vilco" every subset whose name is part
        of ``subset``.
    :return: the arguments of the metrics with the names of the labels.
    :raises SubmissionError: if there is no ground truth in the subset, a clip is
        unknown, or a field is missing or of another form.
    """
    check_reference(reference)
    given, results = _results(predictions, part)
    document = open_document(annotations, "annotations")
    check_task(document, "annotations", "mq")
    label_of, known = _Labels(), set()
    targets: dict[str, list[Window]] = {}
    for clip in _annotated(document):
        key = clip.uid if clip_key == "clip_uid" else str(clip.clip_id)
        known.add(key)
        if _is_in(clip.subset, subset, reference):
            targets[key] = _target_windows(clip, label_of)
    n_labels = len(label_of.numbers)
    if not n_labels:
        where = document.where
        where.fail(f"no ground truth in subset {subset!r}", hint="name another subset")
    if reference is None:
        _check_known(results, known, given)
    answers = {
        uid: _scored_windows(items, label_of, given.at(uid))
        for uid, items in results.items()
    }
    rows = list(dict.fromkeys([*answers, *targets]))
    names = {number: str(label) for label, number in label_of.numbers.items()}
    return MomentFile(
        arranged(
            [answers.get(clip, []) for clip in rows],
            [targets.get(clip, []) for clip in rows],
        ),
        names,
        rows,
        _notes(answers, targets, names, n_labels, subset),
    )


def arranged(
    predictions: list[list[Window]], targets: list[list[Window]]
) -> MomentSubmission:
    """Rows of windows as tensors.

    :param predictions: windows of each row.
    :param targets: ground truth of each row.
    :return: padded tensors.
    """
    segments, scores, labels = _padded(predictions)
    target_segments, _, target_labels = _padded(targets)
    return MomentSubmission(segments, scores, labels, target_segments, target_labels)


def improper(rows: Iterable[Sequence[Window]], what: str) -> list[Note]:
    """Note of windows that are reversed or have no length, if there are any.

    :param rows: windows of each row.
    :param what: whose they are.
    :return: one note or none.
    """
    count = sum(end <= start for row in rows for start, end, _, _ in row)
    reason = (
        f"{what} windows that are reversed or without length, never a hit by default"
    )
    return [Note(reason, count)] if count else []


def _results(source: Source, part: Part) -> tuple[Where, Mapping[str, Any]]:
    document = open_document(source, "predictions")
    check_task(document, "predictions", "mq")
    content, where = document
    key = _PART_KEYS[part]
    is_challenge = isinstance(content, Mapping) and bool(
        {*_PART_KEYS.values()} & {*content}
    )
    return where, where.take(content, key if is_challenge else "results", dict)


def _annotated(document: Document) -> Iterable[_Annotated]:
    content, where = document
    if isinstance(content, Mapping) and "videos" in content:
        yield from map(_of_official, clips_of(document))
        return
    if not isinstance(content, Mapping):
        where.refuse("an object of clips", content)
    for uid, record in content.items():
        here = where.at(uid)
        windows = here.take(record, "annotations", list)
        clip_id, subset = record.get("clip_id", uid), here.get(record, "subset")
        yield _Annotated(uid, clip_id, subset, windows, here)


def _of_official(entry: tuple[Any, Any, Where]) -> _Annotated:
    video, clip, where = entry
    uid, windows = where.take(clip, "clip_uid", str), []
    for i, annotator in enumerate(where.take(clip, "annotations", list)):
        for label in where.take(annotator, "labels", list, f"annotations[{i}]"):
            if where.get(label, "primary", f"annotations[{i}].labels"):
                windows.append(label)
    return _Annotated(uid, uid, where.get(video, "split"), windows, where)


def _is_in(found: Any, subset: str, reference: Reference | None) -> bool:
    if reference in ("ego4d", "vilco"):
        return isinstance(found, str) and found in subset
    return bool(found == subset)


def _target_windows(clip: _Annotated, label_of: _Labels) -> list[Window]:
    where, windows = clip.where, []
    for i, item in enumerate(clip.windows):
        spot = f"annotations[{i}]"
        if isinstance(item, Mapping) and "segment" in item and "start_time" not in item:
            start, end = where.window(item["segment"], f"{spot}.segment")
        else:
            start = where.number(item, "start_time", spot)
            end = where.number(item, "end_time", spot)
        windows.append((start, end, 0.0, label_of(item, where, spot)))
    return windows


def _scored_windows(items: Any, label_of: _Labels, where: Where) -> list[Window]:
    if not isinstance(items, list | tuple):
        where.refuse("a list of windows", items)
    windows = []
    for i, item in enumerate(items):
        spot = f"[{i}]"
        start, end = where.window(where.get(item, "segment", spot), f"{spot}.segment")
        score = where.number(item, "score", spot)
        windows.append((start, end, score, label_of(item, where, spot)))
    return windows


def _check_known(results: Mapping[str, Any], known: set[str], where: Where) -> None:
    unknown = [uid for uid in results if uid not in known]
    if unknown:
        where.at(unknown[0]).fail(
            f"{len(unknown)} of {len(results)} clips are not in the annotations",
            hint="are these the annotations that the predictions were made for?",
        )


def _notes(
    answers: Mapping[str, list[Window]],
    targets: Mapping[str, list[Window]],
    names: Mapping[int, str],
    n_labels: int,
    subset: str,
) -> list[Note]:
    known = [*names][:n_labels]
    absent = Counter(label for row in answers.values() for *_, label in row)
    for label in known:
        absent.pop(label, None)
    outside = [uid for uid in answers if uid not in targets]
    notes = []
    if absent:
        reason = "predictions of labels that the ground truth does not have, ignored"
        records = [f"{names[label]} ({n})" for label, n in absent.most_common()]
        notes.append(Note(reason, absent.total(), tuple(records)))
    if outside:
        reason = f"predicted clips outside subset {subset!r}, false positives of mAP"
        notes.append(Note(reason, len(outside), tuple(outside)))
    notes += improper(answers.values(), "predicted")
    return notes + improper(targets.values(), "annotated")


def _padded(rows: list[list[Window]]) -> tuple[Tensor, Tensor, Tensor]:
    width = max(map(len, rows), default=0)
    padding: Window = (0.0, 0.0, -math.inf, -1)
    table = torch.tensor(
        [row + [padding] * (width - len(row)) for row in rows], dtype=torch.float64
    ).reshape(len(rows), width, 4)
    return table[..., :2], table[..., 2], table[..., 3].long()
