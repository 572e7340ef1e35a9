"""From a score per frame to the run of frames that answers a visual query.

A model scores the best box of each frame that is searched. The answer is the last
appearance of what is asked for: scores are smoothed, their last high peak is chosen and
extended to both sides while scores stay near it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from scipy.signal import find_peaks
from torch import Tensor
from torch.nn import functional as F

Edges = Literal["mirror", "zero"]

_PIECE = 1 << 18  # scores that are smoothed at once: some 10 MB a copy


@dataclass(frozen=True, kw_only=True)
class PeakRule:
    """How the frames of an answer are chosen.

    Probabilities are smoothed by a running median. Of the peaks above ``peak_share`` of
    the highest one the last is chosen, and extended to both sides while probabilities
    are at least ``extent_share`` of its own. Both shares were chosen with a trained
    model on 198 queries of another generated set: with the public 0.8 and 0.7 an
    earlier appearance, often the one that the crop is from, outbids the last one.

    :param median_frames: width of the median, odd; 1 does not smooth.
    :param edges: what the median sees beyond the searched frames. ``"zero"`` lowers the
        first and last ones; ``"mirror"`` repeats them in reverse, so that an answer
        that is cut by the query frame is as long as its frames, and does not smooth
        clips shorter than the median.
    :param spike_share: if no smoothed probability is above this share of the highest
        one before smoothing, the highest is too short for the median, nothing else
        comes near, and the query is answered without smoothing; 0 never does.
    :param peak_share: share of the highest peak, in [0, 1], that a peak has to exceed.
        Peaks as high as the highest one always count.
    :param extent_share: share of the chosen peak, in [0, 1], that its frames reach.
    :param has_outer_peaks: True lets a peak, and an answer, include the first and the
        last searched frame. False looks for peaks between them; without one, the
        higher of the two is the peak (the last if equal), and extending leaves out
        both.
    :raises ValueError: an option is out of range.
    """

    median_frames: int = 5
    edges: Edges = "mirror"
    spike_share: float = 0.1
    peak_share: float = 0.5
    extent_share: float = 0.5
    has_outer_peaks: bool = True

    def __post_init__(self) -> None:
        if self.median_frames < 1 or self.median_frames % 2 == 0:
            raise ValueError(
                f"expected median_frames odd and >= 1 but got {self.median_frames}"
            )
        if self.edges not in ("mirror", "zero"):
            raise ValueError(f"expected edges 'mirror' or 'zero' but got {self.edges}")
        for name in ("spike_share", "peak_share", "extent_share"):
            share = getattr(self, name)
            if not 0 <= share <= 1:
                raise ValueError(f"expected {name} in [0, 1] but got {share}")

    @classmethod
    def reference(cls) -> PeakRule:
        """The rule of VQLoC's and ViLCo's public code.

        It loses answers of one or two frames, never reaches frame 0 or the last
        searched frame from a peak between them, and gives most of the clip for such a
        spike among equal scores.
        """
        return cls(
            edges="zero",
            spike_share=0.0,
            peak_share=0.8,
            extent_share=0.7,
            has_outer_peaks=False,
        )


class ResponseTracks(NamedTuple):
    """Frames that answer queries.

    :param first: first frame, ``(Q,)`` int64, 0 where there is no answer.
    :param last: last frame, ``(Q,)`` int64, -1 where there is no answer.
    :param scores: smoothed probability of the chosen peak, ``(Q,)`` float64 in [0, 1],
        0 where there is no answer.
    """

    first: Tensor
    last: Tensor
    scores: Tensor


def response_track(
    logits: Tensor, *, rule: PeakRule | None = None
) -> tuple[int, int, float]:
    """Frames that answer one query; see :func:`response_tracks`.

    >>> response_track(torch.tensor([-9.0, -9.0, 2.0, 3.0, 2.0, -9.0, -9.0]))[:2]
    (2, 4)

    :param logits: ``(F,)`` score of each searched frame, before the sigmoid.
    :param rule: how frames are chosen; None for ``PeakRule()``.
    :return: first and last frame, and the peak's probability; ``(0, -1, 0.0)`` if no
        frame has a score.
    :raises ValueError: ``logits`` has another shape.
    """
    if logits.ndim != 1:
        raise ValueError(f"expected logits of shape (F,) but got {tuple(logits.shape)}")
    n_frames = torch.tensor([len(logits)], device=logits.device)
    first, last, scores = response_tracks(logits[None], n_frames, rule=rule)
    return int(first), int(last), float(scores)


def response_tracks(
    logits: Tensor, n_frames: Tensor, *, rule: PeakRule | None = None
) -> ResponseTracks:
    """Frames that answer queries, for all of them at once.

    Frames without a finite score are never part of an answer, which ends before
    them. All but the search for peaks runs on the scores' device.

    :param logits: ``(Q, F)`` scores before the sigmoid, by frame; -inf or NaN where a
        frame was not scored.
    :param n_frames: ``(Q,)`` searched frames of each query, at most F; what lies behind
        them does not count.
    :param rule: how frames are chosen; None for ``PeakRule()``.
    :return: an answer for each query, ``(Q,)``.
    :raises ValueError: shapes disagree.
    """
    if logits.ndim != 2 or n_frames.shape != logits.shape[:1]:
        raise ValueError(
            "expected logits (Q, F) and n_frames (Q,) but got "
            f"{tuple(logits.shape)} and {tuple(n_frames.shape)}"
        )
    rule = rule or PeakRule()
    n_rows = max(1, _PIECE // max(1, logits.shape[1]))
    pieces = zip(logits.split(n_rows), n_frames.split(n_rows), strict=True)
    parts = [_tracks(piece, n, rule) for piece, n in pieces]
    return ResponseTracks(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _tracks(logits: Tensor, n_frames: Tensor, rule: PeakRule) -> ResponseTracks:
    logits = F.pad(logits, (0, 1))
    frames = torch.arange(logits.shape[1], device=logits.device)
    is_searched = frames < n_frames[:, None]
    is_scored = is_searched & logits.isfinite()
    probabilities = torch.where(is_scored, logits.double().sigmoid(), 0)
    smoothed = _smoothed(probabilities, n_frames, rule) * is_scored
    peak = _last_peak(smoothed, is_searched, is_scored, rule)
    height = smoothed.gather(1, peak[:, None])
    reached = is_scored & (smoothed >= rule.extent_share * height)
    before = torch.where(~reached & (frames < peak[:, None]), frames, -1).amax(1)
    after = torch.where(~reached & (frames > peak[:, None]), frames, len(frames))
    first, last = before + 1, after.amin(1) - 1
    if not rule.has_outer_peaks:
        end = n_frames - 1
        first = torch.where(peak > 0, first.clamp(min=1), first)
        last = torch.where(peak < end, torch.minimum(last, end - 1), last)
    has_answer = is_scored.any(1)
    return ResponseTracks(
        torch.where(has_answer, first, 0),
        torch.where(has_answer, last, -1),
        torch.where(has_answer, height[:, 0], 0),
    )


def _smoothed(probabilities: Tensor, n_frames: Tensor, rule: PeakRule) -> Tensor:
    half = rule.median_frames // 2
    if half == 0:
        return probabilities
    if rule.edges == "mirror":
        windows = _mirrored(probabilities, n_frames, half)
    else:
        windows = F.pad(probabilities, (half, half))
    smoothed = windows.unfold(1, rule.median_frames, 1).median(dim=2).values
    highest = probabilities.amax(1, keepdim=True)
    is_raw = smoothed.amax(1, keepdim=True) <= rule.spike_share * highest
    is_raw &= rule.spike_share > 0
    if rule.edges == "mirror":
        is_raw |= n_frames[:, None] < rule.median_frames
    return torch.where(is_raw, probabilities, smoothed)


def _mirrored(rows: Tensor, n_frames: Tensor, half: int) -> Tensor:
    """Rows with ``half`` more frames at both sides, those next to the row's ends."""
    frames = torch.arange(-half, rows.shape[1] + half, device=rows.device)
    n = n_frames[:, None]
    source = torch.where(frames < 0, -1 - frames, frames)
    source = torch.where(source >= n, 2 * n - 1 - source, source)
    return rows.gather(1, torch.minimum(source.clamp(min=0), (n - 1).clamp(min=0)))


