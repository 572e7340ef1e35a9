"""Loggers for Avalanche's ``EvaluationPlugin``, where its own lack something."""

from avalanche_vilco.logging.task_matrix import TaskMatrixLogger, matrix_figure

__all__ = ["TaskMatrixLogger", "matrix_figure"]
