"""Where a benchmark's files lie, and how they are read: what benchmarks share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from msgspec import Meta

from avalanche_vilco.benchmarks.embedded import EmbeddedConfig
from avalanche_vilco.benchmarks.items import Item, drop_clips
from avalanche_vilco.core.report import DataReport
from avalanche_vilco.core.settings import check_options, option_types
from avalanche_vilco.data.features import (
    ALL_CLIPS,
    READABLE,
    TOLERANCE_STEPS,
    CachedFeatures,
    FeatureSource,
    FeatureStore,
    open_features,
)
from avalanche_vilco.data.moments import MomentClip
from avalanche_vilco.data.text.narrations import (
    ClipNarrations,
    NarrationStore,
    narration_files,
)

DATA_ROOT_VARIABLE = "AVALANCHE_VILCO_DATA"
FEATURE_FOLDER = "features"
EMBEDDED_CACHE_BYTES = 32 * 2**20
"""Holds the whole embedded default: its small files cost more to open than to read."""

AnnotationSource: TypeAlias = Path | str | Mapping[str, Path | str]
"""A folder, or subset -> file."""
S = TypeVar("S")


@dataclass(frozen=True, kw_only=True)
class FeatureSources:
    """Where the features of clips are, and how they are read."""

    features: FeatureSource | None = None
    """Where features are, if not in ``dataset_root/features`` or in one file of that
    name, such as ``features.h5``: a path, a store, or several to be concatenated on
    channels, as :func:`~avalanche_vilco.data.features.open_features` takes them."""
    features_of: Literal["clips", "videos"] = "clips"
    """``"videos"`` if the source has whole parent videos, from which clips are cut."""
    grid: Annotated[int, Meta(ge=1)] | None = None
    """Resize the features of every clip to this many steps (public code: 1024)."""
    narrations: bool | NarrationStore = False
    """Have training samples carry sentences about their clips, for self-supervision:
    ``True`` reads them from ``dataset_root``, a store has them already. Evaluation
    never sees any."""
    missing: Literal["error", "drop"] = "error"
    """``"error"`` lists all clips without features and stops, ``"drop"`` leaves them
    out and counts them."""
    length_tolerance: Annotated[float, Meta(ge=0)] = TOLERANCE_STEPS
    """Accepted difference, in steps, between the features' length and duration x
    rate + 1 - ``window_steps``."""
    window_steps: Annotated[float, Meta(gt=0, le=1000)] = 1.0
    """Steps that one step of the encoder saw, its window over its stride: 2 for windows
    of 32 frames every 16, of which fewer fit into a clip. It changes which lengths are
    expected of clips that were extracted one by one, and nothing else."""


def checked_sources(kind: type[S], given: S | Mapping[str, Any] | None) -> S:
    """Sources whose fields have the right names, types and ranges.

    :param kind: dataclass of the benchmark.
    :param given: one of these, a mapping of its fields, or ``None`` for defaults.
    :raises ValueError: names the field, what was expected, and close names.
    """
    if isinstance(given, Mapping):
        values = dict(given)
    elif given is None or isinstance(given, kind):
        values = {} if given is None else vars(given)
    else:
        raise ValueError(
            f"expected sources as {kind.__name__} or a mapping but got {given!r:.80}"
        )
    check_options("sources", values, option_types(kind))
    return kind(**values)


@dataclass(frozen=True)
class DataRoot:
    """The folder that a benchmark's files are in."""

    folder: Path | None
    """``None`` if sources name all files."""
    description: str
    """What results call the data."""
    is_embedded: bool


@dataclass(frozen=True, kw_only=True)
class DataFiles:
    """What was read of a root, as a split needs it."""

    root: DataRoot
    paths: Mapping[str, Path]
    """Annotation files by name."""
    train_path: Path
    """The file that training items are of."""
    report: DataReport
    """The annotation files' hashes, and counts."""


def find_root(
    dataset_root: Path | str | None,
    annotations: Any,
    *,
    benchmark: str,
    embedded: EmbeddedConfig,
) -> DataRoot:
    """The root that was given, else the environment's, else the embedded default.

    :param dataset_root: folder.
    :param annotations: annotation source; with one no root is looked for.
    :param benchmark: name of the generator, for errors.
    :param embedded: the embedded default.
    :raises FileNotFoundError: there is no such folder.
    """
    if dataset_root is None and annotations is None:
        dataset_root = os.environ.get(DATA_ROOT_VARIABLE) or None
    if dataset_root is None and annotations is None:
        description = f"embedded generated v{embedded.version}"
        return DataRoot(embedded.root(), description, True)
    folder = None if dataset_root is None else Path(dataset_root).expanduser()
    if folder is not None and not folder.is_dir():
        raise FileNotFoundError(
            f"no data folder at {folder}; {benchmark}() without arguments uses the "
            "embedded default"
        )
    return DataRoot(folder, "user data", False)


