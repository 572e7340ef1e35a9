"""Codes that a frozen backbone makes of frames and crops, kept in files.

A store is a folder: ``store.json`` with the fingerprint, the shape of a code and the
queries of each clip, and ``<clip id>.safetensors`` for each clip, with ``frames`` (N,)
int64, ``codes`` (N, C, h, w) float16 and ``crops`` (Q, C, h', w') float16. Files are
mapped into memory, and what is read of them is what was asked for.
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
from avalanche_vilco.core.files import write_atomically, written_whole
from avalanche_vilco.core.schema import check_plain_id, convert, decode_json_object

INDEX_FILE = "store.json"
CODES_SUFFIX = ".safetensors"
FORMAT = "avalanche-vilco frame codes"
FORMAT_VERSION = 1

_BYTES_OF_A_NUMBER = 2
_HINT = "delete the folder and compute it again"


@dataclass(frozen=True, eq=False)
class ClipCodes:
    """Codes of one clip."""

    clip_id: str
    frames: Sequence[int]
    """N frame numbers at the clip's rate, ascending."""
    codes: Iterable[Tensor]
    """Parts (n, C, h, w) of the N codes, stored as float16."""
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
    :param shape: (C, h, w) of a code.
    """
    return n_frames * math.prod(shape) * _BYTES_OF_A_NUMBER


class FrameEmbeddings:
    """A store of codes, read-only. It pickles: nothing is held open.

    :param folder: what :func:`write_frame_embeddings` wrote.
    :raises FileNotFoundError: no such store.
    :raises DataError: its index is damaged, or of another version.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder).expanduser()
        self._index = _read_index(self.folder)

    @property
    def fingerprint(self) -> str:
        """What the codes were computed from and by."""
        return self._index.fingerprint

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, h, w) of a frame's code."""
        return self._index.shape

    @property
    def nbytes(self) -> int:
        """Size of the files in bytes."""
        return sum(path.stat().st_size for path in self.folder.iterdir())

    def frames(self, clip_id: str, frames: Sequence[int]) -> Tensor:
        """Codes of frames.

        :param clip_id: a clip of the store.
        :param frames: n frame numbers at the clip's rate, any order.
        :return: (n, C, h, w) float16.
        :raises DataError: the store has no such clip or frame, or is damaged.
        """
        with self._opened(clip_id) as file:
            stored = file.get_tensor("frames")
            wanted = torch.as_tensor(list(frames), dtype=torch.int64)
            rows = torch.searchsorted(stored, wanted).clamp(max=len(stored) - 1)
            gone = wanted[stored[rows] != wanted].tolist()
            if gone:
                problem = f"no codes of frames {gone[:10]}"
                path = self._path(clip_id)
                raise DataError(path, problem, record=clip_id, hint=_HINT)
            if not len(rows):
                return torch.zeros(0, *self.shape, dtype=torch.float16)
            low, high = int(rows.min()), int(rows.max()) + 1
            codes: Tensor = file.get_slice("codes")[low:high]
        is_run = bool((rows == torch.arange(low, low + len(rows))).all())
        return codes if is_run else codes[rows - low]

    def crop(self, query_id: str) -> Tensor:
        """Code of a query's crop.

        :param query_id: a query of the store.
        :return: (C, h', w') float16.
        :raises DataError: the store has no such query, or is damaged.
        """
        if query_id not in self._crops:
            raise DataError(self.folder, "no code of its crop", record=query_id)
        clip_id, row = self._crops[query_id]
        with self._opened(clip_id) as file:
            codes: Tensor = file.get_slice("crops")[row : row + 1]
        return codes[0]

    @cached_property
    def _crops(self) -> dict[str, tuple[str, int]]:
        """Clip and row of each query."""
        return {
            query_id: (clip_id, row)
            for clip_id, query_ids in self._index.queries.items()
            for row, query_id in enumerate(query_ids)
        }

    def _path(self, clip_id: str) -> Path:
        return self.folder / f"{clip_id}{CODES_SUFFIX}"

    def _opened(self, clip_id: str) -> Any:
        if clip_id not in self._index.queries:
            raise DataError(self.folder, "no codes of this clip", record=clip_id)
        return _open(self._path(clip_id))


