"""Suppression for a batch of clips, in tensors of a fixed size."""

from __future__ import annotations

from typing import get_args

from torch import Tensor

from avalanche_vilco.ops.nms.backends import Backend, pick
from avalanche_vilco.ops.nms.candidates import candidates
from avalanche_vilco.ops.nms.rule import Rule, SoftMethod


def soft_nms(
    segments: Tensor,
    scores: Tensor,
    labels: Tensor | None = None,
    *,
    method: SoftMethod = "gaussian",
    sigma: float = 0.5,
    iou_threshold: float = 0.5,
    min_score: float = 1e-3,
    max_segments: int | None = 200,
    max_per_label: int | None = None,
    backend: Backend = "auto",
) -> tuple[Tensor, Tensor]:
    """Pick windows by score while lowering the scores of those they overlap.

    After each pick, the other windows of its label are multiplied by
    ``exp(-tIoU ** 2 / sigma)`` (gaussian), or by ``1 - tIoU`` (linear) or 0
    (vanilla) from a tIoU of ``iou_threshold`` on, and dropped if they come out below
    ``min_score``. A pick itself is not compared with ``min_score``: the best window
    of every label survives.

    Scores that are not positive and finite, windows that are reversed or not finite,
    and labels below 0 (padding) are never picked. Ties go to the lowest index. All
    is computed in float32, whatever the type given.

    :param segments: windows, ``(B, N, 2)`` as (start, end), in any unit.
    :param scores: ``(B, N)``.
    :param labels: ``(B, N)`` integers, -1 marks padding; None means one label.
    :param method: how scores are lowered.
    :param sigma: width of the decay, > 0; gaussian only.
    :param iou_threshold: in [0, 1]; not for gaussian.
    :param min_score: windows whose lowered score is below this are dropped, >= 0.
    :param max_segments: number M of windows to keep per clip; None means N.
    :param max_per_label: windows to keep per label of a clip; None means all.
    :param backend: what picks; the choice changes the time only.
    :return: indices ``(B, M)`` into the N candidates and lowered scores ``(B, M)``
        in float32, best first; unfilled places have index -1 and score 0.
    :raises ValueError: if a shape, a device or a parameter is not as told.
    :raises TypeError: if labels or limits are not integers.
    :raises ImportError: if numba is asked for and absent.
    """
    if method not in get_args(SoftMethod):
        names = ", ".join(get_args(SoftMethod))
        raise ValueError(f"expected a method of {names} but got {method!r}")
    rule = Rule(method, sigma, iou_threshold, min_score, max_segments, max_per_label)
    return pick(candidates(segments, scores, labels), rule, backend)


def hard_nms(
    segments: Tensor,
    scores: Tensor,
    labels: Tensor | None = None,
    *,
    iou_threshold: float = 0.5,
    min_score: float = 0.0,
    max_segments: int | None = 200,
    max_per_label: int | None = None,
    backend: Backend = "auto",
) -> tuple[Tensor, Tensor]:
    """Pick windows by score and drop those of the same label that they overlap.

    Candidates are left out and ties broken as in :func:`soft_nms`.

    :param segments: windows, ``(B, N, 2)`` as (start, end), in any unit.
    :param scores: ``(B, N)``.
    :param labels: ``(B, N)`` integers, -1 marks padding; None means one label.
    :param iou_threshold: windows with this tIoU or more with a pick are dropped, in
        [0, 1].
    :param min_score: only scores above this are candidates, >= 0.
    :param max_segments: number M of windows to keep per clip; None means N.
    :param max_per_label: windows to keep per label of a clip; None means all.
    :param backend: what picks; the choice changes the time only.
    :return: indices ``(B, M)`` into the N candidates and scores ``(B, M)`` in
        float32, best first; unfilled places have index -1 and score 0.
    :raises ValueError: if a shape, a device or a parameter is not as told.
    :raises TypeError: if labels or limits are not integers.
    :raises ImportError: if numba is asked for and absent.
    """
    rule = Rule("hard", 1.0, iou_threshold, min_score, max_segments, max_per_label)
    return pick(candidates(segments, scores, labels), rule, backend)
