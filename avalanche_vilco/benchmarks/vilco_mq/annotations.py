"""Ego4D annotation files become validated records.

Moment queries are read from the processed file that public code shares,
``ego4d_clip_annotations_v2.json`` (also v1): a dict of clip uid to record with
``video_id, clip_id, duration, parent_start_sec, parent_end_sec, v_duration, fps,
subset, annotations``; times are seconds relative to the clip, ``fps`` is the rate
of the features (steps a second). Ego4D's own files are read by
:mod:`avalanche_vilco.benchmarks.vilco_mq.official`, with the same records as a result.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from avalanche_vilco.benchmarks.windows import count_usable, unusable_window
from avalanche_vilco.core.errors import DataError
from avalanche_vilco.core.report import DataReport, Tally
from avalanche_vilco.core.schema import (
    PLAIN_ID,
    PLAIN_ID_HINT,
    check_finite,
    check_plain_id,
    convert,
    decode_json_object,
)
from avalanche_vilco.data.moments import MomentClip, read_only

SUBSETS = ("train", "val", "test")
DUPLICATE_TOLERANCE_SEC = 1e-3
"""Windows of one clip and label closer than this at both ends are one window."""

_LAYOUT_HINT = (
    "expected the layout of ego4d_clip_annotations_v2.json; where there is only the "
    "challenge's clip_annotations.json, which states no category ids, pass the folder "
    "of the moments_train.json and moments_val.json that it was made of"
)
_MAX_LABEL_ID = 2**31 - 1


@dataclass(frozen=True)
class MomentAnnotations:
    """A validated moment-query annotation file."""

    clips: tuple[MomentClip, ...]
    """In file order."""
    label_names: Mapping[int, str]
    """Category id -> name in the file's raw spelling, ids ascending."""
    report: DataReport = field(repr=False)
    """Counts of windows and clips, and the file's hash."""
    label_id_source: str = "annotation file"
    """Where the category ids come from."""


class WindowRecord(msgspec.Struct):
    """A window as the file has it."""

    segment: tuple[float, float]
    label: str
    label_id: int


class ClipRecord(msgspec.Struct):
    """A clip as the file has it."""

    video_id: str
    clip_id: str
    duration: float
    fps: float
    subset: str
    annotations: list[WindowRecord]
    parent_start_sec: float | None = None


