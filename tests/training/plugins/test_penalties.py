"""Faster penalties are stock's."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from avalanche.training.plugins import EWCPlugin, MASPlugin
from avalanche.training.utils import ParamData
from torch import Tensor, nn

from avalanche_vilco.training.plugins.penalties import (
    MomentEWCPlugin,
    MomentMASPlugin,
    weighted_distance,
)
from avalanche_vilco.training.supervised import ViLCoNaive

Parts = Callable[..., dict[str, Any]]
ONLINE = {"mode": "online", "decay_factor": 0.5}
PAIRS = [
    (EWCPlugin, MomentEWCPlugin, {"ewc_lambda": 100.0}),
    (EWCPlugin, MomentEWCPlugin, {"ewc_lambda": 100.0, **ONLINE}),
    (MASPlugin, MomentMASPlugin, {"lambda_reg": 10.0}),
]


class Scalar(nn.Module):
    """Returns its input times its one weight."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([value]))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def kept(*values: float) -> dict[str, ParamData]:
    return {"weight": ParamData("weight", init_tensor=torch.tensor(values))}


def test_distance_and_slope_by_hand() -> None:
    model = Scalar(5.0)
    distance = weighted_distance(model, kept(3.0), kept(10.0))
    (3 * distance).backward()
    assert float(distance.detach()) == 10 * 2**2
    assert model.weight.grad.tolist() == [3 * 2 * 10 * 2]


def test_weights_that_are_new_or_have_grown_are_free() -> None:
    model = Scalar(5.0)
    model.weight = nn.Parameter(torch.tensor([5.0, 7.0]))
    model.added = nn.Parameter(torch.ones(3))
    weighted_distance(model, kept(3.0), kept(10.0)).backward()
    assert model.weight.grad.tolist() == [40.0, 0.0]
    assert model.added.grad is None


@pytest.mark.parametrize("slopes", [(2.0, 0.0), (0.0, 2.0)])
def test_fisher_is_the_mean_over_batches_in_either_order(slopes: Any) -> None:
    model = Scalar(1.0)
    importances = MomentEWCPlugin(1.0).compute_importances(
        model,
        lambda out, y: out.sum(),
        torch.optim.SGD(model.parameters()),
        [(torch.tensor(slope), torch.tensor(0), 0) for slope in slopes],
        "cpu",
        1,
    )
    assert importances["weight"].data.tolist() == [2.0]


@pytest.mark.parametrize(("stock", "ours", "options"), PAIRS)
def test_loss_and_gradient_are_those_of_stock(
    stock: Any, ours: Any, options: Any, parts: Parts, benchmark: Any
) -> None:
    plugin = stock(**options)
    strategy = ViLCoNaive(**parts(plugins=[plugin], train_epochs=2))
    for experience in benchmark.train_stream[:2]:
        strategy.train(experience)
    strategy.model.learn_queries(benchmark.queries)
    found = []
    for kind in (stock, ours):
        fast = kind(**options)
        fast.__dict__.update(plugin.__dict__)
        strategy.model.zero_grad()
        for weight in strategy.model.parameters():
            weight.data += 0.01
        loop = SimpleNamespace(
            model=strategy.model,
            device="cpu",
            loss=torch.tensor(1.0),
            clock=strategy.clock,
        )
        fast.before_backward(loop)
        loop.loss.backward()
        grads = [p.grad for p in strategy.model.parameters() if p.grad is not None]
        found.append([loop.loss.detach(), *(grad.clone() for grad in grads)])
        for weight in strategy.model.parameters():
            weight.data -= 0.01
    assert float(found[0][0]) > 1
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("stock", "ours", "options"), PAIRS)
def test_training_ends_where_stock_ends(
    stock: Any, ours: Any, options: Any, parts: Parts, benchmark: Any
) -> None:
    ends = []
    for kind in (stock, ours):
        arguments = parts(plugins=[kind(**options)])
        # Adam would turn a last bit of a small gradient into a step.
        arguments["optimizer"] = torch.optim.SGD(
            arguments["model"].parameters(), lr=1e-3
        )
        strategy = ViLCoNaive(**arguments)
        for experience in benchmark.train_stream:
            strategy.train(experience)
        ends.append(dict(strategy.model.state_dict()))
    torch.testing.assert_close(ends[1], ends[0], rtol=1e-4, atol=1e-6)
