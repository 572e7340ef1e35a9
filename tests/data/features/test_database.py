"""LMDB features: both forms of values, one open a process, no trust in content."""

import copy
import io
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from avalanche_vilco.core.errors import FeatureError
from avalanche_vilco.data.features import LmdbFeatures

lmdb = pytest.importorskip("lmdb", reason="the optional extra lmdb is missing")

T, C = 20, 5


def features(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((T, C), dtype=np.float32)


def archive(write=np.savez, **arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    write(buffer, **arrays)
    return buffer.getvalue()


def raw(array: np.ndarray, code: int = 1, scale: float = 1.0) -> bytes:
    header = struct.pack("<4sBxxxIId8x", b"AVF1", code, *array.shape, scale)
    return header + array.tobytes()


def database(path: Path, values: dict[str, bytes]) -> LmdbFeatures:
    with lmdb.open(str(path), map_size=2**24) as environment:
        for key, value in values.items():
            with environment.begin(write=True) as transaction:
                transaction.put(key.encode(), value)
    return LmdbFeatures(path)


def fault_of(path: Path, value: bytes) -> str:
    good = raw(features())
    store = database(path / "lmdb", {"good-1": good, "good-2": good, "odd": value})
    with pytest.raises(FeatureError) as caught:
        store.preflight({"good-1": T, "good-2": T, "odd": T})
    (fault,) = caught.value.faults
    assert fault.startswith("odd: ") and "data.mdb" in fault
    return fault


def test_both_forms_may_lie_in_one_database(tmp_path):
    values = {
        "raw": raw(features(1)),
        "half": raw(features(2).astype(np.float16), code=2),
        "npz": archive(token_features=features(3)),
        "other": archive(np.savez_compressed, features=features(4).astype(np.float16)),
        "fortran": archive(features=np.asfortranarray(features(5))),
        "big-endian": archive(features=features(6).astype(">f4")),
        "double": archive(features=features(7).astype(np.float64)),
    }
    store = database(tmp_path / "lmdb", values)
    store.preflight(dict.fromkeys(values, T))
    for seed, clip_id in enumerate(values, 1):
        expected = torch.from_numpy(features(seed))
        precise = clip_id not in ("half", "other")
        expected = expected if precise else expected.half().float()
        assert torch.equal(store.read(clip_id), expected)
        assert torch.equal(store.read(clip_id, 3, 8), expected[3:8])


def test_token_features_go_before_features_as_in_public_code(tmp_path):
    value = archive(features=features(1), token_features=features(2))
    store = database(tmp_path / "lmdb", {"clip": value})
    assert torch.equal(store.read("clip"), torch.from_numpy(features(2)))


def test_database_is_opened_once_a_process_with_readahead(tmp_path, monkeypatch):
    store = database(tmp_path / "lmdb", {"clip": raw(features())})
    opened = []
    original = lmdb.open

    def counting(*args, **kwargs):
        opened.append(kwargs)
        return original(*args, **kwargs)

    monkeypatch.setattr(lmdb, "open", counting)
    stores = [store, LmdbFeatures(tmp_path / "lmdb" / "data.mdb"), copy.deepcopy(store)]
    for one in stores * 2:
        one.preflight({"clip": T})
        one.read("clip")
    assert len(opened) == 1
    assert (
        opened[0].get("readahead", True)
        and opened[0]["readonly"]
        and not opened[0]["lock"]
    )


def test_nothing_is_written_beside_a_database_that_is_read(tmp_path):
    store = database(tmp_path / "lmdb", {"clip": raw(features())})
    (tmp_path / "lmdb" / "lock.mdb").unlink()
    store.read("clip")
    assert [path.name for path in (tmp_path / "lmdb").iterdir()] == ["data.mdb"]


def test_absent_database_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no LMDB at .*nowhere\.lmdb"):
        LmdbFeatures(tmp_path / "nowhere.lmdb")


@pytest.mark.parametrize("key", ["gone", "", "k" * 600, "é" * 300])
def test_missing_or_impossible_key_is_a_named_fault(key, tmp_path):
    store = database(tmp_path / "lmdb", {"clip": raw(features())})
    assert store.missing(["clip", key]) == [key]
    for read in (store.read, store.shape, store.locate, store.time_scale):
        with pytest.raises(FeatureError, match=r"no key .* in .*data\.mdb"):
            read(key)


@pytest.mark.parametrize("keep", [0.0, 0.01, 0.5, 0.9])
def test_truncated_database_is_one_named_fault(keep, tmp_path):
    values = {f"clip{i}": raw(features(i).repeat(100, 0)) for i in range(5)}
    database(tmp_path / "lmdb", values)
    file = tmp_path / "lmdb" / "data.mdb"
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(FeatureError) as caught:
        LmdbFeatures(tmp_path / "lmdb").preflight(dict.fromkeys(values, 100 * T))
    (fault,) = caught.value.faults
    assert str(file) in fault and "truncated" in fault


BAD_VALUES = {
    "other names": (
        archive(x=features(), y=features()),
        "expected an array named token_features",
    ),
    "text": (b"404: Not Found", "neither a raw array nor an npz"),
    "nothing": (b"", "neither a raw array nor an npz"),
    "half an archive": (archive(features=features())[:200], "BadZipFile"),
    "archive without end": (archive(features=features())[:-30], "BadZipFile"),
    "raw header only": (raw(features())[:20], "expected a header of 32 bytes"),
    "raw cut": (raw(features())[:-3], "expected 400 bytes for shape (20, 5)"),
    "raw of unknown kind": (raw(features(), code=9), "expected dtype code"),
    "raw without timeline": (raw(features(), scale=0.0), "positive time scale"),
    "raw not a number": (raw(features(), scale=float("nan")), "positive time scale"),
    "objects": (
        archive(features=np.array([[None] * C] * T, dtype=object)),
        "refused, the array holds Python objects",
    ),
    "narrow": (raw(features()[:, :2].copy()), "expected 5 channels"),
}


@pytest.mark.parametrize("case", BAD_VALUES)
def test_bad_value_is_a_named_fault(case, tmp_path):
    value, problem = BAD_VALUES[case]
    assert problem in fault_of(tmp_path, value)


def bomb(declared: int | None = None, packed: int = 2**22) -> bytes:
    """A small archive whose array is, or is said to be, large."""
    buffer = io.BytesIO()
    npy = io.BytesIO()
    np.save(npy, np.zeros((packed // 4096, 1024), np.float32))
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("features.npy", npy.getvalue())
    value = bytearray(buffer.getvalue())
    if declared is not None:
        for signature, place in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
            start = value.index(signature) + place
            value[start : start + 4] = struct.pack("<I", declared)
    return bytes(value)


def test_archive_that_declares_too_much_is_refused_with_the_limit(tmp_path):
    fault = fault_of(tmp_path, bomb(declared=3_000_000_000))
    assert "declares 3000000000 bytes; more than 1073741824 are refused" in fault


def test_nothing_is_unpacked_before_sizes_are_checked(tmp_path, monkeypatch):
    monkeypatch.setattr(LmdbFeatures, "max_array_bytes", 2**20)
    value = bomb()
    assert len(value) < 20_000
    store = database(tmp_path / "lmdb", {"clip": value})
    with pytest.raises(FeatureError, match="more than 1048576 are refused"):
        store.read("clip")


def test_archive_that_declares_too_little_unpacks_no_more_than_that(tmp_path):
    value = bomb(declared=9000, packed=2**26)
    store = database(tmp_path / "lmdb", {"clip": value})
    tracemalloc.start()
    with pytest.raises(FeatureError, match="clip: "):
        store.read("clip")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**22


@given(data=st.data())
@settings(max_examples=150)
def test_any_damage_of_an_archive_is_an_error_or_an_array(data, tmp_path):
    write = data.draw(st.sampled_from([np.savez, np.savez_compressed]))
    content = bytearray(archive(write, features=features()))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
    value = bytes(content[: data.draw(st.integers(0, len(content)))])
    path = tmp_path / f"lmdb{len(list(tmp_path.iterdir()))}"
    store = database(path, {"clip": value or b"x"})
    try:
        store.preflight({"clip": T})
        assert store.read("clip").shape == (T, C)
    except FeatureError as error:
        assert "clip" in str(error)
