"""All features in one safetensors file, memory-mapped."""

from __future__ import annotations

import json
import math
from pathlib import Path

from safetensors import safe_open
from torch import Tensor

from avalanche_vilco.data.features.store import KeyedFeatures

TIME_SCALES = "time_scales"
"""Metadata entry: JSON of clip uid -> scale, of clips that were resized."""

RESERVED_KEY = "__metadata__"


class PackedFeatures(KeyedFeatures["_Opened"]):
    """One safetensors file with a tensor (T, C) a clip, the clip's uid its key.

    The file is mapped once a process and a window copies its own bytes only. Steps are
    checked for NaN and infinity when a process first reads them.
    :func:`pack_features` writes such files.

    :param file: the file.
    :raises FileNotFoundError: no such file.
    """

    kind = "safetensors file"
    remedy = "; pack_features() writes one"

    def __init__(self, file: Path | str) -> None:
        super().__init__(file, _Opened)

    def ids(self) -> frozenset[str]:
        """All keys of the file."""
        return self._opened.keys

    def time_scale(self, clip_id: str) -> float:
        """As noted when the features were packed, 1.0 otherwise."""
        return self._opened.time_scales.get(clip_id, 1.0)

    def _stored(self, clip_id: str) -> Tensor:
        clips = self._opened.clips
        if clip_id not in clips:
            if not self._has(clip_id):
                raise self._no_key(clip_id)
            clips[clip_id] = self._opened.handle.get_tensor(clip_id)
        return clips[clip_id]

    def _checked_steps(self, clip_id: str) -> bytearray:
        # Sound, because the mapping outlives the file's name: a file that takes its
        # place is not seen. Packed files get their name when they are complete and are
        # not written into.
        stored = self._opened.clips[clip_id]
        n_steps = len(stored) if stored.ndim == 2 else 1
        return self._opened.checked.setdefault(clip_id, bytearray(n_steps))


class _Opened:
    def __init__(self, path: Path) -> None:
        self.clips: dict[str, Tensor] = {}
        """Views of the mapped file."""
        self.checked: dict[str, bytearray] = {}
        """Which of their steps were seen to be finite."""
        self.handle = safe_open(path, framework="pt").__enter__()
        self.keys = frozenset(self.handle.keys())
        scales = json.loads((self.handle.metadata() or {}).get(TIME_SCALES, "{}"))
        self.time_scales = {str(key): float(scale) for key, scale in scales.items()}
        if not all(math.isfinite(x) and x > 0 for x in self.time_scales.values()):
            raise ValueError("a time scale in the metadata is not positive")
