"""Two answers to visual queries that learn nothing, scored like a model's.

    python benchmarks/vilco_vq/heuristics.py
    python benchmarks/vilco_vq/heuristics.py --root ~/ego4d --stream valid

``last frames`` answers each query with the last frames before the query frame and a box
in their middle; ``colours`` looks, in each frame, for the place whose colours are most
like the crop's, and takes the last peak. Both answer all queries of a stream of
``vilco_vq(protocol="exclusive")``; a model that sees more than they do scores more.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from avalanche_vilco.benchmarks.protocols import STREAMS
from avalanche_vilco.benchmarks.vilco_vq.annotations import (
    CLIP_FOLDER,
    VisualAnnotations,
    VisualClip,
    VisualQuery,
    find_vq_files,
    read_visual_queries,
)
from avalanche_vilco.benchmarks.vilco_vq.clip_videos import clip_file_frames
from avalanche_vilco.benchmarks.vilco_vq.embedded import MINI_VQ
from avalanche_vilco.benchmarks.vilco_vq.split import (
    VQDivision,
    divide_queries,
    title_items,
)
from avalanche_vilco.data.media.video import VideoFolder, fitted_size
from avalanche_vilco.evaluation.functional.visual_query import SUMMARY
from avalanche_vilco.evaluation.metrics.response_track import ResponseTrackMetrics
from avalanche_vilco.models.frame_answers import FrameAnswers

N_LAST = 12
"""Frames of the answer that looks at nothing, the median of the embedded tracks."""
BOX_SHARE = (30 / 96, 30 / 128)
"""Height and width of its box, of the frame's."""
IMAGE_SIZE = 64
"""Pixels of a frame's longer side in which colours are looked for."""
LEVELS = 6
"""Steps of red, green and blue each."""
SCALES = (0.7, 1.0, 1.4)
"""Sizes of the places compared, of the crop's."""

Found: TypeAlias = tuple[Tensor, Tensor]
"""Logits (F,), and boxes (F, 4) as shares of width and height."""
Heuristic: TypeAlias = Callable[["Scene", VisualQuery], Found]


class Scene:
    """Frames of a clip, small.

    :param clip: the clip.
    :param videos: where its file is.
    """

    def __init__(self, clip: VisualClip, videos: VideoFolder) -> None:
        self._clip, self._videos = clip, videos
        self._info = videos.info(clip.clip_id)
        self._bins: Tensor | None = None

    def read(self, frames: Sequence[int], image_size: int) -> Tensor:
        """Frames by number, (N, 3, h, w) uint8, their longer side scaled."""
        size = fitted_size(self._info.height, self._info.width, image_size)
        numbers = clip_file_frames(self._clip, frames, self._info)
        return self._videos.read(self._clip.clip_id, numbers.tolist(), size=size)

    def bins(self, n_frames: int) -> Tensor:
        """Colour of each pixel of the first frames, (N, h, w) in 0..LEVELS^3 - 1."""
        if self._bins is None or len(self._bins) < n_frames:
            self._bins = color_bins(self.read(range(n_frames), IMAGE_SIZE))
        return self._bins[:n_frames]


def last_frames(scene: Scene, query: VisualQuery) -> Found:
    """The last frames, with a box in the middle."""
    logits = torch.full((query.query_frame,), -4.0)
    logits[-N_LAST:] = 4.0
    half_height, half_width = (share / 2 for share in BOX_SHARE)
    box = [0.5 - half_width, 0.5 - half_height, 0.5 + half_width, 0.5 + half_height]
    return logits, torch.tensor(box, dtype=torch.float64).expand(len(logits), 4)


def colors(scene: Scene, query: VisualQuery) -> Found:
    """The place of each frame whose colour histogram shares most with the crop's."""
    histogram = crop_histogram(scene, query)
    bins = scene.bins(query.query_frame)
    height, width = bins.shape[1:]
    sums = integrals(bins, histogram)
    x1, y1, x2, y2 = query.crop.relative_box.tolist()
    found = [
        best_places(
            sums,
            histogram[histogram > 0],
            min(height, max(2, round((y2 - y1) * height * scale))),
            min(width, max(2, round((x2 - x1) * width * scale))),
        )
        for scale in SCALES
    ]
    best, scale = torch.stack([shares for shares, _ in found]).max(0)
    places = torch.stack([places for _, places in found])
    boxes = places[scale, torch.arange(len(bins))]
    boxes /= torch.tensor([width, height, width, height], dtype=torch.float64)
    return best.clamp(1e-6, 1 - 1e-6).logit(), boxes


def crop_histogram(scene: Scene, query: VisualQuery) -> Tensor:
    """Share of each colour in the crop, (LEVELS^3,)."""
    picture = scene.read([query.crop.frame], 2 * IMAGE_SIZE)[0]
    height, width = picture.shape[1:]
    x1, y1, x2, y2 = query.crop.relative_box.tolist()
    left, top = int(x1 * width), int(y1 * height)
    right, bottom = max(left + 1, round(x2 * width)), max(top + 1, round(y2 * height))
    bins = color_bins(picture[:, top:bottom, left:right])
    counts = bins.flatten().bincount(minlength=LEVELS**3).float()
    return counts / counts.sum()


