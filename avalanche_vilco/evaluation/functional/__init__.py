"""Metrics as pure functions on tensors."""

from avalanche_vilco.evaluation.functional.recall import moment_recall, recall_hits

__all__ = ["moment_recall", "recall_hits"]
