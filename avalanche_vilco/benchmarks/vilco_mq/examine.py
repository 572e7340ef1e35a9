"""What is there, missing or damaged in a root of Moment Queries."""

from __future__ import annotations

from pathlib import Path

from avalanche_vilco.benchmarks.examination import (
    FIX_RECORD,
    Claims,
    KnownClip,
    clip_ids_in,
    examine_features,
    examine_narrations,
    is_deep_enough,
)
from avalanche_vilco.benchmarks.vilco_mq.annotations import (
    MomentAnnotations,
    read_moment_annotations,
)
from avalanche_vilco.benchmarks.vilco_mq.layout import (
    FEATURE_FOLDER,
    QUERY_TEXT_FILE,
    find_annotations,
)
from avalanche_vilco.benchmarks.vilco_mq.official import read_official_moments
from avalanche_vilco.core.diagnosis import Diagnosis
from avalanche_vilco.core.errors import DataError
from avalanche_vilco.data.text.narrations import narration_files
from avalanche_vilco.data.text.tokens import examine_query_text

MAX_ANNOTATION_FAULTS = 25


def examine(
    root: Path,
    diagnosis: Diagnosis,
    claims: Claims,
    *,
    deep: bool | None = None,
    annotations: Path | None = None,
    features: Path | None = None,
    query_text: Path | None = None,
    narrations: Path | None = None,
    narration_features: Path | None = None,
) -> None:
    """Examine annotations, features, query text and narrations.

    :param root: a folder.
    :param diagnosis: gets counts and findings.
    :param claims: gets the files that belong to a clip.
    :param deep: read every value, not only headers; None: if they are few.
    :param annotations: file or folder, if not at its place in the root; likewise the
        others.
    """
    sentences, embeddings = narration_files(root)
    features = features or root / FEATURE_FOLDER
    sentences = narrations or sentences
    embeddings = narration_features or embeddings
    diagnosis.is_deep = is_deep_enough(deep, (features, embeddings))
    read, known = _read(diagnosis, annotations or find_annotations(root))
    clips = None
    if read is not None:
        clips = [
            KnownClip(
                clip.clip_id,
                clip.subset,
                clip.duration_sec,
                clip.duration_sec * clip.features_per_sec,
                clip.is_streamed,
            )
            for clip in read.clips
        ]
    with diagnosis.guard("features", features):
        examine_features(diagnosis, features, clips, known, claims)
    text = query_text or root / QUERY_TEXT_FILE
    with diagnosis.guard("query text", text):
        _examine_query_text(diagnosis, text, read)
    with diagnosis.guard("narrations", sentences):
        examine_narrations(diagnosis, sentences, embeddings, clips, known)


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
        if path.is_dir():
            read = read_official_moments(path)
            known = clip_ids_in(path / name for name in read.report.files)
        else:
            faults: list[DataError] = []
            read = read_moment_annotations(path, faults=faults)
            for fault in faults[:MAX_ANNOTATION_FAULTS]:
                diagnosis.add_error("annotations", fault, FIX_RECORD)
            if len(faults) > MAX_ANNOTATION_FAULTS:
                problem = f"{len(faults) - MAX_ANNOTATION_FAULTS} more records at fault"
                remedy = "mend these, then ask again"
                diagnosis.fault("annotations", path, problem, remedy)
            known = clip_ids_in([path])
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
    diagnosis: Diagnosis, path: Path, annotations: MomentAnnotations | None
) -> None:
    if not path.exists():
        remedy = "without it each word has a fixed random vector; see docs/data.md"
        diagnosis.note("query text", path, "no query text", remedy)
        return
    labels = list(annotations.label_names.values()) if annotations else []
    tokens, faults = examine_query_text(path, labels)
    for fault in faults:
        diagnosis.add_error("query text", fault, "write the entry again")
    diagnosis.counts["query text"] = {
        "categories": len(tokens),
        "tokens": sum(len(value) for value in tokens.values()),
    }
