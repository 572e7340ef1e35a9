"""Token features of queries: damaged text is refused by label."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from avalanche_vilco.core.errors import DataError
from avalanche_vilco.data.text.tokens import (
    MAX_TEXT_FILE_BYTES,
    QueryTokens,
    examine_query_text,
    hashed_query_text,
    read_query_text,
    readable,
)

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


@pytest.mark.parametrize("content", [b"", b"text" * 50, b"\x10" + b"\x00" * 7, None])
def test_damaged_or_truncated_file_is_named(content, tmp_path):
    path = store(tmp_path, cook=torch.ones(40, 8))
    path.write_bytes(path.read_bytes()[:-100] if content is None else content)
    with pytest.raises(DataError, match=r"query_text\.safetensors: not a safetensors"):
        read_query_text(path, ["cook"])


ones = torch.ones
FAULTY = [
    ({"cook": ones(2, 8)}, r"no text for \['wash'\]"),
    ({"cook": ones(7, 256), "wash": ones(7, 768)}, "'wash': expected 256 .* got 768"),
    (
        {"cook": ones(1, 9), "wash": ones(1, 8), "dry": ones(2, 8)},
        "record 'cook': expected 8 channels but got 9",
    ),
    *(
        ({"cook": ones(shape), "wash": ones(2, 8)}, r"'cook': expected \(L, C\) token")
        for shape in ((0, 8), (2, 0), (1, 2, 8), ())
    ),
    *(
        ({"cook": ones(2, 8) * value, "wash": ones(2, 8)}, "'cook': .* hold NaN")
        for value in (float("nan"), float("inf"))
    ),
]


@pytest.mark.parametrize(("entries", "problem"), FAULTY)
def test_faulty_text_is_named_by_its_label(entries, problem, tmp_path):
    labels = ["cook", "wash", "dry"] if "dry" in entries else ["cook", "wash"]
    with pytest.raises(DataError, match=problem):
        read_query_text(store(tmp_path, **entries), labels)


def test_one_vector_counts_as_one_token(tmp_path):
    path = store(tmp_path, cook=torch.ones(256), wash=torch.ones(7, 256))
    tokens = read_query_text(path, ["cook", "wash"])
    assert tokens["cook"].shape == (1, 256)
    assert tokens["wash"].shape == (7, 256)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_are_read_as_float32(dtype, tmp_path):
    values = torch.randn(3, 8)
    tokens = read_query_text(store(tmp_path, cook=values.to(dtype)), ["cook"])["cook"]
    assert tokens.dtype == torch.float32
    torch.testing.assert_close(tokens, values, rtol=1e-2, atol=1e-2)


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


def folder_of(tmp_path: Path, **clips: dict[str, torch.Tensor]) -> Path:
    folder = tmp_path / "text"
    folder.mkdir()
    for clip_id, entries in clips.items():
        torch.save(entries, folder / f"{clip_id}.pt")
    return folder


def test_clips_of_a_folder_merge_into_one_table(tmp_path):
    cook, odd, wash = torch.randn(2, 8), torch.randn(3, 8), torch.randn(8)
    nearly = cook + 0.9e-4
    folder = folder_of(
        tmp_path, a={"cook": cook, ODD: odd}, b={"cook": nearly, "w": wash}
    )
    tokens = read_query_text(folder, ["w", ODD, "cook"])
    assert list(tokens) == ["w", ODD, "cook"]
    assert tokens["w"].shape == (1, 8)
    assert torch.equal(tokens[ODD], odd)
    assert torch.equal(tokens["cook"], cook)


def test_folder_and_file_give_equal_tokens(tmp_path):
    entries = {"cook": torch.randn(2, 8), ODD: torch.randn(3, 8)}
    folder = folder_of(tmp_path, a=entries)
    file = store(tmp_path, **entries)
    one, other = (read_query_text(path, [ODD, "cook"]) for path in (folder, file))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[label], other[label]) for label in one)


@pytest.mark.parametrize(
    "other", [torch.zeros(2, 8), torch.ones(3, 8), torch.ones(2, 9)]
)
def test_clips_that_disagree_on_a_label_are_named(other, tmp_path):
    folder = folder_of(tmp_path, a={"cook": torch.ones(2, 8)}, b={"cook": other})
    with pytest.raises(DataError, match=r"b\.pt, record 'cook': differs from a\.pt"):
        read_query_text(folder, ["cook"])


def test_disagreement_on_labels_that_are_not_asked_for_is_no_error(tmp_path):
    ones, zeros = torch.ones(1, 8), torch.zeros(1, 8)
    folder = folder_of(tmp_path, a={"x": ones, "y": ones}, b={"x": zeros, "y": ones})
    assert torch.equal(read_query_text(folder, ["y"])["y"], ones)


class Malicious:
    def __reduce__(self):
        return (print, ("not to be seen",))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ([torch.ones(1, 8)], "expected a dict of label"),
        (
            {"cook": [1.0]},
            "record 'cook': expected label -> tensor but got str -> list",
        ),
        ({3: torch.ones(1, 8)}, "record '3': expected label -> tensor but got int"),
        ({"cook": Malicious()}, "refused, it holds other objects"),
    ],
)
def test_clip_file_of_another_content_is_named(content, problem, tmp_path, capsys):
    folder = folder_of(tmp_path, a=content)
    with pytest.raises(DataError, match=problem) as caught:
        read_query_text(folder, ["cook"])
    assert "a.pt" in str(caught.value)
    assert "weights_only" not in str(caught.value)
    assert "not to be seen" not in capsys.readouterr().out


def test_truncated_clip_file_is_named(tmp_path):
    folder = folder_of(tmp_path, a={"cook": torch.ones(40, 8)})
    for size in (200, 0):
        (folder / "a.pt").write_bytes((folder / "a.pt").read_bytes()[:size])
        with pytest.raises(DataError, match=r"a\.pt: damaged"):
            read_query_text(folder, ["cook"])


def test_folder_without_text_or_with_too_large_a_file_is_named(tmp_path):
    folder = folder_of(tmp_path)
    with pytest.raises(DataError, match=r"the folder holds no \.pt file"):
        read_query_text(folder, ["cook"])
    with (folder / "a.pt").open("wb") as file:
        file.truncate(MAX_TEXT_FILE_BYTES + 1)
    with pytest.raises(DataError, match=r"a\.pt: expected at most \d+ bytes"):
        read_query_text(folder, ["cook"])


def test_examining_gives_all_faults_and_what_is_sound(tmp_path):
    nan = torch.full((1, 8), float("nan"))
    wide, usual, long = torch.ones(1, 9), torch.ones(1, 8), torch.ones(2, 8)
    path = store(tmp_path, a=wide, b=usual, c=long, d=nan)
    tokens, faults = examine_query_text(path, ["a", "b", "c", "d", "e"])
    assert set(tokens) == {"a", "b", "c"}
    assert [fault.record for fault in faults] == [None, "d", "a"]
    assert "no text for ['e']" in str(faults[0])


@pytest.fixture(params=["file", "folder"])
def query_tokens(request, tmp_path):
    def build(**entries: torch.Tensor) -> QueryTokens:
        path = tmp_path / "queries"
        if request.param == "file":
            path = path.with_suffix(".safetensors")
            save_file(entries, path)
        else:
            path.mkdir()
            for query_id, value in entries.items():
                torch.save(value, path / f"{query_id}.pt")
        return QueryTokens(path)

    return build


def test_pooled_query_is_one_token_and_wrong_width_names_the_query(query_tokens):
    store = query_tokens(
        pooled=torch.ones(256),
        tokens=torch.ones(7, 256).half(),
        wide=torch.ones(7, 768),
    )
    assert store.read("pooled").shape == (1, 256)
    assert torch.equal(store.read("tokens"), torch.ones(7, 256))
    with pytest.raises(DataError, match=r"record 'wide': expected 256 .* got 768"):
        store.read("wide")


def test_missing_queries_are_listed(query_tokens):
    store = query_tokens(a=torch.ones(1, 256))
    assert store.missing(["b", "a", "c"]) == ["b", "c"]
    with pytest.raises(DataError, match=r"b: no (key|file)"):
        store.read("b")


def test_query_id_never_leaves_the_folder(query_tokens, tmp_path):
    torch.save(torch.ones(1, 256), tmp_path / "secret.pt")
    store = query_tokens(a=torch.ones(1, 256))
    for query_id in ("../secret", str(tmp_path / "secret"), "", "a\0"):
        with pytest.raises(DataError, match=r"no file|no key|refused"):
            store.read(query_id)


def test_absent_or_damaged_query_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing"):
        QueryTokens(tmp_path / "nothing")
    (tmp_path / "damaged.safetensors").write_bytes(b"text")
    with pytest.raises(
        DataError, match=r"damaged\.safetensors: is damaged, truncated or no"
    ):
        QueryTokens(tmp_path / "damaged.safetensors")


def test_query_file_that_holds_no_tensor_is_named(tmp_path):
    folder = folder_of(tmp_path, q={"cook": torch.ones(1, 8)})
    with pytest.raises(
        DataError, match=r"q: q\.pt .* expected one dense tensor but got a dict"
    ):
        QueryTokens(folder).read("q")
