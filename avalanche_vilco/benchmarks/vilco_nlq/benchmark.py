"""Natural Language Queries as a value."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from avalanche_vilco.benchmarks.spec import (
    Benchmark,
    Submission,
    deferred,
    feature_widths,
    read_recipe,
)
from avalanche_vilco.benchmarks.vilco_nlq.layout import ANNOTATION_FILES

if TYPE_CHECKING:
    from avalanche_vilco.evaluation.metrics.emission import MetricState

_HERE = "avalanche_vilco.benchmarks.vilco_nlq"


def metrics() -> list[MetricState]:
    """R@k at tIoU 0.3 and 0.5; a question has one window, so R@kx is the same."""
    from avalanche_vilco.evaluation.metrics.recall import MomentRecall

    return [MomentRecall(k=(1, 5), tiou=(0.3, 0.5), budget="fixed")]


BENCHMARK = Benchmark(
    name="vilco_nlq",
    version="1",
    paper="ViLCo-Bench (arXiv 2406.13123), Natural Language Queries",
    build=deferred(f"{_HERE}.generator:vilco_nlq"),
    unlabelled=deferred(f"{_HERE}.generator:unlabelled_nlq"),
    embedded_root=deferred(f"{_HERE}.embedded:MINI_NLQ.root"),
    models={
        name: deferred(f"{_HERE}.models:{name}")
        for name in ("vilco_nlq_tiny", "vilco_nlq_base")
    },
    model_arguments=feature_widths,
    has_class_outputs=False,
    n_regression=2,
    criterion=deferred("avalanche_vilco.models.losses:MomentLoss"),
    metrics=metrics,
    main_metric="Recall@1_tIoU0.3",
    selection_metric="Recall@1_tIoU0.5",
    future="value",
    chance="on shuffled features",
    recipe=read_recipe(Path(__file__).with_name("recipe.yaml")),
    annotation_files=ANNOTATION_FILES,
    examine=deferred(f"{_HERE}.examine:examine"),
    submission=Submission(
        task="nlq",
        collector=deferred("avalanche_vilco.benchmarks.window_scores:WindowAnswers"),
        document=deferred(f"{_HERE}.submission:question_document"),
        score=deferred(f"{_HERE}.submission:score"),
        role_of=deferred(f"{_HERE}.submission:role_of"),
        references=("ego4d", "vilco"),
    ),
)
