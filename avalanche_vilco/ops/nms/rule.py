"""How picked windows lower the scores of others, and which may be picked."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from numbers import Integral
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

Method = Literal["gaussian", "linear", "vanilla", "hard"]
"""How a pick treats the others of its label: ``gaussian`` multiplies their scores by
``exp(-tIoU ** 2 / sigma)``, ``linear`` those from the threshold on by ``1 - tIoU``;
``vanilla`` and ``hard`` drop these. ``hard`` leaves out scores up to ``min_score``
beforehand, the others drop what comes out below it; a pick itself is not compared, so
the best window of every label survives."""

LENGTH_EPSILON = 1e-6


@dataclass(frozen=True, kw_only=True)
class NMSRule:
    """Parameters of a suppression, checked.

    :param method: see :data:`Method`.
    :param sigma: width of the decay, > 0; gaussian only. Decoders pass their own.
    :param iou_threshold: in [0, 1]; not for gaussian.
    :param min_score: hard: only scores above this are candidates; else windows whose
        lowered score is below this are dropped; >= 0.
    :param max_segments: windows to keep per clip, best first, >= 0; None means all.
    :param max_per_label: windows to keep per label of a clip, >= 0; None means all.
    :raises ValueError: if a parameter is out of range.
    :raises TypeError: if a limit is not an integer.
    """

    method: Method = "gaussian"
    sigma: float = 0.5
    iou_threshold: float = 0.5
    min_score: float = 1e-3
    max_segments: int | None = 200
    max_per_label: int | None = None

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
        """Picks of a label at most.

        A threshold of 0 drops windows that do not even overlap: then the first pick
        of a label is its last.
        """
        if not self.drops or self.threshold > 0:
            return self.max_per_label
        return 1 if self.max_per_label is None else min(1, self.max_per_label)

    def n_places(self, n_candidates: int) -> int:
        """Places for the picks of a clip.

        :param n_candidates: of the clip.
        """
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


class Candidates(NamedTuple):
    """Windows of a batch of clips; score 0 where never to be picked."""

    starts: Tensor  # (B, N) float32
    ends: Tensor  # (B, N) float32
    scores: Tensor  # (B, N) float32, finite, >= 0
    labels: Tensor  # (B, N) integers, >= 0 where the score is above 0


def candidates(segments: Tensor, scores: Tensor, labels: Tensor | None) -> Candidates:
    """Check what a caller gave and leave out what cannot be right.

    :param segments: ``(B, N, 2)``.
    :param scores: ``(B, N)``.
    :param labels: ``(B, N)`` integers; None means one label.
    :raises ValueError: if shapes or devices do not agree.
    :raises TypeError: if labels are not integers.
    """
    if labels is None:
        labels = torch.zeros_like(scores, dtype=torch.long)
    _check_tensors(segments, scores, labels)
    starts, ends = segments.detach().float().unbind(dim=2)
    scores = scores.detach().float()
    # Finite only if both ends are; one that overflows would make the tIoU NaN.
    lengths = ends - starts
    valid = (lengths >= 0) & (lengths < inf) & (scores > 0) & (scores < inf)
    valid &= labels >= 0
    return Candidates(
        torch.where(valid, starts, 0.0),
        torch.where(valid, ends, 0.0),
        torch.where(valid, scores, 0.0),
        labels,
    )


def _check_tensors(segments: Tensor, scores: Tensor, labels: Tensor) -> None:
    if segments.ndim != 3 or segments.shape[2] != 2:
        raise ValueError(
            f"expected segments of shape (B, N, 2) but got {tuple(segments.shape)}"
        )
    for name, values in (("scores", scores), ("labels", labels)):
        if values.shape != segments.shape[:2]:
            raise ValueError(
                f"expected {name} of shape {tuple(segments.shape[:2])} but got "
                f"{tuple(values.shape)}"
            )
        if values.device != segments.device:
            raise ValueError(
                f"expected {name} on {segments.device} as the segments are but got "
                f"{values.device}"
            )
    if labels.is_floating_point() or labels.is_complex():
        raise TypeError(f"expected integer labels but got {labels.dtype}")
