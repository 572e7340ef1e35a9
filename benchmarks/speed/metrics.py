"""Time our metrics beside a plain statement of the official algorithms.

``python benchmarks/speed/metrics.py --oracles FOLDER`` compares the plain side
(``plain.py``, which needs pandas) with recorded outputs of the official code, then
prints two Markdown tables. Ratios: one thread, both sides in turn in one process, CPU
time. Growth: our time and memory from 1e3 to 1e7 predictions (``--largest``).
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import plain
import torch
from torch import Tensor

from avalanche_vilco.evaluation.functional import (
    Tracks,
    detection_ap,
    moment_recall,
    visual_query_scores,
)

# Data ------------------------------------------------------------------------------

Moments = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def draw_moments(n_predictions: int, n_labels: int, seed: int = 0) -> Moments:
    """Clips of 200 predictions, most of them near one of 1 to 17 windows."""
    draw = torch.Generator().manual_seed(seed)
    n_clips, n, m = max(n_predictions // 200, 1), min(n_predictions, 200), 17

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=draw, dtype=torch.float64)

    in_clip = torch.randint(n_labels, (n_clips, 4), generator=draw)
    target_labels = in_clip.gather(1, torch.randint(4, (n_clips, m), generator=draw))
    starts = uniform(n_clips, m) * 400
    targets = torch.stack([starts, starts + 1 + uniform(n_clips, m) * 60], dim=2)
    source = torch.randint(m, (n_clips, n), generator=draw)
    jitter = (uniform(n_clips, n, 2) - 0.5) * 20
    segments = targets.take_along_dim(source.unsqueeze(2), 1) + jitter
    segments[..., 1] = torch.maximum(segments[..., 1], segments[..., 0] + 0.1)
    labels = target_labels.gather(1, source)
    stray = uniform(n_clips, n) < 0.5
    labels[stray] = torch.randint(n_labels, (int(stray.sum()),), generator=draw)
    counts = torch.randint(1, m + 1, (n_clips, 1), generator=draw)
    target_labels[torch.arange(m) >= counts] = -1
    scores = torch.randperm(n_clips * n, generator=draw).view(n_clips, n).double()
    scores = scores.sort(dim=1, descending=True).values / (n_clips * n)
    return segments, scores, labels, targets, target_labels


def as_frames(moments: Moments) -> tuple[pd.DataFrame, pd.DataFrame]:
    segments, scores, labels, targets, target_labels = moments

    def frame(windows: Tensor, names: Tensor, **more: Tensor) -> pd.DataFrame:
        kept = names >= 0
        clip = torch.arange(len(names)).unsqueeze(1).expand_as(names)
        columns = {**more, "start": windows[..., 0], "end": windows[..., 1]}
        frame = pd.DataFrame({k: v[kept].numpy() for k, v in columns.items()})
        # Strings, as in the official files.
        frame.insert(0, "place", [f"clip {n}" for n in clip[kept].tolist()])
        frame.insert(1, "label", [f"label {n}" for n in names[kept].tolist()])
        return frame

    return frame(segments, labels, score=scores), frame(targets, target_labels)


def as_rows(given: pd.DataFrame, asked: pd.DataFrame) -> tuple[plain.Rows, plain.Rows]:
    def rows(frame: pd.DataFrame) -> dict[str, list[tuple]]:
        columns = frame[["start", "end", "label"]]
        return {
            clip: list(columns.iloc[places].itertuples(index=False, name=None))
            for clip, places in frame.groupby("place", sort=False).indices.items()
        }

    return rows(given), rows(asked)


PlainTracks = tuple[list[plain.Track], list[list[plain.Track]]]


def draw_tracks(n_queries: int, seed: int = 0) -> PlainTracks:
    """A track asked for and one prediction per query, 21 boxes on average."""
    draw = np.random.default_rng(seed)
    targets, predictions = [], []
    for _ in range(n_queries):
        first, n = int(draw.integers(500)), int(draw.integers(1, 42))
        corner, size = draw.uniform(0, 500, 2), draw.uniform(20, 400, 2)
        box = np.concatenate([corner, corner + size])
        targets.append(still_track(first, n, box))
        moved = box + draw.normal(0, 15, 4)
        first += int(draw.integers(-3, 4))
        predictions.append([still_track(first, n, moved, draw.random())])
    return targets, predictions


def still_track(first: int, n: int, box: np.ndarray, score: float = 0.0) -> plain.Track:
    return plain.Track([plain.Box(first + i, *box.tolist()) for i in range(n)], score)


def as_tracks(
    targets: list[plain.Track], predictions: list[list[plain.Track]]
) -> tuple[Tracks, Tensor, Tensor, Tracks, int]:
    answers = [(q, track) for q, tracks in enumerate(predictions) for track in tracks]
    return (
        flat_tracks([track for _, track in answers]),
        torch.tensor([track.score for _, track in answers], dtype=torch.float64),
        torch.tensor([query for query, _ in answers]),
        flat_tracks(targets),
        len(targets),
    )


def flat_tracks(tracks: list[plain.Track]) -> Tracks:
    rows = [(owner, *box) for owner, t in enumerate(tracks) for box in t.boxes]
    table = torch.tensor(rows, dtype=torch.float64).view(-1, 6)
    return Tracks(table[:, 2:].contiguous(), table[:, 1].long(), table[:, 0].long())


# Oracles ---------------------------------------------------------------------------


def check_oracles(folder: Path) -> None:
    """Compare the plain side with recorded outputs of the official code."""
    n = sum(map(check_moments, sorted((folder / "mq").glob("case_*.json"))))
    n += sum(map(check_tracks, sorted((folder / "vq2d").glob("*.json"))))
    print(f"The plain side equals {n} recorded outputs of the official code.\n")


def check_moments(path: Path) -> int:
    """Compare mAP and recall of a recorded case, where each has a value.

    :return: number of outputs compared.
    """
    case = json.loads(path.read_text())
    return check_map(case) + check_recall(case)


def check_map(case: dict) -> int:
    expected = case["expected"]["official_detection"]
    if case["platform_dependent"] or expected.get("error"):
        return 0
    given = [
        (clip, item["label"], item["score"], *item["segment"])
        for clip, items in case["pred"]["results"].items()
        for item in items
    ]
    asked = [
        (clip, item["label"], item["start_time"], item["end_time"])
        for clip, record in case["gt"].items()
        if record["subset"] in case["subset"]
        for item in record["annotations"]
    ]
    got = plain.detection_ap(
        pd.DataFrame(given, columns=["place", "label", "score", "start", "end"]),
        pd.DataFrame(asked, columns=["place", "label", "start", "end"]),
    )
    np.testing.assert_allclose(got.mean(axis=0), expected["mAP"], atol=1e-9, rtol=0)
    return 1


def check_recall(case: dict) -> int:
    expected = case["expected"]["official_retrieval"]
    if expected.get("error"):
        return 0
    given = {
        clip: [(*item["segment"], item["label"]) for item in items]
        for clip, items in case["pred"]["results"].items()
    }
    asked = {
        record["clip_id"]: [
            (item["start_time"], item["end_time"], item["label"])
            for item in record["annotations"]
        ]
        for record in case["gt"].values()
        if record["subset"] in case["subset"]
    }
    if not any(asked.values()):
        return 0
    recall = np.array(expected["recall"], dtype=float)
    np.testing.assert_allclose(plain.moment_recall(given, asked), recall, atol=1e-9)
    return 1


def check_tracks(path: Path) -> int:
    """Compare the metrics of a recorded case of tracks, where it has values.

    :return: number of outputs compared.
    """
    case = json.loads(path.read_text())
    if "expected" not in case or path.stem == "random_100_ties":
        return 0
    got = plain.query_scores(
        [asked_track(query["response_track"]) for query in case["queries"]],
        [[answer(p) for p in query["predictions"]] for query in case["queries"]],
    )
    keys = (
        "temporal_ap@[.25,.5,.75,.95]",
        "spatiotemporal_ap@[.25,.5,.75,.95]",
        "recovery@[.5,.75,.95]",
        "success@[.05,.1,.2]",
    )
    for name, scale, values in zip(keys, (1, 1, 100, 100), got, strict=True):
        expected = np.array(case["expected_arrays"][name]) / scale
        np.testing.assert_allclose(values, expected, atol=1e-9, rtol=0)
    return 1


def asked_track(boxes: list[dict]) -> plain.Track:
    corners = [
        (b["frame_number"], b["x"], b["y"], b["width"], b["height"]) for b in boxes
    ]
    return plain.Track([plain.Box(f, x, y, x + w, y + h) for f, x, y, w, h in corners])


def answer(prediction: dict) -> plain.Track:
    names = ("fno", "x1", "y1", "x2", "y2")
    boxes = [plain.Box(*(box[name] for name in names)) for box in prediction["bboxes"]]
    return plain.Track(boxes, prediction["score"])


# Ratios ----------------------------------------------------------------------------

N_OURS = 5  # runs of ours for each of the plain side


def cpu_seconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def median_seconds(call: Callable[[], object]) -> float:
    return statistics.median(cpu_seconds(call) for _ in range(N_OURS))


def print_head(*names: str) -> None:
    print(f"| {' | '.join(names)} |\n{'| --- ' * len(names)}|")


def compare(
    name: str,
    sizes: tuple[int, int],
    slow: Callable[[], object],
    fast: Callable[[], object],
    repeats: int,
) -> None:
    """Print a row; both sides take turns, times are per item.

    :param name: what is timed.
    :param sizes: items that the plain side and ours are given.
    :param slow: the plain side.
    :param fast: ours.
    :param repeats: turns.
    """
    fast()
    turns = [
        (cpu_seconds(slow) / sizes[0], median_seconds(fast) / sizes[1])
        for _ in range(repeats)
    ]
    plainly, ours = (statistics.median(column) for column in zip(*turns, strict=True))
    ratio = statistics.median(a / b for a, b in turns)
    of = f"{sizes[0]:,}" if sizes[0] == sizes[1] else f"{sizes[0]:,} / {sizes[1]:,}"
    row = (name, of, f"{plainly * 1e6:,.2f}", f"{ours * 1e9:,.0f}", f"{ratio:,.1f}x")
    print(f"| {' | '.join(row)} |", flush=True)


def compare_map(n: int, n_labels: int, repeats: int, n_plain: int = 10_000) -> None:
    """Compare mAP on ``n`` predictions, and on a slice if the plain side needs one."""
    moments = draw_moments(n, n_labels)
    part: Moments = tuple(each[: max(n_plain // 200, 1)] for each in moments)
    frames = as_frames(part)
    by_label = detection_ap(*part, reference="ego4d").mean_ap.numpy()
    by_hand = plain.detection_ap(*frames).mean(axis=0)
    np.testing.assert_allclose(by_hand, by_label, atol=1e-9)
    for ours in (part, moments) if part[1].numel() < n else (part,):
        compare(
            f"detection mAP, {n_labels} categories",
            (part[1].numel(), ours[1].numel()),
            lambda: plain.detection_ap(*frames),
            lambda ours=ours: detection_ap(*ours, reference="ego4d"),
            repeats,
        )


def compare_recall(n: int, n_labels: int, repeats: int) -> None:
    moments = draw_moments(n, n_labels)
    rows = as_rows(*as_frames(moments))

    def ours() -> Tensor:
        return moment_recall(
            *moments, k=plain.TOP_K, tiou=plain.RECALL_TIOU, reference="ego4d"
        )

    np.testing.assert_allclose(plain.moment_recall(*rows), ours().T.numpy(), atol=1e-9)
    name = f"recall, {n_labels} categories, 15 cells"
    compare(name, (n, n), lambda: plain.moment_recall(*rows), ours, repeats)


def compare_tracks(n: int, repeats: int) -> None:
    by_hand = draw_tracks(n)
    tracks = as_tracks(*by_hand)

    def ours() -> plain.QueryScores:
        got = visual_query_scores(*tracks, reference="ego4d")["all"]
        return plain.QueryScores(*(list(values) for values in got[1:]))

    for mine, theirs in zip(ours(), plain.query_scores(*by_hand), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-9)
    boxes = len(tracks[0].frames) + len(tracks[3].frames)
    name = f"visual queries ({boxes:,} boxes)"
    compare(name, (n, n), lambda: plain.query_scores(*by_hand), ours, repeats)


# Growth ----------------------------------------------------------------------------


class Peak:
    """Highest resident memory while it runs, above that at the start, in bytes.

    Linux with glibc only: what the allocator kept of earlier calls is given back first.
    """

    def __enter__(self) -> Peak:
        ctypes.CDLL(None).malloc_trim(0)
        self._first = self._highest = resident_bytes()
        self._stopped = threading.Event()
        self._watch = threading.Thread(target=self._look)
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._watch.join()

    def _look(self) -> None:
        while not self._stopped.wait(0.001):
            self._highest = max(self._highest, resident_bytes())

    @property
    def value(self) -> int:
        return self._highest - self._first


def resident_bytes() -> int:
    n_pages = Path("/proc/self/statm").read_text().split()[1]
    return int(n_pages) * 4096


def time_growth(n: int, n_labels: int, repeats: int) -> None:
    """Print a row of our time and memory on ``n`` predictions."""
    moments = draw_moments(n, n_labels)
    cells = [f"{n:,}"]
    for ours in (
        lambda: detection_ap(*moments),
        lambda: moment_recall(*moments, k=plain.TOP_K, tiou=plain.RECALL_TIOU),
    ):
        with Peak() as peak:
            ours()
        seconds = statistics.median(cpu_seconds(ours) for _ in range(repeats))
        cells += [f"{seconds / n * 1e9:,.0f}", f"{peak.value / 2**20:,.0f}"]
    inputs = sum(each.nbytes for each in moments) / 2**20
    print(f"| {' | '.join([*cells, f'{inputs:,.0f}'])} |", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--oracles", type=Path, help="folder of recorded outputs")
    parser.add_argument("--largest", type=float, default=1e7, help="end of growth")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.oracles:
        check_oracles(options.oracles)
    print_head("metric", "plain / ours on", "plain, us each", "ours, ns each", "ratio")
    compare_map(1_000, 22, options.repeats)
    compare_map(10_000, 22, options.repeats)
    compare_map(400_000, 110, options.repeats)
    for n in (10_000, 100_000, 400_000):
        compare_recall(n, 110, options.repeats)
    for n in (500, 4_500):
        compare_tracks(n, options.repeats)
    print()
    print_head(
        *("predictions", "mAP, ns each", "MiB", "recall, ns each", "MiB", "inputs, MiB")
    )
    for power in range(3, int(math.log10(options.largest)) + 1):
        time_growth(10**power, 110, options.repeats)


if __name__ == "__main__":
    main()
