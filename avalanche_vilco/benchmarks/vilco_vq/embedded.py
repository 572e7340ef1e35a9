"""A small generated set of visual queries: the package's embedded default.

It stands in for the licensed data, in the same on-disk layout: real h264 files of 5
frames a second, ``clips/<clip_uid>.mp4``, and annotations in Ego4D's own form, so that
the same readers, benchmarks and metrics run on it. Clips show textured objects that
move, come and go before a moving background (see ``docs/vilco_vq.md``). It is drawn
from a fixed seed on first use, cached, and frozen: a change to what it contains needs a
new ``MiniVQConfig.version``. Scores on it say nothing about scores on the real data.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from avalanche_vilco.benchmarks.embedded import (
    SUBSETS,
    Array,
    EmbeddedConfig,
    Record,
    draw_uid,
    folder_sha256,
    require_at_least_one,
)
from avalanche_vilco.benchmarks.vilco_vq.annotations import (
    CLIP_FOLDER,
    OFFICIAL_VQ_FILES,
    Box,
)
from avalanche_vilco.core.files import sha256_of
from avalanche_vilco.data.media.video import VIDEO_SUFFIX, write_video

__all__ = ["MINI_VQ", "MINI_VQ_TITLES", "MiniVQConfig"]

Shape: TypeAlias = Callable[[Array, Array], Array]
_VIDEO, _CLIP, _SCENERY, _NOTES = range(4)
_FPS = 5
_VIDEO_FPS = 30
_SETS_OF_AN_ANNOTATION = 3
_PLACES_TRIED = 12

PALETTES: Mapping[str, tuple[tuple[int, int, int], tuple[int, int, int]]] = {
    "red": ((214, 40, 40), (250, 240, 230)),
    "blue": ((40, 70, 200), (250, 220, 70)),
    "green": ((40, 150, 60), (20, 25, 30)),
    "purple": ((130, 50, 170), (250, 160, 60)),
    "cyan": ((60, 200, 220), (160, 30, 50)),
    "brown": ((130, 80, 40), (240, 220, 170)),
    "pink": ((245, 130, 180), (30, 40, 100)),
    "gray": ((190, 190, 195), (50, 110, 100)),
}
"""Name of two colours -> both, RGB."""
TEXTURES: Mapping[str, Shape] = {
    "striped": lambda u, v: np.sin(7.5 * u),
    "checked": lambda u, v: np.sin(5.0 * u) * np.sin(5.0 * v),
    "dotted": lambda u, v: np.cos(6.0 * u) + np.cos(6.0 * v) - 0.6,
    "ringed": lambda u, v: np.cos(9.0 * np.hypot(u, v)),
    "halved": lambda u, v: v + 0.0 * u,
}
"""Name -> function of the place on the object; the sign chooses the colour."""
SHAPES: Mapping[str, Shape] = {
    "plate": lambda u, v: np.hypot(u, v),
    "box": lambda u, v: np.maximum(np.abs(u), np.abs(v)) / 0.85,
    "kite": lambda u, v: np.abs(u) + np.abs(v),
    "cross": lambda u, v: np.maximum(
        np.minimum(np.abs(u), np.abs(v)) / 0.42, np.maximum(np.abs(u), np.abs(v))
    ),
}
"""Name -> function of the place on the object, below 1 inside."""
N_SCENES = 5


@dataclass(frozen=True)
class Look:
    """What an object looks like; its title says so."""

    palette: str
    texture: str
    shape: str
    scene: int
    """The scene that it belongs to."""

    @property
    def title(self) -> str:
        """Such as "red striped plate"."""
        return f"{self.palette} {self.texture} {self.shape}"


_TEXTURE_NAMES, _SHAPE_NAMES = list(TEXTURES), list(SHAPES)
# Each scene has each palette once, and each texture with another one.
_LOOKS = tuple(
    Look(
        palette,
        _TEXTURE_NAMES[(p + scene) % len(_TEXTURE_NAMES)],
        _SHAPE_NAMES[(p + 2 * scene + p // 4) % len(_SHAPE_NAMES)],
        scene,
    )
    for scene in range(N_SCENES)
    for p, palette in enumerate(PALETTES)
)
MINI_VQ_TITLES: tuple[str, ...] = tuple(look.title for look in _LOOKS)
"""Titles, those of one scene after those of the other."""


@dataclass(frozen=True)
class MiniVQConfig(EmbeddedConfig):
    """Everything that the generated data depend on; the defaults are frozen.

    :param seed: seed of all streams.
    :param n_train: train clips, at least 1.
    :param n_val: validation clips, at least 1.
    :param n_test: clips whose queries have no track.
    :param queries_per_clip: objects asked for in a clip, 1 to 8.
    :param clip_frames: shortest and longest clip, frames of a fifth of a second.
    :param frame_size: height and width of the files, even.
    :param object_pixels: smallest and largest side of an object.
    :param track_frames: shortest and longest appearance.
    :param home_share: share of the queries that belong to the clip's scene; at least
        half of each clip's do.
    :param lookalike_share: share of the queries of which another object with the same
        colours appears.
    :param annotation_scale: the annotations' frame is this many times as large as the
        file's, as with Ego4D's own clips.
    """

    name = "mini_vq"
    version = "1"
    seed: int = 911
    n_train: int = 60
    n_val: int = 30
    n_test: int = 4
    queries_per_clip: int = 5
    clip_frames: tuple[int, int] = (80, 120)
    frame_size: tuple[int, int] = (96, 128)
    object_pixels: tuple[float, float] = (20.0, 34.0)
    track_frames: tuple[int, int] = (6, 18)
    home_share: float = 0.8
    lookalike_share: float = 0.75
    annotation_scale: int = 4

    def __post_init__(self) -> None:
        require_at_least_one(self, "n_train", "n_val", "annotation_scale")
        if not 1 <= self.queries_per_clip <= len(PALETTES):
            raise ValueError(
                f"expected queries_per_clip in 1..{len(PALETTES)} "
                f"but got {self.queries_per_clip}"
            )
        longest = self.track_frames[1]
        if not 4 * longest <= self.clip_frames[0] <= self.clip_frames[1]:
            raise ValueError(
                "expected clips of at least four times the longest appearance, "
                f"{4 * longest} frames, but got clip_frames {self.clip_frames}"
            )

    def generate(self, folder: Path) -> Path:
        """Write the data into a folder, always the same for the same knobs."""
        (folder / CLIP_FOLDER).mkdir(parents=True, exist_ok=True)
        counts: Counter[str] = Counter()
        for subset in SUBSETS:
            if self.clip_count(subset):
                _write_subset(folder, self, subset, counts)
        self.write_manifest(
            folder,
            counts=dict(counts),
            # The same pictures give other bytes with another encoder.
            encoder=f"libx264 of av {installed_version('av')}",
        )
        return folder

    def contents(self, folder: Path) -> dict[str, Any]:
        """Hashes of all files."""
        names = [n for s, n in OFFICIAL_VQ_FILES.items() if self.clip_count(s)]
        return {
            "clips_sha256": folder_sha256(folder / CLIP_FOLDER),
            "sha256": {name: sha256_of(folder / name) for name in names},
        }


MINI_VQ = MiniVQConfig()
"""The embedded default: ``MINI_VQ.root()`` is its folder, a data root."""


# --- What happens in a clip -----------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Appearance:
    """An object from when it comes to when it goes."""

    look: Look
    start: int
    centres: Array  # (L, 2) as (x, y), pixels
    sides: Array  # (L,) pixels
    angles: Array  # (L,) radians
    gain: float

    @property
    def stop(self) -> int:
        return self.start + len(self.sides)


@dataclass(frozen=True, eq=False)
class _Query:
    look: Look
    query_frame: int
    answer: _Appearance
    shown: _Appearance
    """Where the crop is taken from."""


@dataclass(frozen=True, eq=False)
class _Clip:
    uid: str
    video_uid: str
    subset: str
    number: int
    scenery: tuple[int, ...]
    """Address of the background's random numbers."""
    scene: int
    n_frames: int
    video_start_sec: float
    tint: Array  # (3,) gain of each colour
    appearances: list[_Appearance] = field(default_factory=list)
    queries: list[_Query] = field(default_factory=list)


