"""Metrics as pure functions on tensors, as ``__init__.pyi`` lists them."""

from avalanche_vilco.core.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
