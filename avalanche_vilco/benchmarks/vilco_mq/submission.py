"""Files of answers to Moment Queries, written, read and scored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import torch
from msgspec import UNSET, Meta, UnsetType
from torch import Tensor

from avalanche_vilco.benchmarks.sources import checked_sources
from avalanche_vilco.benchmarks.submissions import (
    OTHER_ANNOTATIONS,
    Document,
    Note,
    Role,
    Score,
    Source,
    annotation_fields,
    check_any,
    clips_of,
    open_document,
    score_row,
)
from avalanche_vilco.benchmarks.vilco_mq.official import AnnotatedClip
from avalanche_vilco.benchmarks.vilco_mq.sources import MQSources, read_moment_files
from avalanche_vilco.benchmarks.vilco_mq.split import MQ_PROTOCOLS
from avalanche_vilco.benchmarks.window_scores import (
    MomentSubmission,
    RecallGrid,
    Window,
    add_recall,
    arranged,
    improper,
    recall_by_group,
)
from avalanche_vilco.evaluation.functional import (
    EGO4D_TIOU,
    Reference,
    counted_labels,
    detection_ap,
)
from avalanche_vilco.evaluation.functional.references import check_reference

Part = Literal["detection", "retrieval"]

_PART_KEYS = {"detection": "detect_results", "retrieval": "retrieve_results"}
_GRIDS: Mapping[Reference | None, RecallGrid] = {
    None: RecallGrid((1, 5), EGO4D_TIOU, "per_gt"),
    "ego4d": RecallGrid((1, 2, 3, 4, 5), (0.3, 0.5, 0.7), "per_gt"),
    "actionformer": RecallGrid((1, 5), EGO4D_TIOU, "per_gt"),
    "vilco": RecallGrid((1, 5), EGO4D_TIOU, "per_gt"),
}
"""What each evaluator prints."""

_Segment = Annotated[list[float], Meta(min_length=2)]
_Name = Annotated[str, Meta(min_length=1)]
_Label = _Name | Annotated[int, Meta(ge=0, le=2**31 - 1)]


class _Answer(msgspec.Struct):
    label: _Label
    score: float
    segment: _Segment


class _Target(msgspec.Struct):
    label: _Label
    start_time: float | UnsetType = UNSET
    end_time: float | UnsetType = UNSET
    segment: _Segment | UnsetType = UNSET


class _Record(msgspec.Struct):
    subset: Any
    annotations: list[_Target]
    clip_id: Any = None


class MomentFile(NamedTuple):
    """What :func:`read_moments` gives."""

    moments: MomentSubmission
    """Windows to score, a row per clip."""
    names: dict[int, str]
    """Label by number; first those of the ground truth, as they appear."""
    clips: list[str]
    """Clip of each row."""
    notes: list[Note]
    """What counts otherwise than its author may expect."""


def role_of(content: Any) -> Role | None:
    """Whether content of a file is of Moment Queries, and what it is.

    :param content: as decoded.
    """
    if not isinstance(content, Mapping):
        return None
    keys = ("results", *_PART_KEYS.values())
    results = [content[key] for key in keys if key in content]
    if results:
        first = results[0]
        is_track = isinstance(first, Mapping) and "videos" in first
        return None if is_track or isinstance(first, list) else "predictions"
    if "videos" in content:
        return "annotations" if "labels" in annotation_fields(content) else None
    first = next(iter(content.values()), None)
    is_clip = isinstance(first, Mapping) and "annotations" in first
    return "annotations" if is_clip else None


class _Labels:
    """Numbers of labels: labels that are numbers, else the order of appearance."""

    def __init__(self) -> None:
        self.numbers: dict[str | int, int] = {}

    def number(self, label: str | int, file: Document, record: str, at: str) -> int:
        kind = type(next(iter(self.numbers), label))
        if not isinstance(label, kind):
            expected = "a whole number" if kind is int else "the name of a label"
            problem = f"expected {expected} but got {label!r:.80}, and other labels not"
            file.fail(problem, record=record, field=f"{at}.label")
        number = label if isinstance(label, int) else len(self.numbers)
        return self.numbers.setdefault(label, number)


class _Annotated(NamedTuple):
    """A clip of the annotations."""

    uid: str
    clip_id: Any
    subset: Any
    targets: Sequence[Any]
    """Have ``label``, and times."""


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
    :raises DataError: if there is no ground truth in the subset, a clip is unknown or
        annotated twice, or a field is missing or of another form.
    """
    check_reference(reference)
    given = open_document(predictions, "predictions")
    asked = open_document(annotations, "annotations")
    results = _results(given, part)
    labels, known = _Labels(), set()
    targets: dict[str, list[Window]] = {}
    for clip in _annotated(asked):
        key = clip.uid if clip_key == "clip_uid" else str(clip.clip_id)
        if key in known:
            hint = "its windows would be lost: join them in one record of the clip"
            asked.fail(f"the clip {key} occurs twice", record=clip.uid, hint=hint)
        known.add(key)
        # Public code looks for the name in the wanted one: "val" in "validation".
        is_loose = reference in ("ego4d", "vilco") and isinstance(clip.subset, str)
        if clip.subset in subset if is_loose else clip.subset == subset:
            targets[key] = _target_windows(clip, asked, labels)
    n_labels = len(labels.numbers)
    if not n_labels:
        problem = f"no ground truth in subset {subset!r}"
        asked.fail(problem, hint="name another subset")
    unknown = [uid for uid in results if uid not in known]
    if unknown and reference is None:
        problem = f"{len(unknown)} of {len(results)} clips are not in the annotations"
        given.fail(problem, record=unknown[0], hint=OTHER_ANNOTATIONS)
    answers = {
        uid: _scored_windows(items, uid, given, labels)
        for uid, items in results.items()
    }
    rows = list(dict.fromkeys([*answers, *targets]))
    names = {number: str(label) for label, number in labels.numbers.items()}
    return MomentFile(
        arranged(
            [answers.get(clip, []) for clip in rows],
            [targets.get(clip, []) for clip in rows],
        ),
        names,
        rows,
        _notes(answers, targets, names, n_labels, subset),
    )


