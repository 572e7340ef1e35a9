"""Every feature store gives the same tensors, in any process, and can be pickled."""

import io
import os
import pickle
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor
from torch.utils.data import DataLoader

from avalanche_vilco.core.batch import collate_moments
from avalanche_vilco.core.errors import DataError, FeatureError
from avalanche_vilco.data.features import (
    ALL_CLIPS,
    SUFFIXES,
    CachedFeatures,
    ConcatFeatures,
    FeatureFolder,
    FeatureStore,
    GridFeatures,
    LmdbFeatures,
    PackedFeatures,
    ParentFeatures,
    ShuffledFeatures,
    open_features,
    pack_features,
)
from avalanche_vilco.data.moments import MomentClip, MomentDataset, MomentSample

C = 6
STEPS = {"clip-a": 30, "clip-b": 41, "clip-c": 12}
FPS = 2.0
HAS_H5PY = find_spec("h5py") is not None


def tensors() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {i: torch.randn(t, C, generator=generator) for i, t in STEPS.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return in_files(tmp_path_factory.mktemp("features"), ".npy")


def save(path: Path, value: Tensor | dict[str, Tensor]) -> None:
    """Write one clip, or all clips by their ids, as the suffix says."""
    arrays = value if isinstance(value, dict) else {"features": value}
    if path.suffix == ".npy":
        np.save(path, value)
    elif path.suffix in (".pt", ".pth"):
        torch.save(value, path)
    elif path.suffix == ".npz":
        np.savez(path, **{i: x.numpy() for i, x in arrays.items()})
    elif path.suffix in (".h5", ".hdf5"):
        with pytest.importorskip("h5py").File(path, "w") as file:
            for i, x in arrays.items():
                file[i] = x.numpy()
    else:
        save_file(arrays, path)


def in_files(path: Path, suffix: str, values: dict[str, Tensor] | None = None) -> Path:
    path.mkdir(exist_ok=True)
    for clip_id, features in (values or tensors()).items():
        save(path / f"{clip_id}{suffix}", features)
    return path


def in_pt(path: Path) -> FeatureStore:
    return open_features(in_files(path, ".pt"))


def in_npy(path: Path) -> FeatureStore:
    return open_features(str(in_files(path, ".npy")))


def in_safetensors(path: Path) -> FeatureStore:
    return open_features(in_files(path, ".safetensors"))


def in_one_file(path: Path) -> FeatureStore:
    save(path / "all.safetensors", tensors())
    return open_features(path / "all.safetensors")


def in_packed_file(path: Path) -> FeatureStore:
    (path / "source").mkdir()
    source = in_pt(path / "source")
    return open_features(pack_features(source, STEPS, path / "packed.safetensors"))


def in_raw_lmdb(path: Path) -> FeatureStore:
    (path / "source").mkdir()
    source = in_pt(path / "source")
    return open_features(pack_features(source, STEPS, path / "a.lmdb"))


def lmdb_of(path: Path, values: dict[str, bytes]) -> Path:
    lmdb = pytest.importorskip("lmdb", reason="the optional extra lmdb is missing")
    with lmdb.open(str(path), map_size=2**24) as environment:
        for key, value in values.items():
            with environment.begin(write=True) as transaction:
                transaction.put(key.encode(), value)
    return path


def npz(write: Callable, **arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    write(buffer, **arrays)
    return buffer.getvalue()


def in_npz_lmdb(path: Path) -> FeatureStore:
    values = {
        i: npz(np.savez, token_features=x.numpy(), lengths=np.ones(1))
        for i, x in tensors().items()
    }
    return open_features(lmdb_of(path / "lmdb", values))


def in_compressed_npz_lmdb(path: Path) -> FeatureStore:
    values = {
        i: npz(np.savez_compressed, features=x.numpy()) for i, x in tensors().items()
    }
    return open_features(lmdb_of(path / "lmdb", values))


def in_npz_archive(path: Path) -> FeatureStore:
    save(path / "all.npz", tensors())
    return open_features(path / "all.npz")


def in_torch_dict(path: Path) -> FeatureStore:
    save(path / "all.pt", tensors())
    return open_features(path / "all.pt")


def in_npz_files(path: Path) -> FeatureStore:
    for i, (clip_id, features) in enumerate(tensors().items()):
        write = np.savez_compressed if i else np.savez
        write(path / f"{clip_id}.npz", features.numpy())
    return open_features(path)


def in_hdf5(path: Path) -> FeatureStore:
    """A dataset, a chunked one, and a group with one."""
    with pytest.importorskip("h5py").File(path / "all.h5", "w") as file:
        a, b, c = tensors().values()
        file["clip-a"] = a.numpy()
        file.create_dataset("clip-b", data=b.numpy(), chunks=(8, C), compression="gzip")
        file["clip-c/features"] = c.numpy()
    return open_features(path / "all.h5")


def in_hdf5_files(path: Path) -> FeatureStore:
    return open_features(in_files(path, ".hdf5"))


def in_parent_videos(path: Path) -> FeatureStore:
    video = torch.cat([torch.zeros(7, C), *tensors().values(), torch.zeros(5, C)])
    np.save(path / "video.npy", video.numpy())
    cuts, start = {}, 7
    for clip_id, steps in STEPS.items():
        cuts[clip_id] = ("video", start / FPS, (start + steps) / FPS, FPS)
        start += steps
    return open_features(path, cuts=cuts)


def in_two_sources(path: Path) -> FeatureStore:
    for name, channels in (("one", slice(0, 4)), ("two", slice(4, C))):
        (path / name).mkdir()
        for clip_id, features in tensors().items():
            np.save(path / name / f"{clip_id}.npy", features[:, channels].numpy())
    return open_features([path / "one", path / "two"])


STORES = [
    in_pt,
    in_npy,
    in_safetensors,
    in_one_file,
    in_packed_file,
    in_raw_lmdb,
    in_npz_lmdb,
    in_compressed_npz_lmdb,
    in_npz_archive,
    in_torch_dict,
    in_npz_files,
    in_hdf5,
    in_hdf5_files,
    in_parent_videos,
    in_two_sources,
]


@pytest.fixture(params=STORES, ids=lambda make: make.__name__)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> FeatureStore:
    if "lmdb" in request.param.__name__:
        pytest.importorskip("lmdb", reason="the optional extra lmdb is missing")
    return request.param(tmp_path)


def test_the_same_clip_is_the_same_tensor_in_every_store(store):
    store.preflight(STEPS)
    assert store.width == C
    for clip_id, features in tensors().items():
        read = store.read(clip_id)
        assert read.dtype == torch.float32
        assert torch.equal(read, features)
        assert store.shape(clip_id) == features.shape
        assert store.time_scale(clip_id) == 1.0


@pytest.mark.parametrize("window", [(0, 5), (3, 9), (25, 99), (40, 50), (4, 4)])
def test_a_window_holds_the_steps_of_the_whole(window, store):
    whole = tensors()["clip-a"]
    assert torch.equal(store.read("clip-a", *window), whole[slice(*window)])
    assert torch.equal(store.read("clip-a", window[0]), whole[window[0] :])


@pytest.mark.parametrize("window", [(-1, 3), (4, 2)])
def test_windows_from_the_end_or_backwards_are_refused(window, store):
    with pytest.raises(ValueError, match=r"expected 0 <= start <= stop but got"):
        store.read("clip-a", *window)


def test_writing_into_what_was_read_leaves_the_next_read_alone(store):
    store.read("clip-b").zero_()
    assert torch.equal(store.read("clip-b"), tensors()["clip-b"])


def test_a_read_window_holds_no_more_memory_than_its_own(store):
    window = store.read("clip-b", 2, 5)
    assert window.untyped_storage().nbytes() == 3 * C * 4


def test_missing_clips_are_named_in_the_order_asked(store):
    asked = ["gone-2", "clip-a", "gone-1"]
    assert store.missing(asked) == ["gone-2", "gone-1"]
    with pytest.raises(FeatureError) as caught:
        store.preflight({**STEPS, "gone-2": 30, "gone-1": 30})
    faults = caught.value.faults
    assert {fault.split(":")[0] for fault in faults} == {"gone-1", "gone-2"}
    with pytest.raises(FeatureError, match="gone-1"):
        store.read("gone-1")


def test_another_clips_length_is_found_before_training(store):
    with pytest.raises(FeatureError) as caught:
        store.preflight({**STEPS, "clip-b": 50})
    for fault in caught.value.faults:
        assert fault.startswith("clip-b: ")
        assert "expected 50.0 steps" in fault


def test_no_handle_is_pickled(store):
    store.preflight(STEPS)
    before = pickle.dumps(store)
    first = store.read("clip-a")
    after = pickle.dumps(store)
    assert len(after) - len(before) < 200
    assert torch.equal(pickle.loads(after).read("clip-a"), first)


def test_spawned_workers_read_as_the_main_process_does(tmp_path):
    """One clip set as all stores at once, since each worker takes long to start."""
    pytest.importorskip("lmdb", reason="the optional extra lmdb is missing")
    samples, stores = [], []
    makes = [make for make in STORES if HAS_H5PY or "hdf5" not in make.__name__]
    for i, make in enumerate(makes):
        (tmp_path / str(i)).mkdir()
        stores.append(make(tmp_path / str(i)))
    every = CachedFeatures(GridFeatures(ConcatFeatures(stores), 16), 10**6)
    every.preflight(STEPS)
    for clip_id, steps in STEPS.items():
        windows, labels = np.array([[1.0, 4.0]]), np.array([0])
        clip = MomentClip(clip_id, "v", "train", steps / FPS, FPS, windows, labels)
        samples.append(MomentSample(clip, windows, labels, asked=(0,)))
    dataset = MomentDataset(samples, every, n_queries=1)
    [list(dataset[i][0]) for i in range(3)]  # handles are open when workers start
    read = [
        [
            (inputs.features.clone(), targets.segments.clone())
            for inputs, targets in DataLoader(
                dataset,
                batch_size=2,
                collate_fn=collate_moments,
                num_workers=workers,
                multiprocessing_context="spawn" if workers else None,
            )
        ]
        for workers in (0, 1)
    ]
    assert len(read[0]) == 2
    for own, workers in zip(*read, strict=True):
        assert all(map(torch.equal, own, workers))
    assert read[0][0][0].shape[-1] == len(makes) * C


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_process_reads_what_its_parent_opened(store):
    expected = store.read("clip-a")
    child = os.fork()
    if child == 0:
        is_equal = False
        try:
            is_equal = torch.equal(store.read("clip-a"), expected)
        finally:
            os._exit(0 if is_equal else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert torch.equal(store.read("clip-a"), expected)


@pytest.mark.parametrize("suffix", [".safetensors", ".lmdb"])
def test_half_precision_is_half_the_size_and_reads_as_float32(suffix, folder, tmp_path):
    if suffix == ".lmdb":
        pytest.importorskip("lmdb", reason="the optional extra lmdb is missing")
    path = tmp_path / f"half{suffix}"
    pack_features(FeatureFolder(folder), STEPS, path, dtype=torch.float16)
    store = open_features(path)
    store.preflight(STEPS)
    for clip_id, features in tensors().items():
        read = store.read(clip_id)
        assert read.dtype == torch.float32
        assert torch.equal(read, features.half().float())
        torch.testing.assert_close(read, features, rtol=1e-3, atol=1e-3)


def test_what_lies_at_a_path_decides_the_store(folder, tmp_path):
    pytest.importorskip("lmdb", reason="the optional extra lmdb is missing")
    source = FeatureFolder(folder)
    packed = pack_features(source, STEPS, tmp_path / "a.safetensors")
    database = pack_features(source, STEPS, tmp_path / "b.lmdb")
    assert type(open_features(folder)) is FeatureFolder
    assert type(open_features(packed)) is PackedFeatures
    assert type(open_features(database)) is LmdbFeatures
    assert type(open_features(database / "data.mdb")) is LmdbFeatures
    assert type(open_features([folder, packed])) is ConcatFeatures
    assert type(open_features([folder])) is FeatureFolder
    assert open_features(source) is source
    assert type(open_features(folder, grid=8)) is GridFeatures
    cut = {"clip": ("clip-a", 0.0, 3.0, FPS)}
    both = open_features([folder, database], cuts=cut, grid=8)
    assert isinstance(both, GridFeatures) and isinstance(both.store, ParentFeatures)
    assert both.read("clip").shape == (8, 2 * C)


FORMS = [
    form
    for form in (*(f"all{suffix}" for suffix in ALL_CLIPS), *SUFFIXES)
    if "mdb" not in form and (HAS_H5PY or not form.endswith(("h5", "hdf5")))
]


@given(
    steps=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    channels=st.integers(1, 9),
    dtype=st.sampled_from([torch.float16, torch.float32, torch.float64]),
    window=st.tuples(st.integers(0, 45), st.integers(0, 45)).map(sorted),
)
@settings(max_examples=25)
def test_any_arrays_are_equal_tensors_in_every_form(
    steps, channels, dtype, window, tmp_path_factory
):
    folder = tmp_path_factory.mktemp("forms")
    arrays = {
        f"clip {i}": torch.randn(t, channels).to(dtype) for i, t in enumerate(steps)
    }
    for form in FORMS:
        if form.startswith("all"):
            save(folder / form, arrays)
        else:
            in_files(folder / form, form, arrays)
        store = open_features(folder / form)
        store.preflight({i: len(array) for i, array in arrays.items()})
        assert store.width == channels
        assert store.missing([*arrays, "gone"]) == ["gone"]
        for i, array in arrays.items():
            assert torch.equal(store.read(i), array.float())
            part = array[slice(*window)].float()
            assert torch.equal(store.read(i, *window), part)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda file: file.create_dataset("clip", (9, C), "f4"), "not written whole"),
        (
            lambda file: file.create_dataset(
                "clip", (9, C), "f4", chunks=(3, C)
            ).__setitem__(slice(0, 4), 1.0),
            "not written whole",
        ),
        (
            lambda file: file.create_dataset("clip", (10**9, C), "f4", chunks=(9, C)),
            "more than 1073741824 are refused",
        ),
        (lambda file: file.__setitem__("clip", "text"), "expected a floating dtype"),
        (lambda file: file.create_group("clip"), "or one alone, but got"),
        (
            lambda file: file.__setitem__("clip", h5py().ExternalLink("b.h5", "/clip")),
            "its values lie in other files",
        ),
        (lambda file: file.__setitem__("clip", h5py().Empty("f4")), "without values"),
    ],
)
def test_values_that_are_not_in_an_hdf5_file_are_named(damage, problem, tmp_path):
    save(tmp_path / "b.h5", {"clip": torch.ones(9, C)})
    with h5py().File(tmp_path / "a.h5", "w") as file:
        damage(file)
    with pytest.raises(FeatureError, match=f"clip.*{problem}"):
        open_features(tmp_path / "a.h5").preflight({"clip": 9})


