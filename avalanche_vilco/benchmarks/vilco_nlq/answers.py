"""The submission file of Ego4D's Natural-Language-Queries challenge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from avalanche_vilco.benchmarks.answers import Window


def question_document(
    data: Any,
    answers: Sequence[Sequence[Window]],
    scenario: Any,
    options: Mapping[str, Any],
    subset: str,
) -> dict[str, Any]:
    """Write windows as the challenge takes them, best first.

    :param data: dataset of the questions that are answered.
    :param answers: windows of each.
    :param scenario: that the model has learnt.
    :param options: of the generator.
    :param subset: ``"val"`` or ``"test"``.
    """
    results = [
        {
            "clip_uid": sample.clip.clip_id,
            "annotation_uid": sample.query.annotation_uid,
            "query_idx": sample.query.query_idx,
            "predicted_times": [[start, end] for start, end, _, _ in windows],
        }
        for sample, windows in zip(data.samples, answers, strict=True)
    ]
    return {
        "version": "1.0",
        "challenge": "ego4d_nlq_challenge",
        "results": results,
    }
