"""Stores over other stores: kept in memory, resized to a grid, shuffled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

from avalanche_vilco.core.cache import TensorCache
from avalanche_vilco.data.features.store import (
    TOLERANCE_STEPS,
    FeatureStore,
    check_window,
)

_BLOCK_STEPS = 32
"""Gathered and mixed at a time, so that the halves are still in the cache."""


class WrappedFeatures(FeatureStore):
    """A store over another one, which answers what a subclass does not.

    :param store: the other one.
    """

    def __init__(self, store: FeatureStore) -> None:
        self.store = store

    @property
    def width(self) -> int:
        """Channels of a step; known after :meth:`preflight`."""
        return self.store.width

    def shape(self, clip_id: str) -> tuple[int, int]:
        """Steps and channels of a clip, (T, C)."""
        return self.store.shape(clip_id)

    def read(self, clip_id: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Features of a clip, (T, C) float32, or the window of it; the caller's own."""
        return self.store.read(clip_id, start, stop)

    def missing(self, clip_ids: Iterable[str]) -> list[str]:
        """Clips of which the store has nothing, in the order asked."""
        return self.store.missing(clip_ids)

    def preflight(
        self, expected_steps: Mapping[str, float], *, tolerance: float = TOLERANCE_STEPS
    ) -> None:
        """Check the features as extracted; see :meth:`FeatureStore.preflight`."""
        self.store.preflight(expected_steps, tolerance=tolerance)

    def time_scale(self, clip_id: str) -> float:
        """Steps read for one step that was extracted."""
        return self.store.time_scale(clip_id)

    def locate(self, clip_id: str) -> str:
        """Where a clip's features lie."""
        return self.store.locate(clip_id)


