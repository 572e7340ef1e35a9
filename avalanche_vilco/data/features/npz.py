"""Arrays inside npz archives of others, read without trust.

What an archive declares is held against limits and against what it holds before
anything is unpacked; Python objects are refused.
"""

from __future__ import annotations

import io
import math
import zipfile
from pathlib import Path

import numpy as np

from avalanche_vilco.data.features.store import KeyedFeatures

ARRAY_NAMES = ("token_features", "features")
"""Names under which public code stores an array, the first found counts."""
_NPY_HEADER_BYTES = 2**14


class NpzFeatures(KeyedFeatures[zipfile.ZipFile]):
    """One npz archive with an array (T, C) a clip, or (L, C) a sentence.

    :param file: the archive.
    :raises FileNotFoundError: no such file.
    """

    kind = "npz archive"

    def __init__(self, file: Path | str) -> None:
        super().__init__(file, zipfile.ZipFile)

    def ids(self) -> set[str]:
        """Names of all arrays."""
        names = self._opened.namelist()
        return {name.removesuffix(".npy") for name in names if name.endswith(".npy")}

    def _stored(self, clip_id: str) -> np.ndarray:
        try:
            entry = self._opened.getinfo(f"{clip_id}.npy")
        except KeyError:
            raise self._no_key(clip_id) from None
        with self._opened.open(bounded(entry, self.max_array_bytes)) as file:
            # Reading a stated size bounds what a lying archive can unpack.
            return npy_array(file.read(entry.file_size))


def npz_array(
    value: memoryview, max_bytes: int, *, checked: bool = False
) -> np.ndarray:
    """The features in an npz archive, a view of it if they are not compressed.

    :param value: bytes of the archive.
    :param max_bytes: a larger array is refused.
    :param checked: copy them, and hold them against the archive's checksum.
    :return: read-only array.
    :raises ValueError: no array of the known names, too large, or objects.
    :raises zipfile.BadZipFile: truncated or damaged.
    """
    stream = _Stream(value)
    with zipfile.ZipFile(stream) as archive:
        entry = bounded(_feature_entry(archive), max_bytes)
        with archive.open(entry) as file:
            if checked or entry.compress_type != zipfile.ZIP_STORED:
                return npy_array(file.read(entry.file_size))
            # Opening has read up to the content. A copy would cost more than reading.
            start = stream.tell()
            return npy_array(value[start : start + entry.compress_size])


def npz_header(value: memoryview, max_bytes: int) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and type of the features in an npz archive, without unpacking it.

    :raises Exception: as :func:`npz_array` does.
    """
    with zipfile.ZipFile(_Stream(value)) as archive:
        entry = bounded(_feature_entry(archive), max_bytes)
        with archive.open(entry) as file:
            start = file.read(min(_NPY_HEADER_BYTES, entry.file_size))
        shape, _, dtype, _ = _layout(start, entry.file_size)
    return shape, dtype


def _feature_entry(archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    entries = {entry.filename: entry for entry in archive.infolist()}
    for name in ARRAY_NAMES:
        if f"{name}.npy" in entries:
            return entries[f"{name}.npy"]
    names = " or ".join(ARRAY_NAMES)
    raise ValueError(f"expected an array named {names} but got {list(entries)}")


def bounded(entry: zipfile.ZipInfo, max_bytes: int) -> zipfile.ZipInfo:
    """A member of which a reader unpacks the stated size and no more.

    :raises ValueError: it declares more, or is neither stored nor deflated, which is
        all that NumPy writes: of others a stated size cannot be unpacked alone.
    """
    if entry.file_size > max_bytes:
        raise ValueError(
            f"{entry.filename} declares {entry.file_size} bytes; more than "
            f"{max_bytes} are refused"
        )
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(
            f"{entry.filename} is compressed by method {entry.compress_type}; expected "
            "a member that is stored or deflated"
        )
    return entry


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
