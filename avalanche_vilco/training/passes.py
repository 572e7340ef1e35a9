"""Passes over data beside the training loop, which leave no trace on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from avalanche_vilco.core.random import generators_kept


def batches_of(dataset: Any, strategy: Any) -> Iterator[tuple[Any, Any]]:
    """Inputs and targets of all samples in order, on the strategy's device.

    Transforms are those of evaluation, and no random number is drawn.

    :param dataset: Avalanche dataset.
    :param strategy: has ``device`` and ``eval_mb_size``.
    """
    loader = DataLoader(
        dataset.eval(),
        batch_size=strategy.eval_mb_size,
        collate_fn=dataset.collate_fn,
        # Iterating a loader draws a seed for its workers, with or without any.
        generator=torch.Generator(),
    )
    for inputs, targets, *_ in loader:
        yield inputs.to(strategy.device), targets.to(strategy.device)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Have a model in evaluation mode, without gradients, and draw nothing for good."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad(), generators_kept():
            yield
    finally:
        # One by one: a plugin may hold a part in evaluation mode.
        for module, mode in modes.items():
            module.training = mode
