"""Statistics of the embedded data sets, beside those of real annotation files.

    python benchmarks/embedded_statistics.py vilco_mq ego4d_clip_annotations_v2.json
    python benchmarks/embedded_statistics.py vilco_nlq nlq_val.json --subset val
    python benchmarks/embedded_statistics.py vilco_vq ego4d/annotations

prints a Markdown table with a column for each: the tables of docs/mini_mq.md,
docs/mini_nlq.md and docs/vilco_vq.md. Without a file it has one column.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avalanche_vilco.benchmarks.vilco_mq.annotations import DUPLICATE_TOLERANCE_SEC
from avalanche_vilco.benchmarks.vilco_mq.embedded import (
    MINI_MQ_CATEGORIES,
    MiniMQConfig,
)
from avalanche_vilco.benchmarks.vilco_mq.layout import ANNOTATION_FILE
from avalanche_vilco.benchmarks.vilco_nlq.annotations import (
    LanguageAnnotations,
    read_language_queries,
)
from avalanche_vilco.benchmarks.vilco_nlq.embedded import MiniNLQConfig
from avalanche_vilco.benchmarks.vilco_nlq.layout import OFFICIAL_NLQ_FILES
from avalanche_vilco.benchmarks.vilco_nlq.templates import NLQ_TEMPLATES
from avalanche_vilco.benchmarks.vilco_vq.annotations import (
    VisualAnnotations,
    find_vq_files,
    read_visual_queries,
)
from avalanche_vilco.benchmarks.vilco_vq.embedded import MiniVQConfig
from avalanche_vilco.core.tables import table

# --- Moment Queries -------------------------------------------------------------------


def moment_statistics(
    annotations: Mapping[str, Any], *, group_size: int, subset: str = "train"
) -> dict[str, Any]:
    """Statistics of a Moment-Queries annotation file, generated or real.

    :param annotations: clip uid -> record, as the annotation file holds it.
    :param group_size: consecutive label ids that form a group.
    :param subset: "train" or "val".
    :return: counts, seconds and shares in [0, 1] by name; a "pair" is a clip with one
        of its distinct labels, "duplicate_windows" repeat one within a millisecond.
    :raises ValueError: if the subset has no annotated clip or the group size is not
        positive.
    """
    if group_size < 1:
        raise ValueError(f"expected group_size >= 1 but got {group_size}")
    clips = [r for r in annotations.values() if r["subset"] == subset]
    if not any(record["annotations"] for record in clips):
        raise ValueError(f"expected annotated clips in subset {subset!r} but got none")
    return {
        "clips": len(clips),
        "parent_videos": len({record["video_id"] for record in clips}),
        "hours": sum(record["duration"] for record in clips) / 3600,
        **clip_second_statistics(clips),
        **label_statistics(clips, group_size),
        **window_statistics(clips),
    }


def clip_second_statistics(clips: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Lengths of the clips."""
    seconds = np.array([record["duration"] for record in clips])
    return summary("clip_sec", seconds, min=np.min, median=np.median, max=np.max)


def summary(
    name: str,
    values: NDArray[Any],
    **reductions: Callable[[NDArray[Any]], Any],
) -> dict[str, float]:
    """Reductions of some values, as <name>_<reduction>."""
    return {
        f"{name}_{key}": float(reduce(values)) for key, reduce in reductions.items()
    }


