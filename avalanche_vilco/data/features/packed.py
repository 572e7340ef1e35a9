"""All features in one safetensors file, memory-mapped."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from avalanche_vilco.core.errors import FeatureError
from avalanche_vilco.core.files import safetensors_header, written_whole
from avalanche_vilco.data.features.store import (
    FeatureStore,
    KeyedFeatures,
    gathered,
    most_common,
)

_TIME_SCALES = "time_scales"
"""Metadata entry: JSON of clip uid -> scale, of clips that were resized."""

_DTYPES = {torch.float32: "F32", torch.float16: "F16"}
_RESERVED_KEY = "__metadata__"


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
        scales = json.loads((self.handle.metadata() or {}).get(_TIME_SCALES, "{}"))
        self.time_scales = {str(key): float(scale) for key, scale in scales.items()}
        if not all(math.isfinite(x) and x > 0 for x in self.time_scales.values()):
            raise ValueError("a time scale in the metadata is not positive")


def pack_features(
    store: FeatureStore,
    clip_ids: Iterable[str],
    path: Path | str,
    *,
    dtype: torch.dtype = torch.float32,
    show_progress: bool = False,
) -> Path:
    """Copy features of any store into one file for :class:`PackedFeatures`.

    One clip at a time is in memory. The file appears under its name when it is
    complete. Features resized by :class:`GridFeatures` keep their timeline.

    :param store: where features are read.
    :param clip_ids: clips to copy, in this order; doubled ids count once.
    :param path: file to write, ``.safetensors``.
    :param dtype: ``torch.float32`` or ``torch.float16``, half the size.
    :param show_progress: print a progress bar.
    :return: the path.
    :raises FeatureError: clips are missing or damaged (all are listed before
        anything is written), non-finite, or too large for float16.
    :raises FileExistsError: there is something at ``path``.
    :raises ValueError: another suffix or dtype, or no clip.
    """
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"expected a .safetensors path but got {path.name!r}")
    plan = plan_packing(store, clip_ids, path, dtype)
    if _RESERVED_KEY in plan:
        raise ValueError(f"{_RESERVED_KEY!r} is reserved and cannot be a clip's uid")
    with written_whole(path) as unfinished, unfinished.open("wb") as file:
        file.write(_file_header(store, plan, dtype))
        for features in read_all(store, plan, dtype, show_progress):
            features.numpy().tofile(file)
    return path


def plan_packing(
    store: FeatureStore, clip_ids: Iterable[str], path: Path, dtype: torch.dtype
) -> dict[str, tuple[int, int]]:
    """Shapes of all clips to pack; refuses before anything is written.

    :return: clip uid -> (T, C), in the order asked.
    :raises FeatureError: clips are missing, damaged or of different widths.
    :raises FileExistsError: there is something at ``path``.
    :raises ValueError: another dtype, or no clip.
    """
    if dtype not in _DTYPES:
        raise ValueError(f"expected torch.float32 or torch.float16 but got {dtype}")
    if path.exists():
        raise FileExistsError(f"{path} exists; remove it or choose another path")
    plan, faults = gathered(store.shape, dict.fromkeys(clip_ids))
    faults += _width_faults(store, plan)
    if faults:
        raise FeatureError(path, faults, "nothing was written; mend these first")
    if not plan:
        raise ValueError("expected at least one clip to pack but got none")
    return plan


def read_all(
    store: FeatureStore,
    plan: dict[str, tuple[int, int]],
    dtype: torch.dtype,
    show_progress: bool,
) -> Iterator[Tensor]:
    """Features of planned clips, one after the other, in ``dtype``.

    :raises FeatureError: a clip has changed since, is non-finite or too large for
        float16.
    """
    from tqdm import tqdm

    for clip_id in tqdm(plan, unit="clip", disable=not show_progress):
        features = store.read(clip_id).to(dtype).contiguous()
        problem = None
        if tuple(features.shape) != plan[clip_id]:
            problem = f"expected shape {plan[clip_id]} but got {(*features.shape,)}"
        elif not bool(features.isfinite().all()):
            problem = f"holds values too large for {dtype}"
        if problem:
            fault = f"{clip_id}: {store.locate(clip_id)}: {problem}"
            raise FeatureError(store.locate(clip_id), [fault], "packing was stopped")
        yield features


def _width_faults(store: FeatureStore, plan: dict[str, tuple[int, int]]) -> list[str]:
    expected = most_common(channels for _, channels in plan.values())
    return [
        f"{clip_id}: {store.locate(clip_id)}: expected {expected} channels as in the "
        f"other files but got {channels}"
        for clip_id, (_, channels) in plan.items()
        if channels != expected
    ]


def _file_header(
    store: FeatureStore, plan: dict[str, tuple[int, int]], dtype: torch.dtype
) -> bytes:
    metadata = {"format": "pt"}
    scales = {clip_id: store.time_scale(clip_id) for clip_id in plan}
    resized = {clip_id: scale for clip_id, scale in scales.items() if scale != 1.0}
    if resized:
        metadata[_TIME_SCALES] = json.dumps(resized)
    tensors = {clip_id: (_DTYPES[dtype], shape) for clip_id, shape in plan.items()}
    return safetensors_header(tensors, metadata)
