"""The split procedure of the public benchmark code, to the digit.

It gives each clip to the group with most of its windows, up to fixed limits, keeps
only the windows of that group that end before the clip does, and then moves clips of
rare categories. Of 13,545 training windows it keeps 5,808. Its flaws are kept because
published numbers rest on them; protocol ``exclusive`` is our repair.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from avalanche_vilco.data.moments import MomentClip

FIRST_LIMIT = {"train": 450, "val": 650}
"""A clip goes to its first group while that has fewer clips of both subsets."""
SECOND_LIMIT = {"train": 250, "val": 350}
"""The same for its second group; the third has no limit."""
FEWEST_CLIPS = 5
"""A category that fewer clips show gets clips of other groups."""

Groups = Sequence[Sequence[int]]


def reference_experiences(clips: Sequence[MomentClip], groups: Groups) -> list[int]:
    """Give each clip to one group as the public script does.

    Groups are taken in the order of their smallest category id, whatever the order
    of learning, so that another order of the same groups has the same clips.

    :param clips: annotated clips of train and val in file order, windows read raw.
    :param groups: category ids of each experience.
    :return: experience of each clip, -1 for a clip that is dropped.
    """
    canonical = sorted(range(len(groups)), key=lambda g: min(groups[g]))
    ordered = [groups[g] for g in canonical]
    places = _first_pass(clips, ordered)
    for subset in ("train", "val"):
        _move_rare(clips, places, ordered, subset)
    return [
        canonical[place] if kept_window_mask(clip, ordered[place]).any() else -1
        for clip, place in zip(clips, places, strict=True)
    ]


def kept_window_mask(clip: MomentClip, group: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Windows that the public script keeps of a clip in a group.

    They start and end before the clip ends; the comparison is in float32, where a
    window that ends with a clip of 480.00000000000006 s is not before its end.

    :param clip: clip, windows read raw.
    :param group: category ids.
    :return: (N,) mask.
    """
    times = clip.windows_sec.astype(np.float32)
    before_end = (times < np.float32(clip.duration_sec)).all(axis=1)
    return np.isin(clip.label_ids, group) & before_end


def _first_pass(clips: Sequence[MomentClip], groups: Groups) -> list[int]:
    """Group of each clip by its windows and the limits."""
    ranked = [_ranked_groups(clip, groups) for clip in clips]
    places = [-1] * len(clips)
    sizes = [0] * len(groups)
    for group in range(len(groups)):
        for i, clip in enumerate(clips):
            first, second, third = ranked[i]
            if first != group:
                continue
            if sizes[first] < FIRST_LIMIT[clip.subset]:
                places[i] = first
            elif sizes[second] < SECOND_LIMIT[clip.subset]:
                places[i] = second
            else:
                places[i] = third
            sizes[places[i]] += 1
    return places


def _ranked_groups(clip: MomentClip, groups: Groups) -> tuple[int, int, int]:
    """The three groups with most windows, which may have none; first on ties."""
    counts = [int(np.isin(clip.label_ids, group).sum()) for group in groups]
    ranked = sorted(range(len(groups)), key=lambda g: -counts[g])
    ranked += ranked[-1:] * 2
    return ranked[0], ranked[1], ranked[2]


def _move_rare(
    clips: Sequence[MomentClip], places: list[int], groups: Groups, subset: str
) -> None:
    """Move clips of rare categories; counts are those before any move."""
    members = [i for i, clip in enumerate(clips) if clip.subset == subset]
    shown = Counter(
        label
        for i in members
        for label in set(_kept_labels(clips[i], groups[places[i]]))
    )
    group_of = {label: g for g, group in enumerate(groups) for label in group}
    for label in sorted(group_of):
        wanted = FEWEST_CLIPS - shown[label]
        for i in members:
            if wanted <= 0:
                break
            if places[i] != group_of[label] and label in clips[i].label_ids:
                places[i] = group_of[label]
                wanted -= 1


def _kept_labels(clip: MomentClip, group: Sequence[int]) -> list[int]:
    labels: list[int] = clip.label_ids[kept_window_mask(clip, group)].tolist()
    return labels
