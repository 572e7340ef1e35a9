"""Features of any store copied into one file or database."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from avalanche_vilco.core.errors import FeatureError
from avalanche_vilco.core.files import safetensors_header, written_whole
from avalanche_vilco.core.handles import import_extra
from avalanche_vilco.data.features.database import raw_value
from avalanche_vilco.data.features.packed import RESERVED_KEY, TIME_SCALES
from avalanche_vilco.data.features.store import FeatureStore, gathered, most_common

_DTYPES = {torch.float32: "F32", torch.float16: "F16"}


def pack_features(
    store: FeatureStore,
    clip_ids: Iterable[str],
    path: Path | str,
    *,
    dtype: torch.dtype = torch.float32,
    show_progress: bool = False,
) -> Path:
    """Copy features of any store into a safetensors file or an LMDB of raw arrays.

    One clip at a time is in memory. The file or folder appears under its name when it
    is complete. Features resized by :class:`GridFeatures` keep their timeline. A
    safetensors file reads faster.

    :param store: where features are read.
    :param clip_ids: clips to copy, in this order; doubled ids count once.
    :param path: ``.safetensors`` file to write, or ``.lmdb`` folder to make.
    :param dtype: ``torch.float32`` or ``torch.float16``, half the size.
    :param show_progress: print a progress bar.
    :return: the path.
    :raises FeatureError: clips are missing or damaged (all are listed before
        anything is written), non-finite, or too large for float16.
    :raises FileExistsError: there is something at ``path``.
    :raises ImportError: an LMDB, and the package ``lmdb`` is not installed.
    :raises ValueError: another suffix or dtype, no clip, or an id that cannot be a key.
    """
    path = Path(path)
    if path.suffix not in (".safetensors", ".lmdb"):
        raise ValueError(f"expected a .safetensors or .lmdb path but got {path.name!r}")
    shapes = _shapes(store, clip_ids, path, dtype)
    scales = {clip_id: store.time_scale(clip_id) for clip_id in shapes}
    steps = _read_all(store, shapes, dtype, show_progress)
    with written_whole(path) as unfinished:
        if path.suffix == ".lmdb":
            _write_lmdb(unfinished, shapes, scales, steps)
        else:
            _write_safetensors(unfinished, shapes, scales, steps, dtype)
    return path


_Shapes = dict[str, tuple[int, int]]
"""Clip uid -> (T, C), in the order in which clips are packed."""


def _shapes(
    store: FeatureStore, clip_ids: Iterable[str], path: Path, dtype: torch.dtype
) -> _Shapes:
    """Shapes of all clips to pack; refuses before anything is written."""
    if dtype not in _DTYPES:
        raise ValueError(f"expected torch.float32 or torch.float16 but got {dtype}")
    if path.exists():
        raise FileExistsError(f"{path} exists; remove it or choose another path")
    shapes, faults = gathered(store.shape, dict.fromkeys(clip_ids))
    expected = most_common(channels for _, channels in shapes.values())
    faults += [
        f"{clip_id}: {store.locate(clip_id)}: expected {expected} channels as in the "
        f"other files but got {channels}"
        for clip_id, (_, channels) in shapes.items()
        if channels != expected
    ]
    if faults:
        raise FeatureError(path, faults, "nothing was written; mend these first")
    if not shapes:
        raise ValueError("expected at least one clip to pack but got none")
    return shapes


def _read_all(
    store: FeatureStore, shapes: _Shapes, dtype: torch.dtype, show_progress: bool
) -> Iterator[tuple[str, Tensor]]:
    """Features of clips in ``dtype``, one after the other."""
    from tqdm import tqdm

    for clip_id in tqdm(shapes, unit="clip", disable=not show_progress):
        features = store.read(clip_id).to(dtype).contiguous()
        problem = None
        if tuple(features.shape) != shapes[clip_id]:
            problem = f"expected shape {shapes[clip_id]} but got {(*features.shape,)}"
        elif not bool(features.isfinite().all()):
            problem = f"holds values too large for {dtype}"
        if problem:
            fault = f"{clip_id}: {store.locate(clip_id)}: {problem}"
            raise FeatureError(store.locate(clip_id), [fault], "packing was stopped")
        yield clip_id, features


def _write_safetensors(
    file: Path,
    shapes: _Shapes,
    scales: Mapping[str, float],
    steps: Iterable[tuple[str, Tensor]],
    dtype: torch.dtype,
) -> None:
    if RESERVED_KEY in shapes:
        raise ValueError(f"{RESERVED_KEY!r} is reserved and cannot be a clip's uid")
    metadata = {"format": "pt"}
    resized = {clip_id: scale for clip_id, scale in scales.items() if scale != 1.0}
    if resized:
        metadata[TIME_SCALES] = json.dumps(resized)
    tensors = {clip_id: (_DTYPES[dtype], shape) for clip_id, shape in shapes.items()}
    with file.open("wb") as opened:
        opened.write(safetensors_header(tensors, metadata))
        for _, features in steps:
            features.numpy().tofile(opened)


def _write_lmdb(
    folder: Path,
    shapes: _Shapes,
    scales: Mapping[str, float],
    steps: Iterable[tuple[str, Tensor]],
) -> None:
    n_bytes = sum(4 * n_steps * width + 2**14 for n_steps, width in shapes.values())
    lmdb = import_extra("lmdb")
    with lmdb.open(str(folder), map_size=n_bytes + 2**26, sync=False) as database:
        limit = database.max_key_size()
        for clip_id, features in steps:
            key = clip_id.encode()
            if not 0 < len(key) <= limit:
                problem = f"expected an id of 1 to {limit} bytes but got {clip_id!r}"
                raise ValueError(problem)
            # A transaction a clip: one for all would hold every page in memory.
            with database.begin(write=True) as transaction:
                transaction.put(key, raw_value(features, scales[clip_id]))
        database.sync(True)
    (folder / "lock.mdb").unlink(missing_ok=True)
