"""Scores of a model on experiences, outside a strategy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from avalanche_vilco.evaluation.metrics.emission import MetricState, values_of
from avalanche_vilco.training.passes import evaluating


def scores_of(
    model: Any,
    dataset: Any,
    states: Sequence[MetricState],
    *,
    device: torch.device | str = "cpu",
    batch_size: int = 16,
) -> dict[str, float]:
    """Scores of a model on samples.

    Modes, and the global generators of random numbers, are afterwards as before.

    :param model: has ``decode``.
    :param dataset: samples, with their ``collate_fn``.
    :param states: metrics, reset first.
    :return: value by name, in [0, 1].
    """
    for state in states:
        state.reset()
    loader = DataLoader(dataset, batch_size=batch_size, collate_fn=dataset.collate_fn)
    with evaluating(model):
        for inputs, targets in loader:
            targets = targets.to(device)
            predictions = model.decode(model(inputs.to(device)), targets)
            for state in states:
                state.update(predictions, targets)
    return {
        name: float(value)
        for state in states
        for name, value in values_of(state).items()
    }


def chance_level(
    model: nn.Module,
    scenario: Any,
    states: Sequence[MetricState],
    *,
    weights: Sequence[float],
    seed: int,
    **options: Any,
) -> dict[str, float]:
    """Average of what a model scores when its input says nothing about the answer.

    :param model: after its last experience.
    :param scenario: with a test stream.
    :param states: metrics of the wanted values.
    :param weights: of the experiences.
    :param seed: of what is exchanged, see the dataset's ``scrambled``.
    :param options: ``device`` and ``batch_size`` of :func:`scores_of`.
    :return: value by name, in [0, 1], the counterpart of P_T: experiences without an
        answer do not count. NaN where there is nothing to score, or nothing to
        exchange.
    """
    shuffled = scenario.datasets["test"].scrambled(seed)
    if shuffled is None:
        return {name: math.nan for state in states for name in state.names}
    found = [
        (scores_of(model, shuffled.subset(e.dataset.positions), states, **options), w)
        for e, w in zip(scenario.test_stream, weights, strict=True)
        if len(e.dataset)
    ]
    return {
        name: _mean_known([(scores[name], weight) for scores, weight in found])
        for name in found[0][0]
    }


def _mean_known(pairs: Sequence[tuple[float, float]]) -> float:
    known = [(value, weight) for value, weight in pairs if not math.isnan(value)]
    total = sum(weight for _, weight in known)
    return sum(v * w for v, w in known) / total if known else math.nan
