"""Experiences and streams as Avalanche's plugins look for them."""

from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from avalanche.training.storage_policy import (
    ClassBalancedBuffer,
    ExperienceBalancedBuffer,
    ReservoirSamplingBuffer,
)
from torch.utils.data import DataLoader

from avalanche_vilco.benchmarks.manifest import Category
from avalanche_vilco.benchmarks.scenario import (
    QueryIncrementalScenario,
    learnt_queries,
    query_streams,
)
from avalanche_vilco.core.batch import ClipBatch, MomentTargets
from avalanche_vilco.core.report import DataReport
from avalanche_vilco.data.features import FeatureFolder
from avalanche_vilco.data.moments import MomentClip, MomentDataset, MomentSample

SIZES = (3, 1, 2)
LABELS = (16, 59, 3, 7, 11, 0)
CLIPS = {"train": (4, 2, 3), "valid": (0, 1, 0), "test": (1, 1, 2)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("features")
    for name, counts in CLIPS.items():
        for i in range(sum(counts)):
            array = np.random.default_rng(i).random((10 + i, 4), dtype=np.float32)
            np.save(path / f"{name}{i}.npy", array)
    return path


def moments(folder, name: str) -> MomentDataset:
    samples = []
    for e, n_clips in enumerate(CLIPS[name]):
        first = sum(SIZES[:e])
        for i in range(n_clips):
            clip_id = f"{name}{len(samples)}"
            windows = np.array([[0.5, 1.0 + i]])
            channels = np.array([first + i % SIZES[e]])
            clip = MomentClip(clip_id, clip_id, "train", 10.0, 1.0, windows, channels)
            asked = tuple(range(first, first + SIZES[e]))
            samples.append(MomentSample(clip, windows, channels, asked))
    return MomentDataset(samples, FeatureFolder(folder), sum(SIZES))


def build(folder, return_task_id=False) -> QueryIncrementalScenario:
    names = [Category(label, f"label {label}") for label in LABELS]
    ends = np.cumsum(SIZES).tolist()
    parts = [names[end - n : end] for end, n in zip(ends, SIZES, strict=True)]
    groups = learnt_queries(parts, lambda name: torch.zeros(2, 8))
    data = {name: moments(folder, name) for name in CLIPS}
    streams = query_streams(
        data,
        CLIPS,
        groups,
        class_indices=lambda sample: sample.class_indices.tolist(),
        return_task_id=return_task_id,
    )
    queries = list(chain(*groups))
    return QueryIncrementalScenario(
        streams, queries=queries, datasets=data, info={"a": 1}, report=DataReport()
    )


@pytest.fixture(scope="module")
def benchmark(folder) -> QueryIncrementalScenario:
    return build(folder)


def all_experiences(benchmark):
    return [exp for stream in benchmark.streams.values() for exp in stream]


def assert_same_sample(one, other) -> None:
    for ours, theirs in zip(one[:2], other[:2], strict=True):
        for name in theirs:
            assert torch.equal(ours[name], theirs[name]), name


@pytest.mark.parametrize("stream", list(CLIPS))
def test_timeline_of_classes_is_the_same_on_every_stream(benchmark, stream):
    first, second, third = benchmark.streams[stream]
    assert first.classes_in_this_experience == [0, 1, 2]
    assert second.classes_in_this_experience == [3]
    assert third.classes_in_this_experience == [4, 5]
    assert [set(exp.previous_classes) for exp in (first, second, third)] == [
        set(),
        {0, 1, 2},
        {0, 1, 2, 3},
    ]
    assert [set(exp.future_classes) for exp in (first, second, third)] == [
        {3, 4, 5},
        {4, 5},
        set(),
    ]
    for exp in (first, second, third):
        now = set(exp.classes_in_this_experience)
        assert exp.classes_seen_so_far == now | exp.previous_classes
        assert exp.classes_seen_so_far | exp.future_classes == set(range(6))


def test_original_labels_are_recoverable(benchmark):
    assert benchmark.classes_order == list(LABELS)
    assert benchmark.n_classes_per_exp == list(SIZES)
    assert (benchmark.n_classes, benchmark.n_experiences) == (6, 3)
    second = benchmark.test_stream[1]
    (query,) = second.queries_in_this_experience
    assert (query.class_index, query.label_id, query.name) == (3, 7, "label 7")
    assert [query.label_id for query in second.previous_queries] == [16, 59, 3]
    assert benchmark.text_dim == 8


def test_experience_knows_its_stream_and_benchmark(benchmark):
    for name, stream in benchmark.streams.items():
        assert stream.name == name
        assert stream.benchmark is benchmark
        assert len(stream) == 3
        for i, exp in enumerate(stream):
            assert exp.current_experience == i
            assert exp.origin_stream is stream
            assert exp.benchmark is benchmark
    assert benchmark.train_stream is benchmark.streams["train"]


def test_sliced_stream_keeps_the_links(benchmark):
    part = benchmark.train_stream[1:]
    assert part.benchmark is benchmark
    assert [exp.current_experience for exp in part] == [1, 2]
    assert part[0].origin_stream is benchmark.train_stream
    assert part[0].benchmark is benchmark


@pytest.mark.parametrize("return_task_id", [False, True])
def test_task_label_is_that_of_the_samples(folder, return_task_id):
    for exp in all_experiences(build(folder, return_task_id)):
        expected = exp.current_experience if return_task_id else 0
        assert exp.task_label == expected
        assert exp.task_labels == [expected]
        assert set(exp.dataset.targets_task_labels) <= {expected}
        assert all(sample[-1] == expected for sample in exp.dataset)


def test_dataset_can_be_replaced(folder):
    experience = build(folder).train_stream[0]
    part = experience.dataset.subset([1, 2])
    experience.dataset = part
    assert experience.dataset is part
    assert len(experience.dataset) == 2
    assert experience.benchmark.train_stream[0].dataset is part


def test_masked_copies_of_an_experience_keep_queries_and_samples(benchmark):
    exp = benchmark.train_stream[1]
    for view in (exp.train(), exp.eval(), exp.logging()):
        assert view.classes_in_this_experience == [3]
        assert view.queries_in_this_experience == exp.queries_in_this_experience
        assert view.task_labels == [0]
        assert len(view.dataset) == 2


def test_dataset_gives_the_samples_of_its_experience(benchmark, folder):
    data = moments(folder, "train")
    spot = 0
    for exp in benchmark.train_stream:
        for sample in exp.dataset:
            assert_same_sample(sample, data[spot])
            spot += 1
    assert spot == len(data)


VIEWS = {
    "subset": lambda dataset, other: dataset.subset([2, 0]),
    "concat": lambda dataset, other: dataset.concat(other),
    "concat of subsets": lambda d, other: d.subset([0]).concat(other.subset([1])),
    "train mode": lambda dataset, other: dataset.train(),
    "eval mode": lambda dataset, other: dataset.eval(),
    "frozen": lambda dataset, other: dataset.freeze_transforms(),
}


@pytest.mark.parametrize("view", VIEWS)
def test_views_keep_collate_labels_and_groups(benchmark, view):
    first, second = (exp.dataset for exp in benchmark.train_stream[:2])
    dataset = VIEWS[view](first, second)
    n = len(dataset)
    loader = DataLoader(dataset, batch_size=n, collate_fn=dataset.collate_fn)
    inputs, targets, task_labels = next(iter(loader))
    assert isinstance(inputs, ClipBatch) and isinstance(targets, MomentTargets)
    assert len(inputs) == len(targets) == n
    assert task_labels.tolist() == [0] * n
    heads = [row[row >= 0][0].item() for row in targets.labels]
    assert list(dataset.targets) == heads
    positions = targets.sample.tolist()
    assert list(dataset.clip_ids) == [f"train{position}" for position in positions]


def test_two_reads_of_a_view_in_train_and_eval_mode_are_equal(benchmark):
    dataset = benchmark.train_stream[0].dataset.subset([1, 3])
    for i in range(2):
        assert_same_sample(dataset.train()[i], dataset.eval()[i])


def test_concat_starting_with_an_empty_experience_keeps_collate(benchmark):
    empty, one, _ = (exp.dataset for exp in benchmark.valid_stream)
    joined = empty.concat(one)
    assert len(joined) == 1
    inputs, _, labels = joined.collate_fn([joined[0]])
    assert isinstance(inputs, ClipBatch)
    assert labels.tolist() == [0]


def test_experience_without_clips_is_a_legal_experience(benchmark):
    empty = benchmark.valid_stream[2]
    assert len(empty.dataset) == 0
    assert list(empty.dataset) == []
    assert empty.task_label == 0
    assert empty.classes_in_this_experience == [4, 5]
    assert list(empty.dataset.targets) == []


BUFFERS = {
    "reservoir": lambda: ReservoirSamplingBuffer(5),
    "class-balanced": lambda: ClassBalancedBuffer(6),
    "experience-balanced": lambda: ExperienceBalancedBuffer(6),
}


@pytest.mark.parametrize("name", BUFFERS)
def test_stock_buffer_keeps_samples_of_train_with_their_collate(
    benchmark, folder, name
):
    buffer = BUFFERS[name]()
    for exp in benchmark.train_stream:
        strategy = SimpleNamespace(experience=exp)
        if name == "reservoir":
            buffer.update_from_dataset(exp.dataset)
        else:
            buffer.post_adapt(strategy, exp)
    stored = buffer.buffer
    assert 3 <= len(stored) <= 6
    data = moments(folder, "train")
    for sample in stored:
        assert_same_sample(sample, data[int(sample[1]["sample"])])
    positions = [int(sample[1]["sample"]) for sample in stored]
    assert len(set(positions)) == len(positions)
    assert list(stored.clip_ids) == [f"train{position}" for position in positions]
    inputs, targets, _ = stored.collate_fn([stored[i] for i in range(len(stored))])
    assert isinstance(inputs, ClipBatch) and isinstance(targets, MomentTargets)


def test_class_balanced_buffer_groups_by_the_given_integers(benchmark):
    buffer = ClassBalancedBuffer(6)
    for exp in benchmark.train_stream:
        buffer.post_adapt(SimpleNamespace(experience=exp), exp)
    assert set(buffer.buffer_groups) == {0, 1, 2, 3, 4, 5}
    for group, part in buffer.buffer_groups.items():
        assert set(part.buffer.targets) == {group}
