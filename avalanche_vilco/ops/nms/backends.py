"""Which loop picks."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from avalanche_vilco.ops.nms import backend_numba, backend_numpy, backend_torch
from avalanche_vilco.ops.nms.candidates import Candidates
from avalanche_vilco.ops.nms.groups import group
from avalanche_vilco.ops.nms.rule import Rule

Backend = Literal["auto", "torch", "numpy", "numba"]
"""``auto``: for tensors on the CPU ``numba`` where it is installed, else ``numpy``;
``torch`` on other devices."""


def pick(given: Candidates, rule: Rule, backend: Backend) -> tuple[Tensor, Tensor]:
    """Indices and scores ``(B, M)`` of the picks, -1 and 0 where there is none.

    :raises ValueError: if the backend is unknown or cannot read the device.
    :raises ImportError: if numba is asked for and absent.
    """
    if backend not in get_args(Backend):
        names = ", ".join(get_args(Backend))
        raise ValueError(f"expected a backend of {names} but got {backend!r}")
    if rule.method == "hard":
        low = given.scores <= rule.min_score
        given = given._replace(scores=given.scores.masked_fill(low, 0.0))
    on_cpu = given.scores.device.type == "cpu"
    if backend == "torch" or (backend == "auto" and not on_cpu):
        return backend_torch.pick(given, rule)
    if not on_cpu:
        raise ValueError(
            f"expected tensors on the CPU for backend {backend!r} but got "
            f"{given.scores.device}"
        )
    return _pick_on_cpu(given, rule, backend)


def _pick_on_cpu(
    given: Candidates, rule: Rule, backend: Backend
) -> tuple[Tensor, Tensor]:
    compiled = backend == "numba" or (
        backend == "auto" and backend_numba.is_available()
    )
    loop = backend_numba.pick if compiled else backend_numpy.pick
    shape = len(given.scores), rule.room(given.scores.shape[1])
    indices, scores = np.full(shape, -1), np.zeros(shape, dtype=np.float32)
    # Lengths of windows far apart may overflow; they do not overlap.
    with np.errstate(over="ignore"):
        loop(group(given, rule.floor), rule, indices, scores)
    return torch.from_numpy(indices), torch.from_numpy(scores)
