"""Memories of clips, for Avalanche's replay plugins."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from avalanche.benchmarks.utils import AvalancheDataset
from avalanche.training.storage_policy import (
    ExemplarsBuffer,
    HerdingSelectionStrategy,
)
from torch import Tensor, nn

from avalanche_vilco.core.batch import ClipBatch
from avalanche_vilco.training.passes import evaluating, unseeded_loader


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
    ``buffer`` holds fewer samples than there are entries::

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
        """Query channel -> its clips, as positions in ``buffer``."""
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

        :param new_data: has the attribute ``class_indices``, for each sample the
            queries with a window in it.
        :param seen: queries that share the slots though no sample may have them.
        :raises ValueError: there are more queries than slots.
        """
        candidates = _clips_by_query(new_data.class_indices, first=len(self.buffer))
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


class QueryQuotaBuffer(ExemplarsBuffer):
    """Memory with an equal quota of samples for each query seen.

    Each query ranks the samples that have a window of it. Queries take turns, each
    taking the first on its list that none has taken, until the memory is full: all
    get ``max_size // queries seen``, and what a query with few samples leaves goes to
    the others. So the memory holds as many samples as it can, each once. When not all
    can have one more, turns spread over experiences: the first query of each, then
    the second...

    Samples of queries without new ones keep their ranks, as in iCaRL's
    ReduceExemplarSet (Rebuffi et al. 2017, algorithm 5).

    :param max_size: samples at most.
    :raises ValueError: ``max_size`` is below 1.
    """

    def __init__(self, max_size: int) -> None:
        if max_size < 1:
            raise ValueError(f"expected max_size of at least 1 but got {max_size}")
        super().__init__(max_size)
        self.ranking: dict[int, list[int]] = {}
        """Query channel -> the stored samples that have it, as positions in
        ``buffer``, best first."""
        self._turn: dict[int, tuple[int, int]] = {}
        self._n_updates = 0

    @abstractmethod
    def rank(
        self, data: AvalancheDataset, pools: Mapping[int, list[int]], agent: Any
    ) -> dict[int, list[int]]:
        """Rank samples.

        :param data: samples.
        :param pools: query channel -> positions in ``data`` of the samples that have
            it, those stored before first.
        :param agent: the strategy.
        :return: the pools, best first.
        """

    def post_adapt(self, agent: Any, exp: Any) -> None:
        """Take in an experience just learnt.

        :param agent: the strategy.
        :param exp: has ``dataset``.
        """
        self.update_from_dataset(exp.dataset, agent)

    def update_from_dataset(
        self, new_data: AvalancheDataset, agent: Any = None
    ) -> list[int]:
        """Take in samples.

        :param new_data: has the attribute ``class_indices``, for each sample the
            queries with a window in it.
        :param agent: the strategy, where ranks depend on it.
        :return: positions in ``new_data`` of the samples that were kept.
        """
        before = len(self.buffer)
        data = self.buffer.concat(new_data) if before else new_data
        found = _clips_by_query(new_data.class_indices, first=before)
        pools = {c: [*self.ranking.get(c, ()), *own] for c, own in found.items()}
        self.ranking.update(self.rank(data, pools, agent))
        unknown = sorted(found.keys() - self._turn.keys())
        self._turn.update({c: (i, self._n_updates) for i, c in enumerate(unknown)})
        self._n_updates += 1
        return [p - before for p in self._keep(data) if p >= before]

    def resize(self, strategy: Any, new_size: int) -> None:
        """Change the number of samples.

        :param strategy: not used.
        :param new_size: samples at most.
        """
        self.max_size = new_size
        self._keep(self.buffer)

    def _keep(self, data: AvalancheDataset) -> list[int]:
        in_turn = sorted(self.ranking, key=self._turn.__getitem__)
        lists = [self.ranking[channel] for channel in in_turn]
        kept = sorted(take_turns(lists, self.max_size))
        place = {old: new for new, old in enumerate(kept)}
        self.ranking = {
            channel: [place[old] for old in ranks if old in place]
            for channel, ranks in self.ranking.items()
        }
        self.buffer = data.subset(kept)
        return kept


class HerdingBuffer(QueryQuotaBuffer):
    """iCaRL's memory: ranks are the order of herding.

    A query's first samples have a mean clip code that is as near as can be to the
    mean of all samples it was ranked among. Codes are of unit length and come from
    the model's ``clip_codes`` when the samples are taken in.

    :param max_size: samples at most.
    """

    def rank(
        self, data: AvalancheDataset, pools: Mapping[int, list[int]], agent: Any
    ) -> dict[int, list[int]]:
        """Rank by herding; see :meth:`QueryQuotaBuffer.rank`."""
        wanted = sorted(set(chain(*pools.values())))
        codes = _clip_codes(agent, data.subset(wanted)) if wanted else None
        row = {position: i for i, position in enumerate(wanted)}
        return {
            channel: [pool[i] for i in _HERDING(codes[[row[p] for p in pool]])]
            for channel, pool in pools.items()
            if codes is not None
        }


class RandomQuotaBuffer(QueryQuotaBuffer):
    """Ranks are random; draws come from ``seed`` and the number of updates.

    :param max_size: samples at most.
    :param seed: of the ranks.
    """

    def __init__(self, max_size: int, *, seed: int = 0) -> None:
        super().__init__(max_size)
        self.seed = seed

    def rank(
        self, data: AvalancheDataset, pools: Mapping[int, list[int]], agent: Any
    ) -> dict[int, list[int]]:
        """Rank at random; see :meth:`QueryQuotaBuffer.rank`."""
        generator = torch.Generator()
        generator.manual_seed(self.seed * 1_000_003 + self._n_updates)
        orders = {
            channel: torch.randperm(len(pool), generator=generator).tolist()
            for channel, pool in sorted(pools.items())
        }
        return {c: [pools[c][i] for i in order] for c, order in orders.items()}


class _Herding(HerdingSelectionStrategy):
    """Avalanche's rule without its hook, which would stay on the model."""

    def __init__(self) -> None:
        pass

    def __call__(self, codes: Tensor) -> list[int]:
        return self.make_sorted_indices_from_features(codes)


_HERDING = _Herding()


def _clip_codes(agent: Any, data: AvalancheDataset) -> Tensor:
    """(N, D) codes of unit length."""
    with evaluating(agent.model):
        codes = [
            agent.model.clip_codes(clips.to(agent.device))
            for clips, *_ in unseeded_loader(data, agent.eval_mb_size)
        ]
    return F.normalize(torch.cat(codes).float(), dim=1)


def take_turns(lists: Sequence[Sequence[int]], size: int) -> list[int]:
    """Items chosen by parties that each take the first free one of their list in turn.

    >>> take_turns([[1, 2, 3], [1, 4], [5]], 4)
    [1, 4, 5, 2]

    :param lists: one for each party, best first; they may share items.
    :param size: items to choose at most.
    """
    taken: dict[int, None] = {}
    waiting = deque(map(iter, lists))
    while waiting and len(taken) < size:
        party = waiting.popleft()
        choice = next((item for item in party if item not in taken), None)
        if choice is not None:
            taken[choice] = None
            waiting.append(party)
    return list(taken)


def _clips_by_query(
    channels: Sequence[Sequence[int]], *, first: int
) -> Mapping[int, list[int]]:
    """Query -> numbers of the samples that have it, counted from ``first``."""
    found: dict[int, list[int]] = {}
    for number, own in enumerate(channels, start=first):
        for channel in set(own):
            found.setdefault(channel, []).append(number)
    return found
