"""Batches of visual queries: windows of frames, and an object shown as a crop."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import ClassVar

from torch import Tensor

from avalanche_vilco.core.batch import NARRATION_PADDING, TensorBatch, collate_as


class VisualQueryBatch(TensorBatch):
    """Windows of T frames and the object asked for: what the model may see.

    Pictures are S x S pixels, or the embeddings (C, h, w) that a frozen backbone makes
    of them; a model tells by dtype, uint8 being pixels.
    """

    padding: ClassVar[Mapping[str, float]] = {"frames": 0, "valid": False, "crop": 0}
    optional: ClassVar[Mapping[str, float]] = NARRATION_PADDING
    instead = "model=vilco_vq_tiny(), evaluator=track_evaluator()"

    frames: Tensor
    """(B, T, 3, S, S) uint8 RGB, padded to squares with black; or (B, T, C, h, w)
    float16 embeddings. Zero behind a clip's end."""
    valid: Tensor
    """(B, T) bool, True on frames of the clip, which come first."""
    crop: Tensor
    """(B, 3, S, S) uint8 RGB of the object, or (B, C, h, w) float16 embeddings."""
    narrations: Tensor | None
    """(B, 1, C) float32 embedding of the object's title, for self-supervision; None,
    as in evaluation: no model looks at it to localise."""
    narrated: Tensor | None
    """(B, 1, 2) float32 first and last frame of the window, 0 to T - 1, that the title
    is about."""
    sentences: Tensor | None
    """(B, 1) int64, equal where the title is, -1 where there is none."""


class TrackWindowTargets(TensorBatch):
    """Ground truth of windows, and the geometry to read outputs with.

    Decoding uses ``valid``, ``searched``, ``frame_numbers``, ``square``, ``query`` and
    ``query_frame`` alone; the criterion and the metrics use the rest.
    """

    padding: ClassVar[Mapping[str, float]] = {
        "valid": False,
        "searched": False,
        "boxes": 0.0,
        "present": False,
        "frame_numbers": -1,
        "square": 0.0,
        "track_boxes": 0.0,
        "track_frames": -1,
        "query": -1,
        "query_frame": 0,
        "sample": -1,
    }
    instead = "criterion=VisualQueryLoss(), evaluator=track_evaluator()"

    valid: Tensor
    """(B, T) bool, as in :class:`VisualQueryBatch`."""
    searched: Tensor
    """(B, T) bool, valid frames before the query frame."""
    boxes: Tensor
    """(B, T, 4) float32 (x1, y1, x2, y2) as shares of the padded square, in [0, 1];
    zero where the answer is not in the frame."""
    present: Tensor
    """(B, T) bool, frames that the answer is in."""
    frame_numbers: Tensor
    """(B, T) int64 frames of the clip at its annotations' rate, -1 where not valid."""
    square: Tensor
    """(B, 3) float64 side, left and top of the padded square in pixels of the
    annotations: x = share * side - left, y = share * side - top. Augmentation of a
    training window does not show in it."""
    track_boxes: Tensor
    """(B, N, 4) float64 pixels of the annotations, the whole response track."""
    track_frames: Tensor
    """(B, N) int64 frames of the clip, -1 for padding."""
    query: Tensor
    """(B,) int64 number of the query among the dataset's ``queries``."""
    query_frame: Tensor
    """(B,) int64, frames before it are searched."""
    sample: Tensor
    """(B,) int64, position of the sample in its stream's dataset."""


collate_visual = partial(collate_as, VisualQueryBatch, TrackWindowTargets)
"""Mini-batch of windows: ``[VisualQueryBatch, TrackWindowTargets, *attributes]``."""
