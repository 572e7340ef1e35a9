"""What Ego4D's own annotation files have in common: a version, videos, clips."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from avalanche_vilco.core.errors import DataError
from avalanche_vilco.core.report import DataReport
from avalanche_vilco.core.schema import convert, decode_json_object

FETCH_HINT = "fetch Ego4D's annotations with ego4d --datasets annotations"
_KNOWN_VERSION = re.compile(r"v?[12](?:[._]\d+)*\Z")


class Video(msgspec.Struct):
    """A parent video with its clips."""

    video_uid: str
    split: str
    clips: list[Any]


class _File(msgspec.Struct):
    version: str | int | float
    videos: list[Any]


@dataclass(frozen=True)
class OfficialFile:
    """A file of one subset, read to its clips."""

    path: Path
    version: str
    videos: tuple[Video, ...]

    def clips(self) -> Iterator[tuple[Video, str, Any]]:
        """Video, name for messages, and content of each clip."""
        for i, video in enumerate(self.videos):
            for j, raw in enumerate(video.clips):
                yield video, clip_name(raw, i, j), raw


def read_official_file(
    path: Path, subset: str, report: DataReport, *, hint: str
) -> OfficialFile:
    """Read an annotation file of Ego4D to its clips.

    :param path: an existing file.
    :param subset: ``"train"``, ``"val"`` or ``"test"``: what all videos must be of.
    :param report: gets the file's hash.
    :param hint: what the file should be.
    :raises DataError: not JSON, truncated, of another form, version or subset.
    """
    content = report.read(path)
    raw = decode_json_object(path, content, hint=hint, faults=report.faults)
    file = convert(raw, _File, path, hint=hint)
    version = str(file.version)
    if not _KNOWN_VERSION.match(version):
        problem = f"expected version 1 or 2 of Ego4D but got {version!r}"
        raise DataError(path, problem, field="version")
    videos = tuple(
        convert(each, Video, path, hint=hint, record=f"videos[{i}]")
        for i, each in enumerate(file.videos)
    )
    for video in videos:
        if video.split != subset:
            problem = f"expected {subset!r} in this file but got {video.split!r}"
            raise DataError(path, problem, record=video.video_uid, field="split")
    return OfficialFile(path, version, videos)


def check_versions(files: Iterable[OfficialFile]) -> None:
    """Refuse files of two versions.

    :raises DataError: names the file that differs from the first.
    """
    first, *others = files
    for file in others:
        if file.version != first.version:
            problem = f"is {file.version!r}, but {first.path.name} is {first.version!r}"
            hint = "fetch all annotation files of one version"
            raise DataError(file.path, problem, field="version", hint=hint)


def check_length(path: Path, record: str, field: str, seconds: float) -> float:
    """The length of a clip, if it is one.

    :param path: file, for messages.
    :param record: clip or line, for messages.
    :param field: that says it, for messages.
    :param seconds: the length.
    :raises DataError: not positive and finite.
    """
    if not 0 < seconds < math.inf:
        problem = f"expected a clip of positive length but got {seconds} seconds"
        raise DataError(path, problem, record=record, field=field)
    return seconds


def clip_name(raw: Any, video: int, clip: int) -> str:
    """What to call a clip in messages: its uid, else its place.

    :param raw: the clip as decoded.
    :param video: number of its video.
    :param clip: its number there.
    """
    uid = raw.get("clip_uid") if isinstance(raw, Mapping) else None
    return uid if isinstance(uid, str) else f"videos[{video}].clips[{clip}]"
