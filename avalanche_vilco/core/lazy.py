"""Names of a package that load on first use, listed once, in its stub."""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path


def attach_stub(
    package: str, file: str
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package.

    :param package: its ``__name__``.
    :param file: its ``__file__``; ``__init__.pyi`` beside it, which type checkers read
        too, says where each name is imported from.
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    modules = {
        alias.name: str(statement.module)
        for statement in stub.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }

    def load(name: str) -> object:
        if name not in modules:
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}; "
                f"it offers {', '.join(sorted(modules))}"
            )
        return getattr(import_module(modules[name]), name)

    return load, lambda: sorted(modules), list(modules)
