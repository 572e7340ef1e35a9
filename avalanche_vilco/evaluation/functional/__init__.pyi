from avalanche_vilco.evaluation.functional.detection import (
    COCO_TIOU as COCO_TIOU,
)
from avalanche_vilco.evaluation.functional.detection import (
    EGO4D_TIOU as EGO4D_TIOU,
)
from avalanche_vilco.evaluation.functional.detection import (
    DetectionAP as DetectionAP,
)
from avalanche_vilco.evaluation.functional.detection import (
    detection_ap as detection_ap,
)
from avalanche_vilco.evaluation.functional.detection import (
    detection_hits as detection_hits,
)
from avalanche_vilco.evaluation.functional.detection import (
    detection_map as detection_map,
)
from avalanche_vilco.evaluation.functional.detection import (
    pooled_ap as pooled_ap,
)
from avalanche_vilco.evaluation.functional.recall import (
    GroupedRecall as GroupedRecall,
)
from avalanche_vilco.evaluation.functional.recall import (
    grouped_recall as grouped_recall,
)
from avalanche_vilco.evaluation.functional.recall import (
    moment_recall as moment_recall,
)
from avalanche_vilco.evaluation.functional.recall import (
    recall_hits as recall_hits,
)
from avalanche_vilco.evaluation.functional.recall import (
    top1_tiou as top1_tiou,
)
from avalanche_vilco.evaluation.functional.references import (
    Reference as Reference,
)
from avalanche_vilco.evaluation.functional.references import (
    counted_labels as counted_labels,
)
from avalanche_vilco.evaluation.functional.visual_query import (
    Tracks as Tracks,
)
from avalanche_vilco.evaluation.functional.visual_query import (
    VisualQueryHits as VisualQueryHits,
)
from avalanche_vilco.evaluation.functional.visual_query import (
    VisualQueryScores as VisualQueryScores,
)
from avalanche_vilco.evaluation.functional.visual_query import (
    pooled_visual_query_scores as pooled_visual_query_scores,
)
from avalanche_vilco.evaluation.functional.visual_query import (
    visual_query_hits as visual_query_hits,
)
from avalanche_vilco.evaluation.functional.visual_query import (
    visual_query_scores as visual_query_scores,
)
