"""Nothing about a test clip's answers reaches its predictions."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from avalanche.training.supervised import Naive
from torch.utils.data import DataLoader

from avalanche_vilco import MomentLoss, vilco_mq, vilco_mq_tiny
from avalanche_vilco.core.batch import collate_moments
from avalanche_vilco.data.features import ShuffledFeatures
from avalanche_vilco.data.moments import MomentDataset
from avalanche_vilco.training.templates import localization_evaluator


@pytest.fixture(scope="module")
def benchmark(mq_root: Path):
    return vilco_mq(mq_root)


@pytest.fixture(scope="module")
def model(benchmark):
    """Trained for two epochs on two of the five experiences."""
    torch.manual_seed(0)
    localiser = vilco_mq_tiny(
        feature_dim=benchmark.info["feature_dim"], text_dim=benchmark.text_dim
    )
    strategy = Naive(
        model=localiser,
        optimizer=torch.optim.AdamW(localiser.parameters(), lr=2e-3),
        criterion=MomentLoss(),
        train_mb_size=4,
        train_epochs=2,
        evaluator=localization_evaluator(),
    )
    for experience in benchmark.train_stream[:2]:
        strategy.train(experience)
    return localiser.eval()


def emptied(samples):
    nothing = {
        "windows_sec": np.empty((0, 2)),
        "class_indices": np.empty(0, dtype=np.int64),
    }
    return [replace(s, **nothing) for s in samples]


def exchanged(samples):
    """Each clip with the windows, labels and questions of the next."""
    return [
        replace(
            own,
            windows_sec=other.windows_sec,
            class_indices=other.class_indices,
            asked=other.asked,
        )
        for own, other in zip(samples, samples[1:] + samples[:1], strict=True)
    ]


def relabelled(samples):
    return [replace(s, class_indices=(s.class_indices + 1) % 10) for s in samples]


def asking_nothing(samples):
    return [replace(s, asked=()) for s in samples]


def predictions(model, data: MomentDataset, batch_size: int = 3):
    loader = DataLoader(data, batch_size=batch_size, collate_fn=collate_moments)
    with torch.no_grad():
        return [model.decode(model(inputs), targets) for inputs, targets in loader]


def answers(data: MomentDataset) -> list[list]:
    return [[t["segments_sec"].tolist(), t["labels"].tolist()] for _, t in data]


@pytest.mark.parametrize("change", [emptied, exchanged, relabelled, asking_nothing])
def test_predictions_do_not_depend_on_test_annotations(benchmark, model, change):
    data = benchmark.datasets["test"]
    changed = MomentDataset(change(list(data.samples)), data.store, data.n_queries)
    if change is not asking_nothing:
        assert answers(changed) != answers(data)
    for ours, theirs in zip(
        predictions(model, data), predictions(model, changed), strict=True
    ):
        assert (ours.labels >= 0).any()
        for name, tensor in ours.fields().items():
            assert torch.equal(tensor, theirs.fields()[name]), name


def test_predictions_do_depend_on_features(benchmark, model):
    data = benchmark.datasets["test"]
    ids = [sample.clip.clip_id for sample in data.samples]
    blind = MomentDataset(
        data.samples, ShuffledFeatures(data.store, ids, seed=0), data.n_queries
    )
    (ours,), (theirs,) = (predictions(model, each, len(data)) for each in (data, blind))
    assert not torch.equal(ours.scores, theirs.scores)


def test_predictions_are_the_same_every_time(benchmark, model):
    data = benchmark.datasets["test"]
    for ours, theirs in zip(
        predictions(model, data), predictions(model, data), strict=True
    ):
        assert torch.equal(ours.segments_sec, theirs.segments_sec)
        assert torch.equal(ours.scores, theirs.scores)


def test_model_sees_features_and_their_steps_only(benchmark):
    for experience in benchmark.test_stream:
        for inputs, _, _ in experience.dataset:
            assert inputs.keys() == {"features", "valid"}
