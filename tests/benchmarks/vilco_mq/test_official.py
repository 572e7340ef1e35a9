"""Ego4D's own moment-query files: the same records, or an error that names the spot."""

import copy
import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from avalanche_vilco import vilco_mq
from avalanche_vilco.benchmarks.vilco_mq.annotations import (
    SUBSETS,
    MomentAnnotations,
    read_moment_annotations,
)
from avalanche_vilco.benchmarks.vilco_mq.embedded import MiniMQConfig
from avalanche_vilco.benchmarks.vilco_mq.layout import (
    CATEGORY_FILE,
    OFFICIAL_FILES,
    find_annotations,
)
from avalanche_vilco.benchmarks.vilco_mq.official import (
    FEATURES_PER_SEC,
    read_official_moments,
)
from avalanche_vilco.core.errors import DataError

PROCESSED = "ego4d_clip_annotations_v2.json"


def label(start: Any, end: Any, name: Any = "cook", **changes: Any) -> dict:
    return {
        "label": name,
        "primary": True,
        "start_time": start,
        "end_time": end,
        "video_start_time": 2624.77,
        "video_end_time": 2630.0,
        **changes,
    }


def clip(uid: str, /, *annotators: list[dict], **changes: Any) -> dict:
    return {
        "clip_uid": uid,
        "source_clip_uid": f"source-{uid}",
        "video_start_sec": 2624.77,
        "video_end_sec": 2724.77,
        "clip_start_sec": 14.78,
        "clip_end_sec": 114.78,
        "annotations": [
            {"annotator_uid": f"annotator-{i}", "labels": labels}
            for i, labels in enumerate(annotators)
        ],
        **changes,
    }


def content(subset: str, *clips: dict, version: Any = "v2") -> dict:
    videos = [
        {"video_uid": f"video-of-{one['clip_uid']}", "split": subset, "clips": [one]}
        for one in clips
    ]
    return {"version": version, "date": "220429", "videos": videos}


def small() -> dict[str, dict]:
    return {
        "train": content("train", clip("a", [label(1, 5)], [label(7.5, 9, "wash")])),
        "val": content("val", clip("b", [label(2, 4)])),
    }


def write(folder: Path, files: dict[str, Any]) -> Path:
    for subset, one in files.items():
        text = one if isinstance(one, str) else json.dumps(one)
        (folder / OFFICIAL_FILES[subset]).write_text(text, encoding="utf-8")
    return folder


def official_form(records: dict[str, dict]) -> dict[str, dict]:
    """The official files of a processed file: two annotators, one file a subset."""
    files: dict[str, dict] = {}
    for uid, record in records.items():
        subset = record["subset"]
        file = files.setdefault(subset, content(subset))
        one = {
            "clip_uid": uid,
            "video_start_sec": record["parent_start_sec"],
            "video_end_sec": record["parent_end_sec"],
        }
        if subset != "test":
            labels = [
                label(*window["segment"], window["label"])
                for window in record["annotations"]
            ]
            half = len(labels) // 2
            one["annotations"] = [{"labels": labels[:half]}, {"labels": labels[half:]}]
            one["annotations"][0]["labels"].append(
                label(0, 1, "an attribute", primary=False)
            )
        file["videos"].append(
            {"video_uid": record["video_id"], "split": subset, "clips": [one]}
        )
    return files


def assert_equal_records(one: MomentAnnotations, other: MomentAnnotations) -> None:
    assert dict(one.label_names) == dict(other.label_names)
    assert len(one.clips) == len(other.clips) > 0
    # A processed file may mix subsets, the official form has a file for each.
    in_subsets = [
        sorted(read.clips, key=lambda c: SUBSETS.index(c.subset))
        for read in (one, other)
    ]
    for a, b in zip(*in_subsets, strict=True):
        assert (a.clip_id, a.video_id, a.subset) == (b.clip_id, b.video_id, b.subset)
        assert a.duration_sec == b.duration_sec
        assert a.features_per_sec == b.features_per_sec
        assert a.video_start_sec == b.video_start_sec
        assert np.array_equal(a.windows_sec, b.windows_sec)
        assert np.array_equal(a.label_ids, b.label_ids)
    tallies = [read.report.stage("annotations", "windows") for read in (one, other)]
    assert tallies[0].passed_on == tallies[1].passed_on


