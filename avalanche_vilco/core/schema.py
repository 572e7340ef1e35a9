"""JSON files against typed schemas, with errors that name the field."""

from __future__ import annotations

import gc
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from avalanche_vilco.core.errors import DataError

T = TypeVar("T")


@contextmanager
def collector_paused() -> Iterator[None]:
    """Build many objects without a search for cycles among all that are there.

    Python searches whenever there are a quarter more of them than before; what JSON
    says has no cycles. That is two thirds of the time to decode a large file.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@collector_paused()
def decode_json(
    path: Path | str,
    content: bytes,
    faults: list[DataError] | None = None,
    *,
    record: str | None = None,
) -> Any:
    """Decode JSON and refuse keys that occur twice.

    :param path: file, for messages.
    :param content: its bytes.
    :param faults: if given, errors of doubled keys are added to it, not raised.
    :param record: the record that it is, for messages.
    :raises DataError: not JSON, truncated, or a key occurs twice in one object; names
        the clip and the place.
    """
    unique, decoded = _decoded_fast(content)
    if unique:
        return decoded
    # With the objects, whose ids else could become those of others.
    doubled: dict[int, tuple[Any, str]] = {}

    def without_doubled(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        unique = dict(pairs)
        if len(unique) != len(pairs):
            counts = Counter(key for key, _ in pairs)
            doubled[id(unique)] = unique, counts.most_common(1)[0][0]
        return unique

    try:
        decoded = json.loads(content, object_pairs_hook=without_doubled)
    except (ValueError, RecursionError) as error:
        problem = f"not valid JSON: {error}"
        advice = "the file may be truncated: compare its size and fetch it again"
        raise DataError(path, problem, record=record, hint=advice) from None
    for clip, field, key in _doubled_keys(decoded, doubled) if doubled else ():
        problem = f"the key {key!r} occurs twice in one object"
        advice = "only the last would count: leave one"
        fault = DataError(
            path, problem, record=clip or record, field=field or None, hint=advice
        )
        if faults is None:
            raise fault
        faults.append(fault)
    return decoded


_ESCAPED_QUOTE_OR_COLON = (rb"\u0022", rb"\u003a", rb"\u003A")


def _decoded_fast(content: bytes) -> tuple[bool, Any]:
    """Whether it is JSON of which no key occurs twice in an object, and what it says.

    False also for what only Python's decoder takes, such as NaN, or can tell apart.
    Written again, an object has each key once: then there are fewer ends of keys. The
    same two characters inside of strings are as many, but for those written as codes.
    """
    if any(code in content for code in _ESCAPED_QUOTE_OR_COLON):
        return False, None
    try:
        decoded = msgspec.json.decode(content)
        given = msgspec.json.format(content, indent=-1)
        written = msgspec.json.encode(decoded)
    except (ValueError, RecursionError):
        return False, None
    return given.count(b'":') == written.count(b'":'), decoded


def _doubled_keys(
    decoded: Any, doubled: Mapping[int, tuple[Any, str]]
) -> Iterator[tuple[str | None, str, str]]:
    """Clip, place in it and name of the keys that objects have twice."""
    waiting: list[tuple[Any, str | None, str]] = [(decoded, None, "")]
    while waiting:
        one, clip, at = waiting.pop()
        parts: list[tuple[Any, str]] = []
        if isinstance(one, dict):
            if isinstance(own := one.get("clip_uid", one.get("clip_id")), str):
                clip, at = own, ""
            if id(one) in doubled:
                yield clip, at, doubled[id(one)][1]
            parts = [(each, f"{at}.{key}".lstrip(".")) for key, each in one.items()]
        elif isinstance(one, list):
            parts = [(each, f"{at}[{i}]") for i, each in enumerate(one)]
        waiting += [(each, clip, where) for each, where in reversed(parts)]


def decode_json_object(
    path: Path, content: bytes, *, hint: str, faults: list[DataError] | None = None
) -> dict[str, Any]:
    """Decode a JSON object and refuse keys that occur twice.

    :param path: file, for messages.
    :param content: its bytes.
    :param hint: what the file should be.
    :param faults: see :func:`decode_json`.
    :raises DataError: not JSON, truncated, not an object, or a key occurs twice.
    """
    decoded = decode_json(path, content, faults)
    if not isinstance(decoded, dict):
        kind = type(decoded).__name__
        problem = f"expected a JSON object of clips but got a {kind}"
        raise DataError(path, problem, hint=hint)
    return decoded


def convert(
    raw: Any,
    kind: type[T],
    path: Path | str,
    *,
    hint: str,
    record: str | None = None,
    within: str = "",
    strict: bool = True,
) -> T:
    """An object of a type from decoded JSON.

    :param raw: decoded JSON.
    :param kind: a type that msgspec knows.
    :param path: file, for messages.
    :param hint: what the file should be.
    :param record: the record, for messages.
    :param within: field of the record that ``raw`` is, for messages.
    :param strict: False takes numbers that are given as text.
    :raises DataError: a field is missing or of another type; names the first.
    """
    try:
        return msgspec.convert(raw, type=kind, strict=strict)
    except msgspec.ValidationError as error:
        problem, _, where = str(error).partition(" - at `$")
        field = (within + where.strip("`")).lstrip(".") or None
        raise DataError(path, problem, record=record, field=field, hint=hint) from None


def check_finite(
    path: Path | str,
    record: str,
    field: str,
    values: Sequence[float],
    *,
    unit: str = "seconds",
    hint: str = "",
) -> None:
    """Refuse NaN and infinity.

    :param path: file, for messages.
    :param record: the record, for messages.
    :param field: where the values stand, for messages.
    :param values: numbers.
    :param unit: of the numbers.
    :param hint: what to do.
    :raises DataError: a number is not finite.
    """
    if not all(map(math.isfinite, values)):
        problem = f"expected finite {unit} but got {list(values)}"
        raise DataError(path, problem, record=record, field=field, hint=hint)


PLAIN_ID_HINT = "letters, digits, '-', '_', '.' only, no '.' or '-' in front"


PLAIN_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\Z")


def check_plain_id(path: Path, clip_id: str) -> None:
    """Refuse ids that could name a file outside a feature folder.

    :raises DataError: the id holds a path separator or starts with a dot.
    """
    if not PLAIN_ID.match(clip_id):
        problem = "the id has characters that an Ego4D uid does not have"
        raise DataError(path, problem, record=clip_id, hint=PLAIN_ID_HINT)
