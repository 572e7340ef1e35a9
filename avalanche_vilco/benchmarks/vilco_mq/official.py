"""Ego4D's own moment-query files become the records of the processed file.

``moments_train.json``, ``moments_val.json`` and ``moments_test_unannotated.json``
hold videos, their clips, annotators and labels. As in the public conversion all
annotators of a clip are pooled, only labels with ``primary`` set are kept, times are
clip seconds (``start_time``, ``end_time``), a clip lasts ``video_end_sec -
video_start_sec``, and train and val clips without a primary label are left out.

The files state neither category ids nor the rate of the features. Ids come from a
category list, else they are alphabetical; the rate is the processed v2 file's.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from avalanche_vilco.benchmarks.ego4d import (
    OfficialFile,
    Video,
    check_length,
    check_versions,
    read_official_file,
)
from avalanche_vilco.benchmarks.vilco_mq.annotations import (
    ClipRecord,
    MomentAnnotations,
    WindowRecord,
    check_label,
    moment_annotations,
    read_moment_annotations,
)
from avalanche_vilco.benchmarks.windows import check_window_policy
from avalanche_vilco.core.errors import DataError
from avalanche_vilco.core.report import DataReport
from avalanche_vilco.core.schema import check_finite, convert, decode_json_object

OFFICIAL_FILES = {
    "train": "moments_train.json",
    "val": "moments_val.json",
    "test": "moments_test_unannotated.json",
}
"""Subset -> name of its file; only test may be absent."""
CATEGORY_FILE = "moment_classes_idx.json"
"""Category name -> id, read when it lies beside the official files."""
FEATURES_PER_SEC = 1.8741513727840071
"""Rate that the processed v2 file states for every clip."""

_LAYOUT_HINT = "expected the layout of Ego4D's moments_train.json"


class Label(msgspec.Struct):
    """A labelled window of a clip."""

    label: str
    primary: bool
    start_time: float
    end_time: float


class Annotator(msgspec.Struct):
    """What one annotator said of a clip."""

    labels: list[Label]


class AnnotatedClip(msgspec.Struct, kw_only=True):
    """A clip with its labels: what is needed to score answers."""

    clip_uid: str
    annotations: list[Annotator] = []


class _OfficialClip(AnnotatedClip, kw_only=True):
    video_start_sec: float
    video_end_sec: float


@dataclass
class _Clip:
    uid: str
    video_uid: str
    split: str
    times: tuple[float, float]
    annotators: list[Annotator]


def is_official_folder(folder: Path) -> bool:
    """Whether the annotated files of Ego4D are in a folder.

    :param folder: any path.
    """
    return all((folder / OFFICIAL_FILES[name]).is_file() for name in ("train", "val"))


def read_official_moments(
    folder: Path | str,
    *,
    categories: Mapping[str, int] | Path | str | None = None,
    features_per_sec: float | None = None,
    windows: str = "clipped",
) -> MomentAnnotations:
    """Read and validate Ego4D's own moment-query files.

    :param folder: folder with ``moments_train.json``, ``moments_val.json`` and, if
        unlabelled clips are wanted, ``moments_test_unannotated.json``.
    :param categories: category name -> id; or a JSON file of that, or the processed
        annotation file, whose ids are taken. ``None`` takes
        ``moment_classes_idx.json`` from the folder if it is there, else numbers the
        categories in alphabetical order: then the groups are not the paper's.
    :param features_per_sec: steps of the features a second, which the files do not
        state; default 1.8741513727840071, as in the processed v2 file.
    :param windows: ``"clipped"`` or ``"raw"``, as in
        :func:`~avalanche_vilco.benchmarks.vilco_mq.annotations.read_moment_annotations`.
    :return: clips in the order train, val, test; the report counts labels that are
        not primary and clips without one.
    :raises FileNotFoundError: a file is absent.
    :raises ValueError: no such policy for windows, or a rate that is not positive.
    :raises DataError: not JSON, a record breaks the schema, a version other than 1 or
        2, versions that differ between files, or a category without an id; the
        message names file, record and field.
    """
    check_window_policy(windows)
    rate = FEATURES_PER_SEC if features_per_sec is None else features_per_sec
    if not 0 < rate < math.inf:
        raise ValueError(f"expected a positive features_per_sec but got {rate}")
    folder, report = Path(folder), DataReport()
    files = [
        read_official_file(path, subset, report, hint=_LAYOUT_HINT)
        for subset, path in _paths(folder).items()
    ]
    check_versions(files)
    clips = {file.path: _clips(file) for file in files}
    _check_unique(clips)
    labels = {
        path: {uid: _primary(path, uid, clip, report) for uid, clip in in_file.items()}
        for path, in_file in clips.items()
    }
    ids, source = _category_ids(folder, categories, labels, report)
    records = [
        (path, _records(path, in_file, labels[path], ids, rate, report))
        for path, in_file in clips.items()
    ]
    return moment_annotations(records, report, windows=windows, label_id_source=source)


def _paths(folder: Path) -> dict[str, Path]:
    paths = {subset: folder / name for subset, name in OFFICIAL_FILES.items()}
    for subset, path in paths.items():
        if subset != "test" and not path.is_file():
            raise FileNotFoundError(
                f"no {path.name} in {folder}; fetch Ego4D's annotations with "
                "ego4d --datasets annotations --benchmarks MQ"
            )
    return {subset: path for subset, path in paths.items() if path.is_file()}


def _clips(file: OfficialFile) -> dict[str, _Clip]:
    """Clips of a file by uid; one that occurs again in its video adds annotators."""
    clips: dict[str, _Clip] = {}
    for video, name, raw in file.clips():
        clip = _clip(file.path, name, raw, video)
        if clip.uid in clips:
            _check_same(file.path, clips[clip.uid], clip)
            clips[clip.uid].annotators.extend(clip.annotators)
        else:
            clips[clip.uid] = clip
    return clips


def _clip(path: Path, name: str, raw: Any, video: Video) -> _Clip:
    clip = convert(raw, _OfficialClip, path, hint=_LAYOUT_HINT, record=name)
    times = (clip.video_start_sec, clip.video_end_sec)
    check_length(path, name, "video_end_sec", times[1] - times[0])
    return _Clip(clip.clip_uid, video.video_uid, video.split, times, clip.annotations)


def _check_same(path: Path, first: _Clip, again: _Clip) -> None:
    if (first.video_uid, first.times) != (again.video_uid, again.times):
        problem = (
            f"occurs twice: in video {first.video_uid} at {list(first.times)} and in "
            f"video {again.video_uid} at {list(again.times)}"
        )
        raise DataError(path, problem, record=again.uid)


def _check_unique(clips: Mapping[Path, Mapping[str, _Clip]]) -> None:
    first: dict[str, Path] = {}
    for path, in_file in clips.items():
        for uid in in_file:
            if first.setdefault(uid, path) != path:
                problem = f"the clip is in {first[uid].name} as well"
                raise DataError(path, problem, record=uid, field="clip_uid")


def _primary(path: Path, uid: str, clip: _Clip, report: DataReport) -> list[Label]:
    tally = report.stage("annotations", "windows")
    primary: list[Label] = []
    for i, annotator in enumerate(clip.annotators):
        for j, label in enumerate(annotator.labels):
            if not label.primary:
                tally.reject("label not primary")
                continue
            field = f"annotations[{i}].labels[{j}]"
            check_label(path, uid, f"{field}.label", label.label)
            segment = (label.start_time, label.end_time)
            check_finite(path, uid, f"{field}.start_time, end_time", segment)
            primary.append(label)
    return primary


def _records(
    path: Path,
    clips: Mapping[str, _Clip],
    labels: Mapping[str, Sequence[Label]],
    ids: Mapping[str, int],
    rate: float,
    report: DataReport,
) -> dict[str, ClipRecord]:
    tally = report.stage("annotations", "clips")
    records = {}
    for uid, clip in clips.items():
        if clip.split != "test" and not labels[uid]:
            tally.reject("no primary label")
            continue
        windows = [
            WindowRecord((one.start_time, one.end_time), one.label, ids[one.label])
            for one in labels[uid]
        ]
        start, end = clip.times
        records[uid] = ClipRecord(
            clip.video_uid, uid, end - start, rate, clip.split, windows, start
        )
    return records


def _category_ids(
    folder: Path,
    categories: Mapping[str, int] | Path | str | None,
    labels: Mapping[Path, Mapping[str, Sequence[Label]]],
    report: DataReport,
) -> tuple[Mapping[str, int], str]:
    """Category name -> id, and where it comes from."""
    used = {
        label.label: (path, uid)
        for path, in_file in labels.items()
        for uid, primary in in_file.items()
        for label in primary
    }
    if categories is None and (folder / CATEGORY_FILE).is_file():
        categories = folder / CATEGORY_FILE
    if categories is None:
        return {name: i for i, name in enumerate(sorted(used))}, "alphabetical"
    source = "category list"
    if not isinstance(categories, Mapping):
        source = Path(categories).name
        categories = _read_categories(Path(categories), report)
    for name, (path, uid) in used.items():
        if name not in categories:
            problem = f"the category {name!r} is not in the {source}"
            raise DataError(path, problem, record=uid)
    return categories, source


def _read_categories(path: Path, report: DataReport) -> dict[str, int]:
    if not path.is_file():
        raise FileNotFoundError(f"no category list at {path}")
    content = path.read_bytes()
    report.files[path.name] = hashlib.sha256(content).hexdigest()
    raw = decode_json_object(path, content, hint='expected {"category": id, ...}')
    if raw and all(isinstance(value, dict) for value in raw.values()):
        names = read_moment_annotations(path).label_names
        return {name: label_id for label_id, name in names.items()}
    for name, label_id in raw.items():
        if type(label_id) is not int:
            problem = f"expected a category id but got {label_id!r}"
            raise DataError(path, problem, record=name)
    return raw
