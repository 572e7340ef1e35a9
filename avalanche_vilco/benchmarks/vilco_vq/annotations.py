"""Visual queries of Ego4D become validated records.

The official files ``vq_train.json``, ``vq_val.json`` and ``vq_test_unannotated.json``,
of version 1 or 2, hold videos, clips, annotations and up to three query sets of each. A
query set names an object, shows a crop of it, and asks for its last appearance before
the query frame, the response track.

All frame numbers count frames of ``clip_fps`` (5 a second) from the clip's start, not
frames of the video file:
:func:`~avalanche_vilco.benchmarks.vilco_vq.clip_videos.clip_file_frames` gives those.
Boxes are ``(x1, y1, x2, y2)`` in pixels of the frame size that the annotation states,
which may be another than the file's: ``relative_boxes`` fit any size.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from avalanche_vilco.benchmarks.ego4d import (
    FETCH_HINT,
    OfficialFile,
    Video,
    check_length,
    check_versions,
    read_official_file,
)
from avalanche_vilco.core.errors import DataError
from avalanche_vilco.core.files import existing
from avalanche_vilco.core.report import DataReport
from avalanche_vilco.core.schema import check_plain_id, convert

OFFICIAL_VQ_FILES = {
    "train": "vq_train.json",
    "val": "vq_val.json",
    "test": "vq_test_unannotated.json",
}
"""Subset -> name of Ego4D's own file."""
CLIP_FOLDER = "clips"
"""Folder of a data root with a video file for each clip."""

Box: TypeAlias = tuple[float, float, float, float]
T = TypeVar("T")

_STAGE = "annotations"
_LAYOUT_HINT = "expected the layout of Ego4D's vq_val.json"
_MAX_FRAME = 2**31 - 1
_OVERHANG_PIXELS = 0.01


@dataclass(frozen=True, slots=True)
class VisualClip:
    """A clip that is searched."""

    clip_id: str
    video_id: str
    """Parent video; splits never separate clips of one parent."""
    subset: str
    fps: float
    """Frames a second that the annotations count."""
    duration_sec: float
    video_start_sec: float
    """Start of the clip in seconds of its parent video."""


@dataclass(frozen=True, eq=False, slots=True)
class ResponseTrack:
    """Boxes of an object in consecutive frames. Arrays are read-only."""

    frames: NDArray[np.int64] = field(repr=False)
    """(N,) ascending without gaps, at the clip's fps; N >= 1."""
    boxes: NDArray[np.float64] = field(repr=False)
    """(N, 4) as (x1, y1, x2, y2) in pixels, inside the frame."""
    frame_size: tuple[int, int]
    """Height and width of the frame that the boxes are drawn in."""

    @property
    def relative_boxes(self) -> NDArray[np.float64]:
        """(N, 4) as shares of the frame's width and height, in [0, 1]."""
        return _relative(self.boxes, self.frame_size)


@dataclass(frozen=True, slots=True)
class VisualCrop:
    """Where an object is shown to whoever is asked for it."""

    frame: int
    """At the clip's fps; may lie behind the query frame."""
    box: Box
    """(x1, y1, x2, y2) in pixels, inside the frame."""
    frame_size: tuple[int, int]
    """Height and width of the frame that the box is drawn in."""

    @property
    def relative_box(self) -> NDArray[np.float64]:
        """(4,) as shares of the frame's width and height, in [0, 1]."""
        return _relative(np.array(self.box), self.frame_size)


@dataclass(frozen=True, eq=False, slots=True)
class VisualQuery:
    """One object that is asked for, and its last appearance before the query frame."""

    query_id: str
    """``"<annotation uid>_<number of the query set>"``."""
    annotation_uid: str
    set_number: str
    """Key in the file's ``query_sets``: ``"1"``, ``"2"`` or ``"3"``."""
    clip_id: str
    subset: str
    title: str
    """The object's title in the file's spelling, without surplus blanks; empty only in
    the unannotated test file."""
    query_frame: int
    """Frames 0 to ``query_frame - 1`` are searched; at least 1."""
    crop: VisualCrop
    track: ResponseTrack | None
    """``None`` in the unannotated test file."""
    title_key: str = field(init=False, repr=False)
    """What makes its title one object with others, see :func:`title_key`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "title_key", title_key(self.title))


@dataclass(frozen=True)
class VisualAnnotations:
    """Validated visual queries."""

    clips: Mapping[str, VisualClip]
    """Clips with at least one query, by id, in file order."""
    queries: tuple[VisualQuery, ...]
    """In file order."""
    files: Mapping[str, Path]
    """Subset -> file that was read."""
    report: DataReport = field(repr=False)
    """Counts of query sets, boxes and clips, and the files' hashes."""


