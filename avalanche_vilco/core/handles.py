"""Open files that never travel between processes."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from avalanche_vilco.core.errors import DataError

T = TypeVar("T")


class PerProcess(Generic[T]):
    """Opens on first use, once in each process; a pickle holds how, not what.

    A handle that a forked worker inherits shares its file position with the parent,
    so a child opens its own. It leaves the parent's alone: closing a video there would
    wait for ever for threads that were not forked.

    :param open_it: opens; must pickle (a function or a ``functools.partial``).
    """

    def __init__(self, open_it: Callable[[], T]) -> None:
        self._open = open_it
        self._opened: tuple[int, T] | None = None

    def get(self) -> T:
        """What was opened in this process."""
        if self._opened is None or self._opened[0] != os.getpid():
            if self._opened is not None:
                _INHERITED.append(self._opened[1])
            self._opened = (os.getpid(), self._open())
        return self._opened[1]

    def __getstate__(self) -> dict[str, Any]:
        return {"_open": self._open, "_opened": None}


_INHERITED: list[Any] = []

if hasattr(os, "register_at_fork"):
    # A child that collects what the parent has dropped, but not collected yet, can
    # wait for ever for threads that were not forked: those of a video's decoder.
    os.register_at_fork(after_in_child=gc.freeze)


_EXTRAS = {"lmdb": ("LMDB", "lmdb"), "h5py": ("HDF5", "h5")}
"""Package -> what its files are called, and our extra that brings it."""


def import_extra(package: str) -> ModuleType:
    """An optional package that reads files of one kind, ``lmdb`` or ``h5py``.

    :raises ImportError: not installed; says how.
    """
    kind, extra = _EXTRAS[package]
    try:
        return import_module(package)
    except ImportError:
        raise ImportError(
            f"{kind} files need the package {package}, an optional extra: "
            f"pip install 'avalanche-vilco[{extra}]'"
        ) from None


class LmdbValues:
    """An open LMDB and one transaction, which keeps values mapped.

    :param path: as in :func:`open_lmdb`.
    :raises Exception: as :func:`open_lmdb` does.
    """

    def __init__(self, path: Path | str) -> None:
        environment = open_lmdb(path)
        self._transaction = environment.begin(buffers=True)
        self._max_key_bytes = environment.max_key_size()

    def get(self, key: str) -> memoryview | None:
        """The value of a key, a view of the file, or None."""
        encoded = key.encode()
        # LMDB raises for keys that it cannot hold.
        if not 0 < len(encoded) <= self._max_key_bytes:
            return None
        return self._transaction.get(encoded)

    def keys(self) -> set[str]:
        """All keys; damaged text is replaced."""
        keys = self._transaction.cursor().iternext(keys=True, values=False)
        return {bytes(key).decode(errors="replace") for key in keys}


_LMDB_OPENED: dict[tuple[int, int], tuple[int, Any]] = {}


def open_lmdb(path: Path | str) -> Any:
    """An LMDB for reading, one handle a process however often it is asked for.

    A truncated file would kill the process with SIGBUS at the first read of a page
    that is not there, so its size is held against its page count. Further damage
    inside an LMDB cannot be seen: read only files from a source you trust.

    :param path: the LMDB's folder, or its file.
    :return: ``lmdb.Environment``, read-only, without a lock file.
    :raises ImportError: the extra ``lmdb`` is not installed.
    :raises FileNotFoundError: nothing there.
    :raises DataError: it is no LMDB, or it is truncated.
    """
    path = Path(path)
    lmdb = import_extra("lmdb")
    file = path / "data.mdb" if path.is_dir() else path
    if not file.is_file():
        raise FileNotFoundError(f"no LMDB at {path}: expected {file}")
    status = file.stat()
    key = (status.st_dev, status.st_ino)
    pid, environment = _LMDB_OPENED.get(key, (0, None))
    if environment is not None and pid == os.getpid():
        return environment
    if environment is not None:
        # Inherited through fork: LMDB forbids to use it, and to open a second one.
        environment.close()
    try:
        opened = lmdb.open(str(file), subdir=False, readonly=True, lock=False)
        expected = (opened.info()["last_pgno"] + 1) * opened.stat()["psize"]
    except lmdb.Error as error:
        hint = "write or copy it again"
        raise DataError(path, f"not an LMDB: {error}", hint=hint) from None
    if status.st_size < expected:
        opened.close()
        problem = f"truncated: expected {expected} bytes but got {status.st_size}"
        raise DataError(path, problem, hint="copy it again")
    _LMDB_OPENED[key] = (os.getpid(), opened)
    return opened
