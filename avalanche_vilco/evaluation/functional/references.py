"""Rules of the public evaluators, by name, and what all metrics do to ground truth."""

from typing import Literal, get_args

import torch
from torch import Tensor

Reference = Literal["ego4d", "vilco", "actionformer"]

# Rounding of one float64 division is near 1e-16; seconds as large as 1e6 keep a
# tIoU that is nominally at the threshold within 1e-9 of it.
TIOU_TOLERANCE = 1e-9

# Windows of one label closer than this at both ends are one annotation.
DUPLICATE_SEC = 1e-3


def tolerance_of(reference: Reference | None) -> float:
    """By how much a tIoU may fall short of its threshold.

    :param reference: public evaluator to reproduce, None for our own rules.
    """
    return TIOU_TOLERANCE if reference is None else 0.0


def check_reference(reference: Reference | None) -> None:
    """Refuse names of evaluators that are not known.

    :param reference: name of a public evaluator, None for our own rules.
    :raises ValueError: if there is no such evaluator.
    """
    known = (None, *get_args(Reference))
    if reference not in known:
        names = ", ".join(map(repr, known))
        raise ValueError(f"expected reference of {names} but got {reference!r}")


def counted_labels(
    target_segments: Tensor,
    target_labels: Tensor,
    *,
    reference: Reference | None = None,
) -> Tensor:
    """Labels of the ground-truth windows that count, -1 for those that do not.

    By default, windows of one clip and label that are equal to within 1 ms count
    once: the one that starts, then ends, earliest stays. "ego4d" and "vilco" count
    each of them, "actionformer" keeps the first given and leaves out windows shorter
    than 1 ms too.

    :param target_segments: windows in seconds, ``(B, N, 2)`` as (start, end).
    :param target_labels: their labels, ``(B, N)`` integers, -1 marks padding.
    :param reference: public evaluator whose rule to follow, None for ours.
    :return: labels, ``(B, N)``.
    :raises ValueError: if there is no such evaluator.
    """
    check_reference(reference)
    if reference == "actionformer":
        lengths = target_segments[..., 1] - target_segments[..., 0]
        target_labels = target_labels.masked_fill(lengths < DUPLICATE_SEC, -1)
    if reference in (None, "actionformer"):
        repeats = _repeats(target_segments, target_labels, reference)
        target_labels = target_labels.masked_fill(repeats, -1)
    return target_labels


def _repeats(segments: Tensor, labels: Tensor, reference: Reference | None) -> Tensor:
    """True for windows that an earlier one of their clip and label equals."""
    same = labels.unsqueeze(2) == labels.unsqueeze(1)
    is_later = torch.ones_like(same).tril(diagonal=-1)
    for end in (1, 0):
        ends = segments[..., end]
        shift = ends.unsqueeze(2) - ends.unsqueeze(1)
        same &= shift.abs() <= DUPLICATE_SEC
        if reference is None:
            is_later = (shift > 0) | ((shift == 0) & is_later)
    return (same & is_later).any(dim=2)