def _clips(config: MiniVQConfig, subset: str) -> Iterator[_Clip]:
    """Clips of a subset.

    Two fifths share their parent video, and so its scenery, with the clip before.
    """
    number = SUBSETS.index(subset)
    video_uid, scene, start, parent = "", 0, 0.0, -1
    filled = [0] * N_SCENES
    for i in range(config.clip_count(subset)):
        rng = config.stream(_CLIP, number, i)
        is_new = bool(rng.random() < 0.6) or not video_uid
        if is_new:
            parent += 1
            video_uid = draw_uid(config.stream(_VIDEO, number, parent))
            scene, start = filled.index(min(filled)), 0.0
        filled[scene] += 1
        n_frames = int(rng.integers(config.clip_frames[0], config.clip_frames[1] + 1))
        start += float(np.round(rng.uniform(5, 60), 3))
        clip = _Clip(
            draw_uid(rng),
            video_uid,
            subset,
            i,
            (_SCENERY, number, parent),
            scene,
            n_frames,
            start,
            np.exp(rng.normal(0, 0.1, 3)),
        )
        start += n_frames / _FPS
        _fill(config, clip, rng)
        yield clip


def _fill(config: MiniVQConfig, clip: _Clip, rng: np.random.Generator) -> None:
    """Have objects appear and be asked for."""
    asked = _asked(config, clip.scene, rng)
    for look in asked:
        clip.queries.append(_query(config, clip, look, rng))
    for query in list(clip.queries):
        if rng.random() < config.lookalike_share:
            _add_lookalike(config, clip, query, rng)
    others = [look for look in _LOOKS if look not in asked]
    for i in rng.permutation(len(others))[:2]:
        length = _length(config, rng)
        start = int(rng.integers(0, clip.n_frames - length))
        _appear(config, clip, others[i], start, length, rng)


