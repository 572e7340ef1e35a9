"""Video-language continual learning for Avalanche.

The package imports lazily: ``import avalanche_vilco`` costs milliseconds, and
Avalanche (8 to 10 s) is loaded when a benchmark is first asked for. What there is, and
where, stands in ``__init__.pyi``, which type checkers read too.
"""

import ast
from importlib import import_module
from pathlib import Path

__version__ = "0.2.0"

_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_MODULES = {
    alias.name: str(statement.module)
    for statement in _STUB.body
    if isinstance(statement, ast.ImportFrom)
    for alias in statement.names
}

__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(
            f"module 'avalanche_vilco' has no attribute {name!r}; "
            f"it offers {', '.join(sorted(_MODULES))}"
        )
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
