"""Annotation files: bad input is one named error or a counted skip."""

import copy
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from avalanche_vilco.benchmarks.vilco_mq.annotations import read_moment_annotations
from avalanche_vilco.core.errors import DataError

FILE = "ego4d_clip_annotations_v2.json"


def window(start: Any, end: Any, label: Any = "cook", label_id: Any = 16) -> dict:
    return {"segment": [start, end], "label": label, "label_id": label_id}


def record(clip_id: str, /, *windows: dict, **changes: Any) -> dict:
    return {
        "video_id": f"parent-of-{clip_id}",
        "clip_id": clip_id,
        "duration": 100.0,
        "parent_start_sec": 2624.77,
        "parent_end_sec": 2724.77,
        "v_duration": 3000.0,
        "fps": 1.874,
        "annotations": list(windows),
        "subset": "train",
        **changes,
    }


def clip_a(*windows: dict, **changes: Any) -> dict:
    return {"clip-a": record("clip-a", *(windows or (window(1, 5),)), **changes)}


def write(folder: Path, content: Any) -> Path:
    path = folder / FILE
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(json.dumps(content), encoding="utf-8")
    return path


def tallies(path: Path) -> dict[str, Any]:
    report = read_moment_annotations(path).report
    return {tally.unit: tally for tally in report.tallies}


def windows_of(path: Path) -> list[list[float]]:
    return read_moment_annotations(path).clips[0].windows_sec.tolist()


def test_absent_file_says_which_and_how_to_get_it(tmp_path):
    with pytest.raises(FileNotFoundError, match="comes with Ego4D") as caught:
        read_moment_annotations(tmp_path / FILE)
    assert str(tmp_path / FILE) in str(caught.value)


def test_folder_in_place_of_the_file_counts_as_absent(tmp_path):
    with pytest.raises(FileNotFoundError, match="no annotation file"):
        read_moment_annotations(tmp_path)


NOT_A_FILE_OF_CLIPS = {
    "nothing": (b"", "truncated"),
    "cut in half": (json.dumps(clip_a()).encode()[:150], "truncated"),
    "a list": (b"[1, 2]", "expected a JSON object of clips but got a list"),
    "a number": (b"7", "expected a JSON object of clips but got a int"),
    "null": (b"null", "got a NoneType"),
    "an empty object": (b"{}", "holds no clip"),
    "latin-1 text": (b'{"caf\xe9": {}}', "not valid JSON"),
    "deep nesting": (b'{"a":' * 100_000, "not valid JSON"),
    "binary": (bytes(range(256)), "not valid JSON"),
    "the raw Ego4D form": (b'{"version": "v2", "videos": []}', "version"),
}


@pytest.mark.parametrize("case", NOT_A_FILE_OF_CLIPS)
def test_what_is_no_file_of_clips_is_refused_by_name(case, tmp_path):
    content, problem = NOT_A_FILE_OF_CLIPS[case]
    path = write(tmp_path, content)
    with pytest.raises(DataError) as caught:
        read_moment_annotations(path)
    assert str(path) in str(caught.value)
    assert problem in str(caught.value)


WRONG_FIELDS = {
    "duration as text": ({"duration": "366"}, "duration", "got `str`"),
    "duration null": ({"duration": None}, "duration", "got `null`"),
    "duration NaN": ({"duration": math.nan}, "duration", "positive number but got nan"),
    "duration Infinity": ({"duration": math.inf}, "duration", "but got inf"),
    "duration 0": ({"duration": 0}, "duration", "positive number but got 0"),
    "duration below 0": ({"duration": -1.5}, "duration", "positive number"),
    "duration beyond float": ({"duration": 10**400}, "duration", "out of range"),
    "fps 0": ({"fps": 0.0}, "fps", "positive number"),
    "fps -Infinity": ({"fps": -math.inf}, "fps", "positive number"),
    "subset unknown": ({"subset": "validation"}, "subset", "train, val, test"),
    "clip_id of another": ({"clip_id": "clip-b"}, "clip_id", "differs from the key"),
    "video_id empty": ({"video_id": ""}, "video_id", "parent video but got ''"),
    "annotations an object": ({"annotations": {}}, "annotations", "got `object`"),
}


@pytest.mark.parametrize("case", WRONG_FIELDS)
def test_wrong_field_is_named_with_file_and_record(case, tmp_path):
    changes, field, problem = WRONG_FIELDS[case]
    path = write(tmp_path, clip_a(**changes))
    where = re.escape(f"{path}, record 'clip-a', field '{field}': ")
    with pytest.raises(DataError, match=f"{where}.*{re.escape(problem)}"):
        read_moment_annotations(path)


