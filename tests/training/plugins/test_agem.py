"""A-GEM's reference batch: the whole memory has a part in it, the cost stays."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from avalanche_vilco.training.plugins.agem import AGEMPlugin
from avalanche_vilco.training.strategies import LocalizationAGEM


def learnt(parts: Callable[..., Any], benchmark: Any, size: int) -> AGEMPlugin:
    strategy = LocalizationAGEM(**parts(), patterns_per_exp=3, sample_size=size)
    for experience in benchmark.train_stream:
        strategy.train(experience)
    (plugin,) = [p for p in strategy.plugins if isinstance(p, AGEMPlugin)]
    return plugin


def drawn(plugin: AGEMPlugin) -> list[int]:
    return plugin.sample_from_memory()[1].sample.tolist()


def test_reference_batch_is_as_large_after_three_experiences_as_after_one(
    parts: Callable[..., Any], benchmark: Any
) -> None:
    plugin = learnt(parts, benchmark, 2)
    stored = [set(buffer.positions) for buffer in plugin.buffers]
    assert [len(own) for own in stored] == [3, 3, 3]
    torch.manual_seed(0)
    batches = [drawn(plugin) for _ in range(60)]
    assert {len(batch) for batch in batches} == {2}
    assert all(len(set(batch)) == 2 for batch in batches)
    assert {place for batch in batches for place in batch} == set().union(*stored)
    del plugin.buffers[1:]
    assert len(drawn(plugin)) == 2


def test_one_sample_is_enough_for_any_number_of_experiences(
    parts: Callable[..., Any], benchmark: Any
) -> None:
    assert len(drawn(learnt(parts, benchmark, 1))) == 1


def test_batch_larger_than_the_memory_is_the_memory(
    parts: Callable[..., Any], benchmark: Any
) -> None:
    plugin = learnt(parts, benchmark, 50)
    assert sorted(drawn(plugin)) == sorted(
        place for buffer in plugin.buffers for place in buffer.positions
    )


def test_batch_without_a_sample_is_refused() -> None:
    with pytest.raises(ValueError, match="sample_size >= 1 but got 0"):
        AGEMPlugin(3, 0)
