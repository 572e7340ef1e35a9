"""The public code's metadata pickle: to a manifest and back."""

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
from avalanche_vilco.benchmarks.manifest import parse_manifest
from avalanche_vilco.benchmarks.vilco_mq.annotations import read_moment_annotations
from avalanche_vilco.benchmarks.vilco_mq.reference_metadata import (
    read_reference_metadata,
    reference_metadata,
    write_reference_metadata,
)
from avalanche_vilco.core.errors import DataError

FILE = "ego4d_clip_annotations_v2.json"


@pytest.fixture(scope="module")
def benchmark(mq_root):
    return vilco_mq(mq_root, protocol="reference")


@pytest.fixture(scope="module")
def metadata(mq_root, benchmark) -> dict[str, Any]:
    read = read_moment_annotations(mq_root / FILE, windows="raw")
    return reference_metadata(parse_manifest(benchmark.manifest()), read)


def save(folder: Path, content: Any, protocol: int = 4) -> Path:
    path = folder / "meta.pkl"
    path.write_bytes(pickle.dumps(content, protocol))
    return path


def test_metadata_has_the_public_structure(metadata):
    assert list(metadata) == ["train", "val"]
    task = metadata["train"][0]
    assert task["label_dict"] == task["ori_label_dict"]
    assert list(task["label_dict"].values()) == [0, 1]
    clip = task["dict_db"][0]
    assert clip["segments"].dtype == np.float32
    assert clip["segments"].shape == (len(clip["labels"]), 2)
    assert all(type(label) is np.int64 for label in clip["labels"])
    seconds = clip["segmentation_labels"]
    assert seconds.dtype == torch.float32
    assert seconds.shape == (int(clip["duration"]), 10)
    assert not seconds[:, 2:].any()
    (start, end), label = clip["segments"][0], int(clip["labels"][0])
    inside = seconds[:, label].nonzero().flatten().tolist()
    assert set(range(int(start) + 1, int(np.ceil(end)))) <= set(inside)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickle_becomes_the_manifest_that_it_was_made_from(
    tmp_path, benchmark, metadata, protocol
):
    read = read_reference_metadata(save(tmp_path, metadata, protocol)).to_dict()
    made = benchmark.manifest()
    for field in ("protocol", "protocol_version", "groups", "streams", "windows"):
        assert read[field] == made[field]
    assert read["files"] == {}
    assert read["source"]["file"] == "meta.pkl"


def test_order_of_tasks_in_the_pickle_does_not_matter(tmp_path, benchmark, metadata):
    train = {number: metadata["train"][number] for number in (1, 2, 3, 0, 4)}
    path = save(tmp_path, {"train": train, "val": metadata["val"]})
    read = read_reference_metadata(path)
    assert read.streams == benchmark.manifest()["streams"]


def test_pickle_makes_the_same_benchmark(mq_root, tmp_path, benchmark, metadata):
    path = tmp_path / "meta.pkl"
    write_reference_metadata(path, metadata)
    again = vilco_mq(mq_root, manifest=path)
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


def test_split_that_the_structure_cannot_hold_is_refused(mq_root):
    read = read_moment_annotations(mq_root / FILE, windows="raw")
    for options in ({}, {"protocol": "reference", "valid_share": 0.2}):
        made = parse_manifest(vilco_mq(mq_root, **options).manifest())
        with pytest.raises(ValueError, match="expected a split of protocol 'refer"):
            reference_metadata(made, read)


def test_segmentation_labels_can_be_left_out(mq_root, benchmark):
    read = read_moment_annotations(mq_root / FILE, windows="raw")
    made = parse_manifest(benchmark.manifest())
    slim = reference_metadata(made, read, segmentation_labels=False)
    assert "segmentation_labels" not in slim["train"][0]["dict_db"][0]


# Damage


class Call:
    def __reduce__(self) -> tuple:
        return os.system, ("true",)


def at(*keys: Any, value: Any) -> Callable[[Any], Any]:
    def change(content: Any) -> Any:
        target = content
        for key in keys[:-1]:
            target = target[key]
        target[keys[-1]] = value
        return content

    return change


