"""Natural-language queries of Ego4D become validated records.

Two forms are read, of version 1 or 2. The official files ``nlq_train.json``,
``nlq_val.json`` and ``nlq_test_unannotated.json`` hold videos, clips, annotations and
their questions, most with the template they were made from. The flattened files of
public code, ``ego4d_nlq_train_v2.jsonl`` and so on, hold a question a line, without
template and without the clip's parent video; where the official file lies beside one,
both are taken from it.

Times are clip seconds (``clip_start_sec``, ``clip_end_sec``); a clip lasts
``video_end_sec - video_start_sec``, as in the flattened files. A question's id is its
annotation's uid and its place there, blank ones counted, so that it addresses the
official file whatever was left out.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from avalanche_vilco.benchmarks.ego4d import (
    FETCH_HINT,
    OfficialFile,
    Video,
    check_length,
    check_versions,
    read_official_file,
)
from avalanche_vilco.benchmarks.vilco_nlq.layout import OFFICIAL_NLQ_FILES
from avalanche_vilco.benchmarks.vilco_nlq.templates import template_id
from avalanche_vilco.benchmarks.windows import count_usable, unusable_window
from avalanche_vilco.core.errors import DataError
from avalanche_vilco.core.files import existing, plain_name, sha256_of
from avalanche_vilco.core.report import DataReport
from avalanche_vilco.core.schema import check_finite, check_plain_id, convert
from avalanche_vilco.data.text.narrations import decode_line, numbered_lines

_STAGE = "annotations"
_LAYOUT_HINT = "expected the layout of Ego4D's nlq_val.json"
_LINE_HINT = (
    'expected {"query": str, "query_id": "<annotation uid>_<number>", "duration": '
    'seconds, "video_id": clip uid, "timestamps": [[start, end]]}'
)
_FORM_PREFIX = re.compile(
    r"(?:\s*(?:query|answer|slot|verb|[xy])(?: [xy])?(?: text)?"
    r"(?: \(optional\))?\s*:)+",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class QueryClip:
    """A clip that questions are asked of."""

    clip_id: str
    video_id: str
    """Parent video; the clip's own id where the file does not say it."""
    subset: str
    duration_sec: float
    video_start_sec: float | None = None
    """Start of the clip in seconds of its parent video, if the file says it."""


@dataclass(frozen=True, slots=True)
class LanguageQuery:
    """One question and the window that answers it."""

    query_id: str
    """``"<annotation uid>_<place in it>"``."""
    annotation_uid: str
    query_idx: int
    """Place in the official file's ``language_queries``, blank ones counted."""
    clip_id: str
    subset: str
    text: str
    """The question, without blanks around it and without prefixes of the form that
    annotators filled in."""
    window_sec: tuple[float, float] | None
    """Start and end in clip seconds; ``None`` in the unannotated test file."""
    template: int | None = None
    """Its template's place in ``NLQ_TEMPLATES``; ``None`` where the file has none."""
    is_template_guessed: bool = False
    """Whether the template comes from the question's words."""


@dataclass(frozen=True)
class LanguageAnnotations:
    """Validated natural-language queries."""

    clips: Mapping[str, QueryClip]
    """Clips with at least one question, by id, in file order."""
    queries: tuple[LanguageQuery, ...]
    """In file order."""
    files: Mapping[str, Path]
    """Subset -> file that was read."""
    report: DataReport = field(repr=False)
    """Counts of queries, windows and clips, and the files' hashes."""
    subsets_without_templates: frozenset[str] = frozenset()
    """Subsets of flattened files of which no question names its template."""
    subsets_without_videos: frozenset[str] = frozenset()
    """Subsets of which parent videos are unknown."""


class _OpenQuestion(msgspec.Struct):
    query: str | None = None
    template: str | None = None


class _Question(_OpenQuestion, kw_only=True):
    clip_start_sec: float
    clip_end_sec: float


class _Annotation(msgspec.Struct):
    annotation_uid: str | None = None
    language_queries: list[Any] = []


class _Clip(msgspec.Struct):
    clip_uid: str
    video_start_sec: float
    video_end_sec: float
    annotations: list[Any] = []


class _Line(msgspec.Struct):
    query_id: str
    duration: float
    video_id: str
    query: str | None = None
    timestamps: list[tuple[float, float]] = []
    query_template: str | None = None


