"""Ego4D annotation files become validated records.

Moment queries are read from the processed file that public code shares,
``ego4d_clip_annotations_v2.json`` (also v1): a dict of clip uid to record with
``video_id, clip_id, duration, parent_start_sec, parent_end_sec, v_duration, fps,
subset, annotations``; times are seconds relative to the clip, ``fps`` is the rate
of the features (steps a second).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from avalanche_vilco.data.errors import DataError
from avalanche_vilco.data.report import DataReport, Tally

SUBSETS = ("train", "val", "test")
DUPLICATE_TOLERANCE_SEC = 1e-3
"""Windows of one clip and label closer than this at both ends are one window."""

_PLAIN_ID_HINT = "letters, digits, '-', '_', '.' only, no '.' or '-' in front"
_LAYOUT_HINT = "expected the layout of ego4d_clip_annotations_v2.json"
_MAX_LABEL_ID = 2**31 - 1
_PLAIN_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\Z")


@dataclass(frozen=True, eq=False)
class MomentClip:
    """One annotated clip. Arrays are read-only: experiences share them."""

    clip_id: str
    video_id: str
    """Parent video; splits never separate clips of one parent."""
    subset: str
    duration_sec: float
    features_per_sec: float
    windows_sec: npt.NDArray[np.float64]
    """(N, 2) start and end, 0 <= start < end <= duration."""
    label_ids: npt.NDArray[np.int64]
    """(N,) category of each window, as in the file."""


@dataclass(frozen=True)
class MomentAnnotations:
    """A validated moment-query annotation file."""

    clips: tuple[MomentClip, ...]
    """In file order."""
    label_names: Mapping[int, str]
    """Category id -> name in the file's raw spelling, ids ascending."""
    report: DataReport = field(repr=False)
    """Counts of windows and clips, and the file's hash."""


class _Window(msgspec.Struct):
    segment: tuple[float, float]
    label: str
    label_id: int


class _Clip(msgspec.Struct):
    video_id: str
    clip_id: str
    duration: float
    fps: float
    subset: str
    annotations: list[_Window]


def read_moment_annotations(path: Path | str) -> MomentAnnotations:
    """Read and validate the processed moment-query file.

    Windows that overhang the clip are clipped, exact duplicates and windows that
    are reversed, empty or outside the clip are rejected; all are counted in the
    report, with ``read = kept + changed + rejected``.

    :param path: ``ego4d_clip_annotations_v2.json`` or v1.
    :return: clips in file order, category names and the report.
    :raises FileNotFoundError: no such file.
    :raises DataError: not JSON, truncated, or a record breaks the schema (wrong
        type, number as text, NaN, empty label, duplicated clip, one id with two
        names); the message names file, record and field.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(
            f"no annotation file at {path}; pass the path of "
            "ego4d_clip_annotations_v2.json, which comes with Ego4D's moment queries"
        )
    content = path.read_bytes()
    records = _decode_records(path, content)
    report = DataReport(files={path.name: hashlib.sha256(content).hexdigest()})
    names = _label_names(path, records)
    clips = tuple(
        _moment_clip(path, clip_id, record, report)
        for clip_id, record in records.items()
    )
    _note_shared_parents(clips, report.stage("annotations", "clips"))
    return MomentAnnotations(clips, names, report)


def _decode_records(path: Path, content: bytes) -> dict[str, _Clip]:
    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        unique = dict(pairs)
        if len(unique) != len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            problem = f"the key {twice!r} occurs twice in one object"
            hint = "only the last would count: leave one"
            raise DataError(path, problem, record=unique.get("clip_id"), hint=hint)
        return unique

    try:
        records = json.loads(content, object_pairs_hook=no_duplicates)
    except DataError:
        raise
    except (ValueError, RecursionError) as error:
        hint = "the file may be truncated: compare its size and fetch it again"
        raise DataError(path, f"not valid JSON: {error}", hint=hint) from None
    if not isinstance(records, dict):
        kind = type(records).__name__
        problem = f"expected a JSON object of clips but got a {kind}"
        raise DataError(path, problem, hint=_LAYOUT_HINT)
    if not records:
        raise DataError(path, "the file holds no clip", hint="is it the right file?")
    return {clip_id: _record(path, clip_id, one) for clip_id, one in records.items()}


def _record(path: Path, clip_id: str, raw: Any) -> _Clip:
    try:
        return msgspec.convert(raw, type=_Clip)
    except msgspec.ValidationError as error:
        problem, _, where = str(error).partition(" - at `$")
        name = _field_name(where.strip("`").lstrip("."), raw)
        raise DataError(
            path, problem, record=clip_id, field=name, hint=_LAYOUT_HINT
        ) from None


def _field_name(where: str, raw: Any) -> str | None:
    """Name of the field at fault, with the window's number, which msgspec omits."""
    if not where.startswith("annotations[...]"):
        return where or None
    fits = (_is_window(window) for window in raw["annotations"])
    number = next(i for i, one_fits in enumerate(fits) if not one_fits)
    return where.replace("[...]", f"[{number}]", 1).replace("[...]", "")


def _is_window(raw: Any) -> bool:
    try:
        msgspec.convert(raw, type=_Window)
    except msgspec.ValidationError:
        return False
    return True


