"""Synaptic Intelligence moves importances and holds weights."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from avalanche.training.supervised import Naive
from torch import Tensor, nn

from avalanche_vilco.training.plugins.synaptic_intelligence import (
    SynapticIntelligencePlugin,
)

Parts = Callable[..., dict[str, Any]]


def learn(plugin: Any, parts: Parts, benchmark: Any) -> tuple[Any, float]:
    """Strategy, and how far its weights are from where experience 0 left them."""
    strategy = Naive(**parts(plugins=[plugin]))
    strategy.train(benchmark.train_stream[0], shuffle=False)
    start = {n: p.detach().clone() for n, p in strategy.model.named_parameters()}
    for experience in benchmark.train_stream[1:]:
        strategy.train(experience, shuffle=False)
    moved = [
        (p.detach()[: len(start[n])] - start[n]).flatten()
        for n, p in strategy.model.named_parameters()
    ]
    return strategy, float(torch.cat(moved).norm())


def importances(plugin: Any) -> Tensor:
    return torch.cat([importance.data for importance in plugin.ewc_data[1].values()])


def test_a_larger_lambda_holds_weights_closer(parts: Parts, benchmark: Any) -> None:
    drift = [
        learn(SynapticIntelligencePlugin(value), parts, benchmark)[1]
        for value in (0.0, 1e3, 1e5)
    ]
    assert drift[0] > 1.05 * drift[1] > 1.05**2 * drift[2]


def test_importances_are_never_negative(parts: Parts, benchmark: Any) -> None:
    plugin = SynapticIntelligencePlugin(1.0)
    learn(plugin, parts, benchmark)
    assert importances(plugin).min() == 0
    assert importances(plugin).any()
    trajectories = [t.data for t in plugin.syn_data["cum_trajectory"].values()]
    assert torch.cat(trajectories).max() > 0, "stock would have had negative ones"


class Slope(nn.Module):
    """A loss that falls by 3 for each unit of its one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.unused = nn.Parameter(torch.ones(2))


class Loop:
    """What the plugin reads of a strategy."""

    def __init__(self) -> None:
        self.model = Slope()
        self.device = torch.device("cpu")


def test_importance_is_the_loss_saved_over_the_squared_way() -> None:
    plugin = SynapticIntelligencePlugin(1.0, eps=0.0)
    loop = Loop()
    plugin.before_training_exp(loop)
    for _ in range(4):
        plugin.before_training_iteration(loop)
        loop.model.weight.grad = torch.tensor([-3.0])
        with torch.no_grad():
            loop.model.weight += 100.0
        plugin.after_training_iteration(loop)
    # 4 steps save 3 * 100 each over a way of 400.
    expected = 4 * 300 / 400**2
    trajectory = plugin.syn_data["trajectory"]["weight"].data
    assert trajectory.tolist() == [-1200.0]
    plugin.after_training_exp(loop)
    moved = plugin.syn_data["cum_trajectory"]["weight"].data
    assert moved.tolist() == pytest.approx([-expected])
    assert plugin.ewc_data[1]["weight"].data.tolist() == pytest.approx([1e-3])


def test_weights_without_gradient_have_no_importance() -> None:
    plugin = SynapticIntelligencePlugin(1.0)
    loop = Loop()
    plugin.before_training_exp(loop)
    plugin.before_training_iteration(loop)
    loop.model.weight.grad = torch.tensor([-3.0])
    with torch.no_grad():
        loop.model.weight += 1.0
    plugin.after_training_iteration(loop)
    plugin.after_training_exp(loop)
    assert plugin.ewc_data[1]["unused"].data.tolist() == [0.0, 0.0]


def test_kept_weights_are_copies() -> None:
    plugin = SynapticIntelligencePlugin(1.0)
    loop = Loop()
    plugin.before_training_exp(loop)
    plugin.before_training_iteration(loop)
    with torch.no_grad():
        loop.model.weight += 1.0
    assert plugin.ewc_data[0]["weight"].data.tolist() == [0.0]
    assert plugin.syn_data["old_theta"]["weight"].data.tolist() == [0.0]


def test_all_that_is_kept_lies_on_the_models_device_even_if_it_grows() -> None:
    # Tensors of this device and of the CPU do not mix.
    plugin, loop = SynapticIntelligencePlugin(1.0), Loop()
    loop.device = torch.device("meta")
    loop.model.to(loop.device)
    for n_rows in (1, 3):
        loop.model.weight = nn.Parameter(torch.zeros(n_rows, device=loop.device))
        plugin.before_training_exp(loop)
        plugin.before_training_iteration(loop)
        loop.model.weight.grad = torch.ones(n_rows, device=loop.device)
        plugin.after_training_iteration(loop)
        plugin.after_training_exp(loop)
    kept = [*plugin.ewc_data, plugin.syn_data["trajectory"]]
    assert {part["weight"].data.device.type for part in kept} == {"meta"}
    assert {len(part["weight"].data) for part in kept} == {3}
