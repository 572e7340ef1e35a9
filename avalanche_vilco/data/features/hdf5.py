"""Features in HDF5 files, of which the window is read."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from avalanche_vilco.core.handles import import_extra
from avalanche_vilco.data.features.npz import array_name
from avalanche_vilco.data.features.store import KeyedFeatures

HDF5_SUFFIXES = (".h5", ".hdf5")


class Hdf5Features(KeyedFeatures[Any]):
    """One HDF5 file with a dataset (T, C) a clip, or a group a clip that has one.

    A window reads the chunks that it touches. The file is opened once a process,
    read-only and without locks. HDF5's library checks little, and few files have
    checksums: read files of a source you trust.

    :param file: the file.
    :raises FileNotFoundError: no such file.
    :raises ImportError: the package ``h5py`` is not installed.
    """

    kind = "HDF5 file"

    def __init__(self, file: Path | str) -> None:
        import_extra("h5py")
        super().__init__(file, _opened)

    def _stored(self, clip_id: str) -> Any:
        found = self._holding(clip_id)[clip_id]
        return _dataset(found, self.file, self.max_array_bytes)


def _opened(path: Path) -> Any:
    return import_extra("h5py").File(path, "r", locking=False)


def hdf5_dataset(path: Path, max_bytes: int) -> Any:
    """The dataset in an HDF5 file of one clip; it keeps the file open.

    :raises Exception: damaged, no dataset or several, or larger than ``max_bytes``.
    """
    return _dataset(_opened(path), path, max_bytes)


def _dataset(found: Any, path: Path, max_bytes: int) -> Any:
    if hasattr(found, "keys"):
        found = found[array_name(found.keys())]
    if found.shape is None:
        raise ValueError("empty: a dataset without values")
    if found.file.filename != str(path) or found.external or found.is_virtual:
        raise ValueError("refused, its values lie in other files")
    if found.nbytes > max_bytes:
        raise ValueError(
            f"declares {found.nbytes} bytes; more than {max_bytes} are refused"
        )
    if found.chunks:
        parts = zip(found.shape, found.chunks, strict=True)
        lacking = math.prod(-(-n // m) for n, m in parts) - found.id.get_num_chunks()
    else:
        lacking = bool(found.size) - found.id.get_storage_size()
    if lacking > 0:  # would be read as zeros
        raise ValueError("declared, but not written whole")
    return found[()] if found.ndim == 1 else found
