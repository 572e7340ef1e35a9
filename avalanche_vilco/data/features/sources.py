"""One name for all feature stores: what lies at a path decides which is opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

from msgspec import Meta

from avalanche_vilco.core.errors import DataError
from avalanche_vilco.data.features.concatenated import ConcatFeatures
from avalanche_vilco.data.features.database import DATA_FILE, LmdbFeatures
from avalanche_vilco.data.features.folder import SUFFIXES, FeatureFolder
from avalanche_vilco.data.features.hdf5 import HDF5_SUFFIXES, Hdf5Features
from avalanche_vilco.data.features.npz import NpzFeatures
from avalanche_vilco.data.features.packed import PackedFeatures
from avalanche_vilco.data.features.parent import ParentFeatures
from avalanche_vilco.data.features.store import FeatureStore, StoredFeatures
from avalanche_vilco.data.features.torch_file import TorchFeatures
from avalanche_vilco.data.features.wrapped import CachedFeatures, GridFeatures

FeatureSource: TypeAlias = (
    Path
    | str
    | FeatureStore
    | Annotated[Sequence[Path | str | FeatureStore], Meta(min_length=1)]
)
"""A path, a store, or several of them to be concatenated on channels."""

_LMDB_SUFFIXES = (".lmdb", ".mdb")
ALL_CLIPS: dict[str, Callable[[Path], StoredFeatures]] = {
    ".safetensors": PackedFeatures,
    ".npz": NpzFeatures,
    **dict.fromkeys(HDF5_SUFFIXES, Hdf5Features),
    **dict.fromkeys((".pt", ".pth"), TorchFeatures),
    **dict.fromkeys(_LMDB_SUFFIXES, LmdbFeatures),
}
"""Suffix -> store of a file with all clips."""

READABLE = (
    f"a folder with one file a clip ({', '.join(SUFFIXES)}), or one file of all clips "
    f"({', '.join(ALL_CLIPS)})"
)
"""What features are read from, for messages."""

_MAX_TOKEN_BYTES = 64 * 2**20
"""Of one sentence: 77 tokens of 512 float32 take 158 kB."""


def open_features(
    source: FeatureSource,
    *,
    cuts: Mapping[str, tuple[str, float, float, float]] | None = None,
    grid: int | None = None,
    cache_bytes: int = 0,
) -> FeatureStore:
    """Open features of any supported form.

    ========================================  =================================
    source                                    store
    ========================================  =================================
    folder of one file a clip                 :class:`FeatureFolder`
    ``.safetensors`` file, one key a clip     :class:`PackedFeatures`
    ``.npz`` archive, one array a clip        :class:`NpzFeatures`
    ``.h5``, ``.hdf5``, one dataset a clip    :class:`Hdf5Features`
    ``.pt``, ``.pth``, one dict of tensors    :class:`TorchFeatures`
    folder with ``data.mdb``, ``.lmdb`` file  :class:`LmdbFeatures`
    a store                                   itself
    list of these                             :class:`ConcatFeatures`
    ========================================  =================================

    :param source: where the features are.
    :param cuts: clip uid -> (video uid, start, end in seconds of the video, features
        a second), if the source holds whole videos: see :class:`ParentFeatures`.
    :param grid: resize every clip to this many steps: see :class:`GridFeatures`.
    :param cache_bytes: of features kept in memory once read: see
        :class:`CachedFeatures`.
    :return: the store; nothing but its existence is checked yet.
    :raises FileNotFoundError: nothing at a path.
    :raises DataError: a file of another kind.
    :raises ImportError: an LMDB or an HDF5 file, and the package that reads it is not
        installed.
    :raises ValueError: no source, or a cut or the grid is out of range.
    """
    store = _open(source)
    if cuts is not None:
        store = ParentFeatures(store, cuts)
    if grid is not None:
        store = GridFeatures(store, grid)
    if cache_bytes:
        store = CachedFeatures(store, cache_bytes)
    return store


def open_tokens(path: Path | str) -> StoredFeatures:
    """Open token features of sentences or questions, by query id.

    :param path: as :func:`open_features` takes it, with an array (L, C) a query id;
        (C,) counts as one token. A file of another suffix is read as safetensors.
    :return: the store; it can be opened.
    :raises FileNotFoundError: nothing there.
    :raises ImportError: as :func:`open_features` does.
    :raises FeatureError: the file is damaged.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"no token features at {path}")
    is_other = path.is_file() and path.suffix not in ALL_CLIPS
    store = PackedFeatures(path) if is_other else _open_path(path)
    store.is_vector_one_step = store.checks_sums = True
    store.max_array_bytes = _MAX_TOKEN_BYTES
    store.hint = "write or copy it again"
    store.check_source()
    return store


def _open(source: FeatureSource) -> FeatureStore:
    if isinstance(source, (str, Path)):
        return _open_path(Path(source).expanduser())
    if isinstance(source, Sequence):
        stores = [_open(one) for one in source]
        return stores[0] if len(stores) == 1 else ConcatFeatures(stores)
    return source


def _open_path(path: Path) -> StoredFeatures:
    if (path / DATA_FILE).is_file() or path.suffix in _LMDB_SUFFIXES:
        return LmdbFeatures(path)
    if path.suffix in ALL_CLIPS and not path.is_dir():
        return ALL_CLIPS[path.suffix](path)
    if path.is_file():
        problem = f"is a {path.suffix or 'file'}; features are read from {READABLE}"
        hint = "pickles are not read, because they run code: save tensors or arrays"
        raise DataError(path, problem, hint=hint)
    return FeatureFolder(path)
