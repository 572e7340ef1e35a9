"""Clips of Moment Queries as items, the protocols, and samples of a split."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from avalanche_vilco.benchmarks.items import Item
from avalanche_vilco.benchmarks.protocols import (
    Groups,
    Protocol,
    assign_clips,
    kept_windows,
    place_by_category,
    place_exclusively,
    protocol_table,
)
from avalanche_vilco.benchmarks.split import Split, SplitRules
from avalanche_vilco.benchmarks.vilco_mq.reference_split import (
    kept_window_mask,
    reference_experiences,
)
from avalanche_vilco.core.report import DataReport
from avalanche_vilco.data.moments import MomentClip, MomentSample, read_only


def moment_items(clips: Iterable[MomentClip]) -> list[Item]:
    """Clips as items.

    :param clips: annotated clips of train and val, in file order.
    """
    return [
        Item(
            clip.clip_id,
            clip.clip_id,
            clip.video_id,
            clip.subset,
            tuple(clip.label_ids.tolist()),
            clip,
        )
        for clip in clips
    ]


def taught_items(
    items: Sequence[Item], names: Mapping[int, str], report: DataReport
) -> tuple[list[Item], dict[int, str]]:
    """Items without windows of a category that no train clip has, which are counted.

    No experience can teach such a category, and queries follow from training alone.

    :param items: of train and val.
    :param names: category id -> name of all categories.
    :param report: where to count, as stage ``categories``.
    :return: the items, and the names of the categories that train has.
    """
    taught = set(chain(*(item.categories for item in items if item.subset == "train")))
    known = {label_id: name for label_id, name in names.items() if label_id in taught}
    if all(taught.issuperset(item.categories) for item in items):
        return list(items), known
    kept: list[Item] = []
    windows, clips = (report.stage("categories", unit) for unit in ("windows", "clips"))
    for item in items:
        mask = kept_windows(item, list(taught))
        windows.kept += int(mask.sum())
        windows.reject("category that no train clip has", int((~mask).sum()))
        if not mask.any():
            clips.reject("no window of a category that a train clip has")
            continue
        clips.kept += 1
        if not mask.all():
            seconds, labels = item.record.windows_sec[mask], item.record.label_ids[mask]
            clip = replace(
                item.record,
                windows_sec=read_only(seconds, np.float64, -1, 2),
                label_ids=read_only(labels, np.int64, -1),
            )
            item = moment_items([clip])[0]
        kept.append(item)
    return kept, known


# --- Protocols ------------------------------------------------------------------------


def _place_as_public(items: Sequence[Item], groups: Groups) -> list[tuple[int, ...]]:
    chosen = reference_experiences([item.record for item in items], groups)
    return [() if experience < 0 else (experience,) for experience in chosen]


def _keeps_as_public(item: Item, group: Sequence[Any]) -> npt.NDArray[np.bool_]:
    return kept_window_mask(item.record, group)


def _lost_as_public(
    item: Item, experiences: Sequence[int], groups: Groups, *, has_place: bool
) -> Mapping[str, int]:
    total = len(item.categories)
    if not has_place:
        return {f"{item.subset}: the clip is dropped": total}
    group = groups[experiences[0]]
    asked = int(kept_windows(item, group).sum())
    kept = int(kept_window_mask(item.record, group).sum())
    return {
        f"{item.subset}: outside the clip's group": total - asked,
        f"{item.subset}: starts or ends at or past the clip's end": asked - kept,
    }


MQ_PROTOCOLS = protocol_table(
    Protocol(
        name="exclusive",
        place=place_exclusively(assign_clips),
    ),
    Protocol(name="shared_clips", place=place_by_category, shares_clips=True),
    Protocol(
        name="reference",
        place=_place_as_public,
        reads_raw=True,
        splits_before_dropping=True,
        # The public code selects on its evaluation split and holds nothing out.
        valid_share=0.0,
        keeps=_keeps_as_public,
        losses=_lost_as_public,
    ),
)
"""Protocols by name."""

MQ_RULES = SplitRules(
    benchmark="vilco_mq", protocols=MQ_PROTOCOLS, noun="clips", units=("windows",)
)


# --- Samples --------------------------------------------------------------------------


def moment_samples(
    split: Split, *, clip_label_text: bool = False
) -> dict[str, list[MomentSample]]:
    """Samples of each stream: clips with their windows in their experiences.

    :param split: a split of :func:`moment_items`.
    :param clip_label_text: show each clip the texts of its own labels, learnt or not,
        and of no others.
    :return: stream -> samples, experience after experience.
    """
    ordered = [label_id for group in split.groups for label_id in group]
    index = {label_id: i for i, label_id in enumerate(ordered)}
    return {
        name: [
            _sample(item, group, index, split.protocol, clip_label_text)
            for members, group in zip(parts, split.groups, strict=True)
            for item in members
        ]
        for name, parts in split.streams.items()
    }


def _sample(
    item: Item,
    group: Collection[Any],
    index: Mapping[Any, int],
    protocol: Protocol,
    clip_label_text: bool,
) -> MomentSample:
    clip: MomentClip = item.record
    kept = protocol.keeps(item, list(group))
    windows = clip.windows_sec[kept]
    if protocol.reads_raw:
        # The public files hold float32; equal numbers need its rounding.
        windows = windows.astype(np.float32)
    shown = None
    if clip_label_text:
        shown = tuple(sorted({index[label_id] for label_id in item.categories}))
    return MomentSample(
        clip,
        read_only(windows, np.float64, -1, 2),
        read_only([index[i] for i in clip.label_ids[kept].tolist()], np.int64, -1),
        tuple(sorted(index[label_id] for label_id in group)),
        shown,
    )