def color_bins(pictures: Tensor) -> Tensor:
    """Number of the colour of each pixel; (..., 3, h, w) uint8 to (..., h, w)."""
    steps = pictures.long() * LEVELS // 256
    red, green, blue = steps.unbind(-3)
    return (red * LEVELS + green) * LEVELS + blue


def integrals(bins: Tensor, histogram: Tensor) -> Tensor:
    """How many pixels above and left of each corner have each of the crop's colours.

    :return: (C, N, h + 1, w + 1); other colours share nothing with the crop.
    """
    colors = histogram.nonzero()[:, :, None, None]
    counts = (bins == colors).float().cumsum(2).cumsum(3)
    return F.pad(counts, (1, 0, 1, 0))


def best_places(
    sums: Tensor, histogram: Tensor, height: int, width: int
) -> tuple[Tensor, Tensor]:
    """The place of one size whose histogram shares most with the crop's.

    :param sums: as :func:`integrals` gives them.
    :param histogram: (C,) share of each of these colours.
    :return: the share (N,) and the place (N, 4) in pixels.
    """
    rows = sums[:, :, height:] - sums[:, :, :-height]
    share = (rows[..., width:] - rows[..., :-width]) / (height * width)
    shared = torch.minimum(share, histogram[:, None, None, None]).sum(0)
    best, place = shared.flatten(1).max(1)
    top, left = place // shared.shape[-1], place % shared.shape[-1]
    corners = [left, top, left + width, top + height]
    return best, torch.stack(corners, dim=1).double()


HEURISTICS: Mapping[str, Heuristic] = {"last frames": last_frames, "colours": colors}


def answer(query: VisualQuery, number: int, found: Found) -> tuple[FrameAnswers, Any]:
    """A query's frames, and what is asked for, as the metrics take them."""
    logits, boxes = found
    assert query.track is not None
    height, width = query.track.frame_size
    sizes = torch.tensor([width, height, width, height], dtype=torch.float64)
    predictions = FrameAnswers(
        scores=logits[None].float(),
        boxes=(boxes * sizes)[None],
        frame_numbers=torch.arange(len(logits))[None],
        query=torch.tensor([number]),
        query_frame=torch.tensor([query.query_frame]),
    )
    targets = SimpleNamespace(
        query=predictions.query,
        track_boxes=torch.tensor(query.track.boxes)[None],
        track_frames=torch.tensor(query.track.frames)[None],
    )
    return predictions, targets


def answered(
    read: VisualAnnotations,
    videos: VideoFolder,
    experiences: Sequence[Sequence[VisualQuery]],
) -> Iterator[tuple[str, int, tuple[FrameAnswers, Any]]]:
    """Heuristic, experience, and what the metrics take, for each query."""
    number = 0
    for j, queries in enumerate(experiences):
        scenes: dict[str, Scene] = {}
        for query in sorted(queries, key=lambda q: (q.clip_id, -q.query_frame)):
            if query.clip_id not in scenes:
                scenes = {query.clip_id: Scene(read.clips[query.clip_id], videos)}
            for name, heuristic in HEURISTICS.items():
                found = heuristic(scenes[query.clip_id], query)
                yield name, j, answer(query, number, found)
            number += 1


def scores(
    items: Iterable[tuple[str, int, tuple[FrameAnswers, Any]]], n_experiences: int
) -> dict[str, tuple[dict[str, float], dict[str, float]]]:
    """Scores on all queries, and means over experiences, by heuristic."""
    whole = {name: ResponseTrackMetrics() for name in HEURISTICS}
    parts = {
        name: [ResponseTrackMetrics() for _ in range(n_experiences)]
        for name in HEURISTICS
    }
    for name, j, item in items:
        whole[name].update(*item)
        parts[name][j].update(*item)
    return {
        name: (state.compute(), mean([part.compute() for part in parts[name]]))
        for name, state in whole.items()
    }


def mean(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Plain mean of each value."""
    return {name: sum(row[name] for row in rows) / len(rows) for name in SUMMARY}


def table(
    found: Mapping[str, tuple[Mapping[str, float], Mapping[str, float]]],
) -> list[str]:
    """Lines of a Markdown table."""
    lines = [f"| | {' | '.join(SUMMARY)} |", "|---" * (len(SUMMARY) + 1) + "|"]
    for name, both in found.items():
        for what, row in zip(("all queries", "mean over tasks"), both, strict=True):
            values = " | ".join(f"{row[key]:.3f}" for key in SUMMARY)
            lines.append(f"| {name}, {what} | {values} |")
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Score both and print the table.

    :param arguments: command-line arguments without the program.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", type=Path, help="default: the embedded data")
    parser.add_argument("--stream", choices=STREAMS, default="test")
    parser.add_argument("--seed", type=int, default=0, help="of the title groups")
    options = parser.parse_args(arguments)
    root = options.root or MINI_VQ.root()
    files = find_vq_files(root)
    read = read_visual_queries({name: files[name] for name in ("train", "val")})
    items = title_items(read.queries, read.clips)
    split = divide_queries(items, VQDivision(seed=options.seed))
    parts = [part for part in split.streams[options.stream] if part]
    experiences = [[item.record for item in part] for part in parts]
    answers = answered(read, VideoFolder(root / CLIP_FOLDER), experiences)
    n_queries = [len(queries) for queries in experiences]
    print(f"stream {options.stream}: {sum(n_queries)} queries, by task {n_queries}")
    print("\n".join(table(scores(answers, len(experiences)))))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
