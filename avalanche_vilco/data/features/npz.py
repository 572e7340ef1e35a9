"""Arrays inside npz archives of others, read without trust.

What an archive declares is held against limits and against what it holds before
anything is unpacked; Python objects are refused.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Collection
from mmap import ACCESS_READ, mmap
from pathlib import Path

import numpy as np

from avalanche_vilco.data.features.store import Header, KeyedFeatures

ARRAY_NAMES = ("token_features", "features")
"""Names under which public code stores an array, the first found counts."""
_NPY_HEADER_BYTES = 2**14


class NpzFeatures(KeyedFeatures["NpzArchive"]):
    """One npz archive with an array (T, C) a clip, or (L, C) a sentence.

    The archive is mapped; an array that is not compressed is held against its checksum
    when a process first reads it, and then a window copies its own bytes only.

    :param file: the archive.
    :raises FileNotFoundError: no such file.
    """

    kind = "npz archive"

    def __init__(self, file: Path | str) -> None:
        super().__init__(file, NpzArchive)

    def _header(self, clip_id: str) -> Header:
        return self._holding(clip_id).header(self.max_array_bytes, clip_id)

    def _stored(self, clip_id: str) -> np.ndarray:
        archive = self._holding(clip_id)
        is_new = clip_id not in archive.sound
        array = archive.array(self.max_array_bytes, clip_id, checked=is_new)
        archive.sound.add(clip_id)
        return array


class NpzArchive:
    """An npz archive of others: what it declares is checked before it is unpacked.

    :param source: its bytes, or its file, which is mapped.
    :raises zipfile.BadZipFile: truncated or damaged.
    """

    def __init__(self, source: memoryview | Path) -> None:
        if isinstance(source, Path):
            with source.open("rb") as file:
                source = memoryview(mmap(file.fileno(), 0, access=ACCESS_READ))
        self._value, self._stream = source, _Stream(source)
        self._zip = zipfile.ZipFile(self._stream)
        found = {entry.filename: entry for entry in self._zip.infolist()}
        self._entries = {n[:-4]: e for n, e in found.items() if n.endswith(".npy")}
        self.sound: set[str] = set()
        """Arrays whose checksum was seen to hold."""

    def keys(self) -> Collection[str]:
        """Names of all arrays."""
        return self._entries.keys()

    def array(
        self, max_bytes: int, name: str | None = None, *, checked: bool = False
    ) -> np.ndarray:
        """An array, read-only, a view of the archive if it is not compressed.

        :param max_bytes: a larger array is refused.
        :param name: default one of ``ARRAY_NAMES``, or the only one.
        :param checked: copy it, and hold it against the archive's checksum.
        :raises ValueError: no such array, too large, or objects.
        :raises zipfile.BadZipFile: truncated or damaged.
        """
        entry = self._entry(max_bytes, name)
        with self._zip.open(entry) as file:
            if checked or entry.compress_type != zipfile.ZIP_STORED:
                # Reading a stated size bounds what a lying archive can unpack.
                return npy_array(file.read(entry.file_size))
            # Opening has read up to the content. A copy would cost more than reading.
            start = self._stream.tell()
            return npy_array(self._value[start : start + entry.compress_size])

    def header(self, max_bytes: int, name: str | None = None) -> Header:
        """Shape and kind of an array, not unpacked; as :meth:`array` otherwise."""
        entry = self._entry(max_bytes, name)
        with self._zip.open(entry) as file:
            start = file.read(min(_NPY_HEADER_BYTES, entry.file_size))
        shape, _, dtype, _ = _layout(start, entry.file_size)
        return Header(shape, np.issubdtype(dtype, np.floating))

    def _entry(self, max_bytes: int, name: str | None) -> zipfile.ZipInfo:
        if name is None:
            name = array_name(self._entries)
        entry = self._entries[name]
        if entry.file_size > max_bytes:
            raise ValueError(
                f"{entry.filename} declares {entry.file_size} bytes; more than "
                f"{max_bytes} are refused"
            )
        # NumPy writes no others, of which a stated size cannot be unpacked alone.
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(
                f"{entry.filename} is compressed by method {entry.compress_type}; "
                "expected a member that is stored or deflated"
            )
        return entry


def array_name(names: Collection[str]) -> str:
    """Which of the arrays of one clip are its features: see ``ARRAY_NAMES``.

    :raises ValueError: none has such a name, nor is there one alone.
    """
    for name in ARRAY_NAMES:
        if name in names:
            return name
    if len(names) == 1:
        return next(iter(names))
    raise ValueError(
        f"expected an array named {' or '.join(ARRAY_NAMES)}, or one alone, but got "
        f"{list(names)[:9]}"
    )


def npy_array(content: bytes | memoryview) -> np.ndarray:
    """The array of an npy file, a view of its bytes.

    :raises ValueError: its header promises another size, or objects.
    """
    shape, is_fortran, dtype, start = _layout(content[:_NPY_HEADER_BYTES], len(content))
    array = np.frombuffer(content, dtype, math.prod(shape), start)
    return array.reshape(shape, order="F" if is_fortran else "C")


def _layout(
    start: bytes | memoryview, n_bytes: int
) -> tuple[tuple[int, ...], bool, np.dtype, int]:
    """Shape, order, type and place of the values in an npy file of ``n_bytes``."""
    stream = io.BytesIO(start)
    if np.lib.format.read_magic(stream) == (1, 0):
        header = np.lib.format.read_array_header_1_0(stream)
    else:
        header = np.lib.format.read_array_header_2_0(stream)
    shape, is_fortran, dtype = header
    if dtype.hasobject:
        raise ValueError("refused, the array holds Python objects")
    expected, found = math.prod(shape) * dtype.itemsize, n_bytes - stream.tell()
    if expected != found:
        raise ValueError(f"expected {expected} bytes for shape {shape} but got {found}")
    return shape, is_fortran, dtype, stream.tell()


class _Stream(io.RawIOBase):
    """A readable file over bytes in memory, which ``io.BytesIO`` would copy."""

    def __init__(self, value: memoryview) -> None:
        super().__init__()
        self._value, self._position = value, 0

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        position = offset + (0, self._position, len(self._value))[whence]
        if position < 0:
            raise OSError(f"negative seek position {position}")
        self._position = position
        return position

    def read(self, size: int | None = -1) -> bytes:
        stop = None if size is None or size < 0 else self._position + size
        content = bytes(self._value[self._position : stop])
        self._position += len(content)
        return content
