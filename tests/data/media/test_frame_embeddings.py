"""Embeddings in files: exactly what was written, whole or not at all."""

import json
import pickle
from dataclasses import replace

import pytest
import torch

from avalanche_vilco.core.errors import DataError
from avalanche_vilco.data.media.frame_embeddings import (
    INDEX_FILE,
    ClipEmbeddings,
    FrameEmbeddings,
    clips_written,
    expected_bytes,
    write_frame_embeddings,
)

SHAPE = (3, 2, 2)
PRINT = "0123456789abcdef" * 4


def clip(
    name: str, frames=(4, 5, 6, 9), n_crops: int = 2, parts: int = 2
) -> ClipEmbeddings:
    torch.manual_seed(len(name))
    embeddings = torch.randn(len(frames), *SHAPE)
    queries = [f"{name}/query_{i}" for i in range(n_crops)]
    return ClipEmbeddings(
        name,
        frames,
        list(embeddings.split(parts)),
        queries,
        torch.randn(n_crops, *SHAPE),
    )


def embeddings_of(one: ClipEmbeddings) -> torch.Tensor:
    return torch.cat(list(one.embeddings)).half()


@pytest.fixture
def store(tmp_path):
    clips = [clip("a"), clip("clip-b", frames=(0,), n_crops=1)]
    return write_frame_embeddings(tmp_path / "store", PRINT, SHAPE, clips)


def test_frames_come_back_in_any_order_as_they_were_written(store):
    written = embeddings_of(clip("a"))
    assert store.shape == SHAPE and store.fingerprint == PRINT
    for rows in ([0, 1, 2], [3, 0], [2, 2, 1], [3], []):
        frames = [(4, 5, 6, 9)[i] for i in rows]
        read = store.frames("a", frames)
        assert read.dtype == torch.float16
        assert torch.equal(read, written[rows]), rows


def test_crops_come_back_by_query_even_with_a_slash_in_their_id(store):
    for one in (clip("a"), clip("clip-b", frames=(0,), n_crops=1)):
        for query_id, crop in zip(one.query_ids, one.crops, strict=True):
            assert torch.equal(store.crop(query_id), crop.half())


def test_a_store_pickles_and_opens_again(store):
    again = pickle.loads(pickle.dumps(store))
    assert torch.equal(again.frames("a", [5]), store.frames("a", [5]))
    assert torch.equal(
        FrameEmbeddings(store.folder).frames("a", [5]), again.frames("a", [5])
    )


def test_what_is_not_in_the_store_is_named(store):
    with pytest.raises(DataError, match=r"no embeddings of frames \[7\]"):
        store.frames("a", [6, 7])
    with pytest.raises(DataError, match=r"no embeddings of frames \[10\]"):
        store.frames("a", [10])
    with pytest.raises(DataError, match="no embeddings of this clip"):
        store.frames("c", [0])
    with pytest.raises(DataError, match="a/query_7"):
        store.crop("a/query_7")


def test_size_is_known_beforehand(store):
    said = expected_bytes(5 + 3, SHAPE)
    assert said == 8 * 12 * 2
    assert said < store.nbytes < said + 3000


def test_an_interrupted_store_has_no_name_and_goes_on_where_it_was(tmp_path):
    folder = tmp_path / "store"

    def broken():
        yield clip("a")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_frame_embeddings(folder, PRINT, SHAPE, broken())
    assert not folder.exists()
    assert clips_written(folder, PRINT) == {"a"}
    assert clips_written(folder, "another") == set()
    store = write_frame_embeddings(folder, PRINT, SHAPE, [clip("b")])
    assert torch.equal(store.frames("a", [9]), embeddings_of(clip("a"))[3:])
    assert torch.equal(store.frames("b", [9]), embeddings_of(clip("b"))[3:])
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_a_clip_that_breaks_off_is_not_counted_as_written(tmp_path):
    def half():
        yield torch.zeros(2, *SHAPE)
        raise RuntimeError("the video ends")

    one = ClipEmbeddings("a", (0, 1, 2), half(), [], torch.zeros(0, *SHAPE))
    with pytest.raises(RuntimeError, match="the video ends"):
        write_frame_embeddings(tmp_path / "store", PRINT, SHAPE, [one])
    assert clips_written(tmp_path / "store", PRINT) == set()


BAD = {
    "shape": ((4, 2, 2), torch.zeros(2, *SHAPE), r"expected embeddings of \(4, 2, 2\)"),
    "too few": (SHAPE, torch.zeros(1, *SHAPE), "got -1 more"),
    "too many": (SHAPE, torch.zeros(3, *SHAPE), r"got \+1 more"),
    "too large": (SHAPE, torch.full((2, *SHAPE), 1e6), "float16"),
}


@pytest.mark.parametrize("name", BAD)
def test_wrong_embeddings_are_refused(tmp_path, name):
    shape, part, message = BAD[name]
    one = ClipEmbeddings("a", (0, 1), [part], [], torch.zeros(0, *shape))
    with pytest.raises(ValueError, match=message):
        write_frame_embeddings(tmp_path / "store", PRINT, shape, [one])


def test_ids_that_name_files_elsewhere_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"\.\./a"):
        write_frame_embeddings(tmp_path / "store", PRINT, SHAPE, [clip("../a")])


def test_a_taken_name_is_refused(store):
    with pytest.raises(FileExistsError, match="store"):
        write_frame_embeddings(store.folder, "another", SHAPE, [])


@pytest.mark.parametrize("is_in_a_clip", [False, True])
def test_the_slower_of_two_processes_takes_the_store_of_the_faster(
    tmp_path, is_in_a_clip
):
    folder = tmp_path / "store"
    names = ("a", "b", "c")

    def faster():
        write_frame_embeddings(folder, PRINT, SHAPE, map(clip, names))

    def interrupted(parts):
        yield parts[0]
        faster()
        yield from parts[1:]

    def slower():
        yield clip("a")
        b = clip("b")
        if is_in_a_clip:
            yield replace(b, embeddings=interrupted(b.embeddings))
        else:
            faster()
            yield b
        raise AssertionError("the store is there: what follows need not be computed")

    store = write_frame_embeddings(folder, PRINT, SHAPE, slower())
    for name in names:
        read = store.frames(name, (4, 5, 6, 9))
        assert torch.equal(read, embeddings_of(clip(name)))
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    files = {INDEX_FILE, *(f"{name}.safetensors" for name in names)}
    assert {path.name for path in folder.iterdir()} == files


def test_damage_is_told_with_the_file(store):
    path = store.folder / "a.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(DataError, match=r"a\.safetensors.*damaged"):
        store.frames("a", [4])
    index = store.folder / INDEX_FILE
    content = json.loads(index.read_text()) | {"format_version": 2}
    index.write_text(json.dumps(content))
    with pytest.raises(DataError, match="version 1"):
        FrameEmbeddings(store.folder)
    index.write_text("{")
    with pytest.raises(DataError, match=INDEX_FILE):
        FrameEmbeddings(store.folder)
    with pytest.raises(FileNotFoundError, match="no frame embeddings"):
        FrameEmbeddings(store.folder / "nowhere")
