"""Targets and decoding agree on Ego4D's own language queries: a model that says what
its targets ask finds every window."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from avalanche_vilco.benchmarks.vilco_nlq.annotations import read_language_queries
from avalanche_vilco.benchmarks.vilco_nlq.dataset import (
    FEATURES_PER_SEC,
    QueryDataset,
    feature_clip,
    query_sample,
)
from avalanche_vilco.core.batch import MomentTargets, collate_queries
from avalanche_vilco.data.text.tokens import HashedTokens
from avalanche_vilco.evaluation.metrics.recall import MomentRecall
from avalanche_vilco.models.decoding import MomentDecoder
from avalanche_vilco.models.losses import assign_points
from avalanche_vilco.models.output import n_points, pack_output, point_grid

N_LEVELS = 7


@pytest.fixture(scope="module")
def batches(shared_dir: Path, noise_features: Any) -> list[MomentTargets]:
    """Targets of all questions of the real val file."""
    read = read_language_queries({"val": shared_dir / "data/ego4d_nlq/nlq_val.json"})
    clips = {
        uid: feature_clip(clip, FEATURES_PER_SEC) for uid, clip in read.clips.items()
    }
    store = noise_features()
    store.preflight({i: c.duration_sec * FEATURES_PER_SEC for i, c in clips.items()})
    samples = [query_sample(query, clips[query.clip_id], -1) for query in read.queries]
    words = HashedTokens({query.query_id: "one" for query in read.queries}, width=1)
    data = QueryDataset(samples, store, words)
    loader = DataLoader(data, batch_size=64, collate_fn=collate_queries)
    return [targets for _, targets in loader]


def perfect_outputs(
    batches: list[MomentTargets],
) -> Iterator[tuple[MomentTargets, torch.Tensor, torch.Tensor]]:
    """For each batch the output that its targets ask for, and the positive points."""
    for targets in batches:
        n_steps = targets.valid.shape[1]
        points = n_points(n_steps, N_LEVELS)
        grid = point_grid(points, n_steps, targets.valid.device)
        wanted = assign_points(grid, targets, 1)
        logits = 40 * wanted.classes - 20
        output = pack_output(logits, wanted.offsets, grid.valid(targets.valid))
        yield targets, output, wanted.positive


def test_perfect_regressor_finds_every_window_of_the_real_file(batches) -> None:
    recall = MomentRecall(k=(1, 5), tiou=(0.3, 0.5, 0.95), budget="fixed")
    decode = MomentDecoder(max_windows=5)
    n_positive = []
    for targets, output, positive in perfect_outputs(batches):
        n_positive += positive.sum(dim=1).tolist()
        recall.update(decode(output, targets), targets)
    assert len(n_positive) == 4552
    assert min(n_positive) == 1
    assert recall.compute() == dict.fromkeys(recall.names, 1.0)


def test_window_between_two_steps_is_learnt_at_the_nearest(batches) -> None:
    n_between = 0
    for targets, _, positive in perfect_outputs(batches):
        start, end = targets.segments[:, 0].unbind(-1)
        first_inside = start.floor() + 1
        last = targets.valid.sum(dim=1) - 1
        between = (first_inside >= end) | (first_inside > last)
        n_between += int(between.sum())
        assert (positive[between].sum(dim=1) == 1).all()
    # Shorter than a step; the public grid gives 34 of them no point at all.
    assert n_between == 31