def _asked(config: MiniVQConfig, scene: int, rng: np.random.Generator) -> list[Look]:
    scene_looks = [look for look in _LOOKS if look.scene == scene]
    away = [look for look in _LOOKS if look.scene != scene]
    n_home = int(rng.binomial(config.queries_per_clip, config.home_share))
    n_home = max(n_home, (config.queries_per_clip + 1) // 2)
    chosen = [scene_looks[i] for i in rng.permutation(len(scene_looks))[:n_home]]
    # Colours differ within a scene; those from elsewhere must not break that.
    for i in rng.permutation(len(away)):
        if len(chosen) < config.queries_per_clip and all(
            away[i].palette != look.palette for look in chosen
        ):
            chosen.append(away[i])
    return chosen


def _length(config: MiniVQConfig, rng: np.random.Generator) -> int:
    return int(rng.integers(config.track_frames[0], config.track_frames[1] + 1))


def _query(
    config: MiniVQConfig, clip: _Clip, look: Look, rng: np.random.Generator
) -> _Query:
    """A query with two appearances or three.

    They are the answer, one before the answer or behind the query frame that the crop
    is taken from, and sometimes one more.
    """
    length, other = _length(config, rng), _length(config, rng)
    pause = int(rng.integers(2, 16))
    # Room for an appearance before the answer, and for one behind the query frame.
    last = clip.n_frames - config.track_frames[1] - 1
    query_frame = int(rng.integers(2 * config.track_frames[1] + 4, last + 1))
    start = max(query_frame - pause - length, config.track_frames[1] + 3)
    length = min(length, query_frame - 1 - start)
    answer = _appear(config, clip, look, start, length, rng)
    is_before = bool(rng.random() < 0.6)
    is_both = bool(rng.random() < 0.4)
    shown = None
    if is_before or is_both:
        first = int(rng.integers(0, start - other - 1))
        shown = _appear(config, clip, look, first, other, rng)
    if not is_before:
        first = int(rng.integers(query_frame, clip.n_frames - other))
        shown = _appear(config, clip, look, first, other, rng)
    assert shown is not None
    return _Query(look, query_frame, answer, shown)


def _add_lookalike(
    config: MiniVQConfig, clip: _Clip, query: _Query, rng: np.random.Generator
) -> None:
    """Another object of the same colours.

    Half of them are the last such thing to be seen before the query frame.
    """
    look = query.look
    alike = [
        k for k in _LOOKS if k.palette == look.palette and k.texture != look.texture
    ]
    length = _length(config, rng)
    start = int(rng.integers(0, clip.n_frames - length))
    if rng.random() < 0.5:
        start = query.answer.stop - int(rng.integers(0, length))
        length = min(length, max(query.query_frame - start, 2))
    _appear(config, clip, alike[rng.integers(len(alike))], start, length, rng)


def _appear(
    config: MiniVQConfig,
    clip: _Clip,
    look: Look,
    start: int,
    length: int,
    rng: np.random.Generator,
) -> _Appearance:
    """Add an appearance, on the path of some that meets others least."""
    tried = [_path(config, look, start, length, rng) for _ in range(_PLACES_TRIED)]
    best = min(tried, key=lambda one: _crowding(one, clip.appearances))
    clip.appearances.append(best)
    return best


def _path(
    config: MiniVQConfig, look: Look, start: int, length: int, rng: np.random.Generator
) -> _Appearance:
    height, width = config.frame_size
    steps = np.linspace(0, 1, length)
    side = rng.uniform(*config.object_pixels)
    sides = side * np.exp(rng.uniform(-0.2, 0.2) * (steps - 0.5))
    # One in ten moves along an edge, partly outside.
    margin = (0.35 if rng.random() < 0.1 else 0.6) * side
    room = np.array([width, height]) - 2 * margin
    begin, drift = rng.random(2), rng.normal(0, 0.25, 2)
    phases = rng.uniform(0, 2 * math.pi, 2)
    wobble = 0.06 * np.sin(2 * math.pi * steps[:, None] + phases)
    centres = np.clip(begin + drift * steps[:, None] + wobble, 0, 1) * room + margin
    angles = rng.uniform(-0.4, 0.4) + rng.uniform(-0.5, 0.5) * steps
    gain = float(np.exp(rng.normal(0, 0.15)))
    return _Appearance(look, start, centres, sides, angles, gain)


def _crowding(one: _Appearance, others: Sequence[_Appearance]) -> float:
    """Number of frames in which it meets others, and how closely."""
    met = 0.0
    for other in others:
        first, stop = max(one.start, other.start), min(one.stop, other.stop)
        if first >= stop:
            continue
        a, b = (slice(first - k.start, stop - k.start) for k in (one, other))
        apart = np.hypot(*(one.centres[a] - other.centres[b]).T)
        near = 1 - 2 * apart / (one.sides[a] + other.sides[b])
        met += float(np.clip(near, 0, None).sum())
    return met


# --- Pictures -------------------------------------------------------------------------


def _scenery(config: MiniVQConfig, clip: _Clip) -> NDArray[np.float64]:
    """A picture larger than the frame, for the camera to move over."""
    rng = config.stream(*clip.scenery)
    height, width = (2 * size for size in config.frame_size)
    hue = config.stream(_SCENERY, 99, clip.scene).uniform(70, 150, 3)
    picture = np.zeros((height, width, 3)) + hue
    for cells, strength in ((8, 26.0), (24, 14.0)):
        picture += strength * _smooth_noise(rng, height, width, cells)
    for _ in range(30):
        y, x = rng.integers(0, height), rng.integers(0, width)
        h, w = rng.integers(4, 30, 2)
        picture[y : y + h, x : x + w] += rng.normal(0, 22, 3)
    return np.clip(picture, 0, 255)


def _smooth_noise(
    rng: np.random.Generator, height: int, width: int, cells: int
) -> Array:
    """(height, width, 3) noise of about unit size, smooth over cells."""
    coarse = rng.standard_normal((cells + 1, cells + 1, 3))
    rows, columns = (np.linspace(0, cells, n, endpoint=False) for n in (height, width))
    top, left = rows.astype(int), columns.astype(int)
    down, right = (rows - top)[:, None, None], (columns - left)[:, None]
    upper = coarse[top][:, left] * (1 - right) + coarse[top][:, left + 1] * right
    lower = (
        coarse[top + 1][:, left] * (1 - right) + coarse[top + 1][:, left + 1] * right
    )
    noise: Array = upper * (1 - down) + lower * down
    return noise


def _camera(config: MiniVQConfig, clip: _Clip) -> NDArray[np.int64]:
    """(F, 2) row and column of the picture that the frame starts at."""
    rng = config.stream(_CLIP, SUBSETS.index(clip.subset), clip.number, 1)
    times = np.arange(clip.n_frames)[:, None] / _FPS
    periods, phases = rng.uniform(5, 12, (2, 2)), rng.uniform(0, 2 * math.pi, (2, 2))
    waves = np.sin(2 * math.pi * times[..., None] / periods + phases).mean(axis=-1)
    return ((0.5 + 0.5 * waves) * np.array(config.frame_size)).astype(np.int64)


@lru_cache(maxsize=64)
def _colours(palette: str) -> Array:
    return np.array(PALETTES[palette], dtype=np.float64)


def _sprite(one: _Appearance, step: int) -> tuple[Array, Array, int, int]:
    """Opacity (h, w), colour (h, w, 3), and row and column of the first pixel."""
    (x, y), side, angle = one.centres[step], one.sides[step], one.angles[step]
    reach = math.ceil(0.75 * side)
    left, top = math.floor(x) - reach, math.floor(y) - reach
    places = np.arange(2 * reach + 1) + 0.5
    dx, dy = (places + left - x)[None, :], (places + top - y)[:, None]
    cos, sin = math.cos(angle), math.sin(angle)
    u, v = (cos * dx + sin * dy) * 2 / side, (cos * dy - sin * dx) * 2 / side
    inside = (1 - SHAPES[one.look.shape](u, v)) * side / 2 + 0.5
    first = np.clip(TEXTURES[one.look.texture](u, v) * 2 + 0.5, 0, 1)[..., None]
    a, b = _colours(one.look.palette) * one.gain
    return np.clip(inside, 0, 1), first * a + (1 - first) * b, top, left


def _box(opacity: Array, top: int, left: int) -> Box:
    """What a careful annotator draws, in pixels of the file; may overhang it."""
    rows, columns = (np.flatnonzero((opacity > 0.5).any(axis=k)) for k in (1, 0))
    return (
        float(left + columns[0]),
        float(top + rows[0]),
        float(left + columns[-1] + 1),
        float(top + rows[-1] + 1),
    )


def _draw(
    config: MiniVQConfig, clip: _Clip
) -> tuple[NDArray[np.uint8], dict[_Appearance, list[Box]]]:
    """Frames (F, H, W, 3) of a clip, and the boxes of each appearance."""
    height, width = config.frame_size
    picture = _pixels(_scenery(config, clip) * clip.tint)
    camera = _camera(config, clip).tolist()
    frames = np.stack([picture[y : y + height, x : x + width] for y, x in camera])
    boxes: dict[_Appearance, list[Box]] = {}
    for one in clip.appearances:
        boxes[one] = []
        for step in range(len(one.sides)):
            opacity, colour, top, left = _sprite(one, step)
            boxes[one].append(_box(opacity, top, left))
            frame = frames[one.start + step]
            _paste(frame, opacity[..., None], colour * clip.tint, top, left)
    return frames, boxes


def _pixels(values: Array) -> NDArray[np.uint8]:
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)


