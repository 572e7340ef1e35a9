"""EWC and MAS whose penalty costs one pass over the weights, however much is past."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from avalanche.training import plugins as stock
from torch import Tensor, nn

_PIECE = 1 << 17
"""Weights whose arithmetic stays in a processor's cache."""


class QuadraticPenalty:
    """Sum over weights of importance x (weight - centre)^2, and a constant.

    Penalties of several experiences are one such sum: I is the sum of their
    importances, the centre the mean of their weights by importance.
    """

    def __init__(self) -> None:
        self.importances: dict[str, Tensor] = {}
        """By name of the weight, in its shape when the last experience ended."""
        self.centres: dict[str, Tensor] = {}
        """Likewise; where nothing is important, the last weights."""
        self.constant = torch.zeros(())

    @torch.no_grad()
    def add(self, importances: Mapping[str, Tensor], model: nn.Module) -> None:
        """Hold the model's weights where they are now, too.

        :param importances: by name of the weight, at least 0.
        :param model: whose weights they are.
        """
        for name, weight in model.named_parameters():
            if name not in importances:
                continue
            new = importances[name].detach()
            old, centre = self._expanded(name, weight)
            total = old + new
            # Weights of no importance stay out of a division by zero.
            share = torch.where(total > 0, new / total.clamp(min=1e-38), 1.0)
            moved = weight.detach() - centre
            added = (old * share * moved.square()).sum()
            self.constant = self.constant.to(added) + added
            self.importances[name] = total
            self.centres[name] = centre + share * moved

    @torch.no_grad()
    def replace(
        self,
        importances: Mapping[str, Tensor],
        model: nn.Module,
        *,
        old_share: float,
        new_share: float,
    ) -> None:
        """Hold the model's weights where they are now, and nowhere else.

        :param importances: as for :meth:`add`.
        :param model: whose weights they are.
        :param old_share: factor of the importances so far in the new ones.
        :param new_share: factor of those given, of weights that had some before.
        """
        for name, weight in model.named_parameters():
            if name not in importances:
                continue
            new = importances[name].detach()
            if name in self.importances:
                old, _ = self._expanded(name, weight)
                new = old_share * old + new_share * new
            self.importances[name] = new
            self.centres[name] = weight.detach().clone()

    @torch.no_grad()
    def pull(self, model: nn.Module, strength: float) -> Tensor:
        """Add the slopes of strength x penalty to the gradients.

        :param model: whose weights are held.
        :param strength: at least 0.
        :return: the penalty times strength, 0-d.
        """
        total = self.constant
        for name, weight in model.named_parameters():
            if name not in self.importances or not weight.requires_grad:
                continue
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            parts = (weight, weight.grad, *self._expanded(name, weight))
            for now, slope, importance, centre in _pieces(parts):
                shift = now - centre
                force = importance * shift
                slope.add_(force, alpha=2 * strength)
                total = total.to(force) + force.mul_(shift).sum()
        return strength * total

    def _expanded(self, name: str, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Importance and centre of a weight that may have grown or be new.

        What is new is of no importance.
        """
        if name not in self.importances:
            return torch.zeros_like(weight), weight.detach().clone()
        importance, centre = self.importances[name], self.centres[name]
        if importance.shape != weight.shape:
            sizes = zip(weight.shape, importance.shape, strict=True)
            more = [pad for new, old in reversed([*sizes]) for pad in (0, new - old)]
            importance, centre = F.pad(importance, more), F.pad(centre, more)
            self.importances[name], self.centres[name] = importance, centre
        return importance, centre


def _pieces(parts: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
    """Views of tensors of one shape that are worked on one after the other."""
    parts = tuple(part.detach() for part in parts)
    if not all(part.is_cpu and part.is_contiguous() for part in parts):
        return [parts]
    return [*zip(*(part.view(-1).split(_PIECE) for part in parts), strict=True)]


class _HoldsWeights:
    """Adds a penalty to gradients and loss where Avalanche adds one to the graph."""

    penalty: QuadraticPenalty
    strength: float

    def before_backward(self, strategy: Any, **kwargs: Any) -> None:
        """Leave the loss as it is; see :meth:`after_backward`."""

    def after_backward(self, strategy: Any, **kwargs: Any) -> None:
        """Add the penalty to the gradients and to the loss."""
        if self.penalty.importances:
            pulled = self.penalty.pull(strategy.model, self.strength)
            strategy.loss = strategy.loss.detach() + pulled

    def kept(self) -> tuple[Any, ...]:
        """What the method keeps."""
        return self.penalty.importances, self.penalty.centres, self.penalty.constant


class EWCPlugin(_HoldsWeights, stock.EWCPlugin):
    """Elastic weight consolidation at constant cost and memory.

    Numbers are those of Avalanche's plugin but for rounding. There each experience
    behind adds a copy of the weights, one of importances and a pass over both to every
    step; with nothing to keep of each, ``keep_importance_data`` is no option here.

    :param ewc_lambda: strength of the penalty.
    :param mode: "separate" holds the weights after every experience, "online" those
        after the last one, with importances of earlier ones decayed.
    :param decay_factor: of "online", in [0, 1].
    """

    def __init__(
        self,
        ewc_lambda: float,
        mode: str = "separate",
        decay_factor: float | None = None,
    ) -> None:
        super().__init__(ewc_lambda, mode, decay_factor)
        self.penalty, self.strength = QuadraticPenalty(), ewc_lambda

    def after_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Measure importances and hold the weights."""
        measured = self.compute_importances(
            strategy.model,
            strategy._criterion,
            strategy.optimizer,
            strategy.experience.dataset,
            strategy.device,
            strategy.train_mb_size,
            num_workers=kwargs.get("num_workers", 0),
        )
        importances = {name: value.data for name, value in measured.items()}
        if self.mode == "separate":
            self.penalty.add(importances, strategy.model)
        else:
            self.penalty.replace(
                importances, strategy.model, old_share=self.decay_factor, new_share=1.0
            )


class MASPlugin(_HoldsWeights, stock.MASPlugin):
    """Memory-aware synapses whose penalty is one pass over the weights.

    Numbers are those of Avalanche's plugin but for rounding.

    :param lambda_reg: strength of the penalty.
    :param alpha: share of the importances so far in the new ones, in [0, 1].
    :param verbose: show the progress of measuring importances.
    """

    def __init__(
        self, lambda_reg: float = 1.0, alpha: float = 0.5, verbose: bool = False
    ) -> None:
        super().__init__(lambda_reg, alpha, verbose)
        self.penalty, self.strength = QuadraticPenalty(), lambda_reg

    def after_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Measure importances and hold the weights."""
        measured = self._get_importance(strategy)
        self.penalty.replace(
            {name: value.data for name, value in measured.items()},
            strategy.model,
            old_share=self.alpha,
            new_share=1 - self.alpha,
        )
