"""Suppression for a batch of clips, for one clip, and the loop in torch."""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from avalanche_vilco.ops.nms import numpy_loop
from avalanche_vilco.ops.nms.rule import LENGTH_EPSILON, Candidates, NMSRule, candidates
from avalanche_vilco.ops.segments import pairwise_tiou

Backend = Literal["auto", "torch", "numpy", "numba"]
"""``auto``: for tensors on the CPU ``numba`` where it is installed, else ``numpy``;
``torch`` on other devices."""

_DEFAULT = NMSRule()
_PAIRS_AT_ONCE = 1 << 21


class KeptSegments(NamedTuple):
    """Windows that are left, best first.

    :param segments: (K, 2), float64 if the windows given were, else float32.
    :param scores: (K,) float32, lowered.
    :param labels: (K,), as given.
    :param indices: (K,) int64, places among the windows given.
    """

    segments: Tensor
    scores: Tensor
    labels: Tensor
    indices: Tensor


def padded_nms(
    segments: Tensor,
    scores: Tensor,
    labels: Tensor | None = None,
    rule: NMSRule = _DEFAULT,
    *,
    backend: Backend = "auto",
) -> tuple[Tensor, Tensor]:
    """Pick windows by score while lowering the scores of those they overlap.

    After each pick, the other windows of its label are lowered or dropped as the rule
    says. Scores that are not positive and finite, windows that are reversed or not
    finite, and labels below 0 (padding) are never picked. Ties go to the lowest index.
    All is computed in float32, whatever the type given.

    :param segments: windows, ``(B, N, 2)`` as (start, end), in any unit.
    :param scores: ``(B, N)``.
    :param labels: ``(B, N)`` integers, -1 marks padding; None means one label.
    :param rule: what a pick does to others, and how many are kept: M a clip.
    :param backend: what picks; the choice changes the time only.
    :return: indices ``(B, M)`` into the N candidates and lowered scores ``(B, M)``
        in float32, best first; unfilled places have index -1 and score 0.
    :raises ValueError: if a shape or a device is not as described.
    :raises TypeError: if labels are not integers.
    :raises ImportError: if numba is asked for and absent.
    """
    return _picks(candidates(segments, scores, labels), rule, backend)


@torch.no_grad()
def batched_nms(
    segments: Tensor,
    scores: Tensor,
    labels: Tensor,
    rule: NMSRule = _DEFAULT,
    *,
    multiclass: bool = True,
    voting_threshold: float = 0.0,
    backend: Backend = "auto",
) -> KeptSegments:
    """Keep the best windows of one clip, as ``batched_nms`` of the public code.

    Which windows are never picked and how ties are broken: see :func:`padded_nms`. On
    a GPU this waits for the device, which :func:`padded_nms` does not.

    :param segments: windows, ``(N, 2)`` as (start, end), in any unit.
    :param scores: ``(N,)``.
    :param labels: ``(N,)`` integers, -1 marks padding.
    :param rule: what a pick does to others, and how many are kept.
    :param multiclass: only windows of one label suppress each other; else all windows
        count as one label.
    :param voting_threshold: where above 0 and not ``multiclass``, a window kept
        becomes the mean of all candidates with this tIoU or more, of any label,
        weighted by their tIoU and their score before suppression, in [0, 1]. A window
        that no candidate reaches stays where it is.
    :param backend: what picks; the choice changes the time only.
    :raises ValueError: if a shape, a device or the threshold is not as described.
    :raises TypeError: if labels are not integers.
    :raises ImportError: if numba is asked for and absent.
    """
    if segments.ndim != 2 or segments.shape[1] != 2:
        raise ValueError(
            f"expected segments of shape (N, 2) but got {tuple(segments.shape)}"
        )
    if not 0 <= voting_threshold <= 1:
        raise ValueError(
            f"expected voting_threshold in [0, 1] but got {voting_threshold}"
        )
    # Padding stays padding.
    groups = labels if multiclass else labels.clamp(max=0)
    given = candidates(segments[None], scores[None], groups[None])
    (indices,), (lowered,) = _picks(given, rule, backend)
    filled = indices >= 0
    indices, lowered = indices[filled], lowered[filled]
    windows = segments if segments.dtype == torch.float64 else segments.float()
    kept = windows[indices]
    if voting_threshold > 0 and not multiclass:
        usable = given.scores[0] > 0
        kept = _vote(kept, windows[usable], given.scores[0][usable], voting_threshold)
    return KeptSegments(kept, lowered, labels[indices], indices)


def _picks(given: Candidates, rule: NMSRule, backend: Backend) -> tuple[Tensor, Tensor]:
    """Indices and scores ``(B, M)`` of the picks, -1 and 0 where there is none."""
    if backend not in get_args(Backend):
        names = ", ".join(get_args(Backend))
        raise ValueError(f"expected a backend of {names} but got {backend!r}")
    if rule.method == "hard":
        low = given.scores <= rule.min_score
        given = given._replace(scores=given.scores.masked_fill(low, 0.0))
    on_cpu = given.scores.device.type == "cpu"
    if backend == "torch" or (backend == "auto" and not on_cpu):
        return _picks_of_torch(given, rule)
    if not on_cpu:
        raise ValueError(
            f"expected tensors on the CPU for backend {backend!r} but got "
            f"{given.scores.device}"
        )
    return _picks_on_cpu(given, rule, backend)


