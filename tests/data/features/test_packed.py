"""One safetensors file for all clips: written whole or not at all."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from avalanche_vilco.core.errors import FeatureError
from avalanche_vilco.data.features import (
    FeatureFolder,
    GridFeatures,
    PackedFeatures,
    open_features,
    pack_features,
)
from avalanche_vilco.data.features import store as store_module

T, C = 20, 5
IDS = ("clip-1", "clip-2", "clip-3")


@pytest.fixture
def source(tmp_path: Path) -> FeatureFolder:
    folder = tmp_path / "source"
    folder.mkdir()
    for i, clip_id in enumerate(IDS):
        np.save(folder / f"{clip_id}.npy", np.random.default_rng(i).random((T + i, C)))
    return FeatureFolder(folder)


@pytest.fixture
def packed(source: FeatureFolder, tmp_path: Path) -> Path:
    return pack_features(source, IDS, tmp_path / "packed.safetensors")


def test_packed_file_is_plain_safetensors(packed, source):
    loaded = load_file(packed)
    assert loaded.keys() == set(IDS)
    for clip_id in IDS:
        assert torch.equal(loaded[clip_id], source.read(clip_id))


@pytest.fixture(params=[".safetensors", ".lmdb"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Where to pack."""
    if request.param == ".lmdb":
        pytest.importorskip("lmdb", reason="the optional extra lmdb is missing")
    return tmp_path / f"target{request.param}"


def test_resized_features_keep_their_timeline_when_packed(target, source):
    grid = GridFeatures(source, 32)
    store = open_features(pack_features(grid, IDS, target))
    store.preflight({clip_id: T + i for i, clip_id in enumerate(IDS)})
    for clip_id in IDS:
        assert torch.equal(store.read(clip_id), grid.read(clip_id))
        assert store.time_scale(clip_id) == grid.time_scale(clip_id)
    with pytest.raises(FeatureError, match=r"expected 48\.0 steps .* but got 32"):
        store.preflight({"clip-1": 30.0})


def test_faults_of_the_source_are_all_listed_and_nothing_is_written(
    target, source, tmp_path
):
    (source.folder / "bad.npy").write_bytes(b"no array")
    np.save(source.folder / "wide.npy", np.ones((T, C + 1), np.float32))
    before = sorted(tmp_path.iterdir())
    with pytest.raises(FeatureError) as caught:
        pack_features(source, [*IDS, "gone", "bad", "wide"], target)
    faults = caught.value.faults
    assert [fault.split(":")[0] for fault in faults] == ["gone", "bad", "wide"]
    assert sorted(tmp_path.iterdir()) == before


def test_a_fault_in_the_middle_leaves_nothing_behind(target, source, tmp_path):
    array = np.ones((T, C), np.float32)
    array[3, 3] = np.nan
    np.save(source.folder / "nan.npy", array)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(FeatureError, match=r"nan: nan\.npy holds NaN"):
        pack_features(source, [*IDS, "nan"], target)
    assert sorted(tmp_path.iterdir()) == before


def test_values_that_half_precision_cannot_hold_are_refused(target, source):
    np.save(source.folder / "big.npy", np.full((T, C), 1e6, np.float32))
    with pytest.raises(FeatureError, match=r"big: .*too large for torch\.float16"):
        pack_features(source, [*IDS, "big"], target, dtype=torch.float16)
    assert not target.exists()


def test_what_is_there_is_not_overwritten(packed, source):
    content = packed.read_bytes()
    with pytest.raises(FileExistsError, match="remove it or choose another path"):
        pack_features(source, IDS, packed)
    assert packed.read_bytes() == content


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            {"path": "packed.bin"},
            r"a \.safetensors or \.lmdb path but got 'packed\.bin'",
        ),
        ({"dtype": torch.int8}, r"float32 or torch\.float16 but got torch\.int8"),
        ({"clip_ids": []}, "at least one clip to pack"),
    ],
)
def test_wrong_arguments_are_named(arguments, problem, source, tmp_path):
    options = {"clip_ids": IDS, "path": "packed.safetensors", **arguments}
    options["path"] = tmp_path / options["path"]
    with pytest.raises(ValueError, match=problem):
        pack_features(source, **options)


