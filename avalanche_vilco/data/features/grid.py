"""Features resized to a fixed number of steps, as public code feeds its models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from avalanche_vilco.data.features.store import (
    LENGTH_TOLERANCE_STEPS,
    FeatureStore,
    check_window,
)

_BLOCK_STEPS = 32
"""Gathered and mixed at a time, so that the halves are still in the cache."""


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


class GridFeatures:
    """A store whose clips all have the same number of steps.

    A clip of T steps read on a grid of N has N / T times the features a second:
    :meth:`time_scale`. Windows in seconds map to it by the one pair of maps of
    ``ops.timeline``, since the middle of step g lies at (g + 0.5) / N of the clip.

    :param store: the features as extracted.
    :param steps: steps of the grid, >= 1; public Moment-Query code uses 1,024.
    :raises ValueError: fewer than one step.
    """

    def __init__(self, store: FeatureStore, steps: int = 1024) -> None:
        if steps < 1:
            raise ValueError(f"expected a grid of at least 1 step but got {steps}")
        self.store = store
        self.steps = steps
        self._scales: dict[str, float] = {}

    @property
    def width(self) -> int:
        """Channels of a step; known after :meth:`preflight`."""
        return self.store.width

    def shape(self, clip_id: str) -> tuple[int, int]:
        """Steps of the grid and channels, (N, C)."""
        return self.steps, self.store.shape(clip_id)[1]

    def read(self, clip_id: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Resized features of a clip, (N, C) float32, or the window of it.

        :raises FeatureError: missing, damaged or non-finite.
        """
        check_window(start, stop)
        resized = resize_steps(self.store.read(clip_id), self.steps)
        is_whole = start == 0 and (stop is None or stop >= self.steps)
        # A part must not hold on to the whole.
        return resized if is_whole else resized[start:stop].clone()

    def missing(self, clip_ids: Iterable[str]) -> list[str]:
        """Clips of which the store has nothing."""
        return self.store.missing(clip_ids)

    def preflight(
        self,
        expected_steps: Mapping[str, float],
        *,
        tolerance: float = LENGTH_TOLERANCE_STEPS,
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

    def locate(self, clip_id: str) -> str:
        """Where the features lie as extracted."""
        return self.store.locate(clip_id)
