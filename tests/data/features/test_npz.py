"""Arrays by name in npz archives, and token features in every form.

Archives unpack no more than they declare, and only as NumPy writes them.
"""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from avalanche_vilco.core.errors import DataError
from avalanche_vilco.data.features import open_tokens, sources
from avalanche_vilco.data.features.npz import NpzArchive

TOKENS = np.arange(12, dtype=np.float16).reshape(3, 4)


def npz_bytes(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def one_member(path: Path, content: bytes, method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression=method) as file:
        file.writestr("token_features.npy", content)
    return path


def npy_bytes(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def archive(folder: Path, **arrays: np.ndarray) -> Path:
    np.savez(folder / "tokens.npz", **arrays)
    return folder / "tokens.npz"


def database(folder: Path, **arrays: np.ndarray) -> Path:
    lmdb = pytest.importorskip("lmdb", reason="needs the extra 'lmdb'")
    with lmdb.open(str(folder / "tokens.lmdb"), map_size=2**24) as environment:
        for query_id, array in arrays.items():
            with environment.begin(write=True) as transaction:
                transaction.put(query_id.encode(), npz_bytes(features=array))
    return folder / "tokens.lmdb"


in_both_forms = pytest.mark.parametrize("write", [archive, database])


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compressions_that_cannot_be_bounded_are_refused(method, tmp_path):
    path = one_member(tmp_path / "a.npz", npy_bytes(TOKENS), method)
    with pytest.raises(ValueError, match="stored or deflated"):
        NpzArchive(memoryview(path.read_bytes())).array(2**20)
    with pytest.raises(DataError, match="stored or deflated"):
        open_tokens(path).read("token_features")


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_what_numpy_writes_is_read_in_place_if_it_is_not_compressed(method, tmp_path):
    path = one_member(tmp_path / "a.npz", npy_bytes(TOKENS), method)
    content = path.read_bytes()
    array = NpzArchive(memoryview(content)).array(2**20)
    assert np.array_equal(array, TOKENS)
    in_place = np.shares_memory(array, np.frombuffer(content, np.uint8))
    assert in_place == (method == zipfile.ZIP_STORED)


@in_both_forms
def test_both_forms_give_equal_float32_tokens(write, tmp_path):
    wide = np.asfortranarray(np.arange(12, dtype=np.float64).reshape(3, 4))
    store = open_tokens(write(tmp_path, q1=TOKENS, q2=TOKENS[0], wide=wide))
    assert set(store.ids()) == {"q1", "q2", "wide"}
    for query_id in ("q1", "wide"):
        assert torch.equal(store.read(query_id), torch.from_numpy(TOKENS).float())
    for _ in range(2):
        assert torch.equal(store.read("q2"), torch.from_numpy(TOKENS[:1]).float())


@in_both_forms
@pytest.mark.parametrize(
    ("array", "problem"),
    [
        (np.full((2, 4), np.nan, np.float32), "holds NaN or infinity"),
        (np.full((2, 4), 1e300), "holds NaN or infinity"),
        (np.ones((2, 2, 2), np.float32), r"\(T, C\) tensor .* shape \(2, 2, 2\)"),
        (np.ones((0, 4), np.float32), r"empty: shape \(0, 4\)"),
        (np.ones((2, 4), np.int64), "expected a floating dtype"),
        (np.array([{"a": 1}], dtype=object), "the array holds Python objects"),
    ],
)
def test_features_that_are_none_are_named(array, problem, write, tmp_path):
    with pytest.raises(DataError, match=f"q: .*{problem}"):
        open_tokens(write(tmp_path, q=array)).read("q")


@in_both_forms
@pytest.mark.parametrize("query_id", ["w", "", "../q", "x" * 600])
def test_features_that_are_not_there_are_named(query_id, write, tmp_path):
    with pytest.raises(DataError, match="no key"):
        open_tokens(write(tmp_path, q=TOKENS)).read(query_id)


@in_both_forms
def test_arrays_over_the_limit_are_not_unpacked(write, tmp_path, monkeypatch):
    path = write(tmp_path, q=TOKENS)
    monkeypatch.setattr(sources, "_MAX_TOKEN_BYTES", 10)
    with pytest.raises(DataError, match=r"q: .* more than 10 are refused"):
        open_tokens(path).read("q")


def test_header_that_promises_more_than_there_is_is_refused(tmp_path):
    header = io.BytesIO()
    fields = {"descr": "<f4", "fortran_order": False, "shape": (10**12, 512)}
    np.lib.format.write_array_header_1_0(header, fields)
    path = one_member(tmp_path / "liar.npz", header.getvalue() + bytes(64))
    with pytest.raises(DataError, match="expected 2048000000000000 bytes"):
        open_tokens(path).read("token_features")


@pytest.mark.parametrize("keep", [0, 100, 0.5])
def test_truncated_archive_is_named(keep, tmp_path):
    path = archive(tmp_path, q=np.ones((500, 4)))
    content = path.read_bytes()
    path.write_bytes(content[: keep if isinstance(keep, int) else len(content) // 2])
    with pytest.raises(
        DataError, match=r"tokens\.npz: is damaged, truncated or no npz"
    ):
        open_tokens(path)


def test_flipped_byte_is_found_by_its_checksum(tmp_path):
    path = archive(tmp_path, q=np.ones((500, 4)))
    content = bytearray(path.read_bytes())
    content[3000] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"q: .*npz\[q\] is damaged .*Bad CRC-32"):
        open_tokens(path).read("q")


def test_flipped_byte_of_an_uncompressed_value_is_found_by_its_checksum(tmp_path):
    lmdb = pytest.importorskip("lmdb")
    buffer = io.BytesIO()
    np.savez(buffer, token_features=np.ones((500, 4)))
    content = bytearray(buffer.getvalue())
    content[3000] ^= 1
    path = tmp_path / "tokens.lmdb"
    with (
        lmdb.open(str(path), map_size=2**24) as environment,
        environment.begin(write=True) as transaction,
    ):
        transaction.put(b"q", bytes(content))
    with pytest.raises(DataError, match=r"q: .*is damaged .*Bad CRC-32"):
        open_tokens(path).read("q")


@pytest.mark.parametrize("content", [b"", b"text" * 4000])
def test_file_that_is_no_database_is_named(content, tmp_path):
    pytest.importorskip("lmdb", reason="needs the extra 'lmdb'")
    path = tmp_path / "other.mdb"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"other\.mdb: not an LMDB"):
        open_tokens(path)


def test_absent_features_are_named(tmp_path):
    for name in ("nothing.npz", "nothing.lmdb", "nothing"):
        with pytest.raises(FileNotFoundError, match=f"no token features at .*{name}"):
            open_tokens(tmp_path / name)
