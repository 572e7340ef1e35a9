"""How queries and clips are divided over experiences and streams."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from avalanche_vilco.data.moments import MomentClip

BALANCE_SLACK = 1.5
"""An experience holds at most this multiple of its share of the clips, and at least
its share divided by this where as many clips ask for its queries."""


def query_groups(
    label_ids: Sequence[int],
    *,
    n_experiences: int,
    group_sizes: Sequence[int] | None,
    order: str | Sequence[int] | None,
    seed: int | None,
) -> list[list[int]]:
    """Divide categories over experiences.

    :param label_ids: category ids, ascending: the fixed order.
    :param n_experiences: number of experiences; must divide the categories unless
        group_sizes is given.
    :param group_sizes: categories of each experience, summing up to all.
    :param order: ``None`` is the fixed order, or ``"queries"`` if a seed is given;
        ``"queries"`` shuffles categories, ``"groups"`` keeps the fixed groups and
        shuffles their order; a sequence lists all categories in order of learning.
    :param seed: seed of a shuffled order; a listed order takes none.
    :return: category ids of each experience.
    :raises ValueError: sizes or order do not fit; says what would.
    """
    order = "queries" if order is None and seed is not None else order
    sizes = _group_sizes(len(label_ids), n_experiences, group_sizes)
    rng = np.random.default_rng(seed)
    shuffle = _checked_shuffle(order, seed) if isinstance(order, str) else None
    ordered = list(label_ids)
    if shuffle == "queries":
        ordered = rng.permutation(ordered).tolist()
    elif shuffle is None and order is not None:
        ordered = _explicit_order(label_ids, order)
        if seed is not None:
            raise ValueError(f"a listed order is not shuffled: leave seed={seed} out")
    ends = np.cumsum(sizes).tolist()
    groups = [ordered[end - size : end] for size, end in zip(sizes, ends, strict=True)]
    if shuffle == "groups":
        groups = [groups[i] for i in rng.permutation(len(groups)).tolist()]
    return groups


def _checked_shuffle(order: str, seed: int | None) -> str:
    if order not in ("queries", "groups"):
        raise ValueError(
            f"expected order 'queries', 'groups' or a list of ids but got {order!r}"
        )
    if seed is None:
        raise ValueError(f"order {order!r} needs a seed: pass seed=0, 1, ...")
    return order


def _group_sizes(
    n_queries: int, n_experiences: int, sizes: Sequence[int] | None
) -> list[int]:
    if sizes is not None:
        if sum(sizes) != n_queries or min(sizes, default=0) < 1:
            raise ValueError(
                f"expected group_sizes of at least 1 that sum up to {n_queries} "
                f"but got {list(sizes)}"
            )
        return list(sizes)
    if not 1 <= n_experiences <= n_queries or n_queries % n_experiences:
        legal = [n for n in range(1, n_queries + 1) if n_queries % n == 0]
        raise ValueError(
            f"{n_queries} queries do not divide into {n_experiences} experiences: "
            f"choose n_experiences from {legal}, or pass group_sizes"
        )
    return [n_queries // n_experiences] * n_experiences


def _explicit_order(label_ids: Sequence[int], order: Sequence[int] | str) -> list[int]:
    ordered = [int(label_id) for label_id in order]
    if sorted(ordered) != sorted(label_ids):
        missing = sorted(set(label_ids) - set(ordered))
        unknown = sorted(set(ordered) - set(label_ids))
        raise ValueError(
            "expected order to list each category id once; "
            f"missing {missing}, unknown {unknown}"
        )
    return ordered


def assign_clips(
    clips: Sequence[MomentClip],
    groups: Sequence[Sequence[int]],
    *,
    slack: float = BALANCE_SLACK,
) -> npt.NDArray[np.int64]:
    """Give each clip to one experience (protocol ``exclusive``).

    A linear assignment keeps as many windows as it can while each experience gets
    between ``1 / slack`` and ``slack`` times its share, which is proportional to its
    number of queries, and weighs the windows of a category by how few clips have it,
    so that rare categories stay present.

    :param clips: clips of one subset, each with at least one window.
    :param groups: category ids of each experience.
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
    home = _best_homes(gains, most, np.zeros_like(least))
    # The second, slower search is for uneven groups and tiny data.
    if (np.bincount(home[home >= 0], minlength=n_groups) < least).any():
        home = _best_homes(gains, most, least)
    return np.where(home < 0, -1, np.array(canonical)[home])


