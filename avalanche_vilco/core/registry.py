"""Looking a name up, with an error that offers the close ones."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from avalanche_vilco.core.errors import SettingError


def close_names(name: Any, known: Iterable[Any]) -> str:
    """`` Did you mean ...?`` for a name that is unknown, empty if none is close.

    :param name: what was given.
    :param known: all names.
    """
    close = difflib.get_close_matches(str(name), list(map(str, known)), n=3)
    return f" Did you mean {' or '.join(close)}?" if close else ""


def look_up(kind: str, name: Any, known: Mapping[str, Any]) -> Any:
    """An entry by name, or an error that helps.

    :param kind: what is looked up, for the message.
    :raises SettingError: unknown; names close ones and lists all.
    """
    if isinstance(name, str) and name in known:
        return known[name]
    raise SettingError(
        f"unknown {kind} {name!r}.{close_names(name, known)} "
        f"Available: {', '.join(sorted(known))}"
    )
