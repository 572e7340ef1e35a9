"""Narrations: timed sentences about a clip, with token features by query id.

The public form is a jsonl file, one sentence a line (``video_id`` is the clip uid,
``query_id``, ``timestamps`` ``[[start, end]]`` in clip seconds, ``query``), and an LMDB
with one npz archive a query id that holds ``token_features`` or ``features``. The
embedded default has the same jsonl file and one npz archive with an array a query id.

Limits against hostile or damaged files: a line has at most 1 MiB
(:data:`MAX_LINE_BYTES`), an array at most 64 MiB unpacked (:data:`MAX_ARRAY_BYTES`),
sizes are compared before anything is unpacked, and nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import io
import math
import sys
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from avalanche_vilco.core.errors import DataError
from avalanche_vilco.core.files import sha256_of
from avalanche_vilco.core.handles import PerProcess, open_lmdb
from avalanche_vilco.core.report import DataReport, Tally
from avalanche_vilco.data.features.npz import check_bounded

NARRATION_FILE = "format_unique_pretrain_data_v2.jsonl"
"""Sentences, in a data root."""
NARRATION_FEATURE_FILE = "narration_features.npz"
NARRATION_LMDB = "narration_features.lmdb"
MAX_LINE_BYTES = 2**20
"""A longer line of the jsonl file is an error."""
MAX_ARRAY_BYTES = 64 * 2**20
"""Larger features of one sentence, packed or unpacked, are an error: 77 tokens of
512 float32 take 158 kB."""
PUBLIC_ARRAYS = ("token_features", "features")
"""Names of the array in a public npz value, the first that is there counts."""
PUBLIC_MARGIN_SEC = 1.0
_MAX_LMDB_KEY = 511

_LAYOUT_HINT = (
    'expected {"video_id": clip uid, "query_id": str, "timestamps": [[start, end]], '
    '"query": str}'
)


@dataclass(frozen=True, order=True, slots=True)
class Narration:
    """One sentence about a part of a clip; sorts by time."""

    start_sec: float
    """Clip seconds."""
    end_sec: float
    """Clip seconds, not before ``start_sec``."""
    query_id: str
    """Key of the token features."""
    clip_id: str
    text: str
    """The sentence; empty where the file has none."""


class _Line(msgspec.Struct):
    video_id: str
    query_id: str
    timestamps: list[tuple[float, float]]
    query: str | None = None


_DECODER = msgspec.json.Decoder(_Line)


def parse_narration(path: Path | str, number: int, line: bytes) -> list[Narration]:
    """One line of the jsonl file, one narration for each of its windows.

    :param path: the file, for the message.
    :param number: line number, from 1, for the message.
    :param line: its bytes.
    :return: narrations in the line's order; windows are as in the file.
    :raises DataError: too long, not JSON, a field is missing, of another type, empty
        or not finite; names the line.
    """
    spot = f"line {number}"
    if len(line) > MAX_LINE_BYTES:
        problem = f"longer than {MAX_LINE_BYTES} bytes"
        raise DataError(path, problem, record=spot, hint=_LAYOUT_HINT)
    try:
        item = _DECODER.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(path, str(error), record=spot, hint=_LAYOUT_HINT) from None
    for name in ("video_id", "query_id"):
        if not getattr(item, name).strip():
            raise DataError(path, "empty", record=spot, field=name)
    if not item.timestamps:
        raise DataError(path, "no window", record=spot, field="timestamps")
    for window in item.timestamps:
        if not all(map(math.isfinite, window)):
            problem = f"expected finite seconds but got {list(window)}"
            raise DataError(path, problem, record=spot, field="timestamps")
    text = (item.query or "").strip()
    # One string for all narrations of a clip: public files have hundreds of thousands.
    clip_id = sys.intern(item.video_id)
    return [
        Narration(start, end, item.query_id, clip_id, text)
        for start, end in item.timestamps
    ]


def numbered_lines(path: Path | str) -> Iterator[tuple[int, bytes]]:
    """Lines of a jsonl file with their numbers from 1; blank ones are left out.

    :param path: the file.
    :raises FileNotFoundError: no such file.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no narration file at {path}")
    with path.open("rb") as file:
        number = 0
        # A file without line ends must not be read whole.
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if line.strip():
                yield number, line
            if len(line) > MAX_LINE_BYTES:
                return


