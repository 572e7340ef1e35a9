"""What was found out about files, kept in the user's cache until the files change."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from avalanche_vilco.core.files import cache_folder, written_whole

FOLDER = "files"
"""Folder of all that is remembered, in the user's cache."""

T = TypeVar("T")


def remembered(
    path: Path,
    kind: type[T],
    find: Callable[[Path], T],
    *,
    version: str,
    hooks: tuple[Callable[[Any], Any], Callable[[type, Any], Any]],
) -> T:
    """What ``find`` finds in a file, looked up where the file is as it was.

    A file is as it was while its path, size and time of change are. A cache that cannot
    be read or written is as good as none.

    :param path: the file.
    :param kind: type of what is found, as msgspec takes it.
    :param find: looks into the file; what it raises is raised each time.
    :param version: of ``find`` and of the libraries that its answer depends on.
    :param hooks: msgspec's ``enc_hook`` and ``dec_hook`` for types of one's own.
    """
    status = path.stat()
    stamp = [version, str(path.absolute()), status.st_size, status.st_mtime_ns]
    encode, decode = hooks
    name = sha256(
        f"{kind.__qualname__} {stamp[1]}".encode(errors="replace")
    ).hexdigest()
    # Without a home directory there is no cache: RuntimeError.
    with suppress(OSError, RuntimeError, ValueError, zlib.error, msgspec.MsgspecError):
        # zlib's checksum tells damage that would make other numbers.
        content = zlib.decompress((cache_folder() / FOLDER / name).read_bytes())
        form: Any = tuple[list[str | int], kind]  # type: ignore[valid-type]
        held: tuple[list[str | int], T]
        held = msgspec.msgpack.decode(content, type=form, dec_hook=decode)
        if held[0] == stamp:
            return held[1]
    found = find(path)
    content = msgspec.msgpack.encode((stamp, found), enc_hook=encode)
    with (
        suppress(OSError, RuntimeError),
        written_whole(cache_folder() / FOLDER / name) as unfinished,
    ):
        unfinished.write_bytes(zlib.compress(content))
    return found
