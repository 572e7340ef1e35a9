"""A folder with one feature file a clip."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from torch import Tensor

from avalanche_vilco.data.features.hdf5 import HDF5_SUFFIXES, hdf5_dataset
from avalanche_vilco.data.features.npz import NpzArchive
from avalanche_vilco.data.features.store import StoredFeatures
from avalanche_vilco.data.features.torch_file import torch_tensor

SUFFIXES = (".safetensors", ".npy", ".pt", ".pth", ".npz", *HDF5_SUFFIXES)
_PLAIN_NAME = re.compile(r"[^./\\:\0][^/\\:\0]{0,199}")


class FeatureFolder(StoredFeatures):
    """A folder with one file a clip: ``<clip_uid>.pt``, or another of ``SUFFIXES``.

    Files hold one floating tensor (T, C), T steps of C channels, of any key where the
    format has keys; float16, bfloat16 and float64 are read as float32. Files are
    memory-mapped, torch's with ``weights_only=True``; compressed ``.npz`` are unpacked,
    of HDF5 the window is read.
    Two files of one clip are an error: which one is meant cannot be known. An id
    that is no plain file name is refused, so that nothing outside is read.

    :param folder: the folder.
    :raises FileNotFoundError: no such folder.
    """

    def __init__(self, folder: Path | str) -> None:
        super().__init__(folder)
        if not self.folder.is_dir():
            raise FileNotFoundError(
                f"no feature folder at {self.folder}; pass features=FOLDER with one "
                f"file a clip (<clip_uid> + {', '.join(SUFFIXES)}), or one file of all "
                "clips"
            )

    @property
    def folder(self) -> Path:
        """The folder."""
        return self.source

    def path(self, clip_id: str) -> Path:
        """The file of a clip.

        :param clip_id: clip uid.
        :raises FeatureError: the clip has no file or several, or its id could name a
            file outside the folder.
        """
        if not _PLAIN_NAME.fullmatch(clip_id):
            raise self._fault(f"{clip_id!r}: refused, the id is no plain file name")
        paths = [self.folder / f"{clip_id}{suffix}" for suffix in SUFFIXES]
        found = [path for path in paths if path.is_file()]
        if len(found) > 1:
            names = " and ".join(path.name for path in found)
            raise self._fault(f"{clip_id}: has {names}; leave one")
        if not found:
            raise self._fault(f"{clip_id}: no file {clip_id}{'|'.join(SUFFIXES)}")
        return found[0]

    def locate(self, clip_id: str) -> str:
        """Path of a clip's file; :class:`FeatureError` if there is none."""
        return str(self.path(clip_id))

    def ids(self) -> set[str]:
        """All clips that have a file."""
        return {p.stem for p in self.folder.iterdir() if p.suffix in SUFFIXES}

    def contents(self) -> str:
        """What lies in the folder, by suffix."""
        names = sorted(path.name for path in self.folder.iterdir())
        kinds = Counter(Path(name).suffix or "without suffix" for name in names)
        listed = ", ".join(f"{n} {kind}" for kind, n in kinds.most_common(4))
        return f"the folder has {listed}, {names[0]} first" if names else "it is empty"

    def _stored(self, clip_id: str) -> Any:
        path = self.path(clip_id)
        if path.suffix == ".npy":
            return np.lib.format.open_memmap(path, mode="r")
        if path.suffix == ".safetensors":
            return _map_safetensors(path)
        if path.suffix == ".npz":
            return NpzArchive(path).array(self.max_array_bytes)
        if path.suffix in HDF5_SUFFIXES:
            return hdf5_dataset(path, self.max_array_bytes)
        return torch_tensor(path)


def _map_safetensors(path: Path) -> Tensor:
    with safe_open(path, framework="pt") as file:
        keys = list(file.keys())
        if len(keys) != 1:
            raise ValueError(f"expected one tensor in the file but got {len(keys)}")
        return file.get_tensor(keys[0])