def _label_names(path: Path, records: Mapping[str, _Clip]) -> dict[int, str]:
    names: dict[int, str] = {}
    ids: dict[str, int] = {}
    for clip_id, record in records.items():
        for i, window in enumerate(record.annotations):
            spot = {"record": clip_id, "field": f"annotations[{i}].label"}
            if not window.label.strip():
                raise DataError(path, "the label is empty", **spot)
            if not window.label.isprintable():
                problem = f"the label {window.label!r} has unprintable characters"
                raise DataError(path, problem, **spot)
            if not 0 <= window.label_id <= _MAX_LABEL_ID:
                problem = (
                    f"expected label_id in 0..{_MAX_LABEL_ID} but got {window.label_id}"
                )
                raise DataError(path, problem, **spot)
            name = names.setdefault(window.label_id, window.label)
            known_id = ids.setdefault(window.label, window.label_id)
            if name != window.label or known_id != window.label_id:
                problem = (
                    f"label {window.label!r} with id {window.label_id} contradicts an "
                    f"earlier record: id {window.label_id} is {name!r}, and "
                    f"{window.label!r} has id {known_id}"
                )
                raise DataError(path, problem, **spot)
    if not names:
        raise DataError(
            path, "no clip has an annotation", hint="a test file cannot be trained on"
        )
    return dict(sorted(names.items()))


def check_plain_id(path: Path, clip_id: str) -> None:
    """Refuse ids that could name a file outside a feature folder.

    :raises DataError: the id holds a path separator or starts with a dot.
    """
    if not _PLAIN_ID.match(clip_id):
        problem = "the id has characters that an Ego4D uid does not have"
        raise DataError(path, problem, record=clip_id, hint=_PLAIN_ID_HINT)


def _moment_clip(
    path: Path, clip_id: str, record: _Clip, report: DataReport
) -> MomentClip:
    _check_record(path, clip_id, record)
    tally = report.stage("annotations", "windows")
    windows, labels = _clean_windows(path, clip_id, record, tally)
    clips = report.stage("annotations", "clips")
    if len(windows):
        clips.kept += 1
    elif record.subset == "test":
        clips.reject("subset test, without labels")
    else:
        clips.reject("no usable window")
    return MomentClip(
        clip_id,
        record.video_id,
        record.subset,
        record.duration,
        record.fps,
        windows,
        labels,
    )


def _check_record(path: Path, clip_id: str, record: _Clip) -> None:
    check_plain_id(path, clip_id)
    if record.clip_id != clip_id:
        problem = f"clip_id {record.clip_id!r} differs from the key"
        raise DataError(path, problem, record=clip_id, field="clip_id")
    if not _PLAIN_ID.match(record.video_id):
        problem = f"expected the uid of the parent video but got {record.video_id!r}"
        raise DataError(
            path, problem, record=clip_id, field="video_id", hint=_PLAIN_ID_HINT
        )
    if record.subset not in SUBSETS:
        problem = f"expected one of {', '.join(SUBSETS)} but got {record.subset!r}"
        raise DataError(path, problem, record=clip_id, field="subset")
    for name in ("duration", "fps"):
        value = getattr(record, name)
        if not (math.isfinite(value) and value > 0):
            problem = f"expected a positive number but got {value}"
            raise DataError(path, problem, record=clip_id, field=name)


def _clean_windows(
    path: Path, clip_id: str, record: _Clip, tally: Tally
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    kept: list[_Window] = []
    for i, window in enumerate(record.annotations):
        start, end = window.segment
        if not (math.isfinite(start) and math.isfinite(end)):
            spot = f"annotations[{i}].segment"
            problem = f"expected finite seconds but got {[start, end]}"
            raise DataError(path, problem, record=clip_id, field=spot)
        at_end = end == record.duration
        tally.note("windows end exactly at the clip's end", int(at_end))
        reason = _reject_reason(start, end, record.duration)
        if reason is None and _is_duplicate(kept, window):
            reason = "exact duplicate"
            tally.note("of them exact duplicates", int(at_end))
        if reason is not None:
            tally.reject(reason)
            continue
        kept.append(window)
        _count_kept(start, end, record.duration, tally)
    windows = np.array([w.segment for w in kept], dtype=np.float64).reshape(-1, 2)
    windows = windows.clip(0.0, record.duration)
    labels = np.array([w.label_id for w in kept], dtype=np.int64)
    windows.setflags(write=False)
    labels.setflags(write=False)
    return windows, labels


def _reject_reason(start: float, end: float, duration: float) -> str | None:
    if end < start:
        return "end before start"
    if end == start:
        return "zero length"
    if start >= duration or end <= 0:
        return "outside the clip"
    return None


def _is_duplicate(earlier: Iterable[_Window], window: _Window) -> bool:
    return any(
        other.label_id == window.label_id
        and abs(other.segment[0] - window.segment[0]) <= DUPLICATE_TOLERANCE_SEC
        and abs(other.segment[1] - window.segment[1]) <= DUPLICATE_TOLERANCE_SEC
        for other in earlier
    )


def _count_kept(start: float, end: float, duration: float, tally: Tally) -> None:
    if start < 0:
        tally.change("start before the clip, clipped to 0")
    elif end > duration:
        tally.change("overhangs the clip's end, clipped to it")
    else:
        tally.kept += 1


def _note_shared_parents(clips: Iterable[MomentClip], tally: Tally) -> None:
    parents: dict[str, set[str]] = {name: set() for name in SUBSETS}
    for clip in clips:
        parents[clip.subset].add(clip.video_id)
    shared = len(parents["train"] & parents["val"])
    tally.note("parent videos have clips in both train and val", shared)
