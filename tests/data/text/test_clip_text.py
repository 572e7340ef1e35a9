"""CLIP's text features: the right states of the right model, or a named error."""

import json
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from avalanche_vilco.core.errors import DataError
from avalanche_vilco.data.text import clip_text
from avalanche_vilco.data.text.clip_text import (
    clip_query_text,
    load_clip_text_encoder,
    public_words,
)

LABELS = ["wash_/_dry_hands", '"cut_a_vegetable,_fruit"', "cook"]
START, END = "<|startoftext|>", "<|endoftext|>"


def write_tokenizer(folder: Path) -> int:
    """One token a byte, as CLIP has below its merges."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789?,/\"'()-."
    tokens = [*letters, *(f"{letter}</w>" for letter in letters), START, END]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    return len(vocabulary)


def text_config(vocabulary: int) -> dict:
    return {
        "vocab_size": vocabulary,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 60,
        "projection_dim": 8,
        "bos_token_id": vocabulary - 2,
        "eos_token_id": vocabulary - 1,
    }


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory) -> Path:
    from transformers import CLIPTextConfig, CLIPTextModel

    folder = tmp_path_factory.mktemp("clip")
    torch.manual_seed(0)
    config = CLIPTextConfig(**text_config(write_tokenizer(folder)))
    CLIPTextModel(config).save_pretrained(folder)
    return folder


@pytest.fixture
def broken(model_folder, tmp_path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(model_folder, tmp_path / "broken"))


def test_words_are_those_of_the_public_code():
    assert public_words("Wash_/_dry_hands") == "wash or dry hands"
    assert public_words('"in_closet/dresser,_etc"') == '"in closet/dresser, etc"'


def test_states_are_normalised_unprojected_and_without_start_and_end(
    model_folder, tmp_path
):
    from transformers import CLIPTextModel, CLIPTokenizer

    tokens = clip_query_text(LABELS, model_folder, cache=tmp_path)
    model = CLIPTextModel.from_pretrained(model_folder).eval()
    tokenizer = CLIPTokenizer.from_pretrained(model_folder)
    assert list(tokens) == LABELS
    for label in LABELS:
        ids = tokenizer(f"when did i {public_words(label)}?", return_tensors="pt")
        with torch.no_grad():
            states = model(ids["input_ids"], output_hidden_states=True)
            expected = model.final_layer_norm(states.hidden_states[-1])
        assert tokens[label].dtype == torch.float32
        torch.testing.assert_close(tokens[label], expected[0, 1:-1], atol=1e-5, rtol=0)


def test_companions_in_a_batch_change_nothing(model_folder, tmp_path):
    together = clip_query_text(LABELS, model_folder, cache=tmp_path)
    for label in LABELS:
        alone = clip_query_text([label], model_folder, cache=tmp_path)[label]
        torch.testing.assert_close(alone, together[label], atol=1e-5, rtol=0)


def test_prompt_is_a_choice_and_needs_a_place_for_words(model_folder, tmp_path):
    usual = clip_query_text(["cook"], model_folder, cache=tmp_path)["cook"]
    other = clip_query_text(["cook"], model_folder, prompt="a {}", cache=tmp_path)
    assert len(usual) == len("whendidicook?")
    assert len(other["cook"]) == len("acook")
    with pytest.raises(ValueError, match=r"expected a prompt with \{\}"):
        clip_query_text(["cook"], model_folder, prompt="a", cache=tmp_path)


def test_second_call_reads_the_cache(model_folder, tmp_path, monkeypatch):
    first = clip_query_text(LABELS, model_folder, cache=tmp_path)
    monkeypatch.setattr(clip_text, "load_clip_text_encoder", None)
    second = clip_query_text(LABELS[::-1], model_folder, cache=tmp_path)
    assert list(second) == LABELS[::-1]
    assert all(torch.equal(first[label], second[label]) for label in LABELS)
    assert [path.suffix for path in tmp_path.iterdir()] == [".safetensors"]


def test_cache_lies_where_the_environment_says(model_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("AVALANCHE_VILCO_CACHE", str(tmp_path))
    clip_query_text(["cook"], model_folder)
    assert len(list((tmp_path / "clip_text").glob("*.safetensors"))) == 1


def test_other_weights_prompt_or_labels_are_computed_anew(
    model_folder, broken, tmp_path
):
    cache = tmp_path / "cache"
    before = clip_query_text(["cook"], model_folder, cache=cache)["cook"]
    weights = broken / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-400:] = bytes(400)
    weights.write_bytes(content)
    after = clip_query_text(["cook"], broken, cache=cache)["cook"]
    assert not torch.equal(before, after)
    clip_query_text(["cook"], model_folder, prompt="a {}", cache=cache)
    clip_query_text(["cook", "wash"], model_folder, cache=cache)
    assert len(list(cache.iterdir())) == 4


def test_damaged_cache_is_computed_anew(model_folder, tmp_path):
    first = clip_query_text(["cook"], model_folder, cache=tmp_path)["cook"]
    (kept,) = tmp_path.iterdir()
    kept.write_bytes(kept.read_bytes()[:-8])
    again = clip_query_text(["cook"], model_folder, cache=tmp_path)["cook"]
    torch.testing.assert_close(first, again)


def test_failed_write_leaves_no_file_behind(model_folder, tmp_path, monkeypatch):
    def fail(*arguments):
        raise OSError("disk full")

    monkeypatch.setattr(clip_text, "save_file", fail)
    with pytest.raises(OSError, match="disk full"):
        clip_query_text(["cook"], model_folder, cache=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_absent_model_folder_says_how_to_get_it(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no CLIP model folder.*hf download"):
        clip_query_text(["cook"], tmp_path / "nothing")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "vocab.json"])
def test_absent_model_file_is_named(name, broken, tmp_path):
    (broken / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"no .*{name} in the CLIP folder"):
        clip_query_text(["cook"], broken, cache=tmp_path)


def another_vocabulary(folder: Path) -> None:
    vocabulary = json.loads((folder / "vocab.json").read_text())
    vocabulary["extra"] = len(vocabulary)
    (folder / "vocab.json").write_text(json.dumps(vocabulary))


def no_vocabulary(folder: Path) -> None:
    (folder / "vocab.json").unlink()
    (folder / "merges.txt").unlink()
    # What satisfies a check of names makes transformers build an empty tokenizer.
    (folder / "tokenizer.json").write_text("{}")


def truncated_weights(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def absent_weights(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors[next(name for name in sorted(tensors) if "layers.1" in name)]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (another_vocabulary, r"expected a tokenizer of 92 tokens.* got 93"),
        (no_vocabulary, "tokenizer|CLIP model"),
        (truncated_weights, "not a CLIP model"),
        (absent_weights, "1 weights are not in the file, such as"),
    ],
)
def test_damaged_models_are_refused(damage, problem, broken, tmp_path):
    damage(broken)
    with pytest.raises(DataError, match=problem):
        clip_query_text(["cook"], broken, cache=tmp_path)


def test_too_long_a_text_is_named(model_folder, tmp_path):
    with pytest.raises(DataError, match="expected at most 60 tokens but got 7"):
        clip_query_text(["x" * 65], model_folder, cache=tmp_path)


def test_text_part_of_a_whole_clip_is_read(model_folder, tmp_path):
    from transformers import CLIPConfig, CLIPModel

    folder = tmp_path / "whole"
    folder.mkdir()
    vision = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 8,
        "patch_size": 4,
    }
    config = CLIPConfig(
        text_config=text_config(write_tokenizer(folder)), vision_config=vision
    )
    torch.manual_seed(1)
    model = CLIPModel(config).eval()
    model.half().save_pretrained(folder)
    (states,) = load_clip_text_encoder(folder)(["cook"])
    ids = torch.tensor([[90, *(ord(c) - 97 for c in "coo"), 45 + 10, 91]])
    with torch.no_grad():
        expected = model.float().text_model(ids).last_hidden_state
    assert states.dtype == torch.float32
    torch.testing.assert_close(states, expected[0, 1:-1], atol=1e-5, rtol=0)


def test_no_warning_reaches_the_user(model_folder, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clip_query_text(["cook"], model_folder, cache=tmp_path)
