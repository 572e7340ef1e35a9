"""Features of whole videos, cut to the clips that were annotated."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from torch import Tensor

from avalanche_vilco.core.errors import FeatureError
from avalanche_vilco.data.features.store import (
    TOLERANCE_STEPS,
    FeatureStore,
    check_window,
    faults_of,
)
from avalanche_vilco.data.features.wrapped import WrappedFeatures
from avalanche_vilco.ops.timeline import seconds_to_grid


class ParentCut(NamedTuple):
    """Which part of a video a clip is."""

    video_id: str
    """Key of the video in the store of videos."""
    start_sec: float
    """Start of the clip, seconds of the video (``parent_start_sec``)."""
    end_sec: float
    """End of the clip, seconds of the video (``parent_end_sec``)."""
    features_per_sec: float
    """Steps a second, the annotation's ``fps``."""

    @property
    def first(self) -> int:
        """The video's step that is nearest to the clip's first."""
        return self._step(self.start_sec)

    @property
    def stop(self) -> int:
        """The video's step after the clip's last."""
        return self._step(self.end_sec)

    def _step(self, seconds: float) -> int:
        # A window of 0 frames: step edges are counted here, not their middles.
        return round(seconds_to_grid(seconds, self.features_per_sec, window_frames=0.0))


class ParentFeatures(WrappedFeatures):
    """Clips cut from the features of their parent videos.

    Step g of a clip is step ``first + g`` of its video, ``first`` the nearest to
    ``start_sec * features_per_sec``: its time is right to half a step, and the clip
    has as many steps as its seconds times the rate, or one more or less.

    :param videos: store whose ids are video uids, in any format.
    :param cuts: clip uid -> :class:`ParentCut` or a tuple of its fields.
    :raises ValueError: a cut is not 0 <= start < end, or its rate not positive.
    """

    def __init__(
        self, videos: FeatureStore, cuts: Mapping[str, tuple[str, float, float, float]]
    ) -> None:
        super().__init__(videos)
        self.cuts = {clip_id: ParentCut(*cut) for clip_id, cut in cuts.items()}
        for clip_id, cut in self.cuts.items():
            numbers = (cut.start_sec, cut.end_sec, cut.features_per_sec)
            is_sound = all(map(math.isfinite, numbers)) and cut.features_per_sec > 0
            if not (is_sound and 0 <= cut.start_sec < cut.end_sec):
                raise ValueError(
                    f"clip {clip_id}: expected 0 <= start_sec < end_sec and a positive "
                    f"rate but got {cut}"
                )

    def shape(self, clip_id: str) -> tuple[int, int]:
        """Steps and channels of a clip, (T, C)."""
        cut = self._cut(clip_id)
        steps, channels = self.store.shape(cut.video_id)
        if cut.first >= steps:
            problem = f"starts at step {cut.first} of {steps}"
            if channels > cut.first:
                problem += f"; is it transposed? Its shape is {(steps, channels)}"
            raise _fault(f"{self._place(clip_id)}: {problem}")
        return min(cut.stop, steps) - cut.first, channels

    def read(self, clip_id: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Features of a clip, (T, C) float32, or the window of it."""
        check_window(start, stop)
        cut = self._cut(clip_id)
        end = cut.stop if stop is None else min(cut.first + stop, cut.stop)
        first = min(cut.first + start, end)
        features = self.store.read(cut.video_id, first, end)
        if not len(features) and end > first == cut.first:
            raise _fault(f"{self._place(clip_id)}: has no step {first}")
        return features

    def missing(self, clip_ids: Iterable[str]) -> list[str]:
        """Clips without a cut or whose video is missing."""
        asked = list(clip_ids)
        videos = {self.cuts[i].video_id for i in asked if i in self.cuts}
        missing = set(self.store.missing(sorted(videos)))
        return [
            i for i in asked if i not in self.cuts or self.cuts[i].video_id in missing
        ]

    def preflight(
        self, expected_steps: Mapping[str, float], *, tolerance: float = TOLERANCE_STEPS
    ) -> None:
        """Check videos and cuts; see :meth:`FeatureStore.preflight`."""
        faults: list[str] = []
        lengths: dict[str, int] = {}
        for clip_id, expected in expected_steps.items():
            try:
                steps, _ = self.shape(clip_id)
                video_id = self.cuts[clip_id].video_id
                lengths[video_id], _ = self.store.shape(video_id)
            except FeatureError as error:
                faults += error.faults
                continue
            if abs(steps - expected) > tolerance:
                faults.append(
                    f"{clip_id}: {self.locate(clip_id)}: expected {expected:.1f} steps "
                    f"but the video's {lengths[video_id]} leave {steps} "
                    f"(length_tolerance={tolerance:g})"
                )
        # Lengths are those found: what remains to be checked is the common width.
        faults += faults_of(self.store, lengths, tolerance)
        if faults:
            raise _fault(*dict.fromkeys(faults))

    def time_scale(self, clip_id: str) -> float:
        """1.0: clips are cut at the rate of their video."""
        return 1.0

    def locate(self, clip_id: str) -> str:
        """The video's place with the steps of the clip."""
        cut = self._cut(clip_id)
        return f"{self.store.locate(cut.video_id)}[{cut.first}:{cut.stop}]"

    def _cut(self, clip_id: str) -> ParentCut:
        if clip_id not in self.cuts:
            raise _fault(f"{clip_id}: no record says which part of which video it is")
        cut = self.cuts[clip_id]
        if self.store.time_scale(cut.video_id) != 1.0:
            raise _fault(
                f"{clip_id}: its video is resized; cut first, then resize clips"
            )
        return cut

    def _place(self, clip_id: str) -> str:
        return f"{clip_id}: {self.store.locate(self.cuts[clip_id].video_id)}"


def _fault(*faults: str) -> FeatureError:
    hint = (
        "extract or copy these files again, or compare parent_start_sec, "
        "parent_end_sec and fps of the annotation with the video"
    )
    return FeatureError("parent videos", faults, hint)
