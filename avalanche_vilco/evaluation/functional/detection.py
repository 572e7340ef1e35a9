"""Mean average precision of scored windows (temporal action detection).

Matching is local to a clip and its labels, ranking is global: a batch needs only to
tell which predictions hit at which threshold, and average precision follows from
labels, scores and hits of all batches together.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from avalanche_vilco.evaluation.functional.checks import check_shapes, check_tiou
from avalanche_vilco.evaluation.functional.references import (
    TIOU_TOLERANCE,
    Reference,
    check_reference,
    counted_labels,
    matching_labels,
)
from avalanche_vilco.ops.segments import tiou as exact_tiou

EGO4D_TIOU = (0.1, 0.2, 0.3, 0.4, 0.5)
COCO_TIOU = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)


class DetectionAP(NamedTuple):
    """Average precision of each label of the ground truth.

    :param ap: float64 ``(C, T)`` in [0, 1], a row per label, a column per threshold.
    :param labels: the labels, ``(C,)`` ascending.
    """

    ap: Tensor
    labels: Tensor

    @property
    def mean_ap(self) -> Tensor:
        """mAP per threshold, float64 ``(T,)``, NaN without ground truth."""
        return self.ap.mean(dim=0)


def detection_map(
    segments: Tensor,
    scores: Tensor,
    labels: Tensor,
    target_segments: Tensor,
    target_labels: Tensor,
    *,
    tiou: Sequence[float] = EGO4D_TIOU,
    reference: Reference | None = None,
) -> Tensor:
    """Mean over the labels of the ground truth of :func:`detection_ap`.

    The arguments are those of :func:`detection_hits`.

    :return: mAP per threshold, float64 ``(len(tiou),)`` in [0, 1]; NaN if there is no
        ground truth.
    """
    return detection_ap(
        segments,
        scores,
        labels,
        target_segments,
        target_labels,
        tiou=tiou,
        reference=reference,
    ).mean_ap


def detection_ap(
    segments: Tensor,
    scores: Tensor,
    labels: Tensor,
    target_segments: Tensor,
    target_labels: Tensor,
    *,
    tiou: Sequence[float] = EGO4D_TIOU,
    reference: Reference | None = None,
) -> DetectionAP:
    """Average precision of each label, all clips of the batch pooled.

    A label of the ground truth that is never predicted has 0 and stays in the mean;
    predictions of labels without ground truth are ignored.

    The arguments are those of :func:`detection_hits`.

    :return: average precision by label and threshold.
    """
    hits = detection_hits(
        segments,
        scores,
        labels,
        target_segments,
        target_labels,
        tiou=tiou,
        reference=reference,
    )
    counted = counted_labels(target_segments, target_labels, reference=reference)
    return pooled_ap(
        scores.flatten(),
        labels.flatten(),
        hits.flatten(0, 1),
        counted.flatten(),
        reference=reference,
    )


def detection_hits(
    segments: Tensor,
    scores: Tensor,
    labels: Tensor,
    target_segments: Tensor,
    target_labels: Tensor,
    *,
    tiou: Sequence[float] = EGO4D_TIOU,
    reference: Reference | None = None,
) -> Tensor:
    """Tell which predictions are true positives, per threshold.

    Best score first, every prediction takes the free ground-truth window of its clip
    and label with the highest tIoU, if that reaches the threshold.

    Scores that tie keep the order given and NaN comes last; of windows that tie in
    tIoU, the first is taken. Windows that are reversed, of length zero or not finite
    never hit. ``docs/metrics.md`` lists where the public evaluators differ.

    On a GPU nothing waits for the device and shapes depend on the arguments only.

    :param segments: predicted windows in seconds, ``(B, M, 2)`` as (start, end).
    :param scores: their scores, ``(B, M)``.
    :param labels: their labels, ``(B, M)`` integers, -1 marks padding.
    :param target_segments: ground-truth windows in seconds, ``(B, N, 2)``.
    :param target_labels: their labels, ``(B, N)`` integers, -1 marks padding.
    :param tiou: thresholds in (0, 1].
    :param reference: public evaluator to reproduce, None for our own rules.
    :return: bool ``(B, M, len(tiou))``, False for padding.
    :raises ValueError: if a shape, ``tiou`` or ``reference`` is out of range.
    """
    check_tiou(tiou)
    check_reference(reference)
    check_shapes(segments, scores, labels, target_segments, target_labels)
    target_labels = counted_labels(target_segments, target_labels, reference=reference)
    labels, target_labels = matching_labels(labels, target_labels, reference=reference)
    match = _match_padded if scores.is_cuda else _match_pairs
    return match(
        segments.double(),
        _sortable(scores, reference),
        labels,
        target_segments.double(),
        target_labels,
        tiou,
        reference,
    )


def pooled_ap(
    scores: Tensor,
    labels: Tensor,
    hits: Tensor,
    target_labels: Tensor,
    *,
    reference: Reference | None = None,
) -> DetectionAP:
    """Average precision of predictions whose hits are known.

    It is the area under the highest precision at or beyond each recall.

    :param scores: scores of all predictions, ``(P,)``.
    :param labels: their labels, ``(P,)``, -1 marks padding.
    :param hits: True for true positives, ``(P, T)``.
    :param target_labels: labels of the ground-truth windows that count, ``(G,)``, -1
        marks padding.
    :param reference: public evaluator to reproduce, None for our own rules.
    :return: average precision by label and threshold.
    """
    names = target_labels[target_labels >= 0].unique()
    labels, target_labels = matching_labels(labels, target_labels, reference=reference)
    known, n_targets = target_labels[target_labels >= 0].unique(return_counts=True)
    classes, counted = _class_of(labels, known)
    order, rank = _rank_in_class(
        _sortable(scores, reference), classes, counted, reference
    )
    classes, hits = classes[order], hits[order]
    columns = [
        _average_precision(classes[hit], rank[hit], len(known)) for hit in hits.unbind(1)
    ]
    return DetectionAP(torch.stack(columns, dim=1) / n_targets.unsqueeze(1), names)


def _average_precision(classes: Tensor, rank: Tensor, n_classes: int) -> Tensor:
    """Sum over true positives of the best precision from each on, per class.

    True positives come by class, best first; ``rank`` counts from 1 in their class.
    """
    found = torch.bincount(classes, minlength=n_classes)
    before = (found.cumsum(0) - found)[classes]
    position = torch.arange(1, len(rank) + 1, device=rank.device)
    precision = (position - before).double() / rank
    # Precision is at most 1, so 2 per class keeps a running maximum in its class.
    backwards = (precision - 2.0 * classes).flip(0)
    best = precision.flip(0)[backwards.cummax(0).indices].flip(0)
    total = torch.zeros(n_classes, dtype=torch.float64, device=rank.device)
    return total.index_add_(0, classes, best)


def _rank_in_class(
    scores: Tensor, classes: Tensor, counted: Tensor, reference: Reference | None
) -> tuple[Tensor, Tensor]:
    """Order of the counted predictions by class and score; rank from 1 in the class."""
    order = counted.nonzero().squeeze(1)
    order = order[_best_first(scores[order], reference)]
    order = order[classes[order].sort(stable=True).indices]
    ordered = classes[order]
    n_classes = int(ordered[-1]) + 1 if len(ordered) else 0
    count = torch.bincount(ordered, minlength=n_classes)
    position = torch.arange(1, len(order) + 1, device=order.device)
    return order, position - (count.cumsum(0) - count)[ordered]


def _class_of(labels: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """Position of labels in the ascending ``known``, and whether they are there."""
    if not len(known):
        return torch.zeros_like(labels), torch.zeros_like(labels, dtype=torch.bool)
    place = torch.searchsorted(known, labels).clamp_(max=len(known) - 1)
    return place, known[place] == labels


def _sortable(scores: Tensor, reference: Reference | None) -> Tensor:
    # NumPy's argsort puts NaN last, and the public evaluators read it from the end.
    rank_of_nan = -torch.inf if reference is None else torch.inf
    if not scores.is_floating_point():
        return scores
    return scores.masked_fill(scores.isnan(), rank_of_nan)


def _best_first(values: Tensor, reference: Reference | None) -> Tensor:
    """Order of the last dimension; ties as ``argsort()[::-1]`` in the references."""
    if reference is None:
        return values.argsort(dim=-1, descending=True, stable=True)
    order = values.flip(-1).argsort(dim=-1, descending=True, stable=True)
    return values.shape[-1] - 1 - order


def _tiou(a: Tensor, b: Tensor, reference: Reference | None) -> Tensor:
    """tIoU of predictions ``a`` and targets ``b``, as the evaluator rounds it."""
    if reference is None:
        return exact_tiou(a, b)
    start, end = torch.maximum(a[..., 0], b[..., 0]), torch.minimum(a[..., 1], b[..., 1])
    overlap = (end - start).clamp(min=0)
    union = (b[..., 1] - b[..., 0]) + (a[..., 1] - a[..., 0]) - overlap
    # 0 / 0 is not below any threshold and sorts last: it beats every other window.
    return (overlap / union).nan_to_num(nan=torch.inf)


def _levels(tiou: Sequence[float], reference: Reference | None) -> list[float]:
    tolerance = TIOU_TOLERANCE if reference is None else 0.0
    return [level - tolerance for level in tiou]


def _match_pairs(
    segments: Tensor,
    scores: Tensor,
    labels: Tensor,
    target_segments: Tensor,
    target_labels: Tensor,
    tiou: Sequence[float],
    reference: Reference | None,
) -> Tensor:
    """Hits ``(B, M, T)`` from the pairs of one clip and label only."""
    hits = torch.zeros(labels.numel(), len(tiou), dtype=torch.bool)
    known = target_labels[target_labels >= 0].unique()
    chosen, pair_prediction, pair_target = _pairs(
        labels, target_labels, known, scores, reference
    )
    levels = _levels(tiou, reference)
    windows = segments.flatten(0, 1)[chosen]
    targets = target_segments.flatten(0, 1)
    overlap = _tiou(windows[pair_prediction], targets[pair_target], reference)
    near = overlap >= min(levels)
    overlap, pair_prediction = overlap[near], pair_prediction[near]
    pair_target = pair_target[near]
    order = _best_first(overlap, reference)
    order = order[pair_prediction[order].sort(stable=True).indices]
    overlap, pair_prediction = overlap[order], pair_prediction[order]
    pair_target = pair_target[order]
    for column, level in enumerate(levels):
        at = overlap >= level
        winners = _winners(pair_prediction[at], pair_target[at], len(targets))
        hits[chosen[winners], column] = True
    return hits.view(*labels.shape, len(tiou))


def _pairs(
    labels: Tensor,
    target_labels: Tensor,
    known: Tensor,
    scores: Tensor,
    reference: Reference | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Predictions that have a target, best first, and all pairs of both.

    :return: flat places of the predictions; for each pair, the place in that list and
        the flat place of the target, by prediction and target.
    """
    n_groups = len(target_labels) * max(len(known), 1)
    group, counted = _group_of(labels, known)
    target_group, asked = _group_of(target_labels, known)
    targets = asked.nonzero().squeeze(1)
    targets = targets[target_group[targets].argsort(stable=True)]
    per_group = torch.bincount(target_group[targets], minlength=n_groups)
    first = per_group.cumsum(0) - per_group

    chosen = (counted & (per_group[group] > 0)).nonzero().squeeze(1)
    chosen = chosen[_best_first(scores.flatten()[chosen], reference)]
    group = group[chosen]
    n_pairs = per_group[group]
    prediction = torch.arange(len(chosen)).repeat_interleave(n_pairs)
    place = first[group] - (n_pairs.cumsum(0) - n_pairs)
    target = targets[place[prediction] + torch.arange(len(prediction))]
    return chosen, prediction, target


