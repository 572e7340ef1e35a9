"""Files of Natural-Language Queries."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from avalanche_vilco.benchmarks.submission_files import (
    Document,
    Note,
    Source,
    Where,
    check_task,
    clips_of,
    open_document,
)
from avalanche_vilco.benchmarks.vilco_mq.submission import (
    MomentSubmission,
    Window,
    arranged,
    improper,
)
from avalanche_vilco.evaluation.functional.references import (
    Reference,
    check_reference,
)

_Id = str | int | None
Key = tuple[_Id, _Id, int]


class QuerySubmission(NamedTuple):
    """A row per language query; ``moments`` are arguments of ``moment_recall``.

    :param moments: windows, all with label 0, one ground-truth window a row.
    :param queries: (clip uid, annotation uid, number of the query) of each row.
    :param templates: template of each row, None where the annotations give none.
    :param notes: what counts otherwise than its author may expect.
    """

    moments: MomentSubmission
    queries: list[Key]
    templates: list[str | None]
    notes: list[Note]


class _Asked(NamedTuple):
    """The window that a query asks for."""

    window: Window
    template: str | None


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
    :raises SubmissionError: if an answer is to no query or of another form, or nothing
        is asked; by default also if two answers are to one query.
    """
    check_reference(reference)
    document = open_document(predictions, "predictions")
    check_task(document, "predictions", "nlq")
    asked = _asked(open_document(annotations, "annotations"))
    pairs = _answers(document, asked, reference)
    answered = dict(pairs)
    unanswered = [key for key in asked if not answered.get(key)]
    if reference is None:
        pairs = [(key, answered.get(key, [])) for key in asked]
    notes = _notes(asked, answered, unanswered, reference)
    return QuerySubmission(
        arranged(
            [windows for _, windows in pairs], [[asked[k].window] for k, _ in pairs]
        ),
        [key for key, _ in pairs],
        [asked[key].template for key, _ in pairs],
        notes,
    )


def _notes(
    asked: Mapping[Key, _Asked],
    answered: Mapping[Key, list[Window]],
    unanswered: list[Key],
    reference: Reference | None,
) -> list[Note]:
    counted = "counted as misses" if reference is None else "not counted"
    scores = {key: [window[2] for window in row] for key, row in answered.items()}
    kinds = {
        f"queries without an answer, {counted}": unanswered,
        "answers ranked by the scores beside their windows, not as listed": [
            key for key, row in scores.items() if row != sorted(row, reverse=True)
        ],
    }
    notes = [
        Note(reason, len(keys), tuple(" ".join(map(str, key)) for key in keys))
        for reason, keys in kinds.items()
        if keys
    ]
    notes += improper(answered.values(), "predicted")
    return notes + improper([[query.window] for query in asked.values()], "annotated")


def _asked(document: Document) -> dict[Key, _Asked]:
    check_task(document, "annotations", "nlq")
    asked: dict[Key, _Asked] = {}
    for _, clip, where in clips_of(document):
        for i, part in enumerate(where.take(clip, "annotations", list)):
            spot = f"annotations[{i}]"
            uid = where.name(part, "annotation_uid", spot)
            queries = where.take(part, "language_queries", list, spot)
            for number, query in enumerate(queries):
                here = where.at(clip["clip_uid"], uid, number)
                start = here.number(query, "clip_start_sec")
                end = here.number(query, "clip_end_sec")
                window = (start, end, 0.0, 0)
                template = query.get("template")
                asked[clip["clip_uid"], uid, number] = _Asked(
                    window, template if isinstance(template, str) else None
                )
    if not asked:
        document.where.fail("no queries are asked", hint="is it the right file?")
    return asked


def _answers(
    document: Document, asked: Mapping[Key, Any], reference: Reference | None
) -> list[tuple[Key, list[Window]]]:
    content, where = document
    if isinstance(content, Mapping):
        content = where.take(content, "results", list)
    if not isinstance(content, list | tuple):
        where.refuse("a list of answers", content)
    pairs: list[tuple[Key, list[Window]]] = []
    seen: set[Key] = set()
    for i, item in enumerate(content):
        key, here = _key(item, asked, reference, where, f"results[{i}]")
        if key in seen and reference is None:
            here.fail("is answered twice", hint="leave one answer to each query")
        seen.add(key)
        pairs.append((key, _windows(item, here, reference)))
    return pairs


def _key(
    item: Any,
    asked: Mapping[Key, Any],
    reference: Reference | None,
    where: Where,
    spot: str,
) -> tuple[Key, Where]:
    clip = where.name(item, "clip_uid", spot)
    part = where.name(item, "annotation_uid", spot)
    number = where.integer(item, "query_idx", spot)
    here = where.at(clip, part, number)
    if number < 0 and reference in ("ego4d", "vilco"):
        number += sum(known[:2] == (clip, part) for known in asked)
    if (clip, part, number) not in asked:
        here.fail(
            "the annotations do not ask this query",
            hint="are these the annotations that the predictions were made for?",
        )
    return (clip, part, number), here


def _windows(item: Any, where: Where, reference: Reference | None) -> list[Window]:
    windows = where.take(item, "predicted_times", list)
    spots = [f"predicted_times[{place}]" for place in range(len(windows))]
    ends = [where.window(*pair) for pair in zip(windows, spots, strict=True)]
    has_scores = reference is None and all(len(window) > 2 for window in windows)
    scores = [
        where.finite(window[2], str, spot) if has_scores else -float(place)
        for place, (window, spot) in enumerate(zip(windows, spots, strict=True))
    ]
    return [(*pair, score, 0) for pair, score in zip(ends, scores, strict=True)]
