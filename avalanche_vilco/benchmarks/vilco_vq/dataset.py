"""Visual-query samples: a window of a clip's frames with one object asked for.

A training sample is a query: its window is drawn on access, around the response track,
so that buffers hold queries and every epoch shows other windows. An evaluation sample
is one window of those that cover all frames before the query frame.
"""

from __future__ import annotations

import copy
import hashlib
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate
from torch.utils.data import Dataset

from avalanche_vilco.benchmarks.vilco_vq.annotations import (
    VisualClip,
    VisualCrop,
    VisualQuery,
    clip_file_frames,
    title_key,
)
from avalanche_vilco.core.clock import Clock
from avalanche_vilco.core.random import seeded_stream
from avalanche_vilco.core.visual_batch import collate_visual
from avalanche_vilco.data.media.frame_embeddings import FrameEmbeddings
from avalanche_vilco.data.media.video import (
    VideoError,
    VideoFolder,
    VideoInfo,
    fitted_size,
)
from avalanche_vilco.data.text.narrations import sentence_number
from avalanche_vilco.data.text.tokens import HASHED_WIDTH, HashedTokens

WINDOW_FRAMES = 30
KEPT_BYTES = 32 * 2**20
"""Pictures that a process keeps in memory: crops, and windows of evaluation."""
ASPECT_TOLERANCE = 0.02
"""Accepted relative difference between a file's aspect and its annotations'."""

Sample: TypeAlias = tuple[dict[str, Tensor], dict[str, Tensor]]

_QUERY_CHANNEL = 0
_SCRAMBLE = 1
_WINDOW = 0


@dataclass(frozen=True, eq=False, kw_only=True)
class VisualSample:
    """One window of one query."""

    query: VisualQuery
    clip: VisualClip
    start: int | None
    """First frame of the clip in the window; ``None``: drawn on access, for
    training."""
    group: int
    """Place of the query's title in the order of learning, -1 where it has none."""
    class_indices: tuple[int, ...] = (_QUERY_CHANNEL,)
    asked: tuple[int, ...] = (_QUERY_CHANNEL,)


# --- Windows --------------------------------------------------------------------------


def clip_frame_count(
    clip: VisualClip, query: VisualQuery, *, with_track: bool = False
) -> int:
    """Frames of a clip at its annotations' rate, at least those that are searched.

    :param clip: the clip.
    :param query: a query of it.
    :param with_track: at least those of the response track too; for training alone.
    """
    count = max(round(clip.duration_sec * clip.fps), query.query_frame)
    if not with_track or query.track is None:
        return count
    return max(count, int(query.track.frames[-1]) + 1)


def evaluation_starts(query_frame: int, n_frames: int = WINDOW_FRAMES) -> range:
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


# --- Geometry -------------------------------------------------------------------------


def padded_square(frame_size: tuple[int, int]) -> tuple[float, float, float]:
    """The square around a frame, which is in its middle.

    >>> padded_square((1080, 1920))
    (1920.0, 0.0, 420.0)

    :param frame_size: height and width in pixels.
    :return: side of the square, and pixels left of the frame and above it.
    """
    height, width = frame_size
    side = float(max(height, width))
    return side, (side - width) / 2, (side - height) / 2


def square_boxes(
    relative: NDArray[np.float64], frame_size: tuple[int, int]
) -> NDArray[np.float64]:
    """Boxes as shares of the padded square.

    :param relative: (N, 4) as shares of the frame's width and height.
    :param frame_size: height and width of the frame.
    :return: (N, 4), in [0, 1] where the boxes lie inside the frame.
    """
    height, width = frame_size
    side, left, top = padded_square(frame_size)
    boxes = relative * np.array([width, height, width, height])
    shares: NDArray[np.float64] = (boxes + np.array([left, top, left, top])) / side
    return shares