def _best_homes(
    gains: npt.NDArray[np.float64],
    most: npt.NDArray[np.int64],
    least: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """Group of each clip, -1 for none; the first ``least`` places go first."""
    owner = np.repeat(np.arange(len(most)), most)
    is_first = np.concatenate(
        [np.arange(n) < m for n, m in zip(most, least, strict=True)]
    )
    gain = gains[:, owner]
    # Filling one first place outweighs all windows together.
    bonus = gains.max() * len(gains) * (is_first & (gain > 0))
    clip, place = linear_sum_assignment(gain + bonus, maximize=True)
    return np.where(gain[clip, place] > 0, owner[place], -1)


def _gains(
    clips: Sequence[MomentClip], groups: Sequence[Sequence[int]]
) -> npt.NDArray[np.float64]:
    """(n_clips, n_groups): windows kept, rare categories counted higher."""
    group_of = {label: g for g, labels in enumerate(groups) for label in labels}
    presence = Counter(
        label for clip in clips for label in set(clip.label_ids.tolist())
    )
    gains = np.zeros((len(clips), len(groups)))
    for row, clip in enumerate(clips):
        for label, windows in Counter(clip.label_ids.tolist()).items():
            rarity = len(clips) / presence[label] ** 2
            gains[row, group_of[label]] += windows + rarity
    return gains


def held_out_parents(
    clips: Sequence[MomentClip], home: npt.NDArray[np.int64], share: float
) -> frozenset[str]:
    """Parent videos that make the valid stream, the same for every seed and order.

    Videos are taken by a hash of their uid until the share of clips is reached; one
    is left out where train would lose more than half, or the last, of the clips that
    have a category or belong to an experience. (The latter happens in tiny data only,
    where the order may then matter.)

    :param clips: training clips.
    :param home: experience of each clip, -1 for none.
    :param share: share of clips to hold out, in [0, 1).
    :return: uids of the parents held out.
    """
    # One set a clip of what train must not run out of.
    by_parent: dict[str, list[set[tuple[str, int]]]] = {}
    for clip, experience in zip(clips, home.tolist(), strict=True):
        if experience >= 0:
            needs = {("category", label) for label in clip.label_ids.tolist()}
            needs.add(("experience", experience))
            by_parent.setdefault(clip.video_id, []).append(needs)
    left = Counter(chain(*chain(*by_parent.values())))
    wanted, taken = share * sum(map(len, by_parent.values())), 0
    held: set[str] = set()
    for parent in sorted(by_parent, key=_hash_order):
        n_clips = len(by_parent[parent])
        loss = Counter(chain(*by_parent[parent]))
        if taken + n_clips > wanted or any(
            left[need] - n < max(1, 0.5 * left[need]) for need, n in loss.items()
        ):
            continue
        left.subtract(loss)
        held.add(parent)
        taken += n_clips
    return frozenset(held)


def _hash_order(video_id: str) -> str:
    return hashlib.sha256(video_id.encode()).hexdigest()


def balancing_targets(asked: Sequence[Sequence[int]]) -> list[int]:
    """One query for each clip, the integer that class-balanced buffers group by.

    Stock LwF and CWR* take these integers for output channels, so as many queries
    as can be are the head of some clip: a maximum matching first, and the rarest
    query for the clips that it leaves.

    :param asked: for each clip the channels that have a window in it, not empty.
    :return: one of them for each clip.
    """
    counts = Counter(channel for channels in asked for channel in channels)
    heads = [min(channels, key=lambda c: (counts[c], c)) for channels in asked]
    if not counts:
        return heads
    rows = [row for row, channels in enumerate(asked) for _ in channels]
    columns = [channel for channels in asked for channel in channels]
    shape = (len(asked), max(columns) + 1)
    graph = csr_array((np.ones(len(rows)), (rows, columns)), shape=shape)
    for row, channel in enumerate(
        maximum_bipartite_matching(graph, perm_type="column")
    ):
        if channel >= 0:
            heads[row] = int(channel)
    return heads
