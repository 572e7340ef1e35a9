"""Where the parts of a Moment-Queries data root lie.

Licensed data and the embedded default are laid out alike; the files of narrations
are named in :mod:`avalanche_vilco.data.text.narrations`.
"""

from __future__ import annotations

from pathlib import Path

from avalanche_vilco.benchmarks.vilco_mq.official import (
    OFFICIAL_FILES,
    is_official_folder,
)

ANNOTATION_FILE = "ego4d_clip_annotations_v2.json"
FEATURE_FOLDER = "features"
QUERY_TEXT_FILE = "query_text.safetensors"
ANNOTATION_FILES = (
    ANNOTATION_FILE,
    "ego4d_clip_annotations.json",
    *OFFICIAL_FILES.values(),
)
"""Names that are looked for: the processed file, then Ego4D's own."""

_PROCESSED = ANNOTATION_FILES[:2]


def find_annotations(root: Path) -> Path | None:
    """The processed annotation file of a root, else the folder of Ego4D's own files.

    :param root: data root; its folder ``annotations`` is searched too.
    :return: file or folder, ``None`` if there is neither.
    """
    folders = (root, root / "annotations")
    processed = [folder / name for folder in folders for name in _PROCESSED]
    found = [path for path in processed if path.is_file()]
    found += [folder for folder in folders if is_official_folder(folder)]
    return found[0] if found else None
