"""Candidates sorted by clip and label, and one pick of every label at a time.

Only those labels are advanced that may still count: the picks of a label come in
falling order, so a label whose next pick is not among the best of its clip so far has
no more to say.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from avalanche_vilco.ops.nms.rule import LENGTH_EPSILON, Candidates, NMSRule

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]

_RADIX_SORTED = 1 << 16
_PLACES = (1 << 32) - 1

# NumPy takes arrays of one element twice as fast as its scalars.
_ZERO, _ONE = np.array([[0], [1]], dtype=np.float32)


class Groups(NamedTuple):
    """A group is the candidates of one label of one clip, in the order given.

    Arrays over the n candidates of all clips, over the G groups, over the B clips.
    """

    starts: Floats  # (n,)
    ends: Floats  # (n,)
    lengths: Floats  # (n,)
    scores: Floats  # (n,) 0 once picked or dropped: the loops write here
    places: Integers  # (n,) index in its clip
    bounds: Integers  # (G + 1,) group g holds candidates bounds[g] to bounds[g + 1]
    best: Integers  # (G,) candidate of a group's highest score, the first of equals
    clips: Integers  # (B + 1,) clip b holds groups clips[b] to clips[b + 1]


def group(given: Candidates, floor: float) -> Groups:
    """Sort by clip and label.

    Scores below the floor go at once, save the best of a group: nothing of a group is
    picked before its best, and that pick would drop them.

    :param given: candidates of B clips, on the CPU.
    :param floor: scores that a pick leaves below this are dropped.
    """
    starts, ends, scores, labels = (values.numpy() for values in given)
    n_clips, n = scores.shape
    usable = scores > 0
    clips = np.repeat(np.arange(n_clips), usable.sum(axis=1))
    flat = np.flatnonzero(usable)
    # (n,) a number for each clip and label
    keys, n_labels = _dense(labels.reshape(-1)[flat].astype(np.int64), n_clips)
    keys += clips * n_labels
    # NumPy sorts 16 bits by radix, ten times as fast as 64.
    is_short = n_clips * n_labels <= _RADIX_SORTED
    order = np.argsort(keys.astype(np.uint16) if is_short else keys, kind="stable")
    flat, keys = flat[order], keys[order]
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    starts, ends, scores = (x.reshape(-1)[flat] for x in (starts, ends, scores))
    best = _first_best(scores, first)
    low = scores < np.float32(floor)
    low[best] = False
    scores[low] = 0
    return Groups(
        starts,
        ends,
        ends - starts + np.float32(LENGTH_EPSILON),
        scores,
        flat - clips * n,
        np.append(first, len(flat)),
        best,
        np.searchsorted(keys[first] // n_labels, np.arange(n_clips + 1)),
    )


def _dense(labels: Integers, n_clips: int) -> tuple[Integers, int]:
    """Labels in few numbers, where they are too many to be sorted fast as they are."""
    n_labels = int(labels.max(initial=0)) + 1
    if n_clips * n_labels > _RADIX_SORTED:
        known, labels = np.unique(labels, return_inverse=True)
        n_labels = max(len(known), 1)
    return labels, n_labels


def _first_best(scores: Floats, first: Integers) -> Integers:
    """(G,) candidate of each group's highest score; group g starts at first[g]."""
    if not len(first):
        return first
    sizes = np.diff(first, append=len(scores))
    highest = np.repeat(np.maximum.reduceat(scores, first), sizes)
    (found,) = np.nonzero(scores == highest)
    return found[np.searchsorted(found, first)]


class _Rows(NamedTuple):
    """Candidates (n,) sorted by group, and groups (G,), none empty, sorted by clip."""

    starts: Floats
    ends: Floats
    lengths: Floats
    scores: Floats
    places: Integers
    groups: Integers  # (n,)
    first: Integers  # (G,) where a group starts
    clips: Integers  # (G,)
    columns: Integers  # (G,) number within the clip


