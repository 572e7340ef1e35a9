"""What every feature store offers, and what stores on disk have in common."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from avalanche_vilco.core.errors import FeatureError
from avalanche_vilco.core.handles import PerProcess

T = TypeVar("T")
K = TypeVar("K", bound="Keyed")

TOLERANCE_STEPS = 2
"""Extraction tools add or drop a step at the end; more is another clip's file."""

_BLOCK_BYTES = 2**21
"""Copied and summed at a time, so that the sum reads from the cache."""


class FeatureStore(Protocol):
    """Where a benchmark reads the features of a clip.

    A store can be pickled to spawned workers: it opens what it needs on the first
    read of each process, and no pickle holds an open handle.
    """

    @property
    def width(self) -> int:
        """Channels of a step; known after :meth:`preflight`."""

    def shape(self, clip_id: str) -> tuple[int, int]:
        """Steps and channels of a clip, (T, C), without reading its features.

        :raises FeatureError: missing, damaged or not a (T, C) floating tensor.
        """

    def read(self, clip_id: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Features of a clip, time-major.

        :param clip_id: clip uid.
        :param start: first step, >= 0.
        :param stop: step after the last; beyond the end counts as the end.
        :return: (T, C) float32, or (stop - start, C) of a window, owned by the
            caller.
        :raises FeatureError: missing, damaged or non-finite.
        """

    def missing(self, clip_ids: Iterable[str]) -> list[str]:
        """Clips of which the store has nothing, in the order asked."""

    def preflight(
        self, expected_steps: Mapping[str, float], *, tolerance: float = TOLERANCE_STEPS
    ) -> None:
        """Check every clip before training and list all faults at once.

        :param expected_steps: clip uid -> duration x features a second.
        :param tolerance: accepted difference between steps found and expected.
        :raises FeatureError: features are missing, doubled, truncated, not a 2-D
            floating tensor, transposed, of another width or another clip's length.
        """

    def time_scale(self, clip_id: str) -> float:
        """Steps read for one step that was extracted; 1.0 unless resized.

        The timeline of what :meth:`read` returns has the annotation's features a
        second times this scale.
        """

    def locate(self, clip_id: str) -> str:
        """Where a clip's features lie, for messages.

        :raises FeatureError: missing.
        """


@dataclass(frozen=True)
class Header:
    """What is known of stored features without reading them."""

    shape: tuple[int, ...]
    is_floating: bool

    @classmethod
    def of(cls, stored: Any) -> Header:
        """Header of steps as stored, mapped where possible."""
        if isinstance(stored, Tensor):
            return cls(tuple(stored.shape), stored.is_floating_point())
        return cls(stored.shape, np.issubdtype(stored.dtype, np.floating))


class StoredFeatures(FeatureStore, ABC):
    """Base of the stores that read from disk themselves.

    A subclass says where a clip lies and gives its steps as they are stored, mapped
    where possible; reading copies them once.

    :param source: file or folder of the store.
    """

    max_array_bytes = 2**30
    """A larger array in an archive is refused: 33 MB is usual, and a small file can
    declare any size."""
    checks_sums = False
    """Whether arrays that lie uncompressed in an archive are held against its checksum
    too: that reads them twice, which tokens can afford."""
    is_vector_one_step = False
    """Whether (C,) counts as (1, C), as pooled text does."""
    hint = (
        "extract or copy these files again, or pass missing='drop' to leave "
        "clips without a file out of the streams"
    )

    def __init__(self, source: Path | str) -> None:
        self.source = Path(source).expanduser()
        self._width: int | None = None

    @abstractmethod
    def ids(self) -> Collection[str]:
        """All clips that the store has."""

    @abstractmethod
    def _stored(self, clip_id: str) -> Any:
        """Steps as stored, not copied: a tensor, an array, or what is sliced like one.

        May raise anything: it becomes a named fault.
        """

    def _header(self, clip_id: str) -> Header:
        """Shape and kind of what is stored; may raise anything."""
        return Header.of(self._stored(clip_id))

    def _checked_steps(self, clip_id: str) -> bytearray | None:
        """A byte a step, 1 where it was seen to be finite; ``None``: not kept.

        Only for a store that maps a clip once: where each read maps a file, it may
        be another one each time.
        """
        return None

    def check_source(self) -> None:
        """Raise :class:`FeatureError` if no clip can be read at all."""

    def contents(self) -> str:
        """What the store has, in a few words, for messages."""
        ids = sorted(self.ids())
        return f"it has {len(ids)} entries{f', {ids[0]!r} first' if ids else ''}"

    def missing(self, clip_ids: Iterable[str]) -> list[str]:
        """Clips of which the store has nothing, in the order asked."""
        known = self.ids()
        return [clip_id for clip_id in clip_ids if clip_id not in known]

    @property
    def width(self) -> int:
        """Channels of a step; known after :meth:`preflight`."""
        if self._width is None:
            raise ValueError("the width is known after preflight()")
        return self._width

    def time_scale(self, clip_id: str) -> float:
        """1.0: what is on disk is read as it is."""
        return 1.0

    def shape(self, clip_id: str) -> tuple[int, int]:
        """Steps and channels of a clip, (T, C)."""
        header = self._checked_header(clip_id)
        if problem := _malformed(header):
            raise self._fault(f"{clip_id}: {self.locate(clip_id)}: {problem}")
        steps, channels = header.shape
        return steps, channels

    def read(self, clip_id: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Features of a clip, (T, C) float32, or the window of it."""
        check_window(start, stop)
        with self._named(clip_id):
            stored = self._stored(clip_id)
            if stored.ndim == 1 and self.is_vector_one_step:
                stored = stored[None]
            if problem := _malformed(Header.of(stored)):
                raise ValueError(problem)
            window = stored[start:stop]
            checked = self._checked_steps(clip_id)
            if checked is not None and 0 not in checked[start:stop]:
                features = torch.empty((*window.shape,), dtype=torch.float32)
                _copy(features, window)
                return features
            features, is_finite = _copy_and_check(window)
        if not is_finite:
            name = Path(self.locate(clip_id)).name
            raise self._fault(f"{clip_id}: {name} holds NaN or infinity")
        if checked is not None:
            checked[start:stop] = b"\1" * len(features)
        return features

    def preflight(
        self, expected_steps: Mapping[str, float], *, tolerance: float = TOLERANCE_STEPS
    ) -> None:
        """Check every clip's header; see :meth:`FeatureStore.preflight`."""
        self.check_source()
        headers, faults = gathered(self._checked_header, expected_steps)
        expected = {i: expected_steps[i] * self.time_scale(i) for i in headers}
        if not self._width:
            shapes = [(headers[i].shape, expected[i]) for i in headers]
            self._width = _common_width(shapes, tolerance)
        problems = {
            i: problem
            for i, header in headers.items()
            if (problem := _shape_problem(header, expected[i], self._width, tolerance))
        }
        faults += [f"{i}: {self.locate(i)}: {problems[i]}" for i in problems]
        if not faults:
            return
        hint = self.hint
        lengths = [i for i, problem in problems.items() if _LENGTH in problem]
        ratios = [headers[i].shape[0] / max(expected[i], 1.0) for i in lengths]
        if 1 < len(ratios) == len(faults) and max(ratios) < 1.05 * min(ratios):
            hint += (
                f"; all these have {ratios[0]:.4g} times the steps expected: if that "
                "is their rate, state it (fps of the annotations, or features_per_sec)"
            )
        elif not set(expected_steps).intersection(self.ids()):
            hint = f"none of these clips is there: {self.contents()}; {hint}"
        raise FeatureError(self.source, faults, hint)

    def _checked_header(self, clip_id: str) -> Header:
        with self._named(clip_id):
            return self._header(clip_id)

    @contextmanager
    def _named(self, clip_id: str) -> Iterator[None]:
        """Turn what a damaged file raises into an error that names the clip."""
        try:
            yield
        except (FeatureError, ImportError):
            raise
        except Exception as error:  # damaged pickles raise almost anything
            name = Path(self.locate(clip_id)).name
            first = str(error).strip().partition("\n")[0]
            problem = f"{name} is damaged or not a feature file"
            reason = f"{type(error).__name__}: {first}"
            raise self._fault(f"{clip_id}: {problem}: {reason}") from error

    def _fault(self, *faults: str) -> FeatureError:
        return FeatureError(self.source, faults, self.hint)


class Keyed(Protocol):
    """An open file with a key a clip."""

    def keys(self) -> Collection[str]:
        """All keys."""


class KeyedFeatures(StoredFeatures, Generic[K]):
    """Base of the stores of one file, opened once a process, with a key a clip.

    :param source: what the user named.
    :param file: the file, if that is a folder.
    :param open_file: opens it; must pickle.
    :raises FileNotFoundError: no such file.
    """

    kind = "feature file"
    remedy = ""

    def __init__(
        self,
        source: Path | str,
        open_file: Callable[[Path], K],
        file: Path | None = None,
    ) -> None:
        super().__init__(source)
        self.file = self.source if file is None else file
        if not self.file.is_file():
            raise FileNotFoundError(f"no {self.kind} at {self.file}{self.remedy}")
        self._handle = PerProcess(partial(open_file, self.file))

    @property
    def _opened(self) -> K:
        try:
            return self._handle.get()
        except Exception as error:  # also a JSON error of the metadata
            first = str(error).partition("\n")[0]
            problem = f"is damaged, truncated or no {self.kind}: {first}"
            raise self._fault(f"{self.file}: {problem}") from error

    def _holding(self, clip_id: str) -> K:
        """The open file, if it has the clip."""
        if clip_id not in self._opened.keys():  # noqa: SIM118
            raise self._no_key(clip_id)
        return self._opened

    def ids(self) -> Collection[str]:
        """All keys of the file."""
        return self._opened.keys()

    def check_source(self) -> None:
        """Raise :class:`FeatureError` if the file cannot be opened."""
        _ = self._opened

    def locate(self, clip_id: str) -> str:
        """File and key; :class:`FeatureError` if the file has no such key."""
        if not self._has(clip_id):
            raise self._no_key(clip_id)
        return f"{self.file}[{clip_id}]"

    def _has(self, clip_id: str) -> bool:
        return clip_id in self.ids()

    def _no_key(self, clip_id: str) -> FeatureError:
        return self._fault(f"{clip_id}: no key {clip_id!r} in {self.file}")


def check_window(start: int, stop: int | None) -> None:
    """Refuse windows that count from the end or run backwards.

    :raises ValueError: not 0 <= start <= stop.
    """
    if start < 0 or (stop is not None and stop < start):
        raise ValueError(
            f"expected 0 <= start <= stop but got start={start}, stop={stop}"
        )


def gathered(
    read: Callable[[str], T], clip_ids: Iterable[str]
) -> tuple[dict[str, T], list[str]]:
    """What can be read of clips, by clip uid, and the faults of the others."""
    found: dict[str, T] = {}
    faults: list[str] = []
    for clip_id in clip_ids:
        try:
            found[clip_id] = read(clip_id)
        except FeatureError as error:
            faults += error.faults
    return found, faults


def faults_of(
    store: FeatureStore, expected_steps: Mapping[str, float], tolerance: float
) -> list[str]:
    """All faults that a store's preflight finds."""
    try:
        store.preflight(expected_steps, tolerance=tolerance)
    except FeatureError as error:
        return list(error.faults)
    return []


def _copy_and_check(window: Tensor | np.ndarray) -> tuple[Tensor, bool]:
    """Steps as float32, copied block by block, and whether all are finite."""
    features = torch.empty((*window.shape,), dtype=torch.float32)
    block = max(1, _BLOCK_BYTES // max(1, 4 * window.shape[1]))
    total = 0.0
    for i in range(0, len(features), block):
        part = features[i : i + block]
        _copy(part, window[i : i + block])
        total += float(part.sum())
    # One NaN or infinity makes the sum one: a finite sum settles it.
    return features, math.isfinite(total) or bool(features.isfinite().all())


def _copy(target: Tensor, source: Tensor | np.ndarray) -> None:
    if isinstance(source, Tensor):
        target.copy_(source)
    elif source.dtype == np.float16:
        # NumPy's own conversion of half precision is many times slower.
        target.copy_(torch.from_numpy(source.copy()))
    else:
        # What float32 cannot hold becomes infinity, which the check finds.
        with np.errstate(over="ignore"):
            target.numpy()[...] = source


def most_common(numbers: Iterable[int]) -> int | None:
    """The number that occurs most often, of several the smallest."""
    counts = Counter(sorted(numbers))
    return max(counts, key=counts.__getitem__, default=None)


def _common_width(
    shapes: Iterable[tuple[tuple[int, ...], float]], tolerance: float
) -> int | None:
    """Width of most clips as long as expected, else of transposed, else of any."""
    as_expected, transposed, others = [], [], []
    for shape, expected in shapes:
        if len(shape) == 2 and abs(shape[0] - expected) <= tolerance:
            as_expected.append(shape[1])
        elif len(shape) == 2 and abs(shape[1] - expected) <= tolerance:
            transposed.append(shape[0])
        elif len(shape) == 2:
            others.append(shape[1])
    return most_common(as_expected or transposed or others)


_LENGTH = "steps (duration x features a second of the annotation"


def _malformed(header: Header) -> str | None:
    if not header.is_floating:
        return "expected a floating dtype but got integers or bytes"
    if len(header.shape) != 2:
        return f"expected a (T, C) tensor but got shape {header.shape}"
    if 0 in header.shape:
        return f"empty: shape {header.shape}"
    return None


def _shape_problem(
    header: Header, expected: float, width: int | None, tolerance: float
) -> str | None:
    if malformed := _malformed(header):
        return malformed
    steps, channels = shape = header.shape
    if abs(steps - expected) > tolerance and abs(channels - expected) <= tolerance:
        return (
            f"transposed: expected (T, C) = ({expected:.0f}, {width}), got {shape}; "
            "save its transpose"
        )
    if channels != width:
        return f"expected {width} channels as in the other files but got {channels}"
    if abs(steps - expected) > tolerance:
        return (
            f"expected {expected:.1f} {_LENGTH}, "
            f"length_tolerance={tolerance:g}) but got {steps}"
        )
    return None