def read_moment_annotations(
    path: Path | str,
    *,
    raw_windows: bool = False,
    faults: list[DataError] | None = None,
) -> MomentAnnotations:
    """Read and validate the processed moment-query file.

    Windows that overhang the clip are clipped, exact duplicates and windows that
    are reversed, empty or outside the clip are rejected; all are counted in the
    report, with ``read = kept + changed + rejected``.

    :param path: ``ego4d_clip_annotations_v2.json`` or v1.
    :param raw_windows: leave windows that overhang or lie behind the clip's end as they
        are, which the public split procedure sees.
    :param faults: if given, errors of records are added to it, not raised, and these
        records are left out.
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
    report = DataReport(faults=faults)
    raw = decode_json_object(path, report.read(path), hint=_LAYOUT_HINT, faults=faults)
    if not raw:
        raise DataError(path, "the file holds no clip", hint="is it the right file?")
    records: dict[str, ClipRecord] = {}
    for clip_id, one in raw.items():
        with report.collected():
            records[clip_id] = convert(
                one, ClipRecord, path, hint=_LAYOUT_HINT, record=clip_id
            )
    return moment_annotations([(path, records)], report, raw_windows=raw_windows)


def moment_annotations(
    files: Sequence[tuple[Path, Mapping[str, ClipRecord]]],
    report: DataReport,
    *,
    raw_windows: bool = False,
    label_id_source: str = "annotation file",
) -> MomentAnnotations:
    """Validate records whose types are right already.

    :param files: files with their records, clip uid -> record.
    :param report: where to count, and perhaps to collect errors.
    :param raw_windows: see :func:`read_moment_annotations`.
    :param label_id_source: where the category ids come from.
    :raises DataError: a value breaks a rule; names file, record and field.
    """
    names: dict[int, str] = {}
    clips: list[MomentClip] = []
    for path, records in files:
        for clip_id, record in records.items():
            with report.collected():
                _check_record(path, clip_id, record)
                names = _checked_labels(path, clip_id, record, names)
                clips.append(_moment_clip(clip_id, record, report, raw_windows))
    if not names and not report.faults:
        hint = "a test file cannot be trained on"
        raise DataError(files[0][0], "no clip has an annotation", hint=hint)
    train, val = (
        {clip.video_id for clip in clips if clip.subset == subset}
        for subset in ("train", "val")
    )
    reason = "parent videos have clips in both train and val"
    report.stage("annotations", "clips").note(reason, len(train & val))
    names = dict(sorted(names.items()))
    return MomentAnnotations(tuple(clips), names, report, label_id_source)


def _checked_labels(
    path: Path, clip_id: str, record: ClipRecord, names: Mapping[int, str]
) -> dict[int, str]:
    """Names by id with those of a record; of a record at fault none stays."""
    found = dict(names)
    ids = {name: label_id for label_id, name in names.items()}
    for i, window in enumerate(record.annotations):
        field = f"annotations[{i}].label"
        check_label(path, clip_id, field, window.label)
        _check_label_id(path, clip_id, field, window, found, ids)
    return found


def check_label(path: Path, clip_id: str, field: str, label: str) -> None:
    """Refuse a category name that no query can be made of.

    :raises DataError: empty or unprintable.
    """
    if not label.strip():
        raise DataError(path, "the label is empty", record=clip_id, field=field)
    if not label.isprintable():
        problem = f"the label {label!r} has unprintable characters"
        raise DataError(path, problem, record=clip_id, field=field)


def _check_label_id(
    path: Path,
    clip_id: str,
    field: str,
    window: WindowRecord,
    names: dict[int, str],
    ids: dict[str, int],
) -> None:
    if not 0 <= window.label_id <= _MAX_LABEL_ID:
        problem = f"expected label_id in 0..{_MAX_LABEL_ID} but got {window.label_id}"
        raise DataError(path, problem, record=clip_id, field=field)
    name = names.setdefault(window.label_id, window.label)
    known_id = ids.setdefault(window.label, window.label_id)
    if name != window.label or known_id != window.label_id:
        problem = (
            f"label {window.label!r} with id {window.label_id} contradicts an "
            f"earlier record: id {window.label_id} is {name!r}, and "
            f"{window.label!r} has id {known_id}"
        )
        raise DataError(path, problem, record=clip_id, field=field)


def _moment_clip(
    clip_id: str, record: ClipRecord, report: DataReport, raw_windows: bool
) -> MomentClip:
    tally = report.stage("annotations", "windows")
    # A raw window may end, or even lie, behind the clip's end.
    limit = math.inf if raw_windows else record.duration
    windows, labels = _clean_windows(record, tally, limit)
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
        record.parent_start_sec,
    )


def _check_record(path: Path, clip_id: str, record: ClipRecord) -> None:
    check_plain_id(path, clip_id)
    if record.clip_id != clip_id:
        problem = f"clip_id {record.clip_id!r} differs from the key"
        raise DataError(path, problem, record=clip_id, field="clip_id")
    if not PLAIN_ID.match(record.video_id):
        problem = f"expected the uid of the parent video but got {record.video_id!r}"
        raise DataError(
            path, problem, record=clip_id, field="video_id", hint=PLAIN_ID_HINT
        )
    if record.subset not in SUBSETS:
        problem = f"expected one of {', '.join(SUBSETS)} but got {record.subset!r}"
        raise DataError(path, problem, record=clip_id, field="subset")
    for name in ("duration", "fps"):
        value = getattr(record, name)
        if not (math.isfinite(value) and value > 0):
            problem = f"expected a positive number but got {value}"
            raise DataError(path, problem, record=clip_id, field=name)
    for i, window in enumerate(record.annotations):
        check_finite(path, clip_id, f"annotations[{i}].segment", window.segment)


def _clean_windows(
    record: ClipRecord, tally: Tally, limit: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    kept: list[WindowRecord] = []
    for window in record.annotations:
        start, end = window.segment
        at_end = end == record.duration
        tally.note("windows end exactly at the clip's end", int(at_end))
        reason = unusable_window(start, end, limit)
        if reason is None and _is_duplicate(kept, window):
            reason = "exact duplicate"
            tally.note("of them exact duplicates", int(at_end))
        if reason is not None:
            tally.reject(reason)
            continue
        kept.append(window)
        count_usable(start, end, limit, tally)
    windows = np.array([w.segment for w in kept], dtype=np.float64).reshape(-1, 2)
    labels = read_only([w.label_id for w in kept], np.int64, -1)
    return read_only(windows.clip(0.0, limit), np.float64, -1, 2), labels


def _is_duplicate(earlier: Iterable[WindowRecord], window: WindowRecord) -> bool:
    return any(
        other.label_id == window.label_id
        and abs(other.segment[0] - window.segment[0]) <= DUPLICATE_TOLERANCE_SEC
        and abs(other.segment[1] - window.segment[1]) <= DUPLICATE_TOLERANCE_SEC
        for other in earlier
    )
