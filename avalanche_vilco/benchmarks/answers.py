"""What a run answers, collected for a file."""

from __future__ import annotations

from typing import Any

Window = tuple[float, float, float, int]
"""Start and end in clip seconds, score, class index."""


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
