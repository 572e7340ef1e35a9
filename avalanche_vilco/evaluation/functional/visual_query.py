"""Metrics of visual queries: one response track is asked for, scored tracks answer.

A track is a run of boxes on consecutive frames. Everything that needs boxes is local
to a query; average precision ranks the tracks of all queries together.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from avalanche_vilco.evaluation.functional.detection import class_ap
from avalanche_vilco.evaluation.functional.order import best_first
from avalanche_vilco.evaluation.functional.references import (
    TIOU_TOLERANCE,
    Reference,
    check_reference,
)
from avalanche_vilco.ops.boxes import box_area, box_intersection

AP_IOU = (0.25, 0.5, 0.75, 0.95)
RECOVERY_IOU = (0.5, 0.75, 0.95)
SUCCESS_IOU = (0.05, 0.1, 0.2)

SUMMARY = ("tAP", "tAP25", "stAP", "stAP25", "success", "recovery")

# Bins of the largest box of the ground truth, in pixels; a bin holds its lower end.
SIZE_BINS = ("small", "medium", "large")
SIZE_LIMITS = (64.0**2, 192.0**2)


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
    that reaches a threshold is the true positive of its query. Ties keep the order
    given, a NaN score comes last. Boxes that are reversed, without area or not finite
    have no area and match nothing, but their frames count in time.

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
    asked = _with_padding_last(targets, n_queries)
    given = _with_padding_last(predicted, len(scores))
    extent, reach = _extent(asked, n_queries), _extent(given, len(scores))
    padding = queries < 0
    unknown = queries >= n_queries
    query = queries.clamp(min=0, max=n_queries)
    overlaps = _Overlaps.of(given, reach, asked, extent, query)
    tolerance = TIOU_TOLERANCE if reference is None else 0.0

    order = best_first(scores.masked_fill(padding, -torch.inf), reference)
    position = torch.empty_like(order).scatter_(0, order, _range_like(order))
    first = _FirstOfQuery(position, query, padding, n_queries)
    temporal = overlaps.temporal.unsqueeze(1) >= _levels(AP_IOU, overlaps, tolerance)
    tube = overlaps.tube.unsqueeze(1) >= _levels(AP_IOU, overlaps, tolerance)
    success = overlaps.tube.unsqueeze(1) >= _levels(SUCCESS_IOU, overlaps, tolerance)
    recovered = overlaps.recovered(_levels(RECOVERY_IOU, overlaps, tolerance))

    best = first(torch.ones_like(success[:, :1]))
    size = _sizes(asked, n_queries)
    size_of_prediction = _pick(size, query)
    return VisualQueryHits(
        scores=scores,
        sizes=size_of_prediction.masked_fill(padding, -1),
        temporal=first(temporal),
        tube=first(tube),
        n_queries=_count(size, torch.ones_like(size)),
        n_frames=_count(size, extent.n_boxes),
        n_recovered=_count(size_of_prediction, recovered * best),
        n_success=_count(size_of_prediction, success & best),
        n_broken=extent.n_broken + reach.n_broken + unknown.sum(),
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
    by_size = dict(zip(SIZE_BINS, _scores_of(hits, reference), strict=True))
    together = hits._replace(
        sizes=hits.sizes.clamp(max=0),
        **{
            name: getattr(hits, name).sum(dim=0, keepdim=True)
            for name in ("n_queries", "n_frames", "n_recovered", "n_success")
        },
    )
    everything = _scores_of(together, reference)[0]
    if reference == "vilco":
        everything = by_size["large"]
    return {"all": everything, **by_size}


def _scores_of(
    hits: VisualQueryHits, reference: Reference | None
) -> list[VisualQueryScores]:
    ap = class_ap(
        hits.scores,
        hits.sizes,
        torch.cat([hits.temporal, hits.tube], dim=1),
        hits.n_queries,
        reference=reference,
    )
    recovery = hits.n_recovered.double() / hits.n_frames.unsqueeze(1)
    success = hits.n_success.double() / hits.n_queries.unsqueeze(1)
    rows = torch.cat([ap, recovery, success, hits.n_queries.unsqueeze(1)], dim=1)
    ends = (len(AP_IOU), 2 * len(AP_IOU), 2 * len(AP_IOU) + len(RECOVERY_IOU))
    return [
        VisualQueryScores(
            n_queries=int(row[-1]),
            temporal_ap=tuple(row[: ends[0]]),
            tube_ap=tuple(row[ends[0] : ends[1]]),
            recovery=tuple(row[ends[1] : ends[2]]),
            success=tuple(row[ends[2] : -1]),
        )
        for row in rows.tolist()
    ]


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


class _Extent(NamedTuple):
    """Where tracks lie, ``(n_tracks,)`` each, and their boxes in order."""

    first: Tensor
    last: Tensor
    n_boxes: Tensor
    start: Tensor  # place of the first box of the track in ``order``
    order: Tensor  # (n,), places of the boxes by track and frame
    n_broken: Tensor


def _with_padding_last(tracks: Tracks, n_tracks: int) -> Tracks:
    """Tracks whose padding belongs to one more track, in the types to compute with."""
    owners = torch.where(tracks.owners < 0, n_tracks, tracks.owners).long()
    return Tracks(tracks.boxes.double(), tracks.frames.long(), owners)


def _extent(tracks: Tracks, n_tracks: int) -> _Extent:
    _, frames, owners = tracks
    # Frame numbers have 32 bits, so one key sorts by track and frame.
    keys, order = ((owners << 32) + (frames + (1 << 31))).sort()
    same_track = (keys[1:] >> 32) == (keys[:-1] >> 32)
    jump = (keys[1:] - keys[:-1] != 1) & same_track
    far = 1 << 40  # beyond every frame number; differences stay exact
    n_boxes = frames.new_zeros(n_tracks + 1)
    jumps = n_boxes.index_add(0, owners.index_select(0, order[1:]), jump.long())
    first = torch.full_like(n_boxes, far).scatter_reduce(0, owners, frames, "amin")
    last = torch.full_like(n_boxes, -far).scatter_reduce(0, owners, frames, "amax")
    n_boxes = n_boxes.index_add(0, owners, torch.ones_like(frames))
    return _Extent(
        first=first[:-1],
        last=last[:-1],
        n_boxes=n_boxes[:-1],
        start=(n_boxes.cumsum(0) - n_boxes)[:-1],
        order=order,
        n_broken=(jumps[:-1] > 0).sum(),
    )


class _Overlaps(NamedTuple):
    """IoU of predicted tracks with the ones asked for."""

    temporal: Tensor  # (P,)
    tube: Tensor  # (P,)
    box: Tensor  # (n,), of each predicted box
    owners: Tensor  # (n,)

    @classmethod
    def of(
        cls,
        given: Tracks,
        reach: _Extent,
        asked: Tracks,
        extent: _Extent,
        query: Tensor,
    ) -> "_Overlaps":
        """Compare the tracks given with the ones that their queries ask for."""
        n_tracks = len(query)
        partner = _partner(given, asked, extent, query)
        area, asked_area = box_area(given.boxes), box_area(asked.boxes)
        partner_area = _pick(asked_area, partner)
        shared = box_intersection(given.boxes, _pick(asked.boxes, partner))

        volume = _sum_by(given.owners, area, n_tracks)
        asked_volume = _sum_by(asked.owners, asked_area, len(extent.first))
        tube = _ratio(
            _sum_by(given.owners, shared, n_tracks), volume, _pick(asked_volume, query)
        )
        first = torch.maximum(reach.first, _pick(extent.first, query))
        last = torch.minimum(reach.last, _pick(extent.last, query))
        temporal = _ratio(
            (last - first + 1).clamp(min=0).double(),
            reach.n_boxes.double(),
            _pick(extent.n_boxes, query).double(),
        )
        return cls(temporal, tube, _ratio(shared, area, partner_area), given.owners)

    def recovered(self, levels: Tensor) -> Tensor:
        """Frames whose box reaches each level, ``(P, len(levels))``."""
        reaches = (self.box.unsqueeze(1) >= levels).long()
        return _sum_by(self.owners, reaches, len(self.temporal))


def _partner(given: Tracks, asked: Tracks, extent: _Extent, query: Tensor) -> Tensor:
    """Place of the box asked for on the frame of each given one, else the end."""
    of_query = _pick(query, given.owners)
    first, last = _pick(extent.first, of_query), _pick(extent.last, of_query)
    inside = (given.frames >= first) & (given.frames <= last)
    place = _pick(extent.start, of_query) + given.frames - first
    nothing = len(asked.frames)
    return _pick(extent.order, torch.where(inside, place, nothing)).where(
        inside, nothing
    )


class _FirstOfQuery:
    """Keeps, in each column, the best-ranked True of each query."""

    def __init__(
        self, position: Tensor, query: Tensor, padding: Tensor, n_queries: int
    ) -> None:
        self._position, self._query = position.unsqueeze(1), query.unsqueeze(1)
        self._padding, self._n_queries = padding.unsqueeze(1), n_queries

    def __call__(self, hits: Tensor) -> Tensor:
        nobody = len(hits)
        claims = torch.where(hits & ~self._padding, self._position, nobody)
        first = claims.new_full((self._n_queries + 1, hits.shape[1]), nobody)
        query = self._query.expand_as(claims)
        first = first.scatter_reduce(0, query, claims, "amin")
        return (first.gather(0, query) == self._position) & (claims < nobody)


def _levels(levels: tuple[float, ...], like: _Overlaps, tolerance: float) -> Tensor:
    # Filled one by one: a copy from the host would wait for the device.
    row = like.tube.new_empty(len(levels))
    for place, level in enumerate(levels):
        row[place].fill_(level - tolerance)
    return row


def _sizes(targets: Tracks, n_queries: int) -> Tensor:
    """Place in ``SIZE_BINS`` of each query, ``(n_queries,)``."""
    area = targets.boxes.new_zeros(n_queries + 1)
    area = area.scatter_reduce(0, targets.owners, box_area(targets.boxes), "amax")[:-1]
    return sum((area >= limit).long() for limit in SIZE_LIMITS) + torch.zeros_like(
        area, dtype=torch.long
    )


def _count(sizes: Tensor, values: Tensor) -> Tensor:
    empty = values.new_zeros((len(SIZE_BINS), *values.shape[1:]), dtype=torch.long)
    return empty.index_add_(0, sizes, values.long())


def _sum_by(owners: Tensor, values: Tensor, n_owners: int) -> Tensor:
    """Sum of ``values`` by owner; the padding, one owner more, is left out."""
    empty = values.new_zeros((n_owners + 1, *values.shape[1:]))
    return empty.index_add_(0, owners, values)[:-1]


def _ratio(shared: Tensor, a: Tensor, b: Tensor) -> Tensor:
    union = a + b - shared
    return torch.where(union > 0, shared / torch.where(union > 0, union, 1), 0)


def _pick(values: Tensor, places: Tensor) -> Tensor:
    """Rows of ``values``, zeros for places one past the end or in nothing at all."""
    blank = values.new_zeros((1, *values.shape[1:]))
    return torch.cat([values, blank]).index_select(0, places.clamp(max=len(values)))


def _range_like(order: Tensor) -> Tensor:
    return torch.arange(len(order), device=order.device)


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
