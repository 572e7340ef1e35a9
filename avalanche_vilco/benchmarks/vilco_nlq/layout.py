"""Where the parts of a data root of Natural Language Queries lie."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from avalanche_vilco.core.files import existing

OFFICIAL_NLQ_FILES = {
    "train": "nlq_train.json",
    "val": "nlq_val.json",
    "test": "nlq_test_unannotated.json",
}
"""Subset -> name of Ego4D's own file."""
FLATTENED_NLQ_FILES = {
    subset: (f"ego4d_nlq_{subset}_v2.jsonl", f"ego4d_nlq_{subset}.jsonl")
    for subset in OFFICIAL_NLQ_FILES
}
"""Subset -> names of the public code's file."""
ANNOTATION_FILES = (
    *OFFICIAL_NLQ_FILES.values(),
    *chain(*zip(FLATTENED_NLQ_FILES["train"], FLATTENED_NLQ_FILES["val"], strict=True)),
)
"""Names by which a data root is known."""
NLQ_TEXT_FILE = "nlq_query_text.safetensors"
"""Token features of questions by query id, in a data root."""


def find_nlq_files(folder: Path) -> dict[str, Path]:
    """Annotation files of a folder, Ego4D's own before flattened ones.

    :param folder: any folder.
    :return: subset -> file, of the subsets that have one.
    """
    found: dict[str, Path] = {}
    for subset, official in OFFICIAL_NLQ_FILES.items():
        names = (official, *FLATTENED_NLQ_FILES[subset])
        paths = [existing(folder / name) for name in names]
        there = [path for path in paths if path.is_file()]
        if there:
            found[subset] = there[0]
    return found
