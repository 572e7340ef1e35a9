"""From boxes of single frames, window by window, to one track for each query."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from avalanche_vilco.evaluation.functional.order import by_content
from avalanche_vilco.evaluation.functional.visual_query import Tracks
from avalanche_vilco.ops.response_track import PeakRule, response_tracks

_MOST_FRAMES = 1 << 40  # more than any memory holds


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
        queries.flatten().long(),
        query_frames.flatten().long(),
        frames.flatten().long(),
        predictions.scores.detach().flatten().float(),
        predictions.boxes.detach().flatten(0, 1).double(),
    )


def query_answers(rows: FrameRows, *, rule: PeakRule | None = None) -> QueryAnswers:
    """Join the windows of each query and choose its track.

    Order does not matter. A frame that occurs several times, as where windows overlap
    or one is evaluated twice, counts once, with its best score; of equal ones the box
    with the lowest x1, then y1, x2, y2 counts. Frames that do not occur are never part
    of a track.

    :param rows: frames of all queries; all of a query agree on its searched frames.
    :param rule: how frames are chosen; None for ``PeakRule()``.
    :return: one track for each query that occurs.
    :raises ValueError: if a query has more searched frames than any clip.
    """
    is_row = (rows.queries >= 0) & (rows.frames >= 0)
    is_row &= rows.frames < rows.query_frames
    if not bool(is_row.all()):
        rows = FrameRows(*(column[is_row] for column in rows))
    queries, owners = rows.queries.unique(return_inverse=True)
    n_frames = torch.zeros_like(queries, dtype=torch.long)
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
    if len(n_frames) * width > _MOST_FRAMES:
        raise ValueError(
            f"expected at most {_MOST_FRAMES} searched frames of all queries but got "
            f"{len(n_frames)} queries of up to {width}"
        )
    cells = owners * width + rows.frames.long()
    scores = torch.where(rows.logits.isfinite(), rows.logits, -torch.inf)
    best = scores.new_full((len(n_frames) * width,), -torch.inf)
    best.scatter_reduce_(0, cells, scores, "amax")
    is_best = (scores == best[cells]) & (scores > -torch.inf)
    places = is_best.nonzero().squeeze(1)
    if len(places) > int((best > -torch.inf).sum()):
        places = places[by_content(*rows.boxes[places].unbind(1))]
    order = torch.arange(len(places), device=owners.device)
    first = torch.full_like(best, len(places), dtype=torch.long)
    first.scatter_reduce_(0, cells[places], order, "amin")
    first = F.pad(places, (0, 1), value=n_rows)[first]
    return best.view(len(n_frames), width), first.view(len(n_frames), width)
