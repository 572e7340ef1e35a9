"""Rules of the public evaluators, by name, and what all metrics do to ground truth."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Reference = Literal["ego4d", "actionformer", "vilco"]

# Rounding of one float64 division is near 1e-16; seconds as large as 1e6 keep a
# tIoU that is nominally at the threshold within 1e-9 of it.
TIOU_TOLERANCE = 1e-9

# Windows of one label closer than this at both ends are one annotation.
DUPLICATE_SEC = 1e-3


@dataclass(frozen=True)
class TargetRule:
    """Which ground-truth windows and labels an evaluator looks at.

    :param drops_duplicates: True counts windows of one clip and label that are equal
        to within ``DUPLICATE_SEC`` once, False each time.
    :param drops_short: True ignores windows shorter than ``DUPLICATE_SEC``.
    :param compacts_labels: True renumbers the labels of the ground truth from 0 and
        leaves other predicted labels as they are, so that these may collide.
    """

    drops_duplicates: bool = True
    drops_short: bool = False
    compacts_labels: bool = False


_TARGET_RULES: dict[Reference | None, TargetRule] = {
    None: TargetRule(),
    "ego4d": TargetRule(drops_duplicates=False),
    "vilco": TargetRule(drops_duplicates=False),
    "actionformer": TargetRule(drops_short=True, compacts_labels=True),
}


def check_reference(reference: Reference | None) -> None:
    """Refuse names of evaluators that are not known.

    :param reference: name of a public evaluator, None for our own rules.
    :raises ValueError: if there is no such evaluator.
    """
    if reference not in _TARGET_RULES:
        names = ", ".join(repr(name) for name in _TARGET_RULES)
        raise ValueError(f"expected reference of {names} but got {reference!r}")


def counted_labels(
    target_segments: Tensor,
    target_labels: Tensor,
    *,
    reference: Reference | None = None,
) -> Tensor:
    """Labels of the ground-truth windows that count, -1 for those that do not.

    By default, windows of one clip and label that are equal to within 1 ms count
    once: the first stays.

    :param target_segments: windows in seconds, ``(B, N, 2)`` as (start, end).
    :param target_labels: their labels, ``(B, N)`` integers, -1 marks padding.
    :param reference: public evaluator whose rule to follow, None for ours.
    :return: labels, ``(B, N)``.
    :raises ValueError: if there is no such evaluator.
    """
    check_reference(reference)
    rule = _TARGET_RULES[reference]
    if rule.drops_short:
        lengths = target_segments[..., 1] - target_segments[..., 0]
        target_labels = target_labels.masked_fill(lengths < DUPLICATE_SEC, -1)
    if rule.drops_duplicates:
        repeats = _repeats(target_segments, target_labels)
        target_labels = target_labels.masked_fill(repeats, -1)
    return target_labels


def matching_labels(
    labels: Tensor, target_labels: Tensor, *, reference: Reference | None = None
) -> tuple[Tensor, Tensor]:
    """Predicted and ground-truth labels as an evaluator compares them.

    :param labels: predicted labels, integers of any shape, -1 marks padding.
    :param target_labels: labels of the ground truth that counts, integers.
    :param reference: public evaluator whose rule to follow, None for ours.
    :return: both, unchanged unless the evaluator renumbers.
    """
    if not _TARGET_RULES[reference].compacts_labels:
        return labels, target_labels
    known = target_labels[target_labels >= 0].unique()
    return _compacted(labels, known), _compacted(target_labels, known)


def _repeats(segments: Tensor, labels: Tensor) -> Tensor:
    """True for windows that an earlier one of their clip and label equals."""
    same = labels.unsqueeze(2) == labels.unsqueeze(1)
    for end in range(2):
        ends = segments[..., end]
        same &= (ends.unsqueeze(2) - ends.unsqueeze(1)).abs() <= DUPLICATE_SEC
    return same.tril(diagonal=-1).any(dim=2)


def _compacted(labels: Tensor, known: Tensor) -> Tensor:
    place = torch.searchsorted(known, labels)
    found = known[place.clamp(max=len(known) - 1)] == labels if len(known) else False
    return torch.where(torch.as_tensor(found, device=labels.device), place, labels)
