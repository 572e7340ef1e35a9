"""What goes to the terminal, whatever a file or the other end of a pipe does."""

from __future__ import annotations

import os
import sys


def one_line(text: object) -> str:
    """Text without line breaks and without what a terminal would obey.

    :param text: a message that may hold names from files.
    """
    line = " ".join(str(text).split())
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


def tell(text: str) -> None:
    """Print in whatever encoding the output has.

    :param text: lines.
    """
    encoding = sys.stdout.encoding or "utf-8"
    try:
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except BrokenPipeError:
        # The reader, such as head, has seen enough; Python would flush once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
