"""Feature files of one clip: ``.safetensors``, ``.npy`` and ``.pt``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from avalanche_vilco.data.features.store import Header

SUFFIXES = (".safetensors", ".npy", ".pt")
_FLOATING = {"F16", "BF16", "F32", "F64"}


def map_file(path: Path) -> Tensor | np.ndarray:
    """The tensor of a file, memory-mapped where its format allows.

    :param path: a file with a suffix of :data:`SUFFIXES`.
    :raises Exception: whatever a damaged file makes its reader raise.
    """
    return _READERS[path.suffix](path)


def file_header(path: Path) -> Header:
    """Shape and kind of a file's tensor; raises as :func:`map_file` does."""
    return _HEADERS[path.suffix](path)


def slice_header(view: Any) -> Header:
    """Header of a slice that ``safe_open(...).get_slice`` returns."""
    return Header(tuple(view.get_shape()), view.get_dtype() in _FLOATING)


def _map_npy(path: Path) -> np.ndarray:
    return np.lib.format.open_memmap(path, mode="r")


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
        return file.get_tensor(_only_key(file.keys()))


def _only_key(keys: Iterable[str]) -> str:
    found = list(keys)
    if len(found) != 1:
        raise ValueError(f"expected one tensor in the file but got {len(found)}")
    return found[0]


def _npy_header(path: Path) -> Header:
    array = _map_npy(path)
    return Header(array.shape, np.issubdtype(array.dtype, np.floating))


def _pt_header(path: Path) -> Header:
    tensor = _map_pt(path)
    return Header(tuple(tensor.shape), tensor.is_floating_point())


def _safetensors_header(path: Path) -> Header:
    with safe_open(path, framework="pt") as file:
        return slice_header(file.get_slice(_only_key(file.keys())))


_READERS: dict[str, Callable[[Path], Tensor | np.ndarray]] = {
    ".npy": _map_npy,
    ".pt": _map_pt,
    ".safetensors": _map_safetensors,
}
_HEADERS: dict[str, Callable[[Path], Header]] = {
    ".npy": _npy_header,
    ".pt": _pt_header,
    ".safetensors": _safetensors_header,
}
