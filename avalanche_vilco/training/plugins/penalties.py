"""Avalanche's penalties on weights, with all tensors in one call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from avalanche.training.plugins import EWCPlugin, MASPlugin
from avalanche.training.utils import ParamData
from torch import Tensor, nn

Kept = Mapping[str, ParamData]


class MomentEWCPlugin(EWCPlugin):
    """Stock EWC with a faster penalty, equal up to rounding."""

    def before_backward(self, strategy: Any, **kwargs: Any) -> None:
        """Add the penalty to the loss.

        :param strategy: strategy in its training loop.
        """
        done = strategy.clock.train_exp_counter
        past: Iterable[int] = range(done) if self.mode == "separate" else (done - 1,)
        for experience in past if done else ():
            distance = weighted_distance(
                strategy.model,
                self.saved_params[experience],
                self.importances[experience],
            )
            strategy.loss = strategy.loss + self.ewc_lambda * distance


class MomentMASPlugin(MASPlugin):
    """Stock MAS with a faster penalty, equal up to rounding."""

    def before_backward(self, strategy: Any, **kwargs: Any) -> None:
        """Add the penalty to the loss.

        :param strategy: strategy in its training loop.
        """
        if self.params is None or self.importance is None:
            return
        distance = weighted_distance(strategy.model, self.params, self.importance)
        strategy.loss = strategy.loss + self._lambda * distance


def weighted_distance(model: nn.Module, saved: Kept, importances: Kept) -> Tensor:
    """Sum of importance * (weight - saved weight)^2.

    :param model: weights that are not among the saved ones do not count; of tensors
        that have grown the new part has importance 0.
    :param saved: by name.
    :param importances: by name, at least 0.
    :return: 0-d tensor.
    """
    weights = {n: p for n, p in model.named_parameters() if n in saved}
    old = [saved[name].expand(weight.shape) for name, weight in weights.items()]
    strength = [importances[n].expand(weight.shape) for n, weight in weights.items()]
    distance: Tensor = _WeightedDistance.apply(old, strength, *weights.values())
    return distance


class _WeightedDistance(torch.autograd.Function):
    """Its slope is known, so autograd need not walk through each tensor."""

    @staticmethod
    def forward(ctx: Any, old: Any, strength: Any, *weights: Tensor) -> Tensor:
        gaps = torch._foreach_sub(weights, old)
        ctx.pull = torch._foreach_mul(gaps, strength)
        torch._foreach_mul_(gaps, ctx.pull)
        # Terms are at least 0: their sum is their 1-norm.
        return torch.stack(torch._foreach_norm(gaps, 1)).sum()

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        return None, None, *torch._foreach_mul(ctx.pull, 2 * slopes[0])
