"""The loops that suppress windows."""

from importlib.util import find_spec

import pytest

NEEDS_NUMBA = pytest.mark.skipif(
    find_spec("numba") is None, reason="needs numba: pip install avalanche-vilco[fast]"
)


@pytest.fixture(params=["torch", "numpy", pytest.param("numba", marks=NEEDS_NUMBA)])
def backend(request: pytest.FixtureRequest) -> str:
    return request.param