def write_frame_embeddings(
    folder: Path | str,
    fingerprint: str,
    shape: Sequence[int],
    clips: Iterable[ClipCodes],
) -> FrameEmbeddings:
    """Write a store; it appears whole.

    Clips are written one by one into a hidden folder beside it. After an interruption
    that folder stays, and the next call with the same fingerprint goes on from there:
    :func:`clips_written` says which clips need not be given again.

    :param folder: the store; its name must be free.
    :param fingerprint: what the codes are computed from and by.
    :param shape: (C, h, w) of a frame's code.
    :param clips: the clips that are not written yet.
    :return: the store.
    :raises FileExistsError: the name is taken.
    :raises ValueError: codes of another shape or number, or beyond float16.
    """
    folder = Path(folder).expanduser()
    if folder.exists():
        raise FileExistsError(f"expected a new folder but got {folder}")
    started = _started(folder, fingerprint)
    started.mkdir(parents=True, exist_ok=True)
    for clip in clips:
        _write_clip(started, clip, tuple(shape))
    queries = {
        path.name.removesuffix(CODES_SUFFIX): _query_ids(path)
        for path in sorted(started.glob(f"*{CODES_SUFFIX}"))
    }
    index = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "fingerprint": fingerprint,
        "shape": list(shape),
        "queries": queries,
    }
    write_atomically(started / INDEX_FILE, json.dumps(index) + "\n")
    _take_name(started, folder)
    return FrameEmbeddings(folder)


def clips_written(folder: Path | str, fingerprint: str) -> set[str]:
    """Clips that an interrupted :func:`write_frame_embeddings` has written.

    :param folder: the store that it was to write.
    :param fingerprint: as given there.
    """
    started = _started(Path(folder).expanduser(), fingerprint)
    return {
        path.name.removesuffix(CODES_SUFFIX)
        for path in started.glob(f"[!.]*{CODES_SUFFIX}")
    }


def _started(folder: Path, fingerprint: str) -> Path:
    return folder.with_name(f".{folder.name}.{fingerprint[:16]}.unfinished")


def _write_clip(folder: Path, clip: ClipCodes, shape: tuple[int, ...]) -> None:
    check_plain_id(folder, clip.clip_id)
    path = folder / f"{clip.clip_id}{CODES_SUFFIX}"
    with written_whole(path) as unfinished, unfinished.open("wb") as file:
        file.write(_header(clip, shape))
        np.asarray(clip.frames, dtype=np.int64).tofile(file)
        crop_shape = (shape[0], *clip.crops.shape[2:])
        for rows, size, parts in (
            (len(clip.query_ids), crop_shape, [clip.crops]),
            (len(clip.frames), shape, clip.codes),
        ):
            for part in parts:
                _check_codes(part, size, clip.clip_id)
                part.half().contiguous().numpy().tofile(file)
                rows -= len(part)
            if rows:
                raise ValueError(
                    f"expected a code for each frame and crop of {clip.clip_id} but "
                    f"got {-rows:+} more"
                )


def _check_codes(codes: Tensor, shape: tuple[int, ...], clip_id: str) -> None:
    if tuple(codes.shape[1:]) != shape:
        raise ValueError(
            f"expected codes of {shape} but got {tuple(codes.shape[1:])}: {clip_id}"
        )
    if not bool(codes.half().isfinite().all()):
        raise ValueError(
            f"expected codes that float16 can hold but got others: {clip_id}"
        )


def _header(clip: ClipCodes, shape: tuple[int, ...]) -> bytes:
    """Header of a safetensors file, so that codes need not be in memory at once."""
    entries: dict[str, Any] = {
        "__metadata__": {"query_ids": json.dumps(list(clip.query_ids))}
    }
    end = 0
    for name, dtype, size, width in (
        ("frames", "I64", (len(clip.frames),), 8),
        ("crops", "F16", tuple(clip.crops.shape), _BYTES_OF_A_NUMBER),
        ("codes", "F16", (len(clip.frames), *shape), _BYTES_OF_A_NUMBER),
    ):
        start, end = end, end + math.prod(size) * width
        entries[name] = {"dtype": dtype, "shape": size, "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    # Padded so that the tensors start aligned, as the format advises.
    text += b" " * (-len(text) % 64)
    return len(text).to_bytes(8, "little") + text


def _query_ids(path: Path) -> list[str]:
    with _open(path) as file:
        ids: list[str] = json.loads(file.metadata()["query_ids"])
    return ids


def _take_name(started: Path, folder: Path) -> None:
    try:
        started.rename(folder)
    except OSError:
        # Another process was faster; both computed the same.
        if not (folder / INDEX_FILE).is_file():
            raise
        shutil.rmtree(started, ignore_errors=True)


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise DataError(path, f"damaged: {error}", hint=_HINT) from None


def _read_index(folder: Path) -> _Index:
    path = folder / INDEX_FILE
    if not path.is_file():
        raise FileNotFoundError(f"no frame codes at {folder}: expected {path}")
    raw = decode_json_object(path, path.read_bytes(), hint=_HINT)
    index: _Index = convert(raw, _Index, path, hint=_HINT)
    if (index.format, index.format_version) != (FORMAT, FORMAT_VERSION):
        problem = f"expected {FORMAT!r}, version {FORMAT_VERSION}, but got "
        problem += f"{index.format!r}, {index.format_version}"
        raise DataError(path, problem, hint=_HINT)
    for clip_id in index.queries:
        check_plain_id(path, clip_id)
    return index
