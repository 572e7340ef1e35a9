"""One pick of every label at a time, of those labels that may still count.

The picks of a label come in falling order, so a label whose next pick is not among
the best of its clip so far has no more to say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from avalanche_vilco.ops.nms.groups import Floats, Groups, Integers, first_best
from avalanche_vilco.ops.nms.rule import Rule

_Lower = Callable[[Floats, Floats], Floats]

_PLACES = (1 << 32) - 1

# NumPy takes arrays of one element twice as fast as its scalars.
_ZERO, _ONE = np.array([[0], [1]], dtype=np.float32)


class _Rows(NamedTuple):
    """Candidates (n,) sorted by group, and groups (G,) sorted by clip."""

    starts: Floats
    ends: Floats
    lengths: Floats
    scores: Floats
    places: Integers
    owners: Integers
    """(n,) group."""
    first: Integers
    """(G,) where a group starts; none is empty."""
    clips: Integers
    """(G,)"""
    columns: Integers
    """(G,) number within the clip."""


def pick(groups: Groups, rule: Rule, indices: Integers, scores: Floats) -> None:
    """Write the picks.

    :param groups: candidates; their scores are used up.
    :param indices: (B, M), -1 on entry.
    :param scores: (B, M), 0 on entry.
    """
    limit = min(indices.shape[1], len(groups.places))
    if limit == 0:
        return
    rows, best, lower = _rows(groups), groups.best, _lowering(rule)
    top = np.zeros((len(indices), limit), dtype=np.int64)
    for _ in range(limit if rule.per_label is None else rule.per_label):
        if not len(best):
            break
        top = _merged(top, _keys(rows, best), rows)
        _suppress(rows, best, lower)
        best = first_best(rows.scores, rows.first)
        rows, best = _without_hope(rows, best, top[:, 0])
    top = np.sort(top, axis=1)[:, ::-1]
    found = (top >> 32).astype(np.int32).view(np.float32)
    scores[:, :limit] = found
    indices[:, :limit] = np.where(found > 0, _PLACES - (top & _PLACES), -1)


def _rows(groups: Groups) -> _Rows:
    first, sizes = groups.bounds[:-1], np.diff(groups.bounds)
    n_groups = np.diff(groups.clips)
    clips = np.repeat(np.arange(len(n_groups)), n_groups)
    every = np.arange(len(first))
    return _Rows(
        *groups[:5],
        owners=np.repeat(every, sizes),
        first=first,
        clips=clips,
        columns=every - groups.clips[clips],
    )


def _keys(rows: _Rows, best: Integers) -> Integers:
    """(G,) whole numbers that order as the picks do: by score, then lowest place."""
    # Bits of floats >= 0 order as the floats do.
    bits = rows.scores[best].view(np.int32).astype(np.int64)
    return np.where(bits > 0, (bits << 32) | (_PLACES - rows.places[best]), 0)


def _merged(top: Integers, keys: Integers, rows: _Rows) -> Integers:
    """The best keys of each clip, the lowest of them first."""
    n_clips, limit = top.shape
    new = np.zeros((n_clips, rows.columns.max() + 1), dtype=np.int64)
    new[rows.clips, rows.columns] = keys
    both = np.concatenate([top, new], axis=1)
    return np.partition(both, -limit, axis=1)[:, -limit:]


def _suppress(rows: _Rows, best: Integers, lower: _Lower) -> None:
    """Lower the scores of every group after the pick of its best."""
    scores, owners = rows.scores, rows.owners
    scores[best] = 0
    overlap = np.minimum(rows.ends, rows.ends[best][owners])
    overlap -= np.maximum(rows.starts, rows.starts[best][owners])
    (near,) = (overlap > _ZERO).nonzero()
    overlap = overlap[near]
    union = rows.lengths[near]
    union += rows.lengths[best][owners[near]]
    union -= overlap
    overlap /= union
    scores[near] = lower(scores[near], overlap)


def _without_hope(
    rows: _Rows, best: Integers, lowest: Integers
) -> tuple[_Rows, Integers]:
    """Leave out groups whose next pick does not reach the best of its clip."""
    hope = _keys(rows, best) > lowest[rows.clips]
    if hope.all():
        return rows, best
    kept = hope[rows.owners]
    shift = np.cumsum(kept) - 1
    return (
        _Rows(
            starts=rows.starts[kept],
            ends=rows.ends[kept],
            lengths=rows.lengths[kept],
            scores=rows.scores[kept],
            places=rows.places[kept],
            owners=(np.cumsum(hope) - 1)[rows.owners[kept]],
            first=shift[rows.first[hope]],
            clips=rows.clips[hope],
            columns=rows.columns[hope],
        ),
        shift[best[hope]],
    )


def _lowering(rule: Rule) -> _Lower:
    """What becomes of scores, given their tIoU with a pick."""
    sigma = np.array([-rule.sigma])
    threshold, floor = np.array([[rule.threshold], [rule.floor]], dtype=np.float32)

    def gaussian(scores: Floats, tiou: Floats) -> Floats:
        wide = tiou.astype(np.float64)
        wide *= wide
        wide /= sigma
        # Rounded from float64, where `exp` is the same to float32 in all libraries.
        scores *= np.exp(wide, out=wide).astype(np.float32)
        return scores

    def linear(scores: Floats, tiou: Floats) -> Floats:
        return np.where(tiou >= threshold, scores * (_ONE - tiou), scores)

    def drop(scores: Floats, tiou: Floats) -> Floats:
        scores[tiou >= threshold] = 0
        return scores

    lower = drop if rule.drops else linear if rule.method == "linear" else gaussian

    def lower_and_cut(scores: Floats, tiou: Floats) -> Floats:
        scores = lower(scores, tiou)
        scores[scores < floor] = 0
        return scores

    return lower_and_cut if rule.floor > 0 else lower
