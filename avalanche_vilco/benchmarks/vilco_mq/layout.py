"""Where the parts of a Moment-Queries data root lie.

Licensed data and the embedded default are laid out alike; the folder of features is
named in :mod:`avalanche_vilco.benchmarks.sources`, the files of narrations in
:mod:`avalanche_vilco.data.text.narrations`.
"""

from __future__ import annotations

from pathlib import Path

from avalanche_vilco.core.files import existing

ANNOTATION_FILE = "ego4d_clip_annotations_v2.json"
PROCESSED_FILES = (ANNOTATION_FILE, "ego4d_clip_annotations.json")
OFFICIAL_FILES = {
    "train": "moments_train.json",
    "val": "moments_val.json",
    "test": "moments_test_unannotated.json",
}
"""Subset -> name of Ego4D's own file; only test may be absent."""
ANNOTATION_FILES = (*PROCESSED_FILES, *OFFICIAL_FILES.values())
"""Names that are looked for: the processed file, then Ego4D's own."""
CATEGORY_FILE = "moment_classes_idx.json"
"""Category name -> id, read when it lies beside the official files."""
QUERY_TEXT_FILE = "query_text.safetensors"


def find_annotations(root: Path) -> Path | None:
    """The processed annotation file of a root, else the folder of Ego4D's own files.

    :param root: data root; its folder ``annotations`` is searched too.
    :return: file or folder, ``None`` if there is neither.
    """
    folders = (root, root / "annotations")
    paths = [existing(folder / name) for folder in folders for name in PROCESSED_FILES]
    found = [path for path in paths if path.is_file()]
    for folder in folders:
        paths = [existing(folder / OFFICIAL_FILES[name]) for name in ("train", "val")]
        if all(path.is_file() for path in paths):
            found.append(folder)
    return found[0] if found else None
