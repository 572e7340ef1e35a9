"""Riemannian Walk works where it has the iterations it needs, and says so else."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from avalanche.training import plugins as stock
from avalanche.training.supervised import Naive
from torch import Tensor

from avalanche_vilco.training.plugins.rwalk import RWalkPlugin

Parts = Callable[..., dict[str, Any]]


def learn(strategy: Any, benchmark: Any) -> dict[str, Tensor]:
    for experience in benchmark.train_stream:
        strategy.train(experience, shuffle=False)
    return dict(strategy.model.state_dict())


def test_short_experience_is_refused_with_its_iterations(
    parts: Parts, benchmark: Any
) -> None:
    strategy = Naive(**parts(plugins=[RWalkPlugin(delta_t=10)]))
    expected = "delta_t=10 iterations, but the experience has 4: pass a smaller delta_t"
    with pytest.raises(ValueError, match=expected):
        strategy.train(benchmark.train_stream[0])


def test_a_later_short_experience_is_refused_too(parts: Parts, benchmark: Any) -> None:
    strategy = Naive(**parts(plugins=[RWalkPlugin(delta_t=3)]))
    strategy.train(benchmark.train_stream[0])
    with pytest.raises(ValueError, match="the experience has 2"):
        strategy.train(benchmark.train_stream[1])


def test_epochs_count_as_iterations(parts: Parts, benchmark: Any) -> None:
    plugin = RWalkPlugin(delta_t=8)
    strategy = Naive(**parts(plugins=[plugin], train_epochs=2))
    strategy.train(benchmark.train_stream[0])
    assert plugin.exp_penalties


def test_where_it_does_not_refuse_it_is_stocks(parts: Parts, benchmark: Any) -> None:
    ends = [
        learn(Naive(**parts(plugins=[cls(ewc_lambda=1.0, delta_t=2)])), benchmark)
        for cls in (stock.RWalkPlugin, RWalkPlugin)
    ]
    assert all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0])


def test_penalties_are_finite_and_hold_weights(parts: Parts, benchmark: Any) -> None:
    ends, penalties = {}, {}
    for strength in (0.0, 100.0):
        plugin = RWalkPlugin(ewc_lambda=strength, delta_t=2)
        ends[strength] = learn(Naive(**parts(plugins=[plugin])), benchmark)
        penalties[strength] = torch.cat(
            [penalty.data.flatten() for penalty in plugin.exp_penalties.values()]
        )
    assert torch.isfinite(penalties[100.0]).all()
    assert penalties[100.0].max() > 0
    assert any(not torch.equal(ends[0.0][key], ends[100.0][key]) for key in ends[0.0])


def test_stock_turns_weights_into_nan_where_no_head_grows(
    parts: Parts, benchmark: Any
) -> None:
    options = parts(plugins=[stock.RWalkPlugin(delta_t=100)])
    queries = benchmark.queries
    options["model"].learn_queries(queries)
    ends = learn(Naive(**options), benchmark)
    assert any(torch.isnan(value).any() for value in ends.values())
