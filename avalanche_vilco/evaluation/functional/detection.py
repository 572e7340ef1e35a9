"""Mean average precision of scored windows (temporal action detection).

Matching is local to a clip and its labels, ranking is global: a batch needs only to
tell which predictions hit at which threshold, and average precision follows from
labels, scores and hits of all batches together.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from avalanche_vilco.evaluation.functional.checks import Clips, check_shapes, check_tiou
from avalanche_vilco.evaluation.functional.order import (
    best_first,
    by_content,
    by_number,
)
from avalanche_vilco.evaluation.functional.overlap import hull_tiou, summed_tiou
from avalanche_vilco.evaluation.functional.pairs import (
    by_pieces,
    matching_labels,
    pairs_of,
    places_in,
    select,
)
from avalanche_vilco.evaluation.functional.references import (
    Reference,
    check_reference,
    counted_labels,
    tolerance_of,
)
from avalanche_vilco.ops.segments import is_proper

EGO4D_TIOU = (0.1, 0.2, 0.3, 0.4, 0.5)
COCO_TIOU = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)


class DetectionAP(NamedTuple):
    """Average precision of each label of the ground truth; the others do not count.

    :param ap: float64 ``(C, T)`` in [0, 1], a row per label, a column per threshold.
    :param labels: the labels, ``(C,)`` ascending.
    """

    ap: Tensor
    labels: Tensor

    @property
    def mean_ap(self) -> Tensor:
        """MAP per threshold, float64 ``(T,)``, NaN without ground truth."""
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

    Of scores that tie the window that starts, then ends, earlier is first, and NaN
    comes last; of windows that tie in tIoU the earlier is taken likewise, so that no
    order of the arguments matters. Windows that are reversed, of length zero or not
    finite never hit. ``docs/metrics.md`` lists where the public evaluators differ.

    On a GPU nothing waits for the device and shapes depend on the arguments only, but
    for ``reference="actionformer"``, which has to look which labels there are.

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
    clips = Clips(segments, scores, labels, target_segments, target_labels)
    check_shapes(clips)
    target_labels = by_pieces(
        partial(counted_labels, reference=reference), target_segments, target_labels
    )
    labels, target_labels = matching_labels(labels, target_labels, reference)
    clips = clips._replace(labels=labels, target_labels=target_labels)
    levels = [level - tolerance_of(reference) for level in tiou]
    return by_pieces(lambda *piece: _match(Clips(*piece), levels, reference), *clips)


def pooled_ap(
    scores: Tensor,
    labels: Tensor,
    hits: Tensor,
    target_labels: Tensor,
    *,
    reference: Reference | None = None,
) -> DetectionAP:
    """Average precision of predictions whose hits are known.

    It is the area under the highest precision at or beyond each recall. Predictions of
    one label and score enter the ranking together: precision and recall are read after
    the last of them.

    :param scores: scores of all predictions, ``(P,)``.
    :param labels: their labels, ``(P,)``, -1 marks padding.
    :param hits: True for true positives, ``(P, T)``.
    :param target_labels: labels of the ground-truth windows that count, ``(G,)``, -1
        marks padding.
    :param reference: public evaluator to reproduce, None for our own rules.
    :return: average precision by label and threshold.
    """
    names = target_labels[target_labels >= 0].unique()
    labels, target_labels = matching_labels(labels, target_labels, reference)
    known, n_targets = target_labels[target_labels >= 0].unique(return_counts=True)
    classes = places_in(labels, known)
    ap = class_ap(scores, classes, hits, n_targets, reference=reference)
    return DetectionAP(ap, names)


def class_ap(
    scores: Tensor,
    classes: Tensor,
    hits: Tensor,
    n_targets: Tensor,
    *,
    reference: Reference | None = None,
) -> Tensor:
    """Average precision per class.

    :param scores: scores of all predictions, ``(P,)``.
    :param classes: class in 0..C-1 of each, ``(P,)``, -1 for predictions to ignore.
    :param hits: True for true positives, ``(P, T)``.
    :param n_targets: number of ground-truth items of each class, ``(C,)``.
    :param reference: public evaluator to reproduce, None for our own rules.
    :return: float64 ``(C, T)`` in [0, 1], NaN for a class without ground truth.
    """
    counted = (classes >= 0).nonzero().squeeze(1)
    scores, classes = select(counted, scores, classes)
    n_classes, n_columns = len(n_targets), hits.shape[1]
    order, rank = _rank_in_class(scores, classes, n_classes, reference)
    hits = hits.index_select(0, counted.index_select(0, order))
    column, place = hits.t().nonzero().unbind(1)
    classes, rank = select(place, classes.index_select(0, order), rank)
    # Every column has classes of its own, so that one pass serves them all.
    total = _found_precision(classes + column * n_classes, rank, n_classes * n_columns)
    return total.view(n_columns, n_classes).t() / n_targets.unsqueeze(1)


def _found_precision(classes: Tensor, rank: Tensor, n_classes: int) -> Tensor:
    """Sum over true positives of the best precision from each on, per class.

    True positives come by class, best first; ``rank`` counts from 1 in their class. The
    last of those that share a rank has the highest precision, so that of all.
    """
    found = torch.bincount(classes, minlength=n_classes)
    before = (found.cumsum(0) - found).index_select(0, classes)
    position = torch.arange(1, len(rank) + 1, device=rank.device)
    precision = (position - before).double() / rank
    # Precision is at most 1, so 2 per class keeps a running maximum in its class.
    backwards = (precision - 2.0 * classes).flip(0)
    best = precision.flip(0)[backwards.cummax(0).indices].flip(0)
    total = torch.zeros(n_classes, dtype=torch.float64, device=rank.device)
    return total.index_add_(0, classes, best)


def _rank_in_class(
    scores: Tensor, classes: Tensor, n_classes: int, reference: Reference | None
) -> tuple[Tensor, Tensor]:
    """Order of predictions by class and score; rank of each from 1 in its class.

    By our own rule, predictions that tie all have the rank of the last of them.
    """
    order = best_first(scores, reference)
    order = order.index_select(0, by_number(classes.index_select(0, order)))
    count = torch.bincount(classes, minlength=n_classes)
    scores, classes = select(order, scores, classes)
    first = (count.cumsum(0) - count).index_select(0, classes)
    position = torch.arange(1, len(order) + 1, device=order.device)
    if reference is None:
        scores = scores.nan_to_num(-torch.inf, torch.inf, -torch.inf)
        is_last = torch.ones_like(position, dtype=torch.bool)
        is_last[:-1] = scores[1:] != scores[:-1]
        is_last[:-1] |= classes[1:] != classes[:-1]
        position = torch.where(is_last, position, len(order))
        position = position.flip(0).cummin(0).values.flip(0)
    return order, position - first


def _tiou(*ends: Tensor, reference: Reference | None) -> Tensor:
    if reference is None:
        return hull_tiou(*ends)
    # 0 / 0 is not below any threshold and sorts last: it beats every other window.
    return summed_tiou(*ends).nan_to_num_(nan=torch.inf)


def _match(clips: Clips, levels: list[float], reference: Reference | None) -> Tensor:
    """Hits ``(B, M, T)`` of some clips.

    There are two ways. Pairs are 60 times as fast as tables on the CPU, but their
    number must be known; tables have fixed shapes, so that no GPU has to be waited for.
    """
    segments, scores, labels, target_segments, target_labels = clips
    if reference is None:
        labels = labels.masked_fill(~is_proper(segments), -1)
        target_labels = target_labels.masked_fill(~is_proper(target_segments), -1)
        order = by_content(*target_segments.unbind(2))
        target_segments = target_segments.take_along_dim(order.unsqueeze(2), 1)
        target_labels = target_labels.gather(1, order)
    segments, target_segments = segments.double(), target_segments.double()
    clips = Clips(segments, scores, labels, target_segments, target_labels)
    match = _match_pairs if scores.is_cpu else _match_padded
    return match(clips, levels, reference)


def _match_pairs(
    clips: Clips, levels: list[float], reference: Reference | None
) -> Tensor:
    """Hits ``(B, M, T)`` from the pairs of one clip and label only."""
    segments, scores, labels, target_segments, target_labels = clips
    # (B, M) and (B, N) -> flat places of the pairs that share clip and label
    prediction, target, _ = pairs_of(labels, target_labels)
    columns = [column.flatten() for column in segments.unbind(2)]
    target_columns = [column.flatten() for column in target_segments.unbind(2)]
    overlap = _tiou(
        *select(prediction, *columns),
        *select(target, *target_columns),
        reference=reference,
    )
    near = (overlap >= min(levels)).nonzero().squeeze(1)
    overlap, prediction, target = select(near, overlap, prediction, target)
    # The distinct predictions, which ascend, ranked; then the rank of each pair.
    is_first = torch.ones(len(prediction), dtype=torch.bool)
    is_first[1:] = prediction[1:] != prediction[:-1]
    ranked, *content = select(prediction[is_first], scores.flatten(), *columns)
    order = best_first(ranked, reference, content=content)
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
    ranked = prediction[is_first][order]
    rank = rank.index_select(0, is_first.cumsum(0) - 1)
    order = best_first(overlap, reference)
    order = order.index_select(0, by_number(rank.index_select(0, order)))
    overlap, rank, target = select(order, overlap, rank, target)

    # Every level has predictions and targets of its own: one matching serves all.
    thresholds = torch.tensor(levels, dtype=torch.float64).unsqueeze(1)
    level, place = (overlap >= thresholds).nonzero().unbind(1)
    rank, target = select(place, rank, target)
    n_targets, n_ranks = target_labels.numel(), max(len(ranked), 1)
    winners = _winners(
        rank + level * n_ranks, target + level * n_targets, n_targets * len(levels)
    )
    hits = torch.zeros(labels.numel(), len(levels), dtype=torch.bool)
    hits[ranked.index_select(0, winners % n_ranks), winners // n_ranks] = True
    return hits.view(*labels.shape, len(levels))


def _winners(rank: Tensor, target: Tensor, n_targets: int) -> Tensor:
    """Ranks of the predictions that end up with a target.

    Pairs come by rank, then by preference. In every round each prediction claims the
    target it likes best of those that no better prediction claimed in the round
    before. The k-th best winner is settled after k rounds at the latest, so a round
    without change is the end.
    """
    nobody = torch.iinfo(torch.long).max
    holder = torch.full((n_targets,), nobody)
    while True:
        is_open = (holder.index_select(0, target) >= rank).nonzero().squeeze(1)
        claiming, claimed = select(is_open, rank, target)
        is_first = torch.ones(len(claiming), dtype=torch.bool)
        is_first[1:] = claiming[1:] != claiming[:-1]
        claiming, claimed = select(is_first.nonzero().squeeze(1), claiming, claimed)
        after = torch.full_like(holder, nobody)
        after.scatter_reduce_(0, claimed, claiming, "amin")
        if torch.equal(after, holder):
            return claiming[holder.index_select(0, claimed) == claiming]
        holder = after


def _match_padded(
    clips: Clips, levels: list[float], reference: Reference | None
) -> Tensor:
    """Hits ``(B, M, T)`` by the rounds of :func:`_winners`, in fixed shapes."""
    segments, scores, labels, target_segments, target_labels = clips
    n_targets = target_labels.shape[1]
    if n_targets == 0 or labels.shape[1] == 0:
        return labels.new_zeros((*labels.shape, len(levels)), dtype=torch.bool)
    # (B, M, 1) and (B, 1, N) -> (B, M, N)
    overlap = _tiou(
        *segments.unsqueeze(2).unbind(3),
        *target_segments.unsqueeze(1).unbind(3),
        reference=reference,
    )
    same = labels.unsqueeze(2) == target_labels.unsqueeze(1)
    same &= (target_labels >= 0).unsqueeze(1)
    overlap = torch.where(same, overlap, -1.0)
    # (T, B, M, N) from here on
    reaches = torch.stack([overlap >= level for level in levels])
    liking = best_first(overlap, reference).argsort(dim=2)  # 0 for the favourite
    order = best_first(scores, reference, content=segments.unbind(2))
    rank = order.argsort(dim=1).unsqueeze(2)
    nobody = labels.shape[1] + n_targets
    holder = rank.new_full((len(levels), len(labels), 1, n_targets), nobody)
    claims = reaches
    for _ in range(n_targets):
        open_to = torch.where(reaches & (holder >= rank), liking, nobody)
        favourite = open_to.amin(dim=3, keepdim=True)
        claims = (open_to == favourite) & (favourite < nobody)
        holder = torch.where(claims, rank, nobody).amin(dim=2, keepdim=True)
    return (claims & (holder == rank)).any(dim=3).permute(1, 2, 0)
