"""Several feature sources of one clip are aligned, or refused with both names."""

from pathlib import Path

import numpy as np
import pytest
import torch

from avalanche_vilco.core.errors import FeatureError
from avalanche_vilco.data.features import ConcatFeatures, FeatureFolder, GridFeatures


def folder(path: Path, channels: int, **steps: int) -> FeatureFolder:
    path.mkdir(exist_ok=True)
    for clip_id, count in steps.items():
        # A step holds its own number in every channel.
        numbers = np.arange(count, dtype=np.float32)[:, None]
        np.save(path / f"{clip_id}.npy", numbers.repeat(channels, 1))
    return FeatureFolder(path)


def test_a_step_more_at_the_end_is_cut_off(tmp_path):
    video, flow = folder(tmp_path / "v", 3, a=100), folder(tmp_path / "f", 2, a=101)
    store = ConcatFeatures([video, flow])
    store.preflight({"a": 100})
    assert store.width == 5
    assert store.shape("a") == (100, 5)
    read = store.read("a")
    assert torch.equal(read[:, 0], torch.arange(100.0))
    assert torch.equal(read[:, 4], torch.arange(100.0))
    assert torch.equal(store.read("a", 98, 102), read[98:])


def test_sources_stand_in_the_order_given(tmp_path):
    one, two = folder(tmp_path / "1", 1, a=9), folder(tmp_path / "2", 1, a=9)
    np.save(tmp_path / "2" / "a.npy", np.full((9, 1), 7, np.float32))
    assert ConcatFeatures([one, two]).read("a")[8].tolist() == [8.0, 7.0]
    assert ConcatFeatures([two, one]).read("a")[8].tolist() == [7.0, 8.0]


def test_sources_of_different_lengths_are_refused_and_both_named(tmp_path):
    video, flow = folder(tmp_path / "v", 3, a=100), folder(tmp_path / "f", 2, a=140)
    store = ConcatFeatures([video, flow])
    with pytest.raises(FeatureError) as caught:
        store.read("a")
    (fault,) = caught.value.faults
    assert fault == (
        f"a: cannot be aligned within 2 steps: 100 steps in {tmp_path / 'v' / 'a.npy'} "
        f"and 140 steps in {tmp_path / 'f' / 'a.npy'}"
    )
    with pytest.raises(FeatureError) as caught:
        store.preflight({"a": 120}, tolerance=50)
    assert caught.value.faults == (fault,)


def test_tolerance_is_stated_by_the_user(tmp_path):
    sources = [folder(tmp_path / "v", 3, a=100), folder(tmp_path / "f", 2, a=104)]
    assert ConcatFeatures(sources, tolerance=4).shape("a") == (100, 5)
    with pytest.raises(FeatureError, match="within 3 steps"):
        ConcatFeatures(sources, tolerance=3).shape("a")
    with pytest.raises(FeatureError, match="within 0 steps"):
        ConcatFeatures(sources, tolerance=0).read("a", 0, 5)
    with pytest.raises(ValueError, match="expected tolerance >= 0 but got -1"):
        ConcatFeatures(sources, tolerance=-1)


def test_faults_of_all_sources_are_listed_at_once(tmp_path):
    video = folder(tmp_path / "v", 3, a=100, b=100, c=100)
    flow = folder(tmp_path / "f", 2, a=100, b=70)
    (tmp_path / "v" / "a.npy").write_bytes(b"")
    store = ConcatFeatures([video, flow])
    with pytest.raises(FeatureError) as caught:
        store.preflight(dict.fromkeys("abc", 100.0))
    faults = caught.value.faults
    assert [fault.split(":")[0] for fault in faults] == ["a", "c", "b", "b"]
    assert "(source 1 of 2)" in faults[0]
    assert "no file c" in faults[1] and "(source 2 of 2)" in faults[1]
    assert "expected 100.0 steps" in faults[2] and "(source 2 of 2)" in faults[2]
    assert "cannot be aligned" in faults[3]


def test_a_clip_is_missing_if_one_source_has_it_not(tmp_path):
    sources = [folder(tmp_path / "v", 3, a=9, b=9), folder(tmp_path / "f", 2, b=9, c=9)]
    assert ConcatFeatures(sources).missing(["c", "a", "b", "d"]) == ["c", "a", "d"]


def test_sources_of_different_rates_meet_on_one_grid(tmp_path):
    video, flow = folder(tmp_path / "v", 3, a=100), folder(tmp_path / "f", 2, a=200)
    store = ConcatFeatures([GridFeatures(video, 50), GridFeatures(flow, 50)])
    assert store.read("a").shape == (50, 5)
    assert store.time_scale("a") == 0.5