def label_statistics(
    clips: Sequence[dict[str, Any]], group_size: int
) -> dict[str, Any]:
    """Labels, pairs and groups."""
    label_sets = [{item["label_id"] for item in r["annotations"]} for r in clips]
    groups = [{label // group_size for label in labels} for labels in label_sets]
    counts = Counter(label for labels in label_sets for label in labels)
    pairs = Counter(label // group_size for label in counts.elements())
    in_clip = np.array([len(labels) for labels in label_sets])
    clips_per_label = np.array(list(counts.values()))
    return {
        "labels": len(counts),
        **summary("labels_per_clip", in_clip, mean=np.mean, max=np.max),
        **summary(
            "clips_per_label",
            clips_per_label,
            min=np.min,
            median=np.median,
            max=np.max,
        ),
        "pairs": int(in_clip.sum()),
        "pairs_per_group": [pairs[group] for group in range(max(pairs) + 1)],
        "share_clips_spanning_groups": float(np.mean([len(g) > 1 for g in groups])),
    }


def window_statistics(clips: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Lengths and ends of windows."""
    pairs = len(
        {(r["clip_id"], a["label_id"]) for r in clips for a in r["annotations"]}
    )
    windows = np.array([a["segment"] for r in clips for a in r["annotations"]])
    clip_end = np.array([r["duration"] for r in clips for _ in r["annotations"]])
    return {
        "windows": len(windows),
        "windows_per_clip_mean": len(windows) / len(clips),
        "windows_per_pair_mean": len(windows) / pairs,
        **summary(
            "window_sec",
            windows[:, 1] - windows[:, 0],
            min=np.min,
            median=np.median,
            mean=np.mean,
            p90=lambda values: np.quantile(values, 0.9),
            max=np.max,
        ),
        "share_windows_overhanging": float(np.mean(windows[:, 1] > clip_end)),
        "share_windows_ending_at_clip_end": float(np.mean(windows[:, 1] == clip_end)),
        "duplicate_windows": sum(count_duplicates(r["annotations"]) for r in clips),
    }


def count_duplicates(annotations: Iterable[dict[str, Any]]) -> int:
    """Windows that repeat one of the same label."""
    kept: dict[int, list[NDArray[np.float64]]] = defaultdict(list)
    duplicates = 0
    for item in annotations:
        window = np.asarray(item["segment"], dtype=np.float64)
        same_label = kept[item["label_id"]]
        if any(abs(window - w).max() <= DUPLICATE_TOLERANCE_SEC for w in same_label):
            duplicates += 1
        else:
            same_label.append(window)
    return duplicates


def of_moment_file(path: Path, subset: str) -> dict[str, Any]:
    """Statistics of an annotation file, or of the one in a folder.

    :param path: processed annotation file; a fifth of its labels form a group.
    :param subset: "train" or "val".
    """
    file = path / ANNOTATION_FILE if path.is_dir() else path
    annotations = json.loads(file.read_text(encoding="utf-8"))
    items = (a for record in annotations.values() for a in record["annotations"])
    n_labels = len({item["label_id"] for item in items})
    group_size = max(1, n_labels // len(MINI_MQ_CATEGORIES))
    return moment_statistics(annotations, group_size=group_size, subset=subset)


# --- Natural Language Queries ---------------------------------------------------------


def query_statistics(read: LanguageAnnotations) -> dict[str, Any]:
    """Statistics of annotated natural-language queries, generated or real.

    :param read: the annotations.
    :return: counts, seconds and shares by name.
    """
    clips, queries = read.clips, read.queries
    seconds = np.array([clip.duration_sec for clip in clips.values()])
    spans = [q.window_sec for q in queries if q.window_sec is not None]
    windows = np.array([end - start for start, end in spans])
    counts = np.array(list(Counter(q.clip_id for q in queries).values()))
    templates = Counter(q.template for q in queries)
    pairs = {(q.clip_id, q.template) for q in queries}
    return {
        "queries": len(queries),
        "clips": len(clips),
        "parent_videos": len({clip.video_id for clip in clips.values()}),
        "hours": float(seconds.sum() / 3600),
        "clip_sec_min": float(seconds.min()),
        "clip_sec_median": float(np.median(seconds)),
        "clip_sec_max": float(seconds.max()),
        "queries_per_clip_mean": float(counts.mean()),
        "queries_per_clip_max": int(counts.max()),
        "templates_per_clip_mean": len(pairs) / len(clips),
        **{
            f"window_sec_p{share}": float(np.percentile(windows, share))
            for share in (1, 50, 90, 99)
        },
        "window_sec_mean": float(windows.mean()),
        "words_per_query_mean": float(np.mean([len(q.text.split()) for q in queries])),
        "distinct_queries": len({q.text.lower() for q in queries}),
        "queries_per_template": [templates[i] for i in range(len(NLQ_TEMPLATES))],
        "without_template": templates[None],
    }


def of_question_file(path: Path, subset: str) -> dict[str, Any]:
    """Statistics of an official file, or of the one in a folder.

    :param path: of the annotations.
    :param subset: "train" or "val".
    """
    file = path / OFFICIAL_NLQ_FILES[subset] if path.is_dir() else path
    return query_statistics(read_language_queries({subset: file}))


# --- Visual Queries -------------------------------------------------------------------


def visual_query_statistics(read: VisualAnnotations) -> dict[str, Any]:
    """Statistics of annotated visual queries, generated or real.

    :param read: the annotations.
    :return: counts, seconds and shares by name.
    """
    queries, clips = read.queries, read.clips
    tracks = [(query, query.track) for query in queries if query.track is not None]
    lengths = np.array([len(track.frames) for _, track in tracks])
    pauses = np.array([q.query_frame - 1 - int(t.frames[-1]) for q, t in tracks])
    sides = [t.relative_boxes[:, 2:] - t.relative_boxes[:, :2] for _, t in tracks]
    areas = np.concatenate(sides).prod(axis=1)
    titles = Counter(query.title_key for query in queries)
    per_clip = Counter(query.clip_id for query in queries)
    seconds = np.array([clip.duration_sec for clip in clips.values()])
    return {
        "queries": len(queries),
        "clips": len(clips),
        "parent_videos": len({clip.video_id for clip in clips.values()}),
        "hours": float(seconds.sum() / 3600),
        "clip_sec_median": float(np.median(seconds)),
        "titles": len(titles),
        "queries_per_title_max": max(titles.values()),
        "queries_per_clip_mean": len(queries) / len(per_clip),
        "search_frames_median": float(np.median([q.query_frame for q in queries])),
        "track_frames_median": float(np.median(lengths)),
        "track_frames_max": int(lengths.max()),
        "frames_from_track_to_query_median": float(np.median(pauses)),
        "box_area_share_median": float(np.median(areas)),
        "crops_behind_query_frame_share": float(
            np.mean([q.crop.frame >= q.query_frame for q in queries])
        ),
    }


def of_visual_folder(path: Path, subset: str) -> dict[str, Any]:
    """Statistics of the official file in a folder.

    :param path: folder of the annotations.
    :param subset: "train" or "val".
    """
    return visual_query_statistics(
        read_visual_queries({subset: find_vq_files(path)[subset]})
    )


# --- All ------------------------------------------------------------------------------

BENCHMARKS = {
    "vilco_mq": (MiniMQConfig, of_moment_file),
    "vilco_nlq": (MiniNLQConfig, of_question_file),
    "vilco_vq": (MiniVQConfig, of_visual_folder),
}


def cell(value: Any) -> str:
    """Text of a statistic."""
    if isinstance(value, list):
        return " / ".join(str(item) for item in value)
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module's text.

    :param arguments: command-line arguments; those of the process if not given.
    :return: exit code.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("benchmark", choices=sorted(BENCHMARKS))
    parser.add_argument("path", nargs="?", help="real annotation file or its folder")
    parser.add_argument("--subset", default="train", choices=("train", "val"))
    options = parser.parse_args(arguments)
    make_config, statistics = BENCHMARKS[options.benchmark]
    config = make_config()
    columns = {f"{config.name} v{config.version}": config.root()}
    if options.path:
        columns[Path(options.path).name] = Path(options.path)
    counted = [statistics(path, options.subset) for path in columns.values()]
    rows = [[name, *(cell(one[name]) for one in counted)] for name in counted[0]]
    print(table(["statistic", *columns], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
