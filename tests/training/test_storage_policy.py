"""The public code's memory: slots of classes, filled with whole clips."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute
from avalanche.training.plugins import ReplayPlugin

from avalanche_vilco.benchmarks.vilco_mq.generator import vilco_mq
from avalanche_vilco.training.storage_policy import ClassSlotBuffer
from avalanche_vilco.training.strategies import LocalizationNaive, LocalizationReplay

Parts = Callable[..., dict[str, Any]]

ENTRIES = (528, 780, 873, 900, 910)
UNIQUE_CLIPS = (301, 506, 621, 679, 725)
"""Measured on the public code with 1010 slots and seed 0."""
SPREAD = (4.3, 6.3, 7.1, 7.6, 7.9)
"""Standard deviation of the unique clips over 200 seeds of ours."""


def n_entries(buffer):
    return sum(map(len, buffer.slots.values()))


def clips(channels: list[tuple[int, ...]], first: int = 0) -> AvalancheDataset:
    """Samples that are numbers, with the queries that each has a window of."""
    names = [f"clip {first + i}" for i in range(len(channels))]
    return AvalancheDataset(
        [list(range(first, first + len(channels)))],
        data_attributes=[
            DataAttribute(channels, "class_indices"),
            DataAttribute(names, "clip_ids"),
        ],
    )


def held(buffer: ClassSlotBuffer, channel: int) -> set[int]:
    """Samples in a query's slots."""
    return {buffer.buffer[position] for position in buffer.slots[channel]}


@pytest.fixture(scope="module")
def public_clips(shared_dir: Path) -> list[list[tuple[int, ...]]]:
    file = shared_dir / "oracles" / "mq" / "official_split.json"
    train = json.loads(file.read_text())["splits"]["train"]
    return [
        [tuple(sorted(set(clip["labels"]))) for clip in train[str(task)]]
        for task in range(5)
    ]


def public_memory(
    experiences: list[list[tuple[int, ...]]], seed: int
) -> list[tuple[int, int]]:
    """Entries and unique clips after each experience."""
    buffer, sizes = ClassSlotBuffer(1010, seed=seed), []
    for number, channels in enumerate(experiences):
        buffer.update_from_dataset(clips(channels), range(22 * (number + 1)))
        sizes.append((n_entries(buffer), len(buffer.buffer)))
    return sizes


def test_entries_are_those_of_the_public_code(public_clips) -> None:
    assert [entries for entries, _ in public_memory(public_clips, 0)] == [*ENTRIES]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_unique_clips_are_those_of_the_public_code_up_to_the_draw(
    public_clips, seed: int
) -> None:
    # The public number is one draw and so is ours: four deviations of a difference.
    for (_, ours), public, spread in zip(
        public_memory(public_clips, seed), UNIQUE_CLIPS, SPREAD, strict=True
    ):
        assert abs(ours - public) <= 4 * 2**0.5 * spread


def test_reference_stream_gives_the_public_memory(
    shared_dir: Path, noise_features: Any
) -> None:
    file = shared_dir / "data" / "ego4d_mq" / "ego4d_clip_annotations_v2.json"
    benchmark = vilco_mq(
        protocol="reference",
        sources={"annotations": file, "features": noise_features()},
    )
    buffer, entries = ClassSlotBuffer(1010), []
    for number, experience in enumerate(benchmark.train_stream):
        buffer.post_adapt(None, experience)
        entries.append(n_entries(buffer))
        off = abs(len(buffer.buffer) - UNIQUE_CLIPS[number])
        assert off <= 4 * 2**0.5 * SPREAD[number]
    assert tuple(entries) == ENTRIES


def test_slots_are_shared_equally_by_the_queries_seen() -> None:
    buffer = ClassSlotBuffer(12)
    buffer.update_from_dataset(clips([(0,)] * 20 + [(1,)] * 3))
    assert {c: len(slots) for c, slots in buffer.slots.items()} == {0: 6, 1: 3}
    buffer.update_from_dataset(clips([(2,)] * 20, first=23))
    assert {c: len(slots) for c, slots in buffer.slots.items()} == {0: 4, 1: 3, 2: 4}


def test_queries_without_a_clip_have_their_share_too() -> None:
    buffer = ClassSlotBuffer(12)
    buffer.update_from_dataset(clips([(0,)] * 20), seen=range(4))
    assert n_entries(buffer) == len(buffer.buffer) == 3


def test_a_clip_fills_a_slot_of_each_of_its_queries_and_is_stored_once() -> None:
    buffer = ClassSlotBuffer(12)
    buffer.update_from_dataset(clips([(0, 1), (0, 1), (1, 2)]))
    assert held(buffer, 0) == {0, 1}
    assert held(buffer, 1) == {0, 1, 2}
    assert held(buffer, 2) == {2}
    assert n_entries(buffer) == 6
    assert sorted(buffer.buffer) == [0, 1, 2]