def _results(given: Document, part: Part) -> dict[str, Any]:
    content = given.convert(given.content, dict[str, Any])
    is_challenge = bool({*_PART_KEYS.values()} & {*content})
    key = _PART_KEYS[part] if is_challenge else "results"
    if key not in content:
        given.fail(f"expected {key!r} but got {[*content][:8]}")
    return given.convert(content[key], dict[str, Any], within=key)


def _annotated(asked: Document) -> Iterable[_Annotated]:
    if isinstance(asked.content, Mapping) and "videos" in asked.content:
        for split, clip in clips_of(asked, AnnotatedClip, strict=False):
            windows = [w for one in clip.annotations for w in one.labels if w.primary]
            yield _Annotated(clip.clip_uid, clip.clip_uid, split, windows)
        return
    for uid, raw in asked.convert(asked.content, dict[str, Any]).items():
        record = asked.convert(raw, _Record, uid, strict=False)
        clip_id = uid if record.clip_id is None else record.clip_id
        yield _Annotated(uid, clip_id, record.subset, record.annotations)


def _target_windows(clip: _Annotated, asked: Document, labels: _Labels) -> list[Window]:
    windows = []
    for i, target in enumerate(clip.targets):
        at = f"annotations[{i}]"
        times: Any = (target.start_time, target.end_time)
        if target.start_time is UNSET and target.segment is not UNSET:
            times = target.segment[:2]
        if UNSET in times:
            problem = "expected start_time and end_time, or segment, but got neither"
            asked.fail(problem, record=clip.uid, field=at)
        asked.check_finite(times, clip.uid, f"{at}.start_time, end_time")
        label = labels.number(target.label, asked, clip.uid, at)
        windows.append((times[0], times[1], 0.0, label))
    return windows


def _scored_windows(
    raw: Any, uid: str, given: Document, labels: _Labels
) -> list[Window]:
    answers = given.convert(raw, list[_Answer], uid, strict=False)
    for i, answer in enumerate(answers):
        if answer.label not in labels.numbers:
            labels.number(answer.label, given, uid, f"[{i}]")
    windows = [
        (each.segment[0], each.segment[1], each.score, labels.numbers[each.label])
        for each in answers
    ]
    given.check_rows([window[:3] for window in windows], uid, "[{}].segment, score")
    return windows


def _notes(
    answers: Mapping[str, list[Window]],
    targets: Mapping[str, list[Window]],
    names: Mapping[int, str],
    n_labels: int,
    subset: str,
) -> list[Note]:
    known = {*[*names][:n_labels]}
    labels = (window[3] for row in answers.values() for window in row)
    absent = Counter(label for label in labels if label not in known)
    outside = tuple(uid for uid in answers if uid not in targets)
    return Note.told(
        Note(
            "clips in the predictions, none with any: nothing is found",
            0 if any(answers.values()) else len(answers),
        ),
        Note(
            "predictions of labels that the ground truth does not have, ignored",
            absent.total(),
            tuple(f"{names[label]} ({n})" for label, n in absent.most_common()),
        ),
        Note(
            f"predicted clips outside subset {subset!r}, false positives of mAP",
            len(outside),
            outside,
        ),
        improper(answers.values(), "predicted"),
        improper(targets.values(), "annotated"),
    )


