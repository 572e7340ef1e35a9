"""Frozen video features on disk, one file a clip, read lazily.

A store knows where features lie and holds no open handle, so datasets that use it
can be pickled to spawned workers. Other stores follow the same protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Protocol

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from avalanche_vilco.data.errors import FeatureError

SUFFIXES = (".safetensors", ".npy", ".pt")
LENGTH_TOLERANCE_STEPS = 2
"""Extraction tools add or drop a step at the end; more is another clip's file."""


class FeatureStore(Protocol):
    """Where a benchmark reads the features of a clip."""

    @property
    def width(self) -> int:
        """Channels of a step."""

    def read(self, clip_id: str) -> Tensor:
        """Features of a clip, (T, C) float32, time-major.

        :raises FeatureError: missing, damaged or non-finite.
        """


@dataclass(frozen=True)
class _Header:
    shape: tuple[int, ...]
    is_floating: bool


class FeatureFolder:
    """A folder with one file a clip: ``<clip_uid>.pt``, ``.npy`` or ``.safetensors``.

    Files hold one floating tensor (T, C), T steps of C channels; float16, bfloat16
    and float64 are read as float32. ``.npy`` and ``.pt`` are memory-mapped, ``.pt``
    with ``weights_only=True``; a ``.safetensors`` file holds one tensor of any key.
    Two files of one clip are an error: which one is meant cannot be known.

    :param folder: the folder.
    :raises FileNotFoundError: no such folder.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise FileNotFoundError(
                f"no feature folder at {self.folder}; pass features=FOLDER with one "
                f"file a clip (<clip_uid> + {', '.join(SUFFIXES)})"
            )
        self._width: int | None = None

    @property
    def width(self) -> int:
        """Channels of a step; known after :meth:`preflight`."""
        if self._width is None:
            raise ValueError("the width is known after preflight()")
        return self._width

    def path(self, clip_id: str) -> Path | None:
        """The file of a clip, or None.

        :param clip_id: clip uid.
        :raises FeatureError: the clip has several files.
        """
        paths = [self.folder / f"{clip_id}{suffix}" for suffix in SUFFIXES]
        found = [path for path in paths if path.is_file()]
        if len(found) > 1:
            names = " and ".join(path.name for path in found)
            raise self._fault(f"{clip_id}: has {names}; leave one")
        return found[0] if found else None

    def missing(self, clip_ids: Iterable[str]) -> list[str]:
        """Clips that have no file."""
        stems = {p.stem for p in self.folder.iterdir() if p.suffix in SUFFIXES}
        return [clip_id for clip_id in clip_ids if clip_id not in stems]

    def read(self, clip_id: str) -> Tensor:
        """Features of a clip.

        :param clip_id: clip uid.
        :return: (T, C) float32.
        :raises FeatureError: the file is missing, damaged or holds NaN or infinity.
        """
        path = self.path(clip_id)
        if path is None:
            raise self._fault(f"{clip_id}: no file {clip_id}{'|'.join(SUFFIXES)}")
        try:
            features = _READERS[path.suffix](path).float()
        except Exception as error:  # damaged pickles raise almost anything
            raise self._fault(_damaged(clip_id, path, error)) from error
        if not bool(torch.isfinite(features).all()):
            raise self._fault(f"{clip_id}: {path.name} holds NaN or infinity")
        return features

    def preflight(
        self,
        expected_steps: Mapping[str, float],
        *,
        tolerance: float = LENGTH_TOLERANCE_STEPS,
    ) -> None:
        """Check every file's header before training and list all faults at once.

        :param expected_steps: clip uid -> duration x features a second.
        :param tolerance: accepted difference between steps found and expected.
        :raises FeatureError: files are missing, doubled, truncated, not a 2-D
            floating tensor, transposed, of another width or another clip's length.
        """
        faults: list[str] = []
        headers: dict[str, _Header] = {}
        for clip_id in expected_steps:
            try:
                headers[clip_id] = self._header(clip_id)
            except FeatureError as error:
                faults += error.faults
        self._width = self._width or _common_width(headers, expected_steps, tolerance)
        for clip_id, header in headers.items():
            problem = _shape_problem(
                header, expected_steps[clip_id], self._width, tolerance
            )
            if problem:
                faults.append(f"{clip_id}: {self.path(clip_id)}: {problem}")
        if faults:
            raise self._fault(*faults)

    def _header(self, clip_id: str) -> _Header:
        path = self.path(clip_id)
        if path is None:
            raise self._fault(f"{clip_id}: no file {clip_id}{'|'.join(SUFFIXES)}")
        try:
            return _HEADERS[path.suffix](path)
        except Exception as error:  # damaged pickles raise almost anything
            raise self._fault(_damaged(clip_id, path, error)) from error

    def _fault(self, *faults: str) -> FeatureError:
        hint = (
            "extract or copy these files again, or pass missing='drop' to leave "
            "clips without a file out of the streams"
        )
        return FeatureError(self.folder, faults, hint)


def _damaged(clip_id: str, path: Path, error: Exception) -> str:
    first = str(error).strip().partition("\n")[0]
    reason = f"{type(error).__name__}: {first}"
    return f"{clip_id}: {path.name} is damaged or not a feature file: {reason}"


def _read_npy(path: Path) -> Tensor:
    array = np.lib.format.open_memmap(path, mode="r")
    # What float32 cannot hold becomes infinity, which the caller reports.
    with np.errstate(over="ignore"):
        return torch.from_numpy(np.array(array, dtype=np.float32))


def _read_pt(path: Path) -> Tensor:
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


def _read_safetensors(path: Path) -> Tensor:
    with safe_open(path, framework="pt") as file:
        return file.get_tensor(_only_key(file.keys()))


def _only_key(keys: Iterable[str]) -> str:
    found = list(keys)
    if len(found) != 1:
        raise ValueError(f"expected one tensor in the file but got {len(found)}")
    return found[0]


def _npy_header(path: Path) -> _Header:
    array = np.lib.format.open_memmap(path, mode="r")
    return _Header(array.shape, np.issubdtype(array.dtype, np.floating))


def _pt_header(path: Path) -> _Header:
    tensor = _read_pt(path)
    return _Header(tuple(tensor.shape), tensor.is_floating_point())


def _safetensors_header(path: Path) -> _Header:
    with safe_open(path, framework="pt") as file:
        view = file.get_slice(_only_key(file.keys()))
        is_floating = view.get_dtype() in {"F16", "BF16", "F32", "F64"}
        return _Header(tuple(view.get_shape()), is_floating)


_READERS: dict[str, Callable[[Path], Tensor]] = {
    ".npy": _read_npy,
    ".pt": _read_pt,
    ".safetensors": _read_safetensors,
}
_HEADERS: dict[str, Callable[[Path], _Header]] = {
    ".npy": _npy_header,
    ".pt": _pt_header,
    ".safetensors": _safetensors_header,
}


def _common_width(
    headers: Mapping[str, _Header], expected: Mapping[str, float], tolerance: float
) -> int | None:
    """The width that most well-formed files have."""
    widths = [
        header.shape[1]
        for clip_id, header in headers.items()
        if len(header.shape) == 2
        and abs(header.shape[0] - expected[clip_id]) <= tolerance
    ]
    widths = widths or [h.shape[1] for h in headers.values() if len(h.shape) == 2]
    return max(sorted(set(widths)), key=widths.count) if widths else None


def _shape_problem(
    header: _Header, expected: float, width: int | None, tolerance: float
) -> str | None:
    shape = header.shape
    if not header.is_floating:
        return "expected a floating dtype but got integers or bytes"
    if len(shape) != 2:
        return f"expected a (T, C) tensor but got shape {shape}"
    steps, channels = shape
    if not (steps and channels):
        return f"empty: shape {shape}"
    if abs(steps - expected) > tolerance and abs(channels - expected) <= tolerance:
        return f"transposed: expected (T, C) = ({expected:.0f}, {width}), got {shape}"
    if channels != width:
        return f"expected {width} channels as in the other files but got {channels}"
    if abs(steps - expected) > tolerance:
        return (
            f"expected {expected:.1f} steps (duration x fps of the annotation, "
            f"tolerance {tolerance}) but got {steps}"
        )
    return None


class ShuffledFeatures:
    """Features that say nothing about their clip: the chance level of a model.

    A clip reads, in random order, steps of another clip of the same set. What the
    model knows without looking (how frequent, how long) remains.

    :param store: the true features.
    :param clip_ids: clips among which donors are drawn, at least two.
    :param seed: same seed, same donors and order.
    :raises ValueError: fewer than two clips.
    """

    def __init__(self, store: FeatureStore, clip_ids: Iterable[str], seed: int) -> None:
        ids = sorted(set(clip_ids))
        if len(ids) < 2:
            raise ValueError(f"expected at least 2 clips to shuffle but got {len(ids)}")
        self._store = store
        self._seed = seed
        order = np.random.default_rng(seed).permutation(len(ids))
        self._position = {ids[i]: spot for spot, i in enumerate(order.tolist())}
        self._donor = {
            ids[i]: ids[order[(spot + 1) % len(ids)]]
            for spot, i in enumerate(order.tolist())
        }

    @property
    def width(self) -> int:
        """Channels of a step."""
        return self._store.width

    def read(self, clip_id: str) -> Tensor:
        """Steps of another clip in random order, (T, C) float32, T of this clip."""
        steps = len(self._store.read(clip_id))
        donor = self._store.read(self._donor[clip_id])
        rng = np.random.default_rng([self._seed, self._position[clip_id]])
        return donor[torch.from_numpy(rng.integers(len(donor), size=steps))]
