"""Datasets that draw read the epoch, wherever a strategy keeps them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from avalanche.core import SupervisedPlugin

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


class Drawn:
    """Stands in front of a dataset; its samples say at what address they are read."""

    def __init__(self, data: MomentDataset) -> None:
        self.data = data
        self.clock = Clock("drawn")

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        inputs, targets = self.data[index]
        experience, epoch = self.clock.now
        address = 10 * experience + epoch
        targets["duration_sec"] = targets["duration_sec"].new_tensor(address)
        return inputs, targets


class Watch(SupervisedPlugin):
    """Addresses at which the samples of each epoch were read."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[set[int]] = []

    def before_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
        self.seen.append(set())

    def after_training_iteration(self, strategy: Any, **kwargs: Any) -> None:
        self.seen[-1].update(strategy.mb_y.duration_sec.int().tolist())


@pytest.fixture
def drawn(benchmark: Any) -> Any:
    shared = Drawn(benchmark.datasets["train"])
    benchmark.datasets["train"] = shared
    for experience in benchmark.train_stream:
        (view,) = views(experience.dataset)
        view.dataset = shared
    return benchmark


def views(dataset: Any, kind: type = MomentDataset) -> list[Any]:
    """The torch subsets behind an experience's dataset."""
    queue, found = [dataset], []
    while queue:
        part = queue.pop()
        parts = getattr(part, "_datasets", None) or [getattr(part, "_flat_data", None)]
        if isinstance(getattr(part, "dataset", None), kind):
            found.append(part)
        else:
            queue += [part for part in parts if part is not None]
    return found


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
def test_each_epoch_reads_all_its_samples_at_an_address_of_its_own(
    kind: Any, options: Any, parts: Parts, drawn: Any
) -> None:
    _, seen = learnt(kind, parts, drawn.train_stream[:2], **options)
    assert seen == [{0}, {1}, {10}, {11}]


def test_joint_training_counts_its_epochs(parts: Parts, drawn: Any) -> None:
    _, seen = learnt(LocalizationJoint, parts, [drawn.train_stream])
    assert seen == [{0}, {1}]


def test_copies_in_the_memory_of_a_resumed_strategy_read_the_same_clock(
    parts: Parts, drawn: Any, tmp_path: Path
) -> None:
    steps = drawn.train_stream[:2]
    strategy, _ = learnt(LocalizationReplay, parts, steps[:1], mem_size=4)
    save_checkpoint(strategy, tmp_path / "checkpoint.pkl")
    fresh = LocalizationReplay(**parts(plugins=[Watch()], train_epochs=2), mem_size=4)
    resumed, _ = load_checkpoint(fresh, tmp_path / "checkpoint.pkl")
    watch, replay = resumed.plugins[:2]
    (copied,) = {
        id(view.dataset): view.dataset
        for view in views(replay.storage_policy.buffer, Drawn)
    }.values()
    original = drawn.datasets["train"]
    assert copied is not original
    assert copied.clock is original.clock
    resumed.train(steps[1])
    assert original.clock.now == (1, 1)
    assert watch.seen[-2:] == [{10}, {11}]


def test_datasets_without_draws_have_no_clock(parts: Parts, benchmark: Any) -> None:
    learnt(LocalizationNaive, parts, benchmark.train_stream[:1])
    assert not hasattr(benchmark.datasets["train"], "clock")