def h5py() -> Any:
    return pytest.importorskip("h5py", reason="needs the extra 'h5'")


def test_hdf5_without_its_package_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "clip.h5").touch()
    monkeypatch.setitem(sys.modules, "h5py", None)
    for read in (
        lambda: open_features(tmp_path / "clip.h5"),
        lambda: open_features(tmp_path).preflight({"clip": 9}),
    ):
        with pytest.raises(ImportError, match=r"pip install 'avalanche-vilco\[h5\]'"):
            read()


def test_what_is_found_is_named_beside_what_is_read(tmp_path):
    for name in ("a.pkl", "b.pkl", "c.csv"):
        (tmp_path / name).touch()
    found = (
        r"none of these clips is there: the folder has 2 \.pkl, 1 \.csv, a\.pkl first"
    )
    with pytest.raises(FeatureError, match=found):
        open_features(tmp_path).preflight({"clip": 9})
    with pytest.raises(
        DataError, match=r"is a \.pkl; .*\.safetensors.*pickles are not"
    ):
        open_features(tmp_path / "a.pkl")
    save(tmp_path / "all.npz", {"other": torch.ones(9, C)})
    with pytest.raises(FeatureError, match="it has 1 entries, 'other' first"):
        open_features(tmp_path / "all.npz").preflight({"clip": 9})
    save(tmp_path / "one.pt", torch.ones(9, C))
    with pytest.raises(FeatureError, match=r"dict of clip uid -> tensor: got a Tensor"):
        open_features(tmp_path / "one.pt").preflight({"clip": 9})


