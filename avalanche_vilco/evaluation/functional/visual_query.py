"""Metrics of visual queries: one response track is asked for, scored tracks answer.

A track is a run of boxes on consecutive frames. Everything that needs boxes is local
to a query; average precision ranks the tracks of all queries together.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from avalanche_vilco.evaluation.functional.detection import class_ap
from avalanche_vilco.evaluation.functional.order import best_first
from avalanche_vilco.evaluation.functional.pairs import select
from avalanche_vilco.evaluation.functional.references import (
    Reference,
    check_reference,
    tolerance_of,
)
from avalanche_vilco.ops.boxes import box_area

AP_IOU = (0.25, 0.5, 0.75, 0.95)
RECOVERY_IOU = (0.5, 0.75, 0.95)
SUCCESS_IOU = (0.05, 0.1, 0.2)

SUMMARY = ("tAP", "tAP25", "stAP", "stAP25", "success", "recovery")

# Bins of the largest box of the ground truth, in pixels; a bin holds its lower end.
SIZE_BINS = ("small", "medium", "large")
SIZE_LIMITS = (64.0**2, 192.0**2)
OFFICIAL_SIZE_LIMITS = (32.0**2, 96.0**2)  # of Ego4D; ViLCo's are ours

_ODD = 0x1E3779B97F4A7C15  # spreads the bits of a number when multiplied

_PIECE = 1 << 15  # boxes whose arithmetic stays in a processor's cache


class Tracks(NamedTuple):
    """Boxes of many tracks, in any order.

    :param boxes: ``(n, 4)`` as (x1, y1, x2, y2) in pixels.
    :param frames: frame number of each box, ``(n,)`` integers.
    :param owners: number of the track of each box, ``(n,)`` integers, -1 marks padding.
    """

    boxes: Tensor
    frames: Tensor
    owners: Tensor


class VisualQueryHits(NamedTuple):
    """What scored tracks achieve; parts of a data set add up.

    :param scores: score of each predicted track, ``(P,)``.
    :param sizes: place of its query in ``SIZE_BINS``, ``(P,)``, -1 for padding.
    :param temporal: True where it is a true positive in time, ``(P, len(AP_IOU))``.
    :param tube: the same in space and time.
    :param n_queries: queries per size, ``(3,)``.
    :param n_frames: ground-truth frames per size, ``(3,)``.
    :param n_recovered: those recovered, ``(3, len(RECOVERY_IOU))``.
    :param n_success: queries answered with success, ``(3, len(SUCCESS_IOU))``.
    :param n_broken: tracks whose frames repeat or leave gaps, and predictions that
        answer a query that is not there, ``()``.
    """

    scores: Tensor
    sizes: Tensor
    temporal: Tensor
    tube: Tensor
    n_queries: Tensor
    n_frames: Tensor
    n_recovered: Tensor
    n_success: Tensor
    n_broken: Tensor


class VisualQueryScores(NamedTuple):
    """Scores in [0, 1] on some queries, NaN if there are none.

    :param n_queries: number of queries.
    :param temporal_ap: average precision by temporal IoU, at each of ``AP_IOU``.
    :param tube_ap: average precision by spatio-temporal IoU.
    :param recovery: share of ground-truth frames whose box the best track of the query
        matches, at each of ``RECOVERY_IOU``.
    :param success: share of queries whose best track reaches each of ``SUCCESS_IOU``.
    """

    n_queries: int
    temporal_ap: tuple[float, ...]
    tube_ap: tuple[float, ...]
    recovery: tuple[float, ...]
    success: tuple[float, ...]

    def summary(self) -> dict[str, float]:
        """The six numbers of the benchmark.

        :return: tAP, tAP25, stAP, stAP25, success (IoU 0.05) and recovery (IoU 0.5).
        """
        numbers = (
            sum(self.temporal_ap) / len(self.temporal_ap),
            self.temporal_ap[0],
            sum(self.tube_ap) / len(self.tube_ap),
            self.tube_ap[0],
            self.success[0],
            self.recovery[0],
        )
        return dict(zip(SUMMARY, numbers, strict=True))


def visual_query_scores(
    predicted: Tracks,
    scores: Tensor,
    queries: Tensor,
    targets: Tracks,
    n_queries: int,
    *,
    reference: Reference | None = None,
) -> dict[str, VisualQueryScores]:
    """All metrics of visual queries, on all queries and by size of what is asked for.

    A query without predictions scores 0 and counts. Unless stated, the arguments are
    those of :func:`visual_query_hits`.

    :return: scores by "all", "small", "medium" and "large". ``reference="vilco"``
        gives the large ones as "all" too, as that evaluator does.
    :raises ValueError: if a track has gaps or repeats a frame, or an option or shape
        is out of range.
    """
    hits = visual_query_hits(
        predicted, scores, queries, targets, n_queries, reference=reference
    )
    return pooled_visual_query_scores(hits, reference=reference)


def visual_query_hits(
    predicted: Tracks,
    scores: Tensor,
    queries: Tensor,
    targets: Tracks,
    n_queries: int,
    *,
    reference: Reference | None = None,
) -> VisualQueryHits:
    """Compare predicted tracks with the ones asked for.

    Temporal IoU counts frames, both ends included. Spatio-temporal IoU is the volume
    shared on common frames over the volume of both. Best score first, the first track
    that reaches a threshold is the true positive of its query. Of scores that tie the
    track that starts, then ends, earlier is first, and then a number computed from the
    boxes decides, so that no order of the arguments matters; a NaN score comes last.
    Boxes that are reversed, without area or not finite have no area and match nothing,
    but their frames count in time; with a reference, areas of reversed boxes are signed
    and sizes have the limits of that evaluator.

    Nothing waits for the device, and shapes depend on the arguments only.

    :param predicted: predicted tracks.
    :param scores: their scores, ``(P,)``.
    :param queries: the query that each answers, in 0..n_queries-1, ``(P,)`` integers,
        -1 marks padding.
    :param targets: the tracks asked for, ``owners`` being the queries.
    :param n_queries: number of queries.
    :param reference: public evaluator to reproduce, None for our own rules.
    :return: hits and counts.
    :raises ValueError: if a shape or ``reference`` is out of range.
    """
    check_reference(reference)
    _check_tracks(predicted, scores, queries, targets)
    scores = scores if scores.is_floating_point() else scores.double()
    asked, given = _laid_out(targets, n_queries), _laid_out(predicted, len(scores))
    padding, unknown = queries < 0, queries >= n_queries
    query = queries.clamp(min=0, max=n_queries).long()
    area = _areas(targets, reference)
    tolerance = tolerance_of(reference)
    temporal_iou, tube_iou, recovered = _overlaps(
        predicted, given, targets, area, asked, query, reference
    )

    content = [given.first[:-1], given.last[:-1]]
    if reference is None:
        content.append(_fingerprints(predicted, len(scores)))
    ranked = scores.masked_fill(padding, -torch.inf)
    order = best_first(ranked, reference, content=content)
    position = torch.empty_like(order).scatter_(
        0, order, torch.arange(len(order), device=order.device)
    )
    candidates = torch.cat(
        [
            _reached(temporal_iou, AP_IOU, tolerance),
            _reached(tube_iou, AP_IOU, tolerance),
            torch.ones_like(padding).unsqueeze(1),
        ],
        dim=1,
    )
    candidates &= ~padding.unsqueeze(1)
    temporal, tube, best = _first_of_query(
        candidates, position, query, n_queries
    ).split([len(AP_IOU), len(AP_IOU), 1], dim=1)

    success = _reached(tube_iou, SUCCESS_IOU, tolerance) & best
    size = _sizes(targets, area, n_queries, reference)
    size_of_prediction = F.pad(size, (0, 1)).index_select(0, query)
    return VisualQueryHits(
        scores=scores,
        sizes=size_of_prediction.masked_fill(padding, -1),
        temporal=temporal,
        tube=tube,
        n_queries=_count(size, torch.ones_like(size)),
        n_frames=_count(size, asked.n_boxes[:-1]),
        n_recovered=_count(size_of_prediction, recovered * best),
        n_success=_count(size_of_prediction, success),
        n_broken=asked.n_broken + given.n_broken + unknown.sum(),
    )


def pooled_visual_query_scores(
    hits: VisualQueryHits, *, reference: Reference | None = None
) -> dict[str, VisualQueryScores]:
    """Scores of tracks whose hits are known.

    :param hits: hits and counts of a whole data set.
    :param reference: public evaluator to reproduce, None for our own rules.
    :return: scores by "all", "small", "medium" and "large".
    :raises ValueError: if a track has gaps, repeats a frame or answers a query that is
        not there.
    """
    n_broken = int(hits.n_broken)
    if n_broken:
        raise ValueError(
            "expected tracks of consecutive frames, each once, but got "
            f"{n_broken} tracks with gaps or repeated frames, or for unknown queries"
        )
    # On all queries, then by size.
    n_queries, n_frames, n_recovered, n_success = (
        torch.cat([count.sum(dim=0, keepdim=True), count])
        for count in (hits.n_queries, hits.n_frames, hits.n_recovered, hits.n_success)
    )
    # Every track counts twice: in class 0, which is all of them, and in its size.
    together = hits.sizes.clamp(max=0)
    ap = class_ap(
        torch.cat([hits.scores, hits.scores]),
        torch.cat([together, torch.where(together < 0, -1, hits.sizes + 1)]),
        torch.cat([hits.temporal, hits.tube], dim=1).repeat(2, 1),
        n_queries,
        reference=reference,
    )
    recovery = n_recovered.double() / n_frames.unsqueeze(1)
    success = n_success.double() / n_queries.unsqueeze(1)
    rows = torch.cat([ap, recovery, success, n_queries.unsqueeze(1)], dim=1)
    ends = (len(AP_IOU), 2 * len(AP_IOU), 2 * len(AP_IOU) + len(RECOVERY_IOU))
    everything, *by_size = (
        VisualQueryScores(
            n_queries=int(row[-1]),
            temporal_ap=tuple(row[: ends[0]]),
            tube_ap=tuple(row[ends[0] : ends[1]]),
            recovery=tuple(row[ends[1] : ends[2]]),
            success=tuple(row[ends[2] : -1]),
        )
        for row in rows.tolist()
    )
    scores = dict(zip(SIZE_BINS, by_size, strict=True))
    return {"all": scores["large"] if reference == "vilco" else everything, **scores}


def flat_summary(scores: Mapping[str, VisualQueryScores]) -> dict[str, float]:
    """Flat names of all numbers.

    :param scores: scores by size.
    :return: the summaries, those of "all" under their own names, the others with the
        size appended, such as ``tAP25_small``.
    """
    return {
        name if size == "all" else f"{name}_{size}": value
        for size, result in scores.items()
        for name, value in result.summary().items()
    }


class _Layout(NamedTuple):
    """Where tracks lie; each table has one more row, for padding, that is empty."""

    first: Tensor
    last: Tensor
    n_boxes: Tensor
    start: Tensor  # slot of the first box of the track in ``order``
    order: Tensor  # (n + 1,), places of the boxes by track and frame; slot 0 holds n
    n_broken: Tensor


def _pieces(tracks: Tracks, n_tracks: int) -> Iterator[tuple[slice, Tracks]]:
    """Parts that fit a processor's cache, a GPU takes all at once; padding is last."""
    n = len(tracks.frames)
    step = _PIECE if tracks.frames.is_cpu else max(n, 1)
    for begin in range(0, n, step):
        piece = slice(begin, min(begin + step, n))
        boxes, frames, owners = (each[piece] for each in tracks)
        owners = torch.where(owners < 0, n_tracks, owners).long()
        yield piece, Tracks(boxes.double(), frames.long(), owners)


