"""One pick after the other: always of the label with the highest score."""

from __future__ import annotations

from functools import cache
from types import ModuleType

import numpy as np

from avalanche_vilco.ops.nms.groups import Floats, Groups, Integers
from avalanche_vilco.ops.nms.rule import Rule


def is_available() -> bool:
    """Tell whether numba is installed and works with this NumPy."""
    return _kernels() is not None


def pick(groups: Groups, rule: Rule, indices: Integers, scores: Floats) -> None:
    """As :func:`avalanche_vilco.ops.nms.backend_numpy.pick`.

    :raises ImportError: if numba cannot be imported.
    """
    kernels = _kernels()
    if kernels is None:
        raise ImportError(
            "backend 'numba' needs numba: pip install 'avalanche-vilco[fast]'"
        )
    if rule.per_label == 0:
        return
    methods = {"gaussian": kernels.GAUSSIAN, "linear": kernels.LINEAR}
    kernels.pick(
        *groups,
        methods.get(rule.method, kernels.DROP),
        float(rule.sigma),
        np.float32(rule.threshold),
        np.float32(rule.floor),
        int(rule.per_label or len(groups.places)),
        indices,
        scores,
    )


@cache
def _kernels() -> ModuleType | None:
    # On first use only: numba takes half a second to import.
    try:
        from avalanche_vilco.ops.nms import kernels
    except ImportError:
        return None
    return kernels
