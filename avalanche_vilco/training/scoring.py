"""Scores of a model on experiences, outside a strategy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from avalanche_vilco.benchmarks.query_incremental import QueryIncrementalBenchmark
from avalanche_vilco.data.features import ShuffledFeatures
from avalanche_vilco.data.moments import MomentDataset
from avalanche_vilco.evaluation.metrics.recall import MomentRecall


@torch.no_grad()
def recall_of(
    model: Any,
    dataset: MomentDataset,
    recalls: Sequence[MomentRecall],
    *,
    device: torch.device | str = "cpu",
    batch_size: int = 16,
) -> dict[str, float]:
    """Recall of a model on samples.

    :param model: has ``decode``.
    :param dataset: samples.
    :param recalls: metrics, reset first.
    :return: value by name, in [0, 1].
    """
    was_training = model.training
    model.eval()
    for recall in recalls:
        recall.reset()
    loader = DataLoader(dataset, batch_size=batch_size, collate_fn=dataset.collate_fn)
    for inputs, targets in loader:
        targets = targets.to(device)
        predictions = model.decode(model(inputs.to(device)), targets)
        for recall in recalls:
            recall.update(predictions, targets)
    model.train(was_training)
    return {
        name: float(value)
        for recall in recalls
        for name, value in recall.compute().items()
    }


def chance_level(
    model: nn.Module,
    benchmark: QueryIncrementalBenchmark,
    recalls: Sequence[MomentRecall],
    *,
    seed: int,
    averages: str = "plain",
    **options: Any,
) -> dict[str, float]:
    """Average over experiences of what the model scores on the test stream when the
    features say nothing about their clip.

    :param model: after its last experience.
    :param benchmark: with a stream ``test``.
    :param recalls: metrics of the wanted values.
    :param seed: of the shuffle.
    :param averages: ``"plain"``, or ``"cumulative"`` to weigh an experience by the
        queries seen when it was learnt.
    :param options: ``device`` and ``batch_size`` of :func:`recall_of`.
    :return: value by name, in [0, 1], the counterpart of P_T: experiences without a
        window do not count. NaN where there is nothing to score, or but one clip.
    """
    whole = benchmark.moments["test"]
    clips = [sample.clip.clip_id for sample in whole.samples]
    if len(set(clips)) < 2:
        return {name: math.nan for recall in recalls for name in recall.names}
    store = ShuffledFeatures(whole.store, clips, seed)
    experiences = [e for e in benchmark.test_stream if len(e.dataset)]
    parts = [whole.subset(e.dataset.positions, store=store) for e in experiences]
    scores = [recall_of(model, part, recalls, **options) for part in parts]
    seen = [len(experience.classes_seen_so_far) for experience in experiences]
    weights = seen if averages == "cumulative" else [1] * len(seen)
    return {
        name: _mean_known([score[name] for score in scores], weights)
        for name in scores[0]
    }


def _mean_known(values: Sequence[float], weights: Sequence[float]) -> float:
    pairs = zip(values, weights, strict=True)
    known = [(value, weight) for value, weight in pairs if not math.isnan(value)]
    total = sum(weight for _, weight in known)
    return sum(v * w for v, w in known) / total if known else math.nan