def squared(pictures: Tensor, size: int) -> Tensor:
    """Pictures in the middle of black squares.

    :param pictures: (N, 3, h, w) uint8, h and w at most ``size``.
    :param size: pixels.
    :return: (N, 3, size, size) uint8.
    """
    height, width = pictures.shape[2:]
    top, left = (size - height) // 2, (size - width) // 2
    squares = pictures.new_zeros(len(pictures), 3, size, size)
    squares[:, :, top : top + height, left : left + width] = pictures
    return squares


def cut_crop(picture: Tensor, crop: VisualCrop, size: int) -> Tensor:
    """What a crop shows: its box, enlarged to a square around its centre and clipped
    to the picture, resized.

    :param picture: (3, h, w) uint8, the whole frame.
    :param crop: the crop.
    :param size: pixels of the result.
    :return: (3, size, size) uint8; not to scale where the square was clipped.
    """
    height, width = picture.shape[1:]
    x1, y1, x2, y2 = crop.relative_box * np.array([width, height, width, height])
    reach = max(x2 - x1, y2 - y1) / 2
    left, right = _pixel_span((x1 + x2) / 2, reach, width)
    top, bottom = _pixel_span((y1 + y2) / 2, reach, height)
    part = picture[None, :, top:bottom, left:right]
    return interpolate(part, (size, size), mode="bilinear", antialias=True)[0]


def _pixel_span(centre: float, reach: float, size: int) -> tuple[int, int]:
    """First pixel and the one behind the last; at least one pixel."""
    low = min(max(round(centre - reach), 0), size - 1)
    return low, min(max(round(centre + reach), low + 1), size)


# --- Pictures -------------------------------------------------------------------------


