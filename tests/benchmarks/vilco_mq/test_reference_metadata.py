"""The public code's metadata pickle becomes a manifest."""

import copy
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from avalanche_vilco import vilco_mq
from avalanche_vilco.benchmarks.manifest import open_manifest
from avalanche_vilco.benchmarks.vilco_mq.reference_metadata import (
    read_reference_metadata,
)
from avalanche_vilco.benchmarks.vilco_mq.split import MQ_RULES
from avalanche_vilco.core.errors import DataError


@pytest.fixture(scope="module")
def benchmark(mq_root):
    return vilco_mq(mq_root, protocol="reference")


@pytest.fixture(scope="module")
def metadata(benchmark) -> dict[str, Any]:
    """The public structure of the benchmark's split."""
    order = benchmark.classes_order
    parts: dict[str, Any] = {"train": {}, "val": {}}
    for subset, stream in (("train", "train"), ("val", "test")):
        samples = benchmark.datasets[stream].samples
        for number, experience in enumerate(benchmark.streams[stream]):
            labels = {q.name: q.label_id for q in experience.queries_in_this_experience}
            own = [samples[i] for i in experience.dataset.positions]
            parts[subset][number] = {
                "dict_db": [
                    {
                        "id": sample.clip.clip_id,
                        "fps": sample.clip.features_per_sec,
                        "segments": sample.windows_sec.astype(np.float32),
                        "labels": [np.int64(order[c]) for c in sample.class_indices],
                        "segmentation_labels": torch.zeros(4, 10),
                    }
                    for sample in own
                ],
                "label_dict": labels,
                "ori_label_dict": labels,
            }
    return parts


def read(path: Path) -> Any:
    pinned = open_manifest(path, MQ_RULES, read_public=read_reference_metadata)
    return pinned.manifest


def save(folder: Path, content: Any, protocol: int = 4) -> Path:
    path = folder / "meta.pkl"
    path.write_bytes(pickle.dumps(content, protocol))
    return path


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickle_becomes_the_manifest_that_it_was_made_from(
    tmp_path, benchmark, metadata, protocol
):
    found = read(save(tmp_path, metadata, protocol)).to_dict()
    made = benchmark.manifest()
    for field in ("protocol", "protocol_version", "groups", "streams", "windows"):
        assert found[field] == made[field]
    assert found["files"] == {}
    assert found["source"]["file"] == "meta.pkl"


def test_order_of_tasks_in_the_pickle_does_not_matter(tmp_path, benchmark, metadata):
    train = {number: metadata["train"][number] for number in (1, 2, 3, 0, 4)}
    path = save(tmp_path, {"train": train, "val": metadata["val"]})
    assert read(path).streams == benchmark.manifest()["streams"]


def test_pickle_makes_the_same_benchmark(mq_root, tmp_path, benchmark, metadata):
    again = vilco_mq(mq_root, manifest=save(tmp_path, metadata))
    assert again.info == benchmark.info
    for name, data in benchmark.datasets.items():
        ours = [(s.clip.clip_id, s.windows_sec.tolist()) for s in data.samples]
        other = again.datasets[name].samples
        assert [(s.clip.clip_id, s.windows_sec.tolist()) for s in other] == ours


def test_pickle_of_another_annotation_file_is_refused(mq_root, tmp_path, metadata):
    changed = copy.deepcopy(metadata)
    clip = changed["train"][0]["dict_db"][0]
    clip["segments"] = np.concatenate([clip["segments"], clip["segments"][:1]])
    clip["labels"] = [*clip["labels"], clip["labels"][0]]
    with pytest.raises(DataError, match=r"windows but the annotations give"):
        vilco_mq(mq_root, manifest=save(tmp_path, changed))


class Call:
    def __reduce__(self) -> tuple:
        return os.system, ("true",)


def at(*keys: Any, value: Any = ...) -> Callable[[Any], Any]:
    """Puts a value in a place, or takes away what is there."""

    def change(content: Any) -> Any:
        target = content
        for key in keys[:-1]:
            target = target[key]
        if value is ...:
            del target[keys[-1]]
        else:
            target[keys[-1]] = value
        return content

    return change