def test_progress_is_shown_on_request_only(source, tmp_path, capsys):
    pack_features(source, IDS, tmp_path / "quiet.safetensors")
    assert capsys.readouterr().err == ""
    pack_features(source, IDS, tmp_path / "loud.safetensors", show_progress=True)
    assert "3/3" in capsys.readouterr().err


@pytest.mark.parametrize("keep", [0.5, 0.99, 0.01, 0.0])
def test_truncated_file_is_one_named_fault(keep, packed):
    content = packed.read_bytes()
    packed.write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(FeatureError) as caught:
        PackedFeatures(packed).preflight(dict.fromkeys(IDS, T))
    (fault,) = caught.value.faults
    assert str(packed) in fault and "truncated" in fault


def test_time_scale_of_a_damaged_file_is_refused(tmp_path):
    path = tmp_path / "odd.safetensors"
    scales = json.dumps({"clip": -1.0})
    save_file({"clip": torch.ones(T, C)}, path, metadata={"time_scales": scales})
    with pytest.raises(FeatureError, match="time scale in the metadata"):
        PackedFeatures(path).preflight({"clip": T})


def with_a_bad_step(path: Path, step: int, dtype: torch.dtype = torch.float32) -> Path:
    features = torch.ones(T, C, dtype=dtype)
    features[step, 2] = torch.nan
    save_file({"clip": features}, path)
    return path


windows = st.tuples(st.integers(0, T + 2), st.integers(0, T + 2)).map(sorted)


@given(asked=st.lists(windows, min_size=1, max_size=12), bad=st.integers(0, T - 1))
@settings(max_examples=60)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_damaged_value_is_found_whatever_was_read_before(asked, bad, dtype, tmp_path):
    store = PackedFeatures(with_a_bad_step(tmp_path / "all.safetensors", bad, dtype))
    for start, stop in asked:
        if start <= bad < stop:
            with pytest.raises(FeatureError, match=r"clip: .*holds NaN"):
                store.read("clip", start, stop)
        else:
            read = store.read("clip", start, stop)
            assert torch.equal(read, torch.ones(max(0, min(stop, T) - start), C))


@pytest.fixture
def checks(monkeypatch) -> list[int]:
    """Steps of every window that was checked."""
    seen: list[int] = []
    check = store_module._copy_and_check

    def counting(window):
        seen.append(len(window))
        return check(window)

    monkeypatch.setattr(store_module, "_copy_and_check", counting)
    return seen


def test_steps_are_checked_when_first_read_and_not_again(packed, source, checks):
    store = PackedFeatures(packed)
    whole = source.read("clip-1")
    checks.clear()
    for start, stop in ((0, 10), (0, 10), (2, 8), (5, 15), (0, 15), (14, 99), (0, 99)):
        assert torch.equal(store.read("clip-1", start, stop), whole[start:stop])
    assert checks == [10, 10, 6]
    store.read("clip-2")
    assert checks[3:] == [T + 1]


def test_another_process_checks_for_itself(packed, checks):
    store = PackedFeatures(packed)
    before = len(pickle.dumps(store))
    for clip_id in IDS:
        store.read(clip_id)
    copy = pickle.dumps(store)
    assert len(copy) == before
    pickle.loads(copy).read("clip-1")
    assert checks == [T, T + 1, T + 2, T]


def test_file_put_in_place_of_an_open_one_is_not_seen(packed, tmp_path):
    store = PackedFeatures(packed)
    before = store.read("clip-1")
    save_file({"clip-1": torch.full((T, C), torch.nan)}, tmp_path / "other")
    (tmp_path / "other").replace(packed)
    assert torch.equal(store.read("clip-1"), before)
    with pytest.raises(FeatureError, match="holds NaN"):
        PackedFeatures(packed).read("clip-1")


def test_file_that_is_opened_at_each_read_is_checked_at_each_read(source):
    source.read("clip-1")
    np.save(source.folder / "clip-1.npy", np.full((T, C), np.nan))
    with pytest.raises(FeatureError, match="holds NaN"):
        source.read("clip-1")
