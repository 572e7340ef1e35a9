"""Feature files: every fault is found before training and named."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from avalanche_vilco.core.errors import FeatureError
from avalanche_vilco.data.features import (
    SUFFIXES,
    FeatureFolder,
    ShuffledFeatures,
    open_features,
)

T, C = 12, 5


def save(folder: Path, clip_id: str, tensor: Tensor, suffix: str = ".npy") -> Path:
    path = folder / f"{clip_id}{suffix}"
    if suffix == ".npy":
        np.save(path, tensor.numpy())
    elif suffix in (".pt", ".pth"):
        torch.save(tensor, path)
    else:
        save_all(path, {"features": tensor})
    return path


def save_all(path: Path, tensors: dict[str, Tensor]) -> None:
    if path.suffix == ".npz":
        np.savez(path, **{name: x.numpy() for name, x in tensors.items()})
    elif path.suffix in (".h5", ".hdf5"):
        with pytest.importorskip("h5py").File(path, "w") as file:
            for name, x in tensors.items():
                file[name] = x.numpy()
    elif path.suffix == ".pt":
        torch.save(tensors, path)
    else:
        save_file({name: x.clone().contiguous() for name, x in tensors.items()}, path)


def faults_of(folder: Path, *clip_ids: str, steps: float = T) -> tuple[str, ...]:
    with pytest.raises(FeatureError) as caught:
        FeatureFolder(folder).preflight(dict.fromkeys(clip_ids, steps))
    assert str(folder) in str(caught.value)
    return caught.value.faults


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """A folder where three clips are as they should be."""
    for clip_id in ("good-1", "good-2", "good-3"):
        save(tmp_path, clip_id, torch.randn(T, C))
    return tmp_path


GOOD = ("good-1", "good-2", "good-3")


PRECISIONS = [
    (suffix, dtype)
    for suffix in SUFFIXES
    for dtype in (torch.float16, torch.bfloat16, torch.float64)
    if dtype != torch.bfloat16 or suffix in (".safetensors", ".pt", ".pth")
]


@pytest.mark.parametrize(("suffix", "dtype"), PRECISIONS)
def test_other_precisions_are_read_as_float32(suffix, dtype, tmp_path):
    features = torch.randn(T, C)
    save(tmp_path, "clip", features.to(dtype), suffix)
    store = FeatureFolder(tmp_path)
    store.preflight({"clip": T})
    read = store.read("clip")
    assert read.dtype == torch.float32
    assert torch.equal(read, features.to(dtype).float())


def test_old_torch_files_that_are_no_zip_are_read(tmp_path):
    features = torch.randn(T, C)
    torch.save(features, tmp_path / "a.pt", _use_new_zipfile_serialization=False)
    store = FeatureFolder(tmp_path)
    store.preflight({"a": T})
    assert torch.equal(store.read("a"), features)


def test_saved_parameter_brings_no_gradient(tmp_path):
    torch.save(torch.nn.Parameter(torch.ones(T, C)), tmp_path / "a.pt")
    assert not FeatureFolder(tmp_path).read("a").requires_grad


@pytest.mark.parametrize(
    "array",
    [np.ones((T, C), dtype=">f4"), np.asfortranarray(np.ones((T, C), np.float32))],
    ids=["big-endian", "column-major"],
)
def test_numpy_layouts_do_not_matter(array, tmp_path):
    np.save(tmp_path / "a.npy", array)
    assert torch.equal(FeatureFolder(tmp_path).read("a"), torch.ones(T, C))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_writing_into_what_was_read_leaves_file_and_next_read_alone(suffix, tmp_path):
    features = torch.randn(T, C)
    path = save(tmp_path, "clip", features, suffix)
    before = path.read_bytes()
    store = FeatureFolder(tmp_path)
    store.read("clip").zero_()
    assert torch.equal(store.read("clip"), features)
    assert path.read_bytes() == before


@pytest.mark.parametrize("steps", [T - 2, T - 1, T, T + 1, T + 2])
def test_a_step_or_two_more_or_less_are_accepted(steps, tmp_path):
    save(tmp_path, "clip", torch.randn(steps, C))
    FeatureFolder(tmp_path).preflight({"clip": T})


def test_tolerance_can_be_set(good):
    FeatureFolder(good).preflight({"good-1": T + 0.4}, tolerance=0.5)
    with pytest.raises(FeatureError, match=r"expected 13\.0 steps"):
        FeatureFolder(good).preflight({"good-1": T + 1}, tolerance=0.5)


def test_absent_folder_is_named_with_the_way_out(tmp_path):
    with pytest.raises(FileNotFoundError, match="pass features=FOLDER") as caught:
        FeatureFolder(tmp_path / "nowhere")
    assert str(tmp_path / "nowhere") in str(caught.value)


def test_faults_of_all_kinds_come_in_one_error(good):
    save(good, "wide", torch.ones(T, C + 1))
    (good / "empty.npy").touch()
    faults = faults_of(good, *GOOD, "wide", "empty", "gone")
    assert {fault.split(":")[0] for fault in faults} == {"wide", "empty", "gone"}


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[: len(content) // 2],
        lambda content: content[:-7],
        lambda content: content[:3],
        lambda content: b"404: Not Found\n" * 40,
        lambda content: b"PK\x03\x04" + bytes(60),
    ],
    ids=["0 bytes", "half", "7 bytes short", "3 bytes", "text", "broken zip"],
)
def test_damaged_file_is_named_before_training_and_on_read(suffix, damage, good):
    path = save(good, "bad", torch.randn(T, C), suffix)
    path.write_bytes(damage(path.read_bytes()))
    (fault,) = faults_of(good, *GOOD, "bad")
    assert fault.startswith(f"bad: {path.name} is damaged or not a feature file: ")
    with pytest.raises(FeatureError, match=f"bad: bad{suffix} is damaged"):
        FeatureFolder(good).read("bad")


class Malicious:
    """Unpickling it makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def __reduce__(self) -> tuple[Callable, tuple]:
        return os.mkdir, (self.folder,)


