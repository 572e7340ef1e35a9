"""Clips cut from whole videos stand at their time, to half a step."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from avalanche_vilco.core.errors import FeatureError
from avalanche_vilco.data.features import (
    FeatureFolder,
    GridFeatures,
    ParentFeatures,
    pack_features,
)
from avalanche_vilco.ops.timeline import grid_to_seconds

FPS = 1.8741513727840071
VIDEO_STEPS = 2000


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> FeatureFolder:
    """Every step of a video holds the second of its middle."""
    folder = tmp_path_factory.mktemp("videos")
    middles = (np.arange(VIDEO_STEPS) + 0.5) / FPS
    np.save(folder / "video.npy", np.stack([middles, middles * 0], 1))
    np.save(folder / "short.npy", np.ones((50, 2), np.float32))
    (folder / "broken.npy").write_bytes(b"")
    return FeatureFolder(folder)


def cut(start: float, end: float, video: str = "video", fps: float = FPS) -> tuple:
    return video, start, end, fps


@given(start=st.floats(0, 500), duration=st.floats(5, 480))
@settings(max_examples=300)
def test_every_step_stands_within_half_a_step_of_its_time(start, duration, videos):
    store = ParentFeatures(videos, {"clip": cut(start, start + duration)})
    seconds = store.read("clip")[:, 0].double() - start
    steps = torch.arange(len(seconds), dtype=torch.float64)
    expected = grid_to_seconds(steps, FPS)
    assert float((seconds - expected).abs().max()) <= 0.5 / FPS + 1e-3
    assert abs(len(seconds) - duration * FPS) <= 1
    store.preflight({"clip": duration * FPS}, tolerance=1)


def test_neighbouring_clips_share_no_step_and_leave_none_out(videos):
    edges = [0.0, 100.3, 251.77, 600.0, 900.0]
    cuts = {f"clip{i}": cut(*edges[i : i + 2]) for i in range(4)}
    store = ParentFeatures(videos, cuts)
    together = torch.cat([store.read(clip_id) for clip_id in cuts])
    assert torch.equal(together, videos.read("video", 0, len(together)))


@pytest.mark.parametrize("lacking", [0, 1])
def test_a_video_may_lack_a_step_at_its_end(lacking, videos):
    end = (VIDEO_STEPS + lacking) / FPS
    store = ParentFeatures(videos, {"clip": cut(end - 100, end)})
    store.preflight({"clip": 100 * FPS})
    assert abs(len(store.read("clip")) - 100 * FPS) <= lacking + 1


def test_all_faults_of_videos_are_listed_at_once(videos):
    cuts = {
        "fine": cut(0, 20, "short"),
        "too-late": cut(100, 120, "short"),
        "overhangs": cut(10, 40, "short"),
        "gone": cut(0, 20, "absent"),
        "damaged": cut(0, 20, "broken"),
    }
    store = ParentFeatures(videos, cuts)
    durations = dict.fromkeys((*cuts, "unknown"), 20 * FPS)
    durations["overhangs"] = 30 * FPS
    with pytest.raises(FeatureError) as caught:
        store.preflight(durations)
    faults = "\n".join(caught.value.faults)
    assert len(caught.value.faults) == 5
    for expected in (
        "too-late: ",
        "short.npy: starts at step 187 of 50",
        "expected 56.2 steps but the video's 50 leave 31",
        "absent: no file absent",
        "broken: broken.npy is damaged",
        "unknown: no record says which part of which video it is",
    ):
        assert expected in faults


def test_a_clip_after_the_end_of_its_video_is_an_error_on_read(videos):
    store = ParentFeatures(videos, {"late": cut(100, 120, "short")})
    with pytest.raises(FeatureError, match=r"late: .*short\.npy: has no step 187"):
        store.read("late")


def test_missing_videos_make_their_clips_missing(videos):
    cuts = {"a": cut(0, 9), "b": cut(0, 9, "absent"), "c": cut(0, 9, "absent")}
    store = ParentFeatures(videos, cuts)
    assert store.missing(["c", "unknown", "a", "b"]) == ["c", "unknown", "b"]


@pytest.mark.parametrize(
    "bad",
    [
        cut(5, 5),
        cut(6, 5),
        cut(-1, 5),
        cut(0, float("nan")),
        cut(0, float("inf")),
        cut(0, 5, fps=0.0),
        cut(0, 5, fps=-1.0),
    ],
)
def test_impossible_cuts_are_named(bad, videos):
    with pytest.raises(ValueError, match="clip clip-7: expected 0 <= start_sec"):
        ParentFeatures(videos, {"clip-7": bad})


def test_resized_videos_are_not_cut(videos, tmp_path: Path):
    with pytest.raises(FeatureError, match="cut first, then resize"):
        ParentFeatures(GridFeatures(videos, 64), {"clip": cut(0, 9)}).read("clip")
    grid = GridFeatures(ParentFeatures(videos, {"clip": cut(0, 9)}), 64)
    path = pack_features(grid, ["clip"], tmp_path / "clips.safetensors")
    assert path.is_file()
