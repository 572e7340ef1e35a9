"""Windows that answer: of a run, and of a file as tensors with their recall."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from avalanche_vilco.benchmarks.submissions import Note, Row, Score, score_row
from avalanche_vilco.evaluation.functional import (
    counted_labels,
    grouped_recall,
    moment_recall,
    recall_hits,
)

Window = tuple[float, float, float, int]
"""Start, end, score, label."""
Budget = Literal["per_gt", "fixed"]


class MomentSubmission(NamedTuple):
    """Arguments of :func:`~avalanche_vilco.evaluation.functional.detection_ap`."""

    segments: Tensor
    """Predicted windows in seconds, (B, M, 2)."""
    scores: Tensor
    """Their scores, float64 (B, M)."""
    labels: Tensor
    """Their labels, (B, M), -1 marks padding."""
    target_segments: Tensor
    """Ground-truth windows in seconds, (B, N, 2)."""
    target_labels: Tensor
    """Their labels, (B, N), -1 marks padding."""

    @property
    def n_predictions(self) -> int:
        """Predicted windows in all rows."""
        return int((self.labels >= 0).sum())

    def to(self, device: str) -> MomentSubmission:
        """The same on a device."""
        return MomentSubmission(*(tensor.to(device) for tensor in self))


def arranged(
    predictions: list[list[Window]], targets: list[list[Window]]
) -> MomentSubmission:
    """Rows of windows as tensors.

    :param predictions: windows of each row.
    :param targets: ground truth of each row.
    :return: padded tensors.
    """
    segments, scores, labels = _padded(predictions)
    target_segments, _, target_labels = _padded(targets)
    return MomentSubmission(segments, scores, labels, target_segments, target_labels)


def _padded(rows: list[list[Window]]) -> tuple[Tensor, Tensor, Tensor]:
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    width = int(lengths.max(initial=0))
    table = np.tile((0.0, 0.0, -math.inf, -1.0), (len(rows), width, 1))
    numbers = chain.from_iterable(chain.from_iterable(rows))
    windows = np.fromiter(numbers, np.float64, 4 * int(lengths.sum())).reshape(-1, 4)
    table[np.arange(width) < lengths[:, None]] = windows
    segments, scores, labels = torch.from_numpy(table).split([2, 1, 1], dim=2)
    return segments, scores[..., 0], labels[..., 0].long()


def improper(rows: Iterable[Sequence[Window]], what: str) -> Note:
    """Note of windows that are reversed or have no length.

    :param rows: windows of each row.
    :param what: whose they are.
    """
    reason = "windows that are reversed or without length, never a hit by default"
    count = sum(window[1] <= window[0] for row in rows for window in row)
    return Note(f"{what} {reason}", count)


@dataclass(frozen=True)
class RecallGrid:
    """Which recalls are asked for."""

    k: tuple[int, ...]
    tiou: tuple[float, ...]
    budget: Budget
    """Whether k counts per ground-truth window (``Recall@kx``) or is fixed."""

    def replaced(
        self, k: Sequence[int] | None, tiou: Sequence[float] | None
    ) -> RecallGrid:
        """The same with what a caller asks for instead, if anything."""
        return RecallGrid(tuple(k or self.k), tuple(tiou or self.tiou), self.budget)

    def rows(self, table: Sequence[Sequence[float]]) -> dict[str, Row]:
        """Recall by name and threshold, of a table (k, tIoU)."""
        suffix = "x" if self.budget == "per_gt" else ""
        return {
            f"Recall@{k}{suffix}": score_row(self.tiou, values)
            for k, values in zip(self.k, table, strict=True)
        }


def add_recall(result: Score, moments: MomentSubmission, grid: RecallGrid) -> None:
    """Add the recalls of a grid to the scores.

    :param result: gets a row for each k.
    :param moments: rows of windows.
    :param grid: what is asked for.
    """
    options: Any = vars(grid) | {"reference": result.reference}
    result.scores.update(grid.rows(moment_recall(*moments, **options).tolist()))


def recall_by_group(
    result: Score,
    moments: MomentSubmission,
    grid: RecallGrid,
    groups: Tensor | None = None,
) -> dict[int, dict[str, Any]]:
    """Number of windows ("windows") and recalls of each group.

    :param result: says which evaluator is reproduced.
    :param moments: rows of windows.
    :param grid: what is asked for.
    :param groups: number of each target's group, (B, N); None: its label.
    """
    options: Any = vars(grid) | {"reference": result.reference}
    if groups is None:
        groups = counted_labels(
            moments.target_segments, moments.target_labels, reference=result.reference
        )
    found = grouped_recall(recall_hits(*moments, **options), groups)
    columns = (column.tolist() for column in (found.groups, found.n_windows))
    return {
        number: {"windows": n, **grid.rows(table)}
        for number, n, table in zip(*columns, found.recall.tolist(), strict=True)
    }


class WindowAnswers:
    """Ranked windows of each sample, by its position.

    :param n_samples: of the stream.
    """

    def __init__(self, n_samples: int) -> None:
        self._windows: list[list[Window]] = [[] for _ in range(n_samples)]

    def add(self, predictions: Any, targets: Any) -> None:
        """Take a mini-batch."""
        rows = zip(
            targets.sample.tolist(),
            predictions.segments_sec.tolist(),
            predictions.scores.tolist(),
            predictions.labels.tolist(),
            strict=True,
        )
        for sample, segments, scores, labels in rows:
            self._windows[sample] = [
                (*segment, score, label)
                for segment, score, label in zip(segments, scores, labels, strict=True)
                if label >= 0
            ]

    def answers(self) -> list[list[Window]]:
        """Windows of each sample, best first."""
        return self._windows
