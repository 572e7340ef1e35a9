"""A frozen backbone's embeddings: computed once, equal to what the backbone gives."""

import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from avalanche_vilco import vilco_vq
from avalanche_vilco.benchmarks.vilco_vq.annotations import CLIP_FOLDER
from avalanche_vilco.benchmarks.vilco_vq.backbone_cache import cache_backbone
from avalanche_vilco.core.errors import DataError
from avalanche_vilco.core.files import CACHE_VARIABLE
from avalanche_vilco.data.media.frame_embeddings import FrameEmbeddings

SOURCES = {"image_size": 32, "n_frames": 10}


class Backbone(nn.Module):
    """Counts what it encodes."""

    dim, stride = 4, 8

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, self.dim, self.stride, self.stride)
        self.dropout = nn.Dropout(0.5)
        draw = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weights in self.parameters():
                weights.normal_(generator=draw)
        self.n_pictures, self.largest = 0, 0

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        self.n_pictures += len(pixels)
        self.largest = max(self.largest, len(pixels))
        return self.dropout(self.conv(pixels.float() / 255))


@pytest.fixture(scope="module")
def root(vq_root: Path) -> Path:
    return vq_root


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def build(root, **sources):
    return vilco_vq(root, n_experiences=2, sources={**SOURCES, **sources})


def cache(benchmark, backbone, **options) -> int:
    options.setdefault("echo", lambda line: None)
    return cache_backbone(benchmark, backbone, progress=False, **options)


def pictures(benchmark) -> int:
    """Frames and crops that the streams may read."""
    frames: set[tuple[str, int]] = set()
    crops: set[str] = set()
    for data in benchmark.datasets.values():
        crops |= {query.query_id for query in data.queries}
        for clip_id, read in data.frames_read().items():
            frames |= {(clip_id, frame) for frame in read}
    return len(frames) + len(crops)


def test_embeddings_are_what_the_backbone_gives_for_the_pixels(root):
    plain, encoded, backbone = build(root), build(root), Backbone().train()
    lines: list[str] = []
    size = cache(encoded, backbone, batch_frames=7, echo=lines.append)
    assert backbone.training and backbone.largest <= 7
    n_pictures = pictures(plain)
    # Two blank pictures say what shape the embeddings of frames and of crops have.
    assert backbone.n_pictures == n_pictures + 2
    # 4 channels of 4 x 4 embeddings of 2 bytes.
    assert n_pictures * 128 < size < 1.3 * n_pictures * 128
    assert f"{n_pictures} frames and crops, {n_pictures * 128 / 1e6:.1f} MB" in lines[0]
    backbone.eval()
    for name, data in plain.datasets.items():
        other = encoded.datasets[name]
        other.clock.set(0, 3)
        data.clock.set(0, 3)
        for i in range(0, len(data), 4):
            (inputs, targets), (embeddings, same) = data[i], other[i]
            assert torch.equal(targets["frame_numbers"], same["frame_numbers"])
            with torch.no_grad():
                crop = backbone(inputs["crop"][None])[0].half()
                frames = backbone(inputs["frames"]).half()
            assert torch.equal(embeddings["crop"], crop)
            valid = targets["valid"]
            assert torch.equal(embeddings["frames"][valid], frames[valid])
            assert embeddings["frames"][~valid].abs().sum() == 0


def test_embeddings_are_computed_once_for_one_backbone(root, own_cache):
    backbone = Backbone()
    size = cache(build(root), backbone)
    n_encoded = backbone.n_pictures
    again = build(root)
    assert cache(again, backbone) == size
    assert backbone.n_pictures == n_encoded
    assert again.datasets["test"].embeddings is not None
    assert len(list((own_cache / "frame_embeddings").iterdir())) == 1


