"""Several feature sources of the same clips, side by side on channels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import torch
from torch import Tensor

from avalanche_vilco.core.errors import FeatureError
from avalanche_vilco.data.features.store import (
    TOLERANCE_STEPS,
    FeatureStore,
    check_window,
    faults_of,
)
from avalanche_vilco.data.features.wrapped import WrappedFeatures


class ConcatFeatures(WrappedFeatures):
    """Steps of several stores concatenated on channels, in the order given.

    Extraction tools add or drop windows at the end of a video, so sources that
    differ by up to ``tolerance`` steps are aligned at their first step and cut to
    the shortest; more is refused with both places named. The first source sets the
    timeline.

    :param sources: stores of the same clips, at the same rate.
    :param tolerance: accepted difference in steps between sources, >= 0.
    :raises ValueError: no source, or a negative tolerance.
    """

    def __init__(
        self, sources: Sequence[FeatureStore], *, tolerance: int = TOLERANCE_STEPS
    ) -> None:
        if not sources:
            raise ValueError("expected at least one feature source but got none")
        if tolerance < 0:
            raise ValueError(f"expected tolerance >= 0 but got {tolerance}")
        super().__init__(sources[0])
        self.sources = tuple(sources)
        self.tolerance = tolerance
        self._shapes: dict[str, tuple[int, int]] = {}

    @property
    def width(self) -> int:
        """Channels of all sources together; known after :meth:`preflight`."""
        return sum(source.width for source in self.sources)

    def shape(self, clip_id: str) -> tuple[int, int]:
        """Steps of the shortest source and channels of all, (T, C)."""
        if clip_id not in self._shapes:
            faults = self._misalignment(clip_id)
            if faults:
                raise self._fault(*faults)
        return self._shapes[clip_id]

    def read(self, clip_id: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Features of a clip, (T, C) float32, or the window of it."""
        check_window(start, stop)
        steps, _ = self.shape(clip_id)
        end = steps if stop is None else min(stop, steps)
        first = min(start, end)
        parts = [source.read(clip_id, first, end) for source in self.sources]
        return torch.cat(parts, dim=1)

    def missing(self, clip_ids: Iterable[str]) -> list[str]:
        """Clips that at least one source has not."""
        asked = list(clip_ids)
        missing = {i for source in self.sources for i in source.missing(asked)}
        return [clip_id for clip_id in asked if clip_id in missing]

    def preflight(
        self, expected_steps: Mapping[str, float], *, tolerance: float = TOLERANCE_STEPS
    ) -> None:
        """Check all sources and their alignment; see :meth:`FeatureStore.preflight`."""
        self._shapes.clear()
        faults = [
            f"{fault} (source {i + 1} of {len(self.sources)})"
            for i, source in enumerate(self.sources)
            for fault in faults_of(source, expected_steps, tolerance)
        ]
        for clip_id in expected_steps:
            with suppress(FeatureError):  # listed by the source's own preflight
                faults += self._misalignment(clip_id)
        if faults:
            raise self._fault(*faults)

    def locate(self, clip_id: str) -> str:
        """Every source's place."""
        return " and ".join(source.locate(clip_id) for source in self.sources)

    def _misalignment(self, clip_id: str) -> list[str]:
        """What keeps a clip's sources from one shape, which is kept otherwise."""
        shapes = (source.shape(clip_id) for source in self.sources)
        steps, widths = zip(*shapes, strict=True)
        if max(steps) - min(steps) <= self.tolerance:
            self._shapes[clip_id] = min(steps), sum(widths)
            return []
        found = " and ".join(
            f"{count} steps in {source.locate(clip_id)}"
            for count, source in zip(steps, self.sources, strict=True)
        )
        return [f"{clip_id}: cannot be aligned within {self.tolerance} steps: {found}"]

    def _fault(self, *faults: str) -> FeatureError:
        hint = (
            "sources must be extracted at one rate; resize each to one grid if their "
            "rates differ, or pass ConcatFeatures(sources, tolerance=...)"
        )
        return FeatureError(f"{len(self.sources)} sources", faults, hint)