CLIP = ("train", 0, "dict_db", 0)
SPOT = "train[0].dict_db[0]"
WRONG: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a list": (lambda content: [content], "Expected `object`, got `array`"),
    "no val": (at("val"), "missing required field `val`"),
    "no task": (at("train", value={}), "field 'train': expected tasks"),
    "a task missing": (at("train", 1), "field 'train': expected tasks 0, 1"),
    "a task less in val": (at("val", 4), "train has 5 tasks, val 4"),
    "tasks by name": (at("train", value={"0": 1}), "expected tasks 0, 1"),
    "a clip a list": (at(*CLIP, value=[]), f"'{SPOT}': Expected `object`"),
    "no id": (at(*CLIP, "id"), f"'{SPOT}': Object missing required field `id`"),
    "id a path": (at(*CLIP, "id", value="../x"), "record '../x'"),
    "segments a list": (at(*CLIP, "segments", value=[]), "but got list"),
    "segments of another shape": (
        at(*CLIP, "segments", value=np.zeros((90, 2), np.float32)),
        f"'{SPOT}.segments': expected an array (",
    ),
    "segments a tensor": (
        at(*CLIP, "segments", value=torch.zeros(1, 2)),
        "a row a label, but got NoneType",
    ),
    "a label of another task": (
        lambda content: at(
            *CLIP,
            "labels",
            value=[np.int64(9)] * len(content["train"][0]["dict_db"][0]["labels"]),
        )(content),
        f"'{SPOT}.labels'",
    ),
    "label ids text": (
        at("train", 0, "label_dict", value={"a": "0"}),
        "'train[0].label_dict': expected name: id",
    ),
    "other labels in val": (
        at("val", 0, "label_dict", value={"a": 0}),
        "different categories",
    ),
    "a clip twice": (
        lambda c: at(*CLIP, "id", value=c["train"][0]["dict_db"][1]["id"])(c),
        "already",
    ),
    "a call": (at(*CLIP, "fps", value=Call()), f"it asks for {os.name}.system"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_structure_is_one_named_error(tmp_path, metadata, case):
    change, problem = WRONG[case]
    path = save(tmp_path, change(copy.deepcopy(metadata)))
    with pytest.raises(DataError) as caught:
        read(path)
    assert str(caught.value).startswith(str(path))
    assert problem in str(caught.value)


def test_truncated_pickle_is_one_named_error(tmp_path, metadata):
    data = pickle.dumps(metadata)
    path = tmp_path / "meta.pkl"
    for end in range(0, len(data), max(1, len(data) // 40)):
        path.write_bytes(data[:end])
        with pytest.raises(DataError, match=r"meta\.pkl"):
            read(path)


def test_public_split_of_the_real_file_is_read(shared_dir, tmp_path):
    annotations = shared_dir / "data" / "ego4d_mq" / "ego4d_clip_annotations_v2.json"
    names = {
        window["label_id"]: window["label"]
        for clip in json.loads(annotations.read_text()).values()
        for window in clip["annotations"]
    }
    oracle = json.loads(
        (shared_dir / "oracles" / "mq" / "official_split.json").read_text()
    )["splits"]
    ids = sorted(names)
    metadata = {
        subset: {
            task: {
                "dict_db": [
                    {**clip, "segments": np.array(clip["segments"], np.float32)}
                    for clip in oracle[subset][str(task)]
                ],
                "label_dict": {names[i]: i for i in ids[22 * task : 22 * task + 22]},
            }
            for task in range(5)
        }
        for subset in ("train", "val")
    }
    found = read(save(tmp_path, metadata))
    for subset, stream in (("train", "train"), ("val", "test")):
        parts = [oracle[subset][str(task)] for task in range(5)]
        assert found.streams[stream] == [
            [clip["id"] for clip in part] for part in parts
        ]
        assert found.windows[stream] == [
            sum(len(clip["labels"]) for clip in part) for part in parts
        ]
