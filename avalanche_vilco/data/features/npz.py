"""Feature arrays inside npz archives that lie in memory, read without trust."""

from __future__ import annotations

import io
import math
import zipfile

import numpy as np

ARRAY_NAMES = ("token_features", "features")
"""Names under which public code stores a clip's array, the first found counts."""

MAX_ARRAY_BYTES = 2**30
"""Declared sizes beyond it are refused: 33 MB is usual, a small file can declare
any size."""

_LOCAL_HEADER_BYTES = 30
_NPY_HEADER_BYTES = 2**14


def npz_array(value: memoryview) -> np.ndarray:
    """The features in an npz archive, a view of it if they are not compressed.

    Sizes that the archive declares are checked before anything is read, objects
    are refused.

    :param value: bytes of the archive.
    :return: read-only array.
    :raises ValueError: no array of the known names, too large, or objects.
    :raises zipfile.BadZipFile: truncated or damaged.
    """
    content = _member_bytes(value)
    shape, is_fortran, dtype, start = _layout(content, len(content))
    array = np.frombuffer(content, dtype, math.prod(shape), start)
    return array.reshape(shape, order="F" if is_fortran else "C")


def npz_header(value: memoryview) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and type of the features in an npz archive, without unpacking it.

    :raises Exception: as :func:`npz_array` does.
    """
    with zipfile.ZipFile(_Stream(value)) as archive:
        entry = _feature_entry(archive)
        with archive.open(entry) as file:
            start = memoryview(file.read(min(_NPY_HEADER_BYTES, entry.file_size)))
        shape, _, dtype, _ = _layout(start, entry.file_size)
    return shape, dtype


def _member_bytes(value: memoryview) -> memoryview:
    with zipfile.ZipFile(_Stream(value)) as archive:
        entry = _feature_entry(archive)
        if entry.compress_type == zipfile.ZIP_STORED:
            return _stored_bytes(value, entry)
        with archive.open(entry) as file:
            # Reading a stated size bounds what a lying archive can unpack.
            return memoryview(file.read(entry.file_size))


def _feature_entry(archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    entries = {entry.filename: entry for entry in archive.infolist()}
    named = [entries[f"{name}.npy"] for name in ARRAY_NAMES if f"{name}.npy" in entries]
    if not named:
        names = " or ".join(ARRAY_NAMES)
        raise ValueError(f"expected an array named {names} but got {list(entries)}")
    if named[0].file_size > MAX_ARRAY_BYTES:
        raise ValueError(
            f"{named[0].filename} declares {named[0].file_size} bytes; more than "
            f"{MAX_ARRAY_BYTES} are refused"
        )
    check_bounded(named[0])
    return named[0]


def check_bounded(entry: zipfile.ZipInfo) -> None:
    """Refuse compressions of which a stated size cannot be unpacked alone.

    :raises ValueError: neither stored nor deflated, which is all that NumPy writes.
    """
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(
            f"{entry.filename} is compressed by method {entry.compress_type}; expected "
            "a member that is stored or deflated"
        )


def _stored_bytes(value: memoryview, entry: zipfile.ZipInfo) -> memoryview:
    """An uncompressed member in place: a copy would cost more than reading it."""
    offset = entry.header_offset
    local = bytes(value[offset : offset + _LOCAL_HEADER_BYTES])
    if len(local) < _LOCAL_HEADER_BYTES or local[:4] != b"PK\x03\x04":
        raise zipfile.BadZipFile(f"{entry.filename} has no header of its own")
    name_bytes = int.from_bytes(local[26:28], "little")
    extra_bytes = int.from_bytes(local[28:30], "little")
    start = offset + _LOCAL_HEADER_BYTES + name_bytes + extra_bytes
    member = value[start : start + entry.file_size]
    if len(member) < entry.file_size or entry.compress_size != entry.file_size:
        raise zipfile.BadZipFile(f"{entry.filename} is truncated")
    return member


def _layout(
    content: memoryview, n_bytes: int
) -> tuple[tuple[int, ...], bool, np.dtype, int]:
    """Shape, order, type and place of the values in an npy file of ``n_bytes``."""
    stream = io.BytesIO(bytes(content[:_NPY_HEADER_BYTES]))
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        header = np.lib.format.read_array_header_1_0(stream)
    else:
        header = np.lib.format.read_array_header_2_0(stream)
    shape, is_fortran, dtype = header
    if dtype.hasobject:
        raise ValueError("refused, the array holds Python objects")
    count, start = math.prod(shape), stream.tell()
    if count * dtype.itemsize != n_bytes - start:
        raise ValueError(
            f"expected {count * dtype.itemsize} bytes for shape {shape} but got "
            f"{n_bytes - start}"
        )
    return shape, is_fortran, dtype, start


class _Stream(io.RawIOBase):
    """A readable file over bytes in memory, which ``io.BytesIO`` would copy."""

    def __init__(self, value: memoryview) -> None:
        super().__init__()
        self._value = value
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}
        place = base[whence] + offset
        if place < 0:
            raise ValueError(f"negative seek position {place}")
        self._place = place
        return place

    def tell(self) -> int:
        return self._place

    def read(self, size: int | None = -1) -> bytes:
        stop = self._size if size is None or size < 0 else self._place + size
        content = bytes(self._value[self._place : stop])
        self._place += len(content)
        return content

    @property
    def _size(self) -> int:
        return len(self._value)