class _Kept:
    """Tensors in memory, the last used ones, up to a limit in bytes."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._items: OrderedDict[Hashable, Tensor] = OrderedDict()
        self._bytes = 0

    def get(self, key: Hashable) -> Tensor | None:
        item = self._items.get(key)
        if item is not None:
            self._items.move_to_end(key)
        return item

    def put(self, key: Hashable, item: Tensor) -> None:
        if key in self._items or item.nbytes > self.max_bytes:
            return
        self._items[key] = item
        self._bytes += item.nbytes
        while self._bytes > self.max_bytes:
            self._bytes -= self._items.popitem(last=False)[1].nbytes

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_items": OrderedDict(), "_bytes": 0}


class VisualPictures:
    """Frames of clips and crops of queries, in the size that models take.

    What a sample needs is one read of its clip's file, where the file's frames have
    that size already; else the crop is a read of its own, at the file's size, so that
    a small object is not scaled down before it is scaled up.

    :param videos: the clips.
    :param image_size: pixels S of the square that frames are fitted into.
    :param crop_size: pixels S' of a crop's square; default S.
    :param kept_bytes: kept in memory by each process; a pickle holds none of it.
    :raises ValueError: a size is below 1.
    """

    def __init__(
        self,
        videos: VideoFolder,
        image_size: int,
        *,
        crop_size: int | None = None,
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        self.videos, self.image_size = videos, image_size
        self.crop_size = image_size if crop_size is None else crop_size
        if min(self.image_size, self.crop_size) < 1:
            raise ValueError(
                f"expected sizes >= 1 but got {self.image_size} and {self.crop_size}"
            )
        self._kept = _Kept(kept_bytes)

    def frames(self, clip: VisualClip, frames: Sequence[int]) -> Tensor:
        """Frames of a clip, fitted but not padded.

        :param clip: the clip.
        :param frames: N frame numbers at the clip's rate.
        :return: (N, 3, h, w) uint8; the longer of h and w is S.
        :raises FileNotFoundError: the clip has no file.
        :raises VideoError: damaged, or the file ends before.
        """
        info = self.videos.info(clip.clip_id)
        numbers = clip_file_frames(clip, frames, info).tolist()
        return self.videos.read(clip.clip_id, numbers, size=self._fitted(info))

    def crop(self, query: VisualQuery, clip: VisualClip) -> Tensor:
        """What a query's crop shows.

        :param query: the query.
        :param clip: its clip.
        :return: (3, S', S') uint8.
        :raises FileNotFoundError: the clip has no file.
        :raises VideoError: damaged, or the file ends before.
        """
        kept = self._kept.get(query.query_id)
        if kept is not None:
            return kept
        info = self.videos.info(clip.clip_id)
        numbers = clip_file_frames(clip, [query.crop.frame], info).tolist()
        return self._cut(query, info, self.videos.read(clip.clip_id, numbers)[0])

    def window_and_crop(
        self,
        clip: VisualClip,
        frames: range,
        shown: tuple[VisualQuery, VisualClip],
        *,
        keep: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """:meth:`frames` of a window, and :meth:`crop` of a query.

        :param clip: the window's clip.
        :param frames: its frames.
        :param shown: the query whose crop is wanted, and its clip.
        :param keep: have the window in memory, because others will ask for it.
        """
        place = (clip.clip_id, frames.start, frames.stop)
        window, crop = self._kept.get(place), self._kept.get(shown[0].query_id)
        if window is None and crop is None and self._is_one_read(clip, shown[1]):
            both = self.frames(clip, [*frames, shown[0].crop.frame])
            window = both[:-1]
            info = self.videos.info(clip.clip_id)
            crop = self._cut(shown[0], info, both[-1])
        if window is None:
            window = self.frames(clip, frames)
        if keep:
            self._kept.put(place, window)
        return window, self.crop(*shown) if crop is None else crop

    def _is_one_read(self, clip: VisualClip, crop_clip: VisualClip) -> bool:
        info = self.videos.info(clip.clip_id)
        has_size = self._fitted(info) == (info.height, info.width)
        return has_size and clip.clip_id == crop_clip.clip_id

    def _fitted(self, info: VideoInfo) -> tuple[int, int]:
        return fitted_size(info.height, info.width, self.image_size)

    def _cut(self, query: VisualQuery, info: VideoInfo, picture: Tensor) -> Tensor:
        _check_aspect(query, info)
        cut = cut_crop(picture, query.crop, self.crop_size)
        self._kept.put(query.query_id, cut)
        return cut


def _check_aspect(query: VisualQuery, info: VideoInfo) -> None:
    """Boxes are placed by the annotations' frame, pictures by the file's."""
    sizes = {query.crop.frame_size}
    if query.track is not None:
        sizes.add(query.track.frame_size)
    for height, width in sizes:
        if abs(width * info.height / (height * info.width) - 1) > ASPECT_TOLERANCE:
            problem = f"its frames are {info.width} x {info.height}, but its "
            problem += f"annotations are drawn in {width} x {height}"
            raise VideoError(info.path, problem, record=query.query_id)


# --- Augmentation ---------------------------------------------------------------------


@lru_cache(maxsize=8)
def _augmentations(image_size: int) -> tuple[Any, Any]:
    """Changes of colour, and of geometry."""
    from torchvision.transforms import v2

    colours = v2.ColorJitter(brightness=0.4, contrast=0.4, saturation=0.3)
    cut = v2.RandomResizedCrop(
        image_size, scale=(0.66, 1.0), ratio=(0.8, 1.2), antialias=True
    )
    return colours, v2.Compose([v2.RandomHorizontalFlip(0.5), cut])


def augmented(
    pictures: Tensor, boxes: Tensor, image_size: int, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Frames of a window changed all alike: colours, mirroring, a cut-out.

    :param pictures: (N, 3, h, w) uint8, fitted but not padded.
    :param boxes: (N, 4) as shares of the padded square; without area: none.
    :param image_size: pixels S of the square.
    :param rng: what is drawn depends on its state alone.
    :return: (N, 3, S, S) uint8, and boxes; those that have left are without area.
    """
    from torchvision import tv_tensors

    colours, geometry = _augmentations(image_size)
    corners = tv_tensors.BoundingBoxes(
        boxes * image_size, format="XYXY", canvas_size=(image_size, image_size)
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**63)))
        squares = tv_tensors.Video(squared(colours(pictures), image_size))
        squares, corners = geometry(squares, corners)
    return squares.as_subclass(Tensor), (corners / image_size).as_subclass(Tensor)


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
            windows.append((first / fps, (last + 1) / fps))
            self._titles.setdefault(query.clip_id, []).append(query.title)

    def of_title(self, title: str) -> tuple[Tensor, Tensor]:
        """Embedding (C,) float32 of a title, and its number () int64.

        :param title: capitals and blanks do not count.
        """
        key = title_key(title)
        return _title_embedding(key, self.width), torch.tensor(sentence_number(key))

    def of_clip(self, clip_id: str) -> tuple[Tensor, Tensor, Tensor]:
        """Embeddings (n, C) float32, windows (n, 2) float64 in clip seconds and title
        numbers (n,) int64 of all titles asked for in a clip; n may be 0.
        """
        told = [self.of_title(title) for title in self._titles.get(clip_id, [])]
        if not told:
            return torch.zeros(0, 0), torch.zeros(0, 2).double(), torch.zeros(0).long()
        embeddings, numbers = zip(*told, strict=True)
        windows = torch.tensor(self._windows_sec[clip_id], dtype=torch.float64)
        return torch.stack(embeddings), windows, torch.stack(numbers)