@pytest.mark.parametrize("raw_windows", [False, True])
def test_generated_clips_are_equal_through_both_forms(tmp_path, raw_windows):
    root = MiniMQConfig(n_train=12, n_val=6, n_test=2).generate(tmp_path / "mini")
    records = json.loads((root / PROCESSED).read_text())
    folder = tmp_path / "official"
    folder.mkdir()
    write(folder, official_form(records))
    processed = read_moment_annotations(root / PROCESSED, raw_windows=raw_windows)
    official = read_official_moments(
        folder,
        categories=root / PROCESSED,
        features_per_sec=30 / 64,
        raw_windows=raw_windows,
    )
    assert_equal_records(processed, official)


def test_real_clips_are_equal_through_both_forms(tmp_path, shared_dir):
    path = shared_dir / "data" / "ego4d_mq" / PROCESSED
    write(tmp_path, official_form(json.loads(path.read_text())))
    processed = read_moment_annotations(path)
    official = read_official_moments(tmp_path, categories=path)
    assert_equal_records(processed, official)
    windows = official.report.stage("annotations", "windows")
    assert windows.read == 17_855 + 2_007
    assert windows.rejected["label not primary"] == 2_007


def test_times_are_seconds_of_the_clip(tmp_path):
    one = read_official_moments(write(tmp_path, small())).clips[0]
    assert one.windows_sec.tolist() == [[1.0, 5.0], [7.5, 9.0]]
    assert one.duration_sec == 2724.77 - 2624.77
    assert one.video_start_sec == 2624.77
    assert one.features_per_sec == FEATURES_PER_SEC


def test_annotators_are_pooled_in_order(tmp_path):
    files = small()
    files["train"]["videos"][0]["clips"][0] = clip(
        "a", [label(5, 6, "wash")], [label(1, 2)], [label(3, 4, "wash")]
    )
    read = read_official_moments(write(tmp_path, files))
    assert read.clips[0].windows_sec[:, 0].tolist() == [5.0, 1.0, 3.0]


def test_clip_that_returns_in_its_video_adds_annotators(tmp_path):
    files = small()
    files["train"]["videos"][0]["clips"].append(clip("a", [label(11, 12)]))
    read = read_official_moments(write(tmp_path, files))
    assert [c.clip_id for c in read.clips] == ["a", "b"]
    assert len(read.clips[0].windows_sec) == 3


def test_labels_that_are_not_primary_are_counted(tmp_path):
    files = small()
    files["val"]["videos"][0]["clips"][0]["annotations"][0]["labels"] += [
        label(5, 6, "peel", primary=False)
    ]
    read = read_official_moments(write(tmp_path, files))
    assert "peel" not in read.label_names.values()
    assert read.report.stage("annotations", "windows").rejected == {
        "label not primary": 1
    }


def test_annotated_clips_without_primary_label_are_left_out_with_a_count(tmp_path):
    files = small()
    files["train"]["videos"] += content("train", clip("c"), clip("d", []))["videos"]
    read = read_official_moments(write(tmp_path, files))
    assert [one.clip_id for one in read.clips] == ["a", "b"]
    clips = read.report.stage("annotations", "clips")
    assert (clips.read, clips.rejected) == (4, {"no primary label": 2})


def test_test_clips_are_read_without_labels(tmp_path):
    files = small()
    unlabelled = clip("t")
    del unlabelled["annotations"]
    files["test"] = content("test", unlabelled)
    read = read_official_moments(write(tmp_path, files))
    assert (read.clips[2].subset, len(read.clips[2].windows_sec)) == ("test", 0)


def test_report_has_the_hash_of_every_file(tmp_path):
    read = read_official_moments(write(tmp_path, small()))
    assert read.report.files == {
        name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
        for name in ("moments_train.json", "moments_val.json")
    }


