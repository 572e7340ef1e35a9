"""``avalanche-vilco score``: the numbers of a submission file."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from avalanche_vilco.benchmarks.submissions import (
    Document,
    MomentSubmission,
    Note,
    Source,
    Task,
    open_document,
    read_moments,
    read_queries,
    read_tracks,
)
from avalanche_vilco.core.tables import percent
from avalanche_vilco.core.terminal import one_line, tell
from avalanche_vilco.evaluation.functional import (
    EGO4D_TIOU,
    Reference,
    Tracks,
    counted_labels,
    detection_ap,
    grouped_recall,
    moment_recall,
    recall_hits,
    top1_tiou,
    visual_query_scores,
)
from avalanche_vilco.evaluation.functional.visual_query import (
    AP_IOU,
    RECOVERY_IOU,
    SUCCESS_IOU,
    VisualQueryScores,
)

__all__ = ["Score", "main", "score"]

SCORE_VERSION = "1"
MEAN = "mean"
_SHOWN_RECORDS = 5

Row = dict[str, float]
"""Score in [0, 1] by threshold, and :data:`MEAN`."""


@dataclass(frozen=True)
class _Grid:
    """Which recalls are asked for."""

    k: tuple[int, ...]
    tiou: tuple[float, ...]


# What each evaluator prints.
_MOMENT_GRIDS: Mapping[Reference | None, _Grid] = {
    None: _Grid((1, 5), EGO4D_TIOU),
    "ego4d": _Grid((1, 2, 3, 4, 5), (0.3, 0.5, 0.7)),
    "actionformer": _Grid((1, 5), EGO4D_TIOU),
    "vilco": _Grid((1, 5), EGO4D_TIOU),
}
_QUERY_GRID = _Grid((1, 3, 5), (0.3, 0.5))
_REFERENCES: Mapping[Task, tuple[Reference, ...]] = {
    "mq": ("ego4d", "actionformer", "vilco"),
    "nlq": ("ego4d", "vilco"),
    "vq": ("ego4d", "vilco"),
}


@dataclass
class Score:
    """Numbers of a submission file."""

    task: Task
    reference: Reference | None
    predictions: str
    annotations: str
    counts: dict[str, int] = field(default_factory=dict)
    scores: dict[str, Row] = field(default_factory=dict)
    """Score in [0, 1] by metric and threshold."""
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By label (MQ) or template (NLQ): "windows" asked for, and rows of scores."""
    notes: list[Note] = field(default_factory=list)
    """What counts otherwise than the author of a file may expect."""

    def to_dict(self) -> dict[str, Any]:
        """JSON form, NaN as null."""
        return {"score_version": SCORE_VERSION, **_without_nan(asdict(self))}

    def __str__(self) -> str:
        rules = f"reference {self.reference}" if self.reference else "our rules"
        counts = ", ".join(f"{name} {n}" for name, n in self.counts.items())
        lines = [f"{self.task}, {rules}: {counts}", *_table(self.scores)]
        return "\n".join([*lines, *map(_note_line, self.notes)])


def score(
    task: Task,
    predictions: Source,
    annotations: Source,
    *,
    subset: str = "val",
    reference: Reference | None = None,
    device: str = "cpu",
    k: Sequence[int] | None = None,
    tiou: Sequence[float] | None = None,
) -> Score:
    """Score a submission file.

    :param task: "mq", "nlq" or "vq".
    :param predictions: the submission.
    :param annotations: what it answers.
    :param subset: subset of the clips to score (Moment Queries).
    :param reference: public evaluator to reproduce, None for our own rules.
    :param device: where to compute, such as "cuda".
    :param k: numbers of predictions that recall looks at, each >= 1; those that the
        evaluator prints by default.
    :param tiou: thresholds of all metrics of windows, in (0, 1]; those that the
        evaluator prints by default. Tracks have their own.
    :return: the numbers.
    :raises SubmissionError: if a file cannot be scored, or holds no predictions.
    :raises ValueError: if an option does not fit the task.
    """
    given = open_document(predictions, "predictions")
    asked = open_document(annotations, "annotations")
    result = Score(task, reference, given.where.file, asked.where.file)
    if task == "vq":
        _score_tracks(result, given, asked, device)
    elif task == "nlq":
        grid = _chosen(_QUERY_GRID, k, tiou)
        _score_queries(result, given, asked, grid, device)
    else:
        grid = _chosen(_MOMENT_GRIDS[reference], k, tiou)
        levels = EGO4D_TIOU if tiou is None else tuple(tiou)
        _score_moments(result, given, asked, subset, grid, levels, device)
    return result


def _chosen(
    usual: _Grid, k: Sequence[int] | None, tiou: Sequence[float] | None
) -> _Grid:
    return _Grid(tuple(k or usual.k), tuple(tiou or usual.tiou))


# Moment Queries


