"""Time our metrics beside a plain statement of the official algorithms.

``python benchmarks/speed/metrics.py`` prints a Markdown table of ratios, one thread,
both sides in turn in one process, CPU time. The plain side walks data frames row by
row, as the official evaluators do, so it needs pandas; ``--oracles FOLDER`` first
compares it with recorded outputs of the official code. ``--large`` lets ours grow to
1e7 predictions.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from pandas.api.typing import DataFrameGroupBy
from torch import Tensor

from avalanche_vilco.evaluation.functional import (
    Tracks,
    detection_ap,
    moment_recall,
    visual_query_scores,
)
from avalanche_vilco.evaluation.functional.visual_query import AP_IOU
from avalanche_vilco.evaluation.submissions import tracks_of

TIOU = (0.1, 0.2, 0.3, 0.4, 0.5)
TOP_K = (1, 2, 3, 4, 5)
RECALL_TIOU = (0.3, 0.5, 0.7)


# The plain side: detection ---------------------------------------------------------


def plain_ap(predictions: pd.DataFrame, targets: pd.DataFrame) -> np.ndarray:
    """AP by label in order of appearance and threshold, a frame per label."""
    given = dict(list(predictions.groupby("label")))
    rows = []
    for label in targets["label"].unique():
        asked = targets[targets["label"] == label].reset_index(drop=True)
        rows.append(
            plain_label_ap(given[label], asked) if label in given else [0.0] * len(TIOU)
        )
    return np.array(rows)


def plain_label_ap(predictions: pd.DataFrame, targets: pd.DataFrame) -> list[float]:
    order = predictions["score"].to_numpy().argsort()[::-1]
    ranked = predictions.iloc[order].reset_index(drop=True)
    of_clip = targets.groupby("clip")
    taken = np.zeros((len(TIOU), len(targets)), dtype=bool)
    found = np.zeros((len(TIOU), len(ranked)))
    for place, row in ranked.iterrows():
        try:
            near = of_clip.get_group(row["clip"])
        except KeyError:
            continue
        near = near.reset_index()
        overlap = plain_tiou(row[["start", "end"]].to_numpy(), near)
        for level, threshold in enumerate(TIOU):
            for best in overlap.argsort()[::-1]:
                if overlap[best] < threshold:
                    break
                if taken[level, near.loc[best, "index"]]:
                    continue
                taken[level, near.loc[best, "index"]] = True
                found[level, place] = 1
                break
    return [interpolated(row, len(targets)) for row in found]


def plain_tiou(window: np.ndarray, targets: pd.DataFrame) -> np.ndarray:
    start, end = (targets[name].to_numpy() for name in ("start", "end"))
    overlap = np.clip(
        np.minimum(window[1], end) - np.maximum(window[0], start), 0, None
    )
    overlap = overlap.astype(float)
    with np.errstate(invalid="ignore"):
        return overlap / ((end - start) + (window[1] - window[0]) - overlap).astype(
            float
        )


def interpolated(found: np.ndarray, n_targets: int) -> float:
    """Area under the highest precision at or beyond each recall."""
    total = np.cumsum(found)
    precision = np.concatenate([[0], total / np.arange(1, len(found) + 1), [0]])
    recall = np.concatenate([[0], total / n_targets, [1]])
    for place in range(len(precision) - 2, -1, -1):
        precision[place] = max(precision[place], precision[place + 1])
    steps = np.flatnonzero(recall[1:] != recall[:-1]) + 1
    return float(((recall[steps] - recall[steps - 1]) * precision[steps]).sum())


# The plain side: recall ------------------------------------------------------------


def plain_recall(
    predictions: Mapping[str, Sequence[tuple]], targets: Mapping[str, Sequence[tuple]]
) -> np.ndarray:
    """Share of windows found, ``(len(RECALL_TIOU), len(TOP_K))``."""
    hits: list[np.ndarray] = []
    for clip, windows in targets.items():
        for label in dict.fromkeys(window[2] for window in windows):
            asked = np.array([w[:2] for w in windows if w[2] == label])
            given = [w[:2] for w in predictions[clip] if w[3] == label]
            overlap = plain_pairs(np.array(given).reshape(-1, 2), asked)
            cells = np.zeros((len(asked), len(RECALL_TIOU), len(TOP_K)), dtype=bool)
            for row, threshold in enumerate(RECALL_TIOU):
                for column, k in enumerate(TOP_K):
                    best = overlap[: k * len(asked)] > threshold
                    cells[:, row, column] = best.any(axis=0)
            hits.append(cells)
    return np.concatenate(hits).mean(axis=0)


def plain_pairs(given: np.ndarray, asked: np.ndarray) -> np.ndarray:
    start = np.maximum(given[:, None, 0], asked[None, :, 0])
    end = np.minimum(given[:, None, 1], asked[None, :, 1])
    first = np.minimum(given[:, None, 0], asked[None, :, 0])
    last = np.maximum(given[:, None, 1], asked[None, :, 1])
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.clip(end - start, 0, None) / (last - first)


# The plain side: tracks ------------------------------------------------------------

PlainTrack = Mapping[int, Sequence[float]]  # frame -> x1, y1, x2, y2


def plain_tracks(
    targets: Sequence[PlainTrack], predictions: Sequence[tuple[int, float, PlainTrack]]
) -> list[float]:
    """tAP and stAP at ``AP_IOU``, recovery and success, each in its own pass."""
    frame = pd.DataFrame(predictions, columns=["query", "score", "track"])
    asked = pd.DataFrame({"query": range(len(targets)), "track": targets})
    of_query = asked.groupby("query")
    values = []
    for measure in (frame_iou, tube_iou):
        values += plain_track_ap(frame, of_query, len(targets), measure)
    best = frame.loc[frame.groupby("query")["score"].idxmax()]
    recovered, success = [], []
    for _, row in best.iterrows():
        track = target_of(row, of_query)
        recovered += [
            number in row["track"] and box_iou(row["track"][number], box) >= 0.5
            for number, box in track.items()
        ]
    for _, row in best.iterrows():
        success.append(tube_iou(row["track"], target_of(row, of_query)) >= 0.05)
    return [*values, float(np.mean(recovered)), float(np.mean(success))]


def target_of(row: pd.Series, of_query: DataFrameGroupBy) -> PlainTrack:
    return of_query.get_group(row["query"]).reset_index().loc[0, "track"]


def plain_track_ap(
    frame: pd.DataFrame,
    of_query: DataFrameGroupBy,
    n_queries: int,
    measure: Callable[[PlainTrack, PlainTrack], float],
) -> list[float]:
    order = frame["score"].to_numpy().argsort()[::-1]
    ranked = frame.iloc[order].reset_index(drop=True)
    taken = np.zeros((len(AP_IOU), n_queries), dtype=bool)
    found = np.zeros((len(AP_IOU), len(ranked)))
    for place, row in ranked.iterrows():
        overlap = measure(row["track"], target_of(row, of_query))
        for level, threshold in enumerate(AP_IOU):
            if overlap >= threshold and not taken[level, row["query"]]:
                taken[level, row["query"]] = True
                found[level, place] = 1
    return [interpolated(row, n_queries) for row in found]


def frame_iou(given: PlainTrack, asked: PlainTrack) -> float:
    if not given:
        return 0.0
    first, last = max(min(given), min(asked)), min(max(given), max(asked))
    shared = max(last - first + 1, 0)
    return shared / (len(given) + len(asked) - shared)


def tube_iou(given: PlainTrack, asked: PlainTrack) -> float:
    shared = sum(
        box_overlap(box, asked[frame]) for frame, box in given.items() if frame in asked
    )
    volume = sum(map(box_size, given.values())) + sum(map(box_size, asked.values()))
    return shared / (volume - shared)


def box_iou(a: Sequence[float], b: Sequence[float]) -> float:
    shared = box_overlap(a, b)
    return shared / (box_size(a) + box_size(b) - shared)


def box_overlap(a: Sequence[float], b: Sequence[float]) -> float:
    width = np.clip(min(a[2], b[2]) - max(a[0], b[0]), 0, np.inf)
    height = np.clip(min(a[3], b[3]) - max(a[1], b[1]), 0, np.inf)
    return float(width * height)


def box_size(box: Sequence[float]) -> float:
    return (box[2] - box[0]) * (box[3] - box[1])


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
        columns = {"clip": clip, "label": names, **more}
        columns |= {"start": windows[..., 0], "end": windows[..., 1]}
        return pd.DataFrame({k: v[kept].numpy() for k, v in columns.items()})

    return frame(segments, labels, score=scores), frame(targets, target_labels)


def as_rows(moments: Moments) -> tuple[dict[str, list], dict[str, list]]:
    given, asked = as_frames(moments)
    rows = given[["start", "end", "score", "label"]], asked[["start", "end", "label"]]
    clips = [str(clip) for clip in range(len(moments[0]))]
    sides = []
    for frame, source in zip(rows, (given, asked), strict=True):
        side: dict[str, list] = {clip: [] for clip in clips}
        for clip, *row in zip(source["clip"], *frame.to_numpy().T, strict=True):
            side[str(clip)].append(tuple(row))
        sides.append(side)
    return sides[0], {clip: rows for clip, rows in sides[1].items() if rows}


def draw_tracks(n_queries: int, seed: int = 0) -> tuple[list, list]:
    """A track asked for and one prediction per query, 21 boxes on average."""
    draw = np.random.default_rng(seed)
    targets, predictions = [], []
    for query in range(n_queries):
        first, n = int(draw.integers(500)), int(draw.integers(1, 42))
        corner, size = draw.uniform(0, 500, 2), draw.uniform(20, 400, 2)
        box = np.concatenate([corner, corner + size])
        targets.append({first + i: box.tolist() for i in range(n)})
        first += int(draw.integers(-3, 4))
        moved = (box + draw.normal(0, 15, 4)).tolist()
        predictions.append((query, draw.random(), {first + i: moved for i in range(n)}))
    return targets, predictions


def as_tracks(targets: list, predictions: list) -> tuple:
    def flat(tracks: list) -> Tracks:
        owners = [owner for owner, track in enumerate(tracks) for _ in track]
        return Tracks(
            torch.tensor([b for t in tracks for b in t.values()], dtype=torch.float64),
            torch.tensor([f for t in tracks for f in t]),
            torch.tensor(owners),
        )

    queries, scores, tracks = zip(*predictions, strict=True)
    return (
        flat(list(tracks)),
        torch.tensor(scores, dtype=torch.float64),
        torch.tensor(queries),
        flat(targets),
        len(targets),
    )


# Oracles ---------------------------------------------------------------------------


def check_oracles(folder: Path) -> None:
    """Compare the plain side with recorded outputs of the official code."""
    n = sum(map(check_moments, sorted((folder / "mq").glob("case_*.json"))))
    n += sum(map(check_track, sorted((folder / "vq2d").glob("*.json"))))
    print(f"the plain side equals {n} recorded outputs of the official code\n")


def check_moments(path: Path) -> int:
    case = json.loads(path.read_text())
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
    got = plain_ap(
        pd.DataFrame(given, columns=["clip", "label", "score", "start", "end"]),
        pd.DataFrame(asked, columns=["clip", "label", "start", "end"]),
    )
    np.testing.assert_allclose(got.mean(axis=0), expected["mAP"], atol=1e-9, rtol=0)
    return 1


def check_track(path: Path) -> int:
    case = json.loads(path.read_text())
    if "expected" not in case or path.stem == "random_100_ties":
        return 0
    targets = [
        {
            b["frame_number"]: (
                b["x"],
                b["y"],
                b["x"] + b["width"],
                b["y"] + b["height"],
            )
            for b in query["response_track"]
        }
        for query in case["queries"]
    ]
    predictions = [
        (
            query,
            answer["score"],
            {b["fno"]: (b["x1"], b["y1"], b["x2"], b["y2"]) for b in answer["bboxes"]},
        )
        for query, asked in enumerate(case["queries"])
        for answer in asked["predictions"]
    ]
    got = plain_tracks(targets, predictions)
    arrays = case["expected_arrays"]
    expected = [
        *arrays["temporal_ap@[.25,.5,.75,.95]"],
        *arrays["spatiotemporal_ap@[.25,.5,.75,.95]"],
    ]
    np.testing.assert_allclose(got[:8], expected, atol=1e-9, rtol=0)
    ours = visual_query_scores(
        *tracks_of(
            [query["response_track"] for query in case["queries"]],
            [query["predictions"] for query in case["queries"]],
        ),
        reference="ego4d",
    )["all"]
    assert math.isclose(ours.temporal_ap[0], got[0], abs_tol=1e-9)
    return 1


# Timing ----------------------------------------------------------------------------


def cpu_seconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def compare(
    name: str,
    n: int,
    plain: Callable[[], object] | None,
    ours: Callable[[], object],
    repeats: int,
) -> None:
    """Print one row; both sides take turns."""
    ours()
    pairs = [
        (cpu_seconds(plain) if plain else math.nan, cpu_seconds(ours))
        for _ in range(repeats)
    ]
    slow, fast = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = f"{statistics.median(a / b for a, b in pairs):,.0f}x" if plain else "-"
    cost = f"{slow / n * 1e6:,.1f}" if plain else "-"
    print(f"| {name} | {n:,} | {cost} | {fast / n * 1e9:,.0f} | {ratio} |", flush=True)


def time_moments(n: int, n_labels: int, plain: bool, repeats: int) -> None:
    moments = draw_moments(n, n_labels)
    if plain:
        frames = as_frames(moments)
        by_label = detection_ap(*moments, reference="ego4d").mean_ap.numpy()
        np.testing.assert_allclose(plain_ap(*frames).mean(axis=0), by_label, atol=1e-9)
    compare(
        f"detection mAP, {n_labels} categories",
        n,
        (lambda: plain_ap(*frames)) if plain else None,
        lambda: detection_ap(*moments, reference="ego4d"),
        repeats,
    )


def time_recall(n: int, n_labels: int, repeats: int) -> None:
    moments = draw_moments(n, n_labels)
    rows = as_rows(moments)

    def ours() -> Tensor:
        return moment_recall(*moments, k=TOP_K, tiou=RECALL_TIOU, reference="ego4d")

    np.testing.assert_allclose(plain_recall(*rows), ours().T.numpy(), atol=1e-9)
    compare(
        f"recall, {n_labels} categories", n, lambda: plain_recall(*rows), ours, repeats
    )


def time_tracks(n: int, repeats: int) -> None:
    targets, predictions = draw_tracks(n)
    tracks = as_tracks(targets, predictions)

    def ours() -> list[float]:
        got = visual_query_scores(*tracks, reference="ego4d")["all"]
        return [*got.temporal_ap, *got.tube_ap, got.recovery[0], got.success[0]]

    np.testing.assert_allclose(plain_tracks(targets, predictions), ours(), atol=1e-9)
    compare(
        "visual queries", n, lambda: plain_tracks(targets, predictions), ours, repeats
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--oracles", type=Path, help="folder of recorded outputs")
    parser.add_argument("--large", action="store_true", help="ours up to 1e7")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.oracles:
        check_oracles(options.oracles)
    print("| metric | predictions | plain, us each | ours, ns each | ratio |")
    print("| --- | --- | --- | --- | --- |")
    for n, n_labels in ((1_000, 22), (10_000, 22), (10_000, 110)):
        time_moments(n, n_labels, True, options.repeats)
    sizes = (100_000, 400_000, *((1_000_000, 10_000_000) if options.large else ()))
    for n in sizes:
        time_moments(n, 110, False, options.repeats)
    for n in (10_000, 100_000):
        time_recall(n, 110, options.repeats)
    for n in (500, 4_500):
        time_tracks(n, options.repeats)


if __name__ == "__main__":
    main()