# Loops on the CPU ------------------------------------------------------------------


def _picks_on_cpu(
    given: Candidates, rule: NMSRule, backend: Backend
) -> tuple[Tensor, Tensor]:
    kernels = None if backend == "numpy" else _kernels()
    if backend == "numba" and kernels is None:
        raise ImportError(
            "backend 'numba' needs numba: pip install 'avalanche-vilco[fast]'"
        )
    loop = numpy_loop.pick if kernels is None else kernels.pick
    shape = len(given.scores), rule.n_places(given.scores.shape[1])
    indices, scores = np.full(shape, -1), np.zeros(shape, dtype=np.float32)
    # Lengths of windows far apart may overflow; they do not overlap.
    with np.errstate(over="ignore"):
        loop(numpy_loop.group(given, rule.floor), rule, indices, scores)
    return torch.from_numpy(indices), torch.from_numpy(scores)


@cache
def _kernels() -> ModuleType | None:
    """The loop in numba, where that is installed and works with this NumPy."""
    # On first use only: numba takes half a second to import.
    try:
        from avalanche_vilco.ops.nms import numba_loop
    except ImportError:
        return None
    return numba_loop


# Loop on any device ----------------------------------------------------------------


@torch.no_grad()
def _picks_of_torch(given: Candidates, rule: NMSRule) -> tuple[Tensor, Tensor]:
    """A pick of every clip at a time, in shapes known beforehand."""
    starts, ends, scores, labels = given
    lengths = ends - starts + LENGTH_EPSILON
    n_places = rule.n_places(scores.shape[1])
    # The leading empty columns keep `cat` legal when there is nothing to pick.
    indices = [labels.new_empty((len(labels), 0), dtype=torch.long)]
    picked = [scores[:, :0]]
    if rule.per_label == 0:
        scores = torch.zeros_like(scores)
    for _ in range(min(n_places, scores.shape[1])):
        # (B, N) -> (B, 1): the best window left of each clip
        score, best = scores.max(dim=1, keepdim=True)
        indices.append(best)
        picked.append(score)
        overlap = torch.minimum(ends, ends.gather(1, best))
        overlap = overlap.sub_(torch.maximum(starts, starts.gather(1, best))).clamp_(0)
        union = (lengths + lengths.gather(1, best)).sub_(overlap)
        same_label = labels == labels.gather(1, best)
        lowered = _lowered(scores, overlap.div_(union), rule)
        if rule.per_label is not None:
            # (B, 1) whether the label of the last pick has had all its picks
            of_picks = labels.gather(1, torch.cat(indices, 1))
            n_picks = (of_picks == of_picks[:, -1:]).sum(1, keepdim=True)
            lowered = lowered.masked_fill(n_picks >= rule.per_label, 0.0)
        scores = torch.where(same_label, lowered, scores).scatter_(1, best, 0.0)
    found, lowered = torch.cat(indices, 1), torch.cat(picked, 1)
    unfilled = (0, n_places - found.shape[1])
    found = found.masked_fill(lowered <= 0, -1)
    return F.pad(found, unfilled, value=-1), F.pad(lowered, unfilled)


def _lowered(scores: Tensor, tiou: Tensor, rule: NMSRule) -> Tensor:
    if rule.drops:
        scores = scores.masked_fill(tiou >= rule.threshold, 0.0)
    elif rule.method == "linear":
        scores = torch.where(tiou >= rule.threshold, scores * (1 - tiou), scores)
    else:
        # Rounded from float64, where `exp` is the same to float32 in all libraries;
        # Metal knows no float64.
        wide = tiou if tiou.device.type == "mps" else tiou.double()
        scores = scores * (wide * wide).div_(-rule.sigma).exp_().float()
    if rule.floor > 0:
        scores = scores.masked_fill(scores < rule.floor, 0.0)
    return scores


# Voting ----------------------------------------------------------------------------


def _vote(kept: Tensor, segments: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """Weighted means ``(K, 2)`` of the candidates that overlap each window enough."""
    rows = max(_PAIRS_AT_ONCE // max(len(segments), 1), 1)
    segments, scores = segments.double(), scores.double()
    means = []
    for windows in kept.double().split(rows):
        tiou = pairwise_tiou(windows, segments)
        votes = torch.where(tiou >= threshold, tiou * scores, 0)
        total = votes.sum(1, keepdim=True)
        mean = votes @ segments / torch.where(total > 0, total, 1)
        means.append(torch.where(total > 0, mean, windows))
    return torch.cat(means).to(kept.dtype)