class _BoxRecord(msgspec.Struct):
    frame_number: float
    x: float
    y: float
    width: float
    height: float
    original_width: float
    original_height: float


class _Validity(msgspec.Struct):
    is_valid: bool = True


class _OpenQuerySet(msgspec.Struct):
    query_frame: float
    visual_crop: _BoxRecord
    object_title: str | None = None


class _QuerySet(_OpenQuerySet, kw_only=True):
    response_track: list[_BoxRecord]


class _Annotation(msgspec.Struct):
    query_sets: dict[str, Any]
    annotation_uid: str | None = None


class _Clip(msgspec.Struct):
    clip_uid: str | None
    video_start_sec: float
    video_end_sec: float
    clip_fps: float
    annotations: list[Any] = []


def title_key(title: str) -> str:
    """What makes two titles one object: blanks and capitals do not count.

    >>> title_key(" Blue  bottle ")
    'blue bottle'
    """
    return " ".join(title.split()).casefold()


def find_vq_files(folder: Path) -> dict[str, Path]:
    """Annotation files of a folder.

    :param folder: any folder.
    :return: subset -> file, of the subsets that have one.
    """
    names = OFFICIAL_VQ_FILES.items()
    paths = {subset: existing(folder / name) for subset, name in names}
    return {subset: path for subset, path in paths.items() if path.is_file()}


def read_visual_queries(
    files: Mapping[str, Path | str], *, faults: list[DataError] | None = None
) -> VisualAnnotations:
    """Read and validate annotated files of visual queries.

    Boxes that overhang the frame are clipped to it; those without area, outside of the
    frame, or repeated are left out. A query set is rejected if it is not valid, has no
    title, no search window, a crop without area in the frame, or a response track that
    is empty, has gaps, or begins after the search window. All are counted in the
    report, with ``read = kept + changed + rejected``.

    :param files: subset (``"train"``, ``"val"``) -> official file.
    :param faults: if given, errors of clips are added to it, not raised, and the rest
        of the clip is left out.
    :raises FileNotFoundError: a file is absent.
    :raises ValueError: no such subset.
    :raises DataError: not JSON, truncated, or a record breaks the schema (wrong type,
        number as text, NaN, no ``clip_fps``, doubled query), a version other than 1 or
        2, or two versions; names file, record and field.
    """
    unknown = sorted(set(files) - {"train", "val"})
    if unknown or not files:
        raise ValueError(f"expected subsets 'train' and 'val' but got {list(files)}")
    return _read(files, faults)


def read_unlabelled_visual_queries(
    path: Path | str, *, faults: list[DataError] | None = None
) -> VisualAnnotations:
    """Read the unannotated test file: queries that can be answered, not scored.

    :param path: ``vq_test_unannotated.json``.
    :param faults: as in :func:`read_visual_queries`.
    :return: queries without track, some perhaps without title.
    :raises FileNotFoundError: no such file.
    :raises DataError: as :func:`read_visual_queries`.
    """
    return _read({"test": path}, faults)


# --- Files ----------------------------------------------------------------------------


def _read(
    files: Mapping[str, Path | str], faults: list[DataError] | None
) -> VisualAnnotations:
    paths = {subset: Path(path).expanduser() for subset, path in files.items()}
    report = DataReport(faults=faults)
    reader = _Reader(report)
    official = []
    for subset, path in paths.items():
        if not path.is_file():
            raise FileNotFoundError(
                f"no {subset} annotations of visual queries at {path}; {FETCH_HINT}"
            )
        file = read_official_file(path, subset, report, hint=_LAYOUT_HINT)
        official.append(file)
    check_versions(official)
    queries = [query for file in official for query in reader.queries_of(file)]
    return VisualAnnotations(reader.clips_of(queries), tuple(queries), paths, report)


class _Unusable(Exception):
    """Why a query set is left out."""


@dataclass(frozen=True)
class _Location:
    """Where an object of a clip stands, for errors."""

    path: Path
    record: str
    field: str = ""

    def convert(self, raw: Any, kind: type[T]) -> T:
        """The object, checked."""
        return convert(
            raw,
            kind,
            self.path,
            hint=_LAYOUT_HINT,
            record=self.record,
            within=self.field,
        )

    def fail(self, field: str | None, problem: str) -> DataError:
        """What is wrong with a field of the object."""
        name = ".".join(part for part in (self.field, field) if part) or None
        return DataError(self.path, problem, record=self.record, field=name)