def test_slots_point_at_clips_that_have_their_query() -> None:
    generator = torch.Generator().manual_seed(3)
    buffer, channels = ClassSlotBuffer(60), []
    for experience in range(4):
        own = [
            tuple(
                sorted(
                    {
                        5 * experience + c
                        for c in torch.randint(5, (2,), generator=generator).tolist()
                    }
                )
            )
            for _ in range(30)
        ]
        buffer.update_from_dataset(clips(own, first=len(channels)))
        channels += own
        for channel in buffer.slots:
            assert all(channel in channels[clip] for clip in held(buffer, channel))
        assert list(buffer.buffer.class_indices) == [channels[i] for i in buffer.buffer]


def test_what_is_kept_of_an_old_query_was_kept_before() -> None:
    buffer = ClassSlotBuffer(20)
    buffer.update_from_dataset(clips([(0,)] * 40))
    before = held(buffer, 0)
    buffer.update_from_dataset(clips([(1,)] * 40, first=40))
    assert held(buffer, 0) < before
    assert len(before) == 2 * len(held(buffer, 0)) == 20


def test_draws_follow_the_seed_and_leave_torchs_generator_alone() -> None:
    state = torch.get_rng_state()
    kept = []
    for seed in (0, 0, 1):
        buffer = ClassSlotBuffer(5, seed=seed)
        buffer.update_from_dataset(clips([(0,)] * 50))
        kept.append(held(buffer, 0))
    assert kept[0] == kept[1] != kept[2]
    assert torch.equal(torch.get_rng_state(), state)


def test_every_clip_of_a_query_is_equally_likely() -> None:
    counts = torch.zeros(20)
    for seed in range(400):
        buffer = ClassSlotBuffer(5, seed=seed)
        buffer.update_from_dataset(clips([(0,)] * 20))
        counts[list(held(buffer, 0))] += 1
    # 100 expected of each, with a deviation of 8.7
    assert counts.sum() == 2000
    assert counts.min() > 60 and counts.max() < 140


def test_resizing_cuts_the_slots() -> None:
    buffer = ClassSlotBuffer(20)
    buffer.update_from_dataset(clips([(0,)] * 15 + [(1,)] * 15))
    buffer.resize(None, 6)
    assert [len(slots) for slots in buffer.slots.values()] == [3, 3]
    assert len(buffer.buffer) == 6


def test_copies_of_a_memory_go_on_alike() -> None:
    buffer = ClassSlotBuffer(9)
    buffer.update_from_dataset(clips([(0, 1)] * 20))
    other = pickle.loads(pickle.dumps(buffer))
    for each in (buffer, other):
        each.update_from_dataset(clips([(2,)] * 20, first=20))
    assert list(other.buffer) == list(buffer.buffer)
    assert other.slots == buffer.slots


def test_more_queries_than_slots_are_refused() -> None:
    with pytest.raises(ValueError, match="each of 4 queries but got max_size 3"):
        ClassSlotBuffer(3).update_from_dataset(clips([(0, 1, 2, 3)]))
    with pytest.raises(ValueError, match="at least 1 but got 0"):
        ClassSlotBuffer(0)


def test_replay_draws_its_batches_from_class_slots(parts: Parts, benchmark) -> None:
    by_unit = LocalizationReplay(**parts(), mem_size=6, unit="class_slots")
    by_policy = LocalizationNaive(
        **parts(plugins=[ReplayPlugin(6, storage_policy=ClassSlotBuffer(6))])
    )
    for strategy in (by_unit, by_policy):
        torch.manual_seed(0)
        for experience in benchmark.train_stream[:2]:
            strategy.train(experience)
    (memory,) = (
        plugin.storage_policy
        for plugin in by_unit.plugins
        if isinstance(plugin, ReplayPlugin)
    )
    assert isinstance(memory, ClassSlotBuffer)
    # Queries 0, 1, 2 and then 3: one slot each, of clips that have the query.
    assert n_entries(memory) <= 4
    assert set(memory.slots) == {0, 1, 2, 3}
    for channel, slots in memory.slots.items():
        assert all(channel in memory.buffer.class_indices[i] for i in slots)
    for ours, theirs in zip(
        by_unit.model.parameters(), by_policy.model.parameters(), strict=True
    ):
        assert torch.equal(ours, theirs)


def test_unit_of_a_memory_is_checked(parts: Parts) -> None:
    with pytest.raises(ValueError, match="'class_slots'] but got 'clips'"):
        LocalizationReplay(**parts(), mem_size=6, unit="clips")
