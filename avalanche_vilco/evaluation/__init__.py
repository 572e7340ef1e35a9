"""Metrics: pure functions, the task matrix, and plugins for Avalanche.

Names load on first use, as ``__init__.pyi`` lists them: only the plugins of
``evaluation.metrics`` need Avalanche.
"""

from avalanche_vilco.core.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
