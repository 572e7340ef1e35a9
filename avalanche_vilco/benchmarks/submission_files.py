"""Reading of JSON files that others wrote: what is wrong is named with its place."""

import json
import math
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar

Task = Literal["mq", "nlq", "vq"]
Role = Literal["predictions", "annotations"]

_T = TypeVar("_T")

MEND = "mend it, or write the file again"
RESULT_KEYS = ("results", "detect_results", "retrieve_results")
_MAX_INTEGER = 2**31 - 1
_PARTS: dict[str, Task] = {
    "language_queries": "nlq",
    "query_sets": "vq",
    "labels": "mq",
}
_KINDS: dict[type, str] = {dict: "an object", list: "a list", str: "text"}


class SubmissionError(ValueError):
    """A file of predictions or annotations cannot be scored.

    The message names file, record and field, and says what to do.

    :param file: path, or the role of what was handed over parsed.
    :param problem: what is wrong.
    :param record: clip, query or key concerned.
    :param field: field of the record, with the number of the list item.
    :param hint: what to do.
    """

    def __init__(
        self,
        file: str,
        problem: str,
        *,
        record: str | None = None,
        field: str | None = None,
        hint: str = MEND,
    ) -> None:
        self.file, self.problem, self.hint = file, problem, hint
        self.record, self.field = record, field
        where = file
        where += "" if record is None else f", record {record!r}"
        where += "" if field is None else f", field {field!r}"
        super().__init__(f"{where}: {problem} ({hint})")


@dataclass(frozen=True)
class Note:
    """Something in a file that counts otherwise than its author may expect.

    :param reason: what it is and how it counts.
    :param count: how often.
    :param records: labels, clips or queries concerned.
    """

    reason: str
    count: int
    records: tuple[str, ...] = ()


@dataclass(frozen=True)
class Where:
    """Place in a file, which gives fields of records and complains about them."""

    file: str
    record: str | None = None

    def at(self, *record: object) -> "Where":
        """The same file, another record."""
        return Where(self.file, " ".join(map(str, record)))

    def fail(
        self, problem: str, field: str | None = None, hint: str = MEND
    ) -> NoReturn:
        """Refuse the file."""
        raise SubmissionError(
            self.file, problem, record=self.record, field=field, hint=hint
        )

    def refuse(self, expected: str, got: object, field: str | None = None) -> NoReturn:
        """Refuse the file for a value."""
        self.fail(f"expected {expected} but got {reprlib.repr(got)}", field)

    def get(self, holder: Any, name: str, spot: str = "") -> Any:
        """Value of a field.

        :param holder: should be an object.
        :param name: name of the field.
        :param spot: path of the object in the record.
        """
        if type(holder) is not dict and not isinstance(holder, Mapping):
            self.refuse("an object", holder, spot or None)
        if name not in holder:
            known = ", ".join(map(repr, islice(holder, 8))) or "nothing"
            self.fail(f"expected this field but got {known}", _joined(spot, name))
        return holder[name]

    def take(self, holder: Any, name: str, kind: type[_T], spot: str = "") -> _T:
        """Value of a field that is of a type; see :meth:`get`."""
        value = self.get(holder, name, spot)
        if not isinstance(value, kind):
            self.refuse(_KINDS[kind], value, _joined(spot, name))
        return value

    def name(self, holder: Any, name: str, spot: str = "") -> str | int | None:
        """Id in a field: text, a number, or null; see :meth:`get`."""
        value = self.get(holder, name, spot)
        if value is not None and not isinstance(value, str | int):
            self.refuse("an id", value, _joined(spot, name))
        return value

    def number(self, holder: Any, name: str, spot: str = "") -> float:
        """Finite number in a field, also as text; see :meth:`get`."""
        return self.finite(self.get(holder, name, spot), _joined, spot, name)

    def integer(self, holder: Any, name: str, spot: str = "") -> int:
        """Whole number of at most 31 bits in a field; see :meth:`get`."""
        value = self.get(holder, name, spot)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.refuse("a whole number", value, _joined(spot, name))
        if value != value // 1 or abs(value) > _MAX_INTEGER:
            self.refuse("a whole number of 31 bits", value, _joined(spot, name))
        return int(value)

    def window(self, values: Any, spot: str) -> tuple[float, float]:
        """Start and end."""
        if not isinstance(values, list | tuple) or len(values) < 2:
            self.refuse("[start, end]", values, spot)
        start, end = values[:2]
        return self.finite(start, str, spot), self.finite(end, str, spot)

    def finite(self, value: Any, name: Any, *parts: str) -> float:
        """A number that is one; ``name(*parts)`` is its field in a message."""
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if isinstance(value, bool) or not math.isfinite(number):
            self.refuse("a finite number", value, name(*parts))
        return number


