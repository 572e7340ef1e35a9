"""Samples of natural-language queries: a clip, a question, and its tokens."""

import io
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from avalanche_vilco.benchmarks.vilco_nlq.annotations import LanguageQuery, QueryClip
from avalanche_vilco.benchmarks.vilco_nlq.dataset import (
    QueryDataset,
    feature_clip,
    open_query_tokens,
    query_sample,
)
from avalanche_vilco.core.batch import ClipBatch, QueryClipBatch, collate_queries
from avalanche_vilco.core.errors import DataError
from avalanche_vilco.data.features import FeatureFolder
from avalanche_vilco.data.text import clip_text
from avalanche_vilco.data.text.tokens import (
    HashedTokens,
    JoinedTokens,
    QueryTokens,
    TextTokens,
)


def query(
    number: int, text: str = "where is it?", window: tuple | None = (2.0, 4.0)
) -> LanguageQuery:
    return LanguageQuery(f"ann_{number}", "ann", number, "a", "val", text, window, 6)


CLIP = QueryClip("a", "video", "val", 20.0, 3.0)


@pytest.fixture
def store(tmp_path) -> FeatureFolder:
    folder = tmp_path / "features"
    folder.mkdir()
    torch.save(torch.arange(40.0).reshape(20, 2), folder / "a.pt")
    return FeatureFolder(folder)


def dataset(store, *queries: LanguageQuery) -> QueryDataset:
    clip = feature_clip(CLIP, features_per_sec=1.0)
    tokens = HashedTokens({q.query_id: q.text for q in queries})
    samples = [query_sample(q, clip, template=3) for q in queries]
    return QueryDataset(samples, store, tokens)


def write_lmdb(path: Path, **values: np.ndarray) -> Path:
    lmdb = pytest.importorskip("lmdb", reason="needs the extra 'lmdb'")
    environment = lmdb.open(str(path), map_size=2**24)
    with environment, environment.begin(write=True) as transaction:
        for key, array in values.items():
            archive = io.BytesIO()
            np.savez_compressed(archive, token_features=array)
            transaction.put(key.encode(), archive.getvalue())
    return path


def test_sample_is_a_clip_its_question_and_one_window(store):
    data = dataset(store, query(0), query(1, "who?", (0.0, 20.0)))
    inputs, targets = data[1]
    assert inputs["features"].shape == (20, 2)
    assert inputs["tokens"].shape == (1, 64)
    assert targets["segments_sec"].tolist() == [[0.0, 20.0]]
    assert targets["segments"].tolist() == [[-0.5, 19.5]]
    assert targets["labels"].tolist() == [0]
    assert targets["asked"].tolist() == [True]
    assert data.samples[1].template == 3
    assert data.n_queries == 1


def test_question_without_window_has_no_target(store):
    _, targets = dataset(store, query(0, window=None))[0]
    assert targets["segments_sec"].shape == (0, 2)
    assert targets["labels"].shape == (0,)
    assert targets["asked"].tolist() == [True]


@pytest.mark.parametrize(
    "texts", [["a " * 200, "who?"], ["who?"], [f"where is {i}?" for i in range(60)]]
)
def test_questions_of_any_length_and_number_share_a_batch(texts, store):
    data = dataset(store, *(query(i, text) for i, text in enumerate(texts)))
    inputs, targets = collate_queries([data[i] for i in range(len(data))])
    assert isinstance(inputs, QueryClipBatch)
    assert isinstance(inputs, ClipBatch)
    counts = [len(text.split()) for text in texts]
    assert inputs.valid_tokens.sum(1).tolist() == counts
    assert inputs.tokens.shape == (len(texts), max(counts), 64)
    assert targets.sample.tolist() == list(range(len(texts)))


def test_batches_of_unequal_questions_join_like_tensors(store):
    data = dataset(store, query(0, "one two three"), query(1, "one"))
    first, second = (collate_queries([data[i]])[0] for i in range(2))
    both = torch.cat([second, first])
    assert both.valid_tokens.tolist() == [[True, False, False], [True] * 3]
    assert torch.equal(both[1:].tokens, first.tokens)
    assert torch.equal(both.tokens[0, 1:], torch.zeros(2, 64))


