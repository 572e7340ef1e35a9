"""What generated data sets share: random directions, noise, text, manifest, cache."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, TypeVar, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from avalanche_vilco.core.files import cache_folder, sha256_of
from avalanche_vilco.core.random import seeded_stream
from avalanche_vilco.data.text.narrations import NARRATION_FEATURE_FILE, NARRATION_FILE

T = TypeVar("T")
Array: TypeAlias = NDArray[np.float64]
Record: TypeAlias = dict[str, Any]
Narration: TypeAlias = tuple[Record, NDArray[np.float16]]
"""A line of the file of sentences, and the (L, C) token features of its sentence."""

MANIFEST_FILE = "manifest.json"
SUBSETS = ("train", "val", "test")

_SUBSTEPS = 8


def read_packaged(module: str, name: str, schema: type[T]) -> T:
    """Words and numbers that lie beside a module as YAML.

    :param module: its ``__file__``.
    :param name: of the file beside it.
    :param schema: what the file holds.
    """
    content = Path(module).with_name(name).read_bytes()
    return msgspec.yaml.decode(content, type=schema)


def unit(rows: Array) -> Array:
    """Rows scaled to length one along the last axis."""
    scaled: Array = rows / np.linalg.norm(rows, axis=-1, keepdims=True)
    return scaled


def unit_noise(rng: np.random.Generator, *shape: int) -> Array:
    """Random directions: unit vectors along the last axis."""
    return unit(rng.standard_normal(shape))


def draw_uid(rng: np.random.Generator) -> str:
    """A uid in the form of Ego4D's."""
    return str(uuid.UUID(bytes=rng.bytes(16), version=4))


def slow_noise(steps: int, width: int, scale: float, rng: np.random.Generator) -> Array:
    """Slow (AR(1), coefficient 0.8, stationary) plus white background.

    :param scale: standard deviation of one channel.
    :return: (steps, width).
    """
    slow, white = rng.standard_normal((2, steps, width))
    for i in range(1, steps):
        slow[i] = 0.8 * slow[i - 1] + 0.6 * slow[i]
    background: Array = scale * (0.8 * slow + 0.6 * white)
    return background


def coverage(start: float, end: float, steps: int, steps_per_sec: float) -> Array:
    """How much of each step an event with soft ends covers.

    :param start: seconds; step ``i`` covers the seconds from ``i / steps_per_sec`` on.
    :param end: seconds.
    :return: (steps,), in [0, 1].
    """
    ramp = min(1.0, 0.25 * (end - start))
    seconds = (np.arange(steps * _SUBSTEPS) + 0.5) / (steps_per_sec * _SUBSTEPS)
    rising = np.clip((seconds - start) / ramp + 0.5, 0, 1)
    falling = np.clip((end - seconds) / ramp + 0.5, 0, 1)
    covered: Array = (rising * falling).reshape(steps, _SUBSTEPS).mean(axis=1)
    return covered


def words_of(sentence: str) -> list[str]:
    """Words in lower case, without punctuation."""
    return re.findall(r"[a-z0-9'-]+", sentence.lower())


@lru_cache(maxsize=4096)
def word_vector(word: str, width: int) -> Array:
    """A unit vector that depends on the word (and width) alone."""
    digest = hashlib.sha256(f"{word}/{width}".encode()).digest()
    sequence = np.random.SeedSequence(int.from_bytes(digest, "big"))
    rng = np.random.Generator(np.random.PCG64(sequence))
    return unit_noise(rng, width)


def token_features(
    words: Sequence[str], meaning: Array, rng: np.random.Generator
) -> Array:
    """One token a word: the word, what it looks like, and noise.

    :param words: L words.
    :param meaning: (C,), what all the words together stand for, or (L, C), each one.
    :return: (L, C).
    """
    width = meaning.shape[-1]
    tokens = np.stack([word_vector(word, width) for word in words])
    noise = rng.standard_normal(tokens.shape) * (0.4 / width**0.5)
    tokens += 0.6 * meaning + noise
    return tokens


def write_narrations(folder: Path, narrations: Iterable[Narration]) -> None:
    """Write sentences and their features as a data root has them.

    :param folder: of the data.
    :param narrations: in the order of the file; only clips of train have any.
    """
    lines: list[str] = []
    features: dict[str, Any] = {}
    for record, tokens in narrations:
        lines.append(json.dumps(record) + "\n")
        features[record["query_id"]] = tokens
    (folder / NARRATION_FILE).write_text("".join(lines), encoding="utf-8")
    np.savez(folder / NARRATION_FEATURE_FILE, **features)