@dataclass(frozen=True)
class _Raw:
    """A question as read, with the place to name in errors."""

    query: LanguageQuery
    """Its text and window are as in the file."""
    template: str | None
    clip: QueryClip
    path: Path
    record: str
    within: str = ""
    """Field of the record that it is, in official files."""


def read_language_queries(
    files: Mapping[str, Path | str],
    *,
    is_raw: bool = False,
    faults: list[DataError] | None = None,
) -> LanguageAnnotations:
    """Read and validate annotated files of natural-language queries.

    Questions without text are rejected, and those whose window is reversed, empty or
    outside of the clip; windows that overhang are clipped. All are counted in the
    report, with ``read = kept + changed + rejected``. Questions that repeat another's
    words or window stay: each is asked and scored by itself.

    :param files: subset (``"train"``, ``"val"``) -> ``.json`` (official) or ``.jsonl``
        (flattened) file.
    :param is_raw: leave, as public code does, windows that overhang or lie behind the
        clip's end as they are, and prefixes such as "Query Text:" and surplus blanks
        in questions.
    :param faults: if given, errors of clips, lines and questions are added to it, not
        raised, and these are left out.
    :raises FileNotFoundError: a file is absent.
    :raises ValueError: no such subset.
    :raises DataError: not JSON, truncated, or a record breaks the schema (wrong type,
        number as text, NaN, unknown template, doubled clip or question), a version
        other than 1 or 2, or two versions; names file, record and field.
    """
    unknown = sorted(set(files) - {"train", "val"})
    if unknown or not files:
        raise ValueError(f"expected subsets 'train' and 'val' but got {list(files)}")
    paths = {subset: Path(path).expanduser() for subset, path in files.items()}
    report = DataReport(faults=faults)
    official: list[OfficialFile] = []
    raw = {s: _read(path, s, report, official) for s, path in paths.items()}
    flat = {s: one for s, one in raw.items() if plain_name(paths[s]).endswith(".jsonl")}
    if official:
        # The test file has a version of its own, also in version 2.
        check_versions(official)
    reader = _Reader(report, is_raw)
    queries = [query for read in raw.values() for query in reader.checked(read)]
    return LanguageAnnotations(
        reader.clips_of(queries),
        tuple(queries),
        paths,
        report,
        frozenset(s for s, one in flat.items() if all(q.template is None for q in one)),
        frozenset(
            subset
            for subset, one in flat.items()
            if all(q.clip.video_start_sec is None for q in one)
        ),
    )


def read_unlabelled_queries(
    path: Path | str, *, faults: list[DataError] | None = None
) -> LanguageAnnotations:
    """Read the unannotated test file: questions that can be answered, not scored.

    :param path: ``nlq_test_unannotated.json``, or its flattened form.
    :param faults: as in :func:`read_language_queries`.
    :return: questions without window and template.
    :raises FileNotFoundError: no such file.
    :raises DataError: as :func:`read_language_queries`.
    """
    path, report = Path(path).expanduser(), DataReport(faults=faults)
    raw = _read(path, "test", report, [])
    reader = _Reader(report, is_raw=False)
    queries = list(reader.checked(raw))
    paths = {"test": path}
    return LanguageAnnotations(reader.clips_of(queries), tuple(queries), paths, report)


# --- Official files -------------------------------------------------------------------


def _read(
    path: Path, subset: str, report: DataReport, official: list[OfficialFile]
) -> list[_Raw]:
    if not path.is_file():
        raise FileNotFoundError(
            f"no {subset} annotations of natural-language queries at {path}; "
            f"{FETCH_HINT}"
        )
    if plain_name(path).endswith(".jsonl"):
        raw = _join_official(path, subset, list(_lines(path, subset, report)), report)
        report.files[plain_name(path)] = sha256_of(path)
    else:
        raw = list(_official(path, subset, report, official))
    if not raw and not report.faults:
        raise DataError(path, "the file holds no question", hint=_LAYOUT_HINT)
    return raw


