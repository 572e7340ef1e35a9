"""A plain statement of the official metrics: the slow side of ``metrics.py``.

It goes the way of the official evaluators: a data frame per label, predictions walked
row by row, the ground truth of each looked up in a group and matched threshold by
threshold; four passes over the tracks of visual queries, boxes compared one by one.
Only what these compute and never use is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

TIOU = (0.1, 0.2, 0.3, 0.4, 0.5)
TOP_K = (1, 2, 3, 4, 5)
RECALL_TIOU = (0.3, 0.5, 0.7)
QUERY_TOP_K = (1, 3, 5)
QUERY_TIOU = (0.3, 0.5)
AP_IOU = (0.25, 0.5, 0.75, 0.95)
RECOVERY_IOU = (0.5, 0.75, 0.95)
SUCCESS_IOU = (0.05, 0.1, 0.2)

# Average precision ------------------------------------------------------------------

Overlaps = Callable[[pd.Series, pd.DataFrame], np.ndarray]


def average_precision(
    predictions: pd.DataFrame,
    targets: pd.DataFrame,
    overlaps: Overlaps,
    levels: Sequence[float],
) -> list[float]:
    """AP at each threshold.

    :param predictions: rows with a ``place`` (clip or query) and a ``score``.
    :param targets: rows with a ``place``, numbered from 0.
    :param overlaps: gives the overlap of a prediction with all targets of its place.
    :param levels: thresholds.
    """
    order = predictions["score"].to_numpy().argsort()[::-1]
    ranked = predictions.iloc[order].reset_index(drop=True)
    of_place = targets.groupby("place")
    taken = np.zeros((len(levels), len(targets)), dtype=bool)
    found = np.zeros((len(levels), len(ranked)))
    for rank, prediction in ranked.iterrows():
        try:
            near = of_place.get_group(prediction["place"])
        except KeyError:
            continue
        near = near.reset_index()
        overlap = overlaps(prediction, near)
        preference = overlap.argsort()[::-1]
        for level, threshold in enumerate(levels):
            for best in preference:
                if overlap[best] < threshold:
                    break
                target = near.loc[best]["index"]
                if taken[level, target]:
                    continue
                taken[level, target] = True
                found[level, rank] = 1
                break
    return [interpolated(row, len(targets)) for row in found]


def interpolated(found: np.ndarray, n_targets: int) -> float:
    """Area under the highest precision at or beyond each recall."""
    total = np.cumsum(found)
    precision = np.concatenate([[0], total / np.arange(1, len(found) + 1), [0]])
    recall = np.concatenate([[0], total / n_targets, [1]])
    for place in range(len(precision) - 2, -1, -1):
        precision[place] = max(precision[place], precision[place + 1])
    steps = np.flatnonzero(recall[1:] != recall[:-1]) + 1
    return float(((recall[steps] - recall[steps - 1]) * precision[steps]).sum())


# Windows ----------------------------------------------------------------------------


def detection_ap(predictions: pd.DataFrame, targets: pd.DataFrame) -> np.ndarray:
    """AP by label of the ground truth, in order of appearance, and threshold.

    :param predictions: rows of ``place``, ``label``, ``score``, ``start``, ``end``.
    :param targets: rows of ``place``, ``label``, ``start``, ``end``.
    """
    given = dict(list(predictions.groupby("label")))
    rows = []
    for label in targets["label"].unique():
        asked = targets[targets["label"] == label].reset_index(drop=True)
        rows.append(
            average_precision(given[label], asked, window_overlaps, TIOU)
            if label in given
            else [0.0] * len(TIOU)
        )
    return np.array(rows)


def window_overlaps(prediction: pd.Series, targets: pd.DataFrame) -> np.ndarray:
    start, end = prediction[["start", "end"]].to_numpy()
    windows = targets[["start", "end"]].to_numpy()
    shared = np.minimum(end, windows[:, 1]) - np.maximum(start, windows[:, 0])
    shared = shared.clip(0).astype(float)
    union = (windows[:, 1] - windows[:, 0]) + (end - start) - shared
    with np.errstate(invalid="ignore"):
        return shared / union.astype(float)


Rows = Mapping[str, Sequence[tuple]]  # clip -> (start, end, ..., label)


def moment_recall(predictions: Rows, targets: Rows) -> np.ndarray:
    """Share of windows found, ``(len(RECALL_TIOU), len(TOP_K))``."""
    hits: list[np.ndarray] = []
    for clip, windows in targets.items():
        for label in dict.fromkeys(window[-1] for window in windows):
            asked = np.array([w[:2] for w in windows if w[-1] == label])
            given = [w[:2] for w in predictions[clip] if w[-1] == label]
            overlap = hull_overlaps(np.array(given).reshape(-1, 2), asked)
            cells = np.zeros((len(asked), len(RECALL_TIOU), len(TOP_K)), dtype=bool)
            for row, threshold in enumerate(RECALL_TIOU):
                for column, k in enumerate(TOP_K):
                    best = overlap[: k * len(asked)] > threshold
                    cells[:, row, column] = best.any(axis=0)
            hits.append(cells)
    return np.concatenate(hits).mean(axis=0)


def hull_overlaps(given: np.ndarray, asked: np.ndarray) -> np.ndarray:
    start = np.maximum(given[:, None, 0], asked[None, :, 0])
    end = np.minimum(given[:, None, 1], asked[None, :, 1])
    first = np.minimum(given[:, None, 0], asked[None, :, 0])
    last = np.maximum(given[:, None, 1], asked[None, :, 1])
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.clip(end - start, 0, None) / (last - first)


Window = Sequence[float]


def query_recall(
    predictions: Sequence[Sequence[Window]], targets: Sequence[Window]
) -> tuple[np.ndarray, float]:
    """Recall, ``(len(QUERY_TIOU), len(QUERY_TOP_K))``, and mean tIoU of the first.

    :param predictions: windows that answer each query, best first.
    :param targets: the window that each query asks for.
    """
    hits = np.zeros((len(targets), len(QUERY_TIOU), len(QUERY_TOP_K)), dtype=bool)
    firsts = []
    for cells, windows, target in zip(hits, predictions, targets, strict=True):
        given = np.array([window[:2] for window in windows])
        overlap = hull_overlaps(given, np.array([target]))
        firsts.append(overlap[0, 0])
        for row, threshold in enumerate(QUERY_TIOU):
            for column, k in enumerate(QUERY_TOP_K):
                cells[row, column] = (overlap > threshold)[:k].any()
    return hits.mean(axis=0), float(np.mean(firsts))


# Tracks -----------------------------------------------------------------------------


class Box(NamedTuple):
    """A box on a frame."""

    frame: int
    x1: float
    y1: float
    x2: float
    y2: float

    def area(self) -> float:
        return (self.x2 - self.x1) * (self.y2 - self.y1)


@dataclass
class Track:
    """Boxes in the order of their frames, with a score where it is a prediction."""

    boxes: list[Box]
    score: float = 0.0

    def extent(self) -> tuple[int, int]:
        """First and last frame; nothing lies before frame 0."""
        return (self.boxes[0].frame, self.boxes[-1].frame) if self.boxes else (0, -1)

    def volume(self) -> float:
        return sum(box.area() for box in self.boxes)


class QueryScores(NamedTuple):
    """Scores at each threshold, shares in [0, 1]."""

    temporal_ap: list[float]
    tube_ap: list[float]
    recovery: list[float]
    success: list[float]


def query_scores(
    targets: Sequence[Track], predictions: Sequence[Sequence[Track]]
) -> QueryScores:
    """All metrics of visual queries.

    :param targets: the track that each query asks for.
    :param predictions: the tracks that answer each query.
    """
    answers = [(q, track) for q, tracks in enumerate(predictions) for track in tracks]
    place, scores = [q for q, _ in answers], [track.score for _, track in answers]
    ends = ["start", "end"]
    given = pd.DataFrame([track.extent() for _, track in answers], columns=ends)
    asked = pd.DataFrame([track.extent() for track in targets], columns=ends)
    given.insert(0, "place", place)
    given["score"] = scores
    asked.insert(0, "place", range(len(targets)))
    temporal = average_precision(given, asked, frame_overlaps, AP_IOU)

    given = pd.DataFrame(
        {"place": place, "track": [track for _, track in answers], "score": scores}
    )
    asked = pd.DataFrame({"place": range(len(targets)), "track": list(targets)})
    tube = average_precision(given, asked, tube_overlaps, AP_IOU)
    return QueryScores(temporal, tube, recovery(given, asked), success(given, asked))


def frame_overlaps(prediction: pd.Series, targets: pd.DataFrame) -> np.ndarray:
    start, end = prediction[["start", "end"]].to_numpy()
    spans = targets[["start", "end"]].to_numpy()
    shared = np.minimum(end, spans[:, 1]) - np.maximum(start, spans[:, 0]) + 1
    shared = shared.clip(0).astype(float)
    union = (spans[:, 1] - spans[:, 0] + 1) + (end - start + 1) - shared
    return shared / union


def tube_overlaps(prediction: pd.Series, targets: pd.DataFrame) -> np.ndarray:
    tracks = targets["track"].to_numpy()
    return np.array([tube_iou(prediction["track"], track) for track in tracks])


def recovery(predictions: pd.DataFrame, targets: pd.DataFrame) -> list[float]:
    """Share of frames whose box the best-scored track of the query matches."""
    ranked, of_query = by_score(predictions), targets.groupby("place")
    n_found = np.zeros((len(RECOVERY_IOU), len(ranked)))
    n_frames = np.zeros(len(ranked))
    for rank, prediction in ranked.iterrows():
        near = of_query.get_group(prediction["place"]).reset_index()
        track = near["track"].to_numpy()[0]
        overlap = np.array(list(matches(prediction["track"], track).values()))
        n_frames[rank] = len(track.boxes)
        for level, threshold in enumerate(RECOVERY_IOU):
            n_found[level, rank] = np.count_nonzero(overlap >= threshold)
    best = best_of_queries(ranked, targets)
    return list(n_found[:, best].sum(axis=1) / n_frames[best].sum())


def success(predictions: pd.DataFrame, targets: pd.DataFrame) -> list[float]:
    """Share of queries whose best-scored track reaches each threshold."""
    ranked, of_query = by_score(predictions), targets.groupby("place")
    reached = np.zeros((len(SUCCESS_IOU), len(ranked)))
    for rank, prediction in ranked.iterrows():
        near = of_query.get_group(prediction["place"]).reset_index()
        overlap = tube_overlaps(prediction, near)[0]
        for level, threshold in enumerate(SUCCESS_IOU):
            reached[level, rank] = overlap >= threshold
    return list(reached[:, best_of_queries(ranked, targets)].mean(axis=1))


def by_score(predictions: pd.DataFrame) -> pd.DataFrame:
    order = predictions["score"].to_numpy().argsort()[::-1]
    return predictions.iloc[order].reset_index(drop=True)


def best_of_queries(ranked: pd.DataFrame, targets: pd.DataFrame) -> list[int]:
    of_query, best = ranked.groupby("place"), []
    for _, target in targets.iterrows():
        answers = of_query.get_group(target["place"])
        best.append(answers.index[answers["score"].to_numpy().argmax()])
    return best


def tube_iou(a: Track, b: Track) -> float:
    of_frame = {box.frame: box for box in a.boxes}
    shared = 0.0
    for box in b.boxes:
        other = of_frame.get(box.frame)
        if other is not None:
            shared += box_overlap(box, other)
    return shared / (a.volume() + b.volume() - shared)


def matches(prediction: Track, target: Track) -> dict[int, float]:
    """IoU of the boxes on each frame of the target, 0 where there is none."""
    of_frame = {box.frame: box for box in target.boxes}
    overlap = dict.fromkeys(of_frame, 0.0)
    for box in prediction.boxes:
        if box.frame in of_frame:
            overlap[box.frame] = box_iou(of_frame[box.frame], box)
    return overlap


def box_iou(a: Box, b: Box) -> float:
    shared = box_overlap(a, b)
    return shared / (a.area() + b.area() - shared)


def box_overlap(a: Box, b: Box) -> float:
    width = np.clip(min(a.x2, b.x2) - max(a.x1, b.x1), 0, np.inf)
    height = np.clip(min(a.y2, b.y2) - max(a.y1, b.y1), 0, np.inf)
    return float(width * height)