@pytest.mark.parametrize("form", ["a.pt", ".npy"])
def test_width_of_transposed_features_is_not_taken_for_their_length(form, tmp_path):
    """The fault as reported: 69 and 65 steps of 20 channels, all turned around."""
    turned = {"a": torch.ones(20, 69), "b": torch.ones(20, 65)}
    path = in_files(tmp_path, form, turned) if form == ".npy" else tmp_path / form
    if form != ".npy":
        save(path, turned)
    with pytest.raises(FeatureError) as caught:
        open_features(path).preflight({"a": 69, "b": 65})
    for fault, steps in zip(caught.value.faults, (69, 65), strict=True):
        assert (
            f"transposed: expected (T, C) = ({steps}, 20), got (20, {steps})" in fault
        )


def test_transposed_videos_are_suspected_where_a_clip_starts_behind_their_end(tmp_path):
    save(tmp_path / "v.npy", torch.ones(20, 200))
    cut = {"clip": ("v", 50.0, 60.0, FPS)}
    with pytest.raises(FeatureError, match=r"step 100 of 20; is it transposed\?"):
        open_features(tmp_path, cuts=cut).preflight({"clip": 20})


def test_lengths_of_another_rate_say_so_and_name_the_options(tmp_path):
    save(tmp_path / "a.npz", {"a": torch.ones(20, C), "b": torch.ones(41, C)})
    with pytest.raises(FeatureError) as caught:
        open_features(tmp_path / "a.npz").preflight({"a": 10, "b": 20})
    assert "length_tolerance=2) but got 20" in caught.value.faults[0]
    assert "2 times the steps expected" in caught.value.hint
    assert "features_per_sec" in caught.value.hint


