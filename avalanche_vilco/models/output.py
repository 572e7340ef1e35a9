"""The packed output of a localiser, and its only slicer.

A model returns one float tensor ``(B, K + R, P)``, channels first: K query logits,
then R regression channels, over P points. Stock plugins see in dim 1 what they call
classes. For moments R is 2: the distances from a point to a window's start and end,
in units of the point's stride, in (-0.5, 15.5).

The P points are those of a feature pyramid over T steps: level l = 0..L-1 has one
point every ``2**l`` steps, at steps 0, 2**l, ... of a grid padded to a multiple of
``2**(L-1)``; levels follow each other from fine to coarse. L follows from (P, T), so
a criterion needs the output and the targets and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

MOMENT_REGRESSION_CHANNELS = 2
OFFSET_LOW = -0.5
"""Lowest distance, in strides: the point nearest to a window that lies between two
points reaches its near end with a negative distance of at most half a stride."""
OFFSET_SPAN = 16.0
"""Distances lie in (OFFSET_LOW, OFFSET_LOW + OFFSET_SPAN)."""
MAX_LEVELS = 16
UNTAUGHT = -1e4
"""Logit of a query that has not been taught: its score is 0 in any precision."""


def query_logits(
    output: Tensor, n_regression: int = MOMENT_REGRESSION_CHANNELS
) -> Tensor:
    """Logits of the queries learnt so far.

    :param output: (B, K + R, P).
    :param n_regression: R.
    :return: (B, K, P) view.
    """
    return output[:, :-n_regression]


def taught_queries(logits: Tensor) -> Tensor:
    """Which queries an output answers, by the :data:`UNTAUGHT` of the others.

    :param logits: (B, K, P) as a model returned them.
    :return: (K,) bool.
    """
    # The first point of a sample is never padding, which is zero.
    return ~(logits[..., :1] <= UNTAUGHT / 2).any(dim=2).any(dim=0)


def regression(
    output: Tensor, n_regression: int = MOMENT_REGRESSION_CHANNELS
) -> Tensor:
    """Regression channels; of moments the distances to start and end, in strides.

    :param output: (B, K + R, P).
    :param n_regression: R.
    :return: (B, R, P) view.
    """
    return output[:, -n_regression:]


def valid_points(output: Tensor) -> Tensor:
    """Points inside their sample, by the zeros that :func:`pack_output` sets beyond.

    :param output: (B, C, P) as a model returned it.
    :return: (B, P) bool.
    """
    return (output != 0).any(dim=1)


def pack_output(logits: Tensor, offsets: Tensor, valid: Tensor) -> Tensor:
    """Pack head outputs; points beyond a clip's end become zero.

    :param logits: (B, K, P).
    :param offsets: (B, 2, P).
    :param valid: (B, P) bool.
    :return: (B, K + 2, P).
    """
    return torch.cat([logits, offsets], dim=1) * valid[:, None].to(logits.dtype)


@dataclass(frozen=True)
class PointGrid:
    """The points of a pyramid. All tensors are (P,) on one device."""

    steps: Tensor
    """Position in grid steps."""
    strides: Tensor
    """Steps between neighbours of the point's level."""
    reach: Tensor
    """(P, 2): the larger of a window's two distances that the level answers for, in
    steps, inclusive; neighbouring levels overlap."""

    def valid(self, valid_steps: Tensor) -> Tensor:
        """Which points lie inside each clip.

        :param valid_steps: (B, T) bool.
        :return: (B, P) bool.
        """
        return self.steps < valid_steps.sum(dim=1, keepdim=True)


def padded_length(n_steps: int, n_levels: int) -> int:
    """Steps after padding to a whole number of coarsest strides.

    >>> padded_length(225, 6)
    256
    """
    coarsest = 2 ** (n_levels - 1)
    return -(-n_steps // coarsest) * coarsest


def n_points(n_steps: int, n_levels: int) -> int:
    """Points of a pyramid.

    >>> n_points(1024, 10)
    2046
    """
    return padded_length(n_steps, n_levels) // 2 ** (n_levels - 1) * (2**n_levels - 1)


# A grid first asked for in evaluation serves training too, where tensors made in
# inference mode may not be saved for the backward pass.
@lru_cache(maxsize=64)
@torch.inference_mode(False)
def point_grid(points: int, n_steps: int, device: torch.device) -> PointGrid:
    """Lay out the points of an output.

    :param points: P, the output's last dim.
    :param n_steps: T, the padded steps of the batch.
    :param device: where the result lies.
    :raises ValueError: no pyramid over T steps has P points.
    """
    fitting = (n for n in range(1, MAX_LEVELS + 1) if n_points(n_steps, n) == points)
    levels = next(fitting, None)
    if levels is None:
        raise ValueError(
            f"an output with {points} points is no pyramid over {n_steps} steps: "
            "did output and targets come from the same batch?"
        )
    padded = padded_length(n_steps, levels)
    steps, strides, reach = [], [], []
    for level in range(levels):
        stride = 2**level
        count = padded // stride
        steps.append(torch.arange(count, device=device) * stride)
        strides.append(torch.full((count,), stride, device=device))
        low = 0.0 if level == 0 else 2.0**level
        high = torch.inf if level == levels - 1 else 2.0 ** (level + 2)
        bounds = [torch.full((count,), end, device=device) for end in (low, high)]
        reach.append(torch.stack(bounds, dim=1))
    return PointGrid(
        torch.cat(steps).float(), torch.cat(strides).float(), torch.cat(reach)
    )
