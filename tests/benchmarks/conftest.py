"""Fixtures of the tests of benchmarks."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="session")
def statistics() -> Any:
    """The module of ``benchmarks/embedded_statistics.py``."""
    path = SCRIPTS / "embedded_statistics.py"
    spec = importlib.util.spec_from_file_location("embedded_statistics", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
