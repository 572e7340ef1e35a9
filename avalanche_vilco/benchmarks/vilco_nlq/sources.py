"""Where the files of Natural Language Queries lie, and how they are read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from avalanche_vilco.benchmarks.items import check_disjoint_parents
from avalanche_vilco.benchmarks.protocols import Protocol
from avalanche_vilco.benchmarks.sources import (
    AnnotationSource,
    DataFiles,
    FeatureSources,
    annotation_files,
    find_root,
)
from avalanche_vilco.benchmarks.vilco_nlq.annotations import (
    LanguageAnnotations,
    read_language_queries,
    read_unlabelled_queries,
)
from avalanche_vilco.benchmarks.vilco_nlq.dataset import FEATURES_PER_SEC, TextSource
from avalanche_vilco.benchmarks.vilco_nlq.embedded import MINI_NLQ
from avalanche_vilco.benchmarks.vilco_nlq.layout import (
    NLQ_TEXT_FILE,
    OFFICIAL_NLQ_FILES,
    find_nlq_files,
)


@dataclass(frozen=True, kw_only=True)
class NLQSources(FeatureSources):
    """Where the files of Natural Language Queries lie, and how they are read."""

    annotations: AnnotationSource | None = None
    """Folder, or subset (``"train"``, ``"val"``, ``"test"``) -> file, if not in
    ``dataset_root``."""
    small_data: bool = False
    """Where the train file or its features are not at hand: make all streams of the
    val file, three tenths of its clips, by parent video, for test."""
    untemplated: Literal["nearest", "apart"] = "nearest"
    """What becomes of questions without template: ``"nearest"`` gives them to the
    template with the nearest words (public rule), ``"apart"`` leaves them out,
    counted. A flattened train file names no template at all: they are predicted, see
    :func:`~avalanche_vilco.benchmarks.vilco_nlq.split.assign_templates`, and
    ``scenario.info["templates"]`` says ``"predicted"``."""
    features_per_sec: Annotated[float, Meta(gt=0, le=1000)] = FEATURES_PER_SEC
    """Steps of the features a second; default that of the public features, a step
    every 16.043 frames at 30 frames a second."""
    query_text: TextSource | None = None
    """Store of token features by query id, or several (public code has one for each
    subset): safetensors file, LMDB, or folder of ``<query_id>.pt``. Without one, each
    word has a fixed random vector: stated in ``scenario.info``."""
    text_model: Path | str | None = None
    """Instead, folder of a local CLIP model; its features are computed once and kept in
    the cache."""


@dataclass(frozen=True, kw_only=True)
class QuestionFiles(DataFiles):
    """What was read of a data root."""

    annotations: LanguageAnnotations
    query_text: TextSource | None
    text_name: str


def read_question_files(
    dataset_root: Path | str | None, sources: NLQSources, protocol: Protocol | None
) -> QuestionFiles:
    """Find and read the annotations of a data root.

    :param dataset_root: see :func:`~avalanche_vilco.vilco_nlq`.
    :param sources: what lies elsewhere.
    :param protocol: says how windows and texts are read; ``None`` reads the unannotated
        test file.
    :raises FileNotFoundError: root or annotation files are absent.
    :raises DataError: annotations are damaged, or train and val share a parent video.
    """
    root = find_root(
        dataset_root, sources.annotations, benchmark="vilco_nlq", embedded=MINI_NLQ
    )
    subsets: tuple[str, ...] = ("val",) if sources.small_data else ("train", "val")
    if protocol is None:
        subsets = ("test",)
    names = {subset: OFFICIAL_NLQ_FILES[subset] for subset in subsets}
    hints = {"train": "; small_data=True makes do with val"}
    files = annotation_files(sources.annotations, root, names, find_nlq_files, hints)
    if protocol is None:
        read = read_unlabelled_queries(files["test"])
    else:
        read = read_language_queries(files, is_raw=protocol.reads_raw)
        check_disjoint_parents(read.clips.values(), files["val"])
    text = sources.query_text
    if text is None and sources.text_model is None and root.folder is not None:
        stored = root.folder / NLQ_TEXT_FILE
        text = stored if stored.is_file() else None
    paths = list(read.files.values())
    return QuestionFiles(
        root=root,
        paths={path.name: path for path in paths},
        train_path=paths[0],
        report=read.report,
        annotations=read,
        query_text=text,
        text_name=_text_name(text, sources.text_model),
    )


def _text_name(source: TextSource | None, text_model: Path | str | None) -> str:
    if text_model is not None:
        return f"CLIP {Path(text_model).name}"
    if source is None:
        return "hashed words"
    paths = [source] if isinstance(source, (str, Path)) else source
    return ", ".join(Path(path).name for path in paths)
