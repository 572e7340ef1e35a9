"""The submission file of Ego4D's Moment-Queries challenge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from avalanche_vilco.benchmarks.answers import Window


def moment_document(
    data: Any,
    answers: Sequence[Sequence[Window]],
    scenario: Any,
    options: Mapping[str, Any],
    subset: str,
) -> dict[str, Any]:
    """Write windows as the challenge takes them.

    A clip that several experiences ask is in it once, as in the first.

    :param data: dataset of the samples that are answered.
    :param answers: windows of each.
    :param scenario: that the model has learnt.
    :param options: of the generator.
    :param subset: ``"val"`` or ``"test"``.
    """
    names = [query.name for query in scenario.queries]
    results: dict[str, list[dict[str, Any]]] = {}
    for sample, windows in zip(data.samples, answers, strict=True):
        results.setdefault(
            sample.clip.clip_id,
            [
                {"label": names[label], "score": score, "segment": [start, end]}
                for start, end, score, label in windows
            ],
        )
    return {
        "version": "1.0",
        "challenge": "ego4d_moment_queries",
        "detect_results": results,
        "retrieve_results": results,
    }
