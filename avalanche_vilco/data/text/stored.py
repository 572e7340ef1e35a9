"""Token features by query id, in files of others: read one by one, without trust."""

from __future__ import annotations

import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from avalanche_vilco.core.errors import DataError
from avalanche_vilco.core.handles import LmdbValues, PerProcess
from avalanche_vilco.data.features.npz import member_array, packed_features

MAX_ARRAY_BYTES = 64 * 2**20
"""A larger array of one sentence is an error: 77 tokens of 512 float32 take 158 kB."""
MAX_TEXT_FILE_BYTES = 256 * 2**20
"""A larger file of one clip or query is not read: 77 tokens of 768 channels take
236 kB, and a clip has 15 labels at most."""

_COPY_HINT = "write or copy it again"


def as_tokens(path: Path, record: str, stored: Tensor) -> Tensor:
    """Token features, (L, C) float32; a 1-D entry is one token.

    :param path: their file, for messages.
    :param record: their query or label, for messages.
    :raises DataError: another shape, or not finite.
    """
    tokens = stored.detach().float()
    tokens = tokens[None] if tokens.ndim == 1 else tokens
    if tokens.ndim != 2 or 0 in tokens.shape:
        problem = f"expected (L, C) token features but got {tuple(stored.shape)}"
        raise DataError(path, problem, record=record)
    if not bool(torch.isfinite(tokens).all()):
        problem = "the token features hold NaN or infinity"
        raise DataError(path, problem, record=record)
    return tokens


class StoredTokens(ABC):
    """Token features by query id; holds no open handle in a pickle.

    :param path: file or folder.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @abstractmethod
    def ids(self) -> Collection[str]:
        """All query ids that have features."""

    @abstractmethod
    def _stored(self, query_id: str) -> Tensor | None:
        """Features as stored, or None; raises :class:`DataError` if damaged."""

    def features(self, query_id: str) -> Tensor:
        """Token features of a query or sentence, (L, C) float32.

        :param query_id: as in the file of sentences or questions.
        :raises DataError: missing, damaged, too large, not finite or of another shape.
        """
        stored = self._stored(query_id)
        if stored is None:
            raise DataError(self.path, "no token features", record=query_id)
        return as_tokens(self.path, query_id, stored)


class TokenArchive(StoredTokens):
    """One npz archive with an array (L, C) for each query id.

    :param path: the archive.
    :raises FileNotFoundError: no such file.
    :raises DataError: it is no archive, or it is truncated.
    """

    def __init__(self, path: Path | str) -> None:
        super().__init__(path)
        if not self.path.is_file():
            raise FileNotFoundError(f"no token features at {self.path}")
        self._archive = PerProcess(partial(_open_archive, self.path))
        self._archive.get()

    def ids(self) -> Collection[str]:
        """All query ids that have features."""
        names = self._archive.get().namelist()
        return {name.removesuffix(".npy") for name in names if name.endswith(".npy")}

    def _stored(self, query_id: str) -> Tensor | None:
        archive = self._archive.get()
        try:
            member = archive.getinfo(f"{query_id}.npy")
        except KeyError:
            return None
        read = partial(member_array, archive, member, MAX_ARRAY_BYTES)
        return _unpacked(self.path, query_id, read)


class TokenLMDB(StoredTokens):
    """The public LMDB: query id -> npz archive, ``token_features`` or ``features``.

    Needs the extra ``lmdb``: ``pip install avalanche-vilco[lmdb]``.

    :param path: the LMDB's folder or file.
    :raises FileNotFoundError: nothing there.
    :raises ImportError: the extra is not installed.
    :raises DataError: it is no LMDB, or it is truncated.
    """

    def __init__(self, path: Path | str) -> None:
        super().__init__(path)
        self._values = PerProcess(partial(LmdbValues, self.path))
        self._values.get()

    def ids(self) -> Collection[str]:
        """All query ids that have features."""
        return self._values.get().keys()

    def _stored(self, query_id: str) -> Tensor | None:
        value = self._values.get().get(query_id)
        if value is None:
            return None
        read = partial(packed_features, value, MAX_ARRAY_BYTES)
        return _unpacked(self.path, query_id, read)


class TokenTable(StoredTokens):
    """One safetensors file with an entry for each query id.

    :param path: the file.
    :raises FileNotFoundError: no such file.
    :raises DataError: it is no safetensors file, or it is truncated.
    """

    def __init__(self, path: Path | str) -> None:
        super().__init__(path)
        if not self.path.is_file():
            raise FileNotFoundError(f"no query text file or folder at {self.path}")
        self._file = PerProcess(partial(_open_table, self.path))
        self._file.get()

    def ids(self) -> Collection[str]:
        """All query ids that have features."""
        return set(self._file.get().keys())

    def _stored(self, query_id: str) -> Tensor | None:
        try:
            return self._file.get().get_tensor(query_id)
        except SafetensorError:
            return None


class TokenFolder(StoredTokens):
    """A folder of ``<query_id>.pt``, each one tensor."""

    def ids(self) -> Collection[str]:
        """All query ids that have features."""
        return {path.stem for path in self.path.glob("*.pt")}

    def _stored(self, query_id: str) -> Tensor | None:
        path = self.path / f"{query_id}.pt"
        # An id with a slash would name a file elsewhere.
        if path.parent != self.path or not path.is_file():
            return None
        stored = load_pt(path)
        if not isinstance(stored, Tensor):
            problem = f"expected one tensor but got a {type(stored).__name__}"
            raise DataError(self.path, problem, record=query_id)
        return stored


def load_pt(path: Path) -> Any:
    """What a torch file of text holds: tensors, strings, dicts.

    :raises DataError: too large, damaged, or it holds other objects.
    """
    size = path.stat().st_size
    if size > MAX_TEXT_FILE_BYTES:
        problem = f"expected at most {MAX_TEXT_FILE_BYTES} bytes but got {size}"
        raise DataError(path, problem, hint="is it a file of video features?")
    try:
        return torch.load(path, weights_only=True, map_location="cpu")
    except UnpicklingError:
        # torch's own message advises to switch the check off.
        problem = "refused, it holds other objects than tensors, strings and dicts"
        hint = "save tensors: torch.save({label: tensor})"
        raise DataError(path, problem, hint=hint) from None
    except Exception as error:  # damaged pickles raise almost anything
        reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        raise DataError(path, f"damaged: {reason}", hint=_COPY_HINT) from error


def _open_archive(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        problem = f"not an npz archive: {error}"
        raise DataError(path, problem, hint=_COPY_HINT) from None


def _open_table(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        problem = f"not a safetensors file: {error}"
        raise DataError(path, problem, hint=_COPY_HINT) from None


def _unpacked(path: Path, record: str, read: Callable[[], np.ndarray]) -> Tensor:
    """An archive's array as float32; what reading raises names the record."""
    try:
        array = read()
        if not np.issubdtype(array.dtype, np.floating):
            raise ValueError(f"expected floating values but got {array.dtype}")
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        OSError,
        ValueError,
        NotImplementedError,  # compression or encryption that zipfile lacks
        RuntimeError,
    ) as error:
        problem = f"not readable: {error}"
        raise DataError(path, problem, record=record, hint=_COPY_HINT) from None
    # What float32 cannot hold becomes infinity, which is refused.
    with np.errstate(over="ignore"):
        return torch.from_numpy(np.array(array, dtype=np.float32, order="C"))
