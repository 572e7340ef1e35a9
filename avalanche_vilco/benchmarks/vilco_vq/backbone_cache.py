"""What a frozen backbone makes of a stream's videos, computed once and kept."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from tqdm import tqdm

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
    with _evaluating(backbone, device):
        fingerprint = _fingerprint(backbone, pictures, plans)
        if folder is None:
            folder = cache_folder() / EMBEDDINGS_FOLDER / fingerprint[:32]
        folder = Path(folder).expanduser()
        if not folder.exists():
            encoder = _Encoder(backbone, pictures, torch.device(device), batch_frames)
            done = clips_written(folder, fingerprint)
            left = [plan for plan in plans.values() if plan.clip.clip_id not in done]
            _announce(folder, plans.values(), left, encoder, max_bytes, echo)
            bar = tqdm(left, "backbone embeddings", unit="clip", disable=not progress)
            encoded = map(encoder.encode, bar)
            write_frame_embeddings(folder, fingerprint, encoder.frame_shape, encoded)
    store = FrameEmbeddings(folder)
    if store.fingerprint != fingerprint:
        problem = "these embeddings are of another backbone, of other videos or frames"
        raise DataError(folder, problem, hint="choose another folder, or delete it")
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
        turn = pictures.videos.info(clip_id).turn
        if any(turn):
            # Version 0.2 kept embeddings of the same files as they lie.
            digest.update(str(turn).encode())
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
    folder: Path,
    plans: Collection[_ClipPlan],
    left: Collection[_ClipPlan],
    encoder: _Encoder,
    max_bytes: int | None,
    echo: Callable[[str], None],
) -> None:
    """Say how large the store will be, and refuse if it is too large."""
    n_pictures = sum(len(plan.frames) + len(plan.shown) for plan in plans)
    size, to_write = (sum(map(encoder.n_bytes, wanted)) for wanted in (plans, left))
    echo(
        f"backbone embeddings: {n_pictures} frames and crops, {size / 1e6:.1f} MB, "
        f"{to_write / 1e6:.1f} MB of it to compute, in {folder}"
    )
    if max_bytes is not None and size > max_bytes:
        raise ValueError(
            f"expected embeddings of at most {max_bytes} bytes but got {size}: allow "
            "more, or encode fewer streams"
        )
    existing = next(parent for parent in folder.absolute().parents if parent.is_dir())
    free = shutil.disk_usage(existing).free
    if to_write > free:
        raise OSError(
            f"embeddings take {to_write} bytes, but the disk of {folder} has {free} "
            "free"
        )


# --- Encoding -------------------------------------------------------------------------


@contextmanager
def _evaluating(backbone: nn.Module, device: torch.device | str) -> Iterator[None]:
    """The backbone on a device, in evaluation mode; afterwards it is as it was."""
    tensors = [*backbone.parameters(), *backbone.buffers()]
    was_training, was_on = backbone.training, tensors[0].device if tensors else device
    backbone.to(device).eval()
    try:
        yield
    finally:
        backbone.to(was_on).train(was_training)


class _Encoder:
    """Makes embeddings of a clip's frames and crops, a few at a time."""

    def __init__(
        self,
        backbone: nn.Module,
        pictures: VisualPictures,
        device: torch.device,
        batch_frames: int,
    ) -> None:
        self.backbone, self.pictures = backbone, pictures
        self.device, self.batch_frames = device, batch_frames
        # (C, h, w) of embeddings, by a blank picture of each size.
        self.frame_shape, self.crop_shape = (
            tuple(self._embeddings(torch.zeros(1, 3, size, size).byte()).shape[1:])
            for size in (pictures.image_size, pictures.crop_size)
        )

    def n_bytes(self, plan: _ClipPlan) -> int:
        """Size of a clip's embeddings."""
        frames = expected_bytes(len(plan.frames), self.frame_shape)
        return frames + expected_bytes(len(plan.shown), self.crop_shape)

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