def _official(
    path: Path, subset: str, report: DataReport, files: list[OfficialFile]
) -> Iterator[_Raw]:
    file = read_official_file(path, subset, report, hint=_LAYOUT_HINT)
    files.append(file)
    tally = report.stage(_STAGE, "clips")
    without_clips = sum(not video.clips for video in file.videos)
    tally.note("videos without clips", without_clips)
    seen: set[str] = set()
    for video, name, raw_clip in file.clips():
        with report.collected():
            clip = convert(raw_clip, _Clip, path, hint=_LAYOUT_HINT, record=name)
            _check_new(path, clip.clip_uid, "clip_uid", clip.clip_uid, seen)
            yield from _clip_questions(path, clip, video, report)


def _clip_questions(
    path: Path, clip: _Clip, video: Video, report: DataReport
) -> Iterator[_Raw]:
    check_plain_id(path, clip.clip_uid)
    check_plain_id(path, video.video_uid)
    start, end = clip.video_start_sec, clip.video_end_sec
    seconds = check_length(path, clip.clip_uid, "video_end_sec", end - start)
    record = QueryClip(clip.clip_uid, video.video_uid, video.split, seconds, start)
    kind = _OpenQuestion if video.split == "test" else _Question
    n_questions = 0
    for a, raw in enumerate(clip.annotations):
        within = f"annotations[{a}]"
        annotation = _part(path, clip.clip_uid, within, raw, _Annotation)
        uid = (annotation.annotation_uid or "").strip()
        n_questions += len(annotation.language_queries)
        if not uid:
            count = len(annotation.language_queries)
            report.stage(_STAGE, "queries").reject("no annotation_uid", count)
            continue
        for i, question in enumerate(annotation.language_queries):
            field = f"{within}.language_queries[{i}]"
            one = _part(path, clip.clip_uid, field, question, kind)
            window = None
            if isinstance(one, _Question):
                window = (one.clip_start_sec, one.clip_end_sec)
            query_id, text = f"{uid}_{i}", one.query or ""
            query = LanguageQuery(
                query_id, uid, i, clip.clip_uid, video.split, text, window
            )
            yield _Raw(query, one.template, record, path, clip.clip_uid, field)
    if not n_questions:
        report.stage(_STAGE, "clips").reject("no question")


def _part(path: Path, record: str, within: str, raw: Any, kind: Any) -> Any:
    return convert(raw, kind, path, hint=_LAYOUT_HINT, record=record, within=within)


def _check_new(path: Path, record: str, field: str, key: str, seen: set[str]) -> None:
    if key in seen:
        raise DataError(path, f"{key} occurs twice", record=record, field=field)
    seen.add(key)


# --- Flattened files ------------------------------------------------------------------


def _lines(path: Path, subset: str, report: DataReport) -> Iterator[_Raw]:
    clips: dict[str, QueryClip] = {}
    for number, content in numbered_lines(path):
        record = f"line {number}"
        with report.collected():
            line = decode_line(path, record, content, _Line, _LINE_HINT)
            check_plain_id(path, line.video_id)
            check_length(path, record, "duration", line.duration)
            clip = QueryClip(line.video_id, line.video_id, subset, line.duration)
            if clips.setdefault(line.video_id, clip) != clip:
                problem = f"expected {clips[line.video_id].duration_sec} seconds, as "
                problem += f"in an earlier line of the clip, but got {line.duration}"
                raise DataError(path, problem, record=record, field="duration")
            uid, query_idx = _parsed_id(path, record, line.query_id)
            if subset != "test" and len(line.timestamps) != 1:
                problem = f"expected one window but got {len(line.timestamps)}"
                raise DataError(path, problem, record=record, field="timestamps")
            window = None if subset == "test" else line.timestamps[0]
            where = (line.query_id, uid, query_idx, clip.clip_id, subset)
            query = LanguageQuery(*where, line.query or "", window)
            yield _Raw(query, line.query_template, clips[clip.clip_id], path, record)


def _parsed_id(path: Path, record: str, query_id: str) -> tuple[str, int]:
    uid, _, number = query_id.rpartition("_")
    if not uid or not number.isdecimal() or not number.isascii():
        problem = f"expected <annotation uid>_<number> but got {query_id!r}"
        raise DataError(path, problem, record=record, field="query_id")
    return uid, int(number)