def _score_moments(
    result: Score,
    given: Document,
    asked: Document,
    subset: str,
    grid: _Grid,
    levels: Sequence[float],
    device: str,
) -> None:
    reference = result.reference
    found = read_moments(asked, given, subset=subset, reference=reference)
    ranked = found
    is_public = reference in ("ego4d", "vilco")
    if is_public or "retrieve_results" in given.content:
        ranked = read_moments(
            asked,
            given,
            subset=subset,
            part="retrieval",
            clip_key="clip_id" if is_public else "clip_uid",
            reference=reference,
        )
    _check_any(given, int((found.moments.labels >= 0).sum()))
    moments = _on(found.moments, device)
    ap = detection_ap(*moments, tiou=levels, reference=reference)
    result.counts = _moment_counts(found.moments, reference)
    result.notes = found.notes + _repeats(found.moments, reference)
    result.scores["mAP"] = _row(levels, ap.mean_ap.tolist())
    _add_recall(result, _on(ranked.moments, device), grid, "per_gt")
    by_label = _grouped(_on(ranked.moments, device), grid, "per_gt", reference)
    for number, row in zip(ap.labels.tolist(), ap.ap.tolist(), strict=True):
        windows, recalls = by_label.get(number, (0, {}))
        rows = {"AP": _row(levels, row), **recalls}
        result.groups[found.names[number]] = {"windows": windows, **rows}