WRONG_WINDOWS = {
    "times as text": (window("9.5", "12.2"), "segment", "got `str`"),
    "one time": ({**window(0, 1), "segment": [1.0]}, "segment", "length 2"),
    "start NaN": (window(math.nan, 3), "segment", "finite seconds but got [nan"),
    "end Infinity": (window(1, math.inf), "segment", "finite seconds"),
    "start -Infinity": (window(-math.inf, 3), "segment", "finite seconds"),
    "label empty": (window(1, 2, ""), "label", "label is empty"),
    "label blank": (window(1, 2, " \t"), "label", "label is empty"),
    "label a lone surrogate": (window(1, 2, "\ud800"), "label", "unprintable"),
    "label id as text": (window(1, 2, "cook", "16"), "label_id", "got `str`"),
    "label id below 0": (window(1, 2, "cook", -1), "label", "but got -1"),
    "label id beyond int64": (window(1, 2, "cook", 2**70), "label", "label_id"),
}


@pytest.mark.parametrize("case", WRONG_WINDOWS)
def test_wrong_window_is_named_with_its_number(case, tmp_path):
    wrong, field, problem = WRONG_WINDOWS[case]
    path = write(tmp_path, clip_a(window(1, 5), wrong))
    where = re.escape(f"{path}, record 'clip-a', field 'annotations[1].{field}")
    with pytest.raises(DataError, match=f"{where}.*{re.escape(problem)}"):
        read_moment_annotations(path)


def test_number_too_large_for_a_float_is_refused_by_field(tmp_path):
    content = json.dumps(clip_a(duration=1)).replace(
        '"duration": 1', '"duration":1e999'
    )
    with pytest.raises(DataError, match=r"field 'duration': .* but got inf"):
        read_moment_annotations(write(tmp_path, content.encode()))


@pytest.mark.parametrize(
    "key", ["video_id", "clip_id", "duration", "fps", "subset", "annotations"]
)
def test_missing_key_of_a_clip_is_named(key, tmp_path):
    content = clip_a()
    del content["clip-a"][key]
    with pytest.raises(DataError, match=f"record 'clip-a'.*missing.*`{key}`"):
        read_moment_annotations(write(tmp_path, content))


@pytest.mark.parametrize("key", ["segment", "label", "label_id"])
def test_missing_key_of_a_window_is_named(key, tmp_path):
    content = clip_a(window(1, 5), window(2, 6))
    del content["clip-a"]["annotations"][1][key]
    with pytest.raises(DataError, match=rf"'annotations\[1\]'.*missing.*`{key}`"):
        read_moment_annotations(write(tmp_path, content))


@pytest.mark.parametrize("wrong", [3, None, "text", [], {"segment": 1}])
def test_record_of_wrong_shape_is_named(wrong, tmp_path):
    with pytest.raises(DataError, match=r"record 'clip-b'.*\(expected the layout"):
        read_moment_annotations(write(tmp_path, {**clip_a(), "clip-b": wrong}))


@pytest.mark.parametrize("wrong", [3, None, "text", [[0, 1]]])
def test_window_of_wrong_shape_is_named(wrong, tmp_path):
    content = clip_a(window(1, 5), wrong)
    with pytest.raises(DataError, match=r"field 'annotations\[1\]'"):
        read_moment_annotations(write(tmp_path, content))


ESCAPES = ["../x", "/etc/x", "a/b", "..", ".hidden", "", "a\\b", "a\x00b", "-rf", "é"]


@pytest.mark.parametrize("clip_id", ESCAPES)
def test_id_that_could_leave_the_feature_folder_is_refused(clip_id, tmp_path):
    content = {clip_id: record(clip_id, window(1, 5))}
    with pytest.raises(DataError, match="characters that an Ego4D uid") as caught:
        read_moment_annotations(write(tmp_path, content))
    assert f"record {clip_id!r}" in str(caught.value)


def test_two_names_of_one_label_id_are_refused(tmp_path):
    content = clip_a(window(1, 5, "cook", 3), window(2, 6, "wash", 3))
    with pytest.raises(DataError, match=r"'wash' with id 3 contradicts .* 'cook'"):
        read_moment_annotations(write(tmp_path, content))


def test_two_ids_of_one_label_are_refused_across_clips(tmp_path):
    other = {"clip-b": record("clip-b", window(1, 5, "cook", 4))}
    content = {**clip_a(window(1, 5, "cook", 3)), **other}
    with pytest.raises(DataError, match=r"record 'clip-b'.*'cook' has id 3"):
        read_moment_annotations(write(tmp_path, content))


