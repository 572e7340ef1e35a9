"""Token features of queries."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from avalanche_vilco.data.errors import DataError

HASHED_WIDTH = 64


def readable(label: str) -> str:
    """A label's words: ``"wash_/_dry_hands"`` -> ``"wash or dry hands"``.

    >>> readable('"cut_/_chop_a_vegetable,_fruit"')
    'cut or chop a vegetable, fruit'
    """
    text = label.strip('"').replace("_/_", " or ").replace("/", " or ")
    return " ".join(text.replace("_", " ").lower().split())


def read_query_text(path: Path | str, labels: Iterable[str]) -> dict[str, Tensor]:
    """Token features of categories from one safetensors file, label -> (L, C).

    :param path: the file; a 1-D entry counts as one token.
    :param labels: labels wanted, in the annotation file's spelling.
    :return: label -> (L, C) float32, one C for all.
    :raises FileNotFoundError: no such file.
    :raises DataError: damaged, a label is missing, or widths differ.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no query text file at {path}")
    try:
        stored = load_file(path)
    except (SafetensorError, OSError) as error:
        raise DataError(path, f"not a safetensors file: {error}") from None
    labels = list(labels)
    missing = [label for label in labels if label not in stored]
    if missing:
        hint = "write one (L, C) entry for each category"
        raise DataError(path, f"no text for {missing}", hint=hint)
    tokens = {label: _as_tokens(path, label, stored[label]) for label in labels}
    _check_widths(path, tokens)
    return tokens


def _as_tokens(path: Path, label: str, stored: Tensor) -> Tensor:
    tokens = stored.float()
    tokens = tokens[None] if tokens.ndim == 1 else tokens
    if tokens.ndim != 2 or 0 in tokens.shape:
        problem = f"expected (L, C) token features but got {tuple(stored.shape)}"
        raise DataError(path, problem, record=label)
    if not bool(torch.isfinite(tokens).all()):
        raise DataError(path, "the text holds NaN or infinity", record=label)
    return tokens


def _check_widths(path: Path, tokens: Mapping[str, Tensor]) -> None:
    width = next(iter(tokens.values())).shape[1]
    for label, value in tokens.items():
        if value.shape[1] != width:
            problem = f"expected {width} channels but got {value.shape[1]}"
            raise DataError(path, problem, record=label)


def hashed_query_text(
    labels: Iterable[str], width: int = HASHED_WIDTH
) -> dict[str, Tensor]:
    """Token features without a text encoder: one fixed random vector a word.

    Words shared by two labels share their vector; there is no further meaning in
    it. A stand-in where no features of a text encoder are at hand.

    :param labels: labels in the annotation file's spelling.
    :param width: channels of a token.
    :return: label -> (words, width) float32, the same on every machine.
    """
    return {
        label: torch.stack([_word_vector(word, width) for word in _words(label)])
        for label in labels
    }


def _words(label: str) -> list[str]:
    return readable(label).replace(",", "").split() or ["?"]


def _word_vector(word: str, width: int) -> Tensor:
    digest = hashlib.sha256(word.encode()).digest()
    seed = np.random.SeedSequence(int.from_bytes(digest, "big"))
    values = np.random.Generator(np.random.PCG64(seed)).standard_normal(width)
    return torch.from_numpy(values.astype(np.float32))