def test_ids_are_alphabetical_without_a_list(tmp_path):
    read = read_official_moments(write(tmp_path, small()))
    assert dict(read.label_names) == {0: "cook", 1: "wash"}
    assert read.label_id_source == "alphabetical"


def test_ids_come_from_the_list_beside_the_files(tmp_path):
    (tmp_path / CATEGORY_FILE).write_text('{"wash": 3, "cook": 7}')
    read = read_official_moments(write(tmp_path, small()))
    assert dict(read.label_names) == {3: "wash", 7: "cook"}
    assert read.clips[0].label_ids.tolist() == [7, 3]
    assert read.label_id_source == CATEGORY_FILE
    assert CATEGORY_FILE in read.report.files


def test_ids_can_be_passed(tmp_path):
    write(tmp_path, small())
    read = read_official_moments(tmp_path, categories={"wash": 1, "cook": 5, "x": 9})
    assert dict(read.label_names) == {1: "wash", 5: "cook"}


def test_category_without_an_id_is_named(tmp_path):
    write(tmp_path, small())
    with pytest.raises(DataError, match="'wash' is not in the category list") as caught:
        read_official_moments(tmp_path, categories={"cook": 0})
    assert "record 'a'" in str(caught.value)


def test_two_categories_of_one_id_are_refused(tmp_path):
    write(tmp_path, small())
    with pytest.raises(DataError, match="contradicts an earlier record"):
        read_official_moments(tmp_path, categories={"cook": 0, "wash": 0})


@pytest.mark.parametrize("label_id", [1.5, "1", None, True])
def test_list_with_an_id_that_is_no_number_is_refused(tmp_path, label_id):
    write(tmp_path, small())
    path = tmp_path / "list.json"
    path.write_text(json.dumps({"cook": 0, "wash": label_id}))
    with pytest.raises(DataError, match=r"list\.json, record 'wash'"):
        read_official_moments(tmp_path, categories=path)


def test_absent_list_is_named(tmp_path):
    write(tmp_path, small())
    with pytest.raises(FileNotFoundError, match="no category list at"):
        read_official_moments(tmp_path, categories=tmp_path / "gone.json")


def test_mixed_versions_are_refused_by_name(tmp_path):
    files = small()
    files["train"]["version"] = "v1"
    with pytest.raises(DataError) as caught:
        read_official_moments(write(tmp_path, files))
    message = str(caught.value)
    assert "moments_val.json, field 'version'" in message
    assert "is 'v2', but moments_train.json is 'v1'" in message


def test_absent_file_is_named_with_where_to_get_it(tmp_path):
    write(tmp_path, {"train": small()["train"]})
    with pytest.raises(FileNotFoundError, match=r"no moments_val\.json.*ego4d --data"):
        read_official_moments(tmp_path)
    assert find_annotations(tmp_path) is None


def change_clip(**changes: Any) -> Callable[[dict], None]:
    return lambda files: files["train"]["videos"][0]["clips"][0].update(changes)


def change_label(**changes: Any) -> Callable[[dict], None]:
    def change(files: dict) -> None:
        one = files["train"]["videos"][0]["clips"][0]
        one["annotations"][1]["labels"][0].update(changes)

    return change