def test_other_weights_videos_sizes_or_frames_have_embeddings_of_their_own(
    root, tmp_path, own_cache
):
    copied = Path(shutil.copytree(root, tmp_path / "copy"))
    prints = set()

    def note(benchmark, backbone) -> None:
        cache(benchmark, backbone, streams=("test",))
        prints.add(benchmark.datasets["test"].embeddings.fingerprint)

    note(build(root), Backbone())
    note(build(copied), Backbone())
    assert len(prints) == 1
    note(build(root), Backbone(seed=1))
    note(build(root, image_size=40), Backbone())
    note(build(root, n_frames=37), Backbone())
    assert len(prints) == 4
    used = build(root).datasets["test"].samples[0].clip.clip_id
    other = build(root).datasets["test"].samples[-1].clip.clip_id
    video = copied / CLIP_FOLDER / f"{used}.mp4"
    shutil.copy(copied / CLIP_FOLDER / f"{other}.mp4", video)
    note(build(copied, missing="drop"), Backbone())
    assert len(prints) == len(list((own_cache / "frame_embeddings").iterdir())) == 5


def test_after_an_interruption_the_clips_that_are_there_are_not_encoded_again(
    root, tmp_path
):
    folder = tmp_path / "store"
    expected = Backbone()
    cache(build(root), expected, folder=tmp_path / "whole")

    class Interrupted(Backbone):
        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            if self.n_pictures > 200:
                raise KeyboardInterrupt
            return super().forward(pixels)

    # The name of the class is part of the fingerprint.
    Interrupted.__qualname__ = Backbone.__qualname__
    broken, backbone, benchmark = Interrupted(), Backbone(), build(root)
    with pytest.raises(KeyboardInterrupt):
        cache(benchmark, broken, folder=folder)
    assert not folder.exists() and benchmark.datasets["train"].embeddings is None
    cache(benchmark, backbone, folder=folder)
    assert 2 < backbone.n_pictures < expected.n_pictures
    whole, resumed = FrameEmbeddings(tmp_path / "whole"), FrameEmbeddings(folder)
    for data in benchmark.datasets.values():
        for clip_id, frames in data.frames_read().items():
            assert torch.equal(
                whole.frames(clip_id, frames), resumed.frames(clip_id, frames)
            )


def test_too_large_a_store_is_refused_before_anything_is_encoded(root, tmp_path):
    benchmark, backbone = build(root), Backbone()
    folder = tmp_path / "store"
    lines: list[str] = []
    with pytest.raises(ValueError, match="at most 1000 bytes"):
        cache(benchmark, backbone, folder=folder, max_bytes=1000, echo=lines.append)
    assert len(lines) == 1 and backbone.n_pictures == 2
    assert not folder.exists() and benchmark.datasets["test"].embeddings is None


def test_a_full_disk_is_told_beforehand(root, tmp_path, monkeypatch):
    class Usage:
        free = 5

    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage)
    with pytest.raises(OSError, match="has 5 free"):
        cache(build(root), Backbone(), folder=tmp_path / "store")


def test_embeddings_of_something_else_are_not_taken(root, tmp_path):
    cache(build(root), Backbone(), folder=tmp_path / "store")
    with pytest.raises(DataError, match="another backbone"):
        cache(build(root), Backbone(seed=1), folder=tmp_path / "store")


def test_an_augmented_stream_keeps_its_pixels(root):
    benchmark, backbone = build(root, augment=True), Backbone()
    lines: list[str] = []
    assert cache(benchmark, backbone, streams=("train",), echo=lines.append) == 0
    assert backbone.n_pictures == 0 and "augmented" in lines[0]
    assert cache(benchmark, backbone) > 0
    assert benchmark.datasets["train"].embeddings is None
    assert benchmark.datasets["train"][0][0]["frames"].dtype == torch.uint8
    assert benchmark.datasets["test"][0][0]["frames"].dtype == torch.float16


def test_batches_of_no_picture_are_refused(root):
    with pytest.raises(ValueError, match="batch_frames >= 1 but got 0"):
        cache(build(root), Backbone(), batch_frames=0)
