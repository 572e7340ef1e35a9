"""Features that say nothing about their clip: the chance level of a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

from avalanche_vilco.data.features.store import (
    LENGTH_TOLERANCE_STEPS,
    FeatureStore,
    check_window,
)


class ShuffledFeatures:
    """Features that say nothing about their clip: the chance level of a model.

    A clip reads steps drawn at random, with repeats, from another clip of the set.
    What the model knows without looking (how frequent, how long) remains.

    :param store: the true features.
    :param clip_ids: clips among which donors are drawn, at least two.
    :param seed: same seed, same donors and order.
    :raises ValueError: fewer than two clips.
    """

    def __init__(self, store: FeatureStore, clip_ids: Iterable[str], seed: int) -> None:
        ids = sorted(set(clip_ids))
        if len(ids) < 2:
            raise ValueError(f"expected at least 2 clips to shuffle but got {len(ids)}")
        self._store = store
        self._seed = seed
        order = np.random.default_rng(seed).permutation(len(ids))
        self._position = {ids[i]: spot for spot, i in enumerate(order.tolist())}
        self._donor = {
            ids[i]: ids[order[(spot + 1) % len(ids)]]
            for spot, i in enumerate(order.tolist())
        }

    @property
    def width(self) -> int:
        """Channels of a step."""
        return self._store.width

    def shape(self, clip_id: str) -> tuple[int, int]:
        """Steps of this clip and channels, (T, C)."""
        return self._store.shape(clip_id)

    def read(self, clip_id: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Random steps of another clip, (T, C) float32, T of this clip."""
        check_window(start, stop)
        steps, _ = self._store.shape(clip_id)
        donor = self._store.read(self._donor[clip_id])
        rng = np.random.default_rng([self._seed, self._position[clip_id]])
        drawn = rng.integers(len(donor), size=steps)[start:stop]
        return donor[torch.from_numpy(drawn)]

    def missing(self, clip_ids: Iterable[str]) -> list[str]:
        """Clips of which the store has nothing."""
        return self._store.missing(clip_ids)

    def preflight(
        self,
        expected_steps: Mapping[str, float],
        *,
        tolerance: float = LENGTH_TOLERANCE_STEPS,
    ) -> None:
        """Check the true features; see :meth:`FeatureStore.preflight`."""
        self._store.preflight(expected_steps, tolerance=tolerance)

    def time_scale(self, clip_id: str) -> float:
        """That of this clip's true features."""
        return self._store.time_scale(clip_id)

    def locate(self, clip_id: str) -> str:
        """Where the steps come from: another clip's place."""
        return self._store.locate(self._donor[clip_id])