class _Reader:
    """Turns what was read into records, and counts."""

    def __init__(self, report: DataReport) -> None:
        self._report = report
        self._sets = report.stage(_STAGE, "query sets")
        self._boxes = report.stage(_STAGE, "boxes")
        self._clip_tally = report.stage(_STAGE, "clips")
        self._clips: dict[str, VisualClip] = {}
        self._ids: set[str] = set()

    def queries_of(self, file: OfficialFile) -> Iterator[VisualQuery]:
        """Usable queries of one file."""
        n_sets = self._sets.read
        for video in file.videos:
            self._clip_tally.note("videos without clips", int(not video.clips))
        for video, name, raw in file.clips():
            clip_at = _Location(file.path, name)
            with self._report.collected():
                check_plain_id(file.path, video.video_uid)
                clip = clip_at.convert(raw, _Clip)
                yield from self._clip_queries(clip_at, clip, video)
        if self._sets.read == n_sets and not self._report.faults:
            problem = "the file holds no query set"
            raise DataError(file.path, problem, hint=_LAYOUT_HINT)

    def clips_of(self, queries: Iterable[VisualQuery]) -> dict[str, VisualClip]:
        """Clips that have a query."""
        asked = {query.clip_id for query in queries}
        self._clip_tally.kept += len(asked)
        self._clip_tally.reject("no usable query set", len(self._clips) - len(asked))
        return {uid: clip for uid, clip in self._clips.items() if uid in asked}

    def _clip_queries(
        self, clip_at: _Location, clip: _Clip, video: Video
    ) -> Iterator[VisualQuery]:
        annotations = [
            replace(clip_at, field=f"annotations[{a}]").convert(raw, _Annotation)
            for a, raw in enumerate(clip.annotations)
        ]
        if clip.clip_uid is None:
            # Such a clip was never cut from its video: there is no file to search.
            self._clip_tally.reject("no clip_uid")
            n_sets = sum(len(one.query_sets) for one in annotations)
            self._sets.reject("the clip has no clip_uid", n_sets)
            return
        known = self._add_clip(clip_at, clip.clip_uid, clip, video)
        for a, annotation in enumerate(annotations):
            uid = (annotation.annotation_uid or "").strip()
            if not uid:
                self._sets.reject("no annotation_uid", len(annotation.query_sets))
                continue
            for number, raw in annotation.query_sets.items():
                field = f'annotations[{a}].query_sets["{number}"]'
                set_at = replace(clip_at, field=field)
                query = self._query(set_at, known, uid, number, raw)
                if query is not None:
                    yield query

    def _add_clip(
        self, clip_at: _Location, uid: str, clip: _Clip, video: Video
    ) -> VisualClip:
        check_plain_id(clip_at.path, uid)
        start, end = clip.video_start_sec, clip.video_end_sec
        duration = check_length(clip_at.path, uid, "video_end_sec", end - start)
        if not 0 < clip.clip_fps < math.inf:
            problem = f"expected frames a second but got {clip.clip_fps}"
            raise clip_at.fail("clip_fps", problem)
        found = VisualClip(
            uid, video.video_uid, video.split, clip.clip_fps, duration, start
        )
        known = self._clips.setdefault(uid, found)
        if known != found:
            raise clip_at.fail(None, f"occurs twice: as {known} and as {found}")
        return known

    def _query(
        self, set_at: _Location, clip: VisualClip, uid: str, number: str, raw: Any
    ) -> VisualQuery | None:
        query_id = f"{uid}_{number}"
        if query_id in self._ids:
            raise set_at.fail("annotation_uid", f"the query {query_id} occurs twice")
        self._ids.add(query_id)
        if not set_at.convert(raw, _Validity).is_valid:
            self._sets.reject("not valid")
            return None
        has_track = clip.subset != "test"
        kind: type[_OpenQuerySet] = _QuerySet if has_track else _OpenQuerySet
        one = set_at.convert(raw, kind)
        boxes = one.response_track if isinstance(one, _QuerySet) else []
        outcomes: Counter[str] = Counter()
        try:
            raw_title = one.object_title or ""
            title = " ".join(raw_title.split())
            if not title and has_track:
                raise _Unusable("no object title")
            self._sets.note("surplus blanks in the title", int(title != raw_title))
            self._sets.note("without title", int(not title))
            query_frame = _whole(set_at, "query_frame", one.query_frame)
            if query_frame < 1:
                raise _Unusable("no frame before the query frame")
            crop = _crop(set_at, one.visual_crop)
            track = _track(set_at, boxes, outcomes) if has_track else None
            if track is not None and track.frames[0] >= query_frame:
                raise _Unusable("response track: begins after the search window")
        except _Unusable as reason:
            self._sets.reject(str(reason))
            self._boxes.reject("its query set is rejected", len(boxes))
            return None
        reaches = int(track is not None and track.frames[-1] >= query_frame)
        self._sets.note("response track reaches the query frame", reaches)
        self._count(one.visual_crop, boxes, outcomes)
        place = (uid, number, clip.clip_id, clip.subset)
        return VisualQuery(query_id, *place, title, query_frame, crop, track)

    def _count(
        self, crop: _BoxRecord, boxes: Sequence[_BoxRecord], outcomes: Counter[str]
    ) -> None:
        if _overhangs(crop):
            self._sets.change("crop overhangs the frame, clipped to it")
        else:
            self._sets.kept += 1
        clipped = outcomes.pop(_CLIPPED, 0)
        self._boxes.change(_CLIPPED, clipped)
        for reason, count in outcomes.items():
            self._boxes.reject(reason, count)
        self._boxes.kept += len(boxes) - clipped - outcomes.total()


