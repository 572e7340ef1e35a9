"""Token features of queries.

Two keys are in use. Categories (moment queries) have one entry for each label:
:func:`read_query_text`. Free-form queries have one for each query id:
:class:`QueryTokens`. Labels are data and never become file names.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from avalanche_vilco.core.errors import DataError
from avalanche_vilco.data.features import open_tokens

HASHED_WIDTH = 64
AGREEMENT = 1e-4
"""Largest difference between two clips' features of one label."""

MAX_TEXT_FILE_BYTES = 256 * 2**20
"""A larger file of one clip is not read: 77 tokens of 768 channels take 236 kB, and a
clip has 15 labels at most."""

_QUESTION_WORD = re.compile(r"\w[\w'\u2019-]*")


def readable(label: str) -> str:
    """A label's words: ``"wash_/_dry_hands"`` -> ``"wash or dry hands"``.

    >>> readable('"cut_/_chop_a_vegetable,_fruit"')
    'cut or chop a vegetable, fruit'
    """
    text = label.strip('"').replace("_/_", " or ").replace("/", " or ")
    return " ".join(text.replace("_", " ").lower().split())


def read_query_text(path: Path | str, labels: Iterable[str]) -> dict[str, Tensor]:
    """Token features of categories, label -> (L, C).

    :param path: a safetensors file with one entry a label, or the public form: a
        folder of ``<clip_uid>.pt``, each a dict of label -> (L, C), whose clips must
        agree on a label within :data:`AGREEMENT`. A 1-D entry counts as one token.
    :param labels: labels wanted, in the annotation file's spelling.
    :return: label -> (L, C) float32, one C for all, in the order of ``labels``.
    :raises FileNotFoundError: no such file or folder.
    :raises DataError: damaged, a label is missing, two clips disagree on it, or
        widths differ; names the label.
    """
    path, labels = Path(path), list(labels)
    tokens, faults = examine_query_text(path, labels)
    if faults:
        raise faults[0]
    return {label: tokens[label] for label in labels}


def examine_query_text(
    path: Path, labels: Sequence[str]
) -> tuple[dict[str, Tensor], list[DataError]]:
    """What :func:`read_query_text` reads, with all of its faults instead of the first.

    :param path: as there.
    :param labels: as there.
    :return: sound entries and one error a fault.
    :raises FileNotFoundError: no such file or folder.
    """
    if path.is_dir():
        stored, faults = _merge_clips(path, labels)
    else:
        stored, faults = _load_table(path)
    if not stored and faults:
        return {}, faults
    missing = [label for label in labels if label not in stored]
    if missing:
        hint = "write one (L, C) entry for each category"
        faults.append(DataError(path, f"no text for {missing}", hint=hint))
    tokens: dict[str, Tensor] = {}
    for label in labels:
        try:
            if label in stored:
                tokens[label] = _as_tokens(path, label, stored[label])
        except DataError as fault:
            faults.append(fault)
    return tokens, faults + _width_faults(path, tokens)


def _load_table(path: Path) -> tuple[dict[str, Tensor], list[DataError]]:
    if not path.is_file():
        raise FileNotFoundError(f"no query text file at {path}")
    try:
        return load_file(path), []
    except (SafetensorError, OSError) as error:
        problem = f"not a safetensors file: {error}"
        return {}, [DataError(path, problem, hint="write or copy it again")]


def _merge_clips(
    folder: Path, labels: Iterable[str]
) -> tuple[dict[str, Tensor], list[DataError]]:
    wanted, faults = set(labels), []
    merged: dict[str, Tensor] = {}
    first: dict[str, Path] = {}
    files = sorted(folder.glob("*.pt"))
    for path in files:
        try:
            entries = _clip_entries(path)
        except DataError as fault:
            faults.append(fault)
            continue
        for label in sorted(wanted & entries.keys()):
            value = entries[label]
            earlier = first.setdefault(label, path)
            if _disagree(merged.setdefault(label, value), value):
                problem = f"differs from {earlier.name} by more than {AGREEMENT} or in "
                hint = "a label has one text: write both files with one text encoder"
                problem += "its shape"
                faults.append(DataError(path, problem, record=label, hint=hint))
    if not files:
        hint = "expected <clip_uid>.pt, each a dict of label -> (L, C)"
        faults.append(DataError(folder, "the folder holds no .pt file", hint=hint))
    return merged, faults


