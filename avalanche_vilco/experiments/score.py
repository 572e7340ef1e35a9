"""The numbers of a file of answers, in its benchmark's official form."""

from __future__ import annotations

import inspect
from typing import Any

from avalanche_vilco.benchmarks.spec import Benchmark, benchmark_names, find_benchmark
from avalanche_vilco.benchmarks.submissions import (
    Document,
    Role,
    Score,
    Source,
    open_document,
)
from avalanche_vilco.core.schema import collector_paused

__all__ = ["Score", "score", "score_options", "scored_benchmark"]


@collector_paused()
def score(
    benchmark: str,
    predictions: Source,
    annotations: Source,
    *,
    reference: str | None = None,
    **options: Any,
) -> Score:
    """Score a file of answers.

    :param benchmark: name, such as ``"vilco_mq"``, or its task, such as ``"mq"``.
    :param predictions: the answers: path, or what the file holds.
    :param annotations: what they answer, likewise.
    :param reference: public evaluator to reproduce, None for our own rules.
    :param options: ``device`` where to compute, such as ``"cuda"``; and what the
        benchmark's scorer takes: ``subset`` of the clips to score (Moment Queries),
        ``k`` numbers of predictions that recall looks at, ``tiou`` thresholds (Moment
        and Language Queries), which are by default those that the evaluator prints.
    :return: the numbers.
    :raises DataError: if a file cannot be scored, or holds no predictions.
    :raises ValueError: if the benchmark is not known or has no official files, or an
        option does not fit it.
    """
    value = scored_benchmark(benchmark)
    submission = value.submission
    assert submission is not None
    if reference not in (None, *submission.references):
        raise ValueError(
            f"expected reference of {value.name} in {list(submission.references)} or "
            f"None but got {reference!r}"
        )
    unknown = sorted(options.keys() - score_options(value))
    if unknown:
        raise ValueError(
            f"scores of {value.name} do not depend on {unknown}: leave out"
        )
    given = open_document(predictions, "predictions")
    asked = open_document(annotations, "annotations")
    _check_role(value, given, "predictions")
    _check_role(value, asked, "annotations")
    result = Score(submission.task, reference, given.file, asked.file)
    submission.score(result, given, asked, **options)
    return result


def scored_benchmark(name: str) -> Benchmark:
    """The benchmark of a name or task whose files can be scored.

    :raises ValueError: unknown, or without official files.
    """
    if name not in benchmark_names():
        for each in map(find_benchmark, benchmark_names()):
            if each.submission is not None and each.submission.task == name:
                return each
    found = find_benchmark(name)
    if found.submission is None:
        raise ValueError(f"{name} has no official file of answers: nothing to score")
    return found


def score_options(benchmark: Benchmark) -> set[str]:
    """Names of the options that a benchmark's scores depend on.

    :param benchmark: one of :func:`scored_benchmark`.
    """
    assert benchmark.submission is not None
    parameters = inspect.signature(benchmark.submission.score).parameters.values()
    return {one.name for one in parameters if one.kind is one.KEYWORD_ONLY}


def _check_role(benchmark: Benchmark, document: Document, role: Role) -> None:
    """Refuse files of another benchmark or role, if they can be told."""
    others = map(find_benchmark, benchmark_names())
    for each in (benchmark, *others):
        submission = each.submission
        found = None if submission is None else submission.role_of(document.content)
        if submission is None or found is None:
            continue
        if (each.name, found) != (benchmark.name, role):
            task = benchmark.submission and benchmark.submission.task
            hint = "pass the task of the file, or another file"
            if found != role:
                hint = "are predictions and annotations exchanged?"
            document.fail(
                f"expected {role} of task {task!r} but these are {found} of "
                f"{submission.task!r}",
                hint=hint,
            )
        return
