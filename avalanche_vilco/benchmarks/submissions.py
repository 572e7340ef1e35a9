"""Files of answers and of what they answer, and the numbers that come of them.

Paths and parsed JSON are accepted alike. By default everything that the annotations
ask for counts, answered or not, and whatever they do not know is an error. What the
files of a benchmark hold is known in its folder.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar

import msgspec

from avalanche_vilco.benchmarks.ego4d import clip_name
from avalanche_vilco.core.errors import DataError
from avalanche_vilco.core.files import read_content
from avalanche_vilco.core.schema import check_finite, convert, decode_json
from avalanche_vilco.core.tables import percent
from avalanche_vilco.core.terminal import one_line

Role = Literal["predictions", "annotations"]
Row = dict[str, float]
"""Score in [0, 1] by threshold, and ``MEAN``."""
T = TypeVar("T")

MEND = "mend it, or write the file again"
OTHER_ANNOTATIONS = "are these the annotations that the predictions were made for?"
MEAN = "mean"
SCORE_VERSION = "1"
_SHOWN_RECORDS = 5


class Document(NamedTuple):
    """Parsed JSON and where it comes from."""

    content: Any
    file: str

    def fail(
        self,
        problem: str,
        *,
        record: str | None = None,
        field: str | None = None,
        hint: str = MEND,
    ) -> NoReturn:
        """Refuse the file."""
        raise DataError(self.file, problem, record=record, field=field, hint=hint)

    def convert(
        self, raw: Any, kind: type[T], record: str | None = None, **options: Any
    ) -> T:
        """A part of the content as a type; see ``core.schema.convert``."""
        return convert(raw, kind, self.file, hint=MEND, record=record, **options)

    def check_finite(self, values: Sequence[float], record: str, field: str) -> None:
        """Refuse NaN and infinity; see ``core.schema.check_finite``."""
        check_finite(self.file, record, field, values, unit="numbers", hint=MEND)

    def check_rows(
        self, rows: Sequence[Sequence[float]], record: str, field: str
    ) -> None:
        """Refuse NaN and infinity in rows of numbers.

        :param field: where a row stands, with ``{}`` for its place.
        """
        # What is not finite stays so in a sum; one of finite numbers may overflow.
        if not math.isfinite(sum(map(sum, rows))):
            for place, row in enumerate(rows):
                self.check_finite(row, record, field.format(place))


Source = str | Path | Document | Mapping[str, Any] | Sequence[Any]


def open_document(source: Source, role: Role) -> Document:
    """Parse a file, once.

    :param source: its path, or what it holds.
    :param role: "predictions" or "annotations".
    :raises DataError: if it cannot be read, is empty, no JSON or truncated, or a key
        occurs twice in one object.
    """
    if isinstance(source, Document):
        return source
    if not isinstance(source, str | Path):
        return Document(source, role)
    try:
        text = read_content(Path(source))
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
        hint = f"pass the path of the {role}, a JSON file"
        raise DataError(source, problem, hint=hint) from None
    if not text.strip():
        raise DataError(source, "the file is empty", hint="write it again")
    return Document(decode_json(source, text), str(source))


class _Video(msgspec.Struct):
    clips: list[Any]
    split: Any = None


class _Videos(msgspec.Struct):
    videos: list[_Video]


def clips_of(
    document: Document, kind: type[T], *, strict: bool = True
) -> Iterator[tuple[Any, T]]:
    """Splits and clips of Ego4D's own form, {"videos": [{"split", "clips": [...]}]}.

    :param document: the file.
    :param kind: type of a clip.
    :param strict: see ``core.schema.convert``.
    :raises DataError: it is of another form; names the clip.
    """
    content = document.convert(document.content, _Videos)
    for i, video in enumerate(content.videos):
        for j, raw in enumerate(video.clips):
            name = clip_name(raw, i, j)
            yield video.split, document.convert(raw, kind, name, strict=strict)


def annotation_fields(content: Any) -> Any:
    """First annotation of the first clip of Ego4D's own form that has one.

    :param content: of a file, perhaps another one.
    """
    parts = [content]
    for name in ("videos", "clips", "annotations"):
        lists = (part.get(name) for part in parts if isinstance(part, Mapping))
        parts = [part for each in lists if isinstance(each, list) for part in each]
    return next((part for part in parts if isinstance(part, Mapping)), {})


@dataclass(frozen=True)
class Note:
    """Something in a file that counts otherwise than its author may expect."""

    reason: str
    """What it is and how it counts."""
    count: int
    records: tuple[str, ...] = ()
    """Labels, clips or queries concerned."""

    @classmethod
    def of(cls, reason: str, keys: Iterable[Sequence[Any]]) -> Note:
        """A note about keys of several parts.

        :param reason: what it is and how it counts.
        :param keys: of the records concerned.
        """
        records = tuple(" ".join(map(str, key)) for key in keys)
        return cls(reason, len(records), records)

    @staticmethod
    def told(*notes: Note) -> list[Note]:
        """Those of the notes that count something."""
        return [note for note in notes if note.count]

    def __str__(self) -> str:
        shown = ", ".join(self.records[:_SHOWN_RECORDS])
        more = len(self.records) - _SHOWN_RECORDS
        shown += f" and {more} more (see --json)" if more > 0 else ""
        about = f": {shown}" if shown else ""
        return one_line(f"note: {self.count} {self.reason}{about}")


@dataclass
class Score:
    """Numbers of a file of answers."""

    task: str
    reference: Any
    """Public evaluator that is reproduced; None: our own rules."""
    predictions: str
    annotations: str
    counts: dict[str, int] = field(default_factory=dict)
    scores: dict[str, Row] = field(default_factory=dict)
    """Score in [0, 1] by metric and threshold."""
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By group, such as a label: "windows" asked for, and rows of scores."""
    notes: list[Note] = field(default_factory=list)
    """What counts otherwise than the author of a file may expect."""

    def to_dict(self) -> dict[str, Any]:
        """JSON form, NaN as null."""
        return {"score_version": SCORE_VERSION, **_without_nan(asdict(self))}

    def __str__(self) -> str:
        rules = f"reference {self.reference}" if self.reference else "our rules"
        counts = ", ".join(f"{name} {n}" for name, n in self.counts.items())
        lines = [f"{self.task}, {rules}: {counts}", *_table(self.scores)]
        return "\n".join([*lines, *map(str, self.notes)])


def score_row(
    levels: Iterable[float], values: Sequence[float], *, has_mean: bool = True
) -> Row:
    """Scores by threshold.

    :param levels: the thresholds.
    :param values: score at each.
    :param has_mean: add their mean.
    """
    row = {f"{level:g}": value for level, value in zip(levels, values, strict=True)}
    return {**row, MEAN: sum(values) / len(values)} if has_mean else row


def check_any(document: Document, n_predictions: int) -> None:
    """Refuse a file without predictions.

    :raises DataError: there are none.
    """
    if not n_predictions:
        document.fail("there are no predictions", hint="write the file again")


def _table(scores: Mapping[str, Row]) -> list[str]:
    levels = {level for row in scores.values() for level in row} - {MEAN}
    columns = [*sorted(levels, key=float), MEAN]
    title = "in %, at IoU"
    width = max(map(len, (title, *scores)))
    lines = [f"{title:<{width}}" + "".join(f"{c:>7}" for c in columns)]
    for name, row in scores.items():
        cells = (percent(row[c], 2) if c in row else "" for c in columns)
        lines.append(f"{name:<{width}}" + "".join(f"{cell:>7}" for cell in cells))
    return lines


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nan(each) for name, each in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value
