"""Scores of a model on experiences, outside a strategy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from avalanche_vilco.benchmarks.scenario import QueryIncrementalScenario
from avalanche_vilco.evaluation.metrics.emission import MetricState, values_of


@torch.no_grad()
def scores_of(
    model: Any,
    dataset: Any,
    states: Sequence[MetricState],
    *,
    device: torch.device | str = "cpu",
    batch_size: int = 16,
) -> dict[str, float]:
    """Scores of a model on samples.

    :param model: has ``decode``.
    :param dataset: samples, with their ``collate_fn``.
    :param states: metrics, reset first.
    :return: value by name, in [0, 1].
    """
    was_training = model.training
    model.eval()
    for state in states:
        state.reset()
    loader = DataLoader(dataset, batch_size=batch_size, collate_fn=dataset.collate_fn)
    for inputs, targets in loader:
        targets = targets.to(device)
        predictions = model.decode(model(inputs.to(device)), targets)
        for state in states:
            state.update(predictions, targets)
    model.train(was_training)
    return {
        name: float(value)
        for state in states
        for name, value in values_of(state).items()
    }


def chance_level(
    model: nn.Module,
    benchmark: QueryIncrementalScenario,
    states: Sequence[MetricState],
    *,
    seed: int,
    averages: str = "plain",
    **options: Any,
) -> dict[str, float]:
    """Average over experiences of what the model scores on the test stream when what
    it is shown says nothing about the answer.

    :param model: after its last experience.
    :param benchmark: with a stream ``test`` whose samples can be ``scrambled``.
    :param states: metrics of the wanted values.
    :param seed: of the shuffle.
    :param averages: ``"plain"``, or ``"cumulative"`` to weigh an experience by the
        queries seen when it was learnt.
    :param options: ``device`` and ``batch_size`` of :func:`scores_of`.
    :return: value by name, in [0, 1], the counterpart of P_T: experiences without an
        answer do not count. NaN where there is nothing to score, or nothing to
        exchange.
    """
    shuffled = benchmark.datasets["test"].scrambled(seed)
    if shuffled is None:
        return {name: math.nan for state in states for name in state.names}
    experiences = [e for e in benchmark.test_stream if len(e.dataset)]
    parts = [shuffled.subset(e.dataset.positions) for e in experiences]
    scores = [scores_of(model, part, states, **options) for part in parts]
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
