"""From packed outputs to ranked windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, TypedDict

import torch
from msgspec import Meta
from torch import Tensor

from avalanche_vilco.core.batch import MomentTargets, TensorBatch
from avalanche_vilco.models.output import point_grid, query_logits, regression
from avalanche_vilco.ops.nms import NMSRule, padded_nms
from avalanche_vilco.ops.timeline import grid_to_seconds


class MomentPredictions(TensorBatch):
    """Ranked windows of a batch of clips, best first."""

    padding: ClassVar = {"segments_sec": 0.0, "scores": 0.0, "labels": -1}

    segments_sec: Tensor
    """(B, M, 2) float64 clip seconds."""
    scores: Tensor
    """(B, M) float32 in [0, 1], after suppression; 0 where there is no window."""
    labels: Tensor
    """(B, M) int64 class index, -1 where there is no window."""


class DecodingOptions(TypedDict, total=False):
    """What a model's builder passes on to :class:`MomentDecoder`, with the ranges."""

    score_threshold: Annotated[float, Meta(ge=0, lt=1)]
    max_candidates: Annotated[int, Meta(ge=1)]
    sigma: Annotated[float, Meta(gt=0)]
    min_score: Annotated[float, Meta(ge=0)]
    max_windows: Annotated[int, Meta(ge=1)]


@dataclass(frozen=True, kw_only=True)
class MomentDecoder:
    """Scores, windows and suppression, for a whole batch on its device.

    Candidates are the best (query, point) pairs of a clip; windows are clamped to
    the clip; Gaussian soft-NMS within each query gives the final ranking over all
    queries. Equal scores rank by the score before suppression, then by class index,
    then from fine to coarse points. Where an output is not finite there is no window.

    :param score_threshold: candidates score above it, in [0, 1).
    :param max_candidates: candidates of a clip before suppression.
    :param sigma: width of the Gaussian of the suppression's rule, whose own default is
        another one (0.99: what the public code uses).
    :param min_score: windows that decay below it are dropped.
    :param max_windows: windows of a clip at most.
    """

    score_threshold: float = 1e-3
    max_candidates: int = 1000
    sigma: float = 0.99
    min_score: float = 1e-4
    max_windows: int = 200

    @torch.no_grad()
    def __call__(self, output: Tensor, targets: MomentTargets) -> MomentPredictions:
        """Decode.

        :param output: (B, K + 2, P).
        :param targets: geometry only: valid steps, durations, feature rates.
        """
        output = output.float()
        scores, labels, points = self._candidates(output, targets)
        windows = _windows_sec(output, points, targets)
        real = scores > self.score_threshold
        real &= windows[..., 1] > windows[..., 0]
        scores = torch.where(real, scores, 0.0)
        rule = NMSRule(
            sigma=self.sigma, min_score=self.min_score, max_segments=self.max_windows
        )
        kept, final = padded_nms(windows, scores, labels, rule)
        return _gather(windows, labels, kept, final)

    def _candidates(
        self, output: Tensor, targets: MomentTargets
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(B, N) scores, class indices and points of the best pairs."""
        n_points = output.shape[-1]
        grid = point_grid(n_points, targets.valid.shape[1], output.device)
        logits = query_logits(output)
        usable = grid.valid(targets.valid) & regression(output).isfinite().all(1)
        # (B, K, P) -> (B, N)
        usable = usable[:, None] & logits.isfinite()
        scores = torch.where(usable, logits.sigmoid(), 0.0)
        best, index = _stable_topk(scores.flatten(1), self.max_candidates)
        return best, index // n_points, index % n_points


def _stable_topk(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best float32 scores >= 0 of each row and their places, (B, k) each.

    Of equal ones the lower place comes first, where ``topk`` promises no order and a
    sort takes ten times as long.
    """
    n = scores.shape[1]
    # Bits of floats >= 0 order as the floats do; the place makes every key unique.
    bits = scores.contiguous().view(torch.int32).long() << 32
    keys = bits | torch.arange(n - 1, -1, -1, device=scores.device)
    index = n - 1 - (keys.topk(min(k, n), dim=1).values & 0xFFFFFFFF)
    return scores.gather(1, index), index


def _windows_sec(output: Tensor, points: Tensor, targets: MomentTargets) -> Tensor:
    """(B, N, 2) float64 windows at the given points, clamped to the clip."""
    grid = point_grid(output.shape[-1], targets.valid.shape[1], output.device)
    both = points[:, None].expand(-1, 2, -1)
    offsets = regression(output).gather(2, both).double()
    strides = grid.strides[points].double()
    steps = grid.steps[points].double()
    ends = torch.stack(
        [steps - offsets[:, 0] * strides, steps + offsets[:, 1] * strides], dim=-1
    )
    seconds = grid_to_seconds(ends, targets.features_per_sec[:, None, None])
    longest = targets.duration_sec[:, None, None]
    return torch.minimum(seconds.clamp(min=0), longest)


def _gather(
    windows: Tensor, labels: Tensor, kept: Tensor, scores: Tensor
) -> MomentPredictions:
    filled = kept >= 0
    if not windows.shape[1]:
        windows = windows.new_zeros(len(windows), 1, 2)
        labels = labels.new_zeros(len(labels), 1)
    index = kept.clamp(min=0)
    chosen = windows.gather(1, index[..., None].expand(-1, -1, 2))
    return MomentPredictions(
        segments_sec=torch.where(filled[..., None], chosen, 0.0),
        scores=torch.where(filled, scores, 0.0),
        labels=torch.where(filled, labels.gather(1, index), -1),
    )
