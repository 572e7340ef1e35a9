"""Visual-query samples: a window of a clip's frames with one object asked for.

A training sample is a query: its window is drawn on access, around the response track,
so that buffers hold queries and every epoch shows other windows. An evaluation sample
is one window of those that cover all frames before the query frame.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from avalanche_vilco.benchmarks.vilco_vq.annotations import VisualClip, VisualQuery
from avalanche_vilco.benchmarks.vilco_vq.clip_videos import VisualPictures
from avalanche_vilco.core.batch import TensorSample
from avalanche_vilco.core.clock import Clock
from avalanche_vilco.core.random import seeded_stream
from avalanche_vilco.core.visual_batch import collate_visual
from avalanche_vilco.data.media.frame_embeddings import FrameEmbeddings
from avalanche_vilco.data.media.pictures import (
    augmented,
    padded_square,
    square_boxes,
    squared,
)
from avalanche_vilco.data.moments import Sample, SampleDataset
from avalanche_vilco.data.text.narrations import sentence_number
from avalanche_vilco.data.text.tokens import HASHED_WIDTH, HashedTokens
from avalanche_vilco.ops.timeline import grid_to_seconds, seconds_to_grid

N_FRAMES = 30
"""Frames of a window."""

_QUERY_INDEX = 0
# Addresses of random streams.
_WINDOW, _SCRAMBLE = 0, 1


@dataclass(frozen=True, eq=False, kw_only=True)
class VisualSample:
    """One window of one query."""

    query: VisualQuery
    clip: VisualClip
    start: int | None
    """First frame of the clip in the window; ``None``: drawn on access, for
    training."""
    title_index: int
    """Place of the query's title in the order of learning, -1 where it has none."""
    class_indices: tuple[int, ...] = (_QUERY_INDEX,)
    asked: tuple[int, ...] = (_QUERY_INDEX,)


# --- Windows --------------------------------------------------------------------------


def clip_frame_count(
    clip: VisualClip, query: VisualQuery, *, with_track: bool = False
) -> int:
    """Frames of a clip at its annotations' rate, at least those that are searched.

    :param clip: the clip.
    :param query: a query of it.
    :param with_track: at least those of the response track too; for training alone.
    """
    # A window of none: a frame is a point in time here.
    count = round(seconds_to_grid(clip.duration_sec, clip.fps, window_frames=0.0))
    count = max(count, query.query_frame)
    if not with_track or query.track is None:
        return count
    return max(count, int(query.track.frames[-1]) + 1)


def evaluation_starts(query_frame: int, n_frames: int = N_FRAMES) -> range:
    """First frames of the windows that cover frames 0 to ``query_frame - 1`` once.

    >>> list(evaluation_starts(61, 30))
    [0, 30, 60]

    :param query_frame: at least 1.
    :param n_frames: frames of a window, at least 1.
    """
    return range(0, query_frame, n_frames)


def training_starts(clip: VisualClip, query: VisualQuery, n_frames: int) -> range:
    """First frames that a training window may have.

    The window holds the track or, of a longer track, a part that begins before the
    query frame. It lies inside the clip and, where that can be, has at least one frame
    behind the track. Of a clip shorter than the window it is the whole clip.

    :param clip: the clip.
    :param query: a query of it, with a track.
    :param n_frames: frames of a window, at least 1.
    :return: at least one start.
    :raises ValueError: the query has no track.
    """
    if query.track is None:
        raise ValueError(f"query {query.query_id} has no track to train on")
    first, last = int(query.track.frames[0]), int(query.track.frames[-1])
    if last - first + 1 >= n_frames:
        stop = min(last + 1 - n_frames, max(query.query_frame - 1, first))
        return range(first, stop + 1)
    clip_length = clip_frame_count(clip, query, with_track=True)
    high = max(0, min(first, clip_length - n_frames))
    return range(min(max(0, last + 2 - n_frames), high), high + 1)


# --- Titles ---------------------------------------------------------------------------


