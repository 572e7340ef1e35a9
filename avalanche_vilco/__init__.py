"""Video-language continual learning for Avalanche.

The package imports lazily: ``import avalanche_vilco`` costs milliseconds, and
Avalanche (8 to 10 s) is loaded when a benchmark is first asked for. What there is, and
where, stands in ``__init__.pyi``, which type checkers read too.
"""

from avalanche_vilco.core.lazy import attach_stub

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
__all__ += ["__version__"]
