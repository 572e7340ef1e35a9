"""Frames of video files: exact frames, equal from either decoder, in bounded memory.

decord decodes where it has a wheel and reads the file as PyAV does, because it is the
fastest on dense windows; PyAV elsewhere, and by ``backend="pyav"``. PyAV also lists the
frames of every file, so that lengths, times and what counts as damaged do not depend on
the decoder. Frames are decoded at the file's size and resized one by one by the same
function, so their values do not depend on it either.

Frame k is the k-th frame that is shown, from 0: in the order of presentation, after the
file's edit list, upright as the file's flags say. Its time counts from the first frame
that is shown and comes from the time stamps, never from a rounded rate. What a file
holds is remembered in the user's cache until the file changes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import torch
from cachetools import LRUCache
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from avalanche_vilco.core.errors import DataError
from avalanche_vilco.core.handles import PerProcess
from avalanche_vilco.core.remembered import remembered
from avalanche_vilco.core.schema import check_plain_id

VIDEO_BACKENDS = ("auto", "decord", "pyav")
VIDEO_SUFFIX = ".mp4"

_COPY_HINT = "copy or download it again"
_WRITE_HINT = "write it again: ffmpeg -i IN -c:v libx264 -pix_fmt yuv420p OUT.mp4"
_DECORD_HINT = 'read it with backend="pyav" or "auto"'
_PROBE_VERSION = 1
_ATTACHED_PICTURE = 0x400
_QUARTER_TURN_TOLERANCE = 0.0175  # one degree, as ffmpeg has it
# What decord 0.6.0 gives the same values of as PyAV does, in even sizes.
_DECORD_CODECS = ("h264", "hevc", "mpeg4", "vp9")
_DECORD_FORMATS = ("yuv420p", "yuvj420p")
_DECODED_AT_ONCE = 8
_LISTED_FILES = 512
_SHORTFALL_SEC = 1.0
_STARTS_TRIED = 3
_BEFORE_ALL = -(2**63)
# decord repeats a neighbour for a frame that it cannot decode, up to this share.
_NO_REPEATED_FRAME = 1e-9


class VideoError(DataError):
    """A video file is damaged, or is not the one that annotations speak of."""


class UnsupportedVideo(VideoError):
    """A video file is sound, but is not read as it is; the hint says the way out."""


@dataclass(frozen=True, eq=False)
class VideoInfo:
    """What a video file holds, known without decoding more than a frame."""

    path: Path
    height: int
    """Of upright pictures, in pixels as they are stored, which need not be square."""
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
    codec: str = ""
    """FFmpeg's name of it, such as ``"h264"``."""
    pixel_format: str = ""
    """FFmpeg's name of it, such as ``"yuv420p"``."""
    turn: tuple[bool, bool, bool] = (False, False, False)
    """How stored pictures become upright, by the file's display matrix: rows and
    columns change places, then rows, then columns are reversed."""
    n_hidden: int = 0
    """Frames in the file that its edit list does not show."""
    n_tracks: int = 1
    """Video tracks in the file, cover pictures apart; FFmpeg's best one is read."""
    is_interlaced: bool = False
    pixel_aspect: float = 1.0
    """Width of a pixel by its height; pictures are not stretched by it."""

    @property
    def decord_fault(self) -> str:
        """Why decord would read other frames than PyAV; empty: it reads the same."""
        is_odd = (self.height | self.width) & 1
        faults = {
            f"it cannot decode {self.codec}": self.codec not in _DECORD_CODECS,
            f"it converts {self.pixel_format} otherwise, or in odd sizes": (
                is_odd or self.pixel_format not in _DECORD_FORMATS
            ),
            # It takes padded rows for pixels of more channels.
            "it fails in pictures narrower than 64 pixels": self.width < 64,
            "it converts interlaced frames otherwise": self.is_interlaced,
            "it does not mirror pictures": sum(self.turn) % 2,
            f"it counts the {self.n_hidden} frames that an edit list hides": (
                self.n_hidden
            ),
            f"it may choose another of {self.n_tracks} tracks": self.n_tracks > 1,
            "decord miscounts frames of open groups of pictures": (
                self.has_leading_frames
            ),
        }
        return next((fault for fault, holds in faults.items() if holds), "")

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
    def is_constant_rate(self) -> bool:
        """Whether frames last equally long, up to the rounding of time stamps."""
        return self.n_frames < 3 or int(np.ptp(np.diff(self.pts))) <= 1

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
    """List the frames of a file, and decode the first.

    The answer is remembered until the file changes.

    :param path: video file.
    :raises FileNotFoundError: no such file.
    :raises VideoError: empty, no video, or it holds fewer frames than its header says.
    :raises UnsupportedVideo: sound, but no decoder reads it as it is.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"no video at {path}")
    version = f"{_PROBE_VERSION} {_import_av().__version__}"
    hooks = (_stored, _restored)
    found = remembered(path, _Probed, _probe, version=version, hooks=hooks)
    if found.info is None:
        kind = VideoError if found.is_damaged else UnsupportedVideo
        raise kind(path, found.problem, hint=found.hint)
    return replace(found.info, path=path)


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
    :raises UnsupportedVideo: the backend asked for by name would read other frames.
    """
    kind = _reader_kind(backend)
    if threads < 1:
        raise ValueError(f"expected threads >= 1 but got {threads}")
    info = probe_video(path) if info is None else info
    if backend != "auto" or kind is _PyAVReader:
        return kind(info, threads)
    try:
        return kind(info, threads)
    except VideoError:
        return _PyAVReader(info, threads)


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
        :raises UnsupportedVideo: it is sound, but not for the folder's backend.
        """
        info = self._infos.get(clip_id)
        if info is None:
            info = probe_video(self.path(clip_id))
            if self.backend == "decord":
                _check_decord(info)
            self._infos[clip_id] = info
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
    if isinstance(error, PermissionError):
        hint = "make it readable for this user"
    else:
        hint = _COPY_HINT if isinstance(error, ValueError | EOFError) else _WRITE_HINT
    kind = UnsupportedVideo if hint == _WRITE_HINT else VideoError
    return kind(path, f"not a readable video: {reason}", hint=hint)


class _Probed(msgspec.Struct):
    """What a file holds, or why it is refused."""

    info: VideoInfo | None = None
    problem: str = ""
    hint: str = ""
    is_damaged: bool = True


def _stored(value: Any) -> Any:
    """As msgspec takes it; numbers that ascend as steps, which are mostly equal."""
    if isinstance(value, np.ndarray):
        return np.diff(value, prepend=0).astype("<i8").tobytes()
    return str(value)


def _restored(kind: Any, value: Any) -> Any:
    if kind in (Path, Fraction):
        return kind(value)
    return np.cumsum(np.frombuffer(value, "<i8"), dtype=np.int64)


def _probe(path: Path) -> _Probed:
    av = _import_av()
    try:
        if not path.stat().st_size:
            raise VideoError(path, "the file is empty", hint=_COPY_HINT)
        with av.open(str(path), metadata_errors="replace") as container:
            return _Probed(_listed(av, path, container))
    except VideoError as error:
        refusal = error
    except av.FFmpegError as error:
        refusal = _unreadable(path, error)
        if isinstance(error, OSError):
            # It may go another time: not remembered.
            raise refusal from None
    is_damaged = not isinstance(refusal, UnsupportedVideo)
    return _Probed(None, refusal.problem, refusal.hint, is_damaged)


def _shown_tracks(container: Any) -> list[Any]:
    """Video tracks, the one to read first; cover pictures are none."""
    tracks = [
        stream
        for stream in container.streams.video
        if not int(getattr(stream, "disposition", 0)) & _ATTACHED_PICTURE
    ]
    best = container.streams.best("video")
    return sorted(tracks, key=lambda stream: stream is not best)


def _listed(av: ModuleType, path: Path, container: Any) -> VideoInfo:
    tracks = _shown_tracks(container)
    if not tracks:
        hint = "cut the clip again, with its pictures"
        raise UnsupportedVideo(path, "the file has no video stream", hint=hint)
    stream = tracks[0]
    if stream.codec_context is None:
        problem = "PyAV has no decoder for its codec"
        raise UnsupportedVideo(path, problem, hint=_WRITE_HINT)
    stream.codec_context.thread_count = 1
    packets = [
        (p.pts if p.pts is not None else p.dts, p.is_keyframe, p.is_discard)
        for p in container.demux(stream)
        if p.size and (last := p)
    ]
    n_hidden = _n_hidden(av, path, stream, packets)
    if last.is_corrupt:
        problem = "truncated: its last frame is not whole"
        raise VideoError(path, problem, hint=_COPY_HINT)
    if any(pts is None for pts, _, _ in packets):
        raise UnsupportedVideo(path, "frames have no time stamps", hint=_WRITE_HINT)
    shown = sorted((pts, is_key) for pts, is_key, is_hidden in packets if not is_hidden)
    pts = np.array([pts for pts, _ in shown], dtype=np.int64)
    key_stamps = accumulate(
        (t if is_key else _BEFORE_ALL for t, is_key, _ in packets), max
    )
    keys = np.flatnonzero([is_key for _, is_key in shown])
    container.seek(int(pts[0]), stream=stream, backward=True)
    frame = next(container.decode(stream), None)
    if frame is None:
        problem = "no frame comes out of the decoder"
        raise VideoError(path, problem, hint=_COPY_HINT)
    codec, turn = stream.codec_context.codec, _turn(path, frame)
    height, width = frame.height, frame.width
    info = VideoInfo(
        path,
        *((width, height) if turn[0] else (height, width)),
        pts,
        stream.time_base,
        float(stream.average_rate or stream.guessed_rate or 1),
        keys.astype(np.int64),
        any(t < key for (t, _, _), key in zip(packets, key_stamps, strict=True)),
        getattr(codec, "canonical_name", codec.name),
        frame.format.name,
        turn,
        n_hidden,
        len(tracks),
        bool(frame.interlaced_frame),
        float(stream.sample_aspect_ratio or 1) ** (-1 if turn[0] else 1),
    )
    _check_listed(info, stream, container.duration)
    return info


def _n_hidden(
    av: ModuleType, path: Path, stream: Any, packets: Sequence[tuple[Any, Any, bool]]
) -> int:
    """Frames that an edit list does not show, where no frame is missing."""
    declared, n_listed = stream.frames, len(packets)
    if n_listed < declared:
        # Either the end of the file is missing, or an edit list leaves out its frames.
        options = {"ignore_editlist": "1"}
        with av.open(str(path), options=options, metadata_errors="replace") as whole:
            track = whole.streams[stream.index]
            n_there = sum(1 for packet in whole.demux(track) if packet.size)
        if n_there < declared:
            problem = f"truncated: its header says {declared} frames, but only "
            raise VideoError(path, f"{problem}{n_there} are there", hint=_COPY_HINT)
    n_hidden = sum(is_hidden for _, _, is_hidden in packets)
    if n_hidden < n_listed:
        return n_hidden + max(0, declared - n_listed)
    if declared:
        hint = "write it again: ffmpeg -ignore_editlist 1 -i IN -c:v libx264 OUT.mp4"
        problem = f"its edit list shows none of its {declared} frames"
        raise UnsupportedVideo(path, problem, hint=hint)
    raise VideoError(path, "the file holds no frame", hint=_COPY_HINT)


def _turn(path: Path, frame: Any) -> tuple[bool, bool, bool]:
    """How a frame becomes upright, see :class:`VideoInfo`.

    The display matrix maps column and row (x, y) to (a x + c y, b x + d y).
    """
    data = frame.side_data.get("DISPLAYMATRIX")
    if data is None:
        return False, False, False
    (a, b), (c, d) = np.frombuffer(bytes(data), "<i4").reshape(3, 3)[:2, :2].tolist()
    is_transposed = abs(b) > abs(a)
    across, down, *rest = (c, b, a, d) if is_transposed else (a, d, b, c)
    if not any((across, down, *rest)):
        return False, False, False
    if max(map(abs, rest)) > _QUARTER_TURN_TOLERANCE * min(abs(across), abs(down)):
        degrees = abs(math.degrees(math.atan2(b, a)))
        problem = f"its flag turns pictures by {degrees:.0f} degrees, which is no "
        raise UnsupportedVideo(path, f"{problem}quarter turn", hint=_WRITE_HINT)
    return is_transposed, down < 0, across < 0


def _upright(
    frame: NDArray[np.uint8], turn: tuple[bool, bool, bool]
) -> NDArray[np.uint8]:
    is_transposed, down, across = turn
    if is_transposed:
        frame = frame.transpose(1, 0, 2)
    return np.ascontiguousarray(
        frame[:: -1 if down else 1, :: -1 if across else 1], dtype=np.uint8
    )


def _check_listed(info: VideoInfo, stream: Any, container_ticks: int | None) -> None:
    if (np.diff(info.pts) <= 0).any():
        problem = "two frames have one time stamp"
        raise UnsupportedVideo(info.path, problem, hint=_WRITE_HINT)
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
            raise UnsupportedVideo(self.info.path, problem, hint=_WRITE_HINT)
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
        self._av, self._threads = _import_av(), threads
        self._ahead: Iterator[Any] | None = None
        self._open()

    def _open(self) -> None:
        path = str(self.info.path)
        self._container = self._av.open(path, metadata_errors="replace")
        self._stream = _shown_tracks(self._container)[0]
        self._stream.codec_context.thread_count = self._threads
        self._next = 0

    def close(self) -> None:
        self._ahead = None
        self._container.close()

    def _decoded(self, frames: Sequence[int]) -> Iterator[NDArray[np.uint8]]:
        for frame in frames:
            try:
                decoded = self._frame(frame)
                yield _upright(decoded.to_ndarray(format="rgb24"), self.info.turn)
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
        # Seeking misses frames of files that are edited more than once.
        self.close()
        self._open()
        self._ahead = self._container.decode(self._stream)
        decoded = self._advance(frame)
        if decoded is None:
            raise self._failed(frame, "it does not come out of the decoder")
        return decoded

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

        _check_decord(info)
        try:
            self._reader = decord.VideoReader(
                str(info.path), num_threads=threads, fault_tol=_NO_REPEATED_FRAME
            )
        except (RuntimeError, decord.DECORDError) as error:
            problem = f"decord cannot open it: {error}".partition("\n")[0]
            raise UnsupportedVideo(info.path, problem, hint=_DECORD_HINT) from None
        self._errors = (RuntimeError, IndexError, decord.DECORDError)
        found = f"{len(self._reader)} frames"
        is_same = len(self._reader) == info.n_frames
        if is_same and any(info.turn):
            # It knows the container's flag alone.
            found = "pictures that are turned otherwise"
            reference = _PyAVReader(info, 1)
            is_same = torch.equal(self.read([0]), reference.read([0]))
            reference.close()
        if not is_same:
            problem = f"decord finds {found} where PyAV finds {info.n_frames} frames"
            raise UnsupportedVideo(info.path, problem, hint=_DECORD_HINT)

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


def _check_decord(info: VideoInfo) -> None:
    if info.decord_fault:
        problem = f"decord does not read it exactly: {info.decord_fault}"
        raise UnsupportedVideo(info.path, problem, hint=_DECORD_HINT)


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