def _group_of(labels: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """Number of each (clip, label), flat, and whether the label is known."""
    classes, is_known = _class_of(labels, known)
    clip = torch.arange(len(labels)).unsqueeze(1) * max(len(known), 1)
    return (clip + classes).flatten(), is_known.flatten()


def _winners(prediction: Tensor, target: Tensor, n_targets: int) -> Tensor:
    """Predictions that end up with a target.

    Pairs come by prediction, best score first, then by preference. In every round each
    prediction claims the target it likes best of those that no better prediction
    claimed in the round before. The k-th best winner is settled after k rounds at the
    latest, so a round without change is the end.
    """
    nobody = torch.iinfo(torch.long).max
    holder = torch.full((n_targets,), nobody)
    while True:
        open_pairs = (holder[target] >= prediction).nonzero().squeeze(1)
        claiming, claimed = prediction[open_pairs], target[open_pairs]
        is_first = torch.ones(len(claiming), dtype=torch.bool)
        is_first[1:] = claiming[1:] != claiming[:-1]
        claiming, claimed = claiming[is_first], claimed[is_first]
        after = torch.full_like(holder, nobody)
        after.scatter_reduce_(0, claimed, claiming, "amin")
        if torch.equal(after, holder):
            return claiming[holder[claimed] == claiming]
        holder = after


def _match_padded(
    segments: Tensor,
    scores: Tensor,
    labels: Tensor,
    target_segments: Tensor,
    target_labels: Tensor,
    tiou: Sequence[float],
    reference: Reference | None,
) -> Tensor:
    """Hits ``(B, M, T)`` by the rounds of :func:`_winners`, in fixed shapes."""
    n_targets = target_labels.shape[1]
    if n_targets == 0:
        return torch.zeros_like(labels, dtype=torch.bool)[..., None].repeat(
            1, 1, len(tiou)
        )
    overlap = _tiou(segments.unsqueeze(2), target_segments.unsqueeze(1), reference)
    same = labels.unsqueeze(2) == target_labels.unsqueeze(1)
    same &= (target_labels >= 0).unsqueeze(1)
    overlap = torch.where(same, overlap, -1.0)
    reaches = torch.stack([overlap >= level for level in _levels(tiou, reference)])
    liking = _best_first(overlap, reference).argsort(dim=2)  # 0 for the favourite
    rank = _best_first(scores, reference).argsort(dim=1).unsqueeze(2)
    nobody = labels.shape[1] + n_targets
    holder = reaches.new_full((len(tiou), len(labels), 1, n_targets), nobody, dtype=torch.long)
    claims = reaches
    for _ in range(n_targets):
        open_to = torch.where(reaches & (holder >= rank), liking, nobody)
        favourite = open_to.amin(dim=3, keepdim=True)
        claims = (open_to == favourite) & (favourite < nobody)
        holder = torch.where(claims, rank, nobody).amin(dim=2, keepdim=True)
    return (claims & (holder == rank)).any(dim=3).permute(1, 2, 0)
