"""Recall of ground-truth windows within the best predictions of their query."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from avalanche_vilco.evaluation.functional.checks import Clips, check_shapes, check_tiou
from avalanche_vilco.evaluation.functional.order import best_first
from avalanche_vilco.evaluation.functional.overlap import hull_tiou, summed_tiou
from avalanche_vilco.evaluation.functional.pairs import (
    by_pieces,
    matching_labels,
    pairs_of,
    rank_in_groups,
    select,
)
from avalanche_vilco.evaluation.functional.references import (
    Reference,
    check_reference,
    counted_labels,
    tolerance_of,
)
from avalanche_vilco.ops.segments import tiou as tiou_of

Budget = Literal["per_gt", "fixed"]

_NEVER = 1 << 40  # a rank beyond every budget


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
    reference: Reference | None = None,
) -> Tensor:
    """Tell which ground-truth windows are found, per budget and threshold.

    A window counts as found if one of the first predictions *of its label in its
    clip* reaches the threshold; one prediction may find several windows. Predictions
    are ranked by score, of those that tie the one that starts, then ends, earlier is
    first, and a NaN score comes last.
    A tIoU may fall short of the threshold by ``TIOU_TOLERANCE``, because one of
    nominally 0.3 may compute as 0.29999999999999993.
    Predicted windows that are reversed or not finite keep their rank and find
    nothing. Ground-truth windows of one clip and label that are equal to within 1 ms
    count once. Label -1 marks padding on both sides.

    ``reference="ego4d"`` and ``"vilco"`` ask for a tIoU above the threshold, take
    predictions in the order given and count every window of the ground truth.
    ``"actionformer"`` ranks by score with the later of a tie first, counts equal
    windows once and those shorter than 1 ms never, and mistakes labels as said in
    ``docs/metrics.md``.

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
    :param reference: public evaluator to reproduce, None for our own rules.
    :return: bool ``(B, N, len(k), len(tiou))``, False for padding and repeats, on the
        device of the inputs.
    :raises ValueError: if a shape or an option is out of range.
    """
    clips = Clips(segments, scores, labels, target_segments, target_labels)
    return _hits_and_targets(clips, k, tiou, budget, reference)[0]


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
    reference: Reference | None = None,
) -> Tensor:
    """Share of ground-truth windows found, over all clips and labels together.

    The arguments are those of :func:`recall_hits`. ``reference="actionformer"`` gives
    the mean of the recalls of the labels instead.

    :return: float64 ``(len(k), len(tiou))`` in [0, 1]; NaN if there is no ground
        truth.
    """
    clips = Clips(segments, scores, labels, target_segments, target_labels)
    hits, counted = _hits_and_targets(clips, k, tiou, budget, reference)
    if reference == "actionformer":
        return grouped_recall(hits, counted).recall.mean(dim=0)
    return hits.sum(dim=(0, 1)).double() / (counted >= 0).sum()


class GroupedRecall(NamedTuple):
    """Recall of each group of ground-truth windows.

    :param recall: float64 ``(G, len(k), len(tiou))`` in [0, 1].
    :param groups: numbers of the groups, ``(G,)`` ascending.
    :param n_windows: ground-truth windows in each, ``(G,)``.
    """

    recall: Tensor
    groups: Tensor
    n_windows: Tensor


def grouped_recall(hits: Tensor, groups: Tensor) -> GroupedRecall:
    """Recall per label, query, template, clip or whatever else numbers the windows.

    :param hits: what :func:`recall_hits` gave, ``(B, N, len(k), len(tiou))``.
    :param groups: group of each ground-truth window, ``(B, N)`` integers, -1 for
        windows that do not count;
        :func:`~avalanche_vilco.evaluation.functional.references.counted_labels`
        gives the labels with repeats left out.
    :return: recall by group.
    :raises ValueError: if the shapes do not fit.
    """
    if hits.shape[:2] != groups.shape:
        raise ValueError(
            f"expected groups of shape {tuple(hits.shape[:2])} but got "
            f"{tuple(groups.shape)}"
        )
    counted = groups >= 0
    names, place, n_windows = groups[counted].unique(
        return_inverse=True, return_counts=True
    )
    found = hits.new_zeros((len(names), *hits.shape[2:]), dtype=torch.float64)
    found.index_add_(0, place, hits[counted].double())
    return GroupedRecall(found / n_windows.view(-1, 1, 1), names, n_windows)


def top1_tiou(
    segments: Tensor, scores: Tensor, target_segments: Tensor, *, sort: bool = True
) -> Tensor:
    """TIoU of the best prediction of each query that has one ground-truth window.

    :param segments: predicted windows in seconds, ``(Q, M, 2)``.
    :param scores: their scores, ``(Q, M)``; padding must not be first.
    :param target_segments: the windows asked for, ``(Q, 2)``.
    :param sort: False takes the first prediction, True the one of highest score, of
        those that tie the one that starts, then ends, earliest.
    :return: tIoU, float64 ``(Q,)``; 0 without predictions.
    """
    if segments.shape[1] == 0:
        return torch.zeros(len(segments), dtype=torch.float64, device=segments.device)
    if sort:
        segments, _ = _ranked(segments, scores, torch.zeros_like(scores), None)
    return tiou_of(segments[:, 0].double(), target_segments.double())


def check_recall_options(
    k: Sequence[int],
    tiou: Sequence[float],
    budget: Budget,
    reference: Reference | None = None,
) -> None:
    """Refuse budgets and thresholds that no recall is defined for.

    :param k: numbers of predictions to look at.
    :param tiou: thresholds.
    :param budget: how ``k`` is counted.
    :param reference: name of a public evaluator.
    :raises ValueError: if one is empty or out of range.
    """
    if not k or any(n < 1 for n in k):
        raise ValueError(f"expected k of at least one number >= 1 but got {k}")
    check_tiou(tiou)
    check_reference(reference)
    if budget not in ("per_gt", "fixed"):
        raise ValueError(f"expected budget 'per_gt' or 'fixed' but got {budget!r}")


class _Rule(NamedTuple):
    """What a prediction must be and reach to find a window."""

    k: tuple[int, ...]
    levels: list[float]
    budget: Budget
    reference: Reference | None

    @property
    def is_official(self) -> bool:
        """Whether it asks for more than the threshold, of predictions as given."""
        return self.reference in ("ego4d", "vilco")

    def overlap(self, *ends: Tensor) -> Tensor:
        """TIoU of windows by what :meth:`ends` gave."""
        if self.reference == "actionformer":
            return summed_tiou(*ends).nan_to_num_(nan=0.0)
        return hull_tiou(*ends)

    def ends(self, segments: Tensor) -> tuple[Tensor, Tensor]:
        """Starts and ends in float64; inverted, of windows that may overlap none."""
        start, end = segments.double().unbind(2)
        if self.reference == "actionformer":
            return start, end
        is_proper = (end > start) & (start > -torch.inf) & (end < torch.inf)
        return start.where(is_proper, torch.inf), end.where(is_proper, -torch.inf)

    def is_reached(self, overlap: Tensor, level: float) -> Tensor:
        """Where ``overlap`` is high enough; windows that only touch never are."""
        if self.is_official:
            return overlap > level
        return overlap >= max(level, math.ulp(0.0))


def _hits_and_targets(
    clips: Clips,
    k: Sequence[int],
    tiou: Sequence[float],
    budget: Budget,
    reference: Reference | None,
) -> tuple[Tensor, Tensor]:
    """Hits ``(B, N, len(k), T)`` and labels ``(B, N)`` of the windows that count."""
    check_recall_options(k, tiou, budget, reference)
    check_shapes(clips)
    counted = by_pieces(
        partial(counted_labels, reference=reference),
        clips.target_segments,
        clips.target_labels,
    )
    labels, targets = matching_labels(clips.labels, counted, reference)
    clips = clips._replace(labels=labels, target_labels=targets)
    rule = _Rule(
        tuple(k), [level - tolerance_of(reference) for level in tiou], budget, reference
    )
    return by_pieces(lambda *piece: _hits(Clips(*piece), rule), *clips), counted


def _hits(clips: Clips, rule: _Rule) -> Tensor:
    """Hits ``(B, N, len(k), T)`` of some clips.

    There are two ways to rank. Pairs are twice as fast as tables on the CPU, but their
    number must be known; tables have fixed shapes, so that no GPU has to be waited for.
    """
    segments, scores, labels, _, target_labels = clips
    if not rule.is_official:
        segments, labels = _ranked(segments, scores, labels, rule.reference)
    clips = clips._replace(segments=segments, labels=labels)
    rank = (_first_rank_pairs if labels.is_cpu else _first_rank_padded)(clips, rule)
    # Predictions that k = 1 looks at for each ground-truth window, (B, N)
    slots = torch.ones_like(target_labels)
    if rule.budget == "per_gt":
        slots = (target_labels.unsqueeze(2) == target_labels.unsqueeze(1)).sum(dim=2)
    budgets = torch.stack([slots * n for n in rule.k], dim=2)
    # (B, N, 1, T) and (B, N, len(k), 1) -> (B, N, len(k), T)
    return rank.unsqueeze(2) < budgets.unsqueeze(3)


def _ranked(
    segments: Tensor, scores: Tensor, labels: Tensor, reference: Reference | None
) -> tuple[Tensor, Tensor]:
    content = segments.unbind(2)
    order = best_first(scores, reference, content=content, counted=labels >= 0)
    return segments.take_along_dim(order.unsqueeze(2), 1), labels.gather(1, order)


def _first_rank_pairs(clips: Clips, rule: _Rule) -> Tensor:
    """Rank, in its label, of the first prediction that finds each window at each level.

    :return: ``(B, N, T)``, a very high number where no prediction does.
    """
    target_labels = clips.target_labels
    prediction, target, group = pairs_of(clips.labels, target_labels)
    overlap = rule.overlap(
        *select(prediction, *(end.flatten() for end in rule.ends(clips.segments))),
        *select(target, *(end.flatten() for end in rule.ends(clips.target_segments))),
    )
    near = rule.is_reached(overlap, min(rule.levels)).nonzero().squeeze(1)
    overlap, prediction, target = select(near, overlap, prediction, target)
    rank = rank_in_groups(group).index_select(0, prediction)
    first = torch.full((len(rule.levels), target_labels.numel()), _NEVER)
    for row, level in zip(first, rule.levels, strict=True):
        at = rule.is_reached(overlap, level).nonzero().squeeze(1)
        found, ranks = select(at, target, rank)
        row.scatter_reduce_(0, found, ranks, "amin")
    # (T, B * N) -> (B, N, T)
    return first.T.view(*target_labels.shape, len(rule.levels))


def _first_rank_padded(clips: Clips, rule: _Rule) -> Tensor:
    """Rank as :func:`_first_rank_pairs` does, in fixed shapes."""
    labels, target_labels = clips.labels, clips.target_labels
    # (B, N, 1) and (B, 1, M) -> (B, N, M)
    same = target_labels.unsqueeze(2) == labels.unsqueeze(1)
    same &= (target_labels >= 0).unsqueeze(2)
    overlap = rule.overlap(
        *(end.unsqueeze(1) for end in rule.ends(clips.segments)),
        *(end.unsqueeze(2) for end in rule.ends(clips.target_segments)),
    )
    rank = F.pad(rank_in_groups(labels), (0, 1), value=_NEVER).unsqueeze(1)
    ranks = [
        # One more prediction that finds nothing, so that a minimum exists without any.
        torch.where(F.pad(same & rule.is_reached(overlap, level), (0, 1)), rank, _NEVER)
        for level in rule.levels
    ]
    return torch.stack([each.amin(dim=2) for each in ranks], dim=2)
