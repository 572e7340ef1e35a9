"""Metrics for Avalanche's ``EvaluationPlugin``."""

from avalanche_vilco.evaluation.metrics.continual import (
    MomentTaskMatrix,
    average_performance_metrics,
    backward_forgetting_metrics,
    task_matrix_metrics,
)
from avalanche_vilco.evaluation.metrics.recall import (
    ExperienceRecall,
    MomentRecall,
    StreamRecall,
    recall_metrics,
)
from avalanche_vilco.evaluation.metrics.strategy import (
    MomentPredictions,
    MomentTargets,
    decoded,
)

__all__ = [
    "ExperienceRecall",
    "MomentPredictions",
    "MomentRecall",
    "MomentTargets",
    "MomentTaskMatrix",
    "StreamRecall",
    "average_performance_metrics",
    "backward_forgetting_metrics",
    "decoded",
    "recall_metrics",
    "task_matrix_metrics",
]
