"""Synaptic Intelligence that works on the CPU, and on a GPU stays there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from itertools import chain
from typing import Any

import torch
from avalanche.training import plugins as stock
from avalanche.training.utils import ParamData
from torch import nn

LARGEST_IMPORTANCE = 1e-3
"""As in the stock plugin."""


class SynapticIntelligencePlugin(stock.SynapticIntelligencePlugin):
    """Stock Synaptic Intelligence with weights that are really copied.

    On the CPU the stock plugin keeps views of the live weights, so that old and new
    weights are one and every importance is zero: it runs and does nothing
    (avalanche-lib 0.6.0, ``synaptic_intelligence.py``, ``extract_weights``).
    Parameters without gradient count as having gradient zero. On a GPU the stock plugin
    copies all weights and gradients to the CPU at every step; here all that is kept
    lies on the strategy's device.

    Importances are at least zero, as in the authors' code: the stock plugin bounds
    them above only, and a negative one rewards a weight for leaving its place.
    """

    def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Take weights before the experience."""
        self.create_syn_data(
            strategy.model, self.ewc_data, self.syn_data, self.excluded_parameters
        )
        for kept in self._kept():
            kept.device = torch.device(strategy.device)
            kept.data = kept.data.to(strategy.device)
        self._copy_weights(strategy.model, self.ewc_data[0])
        for trajectory in self.syn_data["trajectory"].values():
            trajectory.data.fill_(0.0)

    def before_training_iteration(self, strategy: Any, **kwargs: Any) -> None:
        """Take weights before the step."""
        self._copy_weights(strategy.model, self.syn_data["old_theta"])

    def after_training_iteration(self, strategy: Any, **kwargs: Any) -> None:
        """Add this step's share of the loss to the trajectory."""
        old, moved = self.syn_data["old_theta"], self.syn_data["trajectory"]
        with torch.no_grad():
            for name, parameter in self._parameters(strategy.model).items():
                if parameter.grad is None:
                    continue
                step = parameter.detach().flatten() - old[name].data
                moved[name].data += parameter.grad.flatten() * step

    @torch.no_grad()
    def after_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Turn trajectories into importances, and hold weights where they are now."""
        (start, importances), moved = self.ewc_data, self.syn_data["trajectory"]
        total = self.syn_data["cum_trajectory"]
        for name, parameter in self._parameters(strategy.model).items():
            way = (parameter.detach().flatten() - start[name].data).square()
            total[name].data += moved[name].data / (way + self.eps)
            importances[name].data = (-total[name].data).clamp(0, LARGEST_IMPORTANCE)
        self._copy_weights(strategy.model, start)

    @torch.no_grad()
    def _copy_weights(self, model: nn.Module, target: MutableMapping[str, Any]) -> None:
        for name, parameter in self._parameters(model).items():
            target[name].data = parameter.detach().flatten().clone()

    def _kept(self) -> Iterator[ParamData]:
        names = ("old_theta", "trajectory", "cum_trajectory")
        data = [*self.ewc_data, *(self.syn_data[name] for name in names)]
        return chain.from_iterable(part.values() for part in data)

    def _parameters(self, model: nn.Module) -> Mapping[str, nn.Parameter]:
        return dict(self.allowed_parameters(model, self.excluded_parameters))
