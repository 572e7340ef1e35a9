"""Averaged gradient episodic memory whose steps do not grow."""

from __future__ import annotations

import random
from typing import Any

import torch
from avalanche.benchmarks.utils import AvalancheDataset
from avalanche.training import plugins as stock
from torch.utils.data import ConcatDataset


class AGEMPlugin(stock.AGEMPlugin):
    """A-GEM with a reference batch drawn over the whole memory, at constant cost.

    The paper (Chaudhry et al. 2019, section 4) takes the reference gradient on a
    random batch from the episodic memory of all past experiences. The stock plugin
    (avalanche-lib 0.6.0, ``agem.py``) has a loader for each experience behind it and
    joins a batch of each, ``sample_size // n`` large: the batch grows until the
    memories together reach ``sample_size``, each step reads from one loader more per
    experience, and ``sample_size`` below the number of experiences is an error. Here

    - the reference batch is ``sample_size`` samples of the memory, drawn anew at each
      step without repetition, or the whole memory while that is smaller;
    - it is read in the process that trains, whatever ``num_workers`` is;
    - no loader is kept, so the plugin can be pickled, which the stock one cannot, and
      a resumed run draws what an uninterrupted one does.

    The draws come from torch's global generator and the choice of what is stored from
    Python's, as in stock.

    :param patterns_per_exp: samples kept of each experience.
    :param sample_size: samples of the reference batch, at least 1.
    :raises ValueError: ``sample_size`` is below 1.
    """

    def __init__(self, patterns_per_exp: int, sample_size: int = 64) -> None:
        if sample_size < 1:
            raise ValueError(f"expected sample_size >= 1 but got {sample_size}")
        super().__init__(patterns_per_exp, sample_size)

    def sample_from_memory(self) -> list[Any]:
        """A random batch over all past experiences, as the stock loaders give it."""
        memory: ConcatDataset[Any] = ConcatDataset(self.buffers)
        drawn = torch.randperm(len(memory))[: self.sample_size].tolist()
        samples = [memory[place] for place in drawn]
        return self.buffers[0].collate_fn(samples)

    def update_memory(
        self, dataset: AvalancheDataset, num_workers: int = 0, **kwargs: Any
    ) -> None:
        """Keep samples of the current experience."""
        places = list(range(len(dataset)))
        if len(places) > self.patterns_per_experience:
            random.shuffle(places)
        self.buffers.append(dataset.subset(places[: self.patterns_per_experience]))
