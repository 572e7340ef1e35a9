"""Recall of ground-truth windows within the best predictions of their query."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from avalanche_vilco.ops.segments import pairwise_tiou

Budget = Literal["per_gt", "fixed"]

# Rounding of one float64 division is near 1e-16; seconds as large as 1e6 keep a
# tIoU that is nominally at the threshold within 1e-9 of it.
TIOU_TOLERANCE = 1e-9


def recall_hits(
    segments: Tensor,
    scores: Tensor,
    labels: Tensor,
    target_segments: Tensor,
    target_labels: Tensor,
    *,
    k: Sequence[int] = (1, 5),
    tiou: Sequence[float] = (0.3, 0.5),
    budget: Budget = "per_gt",
    strict: bool = False,
    sort: bool = True,
) -> Tensor:
    """Tell which ground-truth windows are found, per budget and threshold.

    A window counts as found if one of the first predictions *of its label in its
    clip* reaches the threshold; one prediction may find several windows. Predictions
    are ranked by score, ties keep the order given and a NaN score comes last.
    Predicted windows that are reversed or not finite keep their rank and find
    nothing. Label -1 marks padding on both sides.

    ``strict=True, sort=False`` is the rule of the Ego4D evaluator: tIoU above the
    threshold, predictions in the order given.

    :param segments: predicted windows in seconds, ``(B, M, 2)`` as (start, end).
    :param scores: their scores, ``(B, M)``.
    :param labels: their labels, ``(B, M)`` integers.
    :param target_segments: ground-truth windows in seconds, ``(B, N, 2)``.
    :param target_labels: their labels, ``(B, N)`` integers.
    :param k: numbers of predictions to look at, each >= 1.
    :param tiou: thresholds in (0, 1].
    :param budget: "fixed" looks at the first k predictions (R@k), "per_gt" at the
        first k * n, where n counts the ground-truth windows of that label in that
        clip (R@kx of Ego4D).
    :param strict: True asks for tIoU > threshold, False for tIoU >= threshold less
        ``TIOU_TOLERANCE``, because a tIoU of nominally 0.3 may compute as
        0.29999999999999993.
    :param sort: False ranks predictions in the order given.
    :return: bool ``(B, N, len(k), len(tiou))``, False for padding, on the device of
        the inputs.
    :raises ValueError: if a shape, ``k``, ``tiou`` or ``budget`` is out of range.
    """
    check_recall_options(k, tiou, budget)
    _check_shapes(segments, scores, labels, target_segments, target_labels)
    if sort:
        segments, labels = _ranked(segments, scores, labels)
    asked = target_labels >= 0
    same_label = target_labels.unsqueeze(2) == labels.unsqueeze(1)
    same_label &= asked.unsqueeze(2)
    overlap = pairwise_tiou(target_segments.double(), segments.double())
    overlap = overlap.masked_fill(~same_label, 0.0)
    # One more prediction that finds nothing, so that a maximum exists without any.
    overlap = F.pad(overlap, (0, 1))
    rank = F.pad(_rank_within_label(labels), (0, 1))
    n_slots = _slots(target_labels, budget)
    best = torch.stack([_best_within(overlap, rank, n_slots * n) for n in k], dim=2)
    return torch.stack([_reaches(best, level, strict) for level in tiou], dim=3)


def moment_recall(
    segments: Tensor,
    scores: Tensor,
    labels: Tensor,
    target_segments: Tensor,
    target_labels: Tensor,
    *,
    k: Sequence[int] = (1, 5),
    tiou: Sequence[float] = (0.3, 0.5),
    budget: Budget = "per_gt",
    strict: bool = False,
    sort: bool = True,
) -> Tensor:
    """Share of ground-truth windows found, over all clips and labels together.

    The arguments are those of :func:`recall_hits`.

    :return: float64 ``(len(k), len(tiou))`` in [0, 1]; NaN if there is no ground
        truth.
    """
    hits = recall_hits(
        segments,
        scores,
        labels,
        target_segments,
        target_labels,
        k=k,
        tiou=tiou,
        budget=budget,
        strict=strict,
        sort=sort,
    )
    return hits.sum(dim=(0, 1)).double() / (target_labels >= 0).sum()


def check_recall_options(
    k: Sequence[int], tiou: Sequence[float], budget: Budget
) -> None:
    """Refuse budgets and thresholds that no recall is defined for.

    :param k: numbers of predictions to look at.
    :param tiou: thresholds.
    :param budget: how ``k`` is counted.
    :raises ValueError: if one is empty or out of range.
    """
    if not k or any(n < 1 for n in k):
        raise ValueError(f"expected k of at least one number >= 1 but got {k}")
    if not tiou or any(not 0 < level <= 1 for level in tiou):
        raise ValueError(f"expected tiou of at least one number in (0, 1], got {tiou}")
    if budget not in ("per_gt", "fixed"):
        raise ValueError(f"expected budget 'per_gt' or 'fixed' but got {budget!r}")


def _ranked(segments: Tensor, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    scores = scores.masked_fill(scores.isnan(), -torch.inf)
    order = scores.argsort(dim=1, descending=True, stable=True)
    return segments.take_along_dim(order.unsqueeze(2), 1), labels.gather(1, order)


def _rank_within_label(labels: Tensor) -> Tensor:
    """Number of earlier predictions with the same label, ``(B, M)``."""
    order = labels.argsort(dim=1, stable=True)
    grouped = labels.gather(1, order)
    position = torch.arange(labels.shape[1], device=labels.device).expand_as(labels)
    is_first = torch.ones_like(labels, dtype=torch.bool)
    is_first[:, 1:] = grouped[:, 1:] != grouped[:, :-1]
    first = torch.where(is_first, position, 0).cummax(dim=1).values
    return torch.empty_like(position).scatter(1, order, position - first)


def _slots(target_labels: Tensor, budget: Budget) -> Tensor:
    """Predictions that k = 1 looks at for each ground-truth window, ``(B, N)``."""
    if budget == "fixed":
        return torch.ones_like(target_labels)
    return (target_labels.unsqueeze(2) == target_labels.unsqueeze(1)).sum(dim=2)


def _best_within(overlap: Tensor, rank: Tensor, n_slots: Tensor) -> Tensor:
    """Highest of ``overlap`` (B, N, M) among the first ``n_slots`` (B, N) ranks."""
    within = rank.unsqueeze(1) < n_slots.unsqueeze(2)
    return overlap.masked_fill(~within, 0.0).amax(dim=2)


def _reaches(best: Tensor, level: float, strict: bool) -> Tensor:
    if strict:
        return best > level
    return (best >= level - TIOU_TOLERANCE) & (best > 0)


def _check_shapes(
    segments: Tensor,
    scores: Tensor,
    labels: Tensor,
    target_segments: Tensor,
    target_labels: Tensor,
) -> None:
    n_clips = len(target_labels)
    expected = {
        "segments": (segments, (n_clips, *labels.shape[1:], 2)),
        "scores": (scores, (n_clips, *labels.shape[1:])),
        "labels": (labels, (n_clips, *labels.shape[1:])),
        "target_segments": (target_segments, (*target_labels.shape, 2)),
    }
    for name, (value, shape) in expected.items():
        if tuple(value.shape) != shape:
            raise ValueError(
                f"expected {name} of shape {shape} but got {tuple(value.shape)}"
            )
