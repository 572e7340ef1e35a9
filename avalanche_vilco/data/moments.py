"""Moment-query samples: one clip with the queries asked of it."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from avalanche_vilco.core.batch import TensorSample, collate_moments
from avalanche_vilco.data.features import FeatureStore, ShuffledFeatures
from avalanche_vilco.data.text.narrations import ClipNarrations
from avalanche_vilco.ops.timeline import seconds_to_grid

Sample = tuple[dict[str, Tensor], dict[str, Tensor]]
Stream = TypeVar("Stream", bound="SampleDataset")
FLOAT32_BYTES = 4


def read_only(values: Any, dtype: Any, *shape: int) -> npt.NDArray[Any]:
    """An array that nobody can change, since experiences share it.

    :param values: numbers.
    :param dtype: of the array.
    :param shape: of the array; -1 fits one axis to the numbers.
    """
    array = np.array(values, dtype=dtype).reshape(shape)
    array.setflags(write=False)
    return array


_NO_WINDOWS = read_only([], np.float64, -1, 2)
_NO_LABELS = read_only([], np.int64, -1)


@dataclass(frozen=True, eq=False)
class MomentClip:
    """One annotated clip. Arrays are read-only: experiences share them."""

    clip_id: str
    video_id: str
    """Parent video; splits never separate clips of one parent."""
    subset: str
    duration_sec: float
    features_per_sec: float
    windows_sec: npt.NDArray[np.float64] = field(
        default_factory=lambda: _NO_WINDOWS, repr=False
    )
    """(N, 2) start and end, 0 <= start < end; end <= duration unless read raw."""
    label_ids: npt.NDArray[np.int64] = field(
        default_factory=lambda: _NO_LABELS, repr=False
    )
    """(N,) category of each window, as in the file."""
    video_start_sec: float | None = None
    """Start of the clip in seconds of its parent video, if the file says it."""

    @property
    def is_streamed(self) -> bool:
        """Whether a stream can have it: subset test makes none, labelled or not."""
        return self.subset != "test" and len(self.windows_sec) > 0


@dataclass(frozen=True, eq=False)
class MomentSample:
    """One clip with the windows of the queries asked of it in one experience."""

    clip: MomentClip
    windows_sec: npt.NDArray[np.float64] = field(repr=False)
    """(N, 2) clip seconds."""
    class_indices: npt.NDArray[np.int64] = field(repr=False)
    """(N,) class index of each window."""
    asked: tuple[int, ...]
    """Class indices of the queries asked."""
    shown: tuple[int, ...] | None = None
    """Class indices of the queries whose text the model sees with the clip; None: all
    learnt so far, the only choice that tells nothing about the clip's answers."""


class SampleDataset(Dataset[Sample]):
    """Samples of one stream, each of a clip."""

    samples: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.samples)

    def __repr__(self) -> str:
        clips = {sample.clip.clip_id for sample in self.samples}
        return f"{type(self).__name__}({len(self)} samples of {len(clips)} clips)"

    def subset(self: Stream, positions: Iterable[int]) -> Stream:
        """Some of the samples, numbered anew; queries keep their numbers.

        :param positions: of the samples wanted, in order.
        """
        part = copy.copy(self)
        part.samples = tuple(self.samples[i] for i in positions)
        return part


class MomentDataset(SampleDataset):
    """Samples of one stream; features are read on access, nothing is kept.

    :param samples: samples in stream order.
    :param store: where features are read.
    :param n_queries: number of queries of the whole benchmark.
    :param narrations: sentences that come with the clips; for training alone.
    """

    collate_fn = staticmethod(collate_moments)
    """Makes mini-batches of samples."""

    def __init__(
        self,
        samples: Sequence[MomentSample],
        store: FeatureStore,
        n_queries: int,
        narrations: ClipNarrations | None = None,
    ) -> None:
        self.samples = tuple(samples)
        self.store = store
        self.n_queries = n_queries
        self.narrations = narrations

    def __getitem__(self, index: int) -> Sample:
        """Inputs and targets of a sample, as dicts of unbatched tensors.

        They are those of :class:`~avalanche_vilco.core.batch.ClipBatch` and
        :class:`~avalanche_vilco.core.batch.MomentTargets`.
        """
        index = range(len(self))[index]
        sample = self.samples[index]
        features = self.store.read(sample.clip.clip_id)
        valid = torch.ones(len(features), dtype=torch.bool)
        inputs = TensorSample(features=features, valid=valid)
        if sample.shown is not None:
            inputs["shown"] = self._multi_hot(sample.shown)
        if self.narrations is not None:
            embeddings, windows, numbers = self.narrations.of_clip(sample.clip.clip_id)
            windows = seconds_to_grid(windows, self._rate(sample.clip)).float()
            inputs |= {"narrations": embeddings, "narrated": windows}
            inputs["sentences"] = numbers
        return inputs, TensorSample(self._targets(index, valid))

    def exemplar_bytes(self, positions: Sequence[int]) -> int:
        """What training reads of samples: float32 features, those of a clip once.

        :param positions: of the samples, each once.
        """
        clips = {self.samples[i].clip.clip_id: self.samples[i].clip for i in positions}
        steps = sum(
            clip.duration_sec * clip.features_per_sec * self.store.time_scale(name)
            for name, clip in clips.items()
        )
        return FLOAT32_BYTES * round(steps) * self.store.width

    def scrambled(self, seed: int) -> MomentDataset | None:
        """The same samples with features that say nothing about their clip.

        For the chance level: :class:`~avalanche_vilco.data.features.ShuffledFeatures`.

        :param seed: of the shuffle.
        :return: None if there are fewer than two clips to exchange features of.
        """
        clips = [sample.clip.clip_id for sample in self.samples]
        if len(set(clips)) < 2:
            return None
        whole = copy.copy(self)
        whole.store = ShuffledFeatures(self.store, clips, seed)
        return whole

    def _rate(self, clip: MomentClip) -> float:
        """Steps a second; a store that resizes clips changes it."""
        return clip.features_per_sec * self.store.time_scale(clip.clip_id)

    def _multi_hot(self, class_indices: Sequence[int]) -> Tensor:
        chosen = torch.zeros(self.n_queries, dtype=torch.bool)
        chosen[list(class_indices)] = True
        return chosen

    def _targets(self, index: int, valid: Tensor) -> dict[str, Tensor]:
        sample, clip = self.samples[index], self.samples[index].clip
        rate = self._rate(clip)
        windows = torch.from_numpy(np.array(sample.windows_sec))
        return {
            "valid": valid,
            "segments": seconds_to_grid(windows, rate).float(),
            "segments_sec": windows,
            "labels": torch.from_numpy(np.array(sample.class_indices)),
            "asked": self._multi_hot(sample.asked),
            "duration_sec": torch.tensor(clip.duration_sec, dtype=torch.float64),
            "features_per_sec": torch.tensor(rate, dtype=torch.float64),
            "sample": torch.tensor(index),
        }
