"""Embeddings that a frozen backbone makes of frames and crops, kept in files.

A store is a folder: ``store.json`` with the fingerprint, the shape of an embedding and
the queries of each clip, and ``<clip id>.safetensors`` for each clip, with ``frames``
(N,) int64, ``embeddings`` (N, C, h, w) float16 and ``crops`` (Q, C, h', w') float16.
Files are mapped into memory, and what is read of them is what was asked for.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from avalanche_vilco.core.errors import DataError
from avalanche_vilco.core.files import (
    safetensors_header,
    write_atomically,
    written_whole,
)
from avalanche_vilco.core.schema import check_plain_id, convert, decode_json_object

INDEX_FILE = "store.json"
SUFFIX = ".safetensors"
FORMAT = "avalanche-vilco frame embeddings"
FORMAT_VERSION = 1

_HINT = "delete the folder and compute it again"


@dataclass(frozen=True, eq=False)
class ClipEmbeddings:
    """Embeddings of one clip."""

    clip_id: str
    frames: Sequence[int]
    """N frame numbers at the clip's rate, ascending."""
    embeddings: Iterable[Tensor]
    """Parts (n, C, h, w) of the N embeddings, stored as float16."""
    query_ids: Sequence[str]
    """Q queries whose crops are from the clip."""
    crops: Tensor
    """(Q, C, h', w'), stored as float16; h', w' may differ from the frames' h, w."""


class _Index(msgspec.Struct):
    format: str
    format_version: int
    fingerprint: str
    shape: tuple[int, int, int]
    queries: dict[str, list[str]]


def expected_bytes(n_frames: int, shape: Sequence[int]) -> int:
    """Size of a store.

    :param n_frames: frames and crops.
    :param shape: (C, h, w) of an embedding.
    """
    return n_frames * math.prod(shape) * torch.float16.itemsize


class FrameEmbeddings:
    """A store of embeddings, read-only. It pickles: nothing is held open.

    :param folder: what :func:`write_frame_embeddings` wrote.
    :raises FileNotFoundError: no such store.
    :raises DataError: its index is damaged, or of another version.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder).expanduser()
        index = _read_index(self.folder)
        self.fingerprint = index.fingerprint
        """What the embeddings were computed from and by."""
        self.shape = index.shape
        """(C, h, w) of a frame's embedding."""
        self._queries = index.queries

    @property
    def nbytes(self) -> int:
        """Size of the files in bytes."""
        return sum(path.stat().st_size for path in self.folder.iterdir())

    def frames(self, clip_id: str, frames: Sequence[int]) -> Tensor:
        """Embeddings of frames.

        :param clip_id: a clip of the store.
        :param frames: n frame numbers at the clip's rate, any order.
        :return: (n, C, h, w) float16.
        :raises DataError: the store has no such clip or frame, or is damaged.
        """
        with self._opened(clip_id) as file:
            stored = file.get_tensor("frames")
            wanted = torch.as_tensor(list(frames), dtype=torch.int64)
            rows = torch.searchsorted(stored, wanted).clamp(max=len(stored) - 1)
            missing = wanted[stored[rows] != wanted].tolist()
            if missing:
                problem = f"no embeddings of frames {missing[:10]}"
                path = self.folder / f"{clip_id}{SUFFIX}"
                raise DataError(path, problem, record=clip_id, hint=_HINT)
            if not len(rows):
                return torch.zeros(0, *self.shape, dtype=torch.float16)
            low, high = int(rows.min()), int(rows.max()) + 1
            embeddings: Tensor = file.get_slice("embeddings")[low:high]
        is_run = bool((rows == torch.arange(low, low + len(rows))).all())
        return embeddings if is_run else embeddings[rows - low]

    def crop(self, query_id: str) -> Tensor:
        """Embedding of a query's crop.

        :param query_id: a query of the store.
        :return: (C, h', w') float16.
        :raises DataError: the store has no such query, or is damaged.
        """
        if query_id not in self._crops:
            raise DataError(self.folder, "no embedding of its crop", record=query_id)
        clip_id, row = self._crops[query_id]
        with self._opened(clip_id) as file:
            rows: Tensor = file.get_slice("crops")[row : row + 1]
        return rows[0]

    @cached_property
    def _crops(self) -> dict[str, tuple[str, int]]:
        """Clip and row of each query."""
        return {
            query_id: (clip_id, row)
            for clip_id, query_ids in self._queries.items()
            for row, query_id in enumerate(query_ids)
        }

    def _opened(self, clip_id: str) -> Any:
        if clip_id not in self._queries:
            raise DataError(self.folder, "no embeddings of this clip", record=clip_id)
        return _open(self.folder / f"{clip_id}{SUFFIX}")