def _paste(
    frame: NDArray[np.uint8], opacity: Array, colour: Array, top: int, left: int
) -> None:
    """Put a sprite into a frame, as far as it is inside."""
    rows = slice(max(top, 0), min(top + len(opacity), frame.shape[0]))
    columns = slice(max(left, 0), min(left + opacity.shape[1], frame.shape[1]))
    inside = (
        slice(rows.start - top, rows.stop - top),
        slice(columns.start - left, columns.stop - left),
    )
    behind = frame[rows, columns]
    frame[rows, columns] = _pixels(behind + opacity[inside] * (colour[inside] - behind))


# --- Files ----------------------------------------------------------------------------


def _write_subset(
    root: Path, config: MiniVQConfig, subset: str, counts: Counter[str]
) -> None:
    videos: dict[str, Record] = {}
    for clip in _clips(config, subset):
        frames, boxes = _draw(config, clip)
        write_video(root / CLIP_FOLDER / f"{clip.uid}{VIDEO_SUFFIX}", frames, _FPS)
        video = videos.setdefault(
            clip.video_uid, {"video_uid": clip.video_uid, "split": subset, "clips": []}
        )
        video["clips"].append(_clip_record(config, clip, boxes))
        counts[subset] += 1
        counts["queries"] += len(clip.queries)
        counts["frames"] += clip.n_frames
    content = {
        "version": "1.0.5",
        "date": "220325",
        "description": f"mini_vq v{config.version}, generated",
        "videos": list(videos.values()),
    }
    (root / OFFICIAL_VQ_FILES[subset]).write_text(
        json.dumps(content) + "\n", encoding="utf-8"
    )


