"""Where annotations of visual queries meet video files: frames of clips, and crops."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from avalanche_vilco.benchmarks.vilco_vq.annotations import VisualClip, VisualQuery
from avalanche_vilco.core.cache import TensorCache
from avalanche_vilco.data.media.pictures import cut_crop
from avalanche_vilco.data.media.video import (
    UnsupportedVideo,
    VideoError,
    VideoFolder,
    VideoInfo,
    fitted_size,
)
from avalanche_vilco.ops.timeline import grid_to_seconds

LENGTH_TOLERANCE_SEC = 1.0
"""Accepted difference between a clip's length and its file's."""
ASPECT_TOLERANCE = 0.02
"""Accepted relative difference between a file's aspect and its annotations'."""
CACHE_BYTES = 32 * 2**20
"""Pictures that a process keeps in memory: crops, and windows of evaluation."""


# --- Annotated frames and the file's --------------------------------------------------


def clip_file_frames(
    clip: VisualClip, frames: Sequence[int] | NDArray[np.int64], info: VideoInfo
) -> NDArray[np.int64]:
    """Frames of a clip's file that show annotated frames: the nearest in time.

    Both count what is shown: the first frame after the file's edit list is frame 0, at
    0 s. The file's real rate counts: in a file of 29.97 fps, frame 1000 of 5 fps is
    frame 5994, not 1000 x 6 and not, as by whole division of 29 by 5, 1000 x 5. Frames
    up to a second behind the file's end are its last frame.

    :param clip: the clip.
    :param frames: (N,) frame numbers at the clip's fps, from 0.
    :param info: what its file holds.
    :return: (N,) frame numbers of the file.
    :raises VideoError: a frame lies further behind the file's end; names both rates.
    """
    numbers = np.asarray(frames, dtype=np.int64)
    fault = _frame_fault(clip, numbers, info)
    if fault is not None:
        raise VideoError(info.path, fault, record=clip.clip_id)
    return info.frames_at(_seconds(clip, numbers))


def _seconds(clip: VisualClip, frames: NDArray[np.int64]) -> NDArray[np.float64]:
    """When frames start; a window of none, since a frame is a point in time here."""
    seconds = [
        grid_to_seconds(frame, clip.fps, window_frames=0.0) for frame in frames.tolist()
    ]
    return np.array(seconds, dtype=np.float64)


def _frame_fault(
    clip: VisualClip, frames: NDArray[np.int64], info: VideoInfo
) -> str | None:
    if frames.size and frames.min() < 0:
        return f"expected frame numbers from 0 but got {frames.min()}"
    limit = info.duration_sec + LENGTH_TOLERANCE_SEC
    late = frames[_seconds(clip, frames) > limit]
    if not late.size:
        return None
    return (
        f"the annotations name frame {late[0]} at {clip.fps:g} fps, but the file ends "
        f"after {info.n_frames} frames at {info.fps:g} fps, {info.duration_sec:.1f} s"
    )


def check_clip_videos(
    queries: Iterable[VisualQuery], clips: Mapping[str, VisualClip], videos: VideoFolder
) -> None:
    """Refuse files that are missing, damaged, or not the clips that were annotated.

    Lists all of them.

    :param queries: whose clips and frames are needed.
    :param clips: clips by id.
    :param videos: the files.
    :raises VideoError: one line for each fault.
    """
    by_clip = clip_faults(queries, clips, videos)
    faults = [fault for of_clip in by_clip.values() for fault in of_clip]
    if faults:
        count = f"{len(faults)} fault" + ("s" if len(faults) != 1 else "")
        listing = "\n  ".join(
            f"{fault.record}: {fault.problem}"
            + (f" ({fault.hint})" if isinstance(fault, UnsupportedVideo) else "")
            for fault in faults
        )
        hint = "each clip is cut from its video and named <clip uid>.mp4: copy or cut "
        hint += "those without advice again, or leave them out with missing='drop'"
        raise VideoError(videos.folder, f"{count} in clips:\n  {listing}\n", hint=hint)


def clip_faults(
    queries: Iterable[VisualQuery], clips: Mapping[str, VisualClip], videos: VideoFolder
) -> dict[str, list[VideoError]]:
    """Why files cannot be used, by clip.

    One frame of each is decoded, see
    :func:`~avalanche_vilco.data.media.video.check_frames` for all.

    :param queries: whose clips and frames are needed.
    :param clips: clips by id.
    :param videos: the files.
    :return: clips with a fault, in the order of ``clips``.
    """
    needed: dict[str, list[VisualQuery]] = {}
    for query in queries:
        needed.setdefault(query.clip_id, []).append(query)
    faults = {
        clip_id: [
            type(fault)(fault.file, fault.problem, record=clip_id, hint=fault.hint)
            for fault in _clip_faults(clip, needed[clip_id], videos)
        ]
        for clip_id, clip in clips.items()
        if clip_id in needed
    }
    return {clip_id: found for clip_id, found in faults.items() if found}


def _clip_faults(
    clip: VisualClip, queries: Sequence[VisualQuery], videos: VideoFolder
) -> Iterator[VideoError]:
    path = videos.path(clip.clip_id)
    try:
        info = videos.info(clip.clip_id)
    except FileNotFoundError:
        yield VideoError(path, f"no file {path.name}")
        return
    except VideoError as error:
        yield error
        return
    difference = info.duration_sec - clip.duration_sec
    if abs(difference) > LENGTH_TOLERANCE_SEC:
        problem = f"the file lasts {info.duration_sec:.1f} s, the clip "
        yield VideoError(path, f"{problem}{clip.duration_sec:.1f} s")
    frames: set[int] = set()
    for query in queries:
        frames.update((query.crop.frame, query.query_frame - 1))
        if query.track is not None:
            frames.update(query.track.frames.tolist())
    fault = _frame_fault(clip, np.array(sorted(frames), dtype=np.int64), info)
    if fault is not None:
        yield VideoError(path, fault)
    yield from list(filter(None, (_aspect_fault(one, info) for one in queries)))[:1]


# --- Pictures -------------------------------------------------------------------------


class VisualPictures:
    """Frames of clips and crops of queries, in the size that models take.

    What a sample needs is one read of its clip's file, where the file's frames have
    that size already; else the crop is a read of its own, at the file's size, so that
    a small object is not scaled down before it is scaled up.

    :param videos: the clips.
    :param image_size: pixels S of the square that frames are fitted into.
    :param crop_size: pixels S' of a crop's square; default S.
    :param cache_bytes: kept in memory by each process; a pickle holds none of it.
    :raises ValueError: a size is below 1.
    """

    def __init__(
        self,
        videos: VideoFolder,
        image_size: int,
        *,
        crop_size: int | None = None,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self.videos, self.image_size = videos, image_size
        self.crop_size = image_size if crop_size is None else crop_size
        if min(self.image_size, self.crop_size) < 1:
            raise ValueError(
                f"expected sizes >= 1 but got {self.image_size} and {self.crop_size}"
            )
        self._cache = TensorCache(cache_bytes)

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
        cached: Tensor | None = self._cache.get(query.query_id)
        if cached is not None:
            return cached
        info = self.videos.info(clip.clip_id)
        numbers = clip_file_frames(clip, [query.crop.frame], info).tolist()
        return self._cut_crop(query, info, self.videos.read(clip.clip_id, numbers)[0])

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
        key = (clip.clip_id, frames.start, frames.stop)
        window, crop = self._cache.get(key), self._cache.get(shown[0].query_id)
        if window is None and crop is None and self._is_one_read(clip, shown[1]):
            both = self.frames(clip, [*frames, shown[0].crop.frame])
            window = both[:-1]
            info = self.videos.info(clip.clip_id)
            crop = self._cut_crop(shown[0], info, both[-1])
        if window is None:
            window = self.frames(clip, frames)
        if keep:
            self._keep(key, window)
        return window, self.crop(*shown) if crop is None else crop

    def _is_one_read(self, clip: VisualClip, crop_clip: VisualClip) -> bool:
        info = self.videos.info(clip.clip_id)
        has_size = self._fitted(info) == (info.height, info.width)
        return has_size and clip.clip_id == crop_clip.clip_id

    def _fitted(self, info: VideoInfo) -> tuple[int, int]:
        return fitted_size(info.height, info.width, self.image_size)

    def _cut_crop(self, query: VisualQuery, info: VideoInfo, picture: Tensor) -> Tensor:
        fault = _aspect_fault(query, info)
        if fault is not None:
            raise fault
        crop = cut_crop(picture, query.crop.relative_box, self.crop_size)
        self._keep(query.query_id, crop)
        return crop

    def _keep(self, key: Hashable, pictures: Tensor) -> None:
        if pictures.nbytes <= self._cache.maxsize:
            self._cache[key] = pictures


def _aspect_fault(query: VisualQuery, info: VideoInfo) -> VideoError | None:
    """Boxes are placed by the annotations' frame, pictures by the file's."""
    sizes = {query.crop.frame_size}
    if query.track is not None:
        sizes.add(query.track.frame_size)
    for height, width in sizes:
        aspect = width * info.height / (height * info.width)
        if abs(aspect - 1) <= ASPECT_TOLERANCE:
            continue
        problem = f"its frames are {info.width} x {info.height}, but its "
        problem += f"annotations are drawn in {width} x {height}"
        hint = ""
        if info.turn[0]:
            problem += "; its flag turns them from the side"
            hint = "if it must not: ffmpeg -display_rotation 0 -i IN -c copy OUT.mp4"
        elif abs(aspect / info.pixel_aspect - 1) <= ASPECT_TOLERANCE:
            problem += "; its pixels are not square"
            hint = "write it again: ffmpeg -i IN -vf scale=iw*sar:ih,setsar=1 OUT.mp4"
        kind = UnsupportedVideo if hint else VideoError
        return kind(info.path, problem, record=query.query_id, hint=hint)
    return None
