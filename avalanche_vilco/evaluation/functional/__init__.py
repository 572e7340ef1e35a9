"""Metrics as pure functions on tensors."""

from avalanche_vilco.evaluation.functional.detection import (
    COCO_TIOU,
    EGO4D_TIOU,
    DetectionAP,
    detection_ap,
    detection_hits,
    detection_map,
    pooled_ap,
)
from avalanche_vilco.evaluation.functional.recall import (
    GroupedRecall,
    grouped_recall,
    moment_recall,
    recall_hits,
    top1_tiou,
)
from avalanche_vilco.evaluation.functional.references import (
    Reference,
    counted_labels,
)
from avalanche_vilco.evaluation.functional.visual_query import (
    Tracks,
    VisualQueryHits,
    VisualQueryScores,
    pooled_visual_query_scores,
    visual_query_hits,
    visual_query_scores,
)

__all__ = [
    "COCO_TIOU",
    "DetectionAP",
    "EGO4D_TIOU",
    "GroupedRecall",
    "Reference",
    "Tracks",
    "VisualQueryHits",
    "VisualQueryScores",
    "counted_labels",
    "detection_ap",
    "detection_hits",
    "detection_map",
    "grouped_recall",
    "moment_recall",
    "pooled_ap",
    "pooled_visual_query_scores",
    "recall_hits",
    "top1_tiou",
    "visual_query_hits",
    "visual_query_scores",
]
