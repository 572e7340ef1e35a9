"""What a visual-query model answers, frame by frame."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from avalanche_vilco.core.batch import TensorBatch
from avalanche_vilco.core.visual_batch import TrackWindowTargets
from avalanche_vilco.models.anchors import (
    TRACK_REGRESSION_CHANNELS,
    anchor_boxes,
    to_boxes,
)
from avalanche_vilco.models.output import query_logits, regression


class FrameAnswers(TensorBatch):
    """The best box of each frame of a batch of windows.

    A query is answered by its windows together, which may lie in several batches:
    ``query`` says which belong together, ``frame_numbers`` in which order.
    """

    padding: ClassVar = {
        "scores": -math.inf,
        "boxes": 0.0,
        "frame_numbers": -1,
        "query": -1,
        "query_frame": 0,
    }

    scores: Tensor
    """(B, T) float32 logit of each frame's best box, -inf where the frame is not
    searched or not there."""
    boxes: Tensor
    """(B, T, 4) float64 as (x1, y1, x2, y2) in annotation pixels."""
    frame_numbers: Tensor
    """(B, T) int64 frames of the clip, -1 where there is none."""
    query: Tensor
    """(B,) int64 number of the query in its data set."""
    query_frame: Tensor
    """(B,) int64, frames 0 to query_frame - 1 are searched."""


@torch.no_grad()
def best_of_frames(output: Tensor, targets: TrackWindowTargets) -> FrameAnswers:
    """Choose the box of each frame that scores best, on the output's device.

    Anchors whose output is not finite are passed over. Boxes are clipped to the frame,
    which is the middle of its padded square.

    :param output: (B, 1 + 4, P), frame-major.
    :param targets: geometry only: searched frames, their numbers, squares, queries.
    """
    n_frames = targets.searched.shape[1]
    anchors = anchor_boxes(output.shape[-1], n_frames, output.device)
    # (B, 5, T * anchors) -> (B, T, anchors): one row of anchors for each frame
    finite = output.isfinite().all(1).unflatten(1, (n_frames, -1))
    logits = query_logits(output.float(), TRACK_REGRESSION_CHANNELS)[:, 0]
    logits = logits.unflatten(1, (n_frames, -1)).masked_fill(~finite, -math.inf)
    best, place = logits.max(dim=2)
    deltas = regression(output, TRACK_REGRESSION_CHANNELS).unflatten(2, (n_frames, -1))
    index = place[:, None, :, None].expand(-1, TRACK_REGRESSION_CHANNELS, -1, 1)
    deltas = deltas.gather(3, index).squeeze(3).transpose(1, 2)
    boxes = to_boxes(anchors[place].double(), deltas.double())
    return FrameAnswers(
        scores=best.masked_fill(~targets.searched, -math.inf),
        boxes=_in_pixels(boxes, targets.square),
        frame_numbers=targets.frame_numbers,
        query=targets.query,
        query_frame=targets.query_frame,
    )


def _in_pixels(shares: Tensor, square: Tensor) -> Tensor:
    """Boxes (B, T, 4) as shares of squares (B, 3) in pixels, clipped to frames."""
    square_size, padding = square[:, None, :1], square[:, None, 1:]
    frame_size = (square_size - 2 * padding).repeat(1, 1, 2)
    pixels = shares * square_size - padding.repeat(1, 1, 2)
    return pixels.clamp(min=0).minimum(frame_size)
