"""One pick after the other, for a compiler. Needs numba."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numba import njit

from avalanche_vilco.ops.nms.groups import Floats, Integers

GAUSSIAN, LINEAR, DROP = 0, 1, 2

_ONE, _ZERO = np.float32(1), np.float32(0)


def compiled(function: Callable) -> Callable:
    """Compile on first call; keep the code on disk where there is a folder for it."""
    options = {"error_model": "numpy", "nogil": True}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:
        return njit(**options)(function)


def _choose(
    current: Floats, places: Integers, best: Integers, first: int, last: int
) -> int:
    """Group of the highest score, of equal ones that of the lowest place, else -1."""
    chosen = -1
    for member in range(first, last):
        spot, rival = best[member], best[chosen]
        if spot < 0:
            continue
        level = chosen >= 0 and current[spot] == current[rival]
        if (
            chosen < 0
            or current[spot] > current[rival]
            or (level and places[spot] < places[rival])
        ):
            chosen = member
    return chosen


def _suppress(
    starts: Floats,
    ends: Floats,
    lengths: Floats,
    current: Floats,
    first: int,
    last: int,
    spot: int,
    method: int,
    sigma: float,
    threshold: np.float32,
    floor: np.float32,
) -> int:
    """Lower the scores of a group after a pick; the spot of its next, -1 if none."""
    following, highest = -1, _ZERO
    for other in range(first, last):
        score = current[other]
        if score == 0:
            continue
        overlap = min(ends[other], ends[spot]) - max(starts[other], starts[spot])
        if overlap > 0:
            tiou = overlap / (lengths[other] + lengths[spot] - overlap)
            if method == GAUSSIAN:
                wide = np.float64(tiou)
                score *= np.float32(math.exp(wide * wide / -sigma))
            elif tiou >= threshold:
                score *= _ONE - tiou if method == LINEAR else _ZERO
            if score < floor:
                score = _ZERO
            current[other] = score
        if score > highest:
            following, highest = other, score
    return following


choose = compiled(_choose)
suppress = compiled(_suppress)


def _pick(
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
    room = np.full(len(best), per_label)
    for clip in range(len(clips) - 1):
        for place in range(indices.shape[1]):
            chosen = choose(current, places, best, clips[clip], clips[clip + 1])
            if chosen < 0:
                break
            spot = best[chosen]
            indices[clip, place] = places[spot]
            scores[clip, place] = current[spot]
            current[spot] = 0
            best[chosen] = -1
            room[chosen] -= 1
            if room[chosen] > 0:
                best[chosen] = suppress(
                    starts,
                    ends,
                    lengths,
                    current,
                    bounds[chosen],
                    bounds[chosen + 1],
                    spot,
                    method,
                    sigma,
                    threshold,
                    floor,
                )


pick = compiled(_pick)
