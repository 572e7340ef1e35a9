"""Memories of ours fill their size, whatever the sizes of experiences."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute
from avalanche.training.storage_policy import ExperienceBalancedBuffer
from hypothesis import given, settings
from hypothesis import strategies as st

from avalanche_vilco.training.plugins.gdumb import GDumbPlugin
from avalanche_vilco.training.storage_policy import (
    ClassSlotBuffer,
    ExperienceShareBuffer,
    RandomQuotaBuffer,
    TargetShareBuffer,
    fair_shares,
)

KINDS = (ExperienceShareBuffer, TargetShareBuffer, RandomQuotaBuffer)
SIZES = st.lists(st.integers(0, 12), min_size=1, max_size=5)


def experience(number: int, size: int, queries: int = 1, start: int = 0) -> Any:
    """Samples that are numbers, of one or more queries of the experience's own."""
    samples = [100 * number + start + i for i in range(size)]
    data = AvalancheDataset(
        [samples],
        data_attributes=[
            DataAttribute(
                [(number * 9 + i % queries,) for i in samples], "class_indices"
            ),
            DataAttribute([f"clip {i}" for i in samples], "clip_ids"),
            DataAttribute(samples, "positions"),
            DataAttribute([number * 9 + i % queries for i in samples], "targets"),
        ],
    )
    return SimpleNamespace(dataset=data, current_experience=number)


def learn(buffer: Any, sizes: list[int]) -> list[list[int]]:
    """Samples stored of each experience after each."""
    stored = []
    for number, size in enumerate(sizes):
        if size:
            buffer.post_adapt(None, experience(number, size))
        held = [i // 100 for i in buffer.buffer]
        assert (
            len(set(buffer.buffer))
            == len(held)
            == min(buffer.max_size, sum(sizes[: number + 1]))
        )
        stored.append([held.count(n) for n in range(number + 1)])
    return stored


def test_ten_places_for_one_twenty_and_twenty_clips_are_filled() -> None:
    assert learn(ExperienceShareBuffer(10), [1, 20, 20]) == [[1], [1, 9], [1, 5, 4]]
    assert learn(RandomQuotaBuffer(10), [1, 20, 20])[-1] == [1, 5, 4]
    assert learn(GDumbPlugin(10).storage_policy, [1, 20, 20])[-1] == [1, 5, 4]


@settings(max_examples=40)
@given(sizes=SIZES, total=st.integers(1, 15), kind=st.sampled_from(KINDS))
def test_no_experience_is_above_its_share_while_another_lacks(
    sizes: list[int], total: int, kind: Any
) -> None:
    for seen, counts in enumerate(learn(kind(total), sizes), 1):
        lacking = [n for n, size in zip(counts, sizes[:seen], strict=True) if n < size]
        assert max(counts) <= min(lacking, default=max(counts)) + 1


@given(sizes=SIZES, total=st.integers(0, 15))
def test_shares_are_those_of_dealing_place_by_place(
    sizes: list[int], total: int
) -> None:
    dealt = [0] * len(sizes)
    for _ in range(total):
        open_ones = [i for i, size in enumerate(sizes) if dealt[i] < size]
        if open_ones:
            dealt[min(open_ones, key=dealt.__getitem__)] += 1
    assert sorted(fair_shares(sizes, total)) == sorted(dealt)
    assert all(map(int.__le__, fair_shares(sizes, total), sizes))


@pytest.mark.parametrize("total", [7, 9])
def test_with_samples_enough_it_keeps_what_stock_keeps(total: int) -> None:
    kept = []
    for kind in (ExperienceBalancedBuffer, ExperienceShareBuffer):
        torch.manual_seed(0)
        buffer = kind(total)
        for number in range(4):
            buffer.post_adapt(None, experience(number, 10))
        kept.append(list(buffer.buffer))
    assert kept[0] == kept[1]


def test_parts_of_an_experience_share_its_place_and_nothing_is_stored_twice() -> None:
    buffer = ExperienceShareBuffer(8)
    whole = experience(0, 6)
    for start in (0, 3):
        part = experience(0, 3, start=start)
        part.origin_experience = whole
        buffer.post_adapt(None, part)
    assert sorted(buffer.buffer) == list(range(6))
    for again in (whole, experience(1, 20), whole):
        buffer.post_adapt(None, again)
    held = [i // 100 for i in buffer.buffer]
    assert [held.count(0), held.count(1)] == [4, 4]
    assert len(set(buffer.buffer)) == 8
    buffer.resize(None, 3)
    assert len(buffer.buffer) == 3


@pytest.mark.parametrize("kind", [RandomQuotaBuffer, ClassSlotBuffer])
def test_what_is_learnt_again_is_stored_once(kind: Any) -> None:
    buffer, again = kind(10), experience(0, 6)
    again.classes_in_this_experience = [0]
    for _ in range(2):
        buffer.post_adapt(None, again)
        assert sorted(buffer.buffer) == list(range(6))
