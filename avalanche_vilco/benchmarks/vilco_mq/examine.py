"""What is there, missing or damaged in a root of Moment Queries."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from avalanche_vilco.benchmarks.examination import (
    KnownClip,
    add_record_faults,
    clip_ids_in,
    examine_parts,
)
from avalanche_vilco.benchmarks.vilco_mq.annotations import (
    MomentAnnotations,
    read_moment_annotations,
)
from avalanche_vilco.benchmarks.vilco_mq.layout import QUERY_TEXT_FILE, find_annotations
from avalanche_vilco.benchmarks.vilco_mq.official import read_official_moments
from avalanche_vilco.core.diagnosis import Diagnosis
from avalanche_vilco.core.errors import DataError
from avalanche_vilco.data.text.tokens import examine_query_text


def examine(root: Path, diagnosis: Diagnosis) -> None:
    """Examine annotations, features, query text and narrations.

    :param root: a folder.
    :param diagnosis: gets counts and findings.
    """
    path = diagnosis.paths.get("annotations") or find_annotations(root)
    read, known = _read(diagnosis, path)
    clips = None
    if read is not None:
        clips = [
            KnownClip(
                *(clip.clip_id, clip.subset, clip.duration_sec),
                n_steps=clip.duration_sec * clip.features_per_sec,
                is_streamed=clip.is_streamed,
            )
            for clip in read.clips
        ]
    examine_parts(
        *(root, diagnosis, clips, known, root / QUERY_TEXT_FILE),
        partial(_examine_query_text, diagnosis, read),
    )


def _read(
    diagnosis: Diagnosis, path: Path | None
) -> tuple[MomentAnnotations | None, frozenset[str]]:
    """Annotations without the records at fault, and the ids of all records."""
    if path is None:
        problem = "expected the files of train and val, but one of them is missing"
        remedy = "train and val make the streams: fetch both files"
        diagnosis.fault("annotations", diagnosis.root, problem, remedy)
        return None, frozenset()
    with diagnosis.guard("annotations", path):
        faults: list[DataError] = []
        is_official = path.is_dir()
        read_files = read_official_moments if is_official else read_moment_annotations
        read = read_files(path, faults=faults)
        add_record_faults(diagnosis, path, faults)
        folder = path if is_official else path.parent
        known = clip_ids_in(folder / name for name in read.report.files)
        if read.clips:
            _count(diagnosis, path, read)
            return read, known
    return None, frozenset()


def _count(diagnosis: Diagnosis, path: Path, annotations: MomentAnnotations) -> None:
    subsets = [clip.subset for clip in annotations.clips]
    usable = [clip.subset for clip in annotations.clips if len(clip.windows_sec)]
    windows = annotations.report.stage("annotations", "windows")
    diagnosis.counts["annotations"] = {
        "file": path.name,
        **{f"{name} clips": subsets.count(name) for name in ("train", "val", "test")},
        "categories": len(annotations.label_names),
        "windows": windows.passed_on,
        "windows rejected": windows.read - windows.passed_on,
    }
    for subset in ("train", "val"):
        if subset not in usable:
            problem = f"no clip of subset {subset!r} has a usable window"
            remedy = "train and val make the streams: fetch the whole file"
            diagnosis.fault("annotations", path, problem, remedy)


def _examine_query_text(
    diagnosis: Diagnosis, annotations: MomentAnnotations | None, path: Path
) -> None:
    labels = list(annotations.label_names.values()) if annotations else []
    tokens, faults = examine_query_text(path, labels)
    for fault in faults:
        diagnosis.add_error("query text", fault, "write the entry again")
    diagnosis.counts["query text"] = {
        "categories": len(tokens),
        "tokens": sum(len(value) for value in tokens.values()),
    }
