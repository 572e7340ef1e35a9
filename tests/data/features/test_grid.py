"""Resizing equals the public code's, and moves no moment in time."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st

from avalanche_vilco.core.errors import FeatureError
from avalanche_vilco.data.features import (
    CachedFeatures,
    FeatureFolder,
    GridFeatures,
    resize_steps,
)
from avalanche_vilco.data.moments import MomentClip, MomentDataset, MomentSample
from avalanche_vilco.ops.timeline import grid_to_seconds, seconds_to_grid

FPS = 1.8741513727840071


def interpolate(features: torch.Tensor, steps: int) -> torch.Tensor:
    """As public code does it, channels first."""
    resized = F.interpolate(
        features.T[None], size=steps, mode="linear", align_corners=False
    )
    return resized[0].T


@given(found=st.integers(1, 2500), steps=st.sampled_from([1, 2, 7, 512, 1024]))
@example(found=899, steps=1024)
@example(found=1025, steps=1024)
@settings(max_examples=150)
def test_resizing_equals_interpolation_over_time(found, steps):
    features = torch.rand(found, 3, generator=torch.Generator().manual_seed(found))
    torch.testing.assert_close(
        resize_steps(features, steps), interpolate(features, steps), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize(("found", "steps"), [(0, 4), (4, 0)])
def test_nothing_cannot_be_resized(found, steps):
    with pytest.raises(ValueError, match=f"at least one step but got {found} to"):
        resize_steps(torch.ones(found, 2), steps)


@pytest.fixture
def folder(tmp_path: Path) -> FeatureFolder:
    """Every step holds the second of its middle."""
    for clip_id, steps in (("long", 900), ("short", 300)):
        middles = (np.arange(steps, dtype=np.float32) + 0.5) / FPS
        np.save(tmp_path / f"{clip_id}.npy", np.stack([middles, middles * 2], 1))
    return FeatureFolder(tmp_path)


def test_effective_rate_is_the_public_formula(folder):
    store = GridFeatures(folder, 1024)
    store.preflight({"long": 480 * FPS, "short": 160 * FPS})
    seconds = torch.linspace(0, 480, 97, dtype=torch.float64)
    for clip_id, steps in (("long", 900), ("short", 300)):
        assert store.time_scale(clip_id) == 1024 / steps
        stride = steps / 1024
        public = (seconds * FPS - 0.5 * stride) / stride
        ours = seconds_to_grid(seconds, FPS * store.time_scale(clip_id))
        torch.testing.assert_close(ours, public, rtol=1e-12, atol=1e-9)


def test_steps_of_the_grid_stand_at_the_seconds_that_the_timeline_says(folder):
    store = GridFeatures(folder, 1024)
    for clip_id in ("long", "short"):
        read = store.read(clip_id)
        rate = FPS * store.time_scale(clip_id)
        said = grid_to_seconds(torch.arange(1024, dtype=torch.float64), rate)
        inner = slice(4, -4)  # beyond the outermost middles the ends are repeated
        torch.testing.assert_close(
            read[inner, 0].double(), said[inner], rtol=0, atol=1e-3
        )


def test_dataset_encodes_windows_on_the_grid_that_it_reads(folder):
    windows, labels = np.array([[100.0, 110.0]]), np.array([0])
    clip = MomentClip("long", "v", "train", 480.0, FPS, windows, labels)
    sample = MomentSample(clip, windows, labels, asked=(0,))
    inputs, targets = MomentDataset([sample], GridFeatures(folder, 1024), 1)[0]
    assert inputs["features"].shape == (1024, 2)
    start, end = targets["segments"][0].tolist()
    at_start = inputs["features"][round(start), 0].item()
    at_end = inputs["features"][round(end), 0].item()
    assert at_start == pytest.approx(100.0, abs=0.5 / FPS)
    assert at_end == pytest.approx(110.0, abs=0.5 / FPS)
    decoded = grid_to_seconds(targets["segments"].double(), targets["features_per_sec"])
    torch.testing.assert_close(decoded, torch.tensor(windows), rtol=0, atol=1e-3)


def test_preflight_checks_the_features_as_extracted(folder):
    with pytest.raises(FeatureError, match=r"expected 700\.0 steps .* but got 900"):
        GridFeatures(folder, 1024).preflight({"long": 700.0})


@pytest.mark.parametrize("cache_bytes", [0, 10**6])
def test_cached_or_not_reads_are_equal_and_owned_by_the_caller(cache_bytes, folder):
    store = CachedFeatures(GridFeatures(folder, 64), cache_bytes)
    expected = resize_steps(folder.read("long"), 64)
    for _ in range(3):
        read = store.read("long")
        assert torch.equal(read, expected)
        read.zero_()
        window = store.read("long", 5, 9)
        assert torch.equal(window, expected[5:9])
        window.zero_()


def test_cached_clip_is_not_read_again(folder):
    store = CachedFeatures(GridFeatures(folder, 64), 64 * 2 * 4)
    first, second = store.read("long"), store.read("short")
    np.save(folder.folder / "long.npy", np.zeros((900, 2), np.float32))
    np.save(folder.folder / "short.npy", np.zeros((300, 2), np.float32))
    assert torch.equal(store.read("long"), first)
    # The cache holds one clip: the second is read from disk.
    assert not torch.equal(store.read("short"), second)


def test_cache_is_not_pickled(folder):
    store = CachedFeatures(GridFeatures(folder, 512), 10**6)
    empty = len(pickle.dumps(store))
    expected = store.read("long")
    content = pickle.dumps(store)
    assert len(content) < empty + 100
    assert torch.equal(pickle.loads(content).read("long"), expected)


def test_impossible_arguments_are_named(folder):
    with pytest.raises(ValueError, match="at least 1 step but got 0"):
        GridFeatures(folder, 0)
    with pytest.raises(ValueError, match="cache_bytes >= 0 but got -1"):
        CachedFeatures(folder, -1)
