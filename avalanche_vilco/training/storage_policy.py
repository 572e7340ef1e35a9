"""Memories of clips, for Avalanche's replay plugins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from avalanche.benchmarks.utils import AvalancheDataset
from avalanche.training.storage_policy import ExemplarsBuffer
from torch import Tensor, nn

from avalanche_vilco.data.batch import ClipBatch


class ClipCodes(nn.Module):
    """A localiser whose output is its clip codes.

    Avalanche's selection strategies hook a layer of a model's forward pass and want
    one vector a sample from it::

        HerdingSelectionStrategy(ClipCodes(model), "model.pooled")

    :param model: has ``clip_codes`` and a layer ``pooled`` that its codes go through.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, clips: ClipBatch) -> Tensor:
        """(B, D) clip codes."""
        return self.model.clip_codes(clips)


class ClassSlotBuffer(ExemplarsBuffer):
    """The public code's memory: equally many slots for each query seen.

    Each query keeps up to ``max_size // queries seen`` random clips with a window of
    it. A clip is kept whole, with the windows of all queries asked of it, and may fill
    slots of several queries; it is replayed once an epoch all the same, so
    :attr:`buffer` holds fewer samples than there are entries::

        ReplayPlugin(1010, storage_policy=ClassSlotBuffer(1010))

    Draws come from ``seed`` and the number of updates, not from torch's generator: a
    memory of this kind changes no other draw of a run.

    :param max_size: slots of all queries together.
    :param seed: of the choice of clips.
    :raises ValueError: ``max_size`` is below 1.
    """

    def __init__(self, max_size: int, *, seed: int = 0) -> None:
        if max_size < 1:
            raise ValueError(f"expected max_size of at least 1 but got {max_size}")
        super().__init__(max_size)
        self.seed = seed
        self.slots: dict[int, list[int]] = {}
        """Query channel -> its clips, as positions in :attr:`buffer`."""
        self._n_updates = 0

    @property
    def n_entries(self) -> int:
        """Slots filled."""
        return sum(map(len, self.slots.values()))

    def post_adapt(self, agent: Any, exp: Any) -> None:
        """Take in an experience just learnt.

        :param agent: the strategy.
        :param exp: has ``dataset`` and ``classes_seen_so_far``.
        """
        self.update_from_dataset(exp.dataset, exp.classes_seen_so_far)

    def update_from_dataset(
        self, new_data: AvalancheDataset, seen: Iterable[int] = ()
    ) -> None:
        """Take in samples.

        :param new_data: has the attribute ``channels``, for each sample the queries
            with a window in it.
        :param seen: queries that share the slots though no sample may have them.
        :raises ValueError: there are more queries than slots.
        """
        candidates = _clips_by_query(new_data.channels, first=len(self.buffer))
        for channel in seen:
            self.slots.setdefault(channel, [])
        generator = self._generator()
        for channel, clips in sorted(candidates.items()):
            pool = self.slots.get(channel, []) + clips
            order = torch.randperm(len(pool), generator=generator).tolist()
            self.slots[channel] = [pool[i] for i in order]
        self._n_updates += 1
        data = self.buffer.concat(new_data) if len(self.buffer) else new_data
        self._keep(data)

    def resize(self, strategy: Any, new_size: int) -> None:
        """Change the number of slots.

        :param strategy: not used.
        :param new_size: slots of all queries together.
        """
        self.max_size = new_size
        self._keep(self.buffer)

    def _generator(self) -> torch.Generator:
        generator = torch.Generator()
        return generator.manual_seed(self.seed * 1_000_003 + self._n_updates)

    def _keep(self, data: AvalancheDataset) -> None:
        """Cut the slots to size and keep the samples that fill one."""
        size = self.max_size // max(len(self.slots), 1)
        if self.slots and not size:
            raise ValueError(
                f"expected at least one slot for each of {len(self.slots)} queries "
                f"but got max_size {self.max_size}"
            )
        kept = {channel: clips[:size] for channel, clips in self.slots.items()}
        used = sorted({clip for clips in kept.values() for clip in clips})
        place = {clip: position for position, clip in enumerate(used)}
        self.slots = {c: [place[clip] for clip in clips] for c, clips in kept.items()}
        self.buffer = data.subset(used)


def _clips_by_query(
    channels: Sequence[Sequence[int]], *, first: int
) -> Mapping[int, list[int]]:
    """Query -> numbers of the samples that have it, counted from ``first``."""
    found: dict[int, list[int]] = {}
    for number, own in enumerate(channels, start=first):
        for channel in set(own):
            found.setdefault(channel, []).append(number)
    return found