LABEL = "annotations[1].labels[0]"
FAULTS = {
    "start as text": (change_label(start_time="9.5"), f"{LABEL}.start_time", "`str`"),
    "label blank": (change_label(label=" "), f"{LABEL}.label", "is empty"),
    "start NaN": (change_label(start_time=math.nan), f"{LABEL}.start", "finite"),
    "end infinite": (change_label(end_time=math.inf), f"{LABEL}.start", "finite"),
    "clip start text": (change_clip(video_start_sec="1"), "video_start_sec", "`str`"),
    "clip end NaN": (
        change_clip(video_end_sec=math.nan),
        "video_end_sec",
        "positive length",
    ),
    "clip reversed": (
        change_clip(video_end_sec=1.0),
        "video_end_sec",
        "positive length",
    ),
    "annotations text": (change_clip(annotations="x"), "annotations", "`str`"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_fault_is_named_with_file_record_and_field(tmp_path, case):
    change, field, problem = FAULTS[case]
    files = copy.deepcopy(small())
    change(files)
    with pytest.raises(DataError) as caught:
        read_official_moments(write(tmp_path, files))
    message = str(caught.value)
    path = tmp_path / "moments_train.json"
    assert message.startswith(f"{path}, record 'a', field '{field}")
    assert problem in message


def test_clip_without_uid_is_named_by_its_place(tmp_path):
    files = small()
    del files["train"]["videos"][0]["clips"][0]["clip_uid"]
    with pytest.raises(DataError, match=r"record 'videos\[0\]\.clips\[0\]'"):
        read_official_moments(write(tmp_path, files))


@pytest.mark.parametrize("uid", ["../a", "a/b", "", ".a", "-a"])
def test_uid_that_leaves_the_root_is_refused(tmp_path, uid):
    files = small()
    files["train"]["videos"][0]["clips"][0]["clip_uid"] = uid
    with pytest.raises(DataError, match="characters that an Ego4D uid does not have"):
        read_official_moments(write(tmp_path, files))


def test_clip_in_two_files_is_refused(tmp_path):
    files = small()
    files["val"]["videos"] += content("val", clip("a", [label(1, 2)]))["videos"]
    with pytest.raises(DataError, match=r"is in moments_train\.json as well"):
        read_official_moments(write(tmp_path, files))


def test_clip_that_returns_with_other_times_is_refused(tmp_path):
    files = small()
    again = clip("a", [label(1, 2)], video_end_sec=2725.0)
    files["train"]["videos"][0]["clips"].append(again)
    with pytest.raises(DataError, match="occurs twice"):
        read_official_moments(write(tmp_path, files))


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf])
def test_rate_that_is_not_positive_is_refused(tmp_path, rate):
    with pytest.raises(ValueError, match="positive features_per_sec"):
        read_official_moments(write(tmp_path, small()), features_per_sec=rate)


def test_raw_windows_keep_what_lies_behind_the_end(tmp_path):
    files = small()
    files["val"]["videos"][0]["clips"][0] = clip(
        "b", [label(90, 130), label(101, 102), label(-2, 3), label(4, 4)]
    )
    write(tmp_path, files)
    raw = read_official_moments(tmp_path, raw_windows=True).clips[1]
    clipped = read_official_moments(tmp_path).clips[1]
    assert raw.windows_sec.tolist() == [[90, 130], [101, 102], [0, 3]]
    assert clipped.windows_sec.tolist() == [[90, clipped.duration_sec], [0, 3]]


def test_streams_of_official_files_and_their_manifest(tmp_path, mq_root):
    write(tmp_path, official_form(json.loads((mq_root / PROCESSED).read_text())))
    (tmp_path / "features").symlink_to(mq_root / "features")
    sources = {"categories": mq_root / PROCESSED, "features_per_sec": 30 / 64}
    made = vilco_mq(tmp_path, sources=sources)
    assert made.info["category_ids"] == PROCESSED
    files = {"moments_train.json", "moments_val.json", PROCESSED}
    assert files <= set(made.manifest()["files"])
    again = vilco_mq(tmp_path, manifest=made.manifest(), sources=sources)
    for one, other in ((made, vilco_mq(mq_root)), (again, made)):
        held = [
            [(s.clip.clip_id, s.windows_sec.tolist()) for s in data.samples]
            for data in (one.datasets["test"], other.datasets["test"])
        ]
        assert held[0] == held[1]
    alphabetical = {"features_per_sec": 30 / 64}
    scenario = vilco_mq(tmp_path, sources=alphabetical)
    assert scenario.info["category_ids"] == "alphabetical"
    with pytest.raises(ValueError, match="needs the public category ids"):
        vilco_mq(tmp_path, protocol="reference", sources=alphabetical)
