"""Frames of video files: exact frames, equal from either decoder, in bounded memory.

decord decodes where it has a wheel, because it is the fastest on dense windows; PyAV
elsewhere, and by ``backend="pyav"``. PyAV also lists the frames of every file, so that
lengths, times and what counts as damaged do not depend on the decoder. Frames are
decoded at the file's size and resized one by one by the same function, so their values
do not depend on it either.

A frame's number is its place in the order of presentation. Its time counts from the
file's first frame and comes from the time stamps, never from a rounded rate.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from cachetools import LRUCache
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from avalanche_vilco.core.errors import DataError
from avalanche_vilco.core.handles import PerProcess
from avalanche_vilco.core.schema import check_plain_id

VIDEO_BACKENDS = ("auto", "decord", "pyav")
VIDEO_SUFFIX = ".mp4"

_COPY_HINT = "copy or download it again"
_DECODED_AT_ONCE = 8
_LISTED_FILES = 512
_SHORTFALL_SEC = 1.0
_STARTS_TRIED = 3
_BEFORE_ALL = -(2**63)
# decord repeats a neighbour for a frame that it cannot decode, up to this share.
_NO_REPEATED_FRAME = 1e-9


class VideoError(DataError):
    """A video file is damaged, or is not the one that annotations speak of."""


@dataclass(frozen=True, eq=False)
class VideoInfo:
    """What a video file holds, known without decoding a frame."""

    path: Path
    height: int
    width: int
    pts: NDArray[np.int64] = field(repr=False)
    """(n,) time stamps in order of presentation, strictly ascending."""
    time_base: Fraction
    """Seconds that one unit of a time stamp lasts."""
    declared_fps: float
    """Rate that the header states; only that of files with one frame is used."""
    keys: NDArray[np.int64] = field(repr=False)
    """Ascending numbers of the frames that decoding can start at."""
    has_leading_frames: bool = False
    """Whether some frames are decoded after a key frame but shown before it (open
    groups of pictures). decord counts those wrongly, PyAV reads them."""

    @property
    def n_frames(self) -> int:
        """Number of frames, at least 1."""
        return len(self.pts)

    @property
    def times_sec(self) -> NDArray[np.float64]:
        """(n,) seconds from the first frame to each."""
        return np.asarray((self.pts - self.pts[0]) * float(self.time_base))

    @property
    def fps(self) -> float:
        """Frames a second, by the time stamps: 29.97..., not 29 or 30."""
        if self.n_frames == 1:
            return self.declared_fps
        ticks = int(self.pts[-1] - self.pts[0])
        return float((self.n_frames - 1) / (ticks * self.time_base))

    @property
    def duration_sec(self) -> float:
        """Seconds from the first frame to the end of the last."""
        return float(self.times_sec[-1]) + 1 / self.fps

    def frames_at(self, times_sec: ArrayLike) -> NDArray[np.int64]:
        """Frames nearest to some times.

        Of two equally near it is the earlier, before the first frame the first, behind
        the last frame the last.

        :param times_sec: (N,) seconds from the first frame.
        :return: (N,) frame numbers.
        """
        times = self.times_sec
        between = (times[1:] + times[:-1]) / 2
        wanted = np.asarray(times_sec, dtype=np.float64)
        # A time computed from a rate lies beside the one computed from time stamps.
        return np.searchsorted(between, wanted - 1e-6, side="left").astype(np.int64)


def probe_video(path: Path | str) -> VideoInfo:
    """List the frames of a file without decoding them.

    :param path: video file.
    :raises FileNotFoundError: no such file.
    :raises VideoError: empty, no video, or it holds fewer frames than its header says.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"no video at {path}")
    if not path.stat().st_size:
        raise VideoError(path, "the file is empty", hint=_COPY_HINT)
    av = _import_av()
    try:
        with av.open(str(path)) as container:
            return _listed(av, path, container)
    except av.FFmpegError as error:
        raise _unreadable(path, error) from None