def test_clip_that_occurs_twice_is_refused(tmp_path):
    one = json.dumps(record("clip-a", window(1, 5)))
    for first in (one, "{}"):
        content = f'{{"clip-a": {first}, "clip-a": {one}}}'.encode()
        with pytest.raises(DataError, match="key 'clip-a' occurs twice"):
            read_moment_annotations(write(tmp_path, content))


def test_field_that_occurs_twice_is_refused_with_its_record(tmp_path):
    content = json.dumps(clip_a()).replace('"fps"', '"fps": 30, "fps"')
    with pytest.raises(DataError, match="record 'clip-a': the key 'fps' occurs twice"):
        read_moment_annotations(write(tmp_path, content.encode()))


def test_file_of_the_challenges_code_says_which_to_take(tmp_path):
    """``clip_annotations_split.json``, as far as it differs."""
    windows = [{"start_time": 1.0, "end_time": 5.0, "label": "cook"}]
    content = {"clip-a": record("clip-a", *windows)}
    del content["clip-a"]["duration"]
    with pytest.raises(DataError, match=r"'clip-a'.*_v2\.json;.*moments_train"):
        read_moment_annotations(write(tmp_path, content))


def test_file_without_any_annotation_is_refused(tmp_path):
    content = {"clip-a": record("clip-a", subset="test")}
    with pytest.raises(DataError, match="no clip has an annotation"):
        read_moment_annotations(write(tmp_path, content))


def test_byte_order_mark_changes_nothing_but_the_hash(tmp_path):
    plain = json.dumps(clip_a()).encode()
    path = write(tmp_path, b"\xef\xbb\xbf" + plain)
    assert windows_of(path) == [[1.0, 5.0]]


def test_unknown_keys_are_ignored(tmp_path):
    path = write(tmp_path, clip_a(window(1, 5) | {"annotator": 3}, remark="new"))
    assert windows_of(path) == [[1.0, 5.0]]


@pytest.mark.parametrize(
    ("times", "reason"),
    [
        ((5.0, 5.0), "zero length"),
        ((7.0, 5.0), "end before start"),
        ((100.0, 105.0), "outside the clip"),
        ((130.0, 140.0), "outside the clip"),
        ((-9.0, -1.0), "outside the clip"),
        ((-9.0, 0.0), "outside the clip"),
    ],
)
def test_unusable_window_is_rejected_and_counted(times, reason, tmp_path):
    path = write(tmp_path, clip_a(window(*times), window(5.0, 5.2)))
    assert windows_of(path) == [[5.0, 5.2]]
    assert tallies(path)["windows"].rejected == {reason: 1}


@pytest.mark.parametrize(
    ("times", "clipped", "reason"),
    [
        ((90.0, 100.5), [90.0, 100.0], "overhangs the clip's end, clipped to it"),
        ((-0.5, 7.0), [0.0, 7.0], "start before the clip, clipped to 0"),
        ((-0.5, 200.0), [0.0, 100.0], "start before the clip, clipped to 0"),
    ],
)
def test_overhanging_window_is_clipped_and_counted(times, clipped, reason, tmp_path):
    path = write(tmp_path, clip_a(window(*times)))
    assert windows_of(path) == [clipped]
    assert tallies(path)["windows"].changed == {reason: 1}


def test_window_that_ends_with_the_clip_is_kept_as_it_is(tmp_path):
    path = write(tmp_path, clip_a(window(90.0, 100.0)))
    assert windows_of(path) == [[90.0, 100.0]]
    assert tallies(path)["windows"].kept == 1
    assert tallies(path)["windows"].notes["windows end exactly at the clip's end"] == 1


@pytest.mark.parametrize(
    ("times", "kept", "n_duplicates"),
    [
        ([(0, 10), (0.0009, 9.9991), (0, 10), (0.2, 10)], [[0, 10], [0.2, 10]], 2),
        # Near a rejected one, and each a tolerance apart: kept ones are compared.
        ([(5, 5), (5, 5.0008)], [[5, 5.0008]], 0),
        ([(0, 10), (8e-4, 10), (16e-4, 10)], [[0, 10], [16e-4, 10]], 1),
    ],
)
def test_duplicate_goes_once_and_near_ones_stay(times, kept, n_duplicates, tmp_path):
    path = write(tmp_path, clip_a(*(window(*each) for each in times)))
    assert windows_of(path) == kept
    assert tallies(path)["windows"].rejected.get("exact duplicate", 0) == n_duplicates