def test_equal_words_have_equal_vectors_without_punctuation():
    tokens = HashedTokens({"a": "Where's the Lid?", "b": "the lid,", "c": " "}, width=8)
    assert tokens.read("a").shape == (3, 8)
    assert torch.equal(tokens.read("a")[1:], tokens.read("b"))
    assert tokens.read("c").shape == (1, 8)
    assert tokens.missing(["b", "x"]) == ["x"]
    with pytest.raises(DataError, match="record 'x': no such query"):
        tokens.read("x")


def test_store_takes_the_width_of_its_first_entry(tmp_path):
    path = tmp_path / "t.safetensors"
    save_file({"b": torch.ones(3, 5), "a": torch.ones(4)}, path)
    assert QueryTokens(path).width == 4
    with pytest.raises(DataError, match="record 'b': expected 4 channels but got 5"):
        QueryTokens(path).read("b")


def test_empty_store_is_refused(tmp_path):
    with pytest.raises(DataError, match="holds no query text"):
        QueryTokens(tmp_path)


def test_public_lmdb_is_read_and_pickles_without_its_handle(tmp_path):
    values = {"ann_0": np.ones((3, 6), np.float16), "ann_1": np.zeros(6, np.float32)}
    tokens = QueryTokens(write_lmdb(tmp_path / "text.lmdb", **values))
    assert tokens.width == 6
    assert tokens.missing(["ann_1", "ann_2"]) == ["ann_2"]
    again = pickle.loads(pickle.dumps(tokens))
    assert torch.equal(again.read("ann_0"), torch.ones(3, 6))
    assert again.read("ann_1").shape == (1, 6)
    with pytest.raises(DataError, match="ann_2: no key"):
        tokens.read("ann_2")


def test_joined_stores_read_each_query_where_it_lies(tmp_path):
    save_file({"ann_0": torch.zeros(2, 4)}, tmp_path / "a.safetensors")
    save_file(
        {"ann_0": torch.ones(2, 4), "ann_1": torch.ones(1, 4)},
        tmp_path / "b.safetensors",
    )
    stores = [QueryTokens(tmp_path / f"{name}.safetensors") for name in "ab"]
    joined = JoinedTokens(stores)
    assert joined.missing(["ann_1", "ann_2", "ann_0"]) == ["ann_2"]
    assert float(joined.read("ann_0").sum()) == 0
    assert float(JoinedTokens(stores).read("ann_1").sum()) == 4
    with pytest.raises(DataError, match="ann_2: no key"):
        joined.read("ann_2")


def test_stores_of_two_widths_are_refused():
    with pytest.raises(ValueError, match=r"one width but got \[3, 4\] channels"):
        JoinedTokens([HashedTokens({}, 3), HashedTokens({}, 4)])


def test_clip_features_are_computed_once_for_equal_words(monkeypatch, tmp_path):
    asked = []

    def encode(texts, folder, *, prompt, cache) -> dict[str, Tensor]:
        asked.extend(texts)
        assert (prompt, cache) == ("{}", tmp_path)
        return {text: torch.full((len(text.split()), 3), 1.0) for text in texts}

    monkeypatch.setattr(clip_text, "clip_query_text", encode)
    queries = [query(0, "who is it?"), query(1, "who?"), query(2, "who?")]
    tokens = open_query_tokens(queries, text_model="model", cache=tmp_path)
    assert isinstance(tokens, TextTokens)
    assert tokens.width == 3
    assert tokens.read("ann_0").shape == (3, 3)
    assert tokens.missing(["ann_2", "ann_9"]) == ["ann_9"]
    with pytest.raises(DataError, match="record 'ann_9': no such query"):
        tokens.read("ann_9")
    assert set(asked) == {"who is it?", "who?"}


def test_questions_that_no_store_has_are_listed(tmp_path):
    save_file({"ann_0": torch.zeros(2, 4)}, tmp_path / "a.safetensors")
    with pytest.raises(DataError, match="no text for 1 of 2 questions, such as ann_1"):
        open_query_tokens([query(0), query(1)], tmp_path / "a.safetensors")
