"""Which windows of an annotation file are usable, said once and counted."""

from __future__ import annotations

from avalanche_vilco.core.report import Tally


def unusable_window(start: float, end: float, limit: float) -> str | None:
    """Why a window is left out; None if it is usable.

    :param start: in seconds.
    :param end: in seconds.
    :param limit: length of the clip; infinity where windows are kept as they are.
    """
    if end < start:
        return "end before start"
    if end == start:
        return "zero length"
    if start >= limit or end <= 0:
        return "outside the clip"
    return None


def count_usable(start: float, end: float, limit: float, tally: Tally) -> None:
    """Count a usable window as kept, or as clipped at one end.

    :param start: in seconds.
    :param end: in seconds.
    :param limit: see :func:`unusable_window`.
    :param tally: of windows.
    """
    if start < 0:
        tally.change("start before the clip, clipped to 0")
    elif end > limit:
        tally.change("overhangs the clip's end, clipped to it")
    else:
        tally.kept += 1