# --- Boxes ----------------------------------------------------------------------------

_CLIPPED = "overhangs the frame, clipped to it"


def _whole(set_at: _Location, name: str, value: float) -> int:
    if not (math.isfinite(value) and value == int(value) and abs(value) <= _MAX_FRAME):
        raise set_at.fail(name, f"expected a whole number but got {value}")
    return int(value)


def _frame_size(set_at: _Location, name: str, box: _BoxRecord) -> tuple[int, int]:
    """Height and width of the frame, after a check of all of a box's numbers."""
    numbers = (box.x, box.y, box.width, box.height)
    if not all(map(math.isfinite, numbers)):
        raise set_at.fail(name, f"expected finite numbers but got {list(numbers)}")
    height = _whole(set_at, f"{name}.original_height", box.original_height)
    width = _whole(set_at, f"{name}.original_width", box.original_width)
    if min(height, width) < 1:
        problem = f"expected a frame with an area but got {width} x {height}"
        raise set_at.fail(f"{name}.original_width", problem)
    return height, width


def _inside(box: _BoxRecord) -> Box:
    """The part of a box that lies inside its frame; reversed if there is none."""
    return (
        max(box.x, 0.0),
        max(box.y, 0.0),
        min(box.x + box.width, box.original_width),
        min(box.y + box.height, box.original_height),
    )


def _overhangs(box: _BoxRecord) -> bool:
    whole = (box.x, box.y, box.x + box.width, box.y + box.height)
    pairs = zip(whole, _inside(box), strict=True)
    return max(abs(a - b) for a, b in pairs) > _OVERHANG_PIXELS


def _fault(box: _BoxRecord, frame: int) -> str | None:
    if frame < 0:
        return "negative frame number"
    if box.width <= 0 or box.height <= 0:
        return "no area"
    x1, y1, x2, y2 = _inside(box)
    return None if x1 < x2 and y1 < y2 else "outside the frame"


def _crop(set_at: _Location, box: _BoxRecord) -> VisualCrop:
    size = _frame_size(set_at, "visual_crop", box)
    frame = _whole(set_at, "visual_crop.frame_number", box.frame_number)
    fault = _fault(box, frame)
    if fault is not None:
        raise _Unusable(f"crop: {fault}")
    return VisualCrop(frame, _inside(box), size)


def _track(
    set_at: _Location, boxes: Sequence[_BoxRecord], outcomes: Counter[str]
) -> ResponseTrack:
    """The usable boxes in order of time; what becomes of the others is counted."""
    sizes = set()
    usable: dict[int, Box] = {}
    for i, box in enumerate(boxes):
        name = f"response_track[{i}]"
        sizes.add(_frame_size(set_at, name, box))
        frame = _whole(set_at, f"{name}.frame_number", box.frame_number)
        outcome = _outcome(box, frame, usable)
        if outcome is not None:
            outcomes[outcome] += 1
        if outcome in (None, _CLIPPED):
            usable[frame] = _inside(box)
    frames = sorted(usable)
    if not frames:
        raise _Unusable("response track: no box")
    if frames[-1] - frames[0] + 1 != len(frames):
        raise _Unusable("response track: gaps")
    if len(sizes) > 1:
        raise _Unusable("response track: frame sizes differ")
    return ResponseTrack(
        _frozen(np.array(frames, dtype=np.int64)),
        _frozen(np.array([usable[frame] for frame in frames])),
        sizes.pop(),
    )


def _outcome(box: _BoxRecord, frame: int, usable: Mapping[int, Box]) -> str | None:
    """Why a box is changed or left out; None if it stays as it is."""
    fault = _fault(box, frame)
    if fault is not None:
        return fault
    if usable.get(frame, _inside(box)) != _inside(box):
        raise _Unusable("response track: two boxes in one frame")
    if frame in usable:
        return "repeated"
    return _CLIPPED if _overhangs(box) else None


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    array.setflags(write=False)
    return array


def _relative(
    boxes: NDArray[np.float64], frame_size: tuple[int, int]
) -> NDArray[np.float64]:
    height, width = frame_size
    shares: NDArray[np.float64] = boxes / np.array([width, height, width, height])
    return shares