def _last_peak(
    smoothed: Tensor, is_searched: Tensor, is_scored: Tensor, rule: PeakRule
) -> Tensor:
    """Frame of the chosen peak, ``(Q,)``; any where no frame is scored."""
    frames = torch.arange(smoothed.shape[1], device=smoothed.device)
    is_peak = _all_peaks(smoothed, is_searched, rule) & is_scored
    is_open = is_scored
    if not rule.has_outer_peaks:
        end = is_searched.sum(1, keepdim=True) - 1
        is_open = is_scored & ((frames == 0) | (frames == end))
    is_peak = torch.where(is_peak.any(1, keepdim=True), is_peak, is_open)
    highest = torch.where(is_peak, smoothed, -1).amax(1, keepdim=True)
    is_high = (smoothed > rule.peak_share * highest) | (smoothed == highest)
    return torch.where(is_peak & is_high, frames, 0).amax(1)


def _all_peaks(smoothed: Tensor, is_searched: Tensor, rule: PeakRule) -> Tensor:
    """True at peaks and in the middle of level ones, ``(Q, F)``.

    Rows end with a frame that is not searched, so that all of them are one signal.
    """
    wall = -1.0 if rule.has_outer_peaks else math.inf
    signal = torch.where(is_searched, smoothed, wall).flatten()
    places, _ = find_peaks(F.pad(signal, (1, 0), value=wall).cpu().numpy())
    peaks = torch.zeros_like(signal, dtype=torch.bool)
    peaks[torch.from_numpy(places - 1).to(peaks.device)] = True
    return peaks.view_as(smoothed) & is_searched
