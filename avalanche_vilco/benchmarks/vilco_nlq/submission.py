"""Files of answers to Natural Language Queries, written, read and scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
import torch
from msgspec import Meta

from avalanche_vilco.benchmarks.submissions import (
    MEAN,
    OTHER_ANNOTATIONS,
    Document,
    Note,
    Role,
    Score,
    Source,
    annotation_fields,
    check_any,
    clips_of,
    open_document,
)
from avalanche_vilco.benchmarks.window_scores import (
    MomentSubmission,
    RecallGrid,
    Window,
    add_recall,
    arranged,
    improper,
    recall_by_group,
)
from avalanche_vilco.evaluation.functional import Reference, top1_tiou
from avalanche_vilco.evaluation.functional.references import check_reference

_Id = str | int | None
Key = tuple[_Id, _Id, int]
_GRID = RecallGrid((1, 3, 5), (0.3, 0.5), "fixed")
_MAX_INDEX = 2**31 - 1


class _Query(msgspec.Struct):
    clip_start_sec: float
    clip_end_sec: float
    template: Any = None


class _Annotation(msgspec.Struct):
    annotation_uid: _Id
    language_queries: list[Any]


class _Clip(msgspec.Struct):
    clip_uid: _Id
    annotations: list[_Annotation]


class _Answer(msgspec.Struct):
    clip_uid: _Id
    annotation_uid: _Id
    query_idx: int | float
    predicted_times: Any


_Windows = list[Annotated[list[Any], Meta(min_length=2)]]


class QuerySubmission(NamedTuple):
    """A row per language query."""

    moments: MomentSubmission
    """Windows, all with label 0, one ground-truth window a row."""
    queries: list[Key]
    """(clip uid, annotation uid, number of the query) of each row."""
    templates: list[str | None]
    """Template of each row, None where the annotations give none."""
    notes: list[Note]
    """What counts otherwise than its author may expect."""


class _Asked(NamedTuple):
    """The window that a query asks for."""

    window: Window
    template: str | None


def role_of(content: Any) -> Role | None:
    """Whether content of a file is of Natural Language Queries, and what it is.

    :param content: as decoded.
    """
    if isinstance(content, list):
        first = content[0] if content else None
        is_answer = isinstance(first, Mapping) and "query_idx" in first
        return "predictions" if is_answer else None
    if isinstance(content, Mapping) and isinstance(content.get("results"), list):
        return "predictions"
    is_asked = "language_queries" in annotation_fields(content)
    return "annotations" if is_asked else None


def read_queries(
    annotations: Source, predictions: Source, *, reference: Reference | None = None
) -> QuerySubmission:
    """Read Natural-Language-Queries files.

    By default there is a row per query of the annotations, without predictions where
    it was not answered. A third number of a predicted window is its score, if all
    windows of the query have one; otherwise the first window is the best.

    :param annotations: {"videos": [{"clips": [{"clip_uid", "annotations":
        [{"annotation_uid", "language_queries": [{"clip_start_sec", "clip_end_sec",
        "template"}]}]}]}]}.
    :param predictions: [{"clip_uid", "annotation_uid", "query_idx",
        "predicted_times": [[start, end], ...]}], or such a list under "results".
    :param reference: "ego4d" and "vilco" give a row per answer, twice for an id
        answered twice, accept query numbers from the end and ignore scores.
    :return: rows to score.
    :raises DataError: if an answer is to no query or of another form, nothing is asked,
        or a query twice; by default also if two answers are to one query.
    """
    check_reference(reference)
    given = open_document(predictions, "predictions")
    asked = _asked(open_document(annotations, "annotations"))
    pairs = _answers(given, asked, reference)
    answered = dict(pairs)
    if reference is None:
        pairs = [(key, answered.get(key, [])) for key in asked]
    return QuerySubmission(
        arranged(
            [windows for _, windows in pairs], [[asked[k].window] for k, _ in pairs]
        ),
        [key for key, _ in pairs],
        [asked[key].template for key, _ in pairs],
        _notes(asked, answered, reference),
    )


def _notes(
    asked: Mapping[Key, _Asked],
    answered: Mapping[Key, list[Window]],
    reference: Reference | None,
) -> list[Note]:
    counted = "counted as misses" if reference is None else "not counted"
    scores = {key: [window[2] for window in row] for key, row in answered.items()}
    return Note.told(
        Note.of(
            f"queries without an answer, {counted}",
            [key for key in asked if not answered.get(key)],
        ),
        Note.of(
            "answers ranked by the scores beside their windows, not as listed",
            [key for key, row in scores.items() if row != sorted(row, reverse=True)],
        ),
        improper(answered.values(), "predicted"),
        improper([[query.window] for query in asked.values()], "annotated"),
    )


def _asked(document: Document) -> dict[Key, _Asked]:
    asked: dict[Key, _Asked] = {}
    for _, clip in clips_of(document, _Clip):
        for part in clip.annotations:
            for number, raw in enumerate(part.language_queries):
                key = (clip.clip_uid, part.annotation_uid, number)
                record = " ".join(map(str, key))
                query = document.convert(raw, _Query, record, strict=False)
                window = (query.clip_start_sec, query.clip_end_sec)
                document.check_finite(window, record, "clip_start_sec, clip_end_sec")
                template = query.template if isinstance(query.template, str) else None
                if key in asked:
                    hint = "one of them would be lost: leave one annotation of its uid"
                    document.fail("is asked twice", record=record, hint=hint)
                asked[key] = _Asked((*window, 0.0, 0), template)
    if not asked:
        document.fail("no queries are asked", hint="is it the right file?")
    return asked


def _answers(
    document: Document, asked: Mapping[Key, Any], reference: Reference | None
) -> list[tuple[Key, list[Window]]]:
    content = document.content
    if isinstance(content, Mapping):
        if "results" not in content:
            document.fail(f"expected 'results' but got {[*content][:8]}")
        content = content["results"]
    pairs: list[tuple[Key, list[Window]]] = []
    seen: set[Key] = set()
    answers = document.convert(content, list[_Answer], within="results")
    for i, answer in enumerate(answers):
        key, record = _key(answer, asked, reference, document, i)
        if key in seen and reference is None:
            hint = "leave one answer to each query"
            document.fail("is answered twice", record=record, hint=hint)
        seen.add(key)
        pairs.append((key, _windows(answer, record, document, reference)))
    return pairs


def _key(
    answer: _Answer,
    asked: Mapping[Key, Any],
    reference: Reference | None,
    document: Document,
    place: int,
) -> tuple[Key, str]:
    if not abs(answer.query_idx) <= _MAX_INDEX or answer.query_idx % 1:
        problem = f"expected a whole number but got {answer.query_idx!r:.80}"
        document.fail(problem, field=f"results[{place}].query_idx")
    number, parent = int(answer.query_idx), (answer.clip_uid, answer.annotation_uid)
    record = " ".join(map(str, (*parent, number)))
    if number < 0 and reference in ("ego4d", "vilco"):
        number += sum(known[:2] == parent for known in asked)
    if (*parent, number) not in asked:
        problem = "the annotations do not ask this query"
        document.fail(problem, record=record, hint=OTHER_ANNOTATIONS)
    return (*parent, number), record


def _windows(
    answer: _Answer, record: str, document: Document, reference: Reference | None
) -> list[Window]:
    field = "predicted_times"
    rows = document.convert(answer.predicted_times, _Windows, record, within=field)
    has_scores = reference is None and all(len(row) > 2 for row in rows)
    numbers = document.convert(
        [row[: 3 if has_scores else 2] for row in rows],
        list[list[float]],
        record,
        within=field,
        strict=False,
    )
    document.check_rows(numbers, record, f"{field}[{{}}]")
    if has_scores:
        return [(start, end, score, 0) for start, end, score in numbers]
    return [(start, end, -float(i), 0) for i, (start, end) in enumerate(numbers)]


# --- Scores ---------------------------------------------------------------------------


def score(
    result: Score,
    predictions: Document,
    annotations: Document,
    *,
    device: str = "cpu",
    k: Sequence[int] | None = None,
    tiou: Sequence[float] | None = None,
) -> None:
    """Add Recall@k and the mean tIoU of the best window, over all and by template.

    :param result: says which evaluator is reproduced, and gets the numbers.
    """
    found = read_queries(annotations, predictions, reference=result.reference)
    check_any(predictions, found.moments.n_predictions)
    result.counts = {
        "queries": len(found.queries),
        "answered": int((found.moments.labels >= 0).any(dim=1).sum()),
        "predictions": found.moments.n_predictions,
    }
    result.notes = found.notes
    moments, grid = found.moments.to(device), _GRID.replaced(k, tiou)
    add_recall(result, moments, grid)
    best = top1_tiou(
        moments.segments,
        moments.scores,
        moments.target_segments[:, 0],
        sort=result.reference is None,
    )
    result.scores["mIoU"] = {MEAN: best.mean().item()}
    templates = [name or "(none)" for name in found.templates]
    names = sorted(set(templates))
    places = {name: number for number, name in enumerate(names)}
    numbers = torch.tensor([[places[name]] for name in templates], device=device)
    groups = recall_by_group(result, moments, grid, numbers)
    result.groups = {names[number]: rows for number, rows in groups.items()}


def question_document(
    data: Any,
    answers: Sequence[Sequence[Window]],
    scenario: Any,
    options: Mapping[str, Any],
    subset: str,
) -> dict[str, Any]:
    """Write windows as the challenge takes them, best first.

    A question without any has one of no length, a miss: the public evaluator stops at
    none. Arguments are those of ``Submission.document``.
    """
    results = [
        {
            "clip_uid": sample.clip.clip_id,
            "annotation_uid": sample.query.annotation_uid,
            "query_idx": sample.query.query_idx,
            "predicted_times": [[s, e] for s, e, _, _ in windows] or [[0.0, 0.0]],
        }
        for sample, windows in zip(data.samples, answers, strict=True)
    ]
    return {"version": "1.0", "challenge": "ego4d_nlq_challenge", "results": results}
