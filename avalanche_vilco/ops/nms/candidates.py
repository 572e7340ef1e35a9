"""Which windows of a batch may be picked."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import torch
from torch import Tensor


class Candidates(NamedTuple):
    """Windows of a batch of clips; score 0 where never to be picked."""

    starts: Tensor
    """(B, N) float32."""
    ends: Tensor
    """(B, N) float32."""
    scores: Tensor
    """(B, N) float32, finite, >= 0."""
    labels: Tensor
    """(B, N) integers, >= 0 where the score is above 0."""


def candidates(segments: Tensor, scores: Tensor, labels: Tensor | None) -> Candidates:
    """Check what a caller gave and leave out what cannot be right.

    :param segments: ``(B, N, 2)``.
    :param scores: ``(B, N)``.
    :param labels: ``(B, N)`` integers; None means one label.
    :raises ValueError: if shapes or devices do not agree.
    :raises TypeError: if labels are not integers.
    """
    if labels is None:
        labels = torch.zeros_like(scores, dtype=torch.long)
    _check(segments, scores, labels)
    starts, ends = segments.detach().float().unbind(dim=2)
    scores = scores.detach().float()
    # Finite only if both ends are; one that overflows would make the tIoU NaN.
    lengths = ends - starts
    valid = (lengths >= 0) & (lengths < inf) & (scores > 0) & (scores < inf)
    valid &= labels >= 0
    return Candidates(
        torch.where(valid, starts, 0.0),
        torch.where(valid, ends, 0.0),
        torch.where(valid, scores, 0.0),
        labels,
    )


def _check(segments: Tensor, scores: Tensor, labels: Tensor) -> None:
    if segments.ndim != 3 or segments.shape[2] != 2:
        raise ValueError(
            f"expected segments of shape (B, N, 2) but got {tuple(segments.shape)}"
        )
    for name, values in (("scores", scores), ("labels", labels)):
        if values.shape != segments.shape[:2]:
            raise ValueError(
                f"expected {name} of shape {tuple(segments.shape[:2])} but got "
                f"{tuple(values.shape)}"
            )
        if values.device != segments.device:
            raise ValueError(
                f"expected {name} on {segments.device} as the segments are but got "
                f"{values.device}"
            )
    if labels.is_floating_point() or labels.is_complex():
        raise TypeError(f"expected integer labels but got {labels.dtype}")
