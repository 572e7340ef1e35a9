"""Visual queries as the public code divides them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from avalanche_vilco.benchmarks.vilco_vq.annotations import OFFICIAL_VQ_FILES, title_key


@pytest.fixture(scope="session")
def public_metadata() -> Callable[[Path], Any]:
    """What the public script's pickle holds of a root, in two tasks by the length of
    titles."""

    def metadata(root: Path) -> Any:
        parts: Any = {}
        for subset in ("train", "val"):
            parts[subset] = {task: {"dict_db": []} for task in range(2)}
            content = json.loads((root / OFFICIAL_VQ_FILES[subset]).read_text())
            clips = [clip for video in content["videos"] for clip in video["clips"]]
            for annotation in [a for clip in clips for a in clip["annotations"]]:
                for labels in annotation["query_sets"].values():
                    if not (labels["is_valid"] and labels["object_title"]):
                        continue
                    item = {
                        "annotation_uid": annotation["annotation_uid"],
                        "object_title": labels["object_title"],
                        "duration": -10.0,
                        "labels": labels,
                        "query_type": "vq",
                    }
                    task = len(title_key(labels["object_title"])) % 2
                    parts[subset][task]["dict_db"].append(item)
        return parts

    return metadata
