"""EWC and MAS have the numbers of Avalanche's, at a cost that does not grow."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from avalanche.core import SupervisedPlugin
from avalanche.training import plugins as stock
from avalanche.training.supervised import Naive
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from avalanche_vilco.training.plugins.consolidation import (
    EWCPlugin,
    MASPlugin,
    QuadraticPenalty,
)

Parts = Callable[..., dict[str, Any]]


class Losses(SupervisedPlugin):
    """Keeps the loss of every step."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def after_training_iteration(self, strategy: Any, **kwargs: Any) -> None:
        self.seen.append(strategy.loss.detach())


def learn(plugin: Any, parts: Parts, benchmark: Any) -> tuple[Tensor, Tensor]:
    """Losses of all steps and final weights."""
    losses = Losses()
    torch.manual_seed(0)
    base = parts(plugins=[plugin, losses])
    # Adam would divide a slope of rounding errors by its size.
    optimizer = torch.optim.SGD(base["model"].parameters(), lr=0.01, momentum=0.9)
    strategy = Naive(**{**base, "optimizer": optimizer})
    for experience in benchmark.train_stream:
        strategy.train(experience, shuffle=False)
    weights = torch.cat([p.detach().flatten() for p in strategy.model.parameters()])
    return torch.stack(losses.seen), weights


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (EWCPlugin(30.0), stock.EWCPlugin(30.0)),
        (EWCPlugin(30.0, "online", 0.5), stock.EWCPlugin(30.0, "online", 0.5)),
        (MASPlugin(1.0, 0.3), stock.MASPlugin(1.0, 0.3)),
    ],
    ids=["ewc", "ewc online", "mas"],
)
def test_numbers_are_those_of_avalanche(
    ours: Any, theirs: Any, parts: Parts, benchmark: Any
) -> None:
    losses, weights = learn(ours, parts, benchmark)
    wanted_losses, wanted = learn(theirs, parts, benchmark)
    _, free = learn(SupervisedPlugin(), parts, benchmark)
    torch.testing.assert_close(losses, wanted_losses, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(weights, wanted, rtol=1e-5, atol=1e-5)
    assert (weights - free).abs().max() > 1e-3


@given(
    st.lists(
        st.tuples(st.integers(2, 5), st.integers(0, 2**16)), min_size=1, max_size=4
    )
)
@settings(max_examples=30, deadline=None)
def test_many_penalties_are_one(experiences: list[tuple[int, int]]) -> None:
    model, penalty, strength = nn.Linear(3, 1).double(), QuadraticPenalty(), 0.7
    past: list[tuple[dict[str, Tensor], dict[str, Tensor]]] = []
    for rows, seed in experiences:
        torch.manual_seed(seed)
        grown = nn.Linear(3, max(rows, model.out_features)).double()
        with torch.no_grad():
            grown.weight[: model.out_features] = torch.randn_like(model.weight)
        model = grown
        weights = {n: p.detach().clone() for n, p in model.named_parameters()}
        importances = {n: torch.rand_like(p).round() for n, p in weights.items()}
        penalty.add(importances, model)
        past.append((importances, weights))
    expected = sum(
        (importances[n] * (p[: len(weights[n])] - weights[n]).square()).sum()
        for importances, weights in past
        for n, p in model.named_parameters()
    )
    (strength * expected).backward()
    wanted = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    value = penalty.pull(model, strength)
    torch.testing.assert_close(value, strength * expected.detach())
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight.grad, wanted[name])


def test_memory_is_that_of_two_models_however_much_is_past(
    parts: Parts, benchmark: Any
) -> None:
    plugin = EWCPlugin(1.0)
    strategy = Naive(**parts(plugins=[plugin]))
    for experience in benchmark.train_stream:
        strategy.train(experience)
    *maps, _ = plugin.kept()
    kept = [tensor for part in maps for tensor in part.values()]
    n_weights = sum(p.numel() for p in strategy.model.parameters())
    assert sum(tensor.numel() for tensor in kept) == 2 * n_weights
    assert not plugin.saved_params and not plugin.importances
