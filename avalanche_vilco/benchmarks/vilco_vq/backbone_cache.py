"""What a frozen backbone makes of a stream's videos, computed once and kept."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor, nn

from avalanche_vilco.benchmarks.scenario import QueryIncrementalScenario
from avalanche_vilco.benchmarks.vilco_vq.annotations import VisualClip, VisualQuery
from avalanche_vilco.benchmarks.vilco_vq.clip_videos import VisualPictures
from avalanche_vilco.benchmarks.vilco_vq.dataset import VisualDataset
from avalanche_vilco.core.errors import DataError
from avalanche_vilco.core.files import cache_folder
from avalanche_vilco.data.media.frame_embeddings import (
    ClipEmbeddings,
    FrameEmbeddings,
    clips_written,
    expected_bytes,
    write_frame_embeddings,
)
from avalanche_vilco.data.media.pictures import squared

EMBEDDINGS_FOLDER = "frame_embeddings"
"""Folder of all stores, in the user's cache."""
_ENDS_BYTES = 2**16


_Shapes: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
"""(C, h, w) of the embedding of a frame, and of a crop."""


@dataclass(eq=False)
class _ClipPlan:
    """What is encoded of a clip."""

    clip: VisualClip
    frames: set[int] = field(default_factory=set)
    shown: dict[str, VisualQuery] = field(default_factory=dict)
    """Queries whose crops are encoded, by id."""


def cache_backbone(
    benchmark: QueryIncrementalScenario,
    backbone: nn.Module,
    *,
    folder: Path | str | None = None,
    device: torch.device | str = "cpu",
    streams: Sequence[str] = ("train", "valid", "test"),
    batch_frames: int = 64,
    max_bytes: int | None = None,
    progress: bool = True,
    echo: Callable[[str], None] = print,
) -> int:
    """Encode all frames and crops that streams of visual queries may read, once.

    The datasets of the streams then hand out embeddings instead of pixels. A stream
    that is augmented keeps its pixels. Embeddings are computed in the backbone's own
    precision and kept as float16. After an interruption the next call goes on at the
    clip where it came.

    :param benchmark: what ``vilco_vq`` built.
    :param backbone: (N, 3, S, S) uint8 -> (N, C, h, w) float; its weights must not
        change afterwards.
    :param folder: where embeddings are kept; default a folder in the user's cache,
        named after all that they depend on: weights, videos, frames, crops, sizes.
    :param device: where to compute.
    :param streams: streams to encode.
    :param batch_frames: pictures encoded at once, at least 1.
    :param max_bytes: refuse larger stores.
    :param progress: show a progress bar.
    :param echo: is told the size beforehand.
    :return: size of the store in bytes; 0 if there was nothing to encode.
    :raises ValueError: the store would be larger than ``max_bytes``, or
        ``batch_frames`` is below 1.
    :raises OSError: the disk has no room for it.
    :raises DataError: ``folder`` holds embeddings of something else.
    :raises VideoError: a video is damaged.
    """
    if batch_frames < 1:
        raise ValueError(f"expected batch_frames >= 1 but got {batch_frames}")
    datasets = [benchmark.datasets[name] for name in streams]
    datasets = [data for data in datasets if not data.augment and len(data)]
    if not datasets:
        echo("backbone embeddings: nothing to encode, frames are augmented")
        return 0
    plans = _plan(datasets)
    pictures: VisualPictures = datasets[0].pictures
    encoder = _Encoder(backbone, pictures, torch.device(device), batch_frames)
    with encoder:
        fingerprint = _fingerprint(backbone, pictures, plans)
        place = Path(folder).expanduser() if folder is not None else None
        place = place or cache_folder() / EMBEDDINGS_FOLDER / fingerprint[:32]
        if not place.exists():
            shapes = encoder.shapes()
            done = clips_written(place, fingerprint)
            left = [plan for plan in plans.values() if plan.clip.clip_id not in done]
            _announce(place, plans.values(), left, shapes, max_bytes, echo)
            encoded = map(encoder.encode, _with_bar(left, progress))
            write_frame_embeddings(place, fingerprint, shapes[0], encoded)
    store = _opened(place, fingerprint)
    for data in datasets:
        data.embeddings = store
    return store.nbytes


def _plan(datasets: Sequence[VisualDataset]) -> dict[str, _ClipPlan]:
    """Clip id -> what is encoded of it."""
    plans: dict[str, _ClipPlan] = {}
    for data in datasets:
        for sample in data.samples:
            plan = plans.setdefault(sample.clip.clip_id, _ClipPlan(sample.clip))
            plan.shown[sample.query.query_id] = sample.query
        for clip_id, frames in data.frames_read().items():
            plans[clip_id].frames.update(frames)
    return plans


# --- Fingerprint and size -------------------------------------------------------------