class TitleNarrations:
    """Titles of the objects asked for, as sentences about the frames of their tracks.

    An embedding is the mean of a title's words, each of which has a fixed random
    vector: no text encoder has seen them.

    :param queries: queries with tracks.
    :param clips: their clips, by id.
    :param width: channels of an embedding.
    """

    def __init__(
        self,
        queries: Iterable[VisualQuery],
        clips: Mapping[str, VisualClip],
        *,
        width: int = HASHED_WIDTH,
    ) -> None:
        self.width = width
        """Channels C of an embedding."""
        self._windows_sec: dict[str, list[tuple[float, float]]] = {}
        self._titles: dict[str, list[str]] = {}
        for query in queries:
            if query.track is None:
                continue
            fps = clips[query.clip_id].fps
            first, last = query.track.frames[[0, -1]].tolist()
            windows = self._windows_sec.setdefault(query.clip_id, [])
            windows.append(
                (
                    grid_to_seconds(first, fps, window_frames=0.0),
                    grid_to_seconds(last + 1, fps, window_frames=0.0),
                )
            )
            self._titles.setdefault(query.clip_id, []).append(query.title_key)

    def of_title(self, key: str) -> tuple[Tensor, Tensor]:
        """Embedding (C,) float32 of a title, and its number () int64.

        :param key: the title's key.
        """
        return _title_embedding(key, self.width), torch.tensor(sentence_number(key))

    def of_clip(self, clip_id: str) -> tuple[Tensor, Tensor, Tensor]:
        """Embeddings, windows and numbers of all n titles asked for in a clip.

        :param clip_id: of the clip; n may be 0.
        :return: (n, C) float32, (n, 2) float64 in clip seconds, (n,) int64.
        """
        sentences = [self.of_title(key) for key in self._titles.get(clip_id, [])]
        if not sentences:
            return torch.zeros(0, 0), torch.zeros(0, 2).double(), torch.zeros(0).long()
        embeddings, numbers = zip(*sentences, strict=True)
        windows = torch.tensor(self._windows_sec[clip_id], dtype=torch.float64)
        return torch.stack(embeddings), windows, torch.stack(numbers)


@lru_cache(maxsize=4096)
def _title_embedding(key: str, width: int) -> Tensor:
    return HashedTokens({key: key}, width).read(key).mean(0)


# --- Dataset --------------------------------------------------------------------------