def read_narrations(
    path: Path | str,
    durations_sec: Mapping[str, float] | None = None,
    faults: list[DataError] | None = None,
) -> tuple[dict[str, tuple[Narration, ...]], DataReport]:
    """Timed sentences by clip, each clip's sorted by start, end and query id.

    :param path: the jsonl file, in any order.
    :param durations_sec: clip uid -> seconds. If given, narrations of other clips are
        rejected, and windows are held against the clip.
    :param faults: if given, errors of damaged lines are added to it, not raised.
    :return: clip uid -> narrations, and the counts (stage ``narrations``).
    :raises FileNotFoundError: no such file.
    :raises DataError: a damaged line, named by its number.
    """
    report = DataReport(files={Path(path).name: _sha256(Path(path))})
    tally = report.stage("narrations", "sentences")
    seen: set[Narration] = set()
    by_clip: dict[str, list[Narration]] = {}
    for one in _parsed(path, faults):
        kept = _checked(one, durations_sec, one in seen, tally)
        if kept is not None:
            seen.add(one)
            by_clip.setdefault(one.clip_id, []).append(kept)
    return {clip: tuple(sorted(told)) for clip, told in by_clip.items()}, report


def _parsed(path: Path | str, faults: list[DataError] | None) -> Iterator[Narration]:
    for number, line in numbered_lines(path):
        try:
            yield from parse_narration(path, number, line)
        except DataError as fault:
            if faults is None:
                raise
            faults.append(fault)


def _sha256(path: Path) -> str:
    if not path.is_file():
        raise FileNotFoundError(f"no narration file at {path}")
    return sha256_of(path)


def _checked(
    one: Narration,
    durations_sec: Mapping[str, float] | None,
    is_repeated: bool,
    tally: Tally,
) -> Narration | None:
    duration = math.inf
    if durations_sec is not None:
        duration = durations_sec.get(one.clip_id, -1.0)
    reason = _reject_reason(one, duration)
    if reason is None and is_repeated:
        reason = "exact duplicate"
    if reason is not None:
        tally.reject(reason)
        return None
    tally.note("zero length", int(one.start_sec == one.end_sec))
    if one.start_sec >= 0 and one.end_sec <= duration:
        tally.kept += 1
        return one
    tally.change("overhangs the clip, clipped to it")
    start, end = max(one.start_sec, 0.0), min(one.end_sec, duration)
    return Narration(start, end, one.query_id, one.clip_id, one.text)


def _reject_reason(one: Narration, duration: float) -> str | None:
    if duration < 0:
        return "clip not in the annotations"
    if one.end_sec < one.start_sec:
        return "end before start"
    if one.start_sec > duration or one.end_sec < 0:
        return "outside the clip"
    return None


def narrations_near_windows(
    narrations: Iterable[Narration],
    windows_sec: npt.NDArray[np.float64] | Sequence[tuple[float, float]],
    *,
    margin_sec: float = PUBLIC_MARGIN_SEC,
    is_repeated: bool = False,
) -> list[Narration]:
    """The public code's choice: narrations that lie inside a window widened by 1 s.

    It looks at ground truth, so it serves training only.

    :param narrations: of one clip.
    :param windows_sec: (N, 2) windows of the same clip, clip seconds.
    :param margin_sec: by how much each window is widened at both ends; the widened
        ends belong to it.
    :param is_repeated: give a narration once for each window it lies in, as the
        public code does, instead of once.
    :return: narrations in the order given.
    """
    windows = np.asarray(windows_sec, dtype=np.float64).reshape(-1, 2)
    low, high = windows[:, 0] - margin_sec, windows[:, 1] + margin_sec
    chosen: list[Narration] = []
    for one in narrations:
        hits = int(((low <= one.start_sec) & (one.end_sec <= high)).sum())
        chosen += [one] * (hits if is_repeated else min(hits, 1))
    return chosen


