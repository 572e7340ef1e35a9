"""Files appear whole, are unpacked and hashed, and ours have one folder."""

import gzip
import hashlib
from pathlib import Path

import pytest

from avalanche_vilco.core.errors import DataError
from avalanche_vilco.core.files import (
    cache_folder,
    existing,
    read_content,
    sha256_of,
    write_atomically,
    written_whole,
)


def test_text_replaces_what_was_there_and_makes_the_folder(tmp_path):
    path = tmp_path / "new" / "results.json"
    write_atomically(path, "first")
    write_atomically(path, "größer")
    assert path.read_bytes() == "größer".encode()
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_write_that_fails_leaves_the_old_content_and_nothing_else(tmp_path, kind):
    path = tmp_path / "kept"
    path.write_text("old")
    with pytest.raises(OSError, match="disk full"), written_whole(path) as unfinished:
        if kind == "folder":
            unfinished.mkdir()
            (unfinished / "part").write_text("half")
        else:
            unfinished.write_text("half")
        raise OSError("disk full")
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_text() == "old"


def test_folder_gets_its_name_when_it_is_complete(tmp_path):
    path = tmp_path / "made"
    with written_whole(path) as unfinished:
        unfinished.mkdir()
        (unfinished / "part").write_text("whole")
        assert not path.exists()
    assert [each.name for each in path.iterdir()] == ["part"]
    assert list(tmp_path.iterdir()) == [path]


def test_hash_is_that_of_the_whole_file(tmp_path):
    path = tmp_path / "large"
    content = bytes(range(256)) * 10_000
    path.write_bytes(content)
    assert sha256_of(path) == hashlib.sha256(content).hexdigest()


def test_archive_is_read_and_hashed_as_what_it_holds(tmp_path):
    content = bytes(range(256)) * 10_000
    (tmp_path / "plain.json").write_bytes(content)
    packed = tmp_path / "packed.json.gz"
    packed.write_bytes(gzip.compress(content))
    assert existing(tmp_path / "packed.json") == packed
    assert existing(tmp_path / "plain.json").name == "plain.json"
    for path in (packed, tmp_path / "misnamed.json"):
        packed = packed.rename(path)
        assert read_content(path) == content
        assert sha256_of(path) == sha256_of(tmp_path / "plain.json")


@pytest.mark.parametrize("n_bytes", [2, 9, 60, -1])
def test_damaged_archive_is_named(tmp_path, n_bytes):
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(bytes(range(200)))[:n_bytes])
    with pytest.raises(DataError, match=r"a\.json\.gz: damaged or trunc.*fetch"):
        read_content(path)
    path.write_bytes(gzip.compress(bytes(range(200))).replace(b"\x64\x65", b"\x00\x00"))
    with pytest.raises(DataError, match="CRC"):
        read_content(path)


def test_archive_that_holds_far_more_than_its_size_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("avalanche_vilco.core.files._UNPACKED_BYTES", 2**20)
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(bytes(2**22)))
    with pytest.raises(DataError, match=r"bomb\.json\.gz: the archive holds more than"):
        read_content(path)


def test_cache_folder_follows_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("AVALANCHE_VILCO_CACHE", str(tmp_path / "chosen"))
    assert cache_folder() == tmp_path / "chosen"
    monkeypatch.delenv("AVALANCHE_VILCO_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "avalanche_vilco"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == Path(tmp_path, ".cache", "avalanche_vilco")
