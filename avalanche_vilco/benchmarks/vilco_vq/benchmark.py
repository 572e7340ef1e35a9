"""Visual Queries as a value."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from avalanche_vilco.benchmarks.spec import (
    BackboneCache,
    Benchmark,
    Submission,
    deferred,
    read_recipe,
)
from avalanche_vilco.benchmarks.vilco_vq.annotations import OFFICIAL_VQ_FILES

if TYPE_CHECKING:
    from avalanche_vilco.evaluation.metrics.emission import MetricState

_HERE = "avalanche_vilco.benchmarks.vilco_vq"


def metrics() -> list[MetricState]:
    """tAP, stAP, success and recovery of response tracks."""
    from avalanche_vilco.evaluation.metrics.response_track import ResponseTrackMetrics

    return [ResponseTrackMetrics()]


def image_size(scenario: Any) -> Mapping[str, int]:
    """Size of the square pictures.

    :param scenario: that a model is built for.
    """
    return {"image_size": scenario.info["image_size"]}


def is_small_and_fixed(scenario: Any) -> bool:
    """Whether the embeddings of all frames are small enough to keep unasked.

    They are those of the embedded default, as long as training reads the frames as
    they are.

    :param scenario: that a run trains on.
    """
    is_embedded = str(scenario.info["data"]).startswith("embedded")
    return is_embedded and not scenario.info["augment"]


BENCHMARK = Benchmark(
    name="vilco_vq",
    version="1",
    paper="ViLCo-Bench (arXiv 2406.13123), Visual Queries",
    build=deferred(f"{_HERE}.generator:vilco_vq"),
    unlabelled=deferred(f"{_HERE}.generator:unlabelled_vq"),
    embedded_root=deferred(f"{_HERE}.embedded:MINI_VQ.root"),
    models={
        name: deferred(f"{_HERE}.models:{name}")
        for name in ("vilco_vq_tiny", "vilco_vq_base")
    },
    model_arguments=image_size,
    has_class_outputs=False,
    n_regression=4,
    criterion=deferred("avalanche_vilco.models.visual_losses:VisualQueryLoss"),
    metrics=metrics,
    main_metric="stAP25",
    future="value",
    queries="crops",
    chance="when each query shows the crop of another",
    recipe=read_recipe(Path(__file__).with_name("recipe.yaml")),
    backbone_cache=BackboneCache(
        is_default=is_small_and_fixed,
        fill=deferred(f"{_HERE}.backbone_cache:cache_backbone"),
    ),
    annotation_files=tuple(OFFICIAL_VQ_FILES.values()),
    examine=deferred(f"{_HERE}.examine:examine"),
    submission=Submission(
        task="vq",
        collector=deferred(f"{_HERE}.submission:TrackAnswers"),
        document=deferred(f"{_HERE}.submission:visual_document"),
        score=deferred(f"{_HERE}.submission:score"),
        role_of=deferred(f"{_HERE}.submission:role_of"),
        references=("ego4d", "vilco"),
    ),
)