class NarrationFeatures(Protocol):
    """Token features by query id; holds no open handle in a pickle."""

    path: Path

    def ids(self) -> Collection[str]:
        """All query ids that have features."""

    def features(self, query_id: str) -> Tensor:
        """Token features, (L, C) float32.

        :raises DataError: missing, damaged, too large, not finite or of another shape.
        """


class NarrationArchive:
    """One npz archive with an array (L, C) for each query id.

    :param path: the archive.
    :raises FileNotFoundError: no such file.
    :raises DataError: it is no archive, or it is truncated.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(f"no narration features at {self.path}")
        self._archive = PerProcess(partial(_open_archive, self.path))
        self._archive.get()

    def ids(self) -> Collection[str]:
        """All query ids that have features."""
        names = self._archive.get().namelist()
        return {name[: -len(".npy")] for name in names if name.endswith(".npy")}

    def features(self, query_id: str) -> Tensor:
        """Token features of a sentence, (L, C) float32.

        :param query_id: as in the jsonl file.
        :raises DataError: missing, damaged, too large, not finite or of another shape.
        """
        archive = self._archive.get()
        try:
            member = archive.getinfo(f"{query_id}.npy")
        except KeyError:
            raise DataError(self.path, "no features", record=query_id) from None
        return _tokens(self.path, query_id, archive, member)


def _open_archive(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        hint = "write or copy it again"
        raise DataError(path, f"not an npz archive: {error}", hint=hint) from None


class NarrationLMDB:
    """The public LMDB: query id -> bytes of an npz archive.

    Needs the extra ``lmdb``: ``pip install avalanche-vilco[lmdb]``.

    :param path: the LMDB's folder or file.
    :raises FileNotFoundError: nothing there.
    :raises ImportError: the extra is not installed.
    :raises DataError: it is no LMDB, or it is truncated.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._environment = PerProcess(partial(open_lmdb, self.path))
        self._environment.get()

    def ids(self) -> Collection[str]:
        """All query ids that have features."""
        with self._environment.get().begin() as transaction:
            keys = transaction.cursor().iternext(keys=True, values=False)
            return {key.decode(errors="replace") for key in keys}

    def features(self, query_id: str) -> Tensor:
        """Token features of a sentence, (L, C) float32.

        :param query_id: as in the jsonl file.
        :raises DataError: missing, damaged, too large, not finite or of another shape.
        """
        with self._environment.get().begin(buffers=True) as transaction:
            key = query_id.encode()
            value = transaction.get(key) if 0 < len(key) <= _MAX_LMDB_KEY else None
            if value is None:
                raise DataError(self.path, "no features", record=query_id)
            if len(value) > MAX_ARRAY_BYTES:
                raise _too_large(self.path, query_id, len(value))
            content = bytes(value)
        return _npz_tokens(self.path, query_id, content)


def _npz_tokens(path: Path, query_id: str, content: bytes) -> Tensor:
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
    except (zipfile.BadZipFile, ValueError) as error:
        problem = f"the value is no npz archive: {error}"
        raise DataError(path, problem, record=query_id) from None
    members = {member.filename: member for member in archive.infolist()}
    for name in PUBLIC_ARRAYS:
        if f"{name}.npy" in members:
            return _tokens(path, query_id, archive, members[f"{name}.npy"])
    problem = f"expected one of {PUBLIC_ARRAYS} but got {sorted(members)}"
    raise DataError(path, problem, record=query_id)


