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
    BalancedExemplarsBuffer,
    ExemplarsBuffer,
    HerdingSelectionStrategy,
    ReservoirSamplingBuffer,
)
from torch import Tensor, nn

from avalanche_vilco.core.batch import ClipBatch
from avalanche_vilco.core.experiences import whole_experience
from avalanche_vilco.training.passes import batches_of, evaluating


class ClipEmbedder(nn.Module):
    """A localiser whose output is its clip embeddings.

    Avalanche's selection strategies hook a layer of a model's forward pass and want
    one vector a sample from it::

        HerdingSelectionStrategy(ClipEmbedder(model), "model.pooled")

    :param model: has ``clip_embeddings`` and a layer ``pooled`` that they go through.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, clips: ClipBatch) -> Tensor:
        """(B, D) embeddings."""
        return self.model.clip_embeddings(clips)


class _ShareBuffer(BalancedExemplarsBuffer[ReservoirSamplingBuffer]):
    """Groups that each keep a random part of their samples, and fill the size."""

    def get_group_lengths(self, num_groups: int) -> list[int]:
        """Samples that each group keeps of those that it holds."""
        return fair_shares(map(len, self.buffer_datasets), self.max_size)

    def _take_in(self, number: int, data: AvalancheDataset) -> None:
        """Draw among the samples of a group and new ones; the size is for later."""
        group = self.buffer_groups.setdefault(number, ReservoirSamplingBuffer(0))
        group.max_size = self.max_size
        group.update_from_dataset(_unheld(data, group.buffer))


class ExperienceShareBuffer(_ShareBuffer):
    """Avalanche's experience-balanced reservoir, which fills its size.

    Of experiences with more samples than their share, each keeps an equal part of what
    those with fewer leave, up to one sample, which earlier ones get. So the memory
    holds ``max_size`` samples as soon as that many were seen, where stock keeps 7 of 10
    of experiences with 1, 20 and 20 samples. Where each experience has its share, it
    keeps what stock keeps, draw for draw.

    Parts of an experience, and an experience learnt again, share one place, and no
    sample is stored twice.

    :param max_size: samples at most.
    """

    def post_adapt(self, agent: Any, exp: Any) -> None:
        """Take in an experience just learnt."""
        self._take_in(whole_experience(exp).current_experience, exp.dataset)
        self.resize(agent, self.max_size)


class TargetShareBuffer(_ShareBuffer):
    """Avalanche's class-balanced reservoir, which fills its size likewise.

    :param max_size: samples at most.
    """

    def post_adapt(self, agent: Any, exp: Any) -> None:
        """Take in an experience that is learnt."""
        targets = [int(target) for target in exp.dataset.targets]
        for target in dict.fromkeys(targets):
            places = [i for i, other in enumerate(targets) if other == target]
            self._take_in(target, exp.dataset.subset(places))
        self.resize(agent, self.max_size)


def _unheld(data: AvalancheDataset, buffer: AvalancheDataset) -> AvalancheDataset:
    """Samples that a buffer does not hold: an experience may be learnt again."""
    if not len(buffer):
        return data
    held = set(zip(buffer.clip_ids, buffer.positions, strict=True))
    names = zip(data.clip_ids, data.positions, strict=True)
    return data.subset([i for i, one in enumerate(names) if one not in held])


def fair_shares(sizes: Iterable[int], total: int) -> list[int]:
    """Divide places equally among parties, none of which gets more than it can fill.

    >>> fair_shares([1, 20, 20], 10)
    [1, 5, 4]

    :param sizes: places that each party can fill.
    :param total: places; all are given where the parties can fill them.
    """
    wanted = list(sizes)
    shares = [0] * len(wanted)
    by_size = sorted(range(len(wanted)), key=wanted.__getitem__)
    for n_left, party in zip(range(len(wanted), 0, -1), by_size, strict=True):
        shares[party] = min(wanted[party], -(-total // n_left))
        total -= shares[party]
    return shares


class _QueryBuffer(ExemplarsBuffer):
    """Memory that keeps lists of samples for each query and cuts them to its size."""

    def __init__(self, max_size: int) -> None:
        if max_size < 1:
            raise ValueError(f"expected max_size of at least 1 but got {max_size}")
        super().__init__(max_size)
        self._n_updates = 0

    @abstractmethod
    def _keep(self, data: AvalancheDataset) -> Any:
        """Keep the samples of ``data`` that the lists, cut to size, are left with."""

    def _with(self, new_data: AvalancheDataset) -> AvalancheDataset:
        """What is stored, and new samples behind it."""
        return self.buffer.concat(new_data) if len(self.buffer) else new_data

    def resize(self, strategy: Any, new_size: int) -> None:
        """Change the size, in the unit of the buffer."""
        self.max_size = new_size
        self._keep(self.buffer)


class ClassSlotBuffer(_QueryBuffer):
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
        super().__init__(max_size)
        self.seed = seed
        self.slots: dict[int, list[int]] = {}
        """Class index -> its clips, as positions in ``buffer``."""

    def post_adapt(self, agent: Any, exp: Any) -> None:
        """Take in an experience just learnt, or a part of one."""
        brought = whole_experience(exp).classes_in_this_experience
        self.update_from_dataset(_unheld(exp.dataset, self.buffer), brought)

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
        for query in seen:
            self.slots.setdefault(query, [])
        pools = {q: self.slots.get(q, []) + clips for q, clips in candidates.items()}
        self.slots.update(_shuffled(pools, self.seed, self._n_updates))
        self._n_updates += 1
        self._keep(self._with(new_data))

    def _keep(self, data: AvalancheDataset) -> None:
        """Cut the slots to size and keep the samples that fill one."""
        size = self.max_size // max(len(self.slots), 1)
        if self.slots and not size:
            raise ValueError(
                f"expected at least one slot for each of {len(self.slots)} queries "
                f"but got max_size {self.max_size}"
            )
        kept = {query: clips[:size] for query, clips in self.slots.items()}
        used = sorted({clip for clips in kept.values() for clip in clips})
        position = {clip: i for i, clip in enumerate(used)}
        self.slots = {
            q: [position[clip] for clip in clips] for q, clips in kept.items()
        }
        self.buffer = data.subset(used)


class QueryQuotaBuffer(_QueryBuffer):
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
        super().__init__(max_size)
        self.ranking: dict[int, list[int]] = {}
        """Class index -> the stored samples that have it, as positions in
        ``buffer``, best first."""
        self._turn: dict[int, tuple[int, int]] = {}

    @abstractmethod
    def rank(
        self, data: AvalancheDataset, pools: Mapping[int, list[int]], agent: Any
    ) -> dict[int, list[int]]:
        """Rank samples.

        :param data: samples.
        :param pools: class index -> positions in ``data`` of the samples that have
            it, those stored before first.
        :param agent: the strategy.
        :return: the pools, best first.
        """

    def post_adapt(self, agent: Any, exp: Any) -> None:
        """Take in an experience just learnt."""
        self.update_from_dataset(_unheld(exp.dataset, self.buffer), agent)

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
        data = self._with(new_data)
        candidates = _clips_by_query(new_data.class_indices, first=before)
        pools = {q: [*self.ranking.get(q, ()), *new] for q, new in candidates.items()}
        self.ranking.update(self.rank(data, pools, agent))
        unknown = sorted(candidates.keys() - self._turn.keys())
        self._turn.update({q: (i, self._n_updates) for i, q in enumerate(unknown)})
        self._n_updates += 1
        return [p - before for p in self._keep(data) if p >= before]

    def _keep(self, data: AvalancheDataset) -> list[int]:
        in_turn = sorted(self.ranking, key=self._turn.__getitem__)
        lists = [self.ranking[query] for query in in_turn]
        kept = sorted(take_turns(lists, self.max_size))
        position = {old: new for new, old in enumerate(kept)}
        self.ranking = {
            query: [position[old] for old in ranks if old in position]
            for query, ranks in self.ranking.items()
        }
        self.buffer = data.subset(kept)
        return kept


class HerdingBuffer(QueryQuotaBuffer):
    """iCaRL's memory: ranks are the order of herding.

    A query's first samples have a mean embedding that is as near as can be to the
    mean of all samples it was ranked among. Embeddings are of unit length and come from
    the model's ``clip_embeddings`` when the samples are taken in.

    :param max_size: samples at most.
    """

    def rank(
        self, data: AvalancheDataset, pools: Mapping[int, list[int]], agent: Any
    ) -> dict[int, list[int]]:
        """Rank by herding; see :meth:`QueryQuotaBuffer.rank`."""
        wanted = sorted(set(chain(*pools.values())))
        if not wanted:
            return {}
        embeddings = _clip_embeddings(agent, data.subset(wanted))
        row = {position: i for i, position in enumerate(wanted)}
        ranking = {}
        for query, pool in pools.items():
            # (N, D) embeddings of the pool
            features = embeddings[[row[p] for p in pool]]
            order = _HERDING.make_sorted_indices_from_features(features)
            ranking[query] = [pool[i] for i in order]
        return ranking


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
        return _shuffled(pools, self.seed, self._n_updates)


# Avalanche's rule without its hook, which would stay on the model.
_HERDING = object.__new__(HerdingSelectionStrategy)


def _clip_embeddings(agent: Any, data: AvalancheDataset) -> Tensor:
    """(N, D) embeddings of unit length."""
    with evaluating(agent.model):
        found = [
            agent.model.clip_embeddings(clips) for clips, _ in batches_of(data, agent)
        ]
    return F.normalize(torch.cat(found).float(), dim=1)


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


def _shuffled(
    pools: Mapping[int, list[int]], seed: int, n_updates: int
) -> dict[int, list[int]]:
    """Lists in random order; draws come from the seed and the number of updates."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + n_updates)
    return {
        query: [
            pool[i] for i in torch.randperm(len(pool), generator=generator).tolist()
        ]
        for query, pool in sorted(pools.items())
    }


def _clips_by_query(
    class_indices: Sequence[Sequence[int]], *, first: int
) -> Mapping[int, list[int]]:
    """Query -> numbers of the samples that have it, counted from ``first``."""
    clips: dict[int, list[int]] = {}
    for number, queries in enumerate(class_indices, start=first):
        for query in set(queries):
            clips.setdefault(query, []).append(number)
    return clips
