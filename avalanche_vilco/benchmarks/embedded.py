"""What generated data sets share: random directions, noise, text, and their cache."""

from __future__ import annotations

import hashlib
import re
import tempfile
import uuid
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from avalanche_vilco.core.files import sha256_of

Array: TypeAlias = NDArray[np.float64]

_SUBSTEPS = 8


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


def folder_sha256(folder: Path) -> str:
    """Hexadecimal SHA-256 of the names and contents of a folder's files."""
    files = sorted(folder.iterdir())
    lines = [f"{file.name} {sha256_of(file)}\n" for file in files]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def cached_root(
    root: Path, generate: Callable[[Path], Path], is_intact: Callable[[Path], bool]
) -> Path:
    """A folder of generated data, generated if it is not there yet.

    A damaged or half-written folder is generated anew. Several processes may call this
    at once: the data appear in one move, and whoever comes second uses them.

    :param root: the folder.
    :param generate: writes the data into a folder and returns it.
    :param is_intact: whether a folder holds all that is generated.
    :return: ``root``.
    """
    if is_intact(root):
        return root
    root.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{root.name}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=root.parent) as scratch:
        _move_into_place(generate(Path(scratch) / "fresh"), root, is_intact)
    return root


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
