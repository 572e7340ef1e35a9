"""Synaptic Intelligence that works on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

import torch
from avalanche.training.plugins import SynapticIntelligencePlugin
from torch import nn


class MomentSynapticIntelligencePlugin(SynapticIntelligencePlugin):
    """Stock Synaptic Intelligence with weights that are really copied.

    On the CPU the stock plugin keeps views of the live weights, so that old and new
    weights are one and every importance is zero: it runs and does nothing
    (avalanche-lib 0.6.0, ``synaptic_intelligence.py``, ``extract_weights``).
    Parameters without gradient count as having gradient zero.

    Importances are at least zero, as in the authors' code: the stock plugin bounds
    them above only, and a negative one rewards a weight for leaving its place.
    """

    def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Take weights before the experience."""
        self.create_syn_data(
            strategy.model, self.ewc_data, self.syn_data, self.excluded_parameters
        )
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
                step = parameter.detach().flatten().cpu() - old[name].data
                moved[name].data += parameter.grad.flatten().cpu() * step

    def after_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Turn trajectories into importances."""
        super().after_training_exp(strategy, **kwargs)
        for importance in self.ewc_data[1].values():
            importance.data.clamp_(min=0)

    @torch.no_grad()
    def _copy_weights(self, model: nn.Module, target: MutableMapping[str, Any]) -> None:
        for name, parameter in self._parameters(model).items():
            target[name].data = parameter.detach().flatten().cpu().clone()

    def _parameters(self, model: nn.Module) -> Mapping[str, nn.Parameter]:
        return dict(self.allowed_parameters(model, self.excluded_parameters))
