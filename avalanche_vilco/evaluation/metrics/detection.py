"""Detection mAP: a torchmetrics state and two plugins for Avalanche.

Values are named ``mAP_tIoU0.5``; ``mAP_tIoUmean`` is the mean over the thresholds.
"""

from collections.abc import Sequence
from typing import Any

import torch
from avalanche.evaluation import PluginMetric
from torch import Tensor

from avalanche_vilco.evaluation.functional.checks import check_tiou
from avalanche_vilco.evaluation.functional.detection import (
    EGO4D_TIOU,
    detection_hits,
    pooled_ap,
)
from avalanche_vilco.evaluation.functional.references import (
    Reference,
    check_reference,
    counted_labels,
)
from avalanche_vilco.evaluation.metrics.emission import value_plugins
from avalanche_vilco.evaluation.metrics.pooled import PooledMetric
from avalanche_vilco.evaluation.metrics.strategy import LabelledWindows, ScoredWindows


class MomentDetectionMAP(PooledMetric):
    """Mean average precision of scored windows, for several thresholds at once.

    Windows are matched batch by batch; of each prediction its score, label and hits
    stay on its device, of the ground truth its labels. Padding does not, see
    :meth:`~avalanche_vilco.evaluation.metrics.pooled.PooledMetric.append_rows`.

    :param tiou: thresholds in (0, 1].
    :param reference: "ego4d" or "vilco" to reproduce that evaluator, None for our own
        rules.
    :param kwargs: options of ``torchmetrics.Metric``.
    :raises ValueError: if an option is out of range.
    """

    scores: list[Tensor]
    labels: list[Tensor]
    hits: list[Tensor]
    target_labels: list[Tensor]

    def __init__(
        self,
        *,
        tiou: Sequence[float] = EGO4D_TIOU,
        reference: Reference | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_tiou(tiou)
        check_reference(reference)
        if reference == "actionformer":
            raise ValueError(
                "expected reference 'ego4d', 'vilco' or None but got 'actionformer', "
                "which renumbers the labels of a whole data set; "
                "detection_ap(..., reference='actionformer') gives it"
            )
        self.tiou, self.reference = tuple(tiou), reference
        self.set_apart(self.tiou, reference)
        self.add_rows("scores", dtype=torch.float64)
        self.add_rows("labels", dtype=torch.int64)
        self.add_rows("hits", len(self.tiou), dtype=torch.bool)
        self.add_rows("target_labels", dtype=torch.int64)

    def update(self, predictions: ScoredWindows, targets: LabelledWindows) -> None:
        """Match a mini-batch."""
        hits = detection_hits(
            predictions.segments_sec,
            predictions.scores,
            predictions.labels,
            targets.segments_sec,
            targets.labels,
            tiou=self.tiou,
            reference=self.reference,
        ).flatten(0, 1)
        counted = counted_labels(
            targets.segments_sec, targets.labels, reference=self.reference
        )
        asked = {"target_labels": counted.flatten().to(torch.long, copy=True)}
        self.append_rows(asked, mark="target_labels")
        rows = {
            "scores": predictions.scores.detach().flatten().clone(),
            "labels": predictions.labels.flatten().to(torch.long, copy=True),
            "hits": hits,
        }
        self.append_rows(rows, mark="labels")

    def compute(self) -> dict[str, float]:
        """MAP by name, all NaN if there was no ground truth.

        :return: floats in [0, 1].
        """
        ap = pooled_ap(
            self.rows("scores"),
            self.rows("labels"),
            self.rows("hits"),
            self.rows("target_labels"),
            reference=self.reference,
        )
        mean_ap = ap.mean_ap
        values = torch.cat([mean_ap, mean_ap.mean(dim=0, keepdim=True)]).tolist()
        return dict(zip(self.names, values, strict=True))

    @property
    def names(self) -> list[str]:
        """Names of the values that :meth:`compute` gives."""
        levels = [*(f"{level:g}" for level in self.tiou), "mean"]
        return [f"mAP_tIoU{level}" for level in levels]


def detection_map_metrics(
    *, experience: bool = True, stream: bool = True, **options: Any
) -> list[PluginMetric[dict[str, float]]]:
    """Plugins that log detection mAP in evaluation.

    :param experience: True logs the mAP on each experience.
    :param stream: True logs the mAP on all evaluated experiences together.
    :param options: ``tiou`` and ``reference`` of :class:`MomentDetectionMAP`.
    :return: plugins for ``EvaluationPlugin``.
    :raises ValueError: if an option is out of range.
    """
    return value_plugins(
        lambda: MomentDetectionMAP(**options),
        "DetectionMAP",
        experience=experience,
        stream=stream,
    )