class VisualDataset(SampleDataset):
    """Samples of one stream; videos, or embeddings of them, are read on access.

    :param samples: samples in stream order.
    :param pictures: reads the clips' files.
    :param queries: the queries that the targets number; default those of the samples.
    :param n_frames: frames T of a window.
    :param augment: whether training windows are changed at random.
    :param draw_seed: seed of what is drawn for training samples.
    :param narrations: titles that come with the samples; for training alone.
    :raises ValueError: ``n_frames`` is below 1.
    """

    collate_fn = staticmethod(collate_visual)
    """Makes mini-batches of samples."""

    n_queries = _QUERY_INDEX + 1
    """Queries that the output has a logit of: the object is shown, not learnt."""

    def __init__(
        self,
        samples: Sequence[VisualSample],
        pictures: VisualPictures,
        *,
        queries: Sequence[VisualQuery] | None = None,
        n_frames: int = N_FRAMES,
        augment: bool = False,
        draw_seed: int = 0,
        narrations: TitleNarrations | None = None,
    ) -> None:
        if n_frames < 1:
            raise ValueError(f"expected n_frames >= 1 but got {n_frames}")
        self.samples = tuple(samples)
        asked = {sample.query.query_id: sample.query for sample in samples}
        self.queries = tuple(asked.values() if queries is None else queries)
        """Queries that ``targets.query`` numbers; a subset has those of the whole."""
        self.pictures = pictures
        self.n_frames, self.augment, self.draw_seed = n_frames, augment, draw_seed
        self.narrations = narrations
        self._embeddings: FrameEmbeddings | None = None
        self._clips = {sample.clip.clip_id: sample.clip for sample in samples}
        self._numbers = {query.query_id: i for i, query in enumerate(self.queries)}
        self._crop_of: Mapping[int, int] = {}
        is_drawn = any(sample.start is None for sample in self.samples)
        self.clock = Clock("vilco_vq" if is_drawn else "")
        """Where training has come to: what is drawn for a sample depends on this, the
        seed and the query alone, not on workers or on what was drawn before."""

    @property
    def image_size(self) -> int:
        """Pixels S of a square picture."""
        return self.pictures.image_size

    @property
    def embeddings(self) -> FrameEmbeddings | None:
        """A frozen backbone's embeddings, which samples then hold instead of pixels.

        :raises ValueError: set where samples are augmented.
        """
        return self._embeddings

    @embeddings.setter
    def embeddings(self, embeddings: FrameEmbeddings | None) -> None:
        if embeddings is not None and self.augment:
            raise ValueError(
                "expected pixels but got embeddings: samples are augmented, which only "
                "pixels can be; build the benchmark with augment=False"
            )
        self._embeddings = embeddings

    def exemplar_bytes(self, positions: Sequence[int]) -> int:
        """What training reads of samples in one epoch: a window's frames and a crop.

        :param positions: of the samples, each once.
        """
        if self._embeddings is None:
            pictures = 3 * self.image_size**2 * len(positions)
        else:
            ids = [self.samples[i].query.query_id for i in positions]
            crops = map(self._embeddings.crop, ids)
            pictures = sum(crop.numel() * crop.element_size() for crop in crops)
        return (self.n_frames + 1) * pictures

    def scrambled(self, seed: int) -> VisualDataset | None:
        """The same samples, each query with the crop of another, at random.

        What a model scores on them is what it knows without being told the object.

        :param seed: of the permutation.
        :return: None if there are fewer than two queries to exchange crops of.
        """
        numbers = sorted({self._number(sample) for sample in self.samples})
        if len(numbers) < 2:
            return None
        part = copy.copy(self)
        order = seeded_stream(seed, _SCRAMBLE).permutation(numbers).tolist()
        part._crop_of = dict(zip(order, order[1:] + order[:1], strict=True))
        return part

    def frames_read(self) -> dict[str, list[int]]:
        """Frames of each clip that any access may read, ascending; crops apart."""
        frames: dict[str, set[int]] = {}
        for sample in self.samples:
            starts = self._starts(sample)
            last = self._window(sample, starts[-1])
            read = frames.setdefault(sample.clip.clip_id, set())
            read.update(range(starts[0], last.stop))
        return {clip_id: sorted(read) for clip_id, read in frames.items()}

    def __getitem__(self, index: int) -> Sample:
        """Inputs and targets of a sample, unbatched.

        Dicts of tensors as in
        :class:`~avalanche_vilco.core.visual_batch.VisualQueryBatch` and
        :class:`~avalanche_vilco.core.visual_batch.TrackWindowTargets`.
        """
        index = range(len(self))[index]
        sample = self.samples[index]
        rng = self._random_stream(sample.query)
        starts = self._starts(sample)
        frames = self._window(sample, starts[int(rng.integers(len(starts)))])
        targets = self._targets(sample, frames)
        targets["sample"] = torch.tensor(index)
        inputs = {"valid": targets["valid"]}
        if self._embeddings is not None:
            inputs["frames"] = self._embeddings.frames(sample.clip.clip_id, frames)
            inputs["crop"] = self._embeddings.crop(self._shown(sample).query_id)
        else:
            read = self._pixels(sample, frames, targets, rng)
            inputs["frames"], inputs["crop"] = read
        inputs["frames"] = _filled(inputs["frames"], self.n_frames)
        if self.narrations is not None:
            inputs.update(_narrated(self.narrations, sample.query, frames))
        return TensorSample(inputs), TensorSample(targets)

    def _number(self, sample: VisualSample) -> int:
        return self._numbers[sample.query.query_id]

    def _shown(self, sample: VisualSample) -> VisualQuery:
        """The query whose crop the sample shows."""
        number = self._number(sample)
        return self.queries[self._crop_of.get(number, number)]

    def _random_stream(self, query: VisualQuery) -> np.random.Generator:
        digest = hashlib.sha256(query.query_id.encode()).digest()
        address = (*self.clock.now, int.from_bytes(digest[:8], "big"))
        return seeded_stream(self.draw_seed, _WINDOW, *address)

    def _window(self, sample: VisualSample, start: int) -> range:
        """Frames of the window that starts there."""
        clip, query, is_drawn = sample.clip, sample.query, sample.start is None
        n_frames = clip_frame_count(clip, query, with_track=is_drawn)
        return range(start, min(start + self.n_frames, n_frames))

    def _starts(self, sample: VisualSample) -> range:
        """First frames that the sample's window may have."""
        if sample.start is None:
            return training_starts(sample.clip, sample.query, self.n_frames)
        return range(sample.start, sample.start + 1)

    def _pixels(
        self,
        sample: VisualSample,
        frames: range,
        targets: dict[str, Tensor],
        rng: np.random.Generator,
    ) -> tuple[Tensor, Tensor]:
        """Squares of the window and the crop; augmentation changes the targets."""
        shown = self._shown(sample)
        pictures, crop = self.pictures.window_and_crop(
            sample.clip,
            frames,
            (shown, self._clips[shown.clip_id]),
            keep=sample.start is not None,
        )
        if not self.augment or sample.start is not None:
            return squared(pictures, self.image_size), crop
        n = len(frames)
        boxes = targets["boxes"]
        squares, boxes[:n] = augmented(pictures, boxes[:n], self.image_size, rng)
        has_area = (boxes[:, 2:] > boxes[:, :2]).all(dim=1)
        targets["present"] &= has_area
        boxes *= targets["present"][:, None]
        return squares, crop

    def _targets(self, sample: VisualSample, frames: range) -> dict[str, Tensor]:
        query, n = sample.query, len(frames)
        valid = torch.arange(self.n_frames) < n
        numbers = torch.full((self.n_frames,), -1)
        numbers[:n] = torch.arange(frames.start, frames.stop)
        boxes, present = self._boxes(query, frames)
        # The crop's frame, which is there without an answer too.
        size = query.crop.frame_size
        track_frames, track_boxes = _track_in(query, size)
        return {
            "valid": valid,
            "searched": valid & (numbers < query.query_frame),
            "boxes": boxes,
            "present": present,
            "frame_numbers": numbers,
            "square": torch.tensor(padded_square(size), dtype=torch.float64),
            "track_boxes": torch.from_numpy(track_boxes),
            "track_frames": torch.from_numpy(track_frames),
            "query": torch.tensor(self._number(sample)),
            "query_frame": torch.tensor(query.query_frame),
        }

    def _boxes(self, query: VisualQuery, frames: range) -> tuple[Tensor, Tensor]:
        """(T, 4) boxes and (T,) where there is one."""
        boxes = torch.zeros(self.n_frames, 4)
        present = torch.zeros(self.n_frames, dtype=torch.bool)
        if query.track is not None:
            steps = query.track.frames - frames.start
            inside = (steps >= 0) & (steps < len(frames))
            shares = square_boxes(query.track.relative_boxes, query.track.frame_size)
            at = torch.from_numpy(steps[inside])
            boxes[at] = torch.from_numpy(shares[inside]).float()
            present[at] = True
        return boxes, present


