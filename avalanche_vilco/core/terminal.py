"""What goes to the terminal, whatever a file or the other end of a pipe does."""

from __future__ import annotations

import os
import sys


def printable(text: str) -> str:
    """Text without what a terminal would obey: names from files may hold it.

    :param text: a line.
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def one_line(text: object) -> str:
    """Printable text without line breaks.

    :param text: a message that may hold names from files.
    """
    return printable(" ".join(str(text).split()))


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
