"""Time scoring of official files beside a plain statement of the official algorithms.

``python benchmarks/speed/score_files.py --oracles FOLDER`` compares the plain side of
language queries with recorded outputs of the official code, then prints a Markdown
table for moment, language and visual queries. Both sides read the same two JSON files,
compute the same numbers and take turns: one thread, one process, CPU time. Ours also
checks each record and scores each group (label, template, size).
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plain
import torch
from metrics import (
    answer,
    as_frames,
    asked_track,
    compare,
    draw_moments,
    draw_tracks,
    print_head,
)

from avalanche_vilco.experiments.score import score

Files = tuple[Path, Path]
"""Annotations and predictions."""


def written(folder: Path, task: str, annotations: Any, predictions: Any) -> Files:
    files = folder / f"{task}_annotations.json", folder / f"{task}_predictions.json"
    for path, content in zip(files, (annotations, predictions), strict=True):
        path.write_text(json.dumps(content))
    return files


def ours(task: str, files: Files) -> dict[str, dict[str, float]]:
    return score(task, files[1], files[0], reference="ego4d").scores


# Moment queries ---------------------------------------------------------------------


def moment_files(folder: Path, n_predictions: int) -> Files:
    given, asked = as_frames(draw_moments(n_predictions, 110))
    results = {clip: _windows(rows, "score") for clip, rows in given.groupby("place")}
    annotations = {
        clip: {"subset": "val", "annotations": _windows(rows)}
        for clip, rows in asked.groupby("place")
    }
    return written(folder, "mq", annotations, {"results": results})


def _windows(rows: pd.DataFrame, *more: str) -> list[dict[str, Any]]:
    return [
        {**row, "segment": segment}
        for row, segment in zip(
            rows[["label", *more]].to_dict("records"),
            rows[["start", "end"]].to_numpy().tolist(),
            strict=True,
        )
    ]


def plain_moments(files: Files) -> tuple[np.ndarray, np.ndarray]:
    asked, given = (json.loads(path.read_bytes()) for path in files)
    by_clip = {clip: record["annotations"] for clip, record in asked.items()}
    rows = [
        {
            clip: [(*each["segment"], each["label"]) for each in windows]
            for clip, windows in part.items()
        }
        for part in (given["results"], by_clip)
    ]
    frames = [
        pd.DataFrame(
            [
                (clip, each["label"], *each["segment"], each.get("score", 0.0))
                for clip, windows in part.items()
                for each in windows
            ],
            columns=["place", "label", "start", "end", "score"],
        )
        for part in (given["results"], by_clip)
    ]
    return plain.detection_ap(*frames), plain.moment_recall(*rows)


def compare_moments(folder: Path, n: int, repeats: int) -> None:
    files = moment_files(folder, n)
    ap, recall = plain_moments(files)
    found = ours("mq", files)
    same([*found["mAP"].values()][: len(plain.TIOU)], ap.mean(axis=0))
    for column, k in enumerate(plain.TOP_K):
        row = found[f"Recall@{k}x"]
        same([row[f"{level:g}"] for level in plain.RECALL_TIOU], recall[:, column])
    compare_files("moment queries: mAP and recall", n, files, plain_moments, repeats)


# Language queries -------------------------------------------------------------------


def question_files(folder: Path, n_queries: int) -> Files:
    draw = np.random.default_rng(0)
    starts = draw.uniform(0, 440, n_queries)
    targets = np.stack([starts, starts + draw.uniform(1, 40, n_queries)], axis=1)
    given = targets[:, None] + draw.normal(0, 10, (n_queries, 5, 2))
    videos, answers = [], []
    for clip, places in enumerate(
        np.array_split(np.arange(n_queries), n_queries // 10)
    ):
        names = {"clip_uid": f"clip {clip}", "annotation_uid": f"annotation {clip}"}
        questions = [
            {"clip_start_sec": start, "clip_end_sec": end, "query": "where is it?"}
            for start, end in targets[places].tolist()
        ]
        part = {
            "annotation_uid": names["annotation_uid"],
            "language_queries": questions,
        }
        clips = [{"clip_uid": names["clip_uid"], "annotations": [part]}]
        videos.append({"video_uid": f"video {clip}", "split": "val", "clips": clips})
        answers += [
            {**names, "query_idx": number, "predicted_times": windows}
            for number, windows in enumerate(given[places].tolist())
        ]
    return written(folder, "nlq", {"videos": videos}, {"results": answers})


def plain_questions(files: Files) -> tuple[np.ndarray, float]:
    asked, given = (json.loads(path.read_bytes()) for path in files)
    return plain_query_recall(asked, given["results"])


def plain_query_recall(asked: Any, answers: Any) -> tuple[np.ndarray, float]:
    known = {
        (clip["clip_uid"], part["annotation_uid"]): part["language_queries"]
        for video in asked["videos"]
        for clip in video["clips"]
        for part in clip["annotations"]
    }
    queries = [
        known[each["clip_uid"], each["annotation_uid"]][each["query_idx"]]
        for each in answers
    ]
    return plain.query_recall(
        [each["predicted_times"] for each in answers],
        [[query["clip_start_sec"], query["clip_end_sec"]] for query in queries],
    )


def check_questions(folder: Path) -> None:
    """Compare with recorded outputs of the official code, where it has values."""
    n_compared = 0
    for path in sorted(folder.glob("nlq/*.json")):
        case = json.loads(path.read_text())
        levels = tuple(case["thresholds"]), tuple(case["topK"])
        if case.get("expected") and levels == (plain.QUERY_TIOU, plain.QUERY_TOP_K):
            got = plain_query_recall(case["ground_truth"], case["predictions"])
            for name, values in zip(("mean_results", "mIoU"), got, strict=True):
                # None, which stands for NaN, becomes NaN.
                same(values, np.array(case["expected"][name], dtype=float))
            n_compared += 1
    print(
        f"The plain side equals {n_compared} recorded outputs of the official code.\n"
    )


def compare_questions(folder: Path, n: int, repeats: int) -> None:
    files = question_files(folder, n)
    recall, mean_tiou = plain_questions(files)
    found = ours("nlq", files)
    for column, k in enumerate(plain.QUERY_TOP_K):
        row = found[f"Recall@{k}"]
        same([row[f"{level:g}"] for level in plain.QUERY_TIOU], recall[:, column])
    same(found["mIoU"]["mean"], mean_tiou)
    compare_files(
        "language queries: recall and mIoU", n, files, plain_questions, repeats
    )


# Visual queries ---------------------------------------------------------------------


def track_files(folder: Path, n_queries: int) -> Files:
    asked, answered = [], []
    for i, (target, (track,)) in enumerate(zip(*draw_tracks(n_queries), strict=True)):
        boxes = [
            {"frame_number": f, "x": x1, "y": y1, "width": x2 - x1, "height": y2 - y1}
            for f, x1, y1, x2, y2 in target.boxes
        ]
        answers = [
            dict(zip(("fno", "x1", "y1", "x2", "y2"), box, strict=True))
            for box in track.boxes
            if box.frame >= 0
        ]
        one = {"bboxes": answers, "score": track.score}
        sets = {"1": {"is_valid": True, "response_track": boxes}}
        for files, name, query in (
            (asked, "annotations", sets),
            (answered, "predictions", {"1": one}),
        ):
            part = {"annotation_uid": f"annotation {i}", "query_sets": query}
            clips = [{"clip_uid": f"clip {i}", name: [part]}]
            files.append({"video_uid": f"video {i}", "split": "val", "clips": clips})
    return written(folder, "vq", {"videos": asked}, {"results": {"videos": answered}})


def plain_tracks(files: Files) -> plain.QueryScores:
    asked, given = (json.loads(path.read_bytes()) for path in files)

    def query_sets(videos: Any, name: str) -> list[Any]:
        return [
            query
            for video in videos
            for clip in video["clips"]
            for part in clip[name]
            for query in part["query_sets"].values()
        ]

    targets = query_sets(asked["videos"], "annotations")
    answers = query_sets(given["results"]["videos"], "predictions")
    return plain.query_scores(
        [asked_track(query["response_track"]) for query in targets],
        [[answer(one)] for one in answers],
    )


def compare_tracks(folder: Path, n: int, repeats: int) -> None:
    files = track_files(folder, n)
    found = ours("vq", files)
    names = ("tAP", "stAP", "recovery", "success")
    for name, expected in zip(names, plain_tracks(files), strict=True):
        same([v for level, v in found[name].items() if level != "mean"], expected)
    compare_files("visual queries: all metrics", n, files, plain_tracks, repeats)


# Table ------------------------------------------------------------------------------


def same(got: Any, expected: Any) -> None:
    np.testing.assert_allclose(got, expected, atol=1e-9)


def compare_files(
    name: str, n: int, files: Files, slow: Callable[[Files], object], repeats: int
) -> None:
    task = files[0].name.partition("_")[0]
    megabytes = sum(path.stat().st_size for path in files) / 1e6
    name = f"{name} ({megabytes:.1f} MB)"
    compare(name, (n, n), lambda: slow(files), lambda: ours(task, files), repeats)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--oracles", type=Path, help="folder of recorded outputs")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.oracles:
        check_questions(options.oracles)
    print_head("files", "items", "plain, us each", "ours, ns each", "ratio")
    with tempfile.TemporaryDirectory() as folder:
        compare_moments(Path(folder), 10_000, options.repeats)
        compare_questions(Path(folder), 4_000, options.repeats)
        compare_tracks(Path(folder), 500, options.repeats)


if __name__ == "__main__":
    main()
