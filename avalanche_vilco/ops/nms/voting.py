"""Windows moved to the mean of the candidates around them."""

from __future__ import annotations

import torch
from torch import Tensor

from avalanche_vilco.ops.segments import pairwise_tiou

_PAIRS_AT_ONCE = 1 << 21


def vote(kept: Tensor, segments: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """Weighted means of the candidates that overlap each window enough.

    :param kept: windows to move, ``(K, 2)``.
    :param segments: candidates, ``(N, 2)``, finite.
    :param scores: of the candidates, ``(N,)``, >= 0.
    :param threshold: candidates with this tIoU or more have a vote of their score
        times their tIoU, in (0, 1].
    :return: ``(K, 2)`` in the type of ``kept``; a window without votes stays.
    """
    rows = max(_PAIRS_AT_ONCE // max(len(segments), 1), 1)
    wide, weights = segments.double(), scores.double()
    moved = [
        _vote(part, wide, weights, threshold) for part in kept.double().split(rows)
    ]
    return torch.cat(moved).to(kept.dtype)


def _vote(kept: Tensor, segments: Tensor, scores: Tensor, threshold: float) -> Tensor:
    tiou = pairwise_tiou(kept, segments)
    votes = torch.where(tiou >= threshold, tiou * scores, 0)
    total = votes.sum(1, keepdim=True)
    mean = votes @ segments / torch.where(total > 0, total, 1)
    return torch.where(total > 0, mean, kept)
