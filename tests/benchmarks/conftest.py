"""Fixtures of the tests of benchmarks."""

import importlib.util
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

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


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-3, 700),
    st.integers(min_value=10**300, max_value=10**320),
    st.floats(),
    st.floats(-1, 120),
    st.text(max_size=5),
    st.text(alphabet=string.printable, max_size=5),
    st.sampled_from(["train", "val", "test", "clip-a", "cook", "wash", "x/../y"]),
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner)
    ),
    max_leaves=5,
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """(container, key) of everything inside a JSON value."""
    found = []
    for key in value if isinstance(value, dict) else range(len(value)):
        found.append((value, key))
        if isinstance(value[key], (dict, list)):
            found += places(value[key])
    return found


@pytest.fixture(scope="session")
def mutate() -> Callable[[st.DataObject, Any], None]:
    """Changes a JSON value in up to three places that hypothesis draws."""

    def change(data: st.DataObject, content: Any) -> None:
        for _ in range(data.draw(st.integers(1, 3))):
            if not (inside := places(content)):
                return
            container, key = inside[data.draw(st.integers(0, len(inside) - 1))]
            action = data.draw(st.sampled_from(["replace", "delete", "double"]))
            if action == "delete":
                del container[key]
            elif action == "double" and isinstance(container, list):
                container.append(container[key])
            else:
                container[key] = data.draw(JSON)

    return change