def _fingerprint(
    backbone: nn.Module, pictures: VisualPictures, plans: Mapping[str, _ClipPlan]
) -> str:
    """Hexadecimal SHA-256 of everything that embeddings depend on."""
    digest = hashlib.sha256(type(backbone).__qualname__.encode())
    for name, weights in sorted(backbone.state_dict().items()):
        digest.update(f"{name} {weights.dtype} {tuple(weights.shape)}".encode())
        numbers = weights.detach().cpu().contiguous().view(-1)
        digest.update(memoryview(numbers.view(torch.uint8).numpy()))
    digest.update(f"sides {pictures.image_size} {pictures.crop_size}".encode())
    for clip_id, plan in sorted(plans.items()):
        crops = [[i, q.crop.frame, *q.crop.box] for i, q in sorted(plan.shown.items())]
        facts = [clip_id, plan.clip.fps, sorted(plan.frames), crops]
        digest.update(json.dumps(facts).encode())
        digest.update(_stamp(pictures.videos.path(clip_id)))
    return digest.hexdigest()


def _stamp(video: Path) -> bytes:
    """Size and both ends of a file, where a video lists the sizes of all its frames.

    Reading hundreds of gigabytes whole would take longer than to encode them.
    """
    size = video.stat().st_size
    with video.open("rb") as file:
        head = file.read(_ENDS_BYTES)
        file.seek(max(0, size - _ENDS_BYTES))
        return hashlib.sha256(b"%d" % size + head + file.read()).digest()


def _announce(
    place: Path,
    plans: Collection[_ClipPlan],
    left: Sequence[_ClipPlan],
    shapes: _Shapes,
    max_bytes: int | None,
    echo: Callable[[str], None],
) -> None:
    """Say how large the store will be, and refuse if it is too large."""
    n_pictures = sum(len(plan.frames) + len(plan.shown) for plan in plans)
    size, to_write = (_bytes(wanted, shapes) for wanted in (plans, left))
    echo(
        f"backbone embeddings: {n_pictures} frames and crops, {size / 1e6:.1f} MB, "
        f"{to_write / 1e6:.1f} MB of it to compute, in {place}"
    )
    if max_bytes is not None and size > max_bytes:
        raise ValueError(
            f"expected embeddings of at most {max_bytes} bytes but got {size}: allow "
            "more, or encode fewer streams"
        )
    free = shutil.disk_usage(_existing_parent(place)).free
    if to_write > free:
        raise OSError(
            f"embeddings take {to_write} bytes, but the disk of {place} has {free} free"
        )


def _bytes(plans: Iterable[_ClipPlan], shapes: _Shapes) -> int:
    return sum(
        expected_bytes(len(plan.frames), shapes[0])
        + expected_bytes(len(plan.shown), shapes[1])
        for plan in plans
    )


def _existing_parent(place: Path) -> Path:
    return next(parent for parent in place.absolute().parents if parent.is_dir())


def _opened(place: Path, fingerprint: str) -> FrameEmbeddings:
    store = FrameEmbeddings(place)
    if store.fingerprint != fingerprint:
        problem = "these embeddings are of another backbone, of other videos or frames"
        raise DataError(place, problem, hint="choose another folder, or delete it")
    return store


def _with_bar(plans: Sequence[_ClipPlan], progress: bool) -> Iterator[_ClipPlan]:
    from tqdm import tqdm

    yield from tqdm(
        plans, desc="backbone embeddings", unit="clip", disable=not progress
    )


# --- Encoding -------------------------------------------------------------------------


class _Encoder:
    """A backbone on a device, in evaluation mode; afterwards it is as it was."""

    def __init__(
        self,
        backbone: nn.Module,
        pictures: VisualPictures,
        device: torch.device,
        batch_frames: int,
    ) -> None:
        self.backbone, self.pictures = backbone, pictures
        self.device, self.batch_frames = device, batch_frames
        tensors = [*backbone.parameters(), *backbone.buffers()]
        self._home = tensors[0].device if tensors else device
        self._was_training = backbone.training

    def __enter__(self) -> _Encoder:
        self.backbone.to(self.device).eval()
        return self

    def __exit__(self, *problem: object) -> None:
        self.backbone.to(self._home).train(self._was_training)

    def shapes(self) -> _Shapes:
        """(C, h, w) of the embedding of a frame, and of a crop."""
        return self._shape(self.pictures.image_size), self._shape(
            self.pictures.crop_size
        )

    def _shape(self, size: int) -> tuple[int, ...]:
        return tuple(self._embeddings(torch.zeros(1, 3, size, size).byte()).shape[1:])

    def encode(self, plan: _ClipPlan) -> ClipEmbeddings:
        """Embeddings of a clip; those of frames are computed as they are written."""
        crops = [self.pictures.crop(query, plan.clip) for query in plan.shown.values()]
        batches = torch.stack(crops).split(self.batch_frames)
        frames = sorted(plan.frames)
        return ClipEmbeddings(
            plan.clip.clip_id,
            frames,
            self._frames(plan.clip, frames),
            list(plan.shown),
            torch.cat([*map(self._embeddings, batches)]),
        )

    def _frames(self, clip: VisualClip, frames: Sequence[int]) -> Iterator[Tensor]:
        for start in range(0, len(frames), self.batch_frames):
            part = self.pictures.frames(clip, frames[start : start + self.batch_frames])
            yield self._embeddings(squared(part, self.pictures.image_size))

    @torch.no_grad()
    def _embeddings(self, pixels: Tensor) -> Tensor:
        embeddings: Tensor = self.backbone(pixels.to(self.device))
        return embeddings.cpu()
