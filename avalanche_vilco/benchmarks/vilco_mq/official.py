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

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from avalanche_vilco.benchmarks.ego4d import (
    OfficialFile,
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
from avalanche_vilco.benchmarks.vilco_mq.layout import CATEGORY_FILE, OFFICIAL_FILES
from avalanche_vilco.core.errors import DataError
from avalanche_vilco.core.files import existing, plain_name
from avalanche_vilco.core.report import DataReport
from avalanche_vilco.core.schema import check_finite, convert, decode_json_object

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
    path: Path
    uid: str
    video_uid: str
    split: str
    start: float
    end: float
    annotators: list[Annotator] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    """The primary ones."""

    @property
    def place(self) -> str:
        return f"in video {self.video_uid} at {[self.start, self.end]}"

    def record(self, ids: Mapping[str, int], rate: float) -> ClipRecord:
        windows = [
            WindowRecord((one.start_time, one.end_time), one.label, ids[one.label])
            for one in self.labels
        ]
        seconds = self.end - self.start
        return ClipRecord(
            self.video_uid, self.uid, seconds, rate, self.split, windows, self.start
        )


def read_official_moments(
    folder: Path | str,
    *,
    categories: Mapping[str, int] | Path | str | None = None,
    features_per_sec: float | None = None,
    raw_windows: bool = False,
    faults: list[DataError] | None = None,
) -> MomentAnnotations:
    """Read and validate Ego4D's own moment-query files.

    :param folder: folder with ``moments_train.json``, ``moments_val.json`` and, if
        unlabelled clips are wanted, ``moments_test_unannotated.json``.
    :param categories: category name -> id; or a JSON file of that, or the processed
        annotation file, whose ids are taken. ``None`` takes
        ``moment_classes_idx.json`` from the folder if it is there, else numbers the
        categories of train, then others, in alphabetical order: then the groups are not
        the paper's.
    :param features_per_sec: steps of the features a second, which the files do not
        state; default 1.8741513727840071, as in the processed v2 file.
    :param raw_windows: as in
        :func:`~avalanche_vilco.benchmarks.vilco_mq.annotations.read_moment_annotations`.
    :param faults: as there.
    :return: clips in the order train, val, test; the report counts labels that are
        not primary and clips without one.
    :raises FileNotFoundError: a file is absent.
    :raises ValueError: a rate that is not positive.
    :raises DataError: not JSON, a record breaks the schema, a version other than 1 or
        2, versions that differ between files, or a category without an id; the
        message names file, record and field.
    """
    rate = FEATURES_PER_SEC if features_per_sec is None else features_per_sec
    if not 0 < rate < math.inf:
        raise ValueError(f"expected a positive features_per_sec but got {rate}")
    folder, report = Path(folder), DataReport(faults=faults)
    files = []
    for subset, name in OFFICIAL_FILES.items():
        path = existing(folder / name)
        if path.is_file():
            file = read_official_file(path, subset, report, hint=_LAYOUT_HINT)
            files.append(file)
        elif subset != "test":
            raise FileNotFoundError(
                f"no {name} in {folder}; fetch Ego4D's annotations with "
                "ego4d --datasets annotations --benchmarks MQ"
            )
    check_versions(files)
    clips = _clips(files, report)
    for clip in clips:
        with report.collected():
            clip.labels = _primary(clip, report)
    ids, source = _category_ids(folder, categories, clips, report)
    tally = report.stage("annotations", "clips")
    records: dict[Path, dict[str, ClipRecord]] = {file.path: {} for file in files}
    for clip in clips:
        if clip.labels or clip.split == "test":
            records[clip.path][clip.uid] = clip.record(ids, rate)
        else:
            tally.reject("no primary label")
    return moment_annotations(
        list(records.items()), report, raw_windows=raw_windows, label_id_source=source
    )


def _clips(files: Iterable[OfficialFile], report: DataReport) -> list[_Clip]:
    """Clips of all files; one that occurs again in its video adds annotators."""
    clips: dict[str, _Clip] = {}
    for file in files:
        path = file.path
        for video, name, raw in file.clips():
            with report.collected():
                clip = convert(raw, _OfficialClip, path, hint=_LAYOUT_HINT, record=name)
                uid, at = clip.clip_uid, (clip.video_start_sec, clip.video_end_sec)
                check_length(path, name, "video_end_sec", at[1] - at[0])
                fresh = _Clip(path, uid, video.video_uid, video.split, *at)
                known = clips.setdefault(uid, fresh)
                if known.path != path:
                    problem = f"the clip is in {known.path.name} as well"
                    raise DataError(path, problem, record=uid, field="clip_uid")
                if known.place != fresh.place:
                    problem = f"occurs twice: {known.place} and {fresh.place}"
                    raise DataError(path, problem, record=uid)
                known.annotators.extend(clip.annotations)
    return list(clips.values())


def _primary(clip: _Clip, report: DataReport) -> list[Label]:
    tally = report.stage("annotations", "windows")
    primary: list[Label] = []
    for i, annotator in enumerate(clip.annotators):
        for j, label in enumerate(annotator.labels):
            if not label.primary:
                tally.reject("label not primary")
                continue
            at = f"annotations[{i}].labels[{j}]"
            check_label(clip.path, clip.uid, f"{at}.label", label.label)
            segment = (label.start_time, label.end_time)
            times = f"{at}.start_time, end_time"
            check_finite(clip.path, clip.uid, times, segment)
            primary.append(label)
    return primary


def _category_ids(
    folder: Path,
    categories: Mapping[str, int] | Path | str | None,
    clips: Sequence[_Clip],
    report: DataReport,
) -> tuple[Mapping[str, int], str]:
    """Category name -> id, and where it comes from."""
    used = {label.label: clip for clip in clips for label in clip.labels}
    beside = existing(folder / CATEGORY_FILE)
    if categories is None and beside.is_file():
        categories = beside
    if categories is None:
        # Those of train first: their ids depend on nothing in val.
        train = {
            x.label for clip in clips if clip.split == "train" for x in clip.labels
        }
        ordered = sorted(used, key=lambda name: (name not in train, name))
        return {name: i for i, name in enumerate(ordered)}, "alphabetical"
    source = "category list"
    if not isinstance(categories, Mapping):
        source = plain_name(Path(categories))
        categories = _read_categories(Path(categories), report)
    for name, clip in used.items():
        if name not in categories:
            problem = f"the category {name!r} is not in the {source}"
            raise DataError(clip.path, problem, record=clip.uid)
    return categories, source


def _read_categories(path: Path, report: DataReport) -> dict[str, int]:
    if not path.is_file():
        raise FileNotFoundError(f"no category list at {path}")
    hint = 'expected {"category": id, ...}'
    raw = decode_json_object(path, report.read(path), hint=hint)
    if raw and all(isinstance(value, dict) for value in raw.values()):
        names = read_moment_annotations(path).label_names
        return {name: label_id for label_id, name in names.items()}
    for name, label_id in raw.items():
        if type(label_id) is not int:
            problem = f"expected a category id but got {label_id!r}"
            raise DataError(path, problem, record=name)
    return raw
