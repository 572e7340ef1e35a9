"""Telling datasets whose samples are drawn where training has come to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np
from avalanche.benchmarks import CLScenario, CLStream
from avalanche.training.plugins import EvaluationPlugin
from torch import Tensor, nn
from torch.optim import Optimizer

from avalanche_vilco.core.batch import TensorBatch
from avalanche_vilco.data.moments import MomentDataset


@runtime_checkable
class DrawnDataset(Protocol):
    """A dataset that draws something of a sample when it is read."""

    def at_epoch(self, experience: int, epoch: int) -> None:
        """Draw as in this epoch from here on."""


_CLOSED = (
    *(CLScenario, CLStream, EvaluationPlugin, MomentDataset, TensorBatch),
    *(Tensor, nn.Module, Optimizer, np.ndarray, type),
)
"""What holds no training data that is drawn, or holds too much to look through."""
_NUMBERS_AND_TEXT = (int, float, str, bytes)


def tell_epoch(strategy: Any) -> None:
    """Tell the datasets that a strategy reads which epoch of which experience comes.

    Besides the experience's own these are those in buffers: a checkpoint holds copies
    of its own, so after a resume they are not the benchmark's.

    :param strategy: strategy before an epoch of its training loop.
    """
    experience = strategy.experience
    if next(drawn_datasets(experience.dataset), None) is None:
        return
    whole = getattr(experience, "origin_experience", None) or experience
    for dataset in drawn_datasets(strategy):
        dataset.at_epoch(whole.current_experience, strategy.clock.train_exp_epochs)


def drawn_datasets(root: Any) -> Iterator[DrawnDataset]:
    """Datasets with draws that can be reached from an object, each once.

    :param root: a dataset, a view of some, or what keeps them.
    """
    queue, seen = [root], set[int]()
    while queue:
        thing = queue.pop()
        if id(thing) in seen or isinstance(thing, _CLOSED):
            continue
        seen.add(id(thing))
        if isinstance(thing, DrawnDataset):
            yield thing
        else:
            queue += _parts(thing)


def _parts(thing: Any) -> list[Any]:
    if isinstance(thing, dict):
        return list(thing.values())
    if isinstance(thing, (list, tuple, set, frozenset)):
        # Positions and labels of thousands of samples are of one kind.
        is_plain = isinstance(next(iter(thing), 0), _NUMBERS_AND_TEXT)
        return [] if is_plain else list(thing)
    return list(vars(thing).values()) if hasattr(thing, "__dict__") else []