def _clip_entries(path: Path) -> dict[str, Tensor]:
    entries = _load_pt(path)
    if not isinstance(entries, dict):
        kind = type(entries).__name__
        raise DataError(path, f"expected a dict of label -> (L, C) but got a {kind}")
    for label, value in entries.items():
        if not (isinstance(label, str) and isinstance(value, Tensor)):
            problem = (
                "expected label -> tensor but got "
                f"{type(label).__name__} -> {type(value).__name__}"
            )
            raise DataError(path, problem, record=str(label))
    return entries


def _load_pt(path: Path) -> Any:
    """What a torch file of text holds: tensors, strings, dicts."""
    size = path.stat().st_size
    if size > MAX_TEXT_FILE_BYTES:
        problem = f"expected at most {MAX_TEXT_FILE_BYTES} bytes but got {size}"
        raise DataError(path, problem, hint="is it a file of video features?")
    try:
        return torch.load(path, weights_only=True, map_location="cpu")
    except UnpicklingError:
        # torch's own message advises to switch the check off.
        problem = "refused, it holds other objects than tensors, strings and dicts"
        hint = "save tensors: torch.save({label: tensor})"
        raise DataError(path, problem, hint=hint) from None
    except Exception as error:  # damaged pickles raise almost anything
        reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        raise DataError(
            path, f"damaged: {reason}", hint="write or copy it again"
        ) from error


def _disagree(one: Tensor, other: Tensor) -> bool:
    if one is other:
        return False
    if one.shape != other.shape:
        return True
    # NaN is reported where the entry is checked.
    difference = (one.double() - other.double()).abs().nan_to_num(0.0)
    return bool((difference > AGREEMENT).any())


def _as_tokens(path: Path, record: str, stored: Tensor) -> Tensor:
    """Token features, (L, C) float32; a 1-D entry is one token."""
    tokens = stored.detach().float()
    tokens = tokens[None] if tokens.ndim == 1 else tokens
    if tokens.ndim != 2 or 0 in tokens.shape:
        problem = f"expected (L, C) token features but got {tuple(stored.shape)}"
        raise DataError(path, problem, record=record)
    if not bool(torch.isfinite(tokens).all()):
        problem = "the token features hold NaN or infinity"
        raise DataError(path, problem, record=record)
    return tokens


def _width_faults(path: Path, tokens: Mapping[str, Tensor]) -> list[DataError]:
    """Entries of another width than most have."""
    widths = {label: value.shape[1] for label, value in tokens.items()}
    found = list(widths.values())
    expected = max(found, key=found.count, default=0)
    hint = "write all entries with one text encoder"
    problem = f"expected {expected} channels but got "
    return [
        DataError(path, f"{problem}{width}", record=label, hint=hint)
        for label, width in widths.items()
        if width != expected
    ]


class TokenSource(Protocol):
    """Token features of free-form queries by query id."""

    @property
    def width(self) -> int:
        """Channels of a token."""

    def read(self, query_id: str) -> Tensor:
        """Token features of a query, (L, C) float32.

        :raises DataError: missing or damaged.
        """

    def missing(self, query_ids: Iterable[str]) -> list[str]:
        """Query ids without an entry, in the order given."""


class QueryTokens:
    """Token features of free-form queries by query id, read one by one.

    :param path: as :func:`~avalanche_vilco.data.features.open_tokens` takes it: a
        safetensors file, a folder of ``<query_id>.pt``, or the public LMDB.
    :raises FileNotFoundError: no such file or folder.
    :raises DataError: the file or its first entry, which says the width, is damaged, or
        there is none.
    """

    def __init__(self, path: Path | str) -> None:
        self._store = open_tokens(path)
        first = min(self._store.ids(), default=None)
        if first is None:
            hint = "is it the right one?"
            raise DataError(self._store.source, "holds no query text", hint=hint)
        self.width = int(self._store.read(first).shape[1])

    def read(self, query_id: str) -> Tensor:
        """Token features of a query.

        :param query_id: as in the annotation file.
        :return: (L, C) float32.
        :raises DataError: missing, damaged, not finite, of a wrong shape or width.
        """
        tokens = self._store.read(query_id)
        if tokens.shape[1] != self.width:
            problem = f"expected {self.width} channels but got {tokens.shape[1]}"
            raise DataError(self._store.source, problem, record=query_id)
        return tokens

    def missing(self, query_ids: Iterable[str]) -> list[str]:
        """Query ids without an entry, in the order given."""
        return self._store.missing(query_ids)


