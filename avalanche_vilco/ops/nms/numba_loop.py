"""One pick after the other, always of the label with the highest score, compiled.

Importing this needs numba.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numba import njit

from avalanche_vilco.ops.nms.numpy_loop import Floats, Groups, Integers
from avalanche_vilco.ops.nms.rule import NMSRule

_GAUSSIAN, _LINEAR, _DROP = 0, 1, 2
_METHODS = {"gaussian": _GAUSSIAN, "linear": _LINEAR}
_ONE, _ZERO = np.float32(1), np.float32(0)


def pick(groups: Groups, rule: NMSRule, indices: Integers, scores: Floats) -> None:
    """As :func:`avalanche_vilco.ops.nms.numpy_loop.pick`."""
    if rule.per_label == 0:
        return
    _pick(
        *groups,
        _METHODS.get(rule.method, _DROP),
        float(rule.sigma),
        np.float32(rule.threshold),
        np.float32(rule.floor),
        int(rule.per_label or len(groups.places)),
        indices,
        scores,
    )


def compiled(function: Callable) -> Callable:
    """Compile on first call; keep the code on disk where there is a folder for it.

    :param function: of arrays and numbers.
    """
    options = {"error_model": "numpy", "nogil": True}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:
        return njit(**options)(function)


@compiled
def _choose(
    current: Floats, places: Integers, best: Integers, first: int, last: int
) -> int:
    """Group of the highest score, of equal ones that of the lowest place, else -1."""
    chosen = -1
    for member in range(first, last):
        leader, rival = best[member], best[chosen]
        if leader < 0:
            continue
        level = chosen >= 0 and current[leader] == current[rival]
        if (
            chosen < 0
            or current[leader] > current[rival]
            or (level and places[leader] < places[rival])
        ):
            chosen = member
    return chosen


@compiled
def _suppress(  # noqa: PLR0913 - a compiled loop takes arrays and numbers one by one
    starts: Floats,
    ends: Floats,
    lengths: Floats,
    current: Floats,
    first: int,
    last: int,
    picked: int,
    method: int,
    sigma: float,
    threshold: np.float32,
    floor: np.float32,
) -> int:
    """Lower the scores of a group after a pick; where its next is, -1 if none."""
    following, highest = -1, _ZERO
    for other in range(first, last):
        score = current[other]
        if score == 0:
            continue
        overlap = min(ends[other], ends[picked]) - max(starts[other], starts[picked])
        if overlap > 0:
            tiou = overlap / (lengths[other] + lengths[picked] - overlap)
            if method == _GAUSSIAN:
                wide = np.float64(tiou)
                score *= np.float32(math.exp(wide * wide / -sigma))
            elif tiou >= threshold:
                score *= _ONE - tiou if method == _LINEAR else _ZERO
            if score < floor:
                score = _ZERO
            current[other] = score
        if score > highest:
            following, highest = other, score
    return following


@compiled
def _pick(  # noqa: PLR0913 - a compiled loop takes arrays and numbers one by one
    starts: Floats,
    ends: Floats,
    lengths: Floats,
    current: Floats,
    places: Integers,
    bounds: Integers,
    best: Integers,
    clips: Integers,
    method: int,
    sigma: float,
    threshold: np.float32,
    floor: np.float32,
    per_label: int,
    indices: Integers,
    scores: Floats,
) -> None:
    left = np.full(len(best), per_label)
    for clip in range(len(clips) - 1):
        for place in range(indices.shape[1]):
            group = _choose(current, places, best, clips[clip], clips[clip + 1])
            if group < 0:
                break
            picked = best[group]
            indices[clip, place] = places[picked]
            scores[clip, place] = current[picked]
            current[picked] = 0
            best[group] = -1
            left[group] -= 1
            if left[group] > 0:
                best[group] = _suppress(
                    starts,
                    ends,
                    lengths,
                    current,
                    bounds[group],
                    bounds[group + 1],
                    picked,
                    method,
                    sigma,
                    threshold,
                    floor,
                )