def _laid_out(tracks: Tracks, n_tracks: int) -> _Layout:
    far = 1 << 40  # beyond every frame number; differences stay exact
    n_boxes = tracks.owners.new_zeros(n_tracks + 1, dtype=torch.long)
    first, last = torch.full_like(n_boxes, far), torch.full_like(n_boxes, -far)
    for _, (_, frames, owners) in _pieces(tracks, n_tracks):
        n_boxes.index_add_(0, owners, torch.ones_like(frames))
        first.scatter_reduce_(0, owners, frames, "amin")
        last.scatter_reduce_(0, owners, frames, "amax")
    n_boxes[-1:].zero_()
    start = 1 + n_boxes.cumsum(0) - n_boxes
    order = torch.full(
        (len(tracks.frames) + 1,), len(tracks.frames), device=start.device
    )
    slots = _Slots(first, n_boxes, start)
    for piece, (_, frames, owners) in _pieces(tracks, n_tracks):
        places = torch.arange(piece.start, piece.stop, device=start.device)
        order.scatter_(0, slots(owners, frames), places)
    order[:1].fill_(len(tracks.frames))
    # A track without gaps and repeats fills all of its slots, and none is too far.
    n_empty = (order == len(tracks.frames)).cumsum(0)
    n_empty = n_empty[start + n_boxes - 1] - n_empty[start - 1]
    is_broken = (n_empty > 0) | ((n_boxes > 0) & (last - first + 1 != n_boxes))
    return _Layout(first, last, n_boxes, start, order, is_broken.sum())


