"""Features kept in memory once read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from avalanche_vilco.data.features.store import (
    LENGTH_TOLERANCE_STEPS,
    FeatureStore,
    check_window,
)


class CachedFeatures:
    """A store that keeps whole clips in memory as float32, up to a limit.

    Worth it where reading costs more than copying: small files, resized clips. Each
    worker process fills its own cache; a pickle holds none of it.

    :param store: the features.
    :param cache_bytes: kept in memory, in bytes, at least 0; what does not fit is read
        anew each time.
    :raises ValueError: a negative limit.
    """

    def __init__(self, store: FeatureStore, cache_bytes: int) -> None:
        if cache_bytes < 0:
            raise ValueError(f"expected cache_bytes >= 0 but got {cache_bytes}")
        self.store = store
        self.cache_bytes = cache_bytes
        self._cache: dict[str, Tensor] = {}
        self._cached_bytes = 0

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_cache": {}, "_cached_bytes": 0}

    @property
    def width(self) -> int:
        """Channels of a step; known after :meth:`preflight`."""
        return self.store.width

    def shape(self, clip_id: str) -> tuple[int, int]:
        """Steps and channels of a clip, (T, C)."""
        return self.store.shape(clip_id)

    def read(self, clip_id: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Features of a clip, (T, C) float32, or the window of it; the caller's own.

        :raises FeatureError: missing, damaged or non-finite.
        """
        check_window(start, stop)
        kept = self._cache.get(clip_id)
        if kept is None and self._is_full:
            return self.store.read(clip_id, start, stop)
        if kept is None:
            kept = self.store.read(clip_id)
            self._keep(clip_id, kept)
        return kept[start:stop].clone()

    def missing(self, clip_ids: Iterable[str]) -> list[str]:
        """Clips of which the store has nothing."""
        return self.store.missing(clip_ids)

    def preflight(
        self,
        expected_steps: Mapping[str, float],
        *,
        tolerance: float = LENGTH_TOLERANCE_STEPS,
    ) -> None:
        """Check the files; see :meth:`FeatureStore.preflight`."""
        self.store.preflight(expected_steps, tolerance=tolerance)

    def time_scale(self, clip_id: str) -> float:
        """Steps of the store for one step that was extracted."""
        return self.store.time_scale(clip_id)

    def locate(self, clip_id: str) -> str:
        """Where the features lie."""
        return self.store.locate(clip_id)

    @property
    def _is_full(self) -> bool:
        return self._cached_bytes >= self.cache_bytes

    def _keep(self, clip_id: str, features: Tensor) -> None:
        if self._cached_bytes + features.nbytes <= self.cache_bytes:
            self._cache[clip_id] = features
            self._cached_bytes += features.nbytes