def _clip_record(
    config: MiniVQConfig, clip: _Clip, boxes: Mapping[_Appearance, list[Box]]
) -> Record:
    rng = config.stream(_NOTES, SUBSETS.index(clip.subset), clip.number)
    seconds = clip.n_frames / _FPS
    end = clip.video_start_sec + seconds
    parts = range(0, len(clip.queries), _SETS_OF_AN_ANNOTATION)
    return {
        "clip_uid": clip.uid,
        "video_start_sec": clip.video_start_sec,
        "video_end_sec": end,
        "video_start_frame": round(clip.video_start_sec * _VIDEO_FPS),
        "video_end_frame": round(end * _VIDEO_FPS),
        "clip_start_sec": 0,
        "clip_end_sec": seconds,
        "clip_start_frame": 0,
        "clip_end_frame": clip.n_frames,
        "clip_fps": float(_FPS),
        "annotation_complete": True,
        "annotations": [
            _annotation(
                config, clip, clip.queries[i : i + _SETS_OF_AN_ANNOTATION], boxes, rng
            )
            for i in parts
        ],
    }


def _annotation(
    config: MiniVQConfig,
    clip: _Clip,
    queries: Sequence[_Query],
    boxes: Mapping[_Appearance, list[Box]],
    rng: np.random.Generator,
) -> Record:
    """Three query sets; those that the annotator left empty are not valid."""
    uid = draw_uid(rng)
    sets = [_query_set(config, clip, query, boxes, rng) for query in queries]
    empty = {
        "is_valid": False,
        "errors": [],
        "object_title": None,
        "query_frame": None,
        "visual_crop": None,
        "response_track": [],
    }
    sets += [empty] * (_SETS_OF_AN_ANNOTATION - len(sets))
    return {
        "annotation_uid": uid,
        "query_sets": {str(i + 1): one for i, one in enumerate(sets)},
    }