def open_video(
    path: Path | str,
    *,
    backend: str = "auto",
    threads: int = 1,
    info: VideoInfo | None = None,
) -> VideoReader:
    """Open a video file for reading frames.

    :param path: video file.
    :param backend: ``"decord"``, ``"pyav"``, or ``"auto"``, which is decord where it
        is installed and reads the file exactly.
    :param threads: threads of the decoder; workers want 1.
    :param info: what :func:`probe_video` gave for the file, to save the listing.
    :raises FileNotFoundError: no such file.
    :raises ValueError: no such backend, or not a number of threads.
    :raises ImportError: the backend is not installed; says how.
    :raises VideoError: as :func:`probe_video`.
    """
    kind = _reader_kind(backend)
    if threads < 1:
        raise ValueError(f"expected threads >= 1 but got {threads}")
    info = probe_video(path) if info is None else info
    if info.has_leading_frames and backend == "auto":
        kind = _PyAVReader
    return kind(info, threads)


def check_frames(path: Path | str) -> None:
    """Decode a whole file, which takes its time, and refuse damaged frames.

    PyAV's reader refuses damaged frames when it meets them. decord refuses those that
    its decoder gives up, and hands out those that it patches.

    :param path: video file.
    :raises FileNotFoundError: no such file.
    :raises VideoError: names the first frame that is damaged.
    """
    reader = _PyAVReader(probe_video(path), 1)
    try:
        for _ in reader._decoded(range(reader.info.n_frames)):
            pass
    finally:
        reader.close()


def write_video(
    path: Path | str,
    frames: Iterable[NDArray[np.uint8]],
    fps: float | Fraction,
    *,
    crf: int = 18,
    key_frame_every: int = 30,
    options: Mapping[str, str] | None = None,
) -> None:
    """Write frames as h264: equal frames give equal files with one version of PyAV.

    :param path: file to write; its suffix names the format.
    :param frames: (H, W, 3) uint8 RGB each, H and W even; at least one.
    :param fps: frames a second.
    :param crf: quality, 0 (lossless for the encoder) to 51.
    :param key_frame_every: most frames from one key frame to the next.
    :param options: further options of the container or of libx264.
    :raises ValueError: no frame, or sizes that h264 does not take.
    """
    av = _import_av()
    rate = Fraction(fps).limit_denominator(1001)
    with av.open(str(path), "w", options=dict(options or {})) as container:
        stream = None
        for frame in frames:
            if stream is None:
                height, width = frame.shape[:2]
                if height % 2 or width % 2:
                    raise ValueError(f"expected even sizes but got {height} x {width}")
                stream = container.add_stream("libx264", rate=rate)
                stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
                stream.codec_context.thread_count = 1  # files would differ
                stream.options = {
                    "preset": "veryfast",
                    "crf": str(crf),
                    "g": str(key_frame_every),
                    "bf": "3",
                    **(options or {}),
                }
            image = av.VideoFrame.from_ndarray(frame, format="rgb24")
            container.mux(stream.encode(image))
        if stream is None:
            raise ValueError("expected at least one frame but got none")
        container.mux(stream.encode(None))


def fitted_size(height: int, width: int, image_size: int) -> tuple[int, int]:
    """Size of a frame whose longer side is scaled to a size, at least 1 pixel.

    >>> fitted_size(1080, 1920, 448)
    (252, 448)

    :param image_size: pixels of the longer side.
    :return: height and width.
    """
    scale = image_size / max(height, width)
    return max(1, round(height * scale)), max(1, round(width * scale))


