"""Narrations: timed sentences about a clip, with token features by query id.

The public form is a jsonl file, one sentence a line (``video_id`` is the clip uid,
``query_id``, ``timestamps`` ``[[start, end]]`` in clip seconds, ``query``), and an LMDB
with one npz archive a query id that holds ``token_features`` or ``features``. The
embedded default has the same jsonl file and one npz archive with an array a query id.

Limits against hostile or damaged files: a line has at most 1 MiB
(:data:`MAX_LINE_BYTES`), an array at most 64 MiB unpacked, sizes are compared before
anything is unpacked, and nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from avalanche_vilco.core.cache import TensorCache
from avalanche_vilco.core.errors import DataError
from avalanche_vilco.core.files import existing, open_content, plain_name, sha256_of
from avalanche_vilco.core.report import DataReport, Tally
from avalanche_vilco.core.schema import check_finite, convert, decode_json
from avalanche_vilco.data.features import open_tokens

NARRATION_FILE = "format_unique_pretrain_data_v2.jsonl"
"""Sentences, in a data root."""
NARRATION_FEATURE_FILE = "narration_features.npz"
NARRATION_LMDB = "narration_features.lmdb"
MAX_LINE_BYTES = 2**20
"""A longer line of the jsonl file is an error."""
PUBLIC_MARGIN_SEC = 1.0

T = TypeVar("T")

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


def decode_line(
    path: Path | str, record: str, line: bytes, kind: type[T], hint: str
) -> T:
    """A line of a jsonl file as a type.

    :param path: the file, for messages.
    :param record: the line, for messages.
    :param line: its bytes.
    :param kind: a type that msgspec knows.
    :param hint: what a line should be.
    :raises DataError: too long, not JSON, a key occurs twice, or a field is missing or
        of another type.
    """
    if len(line) > MAX_LINE_BYTES:
        problem = f"longer than {MAX_LINE_BYTES} bytes"
        raise DataError(path, problem, record=record, hint=hint)
    raw = decode_json(path, line, record=record)
    return convert(raw, kind, path, hint=hint, record=record)


def _parsed(path: Path, number: int, line: bytes) -> list[Narration]:
    """One line of the jsonl file, one narration for each of its windows, as there."""
    record = f"line {number}"
    item = decode_line(path, record, line, _Line, _LAYOUT_HINT)
    for name in ("video_id", "query_id"):
        if not getattr(item, name).strip():
            raise DataError(path, "empty", record=record, field=name)
    if not item.timestamps:
        raise DataError(path, "no window", record=record, field="timestamps")
    for window in item.timestamps:
        check_finite(path, record, "timestamps", window)
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
    return _lines(path)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with open_content(path) as file:
        # A file without line ends must not be read whole.
        lines = iter(partial(file.readline, MAX_LINE_BYTES + 1), b"")
        for number, line in enumerate(lines, 1):
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
    path = Path(path)
    lines = numbered_lines(path)
    report = DataReport(files={plain_name(path): sha256_of(path)}, faults=faults)
    tally = report.stage("narrations", "sentences")
    seen: set[Narration] = set()
    by_clip: dict[str, list[Narration]] = {}
    for number, line in lines:
        parsed: list[Narration] = []
        with report.collected():
            parsed = _parsed(path, number, line)
        for one in parsed:
            kept = _checked(one, durations_sec, one in seen, tally)
            if kept is not None:
                seen.add(one)
                by_clip.setdefault(one.clip_id, []).append(kept)
    return {clip: tuple(sorted(found)) for clip, found in by_clip.items()}, report


def _checked(
    one: Narration,
    durations_sec: Mapping[str, float] | None,
    is_repeated: bool,
    tally: Tally,
) -> Narration | None:
    duration = math.inf
    if durations_sec is not None:
        duration = durations_sec.get(one.clip_id, -1.0)
    reason = _reject_reason(one, duration, is_repeated)
    if reason is not None:
        tally.reject(reason)
        return None
    tally.note("zero length", int(one.start_sec == one.end_sec))
    if one.start_sec >= 0 and one.end_sec <= duration:
        tally.kept += 1
        return one
    tally.change("overhangs the clip, clipped to it")
    start, end = max(one.start_sec, 0.0), min(one.end_sec, duration)
    return replace(one, start_sec=start, end_sec=end)


def _reject_reason(one: Narration, duration: float, is_repeated: bool) -> str | None:
    if duration < 0:
        return "clip not in the annotations"
    if one.end_sec < one.start_sec:
        return "end before start"
    if one.start_sec > duration or one.end_sec < 0:
        return "outside the clip"
    return "exact duplicate" if is_repeated else None


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


def narration_files(root: Path) -> tuple[Path, Path]:
    """Where a data root has its sentences and their features, if it has any.

    An LMDB goes before an archive.

    :param root: data root; the files need not exist.
    """
    database = root / NARRATION_LMDB
    features = database if database.exists() else root / NARRATION_FEATURE_FILE
    return existing(root / NARRATION_FILE), features


class NarrationStore:
    """Timed sentences of clips with their token features, read one by one.

    :param sentences: the jsonl file.
    :param features: npz archive or LMDB, with an array (L, C) a query id.
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
        self._features = open_tokens(features)
        self._by_clip, self.report = read_narrations(sentences, durations_sec)
        self._leave_out_missing(missing)

    def _leave_out_missing(self, missing: str) -> None:
        known = self._features.ids()
        n_read = len(self)
        absent = {
            one.query_id
            for narrations in self._by_clip.values()
            for one in narrations
            if one.query_id not in known
        }
        if absent and missing == "error":
            problem = f"no features for {len(absent)} narrations: "
            problem += ", ".join(sorted(absent))
            hint = "copy the file again, or pass missing='drop' to leave them out"
            raise DataError(self._features.source, problem, hint=hint)
        with_features = {
            clip: tuple(one for one in narrations if one.query_id not in absent)
            for clip, narrations in self._by_clip.items()
        }
        self._by_clip = {clip: kept for clip, kept in with_features.items() if kept}
        tally = self.report.stage("narration features", "sentences")
        tally.kept = len(self)
        tally.reject("no features", n_read - len(self))

    def __len__(self) -> int:
        return sum(map(len, self._by_clip.values()))

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
        return self._features.read(query_id)


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
        self._cache = TensorCache(cache_bytes)

    @property
    def width(self) -> int:
        """Channels C of an embedding.

        :raises ValueError: there is no sentence.
        """
        for clip_id in self.store.clip_ids:
            return self.of_clip(clip_id)[0].shape[1]
        raise ValueError("there are no narrations")

    def of_clip(self, clip_id: str) -> tuple[Tensor, Tensor, Tensor]:
        """Embeddings, windows and numbers of a clip's S sentences; S may be 0.

        :return: (S, C) float32, (S, 2) float64 in clip seconds and (S,) int64.
        :raises DataError: features of a sentence are damaged.
        """
        chosen = self._chosen(clip_id)
        if not chosen:
            return torch.zeros(0, 0), torch.zeros(0, 2).double(), torch.zeros(0).long()
        windows = [(one.start_sec, one.end_sec) for one in chosen]
        numbers = [sentence_number(one.text or one.query_id) for one in chosen]
        return (
            self._embeddings(clip_id, chosen),
            torch.tensor(windows, dtype=torch.float64),
            torch.tensor(numbers),
        )

    def _chosen(self, clip_id: str) -> Sequence[Narration]:
        narrations = self.store.of_clip(clip_id)
        if len(narrations) <= self.max_sentences:
            return narrations
        spread = np.linspace(0, len(narrations) - 1, self.max_sentences).round()
        return [narrations[i] for i in spread.astype(int)]

    def _embeddings(self, clip_id: str, narrations: Sequence[Narration]) -> Tensor:
        embeddings = self._cache.get(clip_id)
        if embeddings is None:
            means = [self.store.features(one.query_id).mean(0) for one in narrations]
            embeddings = torch.stack(means).half()
            if self._cache.has_room(embeddings):
                self._cache[clip_id] = embeddings
        return embeddings.float()


def sentence_number(text: str) -> int:
    """A number for a sentence, the same for equal wording, in [0, 2**63)."""
    digest = hashlib.sha256(" ".join(text.lower().split()).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
