"""iCaRL for localisation."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from avalanche.training.plugins import ReplayPlugin
from torch import Tensor, nn

from avalanche_vilco.models.losses import assign_points
from avalanche_vilco.models.output import (
    point_grid,
    query_logits,
    regression,
    valid_points,
)
from avalanche_vilco.training.distillation import frozen_copy, logit_distillation
from avalanche_vilco.training.passes import batches_of, evaluating
from avalanche_vilco.training.storage_policy import HerdingBuffer


class ICaRLPlugin(ReplayPlugin):
    """Herded exemplars, rehearsal, distillation and, by choice, nearest means.

    The paper (Rebuffi et al. 2017) classifies images with one label. Here:

    - exemplars are clips, chosen by herding on clip embeddings with a quota for each
      query (see ``HerdingBuffer``), and rehearsed as stock ReplayPlugin does;
    - the logits of old queries are held to the previous model's by sigmoid
      cross-entropy, as in the paper, at all points of all clips of a batch; both
      models see the same inputs;
    - with ``nearest_mean`` the heads say where a window is, and the nearest mean says
      of which query: the paper's rule says nothing of places. A query's mean is that
      of the embeddings at the points that answer for its windows in exemplars. The
      score of query k at a point is max_j sigmoid(logit_j), times the softmax over k
      of cosine(embedding, mean_k) / ``mean_temperature``, over the queries that have
      exemplars; others keep their logits. Means are taken after each experience, so
      scores do not depend on what is evaluated together.

    :param mem_size: samples kept.
    :param distillation_weight: of the distillation term.
    :param nearest_mean: score by nearest means in evaluation; the model needs
        ``point_embeddings``.
    :param mean_temperature: of the softmax over cosines, above 0.
    :param batch_size: as in ReplayPlugin.
    :param batch_size_mem: as in ReplayPlugin.
    """

    def __init__(
        self,
        mem_size: int = 200,
        *,
        distillation_weight: float = 1.0,
        nearest_mean: bool = False,
        mean_temperature: float = 0.1,
        batch_size: int | None = None,
        batch_size_mem: int | None = None,
    ) -> None:
        super().__init__(
            mem_size,
            batch_size=batch_size,
            batch_size_mem=batch_size_mem,
            storage_policy=HerdingBuffer(mem_size),
        )
        self.distillation_weight = distillation_weight
        self.nearest_mean = nearest_mean
        self.mean_temperature = mean_temperature
        self.teacher: nn.Module | None = None
        """The model after the previous experience."""
        self.means: Tensor | None = None
        """(K, D) mean embedding of each query, of unit length, or zero: no exemplar."""

    def kept(self) -> tuple[Any, ...]:
        """The teacher and the means; exemplars are in the storage policy."""
        return self.teacher, self.means

    def before_backward(self, strategy: Any, **kwargs: Any) -> None:
        """Hold old queries' logits to the previous model's."""
        if self.teacher is None:
            return
        with torch.no_grad():
            taught = self.teacher(strategy.mb_x)
        term = logit_distillation(
            query_logits(strategy.mb_output), query_logits(taught), valid_points(taught)
        )
        strategy.loss = strategy.loss + self.distillation_weight * term

    def after_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Choose exemplars, keep the model as teacher and take the means."""
        super().after_training_exp(strategy, **kwargs)
        self.teacher = frozen_copy(strategy.model)
        if self.nearest_mean:
            self.means = query_means(strategy, self.storage_policy.buffer)

    def after_eval_forward(self, strategy: Any, **kwargs: Any) -> None:
        """Score by nearest means, if chosen."""
        if self.means is None:
            return
        strategy.mb_output = nearest_mean_output(
            strategy.mb_output,
            strategy.model.point_embeddings(strategy.mb_x),
            self.means,
            temperature=self.mean_temperature,
        )


def query_means(strategy: Any, exemplars: Any) -> Tensor:
    """Mean embedding of each query's points in exemplars.

    :param strategy: has ``model``, ``device`` and ``eval_mb_size``.
    :param exemplars: dataset.
    :return: (K, D) of unit length, zero for queries without a window in exemplars.
    """
    total: Tensor | None = None
    with evaluating(strategy.model):
        for inputs, targets in batches_of(exemplars, strategy):
            embeddings = strategy.model.point_embeddings(inputs)
            grid = point_grid(
                embeddings.shape[-1], targets.valid.shape[1], embeddings.device
            )
            taught = strategy.model.taught_queries
            wanted = assign_points(grid, targets, taught).classes
            sums = torch.einsum("bkp,bdp->kd", wanted, F.normalize(embeddings.float()))
            total = sums if total is None else total + sums
    if total is None:
        raise ValueError("expected exemplars to take means of but got none")
    return F.normalize(total, dim=1)


def nearest_mean_output(
    output: Tensor, embeddings: Tensor, means: Tensor, *, temperature: float
) -> Tensor:
    """Replace logits by place from the heads and query from the nearest mean.

    :param output: (B, K' + 2, P) packed output.
    :param embeddings: (B, D, P) what the logits were read off.
    :param means: (K, D) of unit length, or zero: the query keeps its logits; K at
        most K'.
    :param temperature: of the softmax, above 0.
    :return: (B, K' + 2, P).
    """
    logits = query_logits(output).float()
    known = means.any(dim=1)
    known = F.pad(known, (0, logits.shape[1] - len(known)))[:, None]
    means = F.pad(means, (0, 0, 0, logits.shape[1] - len(means)))
    cosines = torch.einsum("kd,bdp->bkp", means, F.normalize(embeddings.float()))
    share = (cosines / temperature).masked_fill(~known, -torch.inf).softmax(dim=1)
    best = logits.masked_fill(~known, -torch.inf).amax(dim=1, keepdim=True)
    score = torch.where(known, best.sigmoid() * share, logits.sigmoid())
    scored = torch.where(known, score.logit(eps=1e-6), logits)
    packed = torch.cat([scored.to(output.dtype), regression(output)], dim=1)
    return packed * valid_points(output)[:, None]
