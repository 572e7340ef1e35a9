"""Pure tensor functions: segments, boxes, non-maximum suppression, the timeline."""

from avalanche_vilco.ops.boxes import box_area, box_intersection, box_iou
from avalanche_vilco.ops.nms import NMSRule, batched_nms, padded_nms
from avalanche_vilco.ops.segments import pairwise_tiou, tiou
from avalanche_vilco.ops.timeline import grid_to_seconds, seconds_to_grid

__all__ = [
    "NMSRule",
    "batched_nms",
    "box_area",
    "box_intersection",
    "box_iou",
    "grid_to_seconds",
    "padded_nms",
    "pairwise_tiou",
    "seconds_to_grid",
    "tiou",
]
