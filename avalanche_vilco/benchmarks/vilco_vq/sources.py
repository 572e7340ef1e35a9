"""Where the files of Visual Queries lie, and how they are read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from avalanche_vilco.benchmarks.items import check_disjoint_parents
from avalanche_vilco.benchmarks.sources import (
    AnnotationSource,
    DataFiles,
    DataRoot,
    annotation_files,
    find_root,
)
from avalanche_vilco.benchmarks.vilco_vq.annotations import (
    CLIP_FOLDER,
    OFFICIAL_VQ_FILES,
    VisualAnnotations,
    find_vq_files,
    read_unlabelled_visual_queries,
    read_visual_queries,
)
from avalanche_vilco.benchmarks.vilco_vq.clip_videos import VisualPictures
from avalanche_vilco.benchmarks.vilco_vq.dataset import N_FRAMES
from avalanche_vilco.benchmarks.vilco_vq.embedded import MINI_VQ
from avalanche_vilco.data.media.video import VideoFolder

IMAGE_SIZE = 448
"""Pixels of the square pictures of real clips."""
EMBEDDED_CROP_SIZE = 32
"""Pixels of a crop of the embedded default."""


@dataclass(frozen=True, kw_only=True)
class VQSources:
    """Where the files of Visual Queries lie, and how they are read."""

    annotations: AnnotationSource | None = None
    """Folder, or subset (``"train"``, ``"val"``, ``"test"``) -> file, if not in
    ``dataset_root``."""
    videos: Path | str | None = None
    """Folder of the clips, if not ``dataset_root/clips``."""
    backend: Literal["auto", "decord", "pyav"] = "auto"
    """Decoder, see :func:`~avalanche_vilco.data.media.video.open_video`."""
    image_size: Annotated[int, Meta(ge=1)] | None = None
    """Pixels of the square that frames are fitted into; default 448, for the embedded
    default 128."""
    crop_size: Annotated[int, Meta(ge=1)] | None = None
    """Pixels of the square that a crop is scaled to; default ``image_size``, as in
    VQLoC; for the embedded default 32, about the size of its objects in a frame, since
    its backbone does not know one texture in two sizes."""
    n_frames: Annotated[int, Meta(ge=1)] = N_FRAMES
    """Frames of a window."""
    augment: bool = False
    """Change training windows at random (colours, mirroring, a cut-out), all frames of
    a window alike."""
    draw_seed: Annotated[int, Meta(ge=0)] = 0
    """Seed of what is drawn for training samples."""
    narrations: bool = False
    """Have training samples carry the object's title, as ViLCo's self-supervision takes
    it."""
    missing: Literal["error", "drop"] = "error"
    """``"error"`` lists all clips whose video is missing, damaged, another one, or of a
    kind that is not read, and stops; ``"drop"`` leaves their queries out and counts
    them by reason."""


@dataclass(frozen=True, kw_only=True)
class VisualFiles(DataFiles):
    """What was read of a data root."""

    annotations: VisualAnnotations
    pictures: VisualPictures


def read_visual_files(
    dataset_root: Path | str | None, sources: VQSources, *, is_labelled: bool = True
) -> VisualFiles:
    """Find and read the annotations of a data root.

    :param dataset_root: see :func:`~avalanche_vilco.vilco_vq`.
    :param sources: what lies elsewhere.
    :param is_labelled: False reads the unannotated test file.
    :raises FileNotFoundError: root or annotation files are absent.
    :raises DataError: annotations are damaged, or train and val share a parent video.
    """
    subsets = ("train", "val") if is_labelled else ("test",)
    root, files = _find_files(dataset_root, sources, subsets)
    if is_labelled:
        read = read_visual_queries(files)
        check_disjoint_parents(read.clips.values(), files["val"])
    else:
        read = read_unlabelled_visual_queries(files["test"])
    paths = list(read.files.values())
    return VisualFiles(
        root=root,
        paths={path.name: path for path in paths},
        train_path=paths[0],
        report=read.report,
        annotations=read,
        pictures=_pictures(root, sources),
    )


def annotation_file(
    dataset_root: Path | str | None, sources: VQSources, subset: str
) -> Path:
    """Annotation file of one subset.

    :param dataset_root: see :func:`~avalanche_vilco.vilco_vq`.
    :param sources: what lies elsewhere; one annotation path is this file.
    :param subset: ``"train"``, ``"val"`` or ``"test"``.
    :raises FileNotFoundError: root or file are absent.
    """
    return _find_files(dataset_root, sources, (subset,))[1][subset]


def _find_files(
    dataset_root: Path | str | None, sources: VQSources, subsets: tuple[str, ...]
) -> tuple[DataRoot, dict[str, Path]]:
    """The root, and the annotation file of each subset."""
    given = sources.annotations
    root = find_root(dataset_root, given, benchmark="vilco_vq", embedded=MINI_VQ)
    names = {subset: OFFICIAL_VQ_FILES[subset] for subset in subsets}
    return root, annotation_files(given, root, names, find_vq_files)


def _pictures(root: DataRoot, sources: VQSources) -> VisualPictures:
    """Reads the clips, in the sizes that suit them where none is given."""
    folder = sources.videos
    if folder is None:
        if root.folder is None:
            raise FileNotFoundError(
                "pass videos=FOLDER with <clip uid>.mp4 for each clip"
            )
        folder = root.folder / CLIP_FOLDER
    image_size, crop_size = sources.image_size, sources.crop_size
    if root.is_embedded:
        image_size = image_size or max(MINI_VQ.frame_size)
        crop_size = crop_size or EMBEDDED_CROP_SIZE
    videos = VideoFolder(folder, backend=sources.backend)
    return VisualPictures(videos, image_size or IMAGE_SIZE, crop_size=crop_size)
