"""Token features of queries.

Two keys are in use. Categories (moment queries) have one entry for each label:
:func:`read_query_text`. Free-form queries have one for each query id:
:class:`QueryTokens`. Labels are data and never become file names.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from avalanche_vilco.core.errors import DataError
from avalanche_vilco.core.handles import PerProcess
from avalanche_vilco.data.text.narrations import NarrationLMDB

HASHED_WIDTH = 64
AGREEMENT = 1e-4
"""Largest difference between two clips' features of one label."""
MAX_TEXT_FILE_BYTES = 256 * 2**20
"""A larger file of one clip or query is not read: 77 tokens of 768 channels take
236 kB, and a clip has 15 labels at most."""

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
        hint = "write or copy it again"
        problem = f"not a safetensors file: {error}"
        return {}, [DataError(path, problem, hint=hint)]


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
                faults.append(_disagreement(path, label, earlier))
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
        hint = "write or copy it again"
        raise DataError(path, f"damaged: {reason}", hint=hint) from error


def _disagree(one: Tensor, other: Tensor) -> bool:
    if one is other:
        return False
    if one.shape != other.shape:
        return True
    # NaN is reported where the entry is checked.
    difference = (one.double() - other.double()).abs().nan_to_num(0.0)
    return bool((difference > AGREEMENT).any())


def _disagreement(path: Path, label: str, earlier: Path) -> DataError:
    problem = f"differs from {earlier.name} by more than {AGREEMENT} or in its shape"
    hint = "a label has one text: write both files with one text encoder"
    return DataError(path, problem, record=label, hint=hint)


def _as_tokens(path: Path, label: str, stored: Tensor) -> Tensor:
    tokens = stored.detach().float()
    tokens = tokens[None] if tokens.ndim == 1 else tokens
    if tokens.ndim != 2 or 0 in tokens.shape:
        problem = f"expected (L, C) token features but got {tuple(stored.shape)}"
        raise DataError(path, problem, record=label)
    if not bool(torch.isfinite(tokens).all()):
        raise DataError(path, "the text holds NaN or infinity", record=label)
    return tokens


