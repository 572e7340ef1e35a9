"""Time our suppression of windows beside the algorithm of the public code, compiled.

``python benchmarks/speed/nms.py`` prints a Markdown table, one thread, all sides in
turn in one process, CPU time. The plain side runs Gaussian soft-NMS to its end, label
by label, and sorts what is left, as the compiled extension of the public code does;
here numba compiles it, so it needs ``avalanche-vilco[fast]``. ``--oracles FOLDER``
first compares it with recorded outputs of the public code.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numba import njit
from torch import Tensor

from avalanche_vilco.ops.nms import Backend, NMSRule, batched_nms

BACKENDS: tuple[Backend, ...] = ("torch", "numpy", "numba")


class Case(NamedTuple):
    """What reaches suppression in one clip."""

    name: str
    n: int
    n_labels: int
    keep: int
    sigma: float
    min_score: float


CASES = (
    Case("MQ, at most", 20_588, 22, 200, 0.99, 1e-4),
    Case("MQ", 5_000, 22, 200, 0.99, 1e-4),
    Case("MQ", 2_000, 22, 200, 0.99, 1e-4),
    Case("MQ, all queries", 30_000, 110, 200, 0.99, 1e-4),
    Case("NLQ", 4_520, 1, 5, 0.75, 1e-3),
)


# The plain side --------------------------------------------------------------------


def plain_nms(
    segments: Tensor,
    scores: Tensor,
    labels: Tensor,
    *,
    sigma: float,
    min_score: float,
    max_segments: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Indices and lowered scores of the best windows of all labels."""
    indices, lowered = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.float32)]
    for label in labels.unique():
        (mine,) = torch.where(labels == label)
        windows, current = segments[mine].numpy(), scores[mine].numpy()
        places = mine.numpy().copy()
        n = plain_label(windows, current, places, np.float32(sigma), min_score)
        indices.append(places[:n][:max_segments])
        lowered.append(current[:n][:max_segments])
    found, values = np.concatenate(indices), np.concatenate(lowered)
    order = np.argsort(-values, kind="stable")[:max_segments]
    return found[order], values[order]


@njit(cache=True, error_model="numpy")
def plain_label(
    windows: np.ndarray,
    scores: np.ndarray,
    places: np.ndarray,
    sigma: np.float32,
    min_score: float,
) -> int:
    """Sort the windows of a label in place, those left first; how many these are."""
    n = len(scores)
    tiny = np.float32(1e-6)
    lengths = windows[:, 1] - windows[:, 0] + tiny
    first = 0
    while first < n:
        best = first
        for other in range(first + 1, n):
            if scores[other] > scores[best]:
                best = other
        swap(windows, lengths, scores, places, first, best)
        start, end = windows[first]
        other = first + 1
        while other < n:
            overlap = min(windows[other, 1], end) - max(windows[other, 0], start)
            overlap = max(overlap, np.float32(0))
            tiou = overlap / (lengths[first] + lengths[other] - overlap)
            scores[other] *= math.exp(-tiou * tiou / sigma)
            if scores[other] < min_score:
                n -= 1
                swap(windows, lengths, scores, places, other, n)
            else:
                other += 1
        first += 1
    return n


@njit(cache=True)
def swap(
    windows: np.ndarray,
    lengths: np.ndarray,
    scores: np.ndarray,
    places: np.ndarray,
    a: int,
    b: int,
) -> None:
    for values in (lengths, scores):
        values[a], values[b] = values[b], values[a]
    places[a], places[b] = places[b], places[a]
    for side in range(2):
        windows[a, side], windows[b, side] = windows[b, side], windows[a, side]


# Oracles ---------------------------------------------------------------------------


def check_oracles(folder: Path) -> None:
    """Compare the plain side with recorded outputs of the public code."""
    n = sum(map(check_case, sorted(folder.glob("case_*.json"))))
    print(f"the plain side equals {n} recorded outputs of the public code\n")


def check_case(path: Path) -> int:
    case = json.loads(path.read_text())
    params, expected = case["params"], case["expected"]
    gaussian = params.get("method") == "gaussian" or (
        params.get("use_soft_nms") and params["multiclass"]
    )
    limit = params.get("max_seg_num", len(case["scores"]))
    if not gaussian or "error" in expected or limit < 0:
        return 0
    indices, scores = plain_nms(
        torch.tensor(case["segments"]).reshape(-1, 2),
        torch.tensor(case["scores"]),
        torch.tensor(case["classes"], dtype=torch.long),
        sigma=params["sigma"],
        min_score=params["min_score"],
        max_segments=limit,
    )
    windows = np.array(case["segments"]).reshape(-1, 2)[indices]
    np.testing.assert_array_equal(windows, np.reshape(expected["segments"], (-1, 2)))
    np.testing.assert_allclose(scores, expected["scores"], rtol=1e-5)
    return 1


# Timing ----------------------------------------------------------------------------


def draw(case: Case, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Windows of 1 to 60 s in a clip of 480 s."""
    generator = torch.Generator().manual_seed(seed)
    starts, lengths, scores = torch.rand(3, case.n, generator=generator)
    starts, lengths = starts * 480, 60**lengths
    labels = torch.randint(case.n_labels, (case.n,), generator=generator)
    return torch.stack([starts, starts + lengths], 1), 0.001 + 0.999 * scores, labels


def cpu_seconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def compare(case: Case, repeats: int) -> None:
    """Print one row; all sides take turns."""
    windows = draw(case)
    options = {
        "sigma": case.sigma,
        "min_score": case.min_score,
        "max_segments": case.keep,
    }
    plain = partial(plain_nms, *windows, **options)
    ours = [
        partial(batched_nms, *windows, NMSRule(**options), backend=b) for b in BACKENDS
    ]
    indices, scores = plain()
    for call in ours:
        np.testing.assert_array_equal(call().indices, indices)
        np.testing.assert_allclose(call().scores, scores, rtol=1e-5)
    rounds = [[cpu_seconds(call) for call in (plain, *ours)] for _ in range(repeats)]
    columns = list(zip(*rounds, strict=True))
    cells = [f"{statistics.median(columns[0]) * 1e3:.1f}"]
    for column in columns[1:]:
        pairs = zip(columns[0], column, strict=True)
        ratio = statistics.median(slow / fast for slow, fast in pairs)
        cells.append(f"{statistics.median(column) * 1e3:.2f} ({ratio:,.1f}x)")
    row = (case.name, f"{case.n:,}", str(case.n_labels), str(case.keep), *cells)
    print(f"| {' | '.join(row)} |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--oracles", type=Path, help="folder of recorded outputs")
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.oracles:
        check_oracles(options.oracles)
    names = ", ms | ".join(("plain", *BACKENDS))
    print(f"| clip | candidates | labels | kept | {names}, ms |")
    print("| --- " * 8 + "|")
    for case in CASES:
        compare(case, options.repeats)


if __name__ == "__main__":
    main()
