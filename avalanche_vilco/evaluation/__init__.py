"""Metrics: pure functions, the task matrix, and plugins for Avalanche.

Names load on first use: only the plugins of ``evaluation.metrics`` need Avalanche.
"""

from importlib import import_module
from typing import TYPE_CHECKING

_HOMES = {
    name: f"avalanche_vilco.evaluation.{module}"
    for module, names in {
        "functional": (
            "Tracks",
            "detection_ap",
            "detection_hits",
            "detection_map",
            "grouped_recall",
            "moment_recall",
            "recall_hits",
            "visual_query_hits",
            "visual_query_scores",
        ),
        "matrix": (
            "TaskMatrix",
            "matrices_csv",
        ),
        "seeds": (
            "SeedSummary",
            "summarise_seeds",
        ),
        "metrics": (
            "MomentDetectionMAP",
            "MomentRecall",
            "TaskMatrixMetric",
            "ResponseTrackMetrics",
            "VisualQueryMetrics",
            "average_performance_metrics",
            "backward_forgetting_metrics",
            "detection_map_metrics",
            "recall_metrics",
            "response_track_metrics",
            "task_matrix_metrics",
            "visual_query_metrics",
        ),
    }.items()
    for name in names
}

if TYPE_CHECKING:
    from avalanche_vilco.evaluation.functional import (
        Tracks,
        detection_ap,
        detection_hits,
        detection_map,
        grouped_recall,
        moment_recall,
        recall_hits,
        visual_query_hits,
        visual_query_scores,
    )
    from avalanche_vilco.evaluation.matrix import (
        TaskMatrix,
        matrices_csv,
    )
    from avalanche_vilco.evaluation.metrics import (
        MomentDetectionMAP,
        MomentRecall,
        ResponseTrackMetrics,
        TaskMatrixMetric,
        VisualQueryMetrics,
        average_performance_metrics,
        backward_forgetting_metrics,
        detection_map_metrics,
        recall_metrics,
        response_track_metrics,
        task_matrix_metrics,
        visual_query_metrics,
    )
    from avalanche_vilco.evaluation.seeds import (
        SeedSummary,
        summarise_seeds,
    )

__all__ = [
    "MomentDetectionMAP",
    "MomentRecall",
    "TaskMatrixMetric",
    "ResponseTrackMetrics",
    "SeedSummary",
    "TaskMatrix",
    "Tracks",
    "VisualQueryMetrics",
    "average_performance_metrics",
    "backward_forgetting_metrics",
    "detection_ap",
    "detection_hits",
    "detection_map",
    "detection_map_metrics",
    "grouped_recall",
    "matrices_csv",
    "moment_recall",
    "recall_hits",
    "recall_metrics",
    "response_track_metrics",
    "summarise_seeds",
    "task_matrix_metrics",
    "visual_query_hits",
    "visual_query_metrics",
    "visual_query_scores",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}; "
            f"it offers {', '.join(sorted(_HOMES))}"
        )
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