def _join_official(
    path: Path, subset: str, lines: list[_Raw], report: DataReport
) -> list[_Raw]:
    """Templates, parent videos and starts from the official file beside, if any."""
    official = existing(path.parent / OFFICIAL_NLQ_FILES[subset])
    if not official.is_file():
        return lines
    apart = DataReport(faults=report.faults)
    known = {one.query.query_id: one for one in _official(official, subset, apart, [])}
    report.files.update(apart.files)
    joined = []
    for line in lines:
        other = known.get(line.query.query_id)
        with report.collected():
            if other is None or other.clip.clip_id != line.clip.clip_id:
                problem = (
                    f"{line.query.query_id} of clip {line.clip.clip_id} is not in "
                )
                problem += official.name
                hint = "take both files of one version"
                raise DataError(path, problem, record=line.record, hint=hint)
            joined.append(replace(line, clip=other.clip, template=other.template))
    return joined


# --- Questions ------------------------------------------------------------------------


def plain_question(text: str) -> tuple[str, bool]:
    """A question without surplus blanks and prefixes of the annotation form.

    >>> plain_question(" Query Text: Where did I put  the lid? ")
    ('Where did I put the lid?', True)

    :param text: as in the file.
    :return: the question, empty if nothing remains, and whether a prefix was taken.
    """
    prefix = _FORM_PREFIX.match(text)
    rest = text[prefix.end() :] if prefix else text
    return " ".join(rest.split()), prefix is not None


class _Reader:
    """Turns what was read into records, and counts."""

    def __init__(self, report: DataReport, is_raw: bool) -> None:
        self.queries = report.stage(_STAGE, "queries")
        self.windows = report.stage(_STAGE, "windows")
        self.clips = report.stage(_STAGE, "clips")
        self._report, self._is_raw = report, is_raw
        self._ids: set[str] = set()
        self._clips: dict[str, QueryClip] = {}

    def checked(self, raw: Iterable[_Raw]) -> Iterator[LanguageQuery]:
        """Usable questions of one file."""
        asked: Counter[tuple[str, str]] = Counter()
        for one in raw:
            with self._report.collected():
                self._check_ids(one)
                text = self._text(one)
                if not text:
                    self.queries.reject("no query text")
                    continue
                window = self._window(one)
                if window is None and one.query.window_sec is not None:
                    continue
                template = self._template(one)
                self.queries.kept += 1
                asked[one.clip.clip_id, text.lower()] += 1
                yield replace(
                    one.query, text=text, window_sec=window, template=template
                )
        again = sum(count - 1 for count in asked.values())
        self.queries.note("same words as another question of the clip", again)

    def clips_of(self, queries: Iterable[LanguageQuery]) -> dict[str, QueryClip]:
        """Clips that still have a question."""
        asked = {query.clip_id for query in queries}
        self.clips.kept += len(asked)
        self.clips.reject("no usable question", len(self._clips) - len(asked))
        return {uid: clip for uid, clip in self._clips.items() if uid in asked}

    def _check_ids(self, one: _Raw) -> None:
        _check_new(one.path, one.record, "query_id", one.query.query_id, self._ids)
        first = self._clips.setdefault(one.clip.clip_id, one.clip)
        if first.subset != one.clip.subset:
            problem = f"the clip {first.clip_id} is in the {first.subset} file as well"
            raise DataError(one.path, problem, record=one.record)

    def _text(self, one: _Raw) -> str:
        raw = one.query.text
        if self._is_raw:
            return raw if raw.strip() else ""
        text, had_prefix = plain_question(raw)
        if text:
            self.queries.note("form prefix taken from the text", int(had_prefix))
            self.queries.note("blanks around the text", int(raw != raw.strip()))
        return text

    def _template(self, one: _Raw) -> int | None:
        if one.template is None:
            self.queries.note("without template")
            return None
        try:
            return template_id(one.template)
        except ValueError as error:
            field = f"{one.within}.template" if one.within else "query_template"
            raise DataError(
                one.path, str(error), record=one.record, field=field
            ) from None

    def _window(self, one: _Raw) -> tuple[float, float] | None:
        if one.query.window_sec is None:
            return None
        field = "timestamps"
        if one.within:
            field = f"{one.within}.clip_start_sec, clip_end_sec"
        check_finite(one.path, one.record, field, one.query.window_sec)
        start, end = one.query.window_sec
        limit = math.inf if self._is_raw else one.clip.duration_sec
        reason = unusable_window(start, end, limit)
        if reason is not None:
            self.windows.reject(reason)
            self.queries.reject(f"window: {reason}")
            return None
        count_usable(start, end, limit, self.windows)
        return max(start, 0.0), min(end, limit)
