"""From boxes of single frames, window by window, to one track for each query."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from avalanche_vilco.evaluation.functional.visual_query import Tracks
from avalanche_vilco.ops.response_track import PeakRule, response_tracks


class FramePredictions(Protocol):
    """The best box of each frame of a mini-batch of windows."""

    @property
    def scores(self) -> Tensor:
        """Logit of each frame's box, ``(B, T)`` float32."""

    @property
    def boxes(self) -> Tensor:
        """``(B, T, 4)`` float64 as (x1, y1, x2, y2) in annotation pixels."""

    @property
    def frame_numbers(self) -> Tensor:
        """Frames of the clip, ``(B, T)`` int64, -1 marks padding."""

    @property
    def query(self) -> Tensor:
        """Number of the query that each window belongs to, ``(B,)`` int64."""

    @property
    def query_frame(self) -> Tensor:
        """Searched frames of the query, ``(B,)`` int64; the last is one below."""


class FrameRows(NamedTuple):
    """Scored boxes, in any order.

    :param queries: number of the query, ``(n,)`` integers, -1 marks padding.
    :param query_frames: its searched frames, ``(n,)`` integers.
    :param frames: frame of the clip, ``(n,)`` integers.
    :param logits: scores, ``(n,)``.
    :param boxes: ``(n, 4)`` float64 as (x1, y1, x2, y2) in pixels.
    """

    queries: Tensor
    query_frames: Tensor
    frames: Tensor
    logits: Tensor
    boxes: Tensor


class QueryAnswers(NamedTuple):
    """One track for each query.

    :param queries: numbers of the queries, ``(Q,)`` int64, ascending.
    :param scores: confidence in each track, ``(Q,)`` float64 in [0, 1].
    :param tracks: boxes; the owner is the place in ``queries``. Queries of which no
        frame has a finite score have none.
    """

    queries: Tensor
    scores: Tensor
    tracks: Tracks


def frame_rows(predictions: FramePredictions) -> FrameRows:
    """The frames of windows as rows; those that are not searched become padding.

    :param predictions: frames of a mini-batch, (B, T).
    :return: B x T rows.
    """
    frames = predictions.frame_numbers
    query_frames = predictions.query_frame[:, None].expand_as(frames)
    is_searched = (frames >= 0) & (frames < query_frames)
    queries = torch.where(is_searched, predictions.query[:, None], -1)
    return FrameRows(
        queries.flatten().int(),
        query_frames.flatten().int(),
        frames.flatten().int(),
        predictions.scores.detach().flatten().float(),
        predictions.boxes.detach().flatten(0, 1).double(),
    )


def query_answers(rows: FrameRows, *, rule: PeakRule | None = None) -> QueryAnswers:
    """Join the windows of each query and choose its track.

    Order does not matter. A frame that occurs several times, as where windows overlap
    or one is evaluated twice, counts once, with its best score (the first of equals).
    Frames that do not occur are never part of a track.

    :param rows: frames of all queries; all of a query agree on its searched frames.
    :param rule: how frames are chosen; None for ``PeakRule()``.
    :return: one track for each query that occurs.
    """
    is_row = (rows.queries >= 0) & (rows.frames >= 0)
    is_row &= rows.frames < rows.query_frames
    if not bool(is_row.all()):
        rows = FrameRows(*(column[is_row] for column in rows))
    queries, owners = rows.queries.long().unique(return_inverse=True)
    n_frames = torch.zeros_like(queries)
    n_frames.scatter_reduce_(0, owners, rows.query_frames.long(), "amax")
    logits, places = _best_rows(rows, owners, n_frames)
    chosen = response_tracks(logits, n_frames, rule=rule)
    frames = torch.arange(logits.shape[1], device=logits.device)
    is_inside = (frames >= chosen.first[:, None]) & (frames <= chosen.last[:, None])
    owners, inside = is_inside.nonzero(as_tuple=True)
    tracks = Tracks(rows.boxes[places[owners, inside]], inside, owners)
    return QueryAnswers(queries, chosen.scores, tracks)


def _best_rows(
    rows: FrameRows, owners: Tensor, n_frames: Tensor
) -> tuple[Tensor, Tensor]:
    """(Q, F) best score of each query's frames, -inf where none is; its row, or n."""
    n_rows, width = len(owners), int(n_frames.max()) if len(n_frames) else 0
    cells = owners * width + rows.frames.long()
    scores = torch.where(rows.logits.isfinite(), rows.logits, -torch.inf)
    best = scores.new_full((len(n_frames) * width,), -torch.inf)
    best.scatter_reduce_(0, cells, scores, "amax")
    places = torch.arange(n_rows, device=owners.device)
    places = torch.where(scores == best[cells], places, n_rows)
    first = torch.full_like(best, n_rows, dtype=torch.long)
    first.scatter_reduce_(0, cells, places, "amin")
    return best.view(len(n_frames), width), first.view(len(n_frames), width)