def pick(groups: Groups, rule: NMSRule, indices: Integers, scores: Floats) -> None:
    """Write the picks.

    :param groups: candidates; their scores are used up.
    :param rule: what a pick does to others.
    :param indices: (B, M), -1 on entry.
    :param scores: (B, M), 0 on entry.
    """
    limit = min(indices.shape[1], len(groups.places))
    if limit == 0:
        return
    first, n_groups = groups.bounds[:-1], np.diff(groups.clips)
    clips = np.repeat(np.arange(len(n_groups)), n_groups)
    every = np.arange(len(first))
    of_candidates = np.repeat(every, np.diff(groups.bounds))
    columns = every - groups.clips[clips]
    rows = _Rows(*groups[:5], of_candidates, first, clips, columns)
    best = groups.best
    top = np.zeros((len(indices), limit), dtype=np.int64)
    for _ in range(limit if rule.per_label is None else rule.per_label):
        if not len(best):
            break
        top = _merged(top, _keys(rows, best), rows)
        _suppress(rows, best, rule)
        best = _first_best(rows.scores, rows.first)
        rows, best = _without_hope(rows, best, top[:, 0])
    top = np.sort(top, axis=1)[:, ::-1]
    found = (top >> 32).astype(np.int32).view(np.float32)
    scores[:, :limit] = found
    indices[:, :limit] = np.where(found > 0, _PLACES - (top & _PLACES), -1)


def _keys(rows: _Rows, best: Integers) -> Integers:
    """(G,) whole numbers that order as the picks do: by score, then lowest place."""
    # Bits of floats >= 0 order as the floats do.
    bits = rows.scores[best].view(np.int32).astype(np.int64)
    return np.where(bits > 0, (bits << 32) | (_PLACES - rows.places[best]), 0)


def _merged(top: Integers, keys: Integers, rows: _Rows) -> Integers:
    """(B, M) the best keys of each clip, the lowest of them first."""
    n_clips, limit = top.shape
    # (G,) -> (B, groups of a clip at most)
    new = np.zeros((n_clips, rows.columns.max() + 1), dtype=np.int64)
    new[rows.clips, rows.columns] = keys
    both = np.concatenate([top, new], axis=1)
    return np.partition(both, -limit, axis=1)[:, -limit:]


def _suppress(rows: _Rows, best: Integers, rule: NMSRule) -> None:
    """Lower the scores of every group after the pick of its best."""
    scores, groups = rows.scores, rows.groups
    scores[best] = 0
    overlap = np.minimum(rows.ends, rows.ends[best][groups])
    overlap -= np.maximum(rows.starts, rows.starts[best][groups])
    (near,) = (overlap > _ZERO).nonzero()
    overlap = overlap[near]
    union = rows.lengths[near]
    union += rows.lengths[best][groups[near]]
    union -= overlap
    overlap /= union
    scores[near] = _lowered(scores[near], overlap, rule)


def _without_hope(
    rows: _Rows, best: Integers, lowest: Integers
) -> tuple[_Rows, Integers]:
    """Leave out groups whose next pick does not reach the best of its clip."""
    hope = _keys(rows, best) > lowest[rows.clips]
    if hope.all():
        return rows, best
    kept = hope[rows.groups]
    shift = np.cumsum(kept) - 1
    hopeful = _Rows(
        rows.starts[kept],
        rows.ends[kept],
        rows.lengths[kept],
        rows.scores[kept],
        rows.places[kept],
        (np.cumsum(hope) - 1)[rows.groups[kept]],
        shift[rows.first[hope]],
        rows.clips[hope],
        rows.columns[hope],
    )
    return hopeful, shift[best[hope]]


def _lowered(scores: Floats, tiou: Floats, rule: NMSRule) -> Floats:
    """What becomes of scores, given their tIoU with a pick; they are used up."""
    if rule.method == "gaussian":
        # Rounded from float64, where `exp` is the same to float32 in all libraries.
        wide = tiou.astype(np.float64)
        wide *= wide
        wide /= np.array([-rule.sigma])
        scores *= np.exp(wide, out=wide).astype(np.float32)
    elif rule.method == "linear":
        reached = tiou >= np.array([rule.threshold], dtype=np.float32)
        scores = np.where(reached, scores * (_ONE - tiou), scores)
    else:
        scores[tiou >= np.array([rule.threshold], dtype=np.float32)] = 0
    if rule.floor > 0:
        scores[scores < np.array([rule.floor], dtype=np.float32)] = 0
    return scores
