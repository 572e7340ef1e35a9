"""Moment recall: a torchmetrics state and two plugins for Avalanche.

Values are named ``Recall@1x_tIoU0.5`` where k is counted per ground-truth window and
``Recall@1_tIoU0.5`` where it is fixed; ``_tIoUmean`` is the mean over the thresholds.
"""

from collections.abc import Sequence
from typing import Any

import torch
from avalanche.evaluation import PluginMetric
from torch import Tensor

from avalanche_vilco.evaluation.functional.recall import (
    Budget,
    check_recall_options,
    recall_hits,
)
from avalanche_vilco.evaluation.functional.references import Reference, counted_labels
from avalanche_vilco.evaluation.metrics.emission import value_plugins
from avalanche_vilco.evaluation.metrics.pooled import PooledMetric
from avalanche_vilco.evaluation.metrics.strategy import LabelledWindows, ScoredWindows


class MomentRecall(PooledMetric):
    """Share of ground-truth windows found, for several k and thresholds at once.

    The states are sums of hits and of ground-truth windows on the predictions'
    device; they add up over batches and processes.

    :param k: numbers of predictions to look at.
    :param tiou: thresholds in (0, 1].
    :param budget: "per_gt" or "fixed", see
        :func:`~avalanche_vilco.evaluation.functional.recall.recall_hits`.
    :param reference: "ego4d" or "vilco" to reproduce that evaluator, None for our own
        rules.
    :param kwargs: options of ``torchmetrics.Metric``.
    :raises ValueError: if an option is out of range.
    """

    hits: Tensor
    total: Tensor

    def __init__(
        self,
        *,
        k: Sequence[int] = (1, 5),
        tiou: Sequence[float] = (0.3, 0.5),
        budget: Budget = "per_gt",
        reference: Reference | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_recall_options(k, tiou, budget, reference)
        if reference == "actionformer":
            raise ValueError(
                "expected reference 'ego4d', 'vilco' or None but got 'actionformer', "
                "whose mean over labels cannot be summed batch by batch; "
                "moment_recall(..., reference='actionformer') gives it"
            )
        self.k, self.tiou, self.budget = tuple(k), tuple(tiou), budget
        self.reference = reference
        self.set_apart(self.k, self.tiou, budget, reference)
        self.add_counts("hits", len(self.k), len(self.tiou))
        self.add_counts("total")

    def update(self, predictions: ScoredWindows, targets: LabelledWindows) -> None:
        """Count the hits of a mini-batch."""
        self.follow(predictions.scores)
        hits = recall_hits(
            predictions.segments_sec,
            predictions.scores,
            predictions.labels,
            targets.segments_sec,
            targets.labels,
            k=self.k,
            tiou=self.tiou,
            budget=self.budget,
            reference=self.reference,
        )
        counted = counted_labels(
            targets.segments_sec, targets.labels, reference=self.reference
        )
        self.hits += hits.sum(dim=(0, 1))
        self.total += (counted >= 0).sum()

    def compute(self) -> dict[str, float]:
        """Recall by name, all NaN if there was no ground truth.

        :return: floats in [0, 1].
        """
        # The mean over thresholds rides along as one more column.
        columns = torch.cat([self.hits, self.hits.sum(dim=1, keepdim=True)], dim=1)
        *counts, total = torch.cat([columns.flatten(), self.total[None]]).tolist()
        n_windows = ([total] * len(self.tiou) + [total * len(self.tiou)]) * len(self.k)
        shares = [
            n / of if of else float("nan")
            for n, of in zip(counts, n_windows, strict=True)
        ]
        return dict(zip(self.names, shares, strict=True))

    @property
    def names(self) -> list[str]:
        """Names of the values that :meth:`compute` gives."""
        times = "x" if self.budget == "per_gt" else ""
        levels = [*(f"{level:g}" for level in self.tiou), "mean"]
        return [f"Recall@{k}{times}_tIoU{level}" for k in self.k for level in levels]


def recall_metrics(
    *, experience: bool = True, stream: bool = True, **options: Any
) -> list[PluginMetric[dict[str, float]]]:
    """Plugins that log moment recall in evaluation.

    :param experience: True logs the recall on each experience.
    :param stream: True logs the recall on all evaluated experiences together.
    :param options: ``k``, ``tiou``, ``budget`` and ``reference`` of
        :class:`MomentRecall`.
    :return: plugins for ``EvaluationPlugin``.
    :raises ValueError: if an option is out of range.
    """
    return value_plugins(
        lambda: MomentRecall(**options), "Recall", experience=experience, stream=stream
    )
