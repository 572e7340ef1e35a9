"""Moment Queries as a value."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from avalanche_vilco.benchmarks.spec import (
    Benchmark,
    Deviation,
    Submission,
    deferred,
    feature_widths,
    read_recipe,
)
from avalanche_vilco.benchmarks.vilco_mq.layout import ANNOTATION_FILES

if TYPE_CHECKING:
    from avalanche_vilco.evaluation.metrics.emission import MetricState

_HERE = "avalanche_vilco.benchmarks.vilco_mq"

DEVIATIONS: Mapping[str, Deviation] = {
    "clip_label_text": Deviation(
        effect="the query text of a clip is its own ground-truth label set, at test "
        "too",
        benchmark_options={"sources": {"clip_label_text": True}},
    ),
    "cumulative_averages": Deviation(
        effect="an experience weighs as many as the queries seen when it was learnt",
        averages="cumulative",
    ),
    "class_slot_memory": Deviation(
        effect="mem_size counts slots of classes, of which one clip may fill several",
        strategy_options={"unit": "class_slots"},
    ),
    "seen_negatives": Deviation(
        effect="every query learnt so far is a negative where the clip has no window "
        "of it",
        criterion={"negatives": "seen"},
    ),
    "best_on_test": Deviation(
        effect="the epoch that is kept is the one of the best mAP on the test stream",
        best_on_test=deferred(
            "avalanche_vilco.evaluation.metrics.detection:MomentDetectionMAP"
        ),
    ),
}
"""Parts of the public training recipe; docs/reference_deviations.md tells of each."""


def metrics() -> list[MetricState]:
    """R@kx and R@k at tIoU 0.3 and 0.5."""
    from avalanche_vilco.evaluation.metrics.recall import MomentRecall

    k, tiou = (1, 5), (0.3, 0.5)
    return [
        MomentRecall(k=k, tiou=tiou, budget="per_gt"),
        MomentRecall(k=k, tiou=tiou, budget="fixed"),
    ]


BENCHMARK = Benchmark(
    name="vilco_mq",
    version="1",
    paper="ViLCo-Bench (arXiv 2406.13123), Moment Queries",
    build=deferred(f"{_HERE}.generator:vilco_mq"),
    unlabelled=deferred(f"{_HERE}.generator:unlabelled_mq"),
    embedded_root=deferred(f"{_HERE}.embedded:MINI_MQ.root"),
    models={
        name: deferred(f"{_HERE}.models:{name}")
        for name in (
            *("vilco_mq_tiny", "vilco_mq_base"),
            *("vilco_mq_tiny_lower", "vilco_mq_base_lower"),
        )
    },
    model_arguments=feature_widths,
    n_regression=2,
    criterion=deferred("avalanche_vilco.models.losses:MomentLoss"),
    metrics=metrics,
    main_metric="Recall@1x_tIoU0.5",
    future="nan",
    chance="on shuffled features",
    deviations=DEVIATIONS,
    recipe=read_recipe(Path(__file__).with_name("recipe.yaml")),
    annotation_files=ANNOTATION_FILES,
    examine=deferred(f"{_HERE}.examine:examine"),
    submission=Submission(
        task="mq",
        collector=deferred("avalanche_vilco.benchmarks.window_scores:WindowAnswers"),
        document=deferred(f"{_HERE}.submission:moment_document"),
        score=deferred(f"{_HERE}.submission:score"),
        role_of=deferred(f"{_HERE}.submission:role_of"),
        references=("ego4d", "actionformer", "vilco"),
    ),
)
