"""Metrics for Avalanche's ``EvaluationPlugin``: a state and its plugins a file."""