def _moment_counts(
    moments: MomentSubmission, reference: Reference | None
) -> dict[str, int]:
    counted = counted_labels(
        moments.target_segments, moments.target_labels, reference=reference
    )
    n_labels = int(max(moments.labels.max(), counted.max())) + 1
    asked = _clip_labels(counted, n_labels)
    given = _clip_labels(moments.labels, n_labels)
    return {
        "clips": len((asked // n_labels).unique()),
        "queries": len(asked),
        "answered": int(torch.isin(asked, given).sum()),
        "annotated windows": int((counted >= 0).sum()),
        "predictions": int((moments.labels >= 0).sum()),
    }


def _clip_labels(labels: Tensor, n_labels: int) -> Tensor:
    """A number for each clip and label that occur together."""
    clip, place = (labels >= 0).nonzero(as_tuple=True)
    return (clip * n_labels + labels[clip, place]).unique()


def _repeats(moments: MomentSubmission, reference: Reference | None) -> list[Note]:
    labels = moments.target_labels
    counted = counted_labels(moments.target_segments, labels, reference=reference)
    count = int((counted != labels).sum())
    reason = "annotated windows that repeat another one (or are shorter than 1 ms)"
    if reference != "actionformer":
        reason = "annotated windows that repeat another one to within 1 ms"
    return [Note(f"{reason}, left out", count)] if count else []


# Language Queries


def _score_queries(
    result: Score, given: Document, asked: Document, grid: _Grid, device: str
) -> None:
    found = read_queries(asked, given, reference=result.reference)
    moments = _on(found.moments, device)
    has_answer = (found.moments.labels >= 0).any(dim=1)
    n_predictions = int((found.moments.labels >= 0).sum())
    _check_any(given, n_predictions)
    result.counts = {
        "queries": len(found.queries),
        "answered": int(has_answer.sum()),
        "predictions": n_predictions,
    }
    result.notes = found.notes
    _add_recall(result, moments, grid, "fixed")
    best = top1_tiou(
        moments.segments,
        moments.scores,
        moments.target_segments[:, 0],
        sort=result.reference is None,
    )
    result.scores["mIoU"] = {MEAN: best.mean().item()}
    templates = [name or "(none)" for name in found.templates]
    names = sorted(set(templates))
    numbers = torch.tensor([[names.index(name)] for name in templates], device=device)
    groups = _grouped(moments, grid, "fixed", result.reference, numbers)
    for number, (n_windows, rows) in groups.items():
        result.groups[names[number]] = {"windows": n_windows, **rows}


# Visual Queries


def _score_tracks(result: Score, given: Document, asked: Document, device: str) -> None:
    found = read_tracks(asked, given)
    tracks = found.tracks
    answered = tracks.queries[tracks.predicted.owners.unique()].unique()
    _check_any(given, len(answered))
    result.counts = {
        "queries": tracks.n_queries,
        "answered": len(answered),
        "predictions": len(tracks.scores),
    }
    result.notes = found.notes
    by_size = visual_query_scores(
        Tracks(*_on(tracks.predicted, device)),
        tracks.scores.to(device),
        tracks.queries.to(device),
        Tracks(*_on(tracks.targets, device)),
        tracks.n_queries,
        reference=result.reference,
    )
    for size, scores in by_size.items():
        result.counts[f"{size} queries"] = scores.n_queries
        suffix = "" if size == "all" else f" {size}"
        for name, row in _track_rows(scores).items():
            result.scores[name + suffix] = row


def _track_rows(scores: VisualQueryScores) -> dict[str, Row]:
    return {
        "tAP": _row(AP_IOU, scores.temporal_ap),
        "stAP": _row(AP_IOU, scores.tube_ap),
        "success": _row(SUCCESS_IOU, scores.success, has_mean=False),
        "recovery": _row(RECOVERY_IOU, scores.recovery, has_mean=False),
    }


# All tasks


def _check_any(given: Document, n_predictions: int) -> None:
    if not n_predictions:
        given.where.fail("there are no predictions", hint="write the file again")


def _on(tensors: Any, device: str) -> Any:
    return type(tensors)(*(tensor.to(device) for tensor in tensors))


def _row(
    levels: Iterable[float], values: Sequence[float], *, has_mean: bool = True
) -> Row:
    row = {f"{level:g}": value for level, value in zip(levels, values, strict=True)}
    return {**row, MEAN: sum(values) / len(values)} if has_mean else row


def _recall_name(k: int, budget: str) -> str:
    return f"Recall@{k}x" if budget == "per_gt" else f"Recall@{k}"


def _add_recall(
    result: Score, moments: MomentSubmission, grid: _Grid, budget: Any
) -> None:
    table = moment_recall(
        *moments, k=grid.k, tiou=grid.tiou, budget=budget, reference=result.reference
    )
    for k, values in zip(grid.k, table.tolist(), strict=True):
        result.scores[_recall_name(k, budget)] = _row(grid.tiou, values)


def _grouped(
    moments: MomentSubmission,
    grid: _Grid,
    budget: Any,
    reference: Reference | None,
    groups: Tensor | None = None,
) -> dict[int, tuple[int, dict[str, Row]]]:
    """Windows and recalls of each group; of each label, unless groups are given."""
    hits = recall_hits(
        *moments, k=grid.k, tiou=grid.tiou, budget=budget, reference=reference
    )
    if groups is None:
        groups = counted_labels(
            moments.target_segments, moments.target_labels, reference=reference
        )
    recall, numbers, n_windows = grouped_recall(hits, groups)
    return {
        number: (
            n,
            {
                _recall_name(k, budget): _row(grid.tiou, values)
                for k, values in zip(grid.k, table, strict=True)
            },
        )
        for number, n, table in zip(
            numbers.tolist(), n_windows.tolist(), recall.tolist(), strict=True
        )
    }


def _table(scores: Mapping[str, Row]) -> list[str]:
    levels = {level for row in scores.values() for level in row} - {MEAN}
    columns = [*sorted(levels, key=float), MEAN]
    title = "in %, at IoU"
    width = max(map(len, (title, *scores)))
    lines = [f"{title:<{width}}" + "".join(f"{c:>7}" for c in columns)]
    for name, row in scores.items():
        cells = (percent(row[c], 2) if c in row else "" for c in columns)
        lines.append(f"{name:<{width}}" + "".join(f"{cell:>7}" for cell in cells))
    return lines


def _note_line(note: Note) -> str:
    shown = ", ".join(note.records[:_SHOWN_RECORDS])
    more = len(note.records) - _SHOWN_RECORDS
    shown += f" and {more} more (see --json)" if more > 0 else ""
    return one_line(
        f"note: {note.count} {note.reason}" + (f": {shown}" if shown else "")
    )


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nan(each) for name, each in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value


# Command line


def main(arguments: Sequence[str] | None = None) -> int:
    """``avalanche-vilco score``.

    :param arguments: command-line arguments without program and command.
    :return: exit code: 0 scored, 1 a file or the device is at fault, 2 bad usage
        (raised by argparse).
    """
    options = _options(arguments)
    as_json = options.pop("json")
    try:
        if options["device"] == "cuda" and not torch.cuda.is_available():
            raise ValueError("--device cuda: no such device here, use --device cpu")
        result = score(**options)
    except ValueError as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 1
    text = json.dumps(result.to_dict(), indent=2, allow_nan=False)
    tell(text if as_json else str(result))
    return 0


def _options(arguments: Sequence[str] | None) -> dict[str, Any]:
    parser = _parser()
    options = vars(parser.parse_args(arguments))
    known = _REFERENCES[options["task"]]
    if options["reference"] not in (None, *known):
        parser.error(f"--reference of task {options['task']} is one of {known}")
    if options["task"] == "vq" and (options["k"] or options["tiou"]):
        parser.error("--k and --tiou are for tasks mq and nlq")
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="avalanche-vilco score",
        description="Score a submission file in the official format. Exit code: 0 "
        "scored, 1 a file is at fault, 2 bad usage.",
    )
    add = parser.add_argument
    add("--task", choices=("mq", "nlq", "vq"), required=True)
    add("--predictions", metavar="FILE", required=True, help="the submission, JSON")
    add("--annotations", metavar="FILE", required=True, help="what it answers, JSON")
    add(
        "--reference",
        choices=("ego4d", "actionformer", "vilco"),
        help="public evaluator to reproduce (default: our own rules)",
    )
    add("--subset", default="val", help="subset to score, task mq (default: val)")
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--k", type=_count, nargs="+", help="predictions that recall looks at")
    add("--tiou", type=_level, nargs="+", help="thresholds, tasks mq and nlq")
    add("--json", action="store_true", help="machine-readable, to stdout")
    return parser


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a number >= 1 but got {text}")
    return value


def _level(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"expected a number in (0, 1] but got {text}")
    return value


if __name__ == "__main__":
    sys.exit(main())