def annotation_files(
    source: AnnotationSource | None,
    root: DataRoot,
    names: Mapping[str, str],
    find: Callable[[Path], Mapping[str, Path]],
    hints: Mapping[str, str] | None = None,
) -> dict[str, Path]:
    """Annotation file of each subset, in the root or its folder ``annotations``.

    :param source: folder or files, instead of the root's; of one subset also its file,
        and files of other subsets alone leave it to the root.
    :param root: the root.
    :param names: subset -> name that its file is expected to have, for errors.
    :param find: gives the files of a folder by subset.
    :param hints: subset -> what else to do without its file.
    :raises FileNotFoundError: a subset has no file.
    """
    found: dict[str, Path] = {}
    where = "the files that annotations names"
    if len(names) == 1:
        (subset,) = names
        if isinstance(source, (str, Path)) and Path(source).expanduser().is_file():
            source = {subset: source}
        elif isinstance(source, Mapping) and subset not in source and root.folder:
            source = None
    if isinstance(source, Mapping):
        found = {subset: Path(path).expanduser() for subset, path in source.items()}
    else:
        base = root.folder if source is None else Path(source).expanduser()
        assert base is not None
        where = f"{base} or its folder annotations/"
        for folder in (base / "annotations", base):
            found.update(find(folder))
    for subset, name in names.items():
        if subset not in found:
            hint = (hints or {}).get(subset, "")
            raise FileNotFoundError(
                f"no {subset} annotations in {where}: expected {name}{hint}"
            )
    return {subset: found[subset] for subset in names}


def features_in(root: Path) -> Path:
    """Features of a data root: the folder, else one file of all clips, if it is alone.

    :param root: the root.
    """
    folder = root / FEATURE_FOLDER
    files = [path for path in map(folder.with_suffix, ALL_CLIPS) if path.exists()]
    return files[0] if len(files) == 1 and not folder.exists() else folder


def open_clip_features(
    items: Sequence[Item],
    clips: Mapping[str, MomentClip],
    sources: FeatureSources,
    files: DataFiles,
    units: Sequence[str],
) -> tuple[FeatureStore, list[Item]]:
    """The features of clips, and the items whose clips have them.

    :param items: all items.
    :param clips: clip id -> clip that may be read; cut from videos where the source
        has these.
    :param sources: where features are, and what becomes of items without.
    :param files: the root, and the report that counts items that are left out.
    :param units: what their windows count as.
    :raises FileNotFoundError: neither features nor a root are given.
    :raises FeatureError: features are missing, damaged or of another length; lists
        all.
    :raises ValueError: it is not known where in its video a clip starts.
    """
    source = sources.features
    if source is None:
        if files.root.folder is None:
            raise FileNotFoundError(f"pass features=PATH: {READABLE}")
        source = features_in(files.root.folder)
    is_cut = sources.features_of == "videos"
    cuts = _cuts(list(clips.values())) if is_cut else None
    store = open_features(source, cuts=cuts, grid=sources.grid)
    if files.root.is_embedded:
        store = CachedFeatures(store, EMBEDDED_CACHE_BYTES)
    if sources.missing == "drop":
        missing = store.missing(dict.fromkeys(item.clip_id for item in items))
        reasons = dict.fromkeys(missing, "no feature file")
        items = drop_clips(items, reasons, files.report, stage="features", units=units)
    read = [clips[clip_id] for clip_id in dict.fromkeys(i.clip_id for i in items)]
    lost = 0.0 if is_cut else sources.window_steps - 1
    expected = {c.clip_id: c.duration_sec * c.features_per_sec - lost for c in read}
    store.preflight(expected, tolerance=sources.length_tolerance)
    return store, list(items)


def _cuts(clips: Sequence[MomentClip]) -> dict[str, tuple[str, float, float, float]]:
    unknown = [clip.clip_id for clip in clips if clip.video_start_sec is None]
    if unknown:
        raise ValueError(
            "features_of='videos' needs parent_start_sec, or Ego4D's own files, which "
            "say where in its video a clip starts: unknown of "
            f"{len(unknown)} clips, of {unknown[0]} first"
        )
    cuts = {}
    for clip in clips:
        start = clip.video_start_sec or 0.0
        end = start + clip.duration_sec
        cuts[clip.clip_id] = (clip.video_id, start, end, clip.features_per_sec)
    return cuts


def open_narrations(
    sources: FeatureSources, files: DataFiles, clips: Iterable[MomentClip]
) -> ClipNarrations | None:
    """Sentences about clips, if any are wanted; those of other clips are counted.

    :param sources: whether, and of which store.
    :param files: the root, and the report that counts.
    :param clips: all annotated clips.
    :raises FileNotFoundError: they are asked for without a root.
    """
    store = sources.narrations
    if store is False:
        return None
    if store is True:
        if files.root.folder is None:
            raise FileNotFoundError(
                "narrations=True reads them from dataset_root: pass one, or pass "
                "narrations=NarrationStore(...)"
            )
        durations = {clip.clip_id: clip.duration_sec for clip in clips}
        sentences, features = narration_files(files.root.folder)
        store = NarrationStore(sentences, features, durations_sec=durations)
        files.report.include(store.report)
    return ClipNarrations(store)