def test_same_times_of_another_label_or_clip_are_no_duplicate(tmp_path):
    other = {"clip-b": record("clip-b", window(0, 10, "cook", 3))}
    path = write(
        tmp_path,
        {**clip_a(window(0, 10, "cook", 3), window(0, 10, "wash", 4)), **other},
    )
    assert tallies(path)["windows"].kept == 3


def test_clips_without_a_usable_window_are_counted_by_reason(tmp_path):
    content = {
        **clip_a(),
        "clip-b": record("clip-b"),
        "clip-c": record("clip-c", window(3, 3), subset="val"),
        "clip-d": record("clip-d", subset="test"),
    }
    path = write(tmp_path, content)
    clips = tallies(path)["clips"]
    assert (clips.read, clips.kept) == (4, 1)
    assert clips.rejected == {"no usable window": 2, "subset test, without labels": 1}
    # They stay readable: a clip without labels can be predicted for.
    assert len(read_moment_annotations(path).clips) == 4


def test_parent_in_both_train_and_val_is_noted(tmp_path):
    content = {
        "a": record("a", window(1, 5), video_id="v"),
        "b": record("b", window(1, 5), video_id="v", subset="val"),
    }
    notes = tallies(write(tmp_path, content))["clips"].notes
    assert notes == {"parent videos have clips in both train and val": 1}


def test_one_more_window_changes_count_and_hash(tmp_path):
    before = read_moment_annotations(write(tmp_path, clip_a())).report
    after = read_moment_annotations(
        write(tmp_path, clip_a(window(1, 5), window(2, 9)))
    ).report
    assert after.tallies[0].read == before.tallies[0].read + 1
    assert after.files.keys() == before.files.keys() == {FILE}
    assert after.files != before.files


def test_times_are_clip_seconds_whatever_the_parent_says(tmp_path):
    path = write(tmp_path, clip_a(window(14.78, 20.5), parent_start_sec=2624.77))
    assert windows_of(path) == [[14.78, 20.5]]


def test_labels_are_data_in_raw_spelling(tmp_path):
    label = '"cut_/_chop_/_slice_a_vegetable,_fruit,_or_meat"'
    content = clip_a(window(1, 5, label, 59), window(2, 6, "wash\u00e9_{0}%s", 16))
    read = read_moment_annotations(write(tmp_path, content))
    assert read.label_names == {16: "wash\u00e9_{0}%s", 59: label}
    assert list(read.label_names) == [16, 59]
    assert read.clips[0].label_ids.tolist() == [59, 16]


def test_shared_arrays_cannot_be_written(tmp_path):
    clip = read_moment_annotations(write(tmp_path, clip_a())).clips[0]
    for array in (clip.windows_sec, clip.label_ids):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_clip_without_windows_has_empty_arrays_of_full_rank(tmp_path):
    content = {**clip_a(), "clip-b": record("clip-b")}
    clip = read_moment_annotations(write(tmp_path, content)).clips[1]
    assert clip.windows_sec.shape == (0, 2)
    assert clip.label_ids.shape == (0,)


BASE = {
    "clip-a": record("clip-a", window(1, 5), window(90, 101.5, "wash", 2)),
    "clip-b": record("clip-b", window(3, 4, "wash", 2), subset="val"),
    "clip-c": record("clip-c", subset="test"),
}


@given(data=st.data())
@settings(max_examples=300)
def test_any_mutated_file_is_read_in_full_or_refused_by_name(data, mutate, tmp_path):
    records = copy.deepcopy(BASE)
    mutate(data, records)
    content = json.dumps(records).encode()
    if data.draw(st.integers(0, 5)) == 0:
        content = content[: data.draw(st.integers(0, len(content)))]
    path = write(tmp_path, content)
    try:
        read = read_moment_annotations(path)
    except DataError as error:
        assert str(path) in str(error)
        return
    records = json.loads(content)
    tally = {tally.unit: tally for tally in read.report.tallies}
    n_windows = sum(len(one["annotations"]) for one in records.values())
    assert tally["windows"].read == n_windows
    assert tally["clips"].read == len(records) == len(read.clips)
    assert tally["windows"].passed_on == sum(len(c.label_ids) for c in read.clips)
    for clip in read.clips:
        start, end = clip.windows_sec.T
        assert np.isfinite(clip.windows_sec).all()
        assert ((start >= 0) & (start < end) & (end <= clip.duration_sec)).all()
        assert set(clip.label_ids.tolist()) <= read.label_names.keys()
