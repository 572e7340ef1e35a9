from avalanche_vilco.evaluation.functional.detection import (
    detection_ap as detection_ap,
)
from avalanche_vilco.evaluation.functional.detection import (
    detection_hits as detection_hits,
)
from avalanche_vilco.evaluation.functional.detection import (
    detection_map as detection_map,
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
from avalanche_vilco.evaluation.functional.visual_query import (
    Tracks as Tracks,
)
from avalanche_vilco.evaluation.functional.visual_query import (
    visual_query_hits as visual_query_hits,
)
from avalanche_vilco.evaluation.functional.visual_query import (
    visual_query_scores as visual_query_scores,
)
from avalanche_vilco.evaluation.matrix import (
    TaskMatrix as TaskMatrix,
)
from avalanche_vilco.evaluation.matrix import (
    matrices_csv as matrices_csv,
)
from avalanche_vilco.evaluation.metrics.continual import (
    TaskMatrixMetric as TaskMatrixMetric,
)
from avalanche_vilco.evaluation.metrics.continual import (
    average_performance_metrics as average_performance_metrics,
)
from avalanche_vilco.evaluation.metrics.continual import (
    backward_forgetting_metrics as backward_forgetting_metrics,
)
from avalanche_vilco.evaluation.metrics.continual import (
    task_matrix_metrics as task_matrix_metrics,
)
from avalanche_vilco.evaluation.metrics.detection import (
    MomentDetectionMAP as MomentDetectionMAP,
)
from avalanche_vilco.evaluation.metrics.detection import (
    detection_map_metrics as detection_map_metrics,
)
from avalanche_vilco.evaluation.metrics.recall import (
    MomentRecall as MomentRecall,
)
from avalanche_vilco.evaluation.metrics.recall import (
    recall_metrics as recall_metrics,
)
from avalanche_vilco.evaluation.metrics.response_track import (
    ResponseTrackMetrics as ResponseTrackMetrics,
)
from avalanche_vilco.evaluation.metrics.response_track import (
    response_track_metrics as response_track_metrics,
)
from avalanche_vilco.evaluation.metrics.visual_query import (
    VisualQueryMetrics as VisualQueryMetrics,
)
from avalanche_vilco.evaluation.metrics.visual_query import (
    visual_query_metrics as visual_query_metrics,
)
from avalanche_vilco.evaluation.seeds import (
    SeedSummary as SeedSummary,
)
from avalanche_vilco.evaluation.seeds import (
    summarise_seeds as summarise_seeds,
)
