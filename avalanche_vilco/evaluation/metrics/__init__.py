"""Metrics for Avalanche's ``EvaluationPlugin``."""

from avalanche_vilco.evaluation.metrics.continual import (
    TaskMatrixMetric,
    average_performance_metrics,
    backward_forgetting_metrics,
    task_matrix_metrics,
)
from avalanche_vilco.evaluation.metrics.detection import (
    MomentDetectionMAP,
    detection_map_metrics,
)
from avalanche_vilco.evaluation.metrics.emission import (
    ExperienceValues,
    MetricState,
    StreamValues,
)
from avalanche_vilco.evaluation.metrics.recall import (
    ExperienceRecall,
    MomentRecall,
    StreamRecall,
    recall_metrics,
)
from avalanche_vilco.evaluation.metrics.response_track import (
    ResponseTrackMetrics,
    response_track_metrics,
)
from avalanche_vilco.evaluation.metrics.strategy import (
    MomentPredictions,
    MomentTargets,
    decoded,
)
from avalanche_vilco.evaluation.metrics.visual_query import (
    TrackPredictions,
    TrackTargets,
    VisualQueryMetrics,
    visual_query_metrics,
)

__all__ = [
    "ExperienceRecall",
    "ExperienceValues",
    "MetricState",
    "MomentDetectionMAP",
    "MomentPredictions",
    "MomentRecall",
    "MomentTargets",
    "TaskMatrixMetric",
    "ResponseTrackMetrics",
    "StreamRecall",
    "StreamValues",
    "TrackPredictions",
    "TrackTargets",
    "VisualQueryMetrics",
    "average_performance_metrics",
    "backward_forgetting_metrics",
    "decoded",
    "detection_map_metrics",
    "recall_metrics",
    "response_track_metrics",
    "task_matrix_metrics",
    "visual_query_metrics",
]