@lru_cache(maxsize=4096)
def _title_embedding(key: str, width: int) -> Tensor:
    return HashedTokens({key: key}, width).read(key).mean(0)


# --- Dataset --------------------------------------------------------------------------


class VisualDataset(Dataset[Sample]):
    """Samples of one stream; videos, or embeddings of them, are read on access.

    :param samples: samples in stream order.
    :param queries: the queries that the targets number; default those of the samples.
    :param videos: the clips' files.
    :param image_size: pixels S of a square picture.
    :param crop_size: pixels S' of a crop; default S.
    :param n_frames: frames T of a window.
    :param augment: whether training windows are changed at random.
    :param draw_seed: seed of what is drawn for training samples.
    :param narrations: titles that come with the samples; for training alone.
    :raises ValueError: a size or ``n_frames`` is below 1.
    """

    collate_fn = staticmethod(collate_visual)
    """Makes mini-batches of samples."""

    n_queries = _QUERY_CHANNEL + 1
    """Query channels of the output: the object is shown, not learnt."""

    def __init__(
        self,
        samples: Sequence[VisualSample],
        videos: VideoFolder,
        image_size: int,
        *,
        crop_size: int | None = None,
        queries: Sequence[VisualQuery] | None = None,
        n_frames: int = WINDOW_FRAMES,
        augment: bool = False,
        draw_seed: int = 0,
        narrations: TitleNarrations | None = None,
    ) -> None:
        if n_frames < 1:
            raise ValueError(f"expected n_frames >= 1 but got {n_frames}")
        self.samples = tuple(samples)
        own = {sample.query.query_id: sample.query for sample in samples}
        self.queries = tuple(own.values() if queries is None else queries)
        """Queries that ``targets.query`` numbers; a subset has those of the whole."""
        self.pictures = VisualPictures(videos, image_size, crop_size=crop_size)
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
    def videos(self) -> VideoFolder:
        """The clips' files."""
        return self.pictures.videos

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

    def __len__(self) -> int:
        return len(self.samples)

    def subset(self, positions: Iterable[int]) -> VisualDataset:
        """Some of the samples, numbered anew; queries keep their numbers.

        :param positions: of the samples wanted, in order.
        """
        part = copy.copy(self)
        part.samples = tuple(self.samples[i] for i in positions)
        return part

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
        """The same samples, each query with the crop of another, at random: what a
        model scores on them is what it knows without being told the object.

        :param seed: of the permutation.
        :return: None if there are fewer than two queries to exchange crops of.
        """
        own = sorted({self._number(sample) for sample in self.samples})
        if len(own) < 2:
            return None
        part = copy.copy(self)
        order = seeded_stream(seed, _SCRAMBLE).permutation(own).tolist()
        part._crop_of = dict(zip(order, order[1:] + order[:1], strict=True))
        return part

    def frames_read(self) -> dict[str, list[int]]:
        """Frames of each clip that any access may read, ascending; crops apart."""
        frames: dict[str, set[int]] = {}
        for sample in self.samples:
            starts = self._starts(sample)
            stop = min(starts[-1] + self.n_frames, _frame_count(sample))
            own = frames.setdefault(sample.clip.clip_id, set())
            own.update(range(starts[0], stop))
        return {clip_id: sorted(own) for clip_id, own in frames.items()}

    def __getitem__(self, index: int) -> Sample:
        """Inputs and targets of a sample, dicts of unbatched tensors as in
        :class:`~avalanche_vilco.core.visual_batch.VisualQueryBatch` and
        :class:`~avalanche_vilco.core.visual_batch.TrackWindowTargets`.
        """
        index = range(len(self))[index]
        sample = self.samples[index]
        rng = self._draws(sample.query)
        frames = self._frames(sample, rng)
        targets = self._targets(sample, frames)
        targets["sample"] = torch.tensor(index)
        inputs = {"valid": targets["valid"]}
        if self._embeddings is not None:
            inputs["frames"] = self._embeddings.frames(sample.clip.clip_id, frames)
            inputs["crop"] = self._embeddings.crop(self._shown(sample).query_id)
        else:
            inputs["frames"], inputs["crop"] = self._pixels(
                sample, frames, targets, rng
            )
        inputs["frames"] = _filled(inputs["frames"], self.n_frames)
        if self.narrations is not None:
            inputs.update(self._told(self.narrations, sample.query, frames))
        return inputs, targets

    def _number(self, sample: VisualSample) -> int:
        return self._numbers[sample.query.query_id]

    def _shown(self, sample: VisualSample) -> VisualQuery:
        """The query whose crop the sample shows."""
        number = self._number(sample)
        return self.queries[self._crop_of.get(number, number)]

    def _draws(self, query: VisualQuery) -> np.random.Generator:
        digest = hashlib.sha256(query.query_id.encode()).digest()
        address = (*self.clock.now, int.from_bytes(digest[:8], "big"))
        return seeded_stream(self.draw_seed, _WINDOW, *address)

    def _frames(self, sample: VisualSample, rng: np.random.Generator) -> range:
        starts = self._starts(sample)
        start = starts[int(rng.integers(len(starts)))]
        return range(start, min(start + self.n_frames, _frame_count(sample)))

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
            places = query.track.frames - frames.start
            inside = (places >= 0) & (places < len(frames))
            shares = square_boxes(query.track.relative_boxes, query.track.frame_size)
            at = torch.from_numpy(places[inside])
            boxes[at] = torch.from_numpy(shares[inside]).float()
            present[at] = True
        return boxes, present

    def _told(
        self, narrations: TitleNarrations, query: VisualQuery, frames: range
    ) -> dict[str, Tensor]:
        embedding, number = narrations.of_title(query.title)
        first, last = frames.start, frames.stop - 1
        if query.track is not None:
            first = max(first, int(query.track.frames[0]))
            last = min(last, int(query.track.frames[-1]))
        places = torch.tensor([[first - frames.start, last - frames.start]])
        return {
            "narrations": embedding[None],
            "narrated": places.float(),
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


def _frame_count(sample: VisualSample) -> int:
    is_drawn = sample.start is None
    return clip_frame_count(sample.clip, sample.query, with_track=is_drawn)


def _filled(frames: Tensor, n_frames: int) -> Tensor:
    """(N, ...) frames and zeros behind them, T in all."""
    if len(frames) == n_frames:
        return frames
    filled = frames.new_zeros(n_frames, *frames.shape[1:])
    filled[: len(frames)] = frames
    return filled
