"""Features in an LMDB database: raw arrays, or the npz form of public code."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from torch import Tensor

from avalanche_vilco.core.handles import LmdbValues, import_extra
from avalanche_vilco.data.features.npz import NpzArchive
from avalanche_vilco.data.features.store import Header, KeyedFeatures

DATA_FILE = "data.mdb"

_RAW = struct.Struct("<4sBxxxIId8x")
"""Magic, dtype, steps, channels, time scale: 32 bytes in front of a raw array."""

_RAW_MAGIC = b"AVF1"
_ZIP_MAGIC = b"PK"
_DTYPES: dict[int, np.dtype] = {1: np.dtype("<f4"), 2: np.dtype("<f2")}


class LmdbFeatures(KeyedFeatures[LmdbValues]):
    """An LMDB with a value a clip, the clip's uid its key.

    A value is an array as :func:`pack_features` writes it, or an npz archive
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
        import_extra("lmdb")
        path = Path(path)
        super().__init__(path, LmdbValues, path / DATA_FILE if path.is_dir() else path)

    def time_scale(self, clip_id: str) -> float:
        """As noted when a raw array was packed, 1.0 otherwise."""
        value = self._value(clip_id)
        with self._named(clip_id):
            return _raw_fields(value)[3] if _is_raw(value) else 1.0

    def _header(self, clip_id: str) -> Header:
        value = self._value(clip_id)
        if value[:2] != _ZIP_MAGIC:
            return super()._header(clip_id)
        return NpzArchive(value).header(self.max_array_bytes)

    def _stored(self, clip_id: str) -> np.ndarray:
        value = self._value(clip_id)
        if _is_raw(value):
            return _raw_array(value)
        if value[:2] == _ZIP_MAGIC:
            archive = NpzArchive(value)
            return archive.array(self.max_array_bytes, checked=self.checks_sums)
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


def raw_value(features: Tensor, time_scale: float) -> bytes:
    """A raw array as a value.

    :param features: (T, C), float32 or float16.
    :param time_scale: see :meth:`FeatureStore.time_scale`.
    """
    array = features.numpy()
    code = next(code for code, dtype in _DTYPES.items() if dtype == array.dtype)
    return _RAW.pack(_RAW_MAGIC, code, *array.shape, time_scale) + array.tobytes()