class VideoFolder:
    """The clips of a folder, ``<folder>/<clip uid>.mp4``.

    Files are opened on first use in each process and stay open until others take their
    place. A pickle, and so a worker, has none of them.

    :param folder: the folder.
    :param backend: as in :func:`open_video`.
    :param threads: threads of each decoder.
    :param max_open: most files open at once in a process; a decoder takes 14 to 34 MB
        at 640 x 480.
    :raises ValueError: no such backend, or a number below 1.
    :raises ImportError: the backend is not installed.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        backend: str = "auto",
        threads: int = 1,
        max_open: int = 4,
    ) -> None:
        _reader_kind(backend)
        if min(threads, max_open) < 1:
            raise ValueError(
                f"expected threads and max_open >= 1 but got {threads} and {max_open}"
            )
        self.folder = Path(folder).expanduser()
        self.backend, self.threads, self.max_open = backend, threads, max_open
        self._infos: LRUCache[str, VideoInfo] = LRUCache(_LISTED_FILES)
        self._open = PerProcess(partial(_OpenVideos, max_open))

    def path(self, clip_id: str) -> Path:
        """File of a clip.

        :raises DataError: the uid could name a file outside the folder.
        """
        check_plain_id(self.folder, clip_id)
        return self.folder / f"{clip_id}{VIDEO_SUFFIX}"

    def missing(self, clip_ids: Iterable[str]) -> list[str]:
        """Those of the clips that have no file.

        :param clip_ids: uids.
        """
        return [clip_id for clip_id in clip_ids if not self.path(clip_id).is_file()]

    def info(self, clip_id: str) -> VideoInfo:
        """What a clip's file holds; the last few hundred are remembered.

        :raises FileNotFoundError: no such file.
        :raises VideoError: the file is damaged.
        """
        info = self._infos.get(clip_id)
        if info is None:
            info = self._infos[clip_id] = probe_video(self.path(clip_id))
        return info

    def read(
        self,
        clip_id: str,
        frames: Sequence[int],
        *,
        size: tuple[int, int] | None = None,
    ) -> Tensor:
        """Frames of a clip; see :meth:`VideoReader.read`.

        :param clip_id: uid.
        :raises FileNotFoundError: no such file.
        """
        return self._reader(clip_id).read(frames, size=size)

    def close(self) -> None:
        """Close the files that this process has open; reading opens them again."""
        self._open.get().make_room(0)

    def _reader(self, clip_id: str) -> VideoReader:
        readers = self._open.get()
        reader = readers.get(clip_id)
        if reader is None:
            readers.make_room(self.max_open - 1)
            reader = readers[clip_id] = open_video(
                self.path(clip_id),
                backend=self.backend,
                threads=self.threads,
                info=self.info(clip_id),
            )
        return reader


class _OpenVideos(LRUCache):
    """Readers of a process by clip."""

    def make_room(self, max_open: int) -> None:
        """Close those that were used longest ago, until some are open at most."""
        while len(self) > max_open:
            self.popitem()[1].close()


# --- Listing --------------------------------------------------------------------------


def _import_av() -> ModuleType:
    try:
        import av
    except ImportError:
        raise ImportError(
            "reading video needs the package av (PyAV): pip install av"
        ) from None
    return av


def _unreadable(path: Path, error: Exception) -> VideoError:
    reason = str(error).partition(": '")[0]
    return VideoError(path, f"not a readable video: {reason}", hint=_COPY_HINT)


def _listed(av: ModuleType, path: Path, container: Any) -> VideoInfo:
    if not container.streams.video:
        raise VideoError(path, "the file has no video stream")
    stream = container.streams.video[0]
    packets = [
        (p.pts if p.pts is not None else p.dts, p.is_keyframe, p.is_discard)
        for p in container.demux(stream)
        if p.size
    ]
    if not packets:
        raise VideoError(path, "the file holds no frame", hint=_COPY_HINT)
    if len(packets) < stream.frames:
        problem = f"truncated: its header says {stream.frames} frames, but only "
        raise VideoError(path, f"{problem}{len(packets)} are there", hint=_COPY_HINT)
    if any(pts is None for pts, _, _ in packets):
        hint = "write it again with time stamps: ffmpeg -i IN -c:v libx264 OUT.mp4"
        raise VideoError(path, "frames have no time stamps", hint=hint)
    shown = sorted((pts, is_key) for pts, is_key, is_hidden in packets if not is_hidden)
    pts = np.array([pts for pts, _ in shown], dtype=np.int64)
    key_stamps = accumulate(
        (t if is_key else _BEFORE_ALL for t, is_key, _ in packets), max
    )
    keys = np.flatnonzero([is_key for _, is_key in shown])
    info = VideoInfo(
        path,
        stream.height,
        stream.width,
        pts,
        stream.time_base,
        float(stream.average_rate or stream.guessed_rate or 1),
        keys.astype(np.int64),
        any(t < key for (t, _, _), key in zip(packets, key_stamps, strict=True)),
    )
    _check_listed(info, stream, container.duration)
    return info


def _check_listed(info: VideoInfo, stream: Any, container_ticks: int | None) -> None:
    if not info.n_frames or not info.height or not info.width:
        raise VideoError(info.path, "the file holds no frame that can be shown")
    if (np.diff(info.pts) <= 0).any():
        raise VideoError(info.path, "two frames have one time stamp")
    if stream.frames or container_ticks is None:
        return
    # Formats without a number of frames in the header have a duration there.
    declared = container_ticks / 1e6
    if info.duration_sec < 0.9 * declared - _SHORTFALL_SEC:
        problem = f"truncated: its header says {declared:.1f} s, but the frames end at "
        problem += f"{info.duration_sec:.1f} s"
        raise VideoError(info.path, problem, hint=_COPY_HINT)


# --- Decoding -------------------------------------------------------------------------


class VideoReader(ABC):
    """One open video file, of one process: hand a :class:`VideoFolder` to workers.

    What decoders share is the order of frames, and their size.
    """

    def __init__(self, info: VideoInfo) -> None:
        self.info = info

    @abstractmethod
    def close(self) -> None:
        """Free the file and the decoder; reading again is an error."""

    @abstractmethod
    def _decoded(self, frames: Sequence[int]) -> Iterator[NDArray[np.uint8]]:
        """(H, W, 3) of each frame; numbers ascend and are distinct."""

    def read(
        self, frames: Sequence[int], *, size: tuple[int, int] | None = None
    ) -> Tensor:
        """Frames in the order asked, which may be any, with repeats.

        Memory: what is returned, and a few frames at the file's size.

        :param frames: N frame numbers, from 0.
        :param size: height and width to resize each frame to, bilinear with
            antialiasing; ``None`` is the file's own.
        :return: (N, 3, H, W) uint8 RGB.
        :raises IndexError: no such frame.
        :raises VideoError: a frame cannot be decoded.
        """
        wanted = self._checked(frames)
        distinct, places = np.unique(wanted, return_inverse=True)
        height, width = size or (self.info.height, self.info.width)
        images = torch.empty(len(distinct), 3, height, width, dtype=torch.uint8)
        decoded = self._decoded(distinct.tolist())
        for image, frame in zip(images, decoded, strict=True):
            image.copy_(self._resized(frame, (height, width)))
        if np.array_equal(wanted, distinct):
            return images
        return images[torch.from_numpy(places)]

    def _checked(self, frames: Sequence[int]) -> NDArray[np.int64]:
        wanted = np.asarray(frames)
        if wanted.ndim != 1 or (wanted.size and wanted.dtype.kind not in "iu"):
            raise TypeError(f"expected a list of frame numbers but got {frames!r}")
        wanted = wanted.astype(np.int64)
        outside = wanted[(wanted < 0) | (wanted >= self.info.n_frames)]
        if outside.size:
            raise IndexError(
                f"{self.info.path} has frames 0 to {self.info.n_frames - 1} but got "
                f"{outside[0]}"
            )
        return wanted

    def _resized(self, frame: NDArray[np.uint8], size: tuple[int, int]) -> Tensor:
        expected = (self.info.height, self.info.width, 3)
        if frame.shape != expected:
            problem = f"expected frames of {expected[:2]} but got {frame.shape[:2]}"
            raise VideoError(self.info.path, problem, hint="rotated or changing size")
        image = torch.from_numpy(frame).permute(2, 0, 1)
        if size == expected[:2]:
            return image
        return interpolate(image[None], size, mode="bilinear", antialias=True)[0]

    def _failed(self, frame: int, error: object) -> VideoError:
        reason = str(error).strip().partition("\n")[0].partition(": '")[0]
        problem = f"frame {frame} of {self.info.n_frames} cannot be decoded: {reason}"
        return VideoError(self.info.path, problem, hint=_COPY_HINT)

    def __reduce__(self) -> str:
        raise TypeError("an open video does not pickle: hand over a VideoFolder")


class _PyAVReader(VideoReader):
    """Decodes forward from the key frame before the frame that is wanted."""

    def __init__(self, info: VideoInfo, threads: int) -> None:
        super().__init__(info)
        self._av = _import_av()
        self._container = self._av.open(str(info.path))
        self._stream = self._container.streams.video[0]
        self._stream.codec_context.thread_count = threads
        self._ahead: Iterator[Any] | None = None
        self._next = 0

    def close(self) -> None:
        self._ahead = None
        self._container.close()

    def _decoded(self, frames: Sequence[int]) -> Iterator[NDArray[np.uint8]]:
        for frame in frames:
            try:
                decoded = self._frame(frame)
                yield decoded.to_ndarray(format="rgb24")
            except (self._av.FFmpegError, EOFError) as error:
                self._ahead = None
                raise self._failed(frame, error) from None

    def _frame(self, frame: int) -> Any:
        starts = self.info.keys[self.info.keys <= frame].tolist() or [0]
        if self._ahead is not None and starts[-1] <= self._next <= frame:
            decoded = self._advance(frame)
            if decoded is not None:
                return decoded
        # Frames that lean on an earlier group of pictures need an earlier start.
        for start in reversed(starts[-_STARTS_TRIED:]):
            offset = int(self.info.pts[start])
            self._container.seek(offset, stream=self._stream, backward=True)
            self._ahead, self._next = self._container.decode(self._stream), start
            decoded = self._advance(frame)
            if decoded is not None:
                return decoded
        raise self._failed(frame, "it does not come out of the decoder")

    def _advance(self, frame: int) -> Any:
        """The frame, or None if the decoder is past it."""
        wanted = int(self.info.pts[frame])
        for decoded in self._ahead or ():
            pts = decoded.pts
            if pts is None or pts < wanted:
                continue
            if pts > wanted:
                break
            self._next = frame + 1
            if decoded.is_corrupt:
                raise self._failed(frame, "its data are damaged")
            return decoded
        self._ahead = None
        return None


class _DecordReader(VideoReader):
    def __init__(self, info: VideoInfo, threads: int) -> None:
        super().__init__(info)
        # PyAV, which listed the file, must be imported first: decord shares its
        # libraries with what comes later.
        import decord

        hint = 'read it with backend="pyav"'
        if info.has_leading_frames:
            problem = "decord miscounts frames of open groups of pictures"
            raise VideoError(info.path, problem, hint=hint)
        try:
            self._reader = decord.VideoReader(
                str(info.path), num_threads=threads, fault_tol=_NO_REPEATED_FRAME
            )
        except (RuntimeError, decord.DECORDError) as error:
            raise _unreadable(info.path, error) from None
        self._errors = (RuntimeError, IndexError, decord.DECORDError)
        if len(self._reader) != info.n_frames:
            problem = f"decord finds {len(self._reader)} frames where PyAV finds "
            raise VideoError(info.path, f"{problem}{info.n_frames}", hint=hint)

    def close(self) -> None:
        self._reader = None

    def _decoded(self, frames: Sequence[int]) -> Iterator[NDArray[np.uint8]]:
        for start in range(0, len(frames), _DECODED_AT_ONCE):
            part = frames[start : start + _DECODED_AT_ONCE]
            try:
                decoded = self._reader.get_batch(list(part)).asnumpy()
            except self._errors as error:
                raise self._failed(part[0], error) from None
            yield from decoded


def _reader_kind(backend: str) -> type[_PyAVReader] | type[_DecordReader]:
    if backend not in VIDEO_BACKENDS:
        raise ValueError(
            f"expected backend in {list(VIDEO_BACKENDS)} but got {backend!r}"
        )
    has_decord = find_spec("decord") is not None
    if backend == "decord" and not has_decord:
        raise ImportError(
            "decord is not installed (it has wheels for Linux on x86-64): "
            'pip install decord, or pass backend="pyav"'
        )
    return _DecordReader if backend != "pyav" and has_decord else _PyAVReader