class _Slots:
    """Finds where in ``_Layout.order`` the box of a frame is, 0 if it is not there."""

    def __init__(self, first: Tensor, n_boxes: Tensor, start: Tensor) -> None:
        self._start, self._end = start, start + n_boxes
        self._shift = start - first

    def __call__(self, owners: Tensor, frames: Tensor) -> Tensor:
        slot = self._shift.index_select(0, owners).add_(frames)
        is_inside = slot >= self._start.index_select(0, owners)
        is_inside &= slot < self._end.index_select(0, owners)
        return slot.mul_(is_inside)


def _overlaps(
    predicted: Tracks,
    given: _Layout,
    targets: Tracks,
    area: Tensor,
    asked: _Layout,
    query: Tensor,
    reference: Reference | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """``(P,)`` temporal and spatio-temporal IoU; frames that reach each level."""
    asked_volume = area.new_zeros(len(asked.first))
    for piece, (_, _, owners) in _pieces(targets, len(asked_volume) - 1):
        asked_volume.index_add_(0, owners, area[piece])
    asked_volume[-1:].zero_()
    n_steps = len(RECOVERY_IOU) + 1
    volume, common = area.new_zeros(2, len(query) + 1)
    n_reached = torch.zeros_like(volume, dtype=torch.long).repeat(n_steps)
    levels = [level - tolerance_of(reference) for level in RECOVERY_IOU]
    partners = _Partners(targets, area, asked, query)
    for _, (boxes, frames, owners) in _pieces(predicted, len(query)):
        own_area = box_area(boxes, signed=reference is not None)
        shared, partner_area = partners.shared_area(boxes, own_area, frames, owners)
        volume.index_add_(0, owners, own_area)
        common.index_add_(0, owners, shared)
        overlap = _ratio(shared, own_area, partner_area)
        # Levels ascend: how many are reached tells which.
        step = sum((overlap >= level).long() for level in levels)
        n_reached.index_add_(0, owners * n_steps + step, torch.ones_like(owners))

    tube = _ratio(common[:-1], volume[:-1], asked_volume.index_select(0, query))
    at_least = n_reached.view(-1, n_steps)[:-1].flip(1).cumsum(1).flip(1)
    return _frame_iou(given, asked, query), tube, at_least[:, 1:]


def _frame_iou(given: _Layout, asked: _Layout, query: Tensor) -> Tensor:
    first = torch.maximum(given.first[:-1], asked.first.index_select(0, query))
    last = torch.minimum(given.last[:-1], asked.last.index_select(0, query))
    return _ratio(
        (last - first + 1).clamp(min=0).double(),
        given.n_boxes[:-1].double(),
        asked.n_boxes.index_select(0, query).double(),
    )


class _Partners:
    """The boxes asked for on the frames of given ones."""

    def __init__(
        self, targets: Tracks, area: Tensor, asked: _Layout, query: Tensor
    ) -> None:
        query = F.pad(query, (0, 1), value=len(asked.first) - 1)  # of padding
        self._slots = _Slots(*select(query, asked.first, asked.n_boxes, asked.start))
        self._order, self._area = asked.order, area
        # A box without area answers where nothing is asked for; any corners will do.
        boxes = targets.boxes if len(targets.boxes) else targets.boxes.new_zeros(1, 4)
        self._corners = boxes.unbind(1)

    def shared_area(
        self, boxes: Tensor, area: Tensor, frames: Tensor, owners: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Area shared with the partners of boxes, if both have any; area of these."""
        partner = self._order.index_select(0, self._slots(owners, frames))
        partner_area = self._area.index_select(0, partner)
        partner = partner.clamp_(max=len(self._corners[0]) - 1)
        x1, y1, x2, y2 = (c.index_select(0, partner).double() for c in self._corners)
        width = _common(boxes[:, 0], boxes[:, 2], x1, x2)
        height = _common(boxes[:, 1], boxes[:, 3], y1, y2)
        have_area = (area > 0) & (partner_area > 0)
        return torch.where(have_area, width.mul_(height), 0), partner_area


def _common(start: Tensor, end: Tensor, start_b: Tensor, end_b: Tensor) -> Tensor:
    shared = torch.minimum(end, end_b).sub_(torch.maximum(start, start_b))
    return shared.clamp_(min=0)


def _areas(tracks: Tracks, reference: Reference | None) -> Tensor:
    """Area of each box and, at the end, 0."""
    area = tracks.boxes.new_zeros(len(tracks.boxes) + 1, dtype=torch.float64)
    for piece, (boxes, _, _) in _pieces(tracks, 0):
        area[piece] = box_area(boxes, signed=reference is not None)
    return area


def _fingerprints(tracks: Tracks, n_tracks: int) -> Tensor:
    """Number of each track's boxes, ``(n_tracks,)``; the order of boxes is no matter.

    Sums of whole numbers do not depend on their order, overflow included.
    """
    total = torch.zeros(n_tracks + 1, dtype=torch.long, device=tracks.owners.device)
    for _, (boxes, frames, owners) in _pieces(tracks, n_tracks):
        mixed = frames
        # Adding 0 turns -0.0, whose bits differ, into 0.0.
        for bits in (boxes + 0.0).view(torch.long).unbind(1):
            mixed = (mixed ^ bits) * _ODD
            mixed ^= mixed >> 29
        total.index_add_(0, owners, mixed)
    return total[:-1]


def _first_of_query(
    hits: Tensor, position: Tensor, query: Tensor, n_queries: int
) -> Tensor:
    """Keeps, in each column, the best-ranked True of each query."""
    nobody = len(hits)
    position, query = position.unsqueeze(1), query.unsqueeze(1).expand_as(hits)
    claims = torch.where(hits, position, nobody)
    first = claims.new_full((n_queries + 1, hits.shape[1]), nobody)
    first.scatter_reduce_(0, query, claims, "amin")
    return (first.gather(0, query) == position) & hits


def _reached(overlap: Tensor, levels: tuple[float, ...], tolerance: float) -> Tensor:
    # One by one: levels as a tensor would have to be sent to the device.
    return torch.stack([overlap >= level - tolerance for level in levels], dim=1)


def _sizes(
    targets: Tracks, area: Tensor, n_queries: int, reference: Reference | None
) -> Tensor:
    """Place in ``SIZE_BINS`` of each query, ``(n_queries,)``."""
    largest = area.new_zeros(n_queries + 1)
    for piece, (_, _, owners) in _pieces(targets, n_queries):
        largest.scatter_reduce_(0, owners, area[piece].abs(), "amax")
    sizes = torch.zeros_like(largest[:-1], dtype=torch.long)
    is_ours = reference in (None, "vilco")
    for limit in SIZE_LIMITS if is_ours else OFFICIAL_SIZE_LIMITS:
        sizes += largest[:-1] >= limit
    return sizes


def _count(sizes: Tensor, values: Tensor) -> Tensor:
    empty = values.new_zeros((len(SIZE_BINS), *values.shape[1:]), dtype=torch.long)
    return empty.index_add_(0, sizes, values.long())


def _ratio(shared: Tensor, a: Tensor, b: Tensor) -> Tensor:
    union = (a + b).sub_(shared)
    nothing = union <= 0
    return (shared / union).masked_fill_(nothing, 0)


def _check_tracks(
    predicted: Tracks, scores: Tensor, queries: Tensor, targets: Tracks
) -> None:
    for name, tracks in (("predicted", predicted), ("targets", targets)):
        n = len(tracks.frames)
        shapes = tuple(tuple(x.shape) for x in tracks)
        if shapes != ((n, 4), (n,), (n,)):
            raise ValueError(
                f"expected {name} with boxes (n, 4), frames (n,) and owners (n,) but "
                f"got {shapes}"
            )
    if scores.ndim != 1 or queries.shape != scores.shape:
        raise ValueError(
            "expected scores and queries of one shape (P,) but got "
            f"{tuple(scores.shape)} and {tuple(queries.shape)}"
        )
    devices = {str(each.device) for each in (*predicted, scores, queries, *targets)}
    if len(devices) > 1:
        raise ValueError(f"expected all tensors on one device but got {devices}")
