"""Losses of moment localisation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from avalanche_vilco.core.batch import MomentTargets
from avalanche_vilco.models.output import (
    OFFSET_LOW,
    OFFSET_SPAN,
    PointGrid,
    point_grid,
    query_logits,
    regression,
    taught_queries,
)

CENTRE_RADIUS = 1.5
"""Strides around a window's centre in which points answer for it."""


@dataclass(frozen=True)
class PointTargets:
    """What each point should say."""

    classes: Tensor
    """(B, K, P) float 0 or 1."""
    offsets: Tensor
    """(B, 2, P) distances to start and end in strides."""
    positive: Tensor
    """(B, P) bool, points that answer for a window."""


def assign_points(
    grid: PointGrid, targets: MomentTargets, queries: int | Tensor
) -> PointTargets:
    """Label points with windows (ActionFormer's rule, made complete).

    A point answers for a window if it lies inside it, within 1.5
    strides of its centre, and the larger of its two distances is what its level
    answers for. Among several windows the shortest wins; equally short ones all
    count. A window that no point qualifies for gets the nearest point of the finest
    level, so every window of a learnt query has a positive unless shorter windows
    hold all of its points.

    :param grid: the output's points.
    :param targets: windows in grid steps; those of other queries are ignored.
    :param queries: K, rows of the head, or (K,) bool, which of them have been taught.
    """
    if isinstance(queries, int):
        queries = torch.ones(queries, dtype=torch.bool, device=grid.steps.device)
    n_queries = len(queries)
    # An empty window stands in where no clip of the batch has one.
    segments = F.pad(targets.segments, (0, 0, 0, 1))
    labels = F.pad(targets.labels, (0, 1), value=-1)
    # Padding, -1, and classes beyond the head find the False at the end.
    learnt = F.pad(queries, (0, 1))[labels.clamp(max=n_queries)]
    usable = learnt[..., None] & grid.valid(targets.valid)[:, None]
    # (B, N, 1) and (P,) -> (B, N, P)
    left = grid.steps - segments[..., :1]
    right = segments[..., 1:] - grid.steps
    fits = usable & _answers(grid, left, right)
    fits = fits | (_nearest_point(grid, left, right, usable) & ~fits.any(-1, True))
    length = (left + right).masked_fill(~fits, torch.inf)
    shortest, winner = length.min(dim=1)
    wins = fits & (length <= shortest[:, None] + 1e-3)
    offsets = torch.stack([left, right], dim=1) / grid.strides
    winner = winner[:, None, None].expand(-1, 2, 1, -1)
    # (B, N, P) -> (B, K, P); row K takes what answers for no window
    hot = torch.zeros(len(wins), n_queries + 1, wins.shape[2], device=wins.device)
    rows = torch.where(wins, labels.clamp(min=0)[..., None], n_queries)
    return PointTargets(
        hot.scatter(1, rows, 1.0)[:, :n_queries],
        offsets.gather(2, winner)
        .squeeze(2)
        .clamp(OFFSET_LOW, OFFSET_LOW + OFFSET_SPAN),
        wins.any(dim=1),
    )


def _answers(grid: PointGrid, left: Tensor, right: Tensor) -> Tensor:
    from_centre = (left - right).abs() / 2
    farther = torch.maximum(left, right)
    in_reach = (farther >= grid.reach[:, 0]) & (farther <= grid.reach[:, 1])
    inside = torch.minimum(left, right) > 0
    return inside & (from_centre <= CENTRE_RADIUS * grid.strides) & in_reach


def _nearest_point(
    grid: PointGrid, left: Tensor, right: Tensor, usable: Tensor
) -> Tensor:
    from_centre = (left - right).abs()
    distance = from_centre.masked_fill(~usable | (grid.strides > 1), torch.inf)
    points = torch.arange(len(grid.steps), device=distance.device)
    return usable & (points == distance.argmin(-1, keepdim=True))


def sigmoid_focal_loss(
    logits: Tensor, targets: Tensor, *, alpha: float, gamma: float
) -> Tensor:
    """Focal loss of each logit (Lin et al. 2017, equation 5).

    :param logits: any shape.
    :param targets: 0 or 1, same shape.
    :param alpha: weight of positives, in [0, 1].
    :param gamma: focusing exponent, at least 0.
    """
    loss = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    probability = logits.sigmoid()
    miss = torch.where(targets > 0, 1 - probability, probability)
    weight = torch.where(targets > 0, alpha, 1 - alpha)
    return weight * miss**gamma * loss