def test_absent_sources_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere; pass features=FOLDER"):
        open_features(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"all\.safetensors; pack_features"):
        open_features(tmp_path / "all.safetensors")
    with pytest.raises(ValueError, match="at least one feature source"):
        open_features([])


@pytest.mark.parametrize(
    "clip_id",
    ["../secret", "/etc/secret", "a/b", "..", ".", "", "a\\b", "c:d", "a\0", "x" * 300],
)
def test_an_id_that_could_leave_the_folder_is_refused(clip_id, folder, tmp_path):
    np.save(folder.parent / "secret.npy", np.ones((5, C), np.float32))
    store = FeatureFolder(folder)
    with pytest.raises(FeatureError, match="refused, the id is no plain file name"):
        store.read(clip_id)
    with pytest.raises(FeatureError, match="refused, the id is no plain file name"):
        store.preflight({clip_id: 5})
    videos = ParentFeatures(store, {"clip": (clip_id, 0.0, 2.0, FPS)})
    with pytest.raises(FeatureError, match="refused, the id is no plain file name"):
        videos.read("clip")


def test_shuffled_features_keep_the_timeline_of_the_true_ones(folder):
    true = GridFeatures(FeatureFolder(folder), 24)
    shuffled = ShuffledFeatures(true, STEPS, seed=1)
    shuffled.preflight(STEPS)
    assert shuffled.time_scale("clip-a") == true.time_scale("clip-a") == 24 / 30
    assert shuffled.shape("clip-a") == (24, C)
    whole = shuffled.read("clip-a")
    assert torch.equal(shuffled.read("clip-a", 3, 7), whole[3:7])


