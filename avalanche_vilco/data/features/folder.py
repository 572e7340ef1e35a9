"""A folder with one feature file a clip: ``.safetensors``, ``.npy`` or ``.pt``."""

from __future__ import annotations

import re
from pathlib import Path
from pickle import UnpicklingError

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from avalanche_vilco.data.features.store import StoredFeatures

SUFFIXES = (".safetensors", ".npy", ".pt")
_PLAIN_NAME = re.compile(r"[^./\\:\0][^/\\:\0]{0,199}")


class FeatureFolder(StoredFeatures):
    """A folder with one file a clip: ``<clip_uid>.pt``, ``.npy`` or ``.safetensors``.

    Files hold one floating tensor (T, C), T steps of C channels; float16, bfloat16
    and float64 are read as float32. Files are memory-mapped, ``.pt`` with
    ``weights_only=True``; a ``.safetensors`` file holds one tensor of any key.
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
                f"file a clip (<clip_uid> + {', '.join(SUFFIXES)})"
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

    def _stored(self, clip_id: str) -> Tensor | np.ndarray:
        path = self.path(clip_id)
        if path.suffix == ".npy":
            return np.lib.format.open_memmap(path, mode="r")
        return _map_pt(path) if path.suffix == ".pt" else _map_safetensors(path)


def _map_pt(path: Path) -> Tensor:
    # Files of before torch 1.6 are not zip archives and cannot be mapped.
    with path.open("rb") as file:
        is_zip = file.read(2) == b"PK"
    try:
        loaded = torch.load(path, weights_only=True, mmap=is_zip, map_location="cpu")
    except UnpicklingError:
        # torch's own message advises to switch the check off.
        raise TypeError("refused, it holds other objects than a tensor") from None
    if not isinstance(loaded, Tensor) or loaded.layout != torch.strided:
        kind = getattr(loaded, "layout", type(loaded).__name__)
        raise TypeError(f"expected one dense tensor but got a {kind}")
    return loaded.detach()


def _map_safetensors(path: Path) -> Tensor:
    with safe_open(path, framework="pt") as file:
        keys = list(file.keys())
        if len(keys) != 1:
            raise ValueError(f"expected one tensor in the file but got {len(keys)}")
        return file.get_tensor(keys[0])