def _width_faults(path: Path, tokens: Mapping[str, Tensor]) -> list[DataError]:
    """Entries of another width than most have."""
    widths = [value.shape[1] for value in tokens.values()]
    usual = max(widths, key=widths.count, default=0)
    hint = "write all entries with one text encoder"
    return [
        DataError(
            path,
            f"expected {usual} channels but got {value.shape[1]}",
            record=label,
            hint=hint,
        )
        for label, value in tokens.items()
        if value.shape[1] != usual
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

    :param path: a safetensors file with one entry a query id; a folder of
        ``<query_id>.pt``, each one tensor; or the public LMDB, query id -> npz archive
        with ``token_features`` or ``features``. Entries are (L, C); 1-D (pooled) ones
        count as one token.
    :param width: channels C that every entry must have; ``None``: as the first has.
    :raises FileNotFoundError: no such file or folder.
    :raises DataError: the file is no safetensors file or LMDB, or ``width`` is asked of
        a store without a sound entry.
    """

    def __init__(self, path: Path | str, width: int | None = None) -> None:
        self.path = Path(path)
        self._file: PerProcess[Any] | None = None
        self._database: NarrationLMDB | None = None
        if _is_lmdb(self.path):
            self._database = NarrationLMDB(self.path)
        elif not self.path.is_dir():
            if not self.path.is_file():
                raise FileNotFoundError(f"no query text file or folder at {self.path}")
            self._file = PerProcess(partial(_open_table, self.path))
            self._file.get()
        self.width = self._first_width() if width is None else width

    def read(self, query_id: str) -> Tensor:
        """Token features of a query.

        :param query_id: as in the annotation file.
        :return: (L, C) float32.
        :raises DataError: missing, damaged, not finite, of a wrong shape or width.
        """
        tokens = _as_tokens(self.path, query_id, self._stored(query_id))
        if tokens.shape[1] != self.width:
            problem = f"expected {self.width} channels but got {tokens.shape[1]}"
            raise DataError(self.path, problem, record=query_id)
        return tokens

    def missing(self, query_ids: Iterable[str]) -> list[str]:
        """Query ids without an entry, in the order given."""
        known = set(self._ids())
        return [query_id for query_id in query_ids if query_id not in known]

    def _first_width(self) -> int:
        first = min(self._ids(), default=None)
        if first is None:
            raise DataError(
                self.path, "holds no query text", hint="is it the right one?"
            )
        return int(_as_tokens(self.path, first, self._stored(first)).shape[1])

    def _ids(self) -> Iterable[str]:
        if self._database is not None:
            return self._database.ids()
        if self._file is None:
            return (path.stem for path in self.path.glob("*.pt"))
        return self._file.get().keys()

    def _stored(self, query_id: str) -> Tensor:
        if self._database is not None:
            return self._database.features(query_id)
        try:
            if self._file is not None:
                return self._file.get().get_tensor(query_id)
        except SafetensorError:
            raise DataError(self.path, "no entry", record=query_id) from None
        path = self.path / f"{query_id}.pt"
        # An id with a slash would name a file elsewhere.
        if path.parent != self.path or not path.is_file():
            raise DataError(self.path, "no entry", record=query_id)
        stored = _load_pt(path)
        if not isinstance(stored, Tensor):
            problem = f"expected one tensor but got a {type(stored).__name__}"
            raise DataError(self.path, problem, record=query_id)
        return stored


def _is_lmdb(path: Path) -> bool:
    return (path / "data.mdb").is_file() or path.suffix in (".lmdb", ".mdb")


def _open_table(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise DataError(path, f"not a safetensors file: {error}") from None


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
        self._home: dict[str, TokenSource] = {}

    def read(self, query_id: str) -> Tensor:
        """Token features of a query, (L, C) float32.

        :raises DataError: missing or damaged.
        """
        if query_id not in self._home:
            there = (s for s in self.sources if not s.missing([query_id]))
            self._home[query_id] = next(there, self.sources[0])
        return self._home[query_id].read(query_id)

    def missing(self, query_ids: Iterable[str]) -> list[str]:
        """Query ids without an entry in any store, in the order given."""
        left = list(query_ids)
        for source in self.sources:
            gone = source.missing(left)
            found = set(left) - set(gone)
            self._home.update((i, source) for i in found if i not in self._home)
            left = gone
        return left


class HashedTokens:
    """Questions without a text encoder: a fixed random vector for each word.

    Words that two questions share have the same vector; there is no further meaning in
    it. A stand-in where no features of a text encoder are at hand.

    :param texts: query id -> question.
    :param width: channels of a token.
    """

    def __init__(self, texts: Mapping[str, str], width: int = HASHED_WIDTH) -> None:
        self.texts = dict(texts)
        self.width = width

    def read(self, query_id: str) -> Tensor:
        """(words, width) float32, the same on every machine.

        :raises DataError: no such query.
        """
        if query_id not in self.texts:
            raise DataError("questions", "no such query", record=query_id)
        words = _QUESTION_WORD.findall(self.texts[query_id].lower()) or ["?"]
        return torch.stack([_kept_word_vector(word, self.width) for word in words])

    def missing(self, query_ids: Iterable[str]) -> list[str]:
        """Query ids without a question, in the order given."""
        return [query_id for query_id in query_ids if query_id not in self.texts]


class TextTokens:
    """Token features by the question's words, such as CLIP's.

    :param texts: query id -> question.
    :param tokens: question -> (L, C), for every question, of one width.
    """

    def __init__(self, texts: Mapping[str, str], tokens: Mapping[str, Tensor]) -> None:
        self.texts = dict(texts)
        self.tokens = dict(tokens)
        self.width = int(next(iter(self.tokens.values())).shape[1])

    def read(self, query_id: str) -> Tensor:
        """Token features of a query, (L, C) float32.

        :raises DataError: no such query.
        """
        if self.missing([query_id]):
            raise DataError("questions", "no such query", record=query_id)
        return self.tokens[self.texts[query_id]]

    def missing(self, query_ids: Iterable[str]) -> list[str]:
        """Query ids without features, in the order given."""
        return [i for i in query_ids if self.texts.get(i) not in self.tokens]


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


_kept_word_vector = lru_cache(maxsize=2**16)(_word_vector)