class JoinedTokens:
    """Several stores read as one; public code has one for each subset.

    :param sources: stores of one width; the first that has an entry counts.
    :raises ValueError: no store, or widths differ.
    """

    def __init__(self, sources: Sequence[TokenSource]) -> None:
        widths = [source.width for source in sources]
        if len(set(widths)) != 1:
            raise ValueError(
                f"expected query text of one width but got {widths} channels: write "
                "all with one text encoder"
            )
        self.sources = tuple(sources)
        self.width = widths[0]
        self._source_of: dict[str, TokenSource] = {}

    def read(self, query_id: str) -> Tensor:
        """Token features of a query, (L, C) float32.

        :raises DataError: missing or damaged.
        """
        if query_id not in self._source_of:
            holding = (s for s in self.sources if not s.missing([query_id]))
            self._source_of[query_id] = next(holding, self.sources[0])
        return self._source_of[query_id].read(query_id)

    def missing(self, query_ids: Iterable[str]) -> list[str]:
        """Query ids without an entry in any store, in the order given."""
        left = list(query_ids)
        for source in self.sources:
            missing = source.missing(left)
            for query_id in set(left) - set(missing):
                self._source_of.setdefault(query_id, source)
            left = missing
        return left


class _QuestionTokens(ABC):
    """Token features by the text of a query.

    :param texts: query id -> question.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = dict(texts)

    @abstractmethod
    def _tokens(self, text: str) -> Tensor | None:
        """(L, C) float32 of a question."""

    def read(self, query_id: str) -> Tensor:
        """Token features of a query, (L, C) float32.

        :raises DataError: no such query.
        """
        tokens = self._tokens(self.texts[query_id]) if query_id in self.texts else None
        if tokens is None:
            raise DataError("questions", "no such query", record=query_id)
        return tokens


class HashedTokens(_QuestionTokens):
    """Questions without a text encoder: a fixed random vector for each word.

    Words that two questions share have the same vector, on every machine; there is no
    further meaning in it. A stand-in where no features of a text encoder are at hand.

    :param texts: query id -> question.
    :param width: channels of a token.
    """

    def __init__(self, texts: Mapping[str, str], width: int = HASHED_WIDTH) -> None:
        super().__init__(texts)
        self.width = width

    def missing(self, query_ids: Iterable[str]) -> list[str]:
        """Query ids without a question, in the order given."""
        return [query_id for query_id in query_ids if query_id not in self.texts]

    def _tokens(self, text: str) -> Tensor:
        return _hashed(_QUESTION_WORD.findall(text.lower()), self.width)


class TextTokens(_QuestionTokens):
    """Token features by the question's words, such as CLIP's.

    :param texts: query id -> question.
    :param tokens: question -> (L, C), for every question, of one width.
    """

    def __init__(self, texts: Mapping[str, str], tokens: Mapping[str, Tensor]) -> None:
        super().__init__(texts)
        self.tokens = dict(tokens)
        self.width = int(next(iter(self.tokens.values())).shape[1])

    def missing(self, query_ids: Iterable[str]) -> list[str]:
        """Query ids without features, in the order given."""
        return [i for i in query_ids if self.texts.get(i) not in self.tokens]

    def _tokens(self, text: str) -> Tensor | None:
        return self.tokens.get(text)


def hashed_query_text(
    labels: Iterable[str], width: int = HASHED_WIDTH
) -> dict[str, Tensor]:
    """Token features of categories without a text encoder, as :class:`HashedTokens`.

    :param labels: labels in the annotation file's spelling.
    :param width: channels of a token.
    :return: label -> (words, width) float32, the same on every machine.
    """
    words = {label: readable(label).replace(",", "").split() for label in labels}
    return {label: _hashed(found, width) for label, found in words.items()}


def _hashed(words: Sequence[str], width: int) -> Tensor:
    return torch.stack([_word_vector(word, width) for word in words or ["?"]])


@lru_cache(maxsize=2**16)
def _word_vector(word: str, width: int) -> Tensor:
    digest = hashlib.sha256(word.encode()).digest()
    seed = np.random.SeedSequence(int.from_bytes(digest, "big"))
    values = np.random.Generator(np.random.PCG64(seed)).standard_normal(width)
    return torch.from_numpy(values.astype(np.float32))