def _query_set(
    config: MiniVQConfig,
    clip: _Clip,
    query: _Query,
    boxes: Mapping[_Appearance, list[Box]],
    rng: np.random.Generator,
) -> Record:
    """A query set as the official files hold it, with their untidiness.

    A few titles are missing, or have capitals or a blank behind.
    """
    is_untitled, is_untidy = rng.random(2) < (0.01, 0.04)
    title = query.look.title
    if is_untidy:
        title = f"{title.capitalize()} "
    step = int(rng.integers(len(query.shown.sides)))

    def record(one: _Appearance, step: int) -> Record:
        frame = one.start + step
        return _box_record(config, clip, frame, boxes[one][step], rng)

    answer = query.answer
    track = [record(answer, step) for step in range(len(answer.sides))]
    content = {
        "is_valid": True,
        "errors": [],
        "object_title": None if is_untitled else title,
        "query_frame": query.query_frame,
        "query_video_frame": _video_frame(clip, query.query_frame),
        "visual_crop": record(query.shown, step),
        "response_track": track,
    }
    if clip.subset == "test":
        del content["response_track"]
    return content


def _video_frame(clip: _Clip, frame: int) -> int:
    return round((clip.video_start_sec + frame / _FPS) * _VIDEO_FPS)


def _box_record(
    config: MiniVQConfig, clip: _Clip, frame: int, box: Box, rng: np.random.Generator
) -> Record:
    """A box in the annotations' pixels, half a pixel of the file off at most times."""
    scale = config.annotation_scale
    height, width = (scale * size for size in config.frame_size)
    off = rng.normal(0, 0.25, 4)
    x1, y1, x2, y2 = (
        float(np.round(scale * (b + d), 2)) for b, d in zip(box, off, strict=True)
    )
    return {
        "video_frame_number": _video_frame(clip, frame),
        "frame_number": frame,
        "x": x1,
        "y": y1,
        "width": round(x2 - x1, 2),
        "height": round(y2 - y1, 2),
        "original_width": float(width),
        "original_height": float(height),
        "rotation": 0,
    }