def test_finite_values_whose_sum_is_not_are_no_fault(tmp_path):
    features = torch.full((40, C), 3e38)
    save_file({"clip": features}, tmp_path / "all.safetensors")
    assert torch.equal(
        open_features(tmp_path / "all.safetensors").read("clip"), features
    )


@pytest.mark.parametrize("place", [0, 700, 1499])
def test_one_value_that_is_no_number_is_found_anywhere(place, tmp_path):
    features = torch.ones(1500, 1024)  # several blocks
    features[place, 7] = -float("inf")
    save_file({"clip": features}, tmp_path / "all.safetensors")
    store = open_features(tmp_path / "all.safetensors")
    with pytest.raises(FeatureError, match=r"all\.safetensors\[clip\] holds NaN"):
        store.read("clip")
    assert torch.equal(store.read("clip", place + 1), torch.ones(1499 - place, 1024))


IN_FILES = [in_pt, in_npy, in_npz_files, in_one_file, in_npz_archive, in_torch_dict]


@given(data=st.data())
@settings(max_examples=80)
@pytest.mark.parametrize("make", IN_FILES, ids=lambda make: make.__name__)
def test_any_damage_is_a_named_error_or_a_tensor(make, data, tmp_path):
    make(tmp_path)
    path = min(tmp_path.iterdir())
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        # Headers are at the start of files, and at the end of zip archives.
        place = data.draw(st.integers(-400, 399))
        content[place % len(content)] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    store = open_features(tmp_path if make in IN_FILES[:3] else path)
    try:
        store.preflight({"clip-a": STEPS["clip-a"]})
        assert store.read("clip-a").shape == store.shape("clip-a")
    except FeatureError as error:
        assert path.name in str(error)
