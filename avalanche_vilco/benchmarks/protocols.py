"""Protocols: which items an experience has, and which of their windows.

A benchmark has a table of these, name -> :class:`Protocol`. ``exclusive`` gives each
clip to one experience, ``shared_clips`` to each that asks for something in it,
``reference`` splits as the public benchmark code does. What each keeps of the real
files stands in ``docs/protocols.md``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from avalanche_vilco.benchmarks.items import Item, whole_clips

STREAMS = ("train", "valid", "test")
BALANCE_SLACK = 1.5
"""An experience holds at most this multiple of its share of the clips, and at least
its share divided by this where as many clips ask for its queries."""

Groups: TypeAlias = Sequence[Sequence[Any]]
"""Categories of each experience, in order of learning."""
Place: TypeAlias = Callable[[Sequence[Item], Groups], list[tuple[int, ...]]]
"""Gives the experiences of each item, of train and val together."""
Assign: TypeAlias = Callable[[Sequence[Item], Groups], npt.NDArray[np.int64]]
"""Gives the experience of each whole clip of one subset, -1 for none."""


def kept_windows(item: Item, group: Sequence[Hashable]) -> npt.NDArray[np.bool_]:
    """(N,) mask of the windows that an item has in an experience: those asked for.

    :param item: has N windows.
    :param group: categories of the experience.
    """
    return np.array([category in group for category in item.categories], dtype=bool)


def lost_windows(
    item: Item, experiences: Sequence[int], groups: Groups, *, has_place: bool
) -> dict[str, int]:
    """Reason -> windows of an item that no experience has.

    :param item: an item.
    :param experiences: of the item.
    :param groups: categories of each experience.
    :param has_place: whether an experience has its clip.
    """
    total = len(item.categories)
    if not has_place:
        return {"the clip has no place": total}
    kept = sum(int(kept_windows(item, groups[e]).sum()) for e in experiences)
    return {"query of another experience than the clip's": total - kept}


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How records are read, and items divided over experiences and streams."""

    name: str
    version: str = "1"
    """Changes with what the streams hold; travels into results and manifests."""
    place: Place
    shares_clips: bool = False
    """Whether a clip may be in several experiences."""
    reads_raw: bool = False
    """Whether windows and texts stay as in the file, which is what public code sees."""
    splits_before_dropping: bool = False
    """Whether a clip without features still counts when places are given."""
    valid_share: float = 0.1
    """Share of the training clips that the valid stream holds by default."""
    valid_of_each: bool = False
    """Whether the share is of each experience, whatever it holds, and not of train, of
    which no category or experience may lose more than half."""
    keeps: Callable[[Item, Sequence[Any]], npt.NDArray[np.bool_]] = kept_windows
    """(N,) mask of the windows that an item has in an experience; see the default."""
    losses: Callable[..., Mapping[str, int]] = lost_windows
    """Why windows are lost; arguments as :func:`lost_windows`."""
    sort_key: Callable[[Item], Any] | None = None
    """Order of an experience's items, if it is not that of the file."""


def protocol_table(*protocols: Protocol) -> dict[str, Protocol]:
    """Protocols by name.

    :param protocols: of one benchmark.
    """
    return {protocol.name: protocol for protocol in protocols}


# --- Places ---------------------------------------------------------------------------


def place_by_category(items: Sequence[Item], groups: Groups) -> list[tuple[int, ...]]:
    """Every experience that asks for one of an item's categories.

    :param items: items.
    :param groups: hold each of their categories once.
    :return: experiences of each item, ascending.
    """
    experience = {category: e for e, group in enumerate(groups) for category in group}
    return [
        tuple(sorted({experience[category] for category in item.categories}))
        for item in items
    ]


def place_exclusively(assign: Assign) -> Place:
    """A rule that gives each clip to one experience, subset by subset.

    Items of the clip that this experience does not ask for have no place.

    :param assign: chooses, among the experiences that ask for something in a clip.
    """

    def place(items: Sequence[Item], groups: Groups) -> list[tuple[int, ...]]:
        chosen: dict[str, int] = {}
        for subset in ("train", "val"):
            clips = whole_clips(item for item in items if item.subset == subset)
            names = [clip.clip_id for clip in clips]
            chosen.update(zip(names, assign(clips, groups).tolist(), strict=True))
        return [
            (chosen[item.clip_id],) if chosen[item.clip_id] in asking else ()
            for item, asking in zip(
                items, place_by_category(items, groups), strict=True
            )
        ]

    return place


def assign_clips(
    clips: Sequence[Item], groups: Groups, *, slack: float = BALANCE_SLACK
) -> npt.NDArray[np.int64]:
    """Give each clip to one experience, so that most windows are kept.

    A linear assignment keeps as many windows as it can while each experience gets
    between ``1 / slack`` and ``slack`` times its share, which is proportional to its
    number of queries, and weighs the windows of a category by how few clips have it,
    so that rare categories stay present.

    :param clips: whole clips of one subset, each with at least one window.
    :param groups: categories of each experience.
    :param slack: at least 1; 1 gives each experience its share.
    :return: (n_clips,) experience of each clip; a clip never goes to an experience
        that asks nothing of it, -1 if the limit leaves it no place.
    """
    n_clips, n_groups = len(clips), len(groups)
    if not n_clips:
        return np.empty(0, dtype=np.int64)
    # Ties must not depend on the order of learning: the same groups in another order
    # get the same clips.
    canonical = sorted(range(n_groups), key=lambda g: sorted(groups[g]))
    gains = _gains(clips, [groups[g] for g in canonical])
    sizes = np.array([len(groups[g]) for g in canonical])
    shares = n_clips * sizes / sizes.sum()
    most = np.ceil(slack * shares).astype(np.int64)
    least = np.maximum(1, (shares / slack).astype(np.int64))
    chosen = _best_experiences(gains, most, np.zeros_like(least))
    # The second, slower search is for uneven groups and tiny data.
    if (np.bincount(chosen[chosen >= 0], minlength=n_groups) < least).any():
        chosen = _best_experiences(gains, most, least)
    return np.where(chosen < 0, -1, np.array(canonical)[chosen])


def _best_experiences(
    gains: npt.NDArray[np.float64],
    most: npt.NDArray[np.int64],
    least: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """Group of each clip, -1 for none; the first ``least`` places go first."""
    owner = np.repeat(np.arange(len(most)), most)
    is_first = np.concatenate(
        [np.arange(n) < m for n, m in zip(most, least, strict=True)]
    )
    gain = gains[:, owner]  # (n_clips, n_places)
    # Filling one first place outweighs all windows together.
    bonus = gains.max() * len(gains) * (is_first & (gain > 0))
    clip, place = linear_sum_assignment(gain + bonus, maximize=True)
    return np.where(gain[clip, place] > 0, owner[place], -1)


def _gains(clips: Sequence[Item], groups: Groups) -> npt.NDArray[np.float64]:
    """(n_clips, n_groups): windows kept, rare categories counted higher."""
    group_of = {category: g for g, group in enumerate(groups) for category in group}
    presence = Counter(category for clip in clips for category in set(clip.categories))
    gains = np.zeros((len(clips), len(groups)))
    for row, clip in enumerate(clips):
        for category, windows in Counter(clip.categories).items():
            rarity = len(clips) / presence[category] ** 2
            gains[row, group_of[category]] += windows + rarity
    return gains
