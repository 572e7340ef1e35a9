"""Anchor boxes of a visual query's window, and what the packed output says of them.

The output is (B, 1 + 4, P), see :mod:`avalanche_vilco.models.output`. Its P points are
the anchors of T frames, frame-major: the frame is slowest, then row, column and anchor.
Each of H x W cells of a frame has twelve anchors around its centre. H = W follows from
(P, T), so a criterion needs the output and the targets and nothing else.

The four regression channels are, in units of the anchor's width and height, the shift
of the centre (x, y) in (-MAX_SHIFT, MAX_SHIFT), and the natural logarithms of the box's
width and height over the anchor's, in (-MAX_LOG_SCALE, MAX_LOG_SCALE): a box can
neither be reversed nor lose its area, and no channel rules a norm over channels.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

TRACK_REGRESSION_CHANNELS = 4
ANCHOR_SIZES = (16 / 448, 32 / 448, 64 / 448, 128 / 448)
"""Square roots of the anchors' areas, in widths of the picture (VQLoC: 16 to 128
pixels of 448)."""
ANCHOR_RATIOS = (0.5, 1.0, 2.0)
"""Heights over widths."""
N_ANCHORS = len(ANCHOR_SIZES) * len(ANCHOR_RATIOS)
MAX_SHIFT = 1.5
MAX_LOG_SCALE = math.log(4.0)


# As in models.output: grids first asked for in evaluation serve training too.
@lru_cache(maxsize=64)
@torch.inference_mode(False)
def anchor_boxes(n_points: int, n_frames: int, device: torch.device) -> Tensor:
    """Lay out the anchors of one frame.

    :param n_points: P, the output's last dim.
    :param n_frames: T, the frames of the batch.
    :param device: where the result lies.
    :return: (P / T, 4) as (centre x, centre y, width, height) in widths of the picture.
    :raises ValueError: no square grid over T frames has P points.
    """
    cells = n_points // max(n_frames * N_ANCHORS, 1)
    n_rows = math.isqrt(cells)
    if n_rows * n_rows * N_ANCHORS * n_frames != n_points or not n_rows:
        raise ValueError(
            f"an output with {n_points} points is no square grid of {N_ANCHORS} "
            f"anchors over {n_frames} frames: did output and targets come from the "
            "same batch?"
        )
    centres = (torch.arange(n_rows, device=device) + 0.5) / n_rows
    y, x = torch.meshgrid(centres, centres, indexing="ij")
    sizes = torch.tensor(ANCHOR_SIZES, device=device)[:, None]
    ratios = torch.tensor(ANCHOR_RATIOS, device=device)
    width, height = (sizes / ratios.sqrt()).flatten(), (sizes * ratios.sqrt()).flatten()
    # (n_rows, n_rows, anchors, 4) -> (P / T, 4)
    columns = torch.broadcast_tensors(x[..., None], y[..., None], width, height)
    return torch.stack(columns, dim=-1).flatten(0, 2)


def to_boxes(anchors: Tensor, deltas: Tensor) -> Tensor:
    """Boxes of regression channels.

    :param anchors: (..., 4) as (centre x, centre y, width, height).
    :param deltas: (..., 4), last dim the regression channels.
    :return: (..., 4) as (x1, y1, x2, y2), in the anchors' unit.
    """
    centre = anchors[..., :2] + deltas[..., :2] * anchors[..., 2:]
    half = anchors[..., 2:] * deltas[..., 2:].exp() / 2
    return torch.cat([centre - half, centre + half], dim=-1)


def to_deltas(anchors: Tensor, boxes: Tensor) -> Tensor:
    """Regression channels that give boxes; the inverse of :func:`to_boxes`.

    :param anchors: (..., 4) as (centre x, centre y, width, height).
    :param boxes: (..., 4) as (x1, y1, x2, y2), with area.
    :return: (..., 4), within the channels' bounds.
    """
    deltas = _unbounded_deltas(anchors, boxes)
    bounds = _bounds(deltas)
    return deltas.clamp(-bounds, bounds)


def within_reach(anchors: Tensor, boxes: Tensor) -> Tensor:
    """Whether an anchor's channels can say a box.

    :param anchors: (..., 4) as (centre x, centre y, width, height).
    :param boxes: (..., 4) as (x1, y1, x2, y2), with area.
    :return: (...) bool.
    """
    deltas = _unbounded_deltas(anchors, boxes)
    return (deltas.abs() <= _bounds(deltas)).all(dim=-1)


def _unbounded_deltas(anchors: Tensor, boxes: Tensor) -> Tensor:
    size = (boxes[..., 2:] - boxes[..., :2]).clamp(min=torch.finfo(boxes.dtype).eps)
    centre = (boxes[..., :2] + boxes[..., 2:]) / 2
    shift = (centre - anchors[..., :2]) / anchors[..., 2:]
    return torch.cat([shift, (size / anchors[..., 2:]).log()], dim=-1)


def bounded_deltas(x: Tensor) -> Tensor:
    """Any numbers as regression channels.

    :param x: (..., 4).
    :return: (..., 4), like ``x`` where it is small.
    """
    bounds = _bounds(x)
    return bounds * torch.tanh(x / bounds)


def _bounds(x: Tensor) -> Tensor:
    return x.new_tensor([MAX_SHIFT, MAX_SHIFT, MAX_LOG_SCALE, MAX_LOG_SCALE])
