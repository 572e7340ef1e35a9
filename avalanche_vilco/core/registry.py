"""Looking a name up, with an error that offers the close ones."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any


def look_up(kind: str, name: str, known: Mapping[str, Any]) -> Any:
    """An entry by name, or an error that helps.

    :param kind: what is looked up, for the message.
    :raises ValueError: unknown; names close ones and lists all.
    """
    if name in known:
        return known[name]
    close = difflib.get_close_matches(name, known, n=3)
    guess = f" Did you mean {' or '.join(close)}?" if close else ""
    raise ValueError(
        f"unknown {kind} {name!r}.{guess} Available: {', '.join(sorted(known))}"
    )
