"""Decode, suppress and update all metrics on a GPU without ever waiting for it.

``python benchmarks/speed/gpu_metrics.py`` draws model outputs and tracks, warms up, and
then goes through all batches under ``torch.cuda.set_sync_debug_mode("error")``: any
call that makes the host wait for the device raises. It prints the time of a batch and
compares the final numbers with those of the CPU. Minutes at most; fewer ``--batches``
take less. ``--device cpu`` runs the same without the check of waits. It has so far been
run on the CPU only: no GPU was at hand.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import NamedTuple

import torch
from torch import Tensor

from avalanche_vilco.core.batch import MomentTargets
from avalanche_vilco.evaluation.functional import Tracks
from avalanche_vilco.evaluation.metrics.detection import MomentDetectionMAP
from avalanche_vilco.evaluation.metrics.recall import MomentRecall
from avalanche_vilco.evaluation.metrics.visual_query import VisualQueryMetrics
from avalanche_vilco.models.decoding import MomentDecoder
from avalanche_vilco.models.output import n_points, padded_length

N_WINDOWS, N_FRAMES, FEATURES_PER_SEC = 17, 30, 2.0


class Batch(NamedTuple):
    """What a model gave, and what it was asked for."""

    output: Tensor
    targets: MomentTargets
    tracks: SimpleNamespace
    asked: SimpleNamespace

    def to(self, device: str) -> Batch:
        """The same on another device."""
        return Batch(
            self.output.to(device),
            self.targets.to(device),
            *(moved(each, device) for each in (self.tracks, self.asked)),
        )


def moved(side: SimpleNamespace, device: str) -> SimpleNamespace:
    fields = vars(side) | {"tracks": Tracks(*(x.to(device) for x in side.tracks))}
    return SimpleNamespace(
        **{k: v.to(device) if isinstance(v, Tensor) else v for k, v in fields.items()}
    )


def draw_batch(seed: int, options: argparse.Namespace) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    n, k, levels = options.clips, options.queries, options.levels
    steps = padded_length(options.steps, levels)
    output = torch.randn(n, k + 2, n_points(steps, levels), generator=draw) * 2 - 4
    output[:, -2:] = torch.rand(n, 2, output.shape[2], generator=draw) * 8
    return Batch(output, draw_targets(n, k, steps, draw), *draw_tracks(n, draw))


def draw_targets(n: int, k: int, steps: int, draw: torch.Generator) -> MomentTargets:
    seconds = steps / FEATURES_PER_SEC
    starts = torch.rand(n, N_WINDOWS, generator=draw, dtype=torch.float64) * seconds
    segments_sec = torch.stack([starts, (starts + 20).clamp(max=seconds)], dim=2)
    return MomentTargets(
        valid=torch.ones(n, steps, dtype=torch.bool),
        segments=(segments_sec * FEATURES_PER_SEC - 0.5).float(),
        segments_sec=segments_sec,
        labels=torch.randint(-1, k, (n, N_WINDOWS), generator=draw),
        asked=torch.ones(n, k, dtype=torch.bool),
        duration_sec=torch.full((n,), seconds, dtype=torch.float64),
        features_per_sec=torch.full((n,), FEATURES_PER_SEC, dtype=torch.float64),
        sample=torch.arange(n),
    )


def draw_tracks(
    n: int, draw: torch.Generator
) -> tuple[SimpleNamespace, SimpleNamespace]:
    """A track asked for and a shifted answer per query; every eighth is padding."""
    owners = torch.arange(n).repeat_interleave(N_FRAMES)
    frames = torch.arange(N_FRAMES).repeat(n)
    corner = torch.rand(n, 2, generator=draw) * 400
    boxes = torch.cat([corner, corner + 20 + torch.rand(n, 2, generator=draw) * 300], 1)
    queries = torch.arange(n)
    queries[7::8] = -1
    answers = SimpleNamespace(
        tracks=Tracks(boxes[owners] + 10, frames + 3, owners),
        scores=torch.rand(n, generator=draw),
        queries=queries,
    )
    asked = SimpleNamespace(tracks=Tracks(boxes[owners], frames, owners), n_queries=n)
    return answers, asked


class Metrics:
    """All metric states, fed by one decoder."""

    def __init__(self, device: str) -> None:
        self._decode = MomentDecoder(max_candidates=5000)
        self._moments = (MomentRecall(), MomentDetectionMAP())
        self._tracks = VisualQueryMetrics()
        for metric in (*self._moments, self._tracks):
            metric.to(device)

    def update(self, batch: Batch) -> None:
        predictions = self._decode(batch.output, batch.targets)
        for metric in self._moments:
            metric.update(predictions, batch.targets)
        self._tracks.update(batch.tracks, batch.asked)

    def values(self) -> dict[str, float]:
        recall, detection = (metric.compute() for metric in self._moments)
        return recall | detection | self._tracks.compute()


@contextmanager
def never_waiting(device: str) -> Iterator[None]:
    """Make every wait for the device an error."""
    on_gpu = torch.device(device).type == "cuda"
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        if on_gpu:
            torch.cuda.set_sync_debug_mode("default")


def wall_seconds(call: Callable[[], object], device: str) -> float:
    start = time.perf_counter()
    call()
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def run(batches: list[Batch], device: str) -> dict[str, float]:
    """Feed all batches, print the time of each, and give the numbers."""
    batches = [batch.to(device) for batch in batches]
    Metrics(device).update(batches[0])
    metrics = Metrics(device)

    def feed() -> None:
        with never_waiting(device):
            for batch in batches:
                metrics.update(batch)

    seconds = wall_seconds(feed, device)
    print(f"{device}: {seconds / len(batches) * 1e3:.1f} ms a batch")
    return metrics.values()


def largest_difference(one: dict[str, float], other: dict[str, float]) -> float:
    """Infinite if a number is known on one side only."""
    differences = [
        math.inf if math.isnan(a) != math.isnan(b) else abs(a - b)
        for a, b in ((one[name], other[name]) for name in one)
    ]
    return max(d for d in differences if not math.isnan(d))


def main() -> None:
    """Print times and compare the numbers of both devices."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--clips", type=int, default=8, help="clips, and tracks, each")
    parser.add_argument("--queries", type=int, default=110)
    parser.add_argument("--steps", type=int, default=1024)
    parser.add_argument("--levels", type=int, default=10)
    options = parser.parse_args()
    batches = [draw_batch(seed, options) for seed in range(options.batches)]
    values = run(batches, options.device)
    if options.device != "cpu":
        difference = largest_difference(values, run(batches, "cpu"))
        print(f"largest difference from the CPU's numbers: {difference:.1e}")
    for name, value in values.items():
        print(f"{name}: {value:.4f}")


if __name__ == "__main__":
    main()
