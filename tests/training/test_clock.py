"""Strategies of ours set the clock that datasets draw by before each epoch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from avalanche.core import SupervisedPlugin
from avalanche.training import supervised as stock

from avalanche_vilco.core.clock import Clock
from avalanche_vilco.data.moments import MomentDataset
from avalanche_vilco.training.checkpointing import load_checkpoint, save_checkpoint
from avalanche_vilco.training.strategies import (
    LocalizationAGEM,
    LocalizationCumulative,
    LocalizationJoint,
    LocalizationNaive,
    LocalizationReplay,
)

Parts = Callable[..., dict[str, Any]]


class Watch(SupervisedPlugin):
    """What the clock says in each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, int]] = []

    def after_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
        self.seen.append(strategy.experience.origin_stream.benchmark.clock.now)


@pytest.fixture
def clocked(benchmark: Any) -> Any:
    benchmark.clock = benchmark.datasets["train"].clock = Clock("clocked")
    return benchmark


def learnt(kind: Any, parts: Parts, steps: Any, **options: Any) -> Any:
    watch = Watch()
    strategy = kind(**parts(plugins=[watch], train_epochs=2), **options)
    for step in steps:
        strategy.train(step)
    return strategy, watch.seen


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (LocalizationNaive, {}),
        (LocalizationReplay, {"mem_size": 4}),
        (LocalizationCumulative, {}),
        (LocalizationAGEM, {"patterns_per_exp": 2, "sample_size": 2}),
    ],
)
def test_each_epoch_has_an_address_of_its_own(
    kind: Any, options: Any, parts: Parts, clocked: Any
) -> None:
    _, seen = learnt(kind, parts, clocked.train_stream[:2], **options)
    assert seen == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_joint_training_counts_its_epochs(parts: Parts, clocked: Any) -> None:
    _, seen = learnt(LocalizationJoint, parts, [clocked.train_stream])
    assert seen == [(0, 0), (0, 1)]


def test_stock_sets_no_clock(parts: Parts, clocked: Any) -> None:
    _, seen = learnt(stock.Naive, parts, clocked.train_stream[:1])
    assert seen == [(0, 0), (0, 0)]


def test_copies_in_the_memory_of_a_resumed_strategy_read_the_same_clock(
    parts: Parts, clocked: Any, tmp_path: Path
) -> None:
    steps, original = clocked.train_stream[:2], clocked.datasets["train"]
    strategy, _ = learnt(LocalizationReplay, parts, steps[:1], mem_size=4)
    save_checkpoint(strategy, tmp_path / "checkpoint.pkl")
    fresh = LocalizationReplay(**parts(plugins=[Watch()], train_epochs=2), mem_size=4)
    resumed, _ = load_checkpoint(fresh, tmp_path / "checkpoint.pkl")
    copied = behind(resumed.plugins[1].storage_policy.buffer)
    assert copied is not original
    assert copied.clock is original.clock
    resumed.train(steps[1])
    assert copied.clock.now == (1, 1)


def behind(data: Any) -> MomentDataset:
    """The dataset that samples of a view are read from."""
    while not isinstance(data, MomentDataset):
        parts = getattr(data, "_datasets", None) or [getattr(data, "_flat_data", None)]
        data = getattr(data, "dataset", None) or parts[0]
    return data
