"""Picks of all clips at once, on any device, in shapes known beforehand."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from avalanche_vilco.ops.nms.candidates import Candidates
from avalanche_vilco.ops.nms.rule import LENGTH_EPSILON, Rule


@torch.no_grad()
def pick(given: Candidates, rule: Rule) -> tuple[Tensor, Tensor]:
    """Indices and scores ``(B, M)`` of the picks, -1 and 0 where there is none."""
    starts, ends, scores, labels = given
    lengths = ends - starts + LENGTH_EPSILON
    room = rule.room(scores.shape[1])
    # The leading empty columns keep `cat` legal when there is nothing to pick.
    indices = [labels.new_empty((len(labels), 0), dtype=torch.long)]
    picked = [scores[:, :0]]
    if rule.per_label == 0:
        scores = torch.zeros_like(scores)
    for _ in range(min(room, scores.shape[1])):
        score, best = scores.max(dim=1, keepdim=True)
        indices.append(best)
        picked.append(score)
        overlap = torch.minimum(ends, ends.gather(1, best))
        overlap = overlap.sub_(torch.maximum(starts, starts.gather(1, best))).clamp_(0)
        union = (lengths + lengths.gather(1, best)).sub_(overlap)
        same_label = labels == labels.gather(1, best)
        lowered = _lowered(scores, overlap.div_(union), rule)
        if rule.per_label is not None:
            spent = _is_spent(labels, torch.cat(indices, 1), rule.per_label)
            lowered = lowered.masked_fill(spent, 0.0)
        scores = torch.where(same_label, lowered, scores).scatter_(1, best, 0.0)
    return _padded(torch.cat(indices, 1), torch.cat(picked, 1), room)


def _lowered(scores: Tensor, tiou: Tensor, rule: Rule) -> Tensor:
    if rule.drops:
        scores = scores.masked_fill(tiou >= rule.threshold, 0.0)
    elif rule.method == "linear":
        scores = torch.where(tiou >= rule.threshold, scores * (1 - tiou), scores)
    else:
        scores = scores * _gaussian(tiou, rule.sigma)
    if rule.floor > 0:
        scores = scores.masked_fill(scores < rule.floor, 0.0)
    return scores


def _gaussian(tiou: Tensor, sigma: float) -> Tensor:
    """Rounded from float64, where `exp` is the same to float32 in all libraries."""
    # Metal knows no float64.
    wide = tiou if tiou.device.type == "mps" else tiou.double()
    return (wide * wide).div_(-sigma).exp_().float()


def _is_spent(labels: Tensor, indices: Tensor, per_label: int) -> Tensor:
    """Whether the label of the last pick has had all its picks, ``(B, 1)``."""
    of_picks = labels.gather(1, indices)
    return ((of_picks == of_picks[:, -1:]).sum(1) >= per_label).unsqueeze(1)


def _padded(indices: Tensor, scores: Tensor, room: int) -> tuple[Tensor, Tensor]:
    missing = (0, room - indices.shape[1])
    indices = indices.masked_fill(scores <= 0, -1)
    return F.pad(indices, missing, value=-1), F.pad(scores, missing)