# --- Scores ---------------------------------------------------------------------------


def score(
    result: Score,
    predictions: Document,
    annotations: Document,
    *,
    device: str = "cpu",
    subset: str = "val",
    k: Sequence[int] | None = None,
    tiou: Sequence[float] | None = None,
) -> None:
    """Add mAP and Recall@kx, over all and by label.

    :param result: says which evaluator is reproduced, and gets the numbers.
    """
    reference = result.reference
    found = read_moments(annotations, predictions, subset=subset, reference=reference)
    ranked, is_public = found, reference in ("ego4d", "vilco")
    if is_public or "retrieve_results" in predictions.content:
        ranked = read_moments(
            annotations,
            predictions,
            subset=subset,
            part="retrieval",
            clip_key="clip_id" if is_public else "clip_uid",
            reference=reference,
        )
    check_any(predictions, len(_results(predictions, "detection")))
    grid = _GRIDS[reference].replaced(k, tiou)
    levels = EGO4D_TIOU if tiou is None else tuple(tiou)
    ap = detection_ap(*found.moments.to(device), tiou=levels, reference=reference)
    annotated = found.moments.target_labels
    counted = counted_labels(
        found.moments.target_segments, annotated, reference=reference
    )
    result.counts = _counts(found.moments, counted)
    also = " (or are shorter than 1 ms)" if reference == "actionformer" else ""
    reason = f"annotated windows that repeat another one to within 1 ms{also}, left out"
    left_out = Note(reason, int((counted != annotated).sum()))
    result.notes = found.notes + Note.told(left_out)
    result.scores["mAP"] = score_row(levels, ap.mean_ap.tolist())
    moments = ranked.moments.to(device)
    add_recall(result, moments, grid)
    by_label = recall_by_group(result, moments, grid)
    for number, row in zip(ap.labels.tolist(), ap.ap.tolist(), strict=True):
        recalls = by_label.get(number, {"windows": 0})
        result.groups[found.names[number]] = {**recalls, "AP": score_row(levels, row)}


def _counts(moments: MomentSubmission, counted: Tensor) -> dict[str, int]:
    n_labels = int(torch.cat([moments.labels, counted], dim=1).max()) + 1
    asked = _clip_labels(counted, n_labels)
    given = _clip_labels(moments.labels, n_labels)
    return {
        "clips": len((asked // n_labels).unique()),
        "queries": len(asked),
        "answered": int(torch.isin(asked, given).sum()),
        "annotated windows": int((counted >= 0).sum()),
        "predictions": moments.n_predictions,
    }


def _clip_labels(labels: Tensor, n_labels: int) -> Tensor:
    """A number for each clip and label that occur together."""
    clip, place = (labels >= 0).nonzero(as_tuple=True)
    return (clip * n_labels + labels[clip, place]).unique()


def moment_document(
    data: Any,
    answers: Sequence[Sequence[Window]],
    scenario: Any,
    options: Mapping[str, Any],
    subset: str,
) -> dict[str, Any]:
    """Write windows as the challenge takes them, and as its evaluators do.

    Every clip of the subset is in it, which public recall insists on: once, as in the
    first experience that asks it, and without windows where none does.
    """
    sources = checked_sources(MQSources, options.get("sources"))
    root, protocol = options.get("dataset_root"), MQ_PROTOCOLS["exclusive"]
    clips = read_moment_files(root, sources, protocol).annotations.clips
    names = [query.name for query in scenario.queries]
    answered: dict[str, list[dict[str, Any]]] = {}
    for sample, windows in zip(data.samples, answers, strict=True):
        answered.setdefault(
            sample.clip.clip_id,
            [
                {"label": names[label], "score": score, "segment": [start, end]}
                for start, end, score, label in windows
            ],
        )
    asked = [clip.clip_id for clip in clips if clip.subset == subset]
    results = {clip_id: answered.get(clip_id, []) for clip_id in asked}
    return {
        "version": "1.0",
        "challenge": "ego4d_moment_queries",
        "detect_results": results,
        "retrieve_results": results,
        "results": results,
        "external_data": {},
    }