class Document(NamedTuple):
    """Parsed JSON and where it comes from."""

    content: Any
    where: Where


Source = str | Path | Document | Mapping[str, Any] | Sequence[Any]


def open_document(source: Source, role: Role) -> Document:
    """Parse a file, once.

    :param source: its path, or what it holds.
    :param role: "predictions" or "annotations".
    :return: content and place.
    :raises SubmissionError: if it cannot be read, is empty, no JSON or truncated, or a
        key occurs twice in one object.
    """
    if isinstance(source, Document):
        return source
    if not isinstance(source, str | Path):
        return Document(source, Where(role))
    path, where = Path(source), Where(str(source))
    try:
        text = path.read_bytes()
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
        where.fail(problem, hint=f"pass the path of the {role}, a JSON file")
    if not text.strip():
        where.fail("the file is empty", hint="write it again")
    try:
        return Document(json.loads(text, object_pairs_hook=_without_repeats), where)
    except _RepeatedKey as error:
        problem = "occurs twice as a key of one object"
        where.at(error).fail(problem, hint="only the last would count: leave one")
    except (ValueError, RecursionError) as error:
        hint = "one JSON document is expected; it may be truncated: write it again"
        where.fail(f"not valid JSON: {error}", hint=hint)


def check_task(document: Document, role: Role, task: Task) -> None:
    """Refuse files of another task or role, if they can be told.

    :param document: the file.
    :param role: what it should be.
    :param task: task it should be of.
    :raises SubmissionError: if it is something else.
    """
    found = _kind_of(document.content)
    if found is None or found == (role, task):
        return
    document.where.fail(
        f"expected {role} of task {task!r} but these are {found[0]} of {found[1]!r}",
        hint="pass the task of the file, or another file"
        if found[0] == role
        else "are predictions and annotations exchanged?",
    )


def clips_of(document: Document) -> Iterator[tuple[Any, Any, Where]]:
    """Videos and clips of Ego4D's own files.

    :param document: {"videos": [{"clips": [...]}]}.
    :return: video, clip and place of each clip.
    """
    content, where = document
    for i, video in enumerate(where.take(content, "videos", list)):
        for j, clip in enumerate(where.take(video, "clips", list, f"videos[{i}]")):
            spot = f"videos[{i}].clips[{j}]"
            uid = where.name(clip, "clip_uid", spot)
            yield video, clip, where.at(f"clip {uid}")


class _RepeatedKey(Exception):
    pass


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        keys = [key for key, _ in pairs]
        raise _RepeatedKey(next(key for key in keys if keys.count(key) > 1))
    return unique


def _joined(spot: str, name: str) -> str:
    return f"{spot}.{name}" if spot else name


def _kind_of(content: Any) -> tuple[Role, Task] | None:
    if isinstance(content, list):
        is_answer = content and isinstance(content[0], Mapping)
        is_answer = is_answer and "query_idx" in content[0]
        return ("predictions", "nlq") if is_answer else None
    if not isinstance(content, Mapping):
        return None
    results = [content[key] for key in RESULT_KEYS if key in content]
    if results:
        return "predictions", _task_of_results(results[0])
    if "videos" in content:
        tasks = (task for name, task in _PARTS.items() if name in _first_part(content))
        task = next(tasks, None)
        return None if task is None else ("annotations", task)
    first = next(iter(content.values()), None)
    is_clip = isinstance(first, Mapping) and "annotations" in first
    return ("annotations", "mq") if is_clip else None


def _task_of_results(results: Any) -> Task:
    if isinstance(results, list):
        return "nlq"
    return "vq" if isinstance(results, Mapping) and "videos" in results else "mq"


def _first_part(content: Any) -> Any:
    """First annotation of the first clip that has one."""
    parts = [content]
    for name in ("videos", "clips", "annotations"):
        lists = (part.get(name) for part in parts if isinstance(part, Mapping))
        parts = [part for each in lists if isinstance(each, list) for part in each]
    return next((part for part in parts if isinstance(part, Mapping)), {})
