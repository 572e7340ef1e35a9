"""Windows of some clips beside those asked for, and what the metrics refuse."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor


def check_tiou(tiou: Sequence[float]) -> None:
    """Refuse thresholds that no metric is defined for.

    :param tiou: thresholds.
    :raises ValueError: if there is none or one is outside (0, 1].
    """
    if not tiou or any(not 0 < level <= 1 for level in tiou):
        raise ValueError(f"expected tiou of at least one number in (0, 1], got {tiou}")


class Clips(NamedTuple):
    """Predicted windows of some clips and those of the ground truth.

    :param segments: predicted windows, ``(B, M, 2)``.
    :param scores: their scores, ``(B, M)``.
    :param labels: their labels, ``(B, M)``.
    :param target_segments: ground-truth windows, ``(B, N, 2)``.
    :param target_labels: their labels, ``(B, N)``.
    """

    segments: Tensor
    scores: Tensor
    labels: Tensor
    target_segments: Tensor
    target_labels: Tensor


def check_shapes(clips: Clips) -> None:
    """Refuse windows, scores and labels that do not belong together.

    :param clips: what a caller gave.
    :raises ValueError: if a shape or a device is another one.
    """
    target_labels = clips.target_labels
    per_prediction = (len(target_labels), *clips.labels.shape[1:])
    expected = {
        "segments": (clips.segments, (*per_prediction, 2)),
        "scores": (clips.scores, per_prediction),
        "labels": (clips.labels, per_prediction),
        "target_segments": (clips.target_segments, (*target_labels.shape, 2)),
    }
    for name, (value, shape) in expected.items():
        if tuple(value.shape) != shape:
            raise ValueError(
                f"expected {name} of shape {shape} but got {tuple(value.shape)}"
            )
        if value.device != target_labels.device:
            raise ValueError(
                f"expected {name} on the device of target_labels, "
                f"{target_labels.device}, but got {value.device}"
            )