def _tokens(
    path: Path, query_id: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo
) -> Tensor:
    if member.file_size > MAX_ARRAY_BYTES:
        raise _too_large(path, query_id, member.file_size)
    try:
        check_bounded(member)
        with archive.open(member) as file:
            # No more than it declares, whatever it holds.
            array = _array(file.read(member.file_size))
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        OSError,
        ValueError,
        NotImplementedError,  # compression or encryption that zipfile lacks
        RuntimeError,
    ) as error:
        problem = f"damaged: {error}"
        raise DataError(path, problem, record=query_id) from None
    tokens = torch.from_numpy(array)
    tokens = tokens[None] if tokens.ndim == 1 else tokens
    if tokens.ndim != 2 or 0 in tokens.shape:
        problem = f"expected (L, C) token features but got {tuple(array.shape)}"
        raise DataError(path, problem, record=query_id)
    if not bool(torch.isfinite(tokens).all()):
        raise DataError(path, "the features hold NaN or infinity", record=query_id)
    return tokens


def _array(content: bytes) -> npt.NDArray[np.float32]:
    """A .npy file's array, copied as float32; a header that promises more than the
    file holds is refused before anything is allocated.
    """
    file = io.BytesIO(content)
    version = np.lib.format.read_magic(file)
    read_header = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read_header is None:
        raise ValueError(f"npy version {version} is unknown")
    shape, is_fortran, dtype = read_header(file)
    if not np.issubdtype(dtype, np.floating):
        raise ValueError(f"expected floating values but got {dtype}")
    size = math.prod(shape) * dtype.itemsize
    if size != len(content) - file.tell():
        raise ValueError(f"the header promises {size} bytes of values, not so the file")
    values = np.frombuffer(content, dtype, offset=file.tell())
    array = values.reshape(shape, order="F" if is_fortran else "C")
    # What float32 cannot hold becomes infinity, which the caller reports.
    with np.errstate(over="ignore"):
        return np.array(array, dtype=np.float32, order="C")


def _too_large(path: Path, query_id: str, size: int) -> DataError:
    problem = f"expected at most {MAX_ARRAY_BYTES} bytes but got {size}"
    return DataError(path, problem, record=query_id)


def open_narration_features(path: Path | str) -> NarrationFeatures:
    """The archive or LMDB at a path.

    :param path: ``.npz`` file, or an LMDB (its folder or file).
    :raises FileNotFoundError: nothing there.
    :raises DataError: neither one nor the other.
    """
    path = Path(path)
    if path.is_file() and path.suffix == ".npz":
        return NarrationArchive(path)
    return NarrationLMDB(path)


def narration_files(root: Path) -> tuple[Path, Path]:
    """Where a data root has its sentences and their features, an LMDB before an
    archive.

    :param root: data root; the files need not exist.
    """
    database = root / NARRATION_LMDB
    features = database if database.exists() else root / NARRATION_FEATURE_FILE
    return root / NARRATION_FILE, features


class NarrationStore:
    """Timed sentences of clips with their token features, read one by one.

    :param sentences: the jsonl file.
    :param features: npz archive or LMDB.
    :param durations_sec: clip uid -> seconds; see :func:`read_narrations`.
    :param missing: ``"error"`` lists all sentences without features and stops,
        ``"drop"`` leaves them out and counts them (stage ``narration features``).
    :raises FileNotFoundError: a file is absent.
    :raises DataError: a file is damaged, or features are missing.
    :raises ValueError: ``missing`` is neither.
    """

    def __init__(
        self,
        sentences: Path | str,
        features: Path | str,
        *,
        durations_sec: Mapping[str, float] | None = None,
        missing: str = "error",
    ) -> None:
        if missing not in ("error", "drop"):
            raise ValueError(
                f"expected missing in ['error', 'drop'] but got {missing!r}"
            )
        self._features = open_narration_features(features)
        self._by_clip, self.report = read_narrations(sentences, durations_sec)
        self._leave_out_missing(missing)

    def _leave_out_missing(self, missing: str) -> None:
        known = self._features.ids()
        told = [one for clip in self._by_clip.values() for one in clip]
        gone = [one.query_id for one in told if one.query_id not in known]
        if gone and missing == "error":
            ids = sorted(set(gone))
            problem = f"no features for {len(ids)} narrations: {', '.join(ids)}"
            hint = "copy the file again, or pass missing='drop' to leave them out"
            raise DataError(self._features.path, problem, hint=hint)
        tally = self.report.stage("narration features", "sentences")
        tally.reject("no features", len(gone))
        tally.kept = len(told) - len(gone)
        kept = {
            clip: tuple(one for one in told if one.query_id in known)
            for clip, told in self._by_clip.items()
        }
        self._by_clip = {clip: told for clip, told in kept.items() if told}

    def __len__(self) -> int:
        return sum(len(told) for told in self._by_clip.values())

    @property
    def clip_ids(self) -> tuple[str, ...]:
        """Clips that have a narration."""
        return tuple(self._by_clip)

    def of_clip(self, clip_id: str) -> tuple[Narration, ...]:
        """Narrations of a clip by time; none for a clip without."""
        return self._by_clip.get(clip_id, ())

    def features(self, query_id: str) -> Tensor:
        """Token features of a sentence.

        :param query_id: of a narration.
        :return: (L, C) float32; C is 512 in the public files.
        :raises DataError: missing, damaged, too large, not finite or of another shape.
        """
        return self._features.features(query_id)


