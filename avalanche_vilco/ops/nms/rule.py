"""How picked windows lower the scores of others, and how many are picked."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Literal, get_args

import numpy as np

SoftMethod = Literal["gaussian", "linear", "vanilla"]
Method = Literal["gaussian", "linear", "vanilla", "hard"]
"""How a pick treats the others of its label: ``gaussian`` multiplies their scores by
``exp(-tIoU ** 2 / sigma)``, ``linear`` those from the threshold on by ``1 - tIoU``;
``vanilla`` and ``hard`` drop these. ``hard`` leaves out scores up to ``min_score``
beforehand, the others drop what comes out below it."""

LENGTH_EPSILON = 1e-6


@dataclass(frozen=True)
class Rule:
    """Parameters of a suppression, checked.

    :param method: see :data:`Method`.
    :param sigma: width of the Gaussian, > 0.
    :param iou_threshold: in [0, 1].
    :param min_score: >= 0.
    :param max_segments: picks of a clip, >= 0; None means all.
    :param max_per_label: picks of a label of a clip, >= 0; None means all.
    :raises ValueError: if a parameter is out of range.
    :raises TypeError: if a limit is not an integer.
    """

    method: Method
    sigma: float
    iou_threshold: float
    min_score: float
    max_segments: int | None
    max_per_label: int | None

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            names = ", ".join(get_args(Method))
            raise ValueError(f"expected a method of {names} but got {self.method!r}")
        if not self.sigma > 0:
            raise ValueError(f"expected sigma > 0 but got {self.sigma}")
        if not 0 <= self.iou_threshold <= 1:
            raise ValueError(
                f"expected iou_threshold in [0, 1] but got {self.iou_threshold}"
            )
        if not self.min_score >= 0:
            raise ValueError(f"expected min_score >= 0 but got {self.min_score}")
        _check_limit("max_segments", self.max_segments)
        _check_limit("max_per_label", self.max_per_label)

    @property
    def drops(self) -> bool:
        """Whether windows are dropped from the threshold on, and none is lowered."""
        return self.method in ("hard", "vanilla")

    @property
    def floor(self) -> float:
        """Scores that a pick leaves below this are dropped."""
        return 0.0 if self.method == "hard" else self.min_score

    @property
    def threshold(self) -> float:
        """The tIoU to compare with, in float32 as they are."""
        return float(np.float32(self.iou_threshold))

    @property
    def per_label(self) -> int | None:
        """Picks of a label at most. A threshold of 0 drops windows that do not even
        overlap: then the first pick of a label is its last.
        """
        if not self.drops or self.threshold > 0:
            return self.max_per_label
        return 1 if self.max_per_label is None else min(1, self.max_per_label)

    def room(self, n_candidates: int) -> int:
        """Places for the picks of a clip."""
        return n_candidates if self.max_segments is None else int(self.max_segments)


def _check_limit(name: str, limit: int | None) -> None:
    if limit is None:
        return
    if isinstance(limit, bool) or not isinstance(limit, Integral):
        raise TypeError(f"expected {name} an int or None but got {limit!r}")
    if limit < 0:
        raise ValueError(
            f"expected {name} >= 0 but got {limit}; None keeps all that are left"
        )
