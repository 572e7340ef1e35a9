"""Features in an LMDB database: raw arrays, or the npz form of public code."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from avalanche_vilco.core.files import written_whole
from avalanche_vilco.core.handles import LmdbValues, import_lmdb
from avalanche_vilco.data.features.npz import npz_array, npz_header
from avalanche_vilco.data.features.packed import plan_packing, read_all
from avalanche_vilco.data.features.store import FeatureStore, Header, KeyedFeatures

DATA_FILE = "data.mdb"

_RAW = struct.Struct("<4sBxxxIId8x")
"""Magic, dtype, steps, channels, time scale: 32 bytes in front of a raw array."""

_RAW_MAGIC = b"AVF1"
_ZIP_MAGIC = b"PK"
_DTYPES: dict[int, np.dtype] = {1: np.dtype("<f4"), 2: np.dtype("<f2")}
_CODES = {torch.float32: 1, torch.float16: 2}


class LmdbFeatures(KeyedFeatures[LmdbValues]):
    """An LMDB with a value a clip, the clip's uid its key.

    A value is an array as :func:`pack_features_lmdb` writes it, or an npz archive
    with ``token_features`` or ``features``, the form of public code; uncompressed
    archives are read in place. The database is opened once a process, read-only,
    without locks (it may lie on a read-only or network file system) and with the
    system's readahead, which cold reads need.

    A truncated file is refused; pages that were damaged inside are not detected,
    since LMDB has no checksums.

    :param path: folder with ``data.mdb``, or a database file without folder.
    :raises FileNotFoundError: no database there.
    :raises ImportError: the package ``lmdb`` is not installed.
    """

    kind = "LMDB"

    def __init__(self, path: Path | str) -> None:
        import_lmdb()
        path = Path(path)
        super().__init__(path, LmdbValues, path / DATA_FILE if path.is_dir() else path)

    def ids(self) -> set[str]:
        """All keys of the database."""
        return self._opened.keys()

    def time_scale(self, clip_id: str) -> float:
        """As noted when a raw array was packed, 1.0 otherwise."""
        value = self._value(clip_id)
        with self._named(clip_id):
            return _raw_fields(value)[3] if _is_raw(value) else 1.0

    def _header(self, clip_id: str) -> Header:
        value = self._value(clip_id)
        if value[:2] != _ZIP_MAGIC:
            return super()._header(clip_id)
        shape, dtype = npz_header(value, self.max_array_bytes)
        return Header(shape, np.issubdtype(dtype, np.floating))

    def _stored(self, clip_id: str) -> np.ndarray:
        value = self._value(clip_id)
        if _is_raw(value):
            return _raw_array(value)
        if value[:2] == _ZIP_MAGIC:
            return npz_array(value, self.max_array_bytes)
        raise ValueError(f"the value of {clip_id} is neither a raw array nor an npz")

    def _has(self, clip_id: str) -> bool:
        return self._opened.get(clip_id) is not None

    def _value(self, clip_id: str) -> memoryview:
        value = self._opened.get(clip_id)
        if value is None:
            raise self._no_key(clip_id)
        return value


def _is_raw(value: memoryview) -> bool:
    return value[:4] == _RAW_MAGIC


def _raw_fields(value: memoryview) -> tuple[np.dtype, int, int, float]:
    if len(value) < _RAW.size:
        raise ValueError(f"expected a header of {_RAW.size} bytes, got {len(value)}")
    _, code, steps, channels, scale = _RAW.unpack_from(value)
    if code not in _DTYPES:
        raise ValueError(f"expected dtype code in {list(_DTYPES)} but got {code}")
    if not 0 < scale < float("inf"):
        raise ValueError(f"expected a positive time scale but got {scale}")
    return _DTYPES[code], steps, channels, scale


def _raw_array(value: memoryview) -> np.ndarray:
    dtype, steps, channels, _ = _raw_fields(value)
    expected = steps * channels * dtype.itemsize
    if len(value) - _RAW.size != expected:
        raise ValueError(
            f"expected {expected} bytes for shape {(steps, channels)} but got "
            f"{len(value) - _RAW.size}"
        )
    return np.frombuffer(value, dtype, offset=_RAW.size).reshape(steps, channels)


def pack_features_lmdb(
    store: FeatureStore,
    clip_ids: Iterable[str],
    path: Path | str,
    *,
    dtype: torch.dtype = torch.float32,
    show_progress: bool = False,
) -> Path:
    """Copy features of any store into an LMDB of raw arrays.

    :func:`pack_features` writes a safetensors file, which reads faster; arguments and
    errors are as there.

    :param path: folder to make.
    :raises ImportError: the package ``lmdb`` is not installed.
    :raises ValueError: another dtype, no clip, or an id that is too long a key.
    """
    path = Path(path)
    plan = plan_packing(store, clip_ids, path, dtype)
    steps = read_all(store, plan, dtype, show_progress)
    n_bytes = sum(t * c * dtype.itemsize + 2**14 for t, c in plan.values()) + 2**26
    with written_whole(path) as folder:
        with import_lmdb().open(str(folder), map_size=n_bytes, sync=False) as database:
            for clip_id, features in zip(plan, steps, strict=True):
                fields = *plan[clip_id], store.time_scale(clip_id)
                header = _RAW.pack(_RAW_MAGIC, _CODES[dtype], *fields)
                _put(database, clip_id, header + features.numpy().tobytes())
            database.sync(True)
        (folder / "lock.mdb").unlink(missing_ok=True)
    return path


def _put(database: Any, clip_id: str, value: bytes) -> None:
    key, limit = clip_id.encode(), database.max_key_size()
    if not 0 < len(key) <= limit:
        raise ValueError(f"expected an id of 1 to {limit} bytes but got {clip_id!r}")
    # A transaction a clip: one for all would hold every page in memory.
    with database.begin(write=True) as transaction:
        transaction.put(key, value)
