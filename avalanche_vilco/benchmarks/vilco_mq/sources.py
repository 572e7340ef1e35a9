"""Where the files of Moment Queries lie, and how they are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from avalanche_vilco.benchmarks.protocols import Protocol
from avalanche_vilco.benchmarks.sources import (
    DataFiles,
    DataRoot,
    FeatureSources,
    find_root,
)
from avalanche_vilco.benchmarks.vilco_mq.annotations import (
    MomentAnnotations,
    read_moment_annotations,
)
from avalanche_vilco.benchmarks.vilco_mq.embedded import MINI_MQ
from avalanche_vilco.benchmarks.vilco_mq.layout import (
    ANNOTATION_FILES,
    QUERY_TEXT_FILE,
    find_annotations,
)
from avalanche_vilco.benchmarks.vilco_mq.official import read_official_moments


@dataclass(frozen=True, kw_only=True)
class MQSources(FeatureSources):
    """Where the files of Moment Queries lie, and how they are read."""

    annotations: Path | str | None = None
    """Annotation file or folder, if not in ``dataset_root``."""
    categories: Mapping[str, int] | Path | str | None = None
    """For Ego4D's own files, category ids: see
    :func:`~avalanche_vilco.benchmarks.vilco_mq.official.read_official_moments`."""
    features_per_sec: Annotated[float, Meta(gt=0, le=1000)] | None = None
    """For Ego4D's own files, steps of the features a second; default
    1.8741513727840071."""
    query_text: Path | str | None = None
    """Safetensors file of token features, label -> (L, C). Without one, each word has
    a fixed random vector: stated in ``scenario.info``."""
    clip_label_text: bool = False
    """Hand each clip its own ground-truth labels as text, at test too: a deviation of
    the public code, with the reference protocol only."""


@dataclass(frozen=True, kw_only=True)
class MomentFiles(DataFiles):
    """What was read of a data root."""

    annotations: MomentAnnotations
    query_text: Path | None


def read_moment_files(
    dataset_root: Path | str | None, sources: MQSources, protocol: Protocol
) -> MomentFiles:
    """Find and read the annotations of a data root.

    :param dataset_root: see :func:`~avalanche_vilco.vilco_mq`.
    :param sources: what lies elsewhere.
    :param protocol: says how windows are read.
    :raises FileNotFoundError: root or annotation file are absent.
    :raises DataError: an annotation file is damaged.
    :raises ValueError: sources say what the file states itself, or do not say what it
        does not state.
    """
    root = find_root(
        dataset_root, sources.annotations, benchmark="vilco_mq", embedded=MINI_MQ
    )
    path = _annotation_path(root, sources)
    text = sources.query_text
    if text is None and root.folder is not None:
        stored = root.folder / QUERY_TEXT_FILE
        text = stored if stored.is_file() else None
    read = _read_annotations(path, sources, protocol)
    folder = path if path.is_dir() else path.parent
    return MomentFiles(
        root=root,
        paths={name: folder / name for name in read.report.files},
        train_path=path,
        report=read.report,
        annotations=read,
        query_text=None if text is None else Path(text).expanduser(),
    )


def _annotation_path(root: DataRoot, sources: MQSources) -> Path:
    """The processed file, or else the folder of Ego4D's own files."""
    folder = root.folder
    if sources.annotations is not None:
        folder = Path(sources.annotations).expanduser()
        if not folder.is_dir():
            return folder
    assert folder is not None
    found = find_annotations(folder)
    if found is not None:
        return found
    raise FileNotFoundError(
        f"no annotation file in {folder}: expected one of "
        f"{', '.join(ANNOTATION_FILES)} there or in its folder annotations/; or pass "
        "annotations=FILE"
    )


def _read_annotations(
    path: Path, sources: MQSources, protocol: Protocol
) -> MomentAnnotations:
    if path.is_dir():
        read = read_official_moments(
            path,
            categories=sources.categories,
            features_per_sec=sources.features_per_sec,
            raw_windows=protocol.reads_raw,
        )
        if protocol.name == "reference" and read.label_id_source == "alphabetical":
            raise ValueError(
                f"protocol 'reference' needs the public category ids, which {path} "
                "does not state: pass categories=FILE"
            )
        return read
    for name in ("categories", "features_per_sec"):
        if getattr(sources, name) is not None:
            raise ValueError(f"{path} states {name} itself: leave the argument out")
    return read_moment_annotations(path, raw_windows=protocol.reads_raw)