def gone(*keys: Any) -> Callable[[Any], Any]:
    def change(content: Any) -> Any:
        target = content
        for key in keys[:-1]:
            target = target[key]
        del target[keys[-1]]
        return content

    return change


CLIP = ("train", 0, "dict_db", 0)
SPOT = "train[0].dict_db[0]"
WRONG: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a list": (lambda content: [content], "expected a dict but got a list"),
    "no val": (gone("val"), "field 'val': is missing"),
    "no task": (at("train", value={}), "field 'train': expected tasks"),
    "a task missing": (gone("train", 1), "field 'train': expected tasks 0, 1"),
    "a task less in val": (gone("val", 4), "train has 5 tasks, val 4"),
    "tasks by name": (at("train", value={"0": 1}), "expected tasks 0, 1"),
    "no clips": (gone("train", 0, "dict_db"), "'train[0].dict_db': is missing"),
    "clips a dict": (at("train", 0, "dict_db", value={}), "expected a list"),
    "a clip a list": (at(*CLIP, value=[]), f"'{SPOT}': expected a dict"),
    "no id": (gone(*CLIP, "id"), f"'{SPOT}.id': is missing"),
    "id a number": (at(*CLIP, "id", value=3), f"'{SPOT}.id': expected a str"),
    "id a path": (at(*CLIP, "id", value="../x"), "record '../x'"),
    "segments a list": (at(*CLIP, "segments", value=[]), "expected a ndarray"),
    "segments of another shape": (
        at(*CLIP, "segments", value=np.zeros((90, 2), np.float32)),
        f"'{SPOT}.segments': expected (",
    ),
    "segments a tensor": (
        at(*CLIP, "segments", value=torch.zeros(1, 2)),
        "expected a ndarray but got a NoneType",
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
    "no labels": (
        lambda c: at("val", 0, "label_dict", value={})(
            at("train", 0, "label_dict", value={})(c)
        ),
        "train[0].dict_db[0].labels",
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
        read_reference_metadata(path)
    assert str(caught.value).startswith(str(path))
    assert problem in str(caught.value)


def test_truncated_pickle_is_one_named_error(tmp_path, metadata):
    data = pickle.dumps(metadata)
    path = tmp_path / "meta.pkl"
    for end in range(0, len(data), max(1, len(data) // 40)):
        path.write_bytes(data[:end])
        with pytest.raises(DataError, match=r"meta\.pkl"):
            read_reference_metadata(path)


# The real file


def test_real_metadata_is_the_oracles(shared_dir, tmp_path):
    from avalanche_vilco.benchmarks.manifest import Category, make_manifest
    from avalanche_vilco.benchmarks.protocols import (
        REFERENCE,
        split_clips,
        stream_samples,
    )
    from avalanche_vilco.benchmarks.split import query_groups

    annotations = shared_dir / "data" / "ego4d_mq" / FILE
    read = read_moment_annotations(annotations, windows="raw")
    groups = query_groups(
        list(read.label_names), n_experiences=5, group_sizes=None, order=None, seed=None
    )
    clips = [c for c in read.clips if len(c.label_ids)]
    split = split_clips(clips, groups, REFERENCE, 0.0)
    made = make_manifest(
        stream_samples(split, groups, REFERENCE),
        [[Category(i, read.label_names[i]) for i in group] for group in groups],
        protocol="reference",
        files=read.report.files,
        source={},
    )
    metadata = reference_metadata(made, read, segmentation_labels=False)
    oracle = json.loads(
        (shared_dir / "oracles" / "mq" / "official_split.json").read_text()
    )["splits"]
    for subset in ("train", "val"):
        for task in range(5):
            ours = [
                {
                    "id": clip["id"],
                    "duration": clip["duration"],
                    "labels": [int(label) for label in clip["labels"]],
                    "segments": clip["segments"].tolist(),
                }
                for clip in metadata[subset][task]["dict_db"]
            ]
            assert ours == oracle[subset][str(task)]
    path = tmp_path / "meta.pkl"
    write_reference_metadata(path, metadata)
    assert read_reference_metadata(path).streams == made.streams
