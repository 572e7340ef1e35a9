"""Files read, written whole and hashed, and the folder where ours are kept."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import math
import os
import shutil
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from avalanche_vilco.core.errors import DataError

CACHE_VARIABLE = "AVALANCHE_VILCO_CACHE"
MAX_UNPACKED_FACTOR = 200
"""Beyond 64 MiB an archive may hold this many times its size: annotations pack to a
tenth, a hostile archive to a thousandth."""

_GZIP_SUFFIX, _GZIP_MAGIC = ".gz", b"\x1f\x8b"
_UNPACKED_BYTES = 2**26


def cache_folder() -> Path:
    """Where generated and computed files are kept.

    ``$AVALANCHE_VILCO_CACHE``, else ``$XDG_CACHE_HOME/avalanche_vilco``, else
    ``~/.cache/avalanche_vilco``.
    """
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    users = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(users).expanduser() / "avalanche_vilco"


def existing(path: Path) -> Path:
    """A file, or its gzip archive with the suffix ``.gz`` where only that is there."""
    archive = path.with_name(path.name + _GZIP_SUFFIX)
    return archive if archive.is_file() and not path.exists() else path


def plain_name(path: Path) -> str:
    """Name of a file, of an archive that of what it holds."""
    return path.name.removesuffix(_GZIP_SUFFIX)


@contextmanager
def open_content(path: Path) -> Iterator[io.BufferedIOBase]:
    """Open a file for reading; a gzip archive, whatever its name, is unpacked.

    :raises DataError: from reading, if the archive is damaged.
    """
    try:
        with path.open("rb") as file:
            is_archive = file.peek(2).startswith(_GZIP_MAGIC)
            yield gzip.GzipFile(fileobj=file) if is_archive else file
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        problem = f"damaged or truncated gzip archive: {error}"
        raise DataError(path, problem, hint="fetch the file again") from None


def read_content(path: Path) -> bytes:
    """All that a file, or the gzip archive of one, holds.

    :raises DataError: a damaged archive, or one of more than
        :data:`MAX_UNPACKED_FACTOR` times its size.
    """
    content = bytearray()
    most = max(MAX_UNPACKED_FACTOR * path.stat().st_size, _UNPACKED_BYTES)
    with open_content(path) as file:
        while block := file.read(2**20):
            content += block
            if len(content) > most:
                problem = f"the archive holds more than {most} bytes"
                raise DataError(path, problem, hint="is it the right file?")
    return bytes(content)


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of what a file, or the gzip archive of one, holds."""
    digest = hashlib.sha256()
    with open_content(path) as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Where to write a file or folder that takes its name when it is complete.

    A reader sees what was there before, or all of the new content; of a write that
    fails nothing stays.

    :param path: the name; its folder is made if absent.
    :return: the place to write to, beside ``path``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}.unfinished")
    try:
        yield unfinished
        if unfinished.is_file():
            # Else a power cut could leave the name on an empty file.
            with unfinished.open("rb") as file:
                os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        if unfinished.is_dir():
            shutil.rmtree(unfinished, ignore_errors=True)
        else:
            unfinished.unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> None:
    """Write a text file whole, in UTF-8.

    :param path: file to write or replace.
    :param text: its content.
    """
    with written_whole(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def safetensors_header(
    tensors: Mapping[str, tuple[str, Sequence[int]]], metadata: Mapping[str, str]
) -> bytes:
    """Start of a safetensors file, after which tensors follow as they are made.

    The library's own writers want all of a file's tensors at once.

    :param tensors: name -> dtype in the format's words (``"F16"``) and shape, in the
        order in which their values follow.
    :param metadata: text about the file.
    """
    entries: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, (dtype, shape) in tensors.items():
        start, end = end, end + math.prod(shape) * int(dtype[1:]) // 8
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    # Padded so that the tensors start aligned, as the format advises.
    text += b" " * (-len(text) % 64)
    return len(text).to_bytes(8, "little") + text
