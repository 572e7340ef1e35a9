"""Files appear whole, are hashed, and ours have one folder."""

import hashlib
from pathlib import Path

import pytest

from avalanche_vilco.core.files import (
    cache_folder,
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


def test_cache_folder_follows_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("AVALANCHE_VILCO_CACHE", str(tmp_path / "chosen"))
    assert cache_folder() == tmp_path / "chosen"
    monkeypatch.delenv("AVALANCHE_VILCO_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "avalanche_vilco"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == Path(tmp_path, ".cache", "avalanche_vilco")
