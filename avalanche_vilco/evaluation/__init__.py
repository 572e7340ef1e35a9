"""Metrics: pure functions, the task matrix, and plugins for Avalanche.

Names load on first use: only the plugins of ``evaluation.metrics`` need Avalanche.
"""

from importlib import import_module
from typing import TYPE_CHECKING

_HOMES = {
    "recall_hits": "avalanche_vilco.evaluation.functional",
    "moment_recall": "avalanche_vilco.evaluation.functional",
    "TaskMatrix": "avalanche_vilco.evaluation.matrix",
    "MomentRecall": "avalanche_vilco.evaluation.metrics",
    "MomentTaskMatrix": "avalanche_vilco.evaluation.metrics",
    "recall_metrics": "avalanche_vilco.evaluation.metrics",
    "task_matrix_metrics": "avalanche_vilco.evaluation.metrics",
    "average_performance_metrics": "avalanche_vilco.evaluation.metrics",
    "backward_forgetting_metrics": "avalanche_vilco.evaluation.metrics",
}

if TYPE_CHECKING:
    from avalanche_vilco.evaluation.functional import moment_recall, recall_hits
    from avalanche_vilco.evaluation.matrix import TaskMatrix
    from avalanche_vilco.evaluation.metrics import (
        MomentRecall,
        MomentTaskMatrix,
        average_performance_metrics,
        backward_forgetting_metrics,
        recall_metrics,
        task_matrix_metrics,
    )

__all__ = [
    "MomentRecall",
    "MomentTaskMatrix",
    "TaskMatrix",
    "average_performance_metrics",
    "backward_forgetting_metrics",
    "moment_recall",
    "recall_hits",
    "recall_metrics",
    "task_matrix_metrics",
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
