"""Suppression for one clip, in the form of the public code."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from avalanche_vilco.ops.nms.backends import Backend, pick
from avalanche_vilco.ops.nms.candidates import candidates
from avalanche_vilco.ops.nms.rule import Method, Rule
from avalanche_vilco.ops.nms.voting import vote


class KeptSegments(NamedTuple):
    """Windows that are left, best first."""

    segments: Tensor
    """(K, 2), float64 if the windows given were, else float32."""
    scores: Tensor
    """(K,) float32, lowered."""
    labels: Tensor
    """(K,), as given."""
    indices: Tensor
    """(K,) int64, places among the windows given."""


@torch.no_grad()
def batched_nms(
    segments: Tensor,
    scores: Tensor,
    labels: Tensor,
    *,
    method: Method = "gaussian",
    sigma: float = 0.5,
    iou_threshold: float = 0.5,
    min_score: float = 1e-3,
    max_segments: int | None = 200,
    max_per_label: int | None = None,
    multiclass: bool = True,
    voting_threshold: float = 0.0,
    backend: Backend = "auto",
) -> KeptSegments:
    """Keep the best windows of one clip, as ``batched_nms`` of the public code.

    Which windows are never picked and how ties are broken: see
    :func:`avalanche_vilco.ops.nms.soft_nms`. On a GPU this waits for the device,
    which the functions for a batch of clips do not.

    :param segments: windows, ``(N, 2)`` as (start, end), in any unit.
    :param scores: ``(N,)``.
    :param labels: ``(N,)`` integers, -1 marks padding.
    :param method: how a pick treats the others.
    :param sigma: width of the decay, > 0; gaussian only.
    :param iou_threshold: in [0, 1]; not for gaussian.
    :param min_score: hard: only scores above this are candidates; else windows whose
        lowered score is below this are dropped; >= 0.
    :param max_segments: windows to keep, best first; None means all.
    :param max_per_label: windows to keep per label; None means all. Without
        ``multiclass`` all windows count as one label.
    :param multiclass: only windows of one label suppress each other.
    :param voting_threshold: where above 0 and not ``multiclass``, a window kept
        becomes the mean of all candidates with this tIoU or more, of any label,
        weighted by their tIoU and their score before suppression, in [0, 1]. A window
        that no candidate reaches stays where it is.
    :param backend: what picks; the choice changes the time only.
    :raises ValueError: if a shape, a device or a parameter is not as told.
    :raises TypeError: if labels or limits are not integers.
    :raises ImportError: if numba is asked for and absent.
    """
    _check(segments, voting_threshold)
    rule = Rule(method, sigma, iou_threshold, min_score, max_segments, max_per_label)
    # Padding stays padding.
    groups = labels if multiclass else labels.clamp(max=0)
    given = candidates(segments[None], scores[None], groups[None])
    (indices,), (lowered,) = pick(given, rule, backend)
    filled = indices >= 0
    indices, lowered = indices[filled], lowered[filled]
    windows = segments if segments.dtype == torch.float64 else segments.float()
    kept = windows[indices]
    if voting_threshold > 0 and not multiclass:
        usable = given.scores[0] > 0
        votes = windows[usable], given.scores[0][usable]
        kept = vote(kept, *votes, voting_threshold)
    return KeptSegments(kept, lowered, labels[indices], indices)


def _check(segments: Tensor, voting_threshold: float) -> None:
    if segments.ndim != 2 or segments.shape[1] != 2:
        raise ValueError(
            f"expected segments of shape (N, 2) but got {tuple(segments.shape)}"
        )
    if not 0 <= voting_threshold <= 1:
        raise ValueError(
            f"expected voting_threshold in [0, 1] but got {voting_threshold}"
        )