def _narrated(
    narrations: TitleNarrations, query: VisualQuery, frames: range
) -> dict[str, Tensor]:
    """A query's title as a sentence about the frames of its track."""
    embedding, number = narrations.of_title(query.title_key)
    first, last = frames.start, frames.stop - 1
    if query.track is not None:
        first = max(first, int(query.track.frames[0]))
        last = min(last, int(query.track.frames[-1]))
    span = torch.tensor([[first - frames.start, last - frames.start]])
    return {
        "narrations": embedding[None],
        "narrated": span.float(),
        "sentences": number[None],
    }


def _track_in(
    query: VisualQuery, frame_size: tuple[int, int]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Frames (N,) of the response track and its boxes (N, 4) in pixels of a frame."""
    track = query.track
    if track is None:
        return np.zeros(0, dtype=np.int64), np.zeros((0, 4))
    boxes = track.boxes
    if track.frame_size != frame_size:
        height, width = frame_size
        boxes = track.relative_boxes * np.array([width, height, width, height])
    return np.array(track.frames), np.array(boxes)


def _filled(frames: Tensor, n_frames: int) -> Tensor:
    """(N, ...) frames and zeros behind them, T in all."""
    if len(frames) == n_frames:
        return frames
    filled = frames.new_zeros(n_frames, *frames.shape[1:])
    filled[: len(frames)] = frames
    return filled