class EmbeddedConfig(ABC):
    """What generated data depend on; a subclass is a frozen dataclass of its knobs.

    Subclasses have ``seed``, ``n_train``, ``n_val`` and ``n_test``.
    """

    name: ClassVar[str]
    """Such as ``mini_mq``: it starts the name of the folder."""
    version: ClassVar[str]
    """Changes with what the frozen default contains."""
    seed: int
    n_train: int
    n_val: int
    n_test: int

    @abstractmethod
    def generate(self, folder: Path) -> Path:
        """Write the data into a folder.

        :param folder: made if absent; files of the same names are replaced.
        :return: ``folder``.
        """

    @abstractmethod
    def contents(self, folder: Path) -> dict[str, Any]:
        """What tells whether a folder holds all that was generated.

        :param folder: of the data.
        :return: hashes and sizes, JSON-safe.
        """

    @property
    def fingerprint(self) -> str:
        """Hexadecimal SHA-256 of the version and of every knob."""
        knobs = json.dumps([self.version, self.knobs], sort_keys=True)
        return hashlib.sha256(knobs.encode()).hexdigest()

    @property
    def knobs(self) -> dict[str, Any]:
        """Fields by name."""
        return asdict(cast(Any, self))

    def clip_count(self, subset: str) -> int:
        """Number of clips of a subset.

        :param subset: "train", "val" or "test".
        """
        return {"train": self.n_train, "val": self.n_val, "test": self.n_test}[subset]

    def stream(self, *address: int) -> np.random.Generator:
        """Random numbers of one record."""
        return seeded_stream(self.seed, *address)

    def write_manifest(self, folder: Path, **counts: Any) -> None:
        """Write last what a folder should hold: without it the folder is unfinished.

        :param folder: of the data.
        :param counts: what else to tell, JSON-safe.
        """
        manifest = {
            "name": self.name,
            "version": self.version,
            "fingerprint": self.fingerprint,
            "config": self.knobs,
            "seed": self.seed,
            **counts,
            **self.contents(folder),
        }
        text = json.dumps(manifest, indent=2) + "\n"
        (folder / MANIFEST_FILE).write_text(text, encoding="utf-8")

    def is_intact(self, folder: Path) -> bool:
        """Whether a folder holds, as far as cheaply seen, all that was generated."""
        try:
            manifest = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
            expected = {"fingerprint": self.fingerprint, **self.contents(folder)}
            return all(manifest[key] == value for key, value in expected.items())
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def root(self, cache_dir: Path | None = None) -> Path:
        """Folder of the data, generated if it is not there yet.

        A damaged or half-written folder is generated anew. Several processes may call
        this at once: the data appear in one move, and whoever comes second uses them.

        :param cache_dir: folder that holds it; default
            :func:`~avalanche_vilco.core.files.cache_folder`.
        :return: ``<cache_dir>/<name>_v<version>``; a config that is not the default has
            a folder of its own.
        """
        suffix = "" if self == type(self)() else f"_{self.fingerprint[:12]}"
        folder = f"{self.name}_v{self.version}{suffix}"
        root = (cache_folder() if cache_dir is None else cache_dir) / folder
        if self.is_intact(root):
            return root
        root.parent.mkdir(parents=True, exist_ok=True)
        prefix = f".{root.name}-"
        with tempfile.TemporaryDirectory(prefix=prefix, dir=root.parent) as scratch:
            fresh = self.generate(Path(scratch) / "fresh")
            _move_into_place(fresh, root, self.is_intact)
        return root


def require_at_least_one(config: EmbeddedConfig, *names: str) -> None:
    """Refuse knobs below one.

    :param config: that has the knobs.
    :param names: of the knobs.
    :raises ValueError: names the knob.
    """
    for name in names:
        if getattr(config, name) < 1:
            raise ValueError(f"expected {name} >= 1 but got {getattr(config, name)}")


def folder_sha256(folder: Path) -> str:
    """Hexadecimal SHA-256 of the names and contents of a folder's files."""
    files = sorted(folder.iterdir())
    lines = [f"{file.name} {sha256_of(file)}\n" for file in files]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _move_into_place(
    fresh: Path, root: Path, is_intact: Callable[[Path], bool]
) -> None:
    """Rename ``fresh`` to ``root`` unless another process has finished first."""
    for attempt in range(10):
        if is_intact(root):
            return
        try:
            if root.exists():
                root.rename(fresh.parent / f"damaged-{attempt}")
            fresh.rename(root)
            return
        except OSError as error:
            # Another process moved the damaged folder or put its own in between.
            reason = error
    raise OSError(f"expected to be able to write {root} but got {reason!r}") from reason
