"""Archives unpack no more than they declare, and only as NumPy writes them."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from avalanche_vilco.core.errors import DataError
from avalanche_vilco.data.features import open_tokens
from avalanche_vilco.data.features.npz import npz_array


def archive(method: int) -> bytes:
    content, array = io.BytesIO(), io.BytesIO()
    np.save(array, np.zeros((3, 4), np.float32))
    with zipfile.ZipFile(content, "w", compression=method) as file:
        file.writestr("token_features.npy", array.getvalue())
    return content.getvalue()


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compressions_that_cannot_be_bounded_are_refused(method: int) -> None:
    with pytest.raises(ValueError, match="stored or deflated"):
        npz_array(memoryview(archive(method)), 2**20)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_what_numpy_writes_is_read_in_place_if_it_is_not_compressed(method) -> None:
    content = archive(method)
    array = npz_array(memoryview(content), 2**20)
    assert array.shape == (3, 4)
    in_place = np.shares_memory(array, np.frombuffer(content, np.uint8))
    assert in_place == (method == zipfile.ZIP_STORED)


def test_narration_archives_are_bounded_too(tmp_path: Path) -> None:
    path = tmp_path / "narration_features.npz"
    array = io.BytesIO()
    np.save(array, np.zeros((3, 512), np.float16))
    with zipfile.ZipFile(path, "w", compression=zipfile.ZIP_BZIP2) as file:
        file.writestr("one.npy", array.getvalue())
    with pytest.raises(DataError, match="stored or deflated"):
        open_tokens(path).read("one")
