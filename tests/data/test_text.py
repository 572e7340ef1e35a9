"""Token features of queries: damaged text is refused by label."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from avalanche_vilco.data.errors import DataError
from avalanche_vilco.data.text import hashed_query_text, read_query_text, readable

ODD = '"cut_/_chop_/_slice_a_vegetable,_fruit,_or_meat"'


def store(folder: Path, **entries: torch.Tensor) -> Path:
    path = folder / "query_text.safetensors"
    save_file(entries, path)
    return path


@pytest.mark.parametrize(
    ("label", "words"),
    [
        ("wash_/_dry_hands", "wash or dry hands"),
        (ODD, "cut or chop or slice a vegetable, fruit, or meat"),
        ("use/hold phone", "use or hold phone"),
        ("Use_Phone_", "use phone"),
    ],
)
def test_label_reads_as_words(label, words):
    assert readable(label) == words


def test_absent_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing\.safetensors"):
        read_query_text(tmp_path / "nothing.safetensors", ["cook"])


@pytest.mark.parametrize("content", [b"", b"text" * 50, b"\x10" + b"\x00" * 7])
def test_damaged_file_is_named(content, tmp_path):
    path = tmp_path / "query_text.safetensors"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"query_text\.safetensors: not a safetensors"):
        read_query_text(path, ["cook"])


def test_truncated_file_is_refused(tmp_path):
    path = store(tmp_path, cook=torch.ones(40, 8))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match="not a safetensors file"):
        read_query_text(path, ["cook"])


def test_all_labels_without_text_are_listed_at_once(tmp_path):
    path = store(tmp_path, cook=torch.ones(2, 8))
    with pytest.raises(DataError, match=r"no text for \['wash', 'dry'\]"):
        read_query_text(path, ["wash", "cook", "dry"])


def test_one_vector_counts_as_one_token(tmp_path):
    path = store(tmp_path, cook=torch.ones(256), wash=torch.ones(7, 256))
    tokens = read_query_text(path, ["cook", "wash"])
    assert tokens["cook"].shape == (1, 256)
    assert tokens["wash"].shape == (7, 256)


def test_text_of_another_width_is_named(tmp_path):
    path = store(tmp_path, cook=torch.ones(7, 256), wash=torch.ones(7, 768))
    with pytest.raises(DataError, match=r"record 'wash': expected 256 .* got 768"):
        read_query_text(path, ["cook", "wash"])


@pytest.mark.parametrize("shape", [(0, 8), (2, 0), (1, 2, 8), ()])
def test_text_of_wrong_shape_is_named(shape, tmp_path):
    path = store(tmp_path, cook=torch.ones(shape))
    with pytest.raises(DataError, match=r"record 'cook': expected \(L, C\) token"):
        read_query_text(path, ["cook"])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_text_that_is_no_number_is_named(value, tmp_path):
    path = store(tmp_path, cook=torch.full((2, 8), value))
    with pytest.raises(DataError, match="record 'cook': the text holds NaN"):
        read_query_text(path, ["cook"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_are_read_as_float32(dtype, tmp_path):
    values = torch.randn(3, 8)
    tokens = read_query_text(store(tmp_path, cook=values.to(dtype)), ["cook"])["cook"]
    assert tokens.dtype == torch.float32
    torch.testing.assert_close(tokens, values, rtol=1e-2, atol=1e-2)


def test_labels_with_slashes_and_quotes_are_keys_as_they_are(tmp_path):
    values = torch.randn(3, 8)
    tokens = read_query_text(store(tmp_path, **{ODD: values}), [ODD])
    assert torch.equal(tokens[ODD], values)


def test_only_labels_asked_for_are_given_and_in_their_order(tmp_path):
    path = store(tmp_path, a=torch.ones(1, 4), b=torch.ones(2, 4), c=torch.ones(3, 9))
    assert list(read_query_text(path, ["b", "a"])) == ["b", "a"]


def test_words_share_their_hashed_vector():
    tokens = hashed_query_text(["wash_hands", "dry_hands"], width=16)
    assert tokens["wash_hands"].shape == (2, 16)
    assert torch.equal(tokens["wash_hands"][1], tokens["dry_hands"][1])
    assert not torch.equal(tokens["wash_hands"][0], tokens["dry_hands"][0])


def test_label_without_words_has_a_token():
    assert hashed_query_text(["_"], width=4)["_"].shape == (1, 4)


def test_hashed_vectors_are_frozen():
    expected = torch.tensor([[0.32842, -0.17768, -1.18714, 0.73961]])
    torch.testing.assert_close(
        hashed_query_text(["wash"], 4)["wash"], expected, rtol=0, atol=1e-4
    )