def distance_iou_loss(predicted: Tensor, wanted: Tensor) -> Tensor:
    """1 - IoU + (gap of centres / length of hull)^2 of windows, each (..., 2).

    They are given by distances from one point (Zheng et al. 2020, in one dimension).
    The length shared is signed: below zero it says how far windows are apart, or by
    how much a predicted one is reversed, so that their slopes point back. For windows
    that overlap, the hull is their union and the loss is the paper's.

    :param predicted: (..., 2) distances to start and end.
    :param wanted: (..., 2), of positive total length.
    :return: (...), at least 0.
    """
    shared = torch.minimum(predicted, wanted).sum(-1)
    hull = torch.maximum(predicted, wanted).sum(-1)
    # (end - start distance) is twice a centre's place, seen from the point.
    centres = [part[..., 1] - part[..., 0] for part in (predicted, wanted)]
    gap = (centres[0] - centres[1]) / 2
    hull = hull.clamp(min=torch.finfo(predicted.dtype).eps)
    return 1 - shared / hull + (gap / hull) ** 2


class MomentLoss(nn.Module):
    """Focal loss on queries plus IoU loss on windows; stateless.

    Both terms are divided by the number of positive points of the batch. The
    classification loss runs over the queries asked of each clip, because a clip
    holds unlabelled moments of other queries.

    :param alpha: focal weight of positives.
    :param gamma: focal exponent.
    :param regression_weight: weight of the window term.
    :param negatives: ``"asked"``, or ``"seen"`` to take every query learnt so far
        for a negative where the clip has no window of it, as the public code does.
    :raises ValueError: unknown ``negatives``.
    """

    def __init__(
        self,
        *,
        alpha: float = 0.25,
        gamma: float = 2.0,
        regression_weight: float = 1.0,
        negatives: str = "asked",
    ) -> None:
        super().__init__()
        if negatives not in ("asked", "seen"):
            raise ValueError(
                f"expected negatives 'asked' or 'seen' but got {negatives!r}"
            )
        self.alpha = alpha
        self.gamma = gamma
        self.regression_weight = regression_weight
        self.negatives = negatives

    def forward(self, output: Tensor, targets: MomentTargets) -> Tensor:
        """Loss of a batch.

        :param output: (B, K + 2, P) packed output.
        :param targets: of the same batch.
        :return: 0-d tensor.
        """
        output = output.float()
        grid = point_grid(output.shape[-1], targets.valid.shape[1], output.device)
        logits = query_logits(output)
        wanted = assign_points(grid, targets, taught_queries(logits))
        n_positive = wanted.positive.sum().clamp(min=1)
        focal = sigmoid_focal_loss(
            logits, wanted.classes, alpha=self.alpha, gamma=self.gamma
        )
        focal = focal * grid.valid(targets.valid)[:, None]
        if self.negatives == "asked":
            focal = focal * targets.asked[:, : logits.shape[1], None].to(logits.dtype)
        window = distance_iou_loss(
            regression(output).transpose(1, 2), wanted.offsets.transpose(1, 2)
        )
        window = torch.where(wanted.positive, window, 0.0)
        total = focal.sum() + self.regression_weight * window.sum()
        return total / n_positive


def narration_contrast(
    video: Tensor,
    text: Tensor,
    sentences: Tensor,
    *,
    temperature: float = 0.07,
    stored: Tensor | None = None,
    stored_sentences: Tensor | None = None,
) -> Tensor:
    """Symmetric InfoNCE of moments and what is said of them.

    ``L_v2t + L_t2v``, means over the pairs (Tang et al. 2024, appendix C).
    Negatives of a pair are the batch's other pairs and, for its video, stored
    sentences; none of its own wording, so that no positive is its own negative.

    :param video: (N, D) embeddings.
    :param text: (N, D) embeddings of the same pairs.
    :param sentences: (N,) equal where the wording is, -1 where there is no pair.
    :param temperature: > 0.
    :param stored: (M, D) embeddings of sentences of earlier experiences.
    :param stored_sentences: (M,) their numbers.
    :return: 0-d, zero without a pair.
    """
    video, text = F.normalize(video, dim=-1), F.normalize(text, dim=-1)
    logits = video @ text.T / temperature
    real = sentences >= 0
    others = (sentences[:, None] != sentences) & real
    itself = torch.eye(len(logits), dtype=torch.bool, device=logits.device)
    to_text = logits.masked_fill(~(others | itself), -torch.inf)
    to_video = logits.T.masked_fill(~(others | itself), -torch.inf)
    if stored is not None and stored_sentences is not None:
        against = video @ F.normalize(stored, dim=-1).T / temperature
        same = sentences[:, None] == stored_sentences
        to_text = torch.cat([to_text, against.masked_fill(same, -torch.inf)], dim=1)
    losses = to_text.logsumexp(1) + to_video.logsumexp(1) - 2 * logits.diagonal()
    return torch.where(real, losses, 0.0).sum() / real.sum().clamp(min=1)