def save_malicious_zip(path: Path, trap: Path) -> None:
    torch.save({"features": Malicious(trap)}, path)


def save_malicious_pickle(path: Path, trap: Path) -> None:
    path.write_bytes(pickle.dumps(Malicious(trap), protocol=2))


@pytest.mark.parametrize("write", [save_malicious_zip, save_malicious_pickle])
def test_code_inside_a_torch_file_is_refused_and_not_run(write, good):
    trap = good / "trap"
    write(good / "evil.pt", trap)
    (fault,) = faults_of(good, *GOOD, "evil")
    assert "evil.pt" in fault and "refused" in fault
    with pytest.raises(FeatureError) as caught:
        FeatureFolder(good).read("evil")
    assert not trap.exists()
    assert "weights_only" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ({"features": torch.ones(T, C)}, "dict"),
        ([torch.ones(T, C)], "list"),
        (torch.ones(T, C).to_sparse(), "sparse"),
        (np.float64(3.0), "refused"),
    ],
    ids=["dict", "list", "sparse", "numpy scalar"],
)
@pytest.mark.filterwarnings("ignore:Validating sparse tensor")
def test_torch_file_with_something_else_than_a_tensor_is_refused(content, kind, good):
    torch.save(content, good / "odd.pt")
    (fault,) = faults_of(good, *GOOD, "odd")
    assert "odd.pt" in fault and kind in fault


def test_numpy_archive_or_objects_under_the_name_npy_are_refused(good):
    with (good / "zip.npy").open("wb") as file:
        np.savez(file, a=np.ones((T, C)))
    np.save(good / "objects.npy", np.array([None, {}]), allow_pickle=True)
    faults = faults_of(good, *GOOD, "zip", "objects")
    assert [fault.split(":")[0] for fault in faults] == ["zip", "objects"]


def test_safetensors_with_two_tensors_is_refused(good):
    save_file({"a": torch.ones(T, C), "b": torch.ones(1)}, good / "two.safetensors")
    (fault,) = faults_of(good, *GOOD, "two")
    assert "expected one tensor in the file but got 2" in fault


def test_two_files_of_one_clip_are_an_error(good):
    save(good, "good-1", torch.zeros(T, C), ".pt")
    (fault,) = faults_of(good, *GOOD)
    assert fault == "good-1: has good-1.npy and good-1.pt; leave one"
    with pytest.raises(FeatureError, match="leave one"):
        FeatureFolder(good).read("good-1")


