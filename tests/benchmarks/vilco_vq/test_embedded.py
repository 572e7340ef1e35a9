"""The embedded visual queries: frozen, in the official form, with answers that show."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from avalanche_vilco.benchmarks.vilco_vq import embedded as mini_vq
from avalanche_vilco.benchmarks.vilco_vq.annotations import (
    CLIP_FOLDER,
    OFFICIAL_VQ_FILES,
    VisualAnnotations,
    VisualQuery,
    find_vq_files,
    read_unlabelled_visual_queries,
    read_visual_queries,
)
from avalanche_vilco.benchmarks.vilco_vq.clip_videos import check_clip_videos
from avalanche_vilco.benchmarks.vilco_vq.embedded import MINI_VQ_TITLES, MiniVQConfig
from avalanche_vilco.data.media.video import VideoFolder, probe_video

SMALL = MiniVQConfig(n_train=5, n_val=4, n_test=1, clip_frames=(72, 80))

# The frozen default of version 1. A change here is a change of the data: it needs a
# new MiniVQConfig.version, because results on the two cannot be compared.
FINGERPRINT = "a432474eaf9310479f7c97aacfa431d4"
FIRST_RECORD = "8e94daff0f204b4946d86287d410c13b"
FIRST_CLIP_SUM = 428650350


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return SMALL.generate(tmp_path_factory.mktemp("mini"))


@pytest.fixture(scope="module")
def read(root: Path) -> VisualAnnotations:
    return read_visual_queries(
        {s: root / OFFICIAL_VQ_FILES[s] for s in ("train", "val")}
    )


@pytest.fixture(scope="module")
def videos(root: Path) -> VideoFolder:
    return VideoFolder(root / CLIP_FOLDER)


def test_the_default_is_frozen():
    config = MiniVQConfig()
    assert config.fingerprint.startswith(FINGERPRINT)
    clip = next(mini_vq._clips(config, "train"))
    frames, boxes = mini_vq._draw(config, clip)
    total = int(frames.astype(np.int64).sum())
    # Rounding may differ between processors, drawings may not.
    assert abs(total - FIRST_CLIP_SUM) < 1e-4 * FIRST_CLIP_SUM
    record = json.dumps(mini_vq._clip_record(config, clip, boxes))
    digest = hashlib.sha256(record.encode()).hexdigest()
    assert digest.startswith(FIRST_RECORD)


def test_titles_are_distinct_and_colours_differ_within_a_scene():
    assert len(set(MINI_VQ_TITLES)) == len(MINI_VQ_TITLES) == 40
    for scene in range(5):
        own = [title.split() for title in MINI_VQ_TITLES[8 * scene : 8 * scene + 8]]
        assert len({palette for palette, _, _ in own}) == 8
        assert len({texture for _, texture, _ in own}) == 5


def test_files_are_in_the_official_form(root, read, videos):
    assert sorted(find_vq_files(root)) == ["test", "train", "val"]
    check_clip_videos(read.queries, read.clips, videos)
    for clip in read.clips.values():
        info = videos.info(clip.clip_id)
        assert (info.fps, clip.fps) == (5.0, 5.0)
        assert (info.height, info.width) == SMALL.frame_size
        assert info.n_frames == round(clip.duration_sec * 5)
    test = read_unlabelled_visual_queries(root / OFFICIAL_VQ_FILES["test"])
    assert all(query.track is None for query in test.queries)


def test_files_have_b_frames_so_that_readers_are_tried(root):
    import av

    path = next((root / CLIP_FOLDER).iterdir())
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert stream.codec_context.name == "h264"
        stamps = [packet.pts for packet in container.demux(stream) if packet.size]
    assert stamps != sorted(stamps)
    assert probe_video(path).has_leading_frames is False


def test_reports_show_the_untidiness_of_official_files(read):
    sets = read.report.stage("annotations", "query sets")
    assert sets.read == 6 * 9
    assert sets.rejected["not valid"] == 9
    assert set(sets.rejected) <= {"not valid", "no object title"}
    assert read.report.stage("annotations", "boxes").read >= 6 * len(read.queries)


def patch(
    videos: VideoFolder, query: VisualQuery, frame: int, box: np.ndarray
) -> torch.Tensor:
    """(3, h, w) what a box shows."""
    info = videos.info(query.clip_id)
    image = videos.read(query.clip_id, [frame])[0]
    sides = np.array([info.width, info.height] * 2)
    x1, y1, x2, y2 = np.rint(box * sides).astype(int).tolist()
    return image[:, y1:y2, x1:x2].float()


def colours(look: str) -> np.ndarray:
    return np.array(mini_vq.PALETTES[look.split()[0]], dtype=float)


def likeness(pixels: torch.Tensor, palette: str) -> float:
    """Share of pixels whose hue is near one of two colours."""
    flat = pixels.reshape(3, -1).T.numpy() + 1e-6
    flat = flat / np.linalg.norm(flat, axis=1, keepdims=True)
    own = colours(palette)
    own = own / np.linalg.norm(own, axis=1, keepdims=True)
    return float(((flat @ own.T).max(axis=1) > 0.97).mean())


def test_crops_and_tracks_show_the_object_that_is_asked_for(read, videos):
    own, other = [], []
    for query in read.queries[::5]:
        track = query.track
        middle = len(track.frames) // 2
        pieces = [
            patch(videos, query, query.crop.frame, query.crop.relative_box),
            patch(
                videos, query, int(track.frames[middle]), track.relative_boxes[middle]
            ),
        ]
        palette = query.title_key
        names = [name for name in mini_vq.PALETTES if not palette.startswith(name)]
        own += [likeness(piece, palette) for piece in pieces]
        other += [
            np.median([likeness(piece, name) for name in names]) for piece in pieces
        ]
    assert np.mean(own) > np.mean(other) + 0.3


def test_no_later_appearance_lies_before_the_query_frame():
    for clip in mini_vq._clips(SMALL, "train"):
        for query in clip.queries:
            shown = [one for one in clip.appearances if one.look == query.look]
            before = [one for one in shown if one.start < query.query_frame]
            assert max(one.stop for one in before) == query.answer.stop
            assert query.answer.stop < query.query_frame
            assert query.shown is not query.answer
            assert max(one.stop for one in shown) <= clip.n_frames


def test_distractors_share_the_colours_of_what_is_asked_for():
    alike = [
        any(
            one.look.palette == query.look.palette and one.look != query.look
            for one in clip.appearances
        )
        for clip in mini_vq._clips(SMALL, "train")
        for query in clip.queries
    ]
    assert np.mean(alike) > 0.6


def test_no_parent_video_is_in_two_subsets(read):
    parents: dict[str, set] = {"train": set(), "val": set()}
    for clip in read.clips.values():
        parents[clip.subset].add(clip.video_id)
    assert not parents["train"] & parents["val"]
