"""Loss of visual-query localisation."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.ops import generalized_box_iou_loss

from avalanche_vilco.core.visual_batch import TrackWindowTargets
from avalanche_vilco.models.anchors import (
    TRACK_REGRESSION_CHANNELS,
    anchor_boxes,
    to_boxes,
    to_deltas,
    within_reach,
)
from avalanche_vilco.models.losses import sigmoid_focal_loss
from avalanche_vilco.models.output import query_logits, regression
from avalanche_vilco.ops.boxes import box_iou


class VisualQueryLoss(nn.Module):
    """Focal loss on anchors, smooth L1 and generalised IoU on boxes; stateless.

    An anchor is positive where its IoU with the answer's box reaches ``positive_iou``;
    so is, in each frame with an answer, the best anchor of those whose channels can say
    the box, or of all where there is none. Classification runs over the frames that are
    searched: what is behind the query frame is not labelled. All terms are divided by
    the number of positive anchors of the batch.

    :param positive_iou: in (0, 1); VQLoC's is 0.2.
    :param alpha: focal weight of positives; VQLoC's is 0.75.
    :param gamma: focal exponent.
    :param regression_weight: of the smooth L1 term on regression channels.
    :param overlap_weight: of the generalised IoU term (Rezatofighi et al. 2019).
    :param negatives_per_positive: keep only the hardest negatives of the batch, this
        many for each positive; None keeps all.
    """

    def __init__(
        self,
        *,
        positive_iou: float = 0.2,
        alpha: float = 0.75,
        gamma: float = 2.0,
        regression_weight: float = 1.0,
        overlap_weight: float = 0.3,
        negatives_per_positive: int | None = None,
    ) -> None:
        super().__init__()
        self.positive_iou = positive_iou
        self.alpha = alpha
        self.gamma = gamma
        self.regression_weight = regression_weight
        self.overlap_weight = overlap_weight
        self.negatives_per_positive = negatives_per_positive

    def forward(self, output: Tensor, targets: TrackWindowTargets) -> Tensor:
        """Loss of a batch.

        :param output: (B, 1 + 4, P).
        :param targets: boxes and masks of the frames.
        :return: 0-d tensor.
        """
        output = output.float()
        anchors = anchor_boxes(output.shape[-1], targets.valid.shape[1], output.device)
        positive = self._positive(anchors, targets)
        logits = query_logits(output, TRACK_REGRESSION_CHANNELS)[:, 0]
        deltas = regression(output, TRACK_REGRESSION_CHANNELS).transpose(1, 2)
        count = positive.sum().clamp(min=1)
        seen = targets.searched[..., None].expand_as(positive)
        terms = self._classification(logits.view_as(positive), positive, seen)
        deltas = deltas.unflatten(1, (targets.valid.shape[1], -1))
        boxes = self._regression(deltas, anchors, positive, targets)
        return (terms + boxes) / count

    def _positive(self, anchors: Tensor, targets: TrackWindowTargets) -> Tensor:
        """(B, T, anchors of a frame) bool."""
        corners = to_boxes(anchors, torch.zeros_like(anchors))
        boxes = targets.boxes[..., None, :]
        overlap = box_iou(corners, boxes)
        best = _best(overlap, within_reach(anchors, boxes))
        usable = (targets.present & targets.searched)[..., None] & (overlap > 0)
        return usable & (best | (overlap >= self.positive_iou))

    def _classification(self, logits: Tensor, positive: Tensor, seen: Tensor) -> Tensor:
        terms = sigmoid_focal_loss(
            logits, positive.float(), alpha=self.alpha, gamma=self.gamma
        )
        terms = terms * seen
        if self.negatives_per_positive is None:
            return terms.sum()
        # Negatives of the largest terms, without waiting for how many they are.
        negative = terms.detach().masked_fill(positive, 0.0)
        wanted = self.negatives_per_positive * positive.sum().clamp(min=1)
        ranks = negative.flatten().argsort(descending=True, stable=True).argsort()
        hard = (ranks < wanted).view_as(negative) & (negative > 0)
        return (terms * (positive | hard)).sum()

    def _regression(
        self,
        deltas: Tensor,
        anchors: Tensor,
        positive: Tensor,
        targets: TrackWindowTargets,
    ) -> Tensor:
        """Sum over positive anchors."""
        # (B, T, anchors) -> (number of positives, 4) each
        clip, frame, anchor = positive.nonzero(as_tuple=True)
        anchors, boxes = anchors[anchor], targets.boxes[clip, frame]
        found = deltas[clip, frame, anchor]
        wanted = to_deltas(anchors, boxes)
        near = F.smooth_l1_loss(found, wanted, beta=0.1, reduction="sum")
        found = to_boxes(anchors, found)
        overlap = generalized_box_iou_loss(found, boxes, reduction="sum")
        return self.regression_weight * near + self.overlap_weight * overlap


def _best(overlap: Tensor, reaching: Tensor) -> Tensor:
    """(..., anchors) bool, the largest overlap of those that reach it, else of all."""
    reached = overlap * reaching
    rank = torch.where(reached.amax(dim=-1, keepdim=True) > 0, reached, overlap)
    return rank == rank.amax(dim=-1, keepdim=True)