WRONG_SHAPES = {
    "transposed": (torch.ones(C, T), "transposed: expected (T, C) = (12, 5)"),
    "too wide": (torch.ones(T, C + 2), "expected 5 channels as in the other files"),
    "integers": (torch.ones(T, C, dtype=torch.int32), "expected a floating dtype"),
    "booleans": (torch.ones(T, C, dtype=torch.bool), "expected a floating dtype"),
    "1-D": (torch.ones(T), "expected a (T, C) tensor but got shape (12,)"),
    "3-D": (torch.ones(1, T, C), "expected a (T, C) tensor but got shape (1, 12, 5)"),
    "0-D": (torch.ones(()), "expected a (T, C) tensor but got shape ()"),
    "no step": (torch.ones(0, C), "empty: shape (0, 5)"),
    "no channel": (torch.ones(T, 0), "empty: shape (12, 0)"),
    "too long": (torch.ones(T + 3, C), "expected 12.0 steps"),
    "too short": (torch.ones(T - 3, C), "but got 9"),
}


ALL_CLIPS = ["all.safetensors", "all.npz", "all.h5", "all.pt"]


@pytest.mark.parametrize("form", [*SUFFIXES, *ALL_CLIPS])
@pytest.mark.parametrize("case", WRONG_SHAPES)
def test_wrong_tensor_is_named_with_what_was_expected(case, form, good):
    tensor, problem = WRONG_SHAPES[case]
    if form in SUFFIXES:
        source, place = good, save(good, "odd", tensor, form)
    else:
        tensors = dict.fromkeys(GOOD, torch.ones(T, C)) | {"odd": tensor}
        source = good / form
        place = f"{source}[odd]"
        save_all(source, tensors)
    with pytest.raises(FeatureError) as caught:
        open_features(source).preflight(dict.fromkeys((*GOOD, "odd"), T))
    (fault,) = caught.value.faults
    assert fault.startswith(f"odd: {place}: ")
    assert problem in fault


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_value_that_is_no_number_is_named_on_read(suffix, value, tmp_path):
    features = torch.randn(T, C)
    features[T - 1, C - 1] = value
    save(tmp_path, "clip", features, suffix)
    with pytest.raises(FeatureError, match=f"clip: clip{suffix} holds NaN or inf"):
        FeatureFolder(tmp_path).read("clip")


@pytest.mark.filterwarnings("error")
def test_value_too_large_for_float32_is_named_on_read(tmp_path):
    save(tmp_path, "clip", torch.full((T, C), 1e300, dtype=torch.float64))
    with pytest.raises(FeatureError, match="holds NaN or infinity"):
        FeatureFolder(tmp_path).read("clip")


def test_width_is_not_guessed_before_the_check(tmp_path):
    with pytest.raises(ValueError, match="after preflight"):
        _ = FeatureFolder(tmp_path).width


def shuffled(folder: Path, seed: int = 0, n_clips: int = 6) -> ShuffledFeatures:
    for i in range(n_clips):
        # Every step tells its clip and its place.
        steps = torch.arange(T + i).float()
        save(folder, f"clip{i}", torch.stack([torch.full_like(steps, i), steps], 1))
    store = FeatureFolder(folder)
    store.preflight({f"clip{i}": T + i for i in range(n_clips)})
    return ShuffledFeatures(store, (f"clip{i}" for i in range(n_clips)), seed)


def test_shuffled_clip_reads_steps_of_one_other_clip_in_its_own_length(tmp_path):
    store = shuffled(tmp_path)
    donors = []
    for i in range(6):
        features = store.read(f"clip{i}")
        assert features.shape == (T + i, store.width)
        (donor,) = features[:, 0].unique().tolist()
        assert donor != i
        donors.append(donor)
        is_in_order = bool((features[:, 1].diff() >= 0).all())
        assert not is_in_order
    assert sorted(donors) == list(range(6))


def test_shuffling_follows_its_seed_alone(tmp_path):
    first, again, other = (shuffled(tmp_path, seed) for seed in (0, 0, 1))
    assert torch.equal(first.read("clip3"), again.read("clip3"))
    assert torch.equal(first.read("clip3"), first.read("clip3"))
    assert any(
        not torch.equal(first.read(f"clip{i}"), other.read(f"clip{i}"))
        for i in range(6)
    )


def test_shuffling_needs_two_clips(tmp_path):
    with pytest.raises(ValueError, match="at least 2 clips to shuffle but got 1"):
        ShuffledFeatures(FeatureFolder(tmp_path), ["a", "a"], 0)
