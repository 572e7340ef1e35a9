"""Holding a model to what an earlier one said, on packed outputs.

Terms are summed over channels and averaged over the points inside samples, so that
padding and clip length do not change their weight.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from avalanche_vilco.models.output import taught_queries


def frozen_copy(model: nn.Module) -> nn.Module:
    """A teacher: a copy in evaluation mode that no gradient reaches."""
    teacher = copy.deepcopy(model)
    teacher.eval()
    return teacher.requires_grad_(False)


def logit_distillation(
    logits: Tensor, taught: Tensor, valid: Tensor, *, temperature: float = 1.0
) -> Tensor:
    """Cross-entropy of each query's yes and no with the teacher's.

    Both are softened, and the term is multiplied by the squared temperature, which
    keeps the size of its gradient (Hinton et al. 2015, section 2).

    :param logits: (B, K', P) of the student; channels beyond the teacher's are new
        and stay free.
    :param taught: (B, K, P) logits of the teacher, K at most K'; queries that it has
        not been taught stay free, too.
    :param valid: (B, P) bool, points inside samples.
    :param temperature: above 0.
    :return: 0-d tensor.
    """
    logits, taught = logits.float(), taught.float()
    terms = F.binary_cross_entropy_with_logits(
        logits[:, : taught.shape[1]] / temperature,
        (taught / temperature).sigmoid(),
        reduction="none",
    )
    terms = terms * taught_queries(taught)[:, None]
    return temperature**2 * _mean_over(terms.sum(1), valid.to(terms.dtype))


def regression_distillation(
    regression: Tensor, taught: Tensor, confidence: Tensor
) -> Tensor:
    """Smooth L1 distance from the teacher's regression, where it is sure of itself.

    :param regression: (B, R, P) of the student.
    :param taught: (B, R, P) of the teacher.
    :param confidence: (B, P) weight of each point, at least 0.
    :return: 0-d tensor.
    """
    terms = F.smooth_l1_loss(regression.float(), taught.float(), reduction="none")
    return _mean_over(terms.sum(1), confidence)


def _mean_over(terms: Tensor, weights: Tensor) -> Tensor:
    total = weights.sum().clamp(min=torch.finfo(weights.dtype).eps)
    return (terms * weights).sum() / total
