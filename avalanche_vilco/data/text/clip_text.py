"""Token features of queries from CLIP's text encoder, computed once and kept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from avalanche_vilco.core.errors import DataError
from avalanche_vilco.core.files import cache_folder, sha256_of, written_whole
from avalanche_vilco.data.text.tokens import read_query_text

PROMPT = "when did i {}?"
"""The public code's question about a category."""
_CACHE_VERSION = "1"
_BATCH = 32
_HINT = (
    "fetch it once where there is a network: "
    "hf download openai/clip-vit-large-patch14 --local-dir FOLDER"
)

Encode = Callable[[Sequence[str]], list[Tensor]]


def public_words(label: str) -> str:
    """A label's words in the public code's spelling: quotes and bare slashes stay.

    >>> public_words("Arrange_/_organize_clothes_in_closet/dresser")
    'arrange or organize clothes in closet/dresser'
    """
    return label.lower().replace("_/_", " or ").replace("_", " ")


def clip_query_text(
    labels: Iterable[str],
    model_folder: Path | str,
    *,
    prompt: str = PROMPT,
    cache: Path | str | None = None,
    device: str = "cpu",
) -> dict[str, Tensor]:
    """Token states of CLIP's text encoder for each category, as in the public code.

    They are those after the final layer norm, without projection, without the start
    and the end token, and kept in ``cache`` under a hash of the model's files, the
    prompt and the labels. Nothing is ever downloaded.

    :param labels: labels in the annotation file's spelling.
    :param model_folder: local CLIP model: ``config.json``, ``model.safetensors`` and
        the tokenizer's files. ViLCo-Bench uses ``openai/clip-vit-large-patch14``.
    :param prompt: sentence with ``{}`` where the label's words go; the public code
        puts them in lower case, ``_/_`` as "or" and ``_`` as a space.
    :param cache: folder; default ``clip_text`` in ``$AVALANCHE_VILCO_CACHE``, else in
        the user's cache folder.
    :param device: where the encoder runs.
    :return: label -> (L, C) float32, L tokens of C channels (768 in ViT-L/14).
    :raises FileNotFoundError: the folder or a file of the model is absent.
    :raises DataError: the model is damaged, its tokenizer does not belong to it, or a
        sentence is longer than the model takes.
    :raises ValueError: the prompt has no place for the words.
    """
    labels = list(dict.fromkeys(labels))
    if "{}" not in prompt:
        raise ValueError(f"expected a prompt with {{}} but got {prompt!r}")
    folder = Path(model_folder).expanduser()
    _require_model(folder)
    cache = cache_folder() / "clip_text" if cache is None else Path(cache).expanduser()
    kept = cache / f"{_key(folder, prompt, labels)}.safetensors"
    with suppress(FileNotFoundError, DataError):
        return read_query_text(kept, labels)
    encode = load_clip_text_encoder(folder, device)
    texts = [prompt.replace("{}", public_words(label)) for label in labels]
    tokens = dict(zip(labels, encode(texts), strict=True))
    with written_whole(kept) as unfinished:
        save_file({label: t.contiguous() for label, t in tokens.items()}, unfinished)
    return tokens


def _require_model(folder: Path) -> None:
    if not folder.is_dir():
        raise FileNotFoundError(f"no CLIP model folder at {folder}; {_HINT}")
    for names in (
        ("config.json",),
        ("model.safetensors",),
        ("tokenizer.json", "vocab.json"),
    ):
        if not any((folder / name).is_file() for name in names):
            wanted = " or ".join(names)
            raise FileNotFoundError(f"no {wanted} in the CLIP folder {folder}; {_HINT}")


def _key(folder: Path, prompt: str, labels: Iterable[str]) -> str:
    digest = hashlib.sha256(f"{_CACHE_VERSION}\n{prompt}\n".encode())
    for label in sorted(labels):
        digest.update(f"{len(label)} {label}\n".encode())
    for path in sorted(folder.iterdir()):
        if path.suffix in {".json", ".txt", ".safetensors"}:
            digest.update(f"{path.name} {path.stat().st_size}\n".encode())
            digest.update(sha256_of(path).encode())
    return digest.hexdigest()[:32]


def load_clip_text_encoder(folder: Path | str, device: str = "cpu") -> Encode:
    """CLIP's text encoder from a local folder.

    :param folder: as in :func:`clip_query_text`.
    :param device: where it runs.
    :return: a function of sentences -> one (L, C) float32 tensor a sentence.
    :raises FileNotFoundError: the folder or a file of the model is absent.
    :raises DataError: damaged weights, or a tokenizer of another vocabulary.
    """
    folder = Path(folder)
    _require_model(folder)
    model, tokenizer = _load(folder)
    model = model.float().eval().to(device)
    vocabulary = int(model.config.vocab_size)
    # From a folder without its files transformers makes, without a word, a tokenizer
    # of two or three tokens.
    if len(tokenizer) != vocabulary:
        problem = (
            f"expected a tokenizer of {vocabulary} tokens, the model's vocabulary, "
            f"but got {len(tokenizer)}"
        )
        raise DataError(folder, problem, hint=f"copy vocab.json, merges.txt; {_HINT}")

    def encode(sentences: Sequence[str]) -> list[Tensor]:
        ids = [_token_ids(folder, model, tokenizer, text) for text in sentences]
        batches = [ids[i : i + _BATCH] for i in range(0, len(ids), _BATCH)]
        return [states for batch in batches for states in _states(model, batch)]

    return encode


def _load(folder: Path) -> tuple[Any, Any]:
    from transformers import CLIPTextModel, CLIPTokenizer

    try:
        model, loading = CLIPTextModel.from_pretrained(
            folder,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
        tokenizer = CLIPTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # transformers raises almost anything
        first = str(error).strip().partition("\n")[0]
        problem = f"not a CLIP model: {type(error).__name__}: {first}"
        raise DataError(folder, problem, hint=_HINT) from error
    # Buffers such as position ids are in some checkpoints only.
    absent = sorted(
        set(loading["missing_keys"]) & {n for n, _ in model.named_parameters()}
    )
    if absent:
        problem = f"{len(absent)} weights are not in the file, such as {absent[0]}"
        raise DataError(folder, problem, hint=_HINT)
    return model, tokenizer


def _token_ids(folder: Path, model: Any, tokenizer: Any, text: str) -> list[int]:
    ids = [int(i) for i in tokenizer(text)["input_ids"]]
    if len(ids) < 3 or (ids[0], ids[-1]) != (
        tokenizer.bos_token_id,
        tokenizer.eos_token_id,
    ):
        problem = "expected a start token, words and an end token"
        raise DataError(folder, problem, record=text)
    longest = int(model.config.max_position_embeddings)
    if len(ids) > longest:
        problem = f"expected at most {longest} tokens but got {len(ids)}"
        raise DataError(folder, problem, record=text, hint="shorten the text")
    return ids


@torch.no_grad()
def _states(model: Any, batch: Sequence[Sequence[int]]) -> list[Tensor]:
    """Token states without start and end."""
    # Padding to the right changes nothing: a token sees only those before it.
    rows = [torch.tensor(row) for row in batch]
    ids = torch.nn.utils.rnn.pad_sequence(rows, True, batch[0][-1])
    states = model(input_ids=ids.to(model.device)).last_hidden_state
    return [
        state[1 : len(row) - 1].float().cpu().clone()
        for state, row in zip(states, batch, strict=True)
    ]