class ClipNarrations:
    """Sentences of clips as tensors: one embedding each, the mean of its tokens.

    Clips with more than ``max_sentences`` show some, evenly spread in time. What has
    been read stays in memory as float16, up to a limit; a pickle holds none of it.

    :param store: sentences and their token features.
    :param max_sentences: sentences of a clip at most, at least 1.
    :param cache_bytes: kept in memory.
    :raises ValueError: ``max_sentences`` is below 1.
    """

    def __init__(
        self,
        store: NarrationStore,
        *,
        max_sentences: int = 16,
        cache_bytes: int = 64 * 2**20,
    ) -> None:
        if max_sentences < 1:
            raise ValueError(f"expected max_sentences >= 1 but got {max_sentences}")
        self.store = store
        self.max_sentences = max_sentences
        self.cache_bytes = cache_bytes
        self._cache: dict[str, Tensor] = {}
        self._cached_bytes = 0

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_cache": {}, "_cached_bytes": 0}

    @property
    def width(self) -> int:
        """Channels C of an embedding.

        :raises ValueError: there is no sentence.
        """
        for clip_id in self.store.clip_ids:
            return self.of_clip(clip_id)[0].shape[1]
        raise ValueError("there are no narrations")

    def of_clip(self, clip_id: str) -> tuple[Tensor, Tensor, Tensor]:
        """Embeddings (S, C) float32, windows (S, 2) float64 in clip seconds and
        sentence numbers (S,) int64, S may be 0.

        :raises DataError: features of a sentence are damaged.
        """
        told = self._chosen(clip_id)
        if not told:
            return torch.zeros(0, 0), torch.zeros(0, 2).double(), torch.zeros(0).long()
        spans = [(one.start_sec, one.end_sec) for one in told]
        numbers = [sentence_number(one.text or one.query_id) for one in told]
        return (
            self._embeddings(clip_id, told),
            torch.tensor(spans, dtype=torch.float64),
            torch.tensor(numbers),
        )

    def _chosen(self, clip_id: str) -> Sequence[Narration]:
        told = self.store.of_clip(clip_id)
        if len(told) <= self.max_sentences:
            return told
        spots = np.linspace(0, len(told) - 1, self.max_sentences).round().astype(int)
        return [told[i] for i in spots]

    def _embeddings(self, clip_id: str, told: Sequence[Narration]) -> Tensor:
        kept = self._cache.get(clip_id)
        if kept is None:
            means = [self.store.features(one.query_id).mean(0) for one in told]
            kept = torch.stack(means).half()
            if self._cached_bytes + kept.nbytes <= self.cache_bytes:
                self._cache[clip_id] = kept
                self._cached_bytes += kept.nbytes
        return kept.float()


def sentence_number(text: str) -> int:
    """A number for a sentence, the same for equal wording, in [0, 2**63)."""
    digest = hashlib.sha256(" ".join(text.lower().split()).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
