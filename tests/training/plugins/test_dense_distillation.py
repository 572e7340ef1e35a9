"""Distillation at every point, for any packed output."""

from collections.abc import Callable
from math import log
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from avalanche_vilco.training.plugins.dense_distillation import DenseDistillationPlugin
from avalanche_vilco.training.strategies import (
    LocalizationDenseDistillation,
    LocalizationNaive,
)

Parts = Callable[..., dict[str, Any]]
LOG3 = log(3)


def packed(*channels: float) -> Tensor:
    """(1, K + R, 1): one point."""
    return torch.tensor(channels)[None, :, None]


def test_one_query_and_windows_by_hand() -> None:
    plugin = DenseDistillationPlugin(weight=10.0, regression_weight=100.0)
    taught, output = packed(LOG3, 1.0, 2.0), packed(0.0, 1.5, 4.0)
    regressions = 0.5**2 / 2 + (2 - 0.5)
    expected = 10 * log(2) + 100 * regressions
    assert float(plugin.penalty(output, taught)) == pytest.approx(expected)


def test_boxes_are_four_channels() -> None:
    plugin = DenseDistillationPlugin(n_regression=4)
    taught = packed(0.0, 1.0, 1.0, 1.0, 1.0)
    output = packed(0.0, 3.0, 3.0, 3.0, 1.5)
    expected = log(2) + 3 * (2 - 0.5) + 0.5**2 / 2
    assert float(plugin.penalty(output, taught)) == pytest.approx(expected)


def test_new_queries_are_free_and_regressions_are_last() -> None:
    plugin = DenseDistillationPlugin(weight=0.0)
    taught, output = packed(3.0, 1.0, 2.0), packed(-3.0, 7.0, 1.0, 2.0)
    assert float(plugin.penalty(output, taught)) == 0
    output.requires_grad_()
    (slope,) = torch.autograd.grad(
        DenseDistillationPlugin().penalty(output, taught), output
    )
    assert slope.flatten()[1] == 0
    assert slope.flatten()[0] != 0


def test_padding_does_not_count() -> None:
    plugin = DenseDistillationPlugin()
    taught, output = packed(LOG3, 1.0, 2.0), packed(0.0, 1.5, 4.0)
    alone = float(plugin.penalty(output, taught))
    empty = torch.zeros(1, 3, 4)
    longer = [torch.cat([x, empty], dim=2) for x in (output, taught)]
    assert float(plugin.penalty(*longer)) == pytest.approx(alone)


class OneQuery(nn.Module):
    """As NLQ's and VQ's models: one logit for whatever is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv1d(3, 1 + 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class Loop:
    """What the plugin reads of a strategy."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = OneQuery()
        self.mb_x = torch.randn(2, 3, 5)

    def step(self) -> None:
        self.mb_output = self.model(self.mb_x)
        self.loss = torch.zeros(1)


def test_a_model_of_one_query_is_held() -> None:
    plugin, loop = DenseDistillationPlugin(), Loop()
    loop.step()
    plugin.before_backward(loop)
    assert float(loop.loss) == 0
    plugin.after_training_exp(loop)
    with torch.no_grad():
        loop.model.layer.bias += 1.0
    loop.step()
    plugin.before_backward(loop)
    loop.loss.backward()
    assert (loop.model.layer.bias.grad > 0).all()


def test_previous_model_runs_once_a_batch(parts: Parts, benchmark: Any) -> None:
    plugin = DenseDistillationPlugin()
    strategy = LocalizationNaive(**parts(plugins=[plugin]))
    strategy.train(benchmark.train_stream[0])
    calls: list[Any] = []
    plugin.teacher.register_forward_pre_hook(lambda _, inputs: calls.append(inputs[0]))
    teacher, batches = plugin.teacher, []
    plugin.after_backward = lambda strategy, **_: batches.append(strategy.mb_x)
    strategy.train(benchmark.train_stream[1])
    assert teacher is not plugin.teacher
    assert len(calls) == len(batches) > 0
    assert all(seen is batch for seen, batch in zip(calls, batches, strict=True))


def test_a_larger_weight_holds_old_answers_closer(parts: Parts, benchmark: Any) -> None:
    inputs = benchmark.train_stream[0].dataset.collate_fn(
        list(benchmark.train_stream[0].dataset)
    )[0]
    moved = []
    for weight in (0.0, 30.0):
        strategy = LocalizationDenseDistillation(
            **parts(train_epochs=6), weight=weight, regression_weight=weight
        )
        outputs = []
        for experience in benchmark.train_stream[:2]:
            strategy.train(experience, shuffle=False)
            with torch.no_grad():
                outputs.append(strategy.model(inputs))
        old = [torch.cat([out[:, :3], out[:, -2:]], dim=1) for out in outputs]
        moved.append(float((old[0] - old[1]).norm()))
    assert moved[0] > 1.05 * moved[1]