class CachedFeatures(WrappedFeatures):
    """A store that keeps whole clips in memory as float32, up to a limit.

    Worth it where reading costs more than copying: small files, resized clips. Each
    worker process fills its own cache; a pickle holds none of it.

    :param store: the features.
    :param cache_bytes: kept in memory, in bytes, at least 0; what does not fit is read
        anew each time.
    :raises ValueError: a negative limit.
    """

    def __init__(self, store: FeatureStore, cache_bytes: int) -> None:
        super().__init__(store)
        if cache_bytes < 0:
            raise ValueError(f"expected cache_bytes >= 0 but got {cache_bytes}")
        self._cache = TensorCache(cache_bytes)

    def read(self, clip_id: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Features of a clip, (T, C) float32, or the window of it; the caller's own."""
        check_window(start, stop)
        features = self._cache.get(clip_id)
        if features is None:
            if self._cache.currsize >= self._cache.maxsize:
                return self.store.read(clip_id, start, stop)
            features = self.store.read(clip_id)
            # Clips are read in turn: one that made room would be missed next time.
            if self._cache.has_room(features):
                self._cache[clip_id] = features
        return features[start:stop].clone()


class ShuffledFeatures(WrappedFeatures):
    """Features that say nothing about their clip: the chance level of a model.

    A clip reads steps drawn at random, with repeats, from another clip of the set.
    What the model knows without looking (how frequent, how long) remains.

    :param store: the true features.
    :param clip_ids: clips among which donors are drawn, at least two.
    :param seed: same seed, same donors and order.
    :raises ValueError: fewer than two clips.
    """

    def __init__(self, store: FeatureStore, clip_ids: Iterable[str], seed: int) -> None:
        super().__init__(store)
        ids = sorted(set(clip_ids))
        if len(ids) < 2:
            raise ValueError(f"expected at least 2 clips to shuffle but got {len(ids)}")
        self._seed = seed
        order = np.random.default_rng(seed).permutation(len(ids)).tolist()
        self._position = {ids[i]: position for position, i in enumerate(order)}
        donors = [*order[1:], order[0]]
        self._donor = {ids[i]: ids[j] for i, j in zip(order, donors, strict=True)}

    def read(self, clip_id: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Random steps of another clip, (T, C) float32, T of this clip."""
        check_window(start, stop)
        steps, _ = self.store.shape(clip_id)
        donor = self.store.read(self._donor[clip_id])
        rng = np.random.default_rng([self._seed, self._position[clip_id]])
        drawn = rng.integers(len(donor), size=steps)[start:stop]
        return donor[torch.from_numpy(drawn)]

    def locate(self, clip_id: str) -> str:
        """Where the steps come from: another clip's place."""
        return self.store.locate(self._donor[clip_id])


class GridFeatures(WrappedFeatures):
    """A store whose clips all have the same number of steps.

    A clip of T steps read on a grid of N has N / T times the features a second:
    :meth:`time_scale`. Windows in seconds map to it by the one pair of maps of
    ``ops.timeline``, since the middle of step g lies at (g + 0.5) / N of the clip.

    :param store: the features as extracted.
    :param steps: steps of the grid, >= 1; public Moment-Query code uses 1,024.
    :raises ValueError: fewer than one step.
    """

    def __init__(self, store: FeatureStore, steps: int = 1024) -> None:
        super().__init__(store)
        if steps < 1:
            raise ValueError(f"expected a grid of at least 1 step but got {steps}")
        self.steps = steps
        self._scales: dict[str, float] = {}

    def shape(self, clip_id: str) -> tuple[int, int]:
        """Steps of the grid and channels, (N, C)."""
        return self.steps, self.store.shape(clip_id)[1]

    def read(self, clip_id: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Resized features of a clip, (N, C) float32, or the window of it."""
        check_window(start, stop)
        resized = resize_steps(self.store.read(clip_id), self.steps)
        is_whole = start == 0 and (stop is None or stop >= self.steps)
        # A part must not hold on to the whole.
        return resized if is_whole else resized[start:stop].clone()

    def preflight(
        self, expected_steps: Mapping[str, float], *, tolerance: float = TOLERANCE_STEPS
    ) -> None:
        """Check the features as extracted; see :meth:`FeatureStore.preflight`."""
        self.store.preflight(expected_steps, tolerance=tolerance)
        for clip_id in expected_steps:
            self.time_scale(clip_id)

    def time_scale(self, clip_id: str) -> float:
        """Steps of the grid for one step that was extracted, N / T."""
        if clip_id not in self._scales:
            extracted = self.store.shape(clip_id)[0] / self.store.time_scale(clip_id)
            self._scales[clip_id] = self.steps / extracted
        return self._scales[clip_id]


def resize_steps(features: Tensor, steps: int) -> Tensor:
    """Resize features over time, linearly, steps standing at their middles.

    Equal to ``F.interpolate(..., mode="linear", align_corners=False)`` over time
    within 1e-6 of the features' size, but on the time-major layout.

    >>> resize_steps(torch.tensor([[0.0], [4.0]]), 4).flatten().tolist()
    [0.0, 1.0, 3.0, 4.0]

    :param features: (T, C) float32, T >= 1.
    :param steps: steps wanted, >= 1.
    :return: (steps, C) float32; the features themselves if T is ``steps``.
    :raises ValueError: no step to resize, or none wanted.
    """
    found = len(features)
    if found < 1 or steps < 1:
        raise ValueError(f"expected at least one step but got {found} to {steps}")
    if found == steps:
        return features
    # Rounded to float32 where the fused kernel of F.interpolate rounds: other
    # positions of long clips would differ from its by 1e-4.
    scale = (torch.tensor(float(found)) / steps).double()
    middles = (torch.arange(steps, dtype=torch.float64) + 0.5) * scale - 0.5
    middles = middles.float().clamp_(min=0.0)
    before = middles.long().clamp_(max=found - 1)
    after = (before + 1).clamp_(max=found - 1)
    weight = (middles - before).clamp_(0.0, 1.0)[:, None]
    resized = features.new_empty(steps, features.shape[1])
    for i in range(0, steps, _BLOCK_STEPS):
        part = slice(i, i + _BLOCK_STEPS)
        low = features.index_select(0, before[part])
        high = features.index_select(0, after[part])
        torch.lerp(low, high, weight[part], out=resized[part])
    return resized