def write_frame_embeddings(
    folder: Path | str,
    fingerprint: str,
    shape: Sequence[int],
    clips: Iterable[ClipEmbeddings],
) -> FrameEmbeddings:
    """Write a store; it appears whole.

    Clips are written one by one into a hidden folder beside it. After an interruption
    that folder stays, and the next call with the same fingerprint goes on from there:
    :func:`clips_written` says which clips need not be given again. Of several processes
    that compute the same store, the first to finish gives it its name, and the others
    take that one.

    :param folder: the store; its name must be free, or that of the same store.
    :param fingerprint: what the embeddings are computed from and by.
    :param shape: (C, h, w) of a frame's embedding.
    :param clips: the clips that are not written yet.
    :return: the store.
    :raises FileExistsError: the name is taken.
    :raises ValueError: embeddings of another shape or number, or beyond float16.
    """
    folder = Path(folder).expanduser()
    unfinished = _unfinished(folder, fingerprint)
    try:
        _refuse_taken(folder)
        for clip in clips:
            _write_clip(unfinished, clip, tuple(shape))
            _refuse_taken(folder)
        _write_index(unfinished, fingerprint, shape)
        unfinished.rename(folder)
    except (OSError, DataError):
        # Another process may have been faster, and taken the unfinished folder away.
        if not _holds_store(folder, fingerprint):
            raise
        shutil.rmtree(unfinished, ignore_errors=True)
    for left_by_slower in folder.glob(".*.unfinished"):
        left_by_slower.unlink(missing_ok=True)
    return FrameEmbeddings(folder)


def clips_written(folder: Path | str, fingerprint: str) -> set[str]:
    """Clips that an interrupted :func:`write_frame_embeddings` has written.

    :param folder: the store that it was to write.
    :param fingerprint: as given there.
    """
    return set(_clip_files(_unfinished(Path(folder).expanduser(), fingerprint)))


def _unfinished(folder: Path, fingerprint: str) -> Path:
    return folder.with_name(f".{folder.name}.{fingerprint[:16]}.unfinished")


def _refuse_taken(folder: Path) -> None:
    if folder.exists():
        raise FileExistsError(f"expected a new folder but got {folder}")


def _holds_store(folder: Path, fingerprint: str) -> bool:
    try:
        return _read_index(folder).fingerprint == fingerprint
    except (FileNotFoundError, DataError):
        return False


def _clip_files(folder: Path) -> dict[str, Path]:
    paths = sorted(folder.glob(f"[!.]*{SUFFIX}"))
    return {path.name.removesuffix(SUFFIX): path for path in paths}


def _write_clip(folder: Path, clip: ClipEmbeddings, shape: tuple[int, ...]) -> None:
    check_plain_id(folder, clip.clip_id)
    crop_shape = (shape[0], *clip.crops.shape[2:])
    header = safetensors_header(
        {
            "frames": ("I64", (len(clip.frames),)),
            "crops": ("F16", clip.crops.shape),
            "embeddings": ("F16", (len(clip.frames), *shape)),
        },
        {"query_ids": json.dumps(list(clip.query_ids))},
    )
    path = folder / f"{clip.clip_id}{SUFFIX}"
    with written_whole(path) as unfinished, unfinished.open("wb") as file:
        file.write(header)
        np.asarray(clip.frames, dtype=np.int64).tofile(file)
        for n_rows, row_shape, parts in (
            (len(clip.query_ids), crop_shape, [clip.crops]),
            (len(clip.frames), shape, clip.embeddings),
        ):
            for part in parts:
                _check_part(part, row_shape, clip.clip_id)
                part.half().contiguous().numpy().tofile(file)
                n_rows -= len(part)
            if n_rows:
                raise ValueError(
                    f"expected an embedding for each frame and crop of {clip.clip_id} "
                    f"but got {-n_rows:+} more"
                )


def _check_part(part: Tensor, shape: tuple[int, ...], clip_id: str) -> None:
    if tuple(part.shape[1:]) != shape:
        raise ValueError(
            f"expected embeddings of {shape} but got {tuple(part.shape[1:])}: {clip_id}"
        )
    if not bool(part.half().isfinite().all()):
        raise ValueError(
            f"expected embeddings that float16 can hold but got others: {clip_id}"
        )


def _write_index(folder: Path, fingerprint: str, shape: Sequence[int]) -> None:
    queries: dict[str, list[str]] = {}
    for clip_id, path in _clip_files(folder).items():
        with _open(path) as file:
            queries[clip_id] = json.loads(file.metadata()["query_ids"])
    c, h, w = shape
    index = _Index(FORMAT, FORMAT_VERSION, fingerprint, (c, h, w), queries)
    write_atomically(folder / INDEX_FILE, msgspec.json.encode(index).decode() + "\n")


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise DataError(path, f"damaged: {error}", hint=_HINT) from None


def _read_index(folder: Path) -> _Index:
    path = folder / INDEX_FILE
    if not path.is_file():
        raise FileNotFoundError(f"no frame embeddings at {folder}: expected {path}")
    raw = decode_json_object(path, path.read_bytes(), hint=_HINT)
    index: _Index = convert(raw, _Index, path, hint=_HINT)
    if (index.format, index.format_version) != (FORMAT, FORMAT_VERSION):
        problem = f"expected {FORMAT!r}, version {FORMAT_VERSION}, but got "
        problem += f"{index.format!r}, {index.format_version}"
        raise DataError(path, problem, hint=_HINT)
    for clip_id in index.queries:
        check_plain_id(path, clip_id)
    return index
