"""What a split is made of: items with few facts.

An item is what becomes a sample: a clip of Moment Queries, a question, a query set, a
video, an image.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from avalanche_vilco.core.errors import DataError
from avalanche_vilco.core.report import DataReport

_LISTED = 10


@dataclass(frozen=True, eq=False)
class Item:
    """One sample to be divided over experiences and streams."""

    item_id: str
    """Names it in manifests."""
    clip_id: str
    """What has its features or frames; several items may share it."""
    video_id: str
    """Parent video; no split has it in train and valid."""
    subset: str
    """``"train"``, or ``"val"``, which makes the test stream."""
    categories: tuple[Hashable, ...]
    """Category of each of its windows: experiences are groups of categories."""
    record: Any = field(default=None, repr=False)
    """What the benchmark made it of, handed back as it is."""


def query_items(
    queries: Iterable[Any],
    clips: Mapping[str, OfVideo],
    categories: Callable[[Any], tuple[Hashable, ...]],
) -> list[Item]:
    """Queries as items.

    :param queries: with ``query_id``, ``clip_id`` and ``subset``.
    :param clips: their clips by id.
    :param categories: gives those of a query.
    """
    return [
        Item(
            query.query_id,
            query.clip_id,
            clips[query.clip_id].video_id,
            query.subset,
            categories(query),
            query,
        )
        for query in queries
    ]


class OfVideo(Protocol):
    """What has a parent video: an item, a clip."""

    @property
    def video_id(self) -> str:
        """Parent video."""

    @property
    def subset(self) -> str:
        """Subset of the annotation files."""


def whole_clips(items: Iterable[Item]) -> list[Item]:
    """One item a clip, with the categories of all its items.

    :param items: of which some share a clip.
    :return: in the order in which clips come first.
    """
    by_clip: dict[str, list[Item]] = {}
    for item in items:
        by_clip.setdefault(item.clip_id, []).append(item)
    return [
        replace(
            members[0],
            item_id=clip_id,
            categories=tuple(chain.from_iterable(one.categories for one in members)),
        )
        for clip_id, members in by_clip.items()
    ]


def check_disjoint_parents(clips: Iterable[OfVideo], file: Path) -> None:
    """Refuse parent videos that are in train and val.

    :param clips: clips or items of both subsets.
    :param file: the val file, for errors.
    :raises DataError: names the videos.
    """
    parents: dict[str, set[str]] = {"train": set(), "val": set()}
    for clip in clips:
        parents[clip.subset].add(clip.video_id)
    shared = sorted(parents["train"] & parents["val"])
    if shared:
        problem = f"{len(shared)} parent videos are in train as well: "
        problem += ", ".join(shared[:_LISTED])
        hint = "scores on a video seen in training mean nothing: mend the split"
        raise DataError(file, problem, hint=hint)


def drop_clips(
    items: Sequence[Item],
    reasons: Mapping[str, str],
    report: DataReport,
    *,
    stage: str,
    units: Sequence[str],
) -> list[Item]:
    """Leave out the items of some clips, and count what is left.

    :param items: all items.
    :param reasons: clip id -> why its items are left out.
    :param report: where to count.
    :param stage: name of the stage.
    :param units: what an item's categories count as, such as ``"windows"``.
    :return: the other items.
    """
    for tally in [report.stage(stage, unit) for unit in units]:
        for item in items:
            if item.clip_id in reasons:
                tally.reject(reasons[item.clip_id], len(item.categories))
            else:
                tally.kept += len(item.categories)
    clips = report.stage(stage, "clips")
    for clip_id in dict.fromkeys(item.clip_id for item in items):
        if clip_id in reasons:
            clips.reject(reasons[clip_id])
        else:
            clips.kept += 1
    return [item for item in items if item.clip_id not in reasons]
