"""Tensors in torch files, mapped: one of a clip, or a dict of all clips."""

from __future__ import annotations

from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor

from avalanche_vilco.data.features.store import KeyedFeatures


class TorchFeatures(KeyedFeatures[dict[str, Any]]):
    """One ``.pt`` or ``.pth`` file with a dict of clip uid -> tensor (T, C), mapped.

    :param file: the file; of before torch 1.6 it is read whole.
    :raises FileNotFoundError: no such file.
    """

    kind = "torch file with a dict of clip uid -> tensor"

    def __init__(self, file: Path | str) -> None:
        super().__init__(file, _tensors)

    def _stored(self, clip_id: str) -> Tensor:
        return _dense(self._holding(clip_id)[clip_id])


def _tensors(path: Path) -> dict[str, Any]:
    loaded = _loaded(path)
    if not isinstance(loaded, dict):
        raise TypeError(f"got a {type(loaded).__name__}")
    return loaded


def torch_tensor(path: Path) -> Tensor:
    """The tensor in a torch file of one clip, mapped.

    :raises Exception: damaged, or something else.
    """
    return _dense(_loaded(path))


def _loaded(path: Path) -> Any:
    # Files of before torch 1.6 are not zip archives and cannot be mapped.
    with path.open("rb") as file:
        is_zip = file.read(2) == b"PK"
    try:
        return torch.load(path, weights_only=True, mmap=is_zip, map_location="cpu")
    except UnpicklingError:
        # torch's own message advises to switch the check off.
        raise TypeError("refused, it holds other objects than tensors") from None


def _dense(loaded: object) -> Tensor:
    if not isinstance(loaded, Tensor) or loaded.layout != torch.strided:
        kind = getattr(loaded, "layout", type(loaded).__name__)
        raise TypeError(f"expected one dense tensor but got a {kind}")
    return loaded.detach()
