"""Narrations: sentences in time, features by id, damage by line and by name."""

import json
import pickle
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from avalanche_vilco.core.errors import DataError
from avalanche_vilco.data.text.narrations import (
    MAX_LINE_BYTES,
    Narration,
    NarrationStore,
    narrations_near_windows,
    read_narrations,
)

FILE = "format_unique_pretrain_data_v2.jsonl"


def item(query_id: str, start: float, end: float, clip: str = "a", **more) -> dict:
    window = {"video_id": clip, "query_id": query_id, "timestamps": [[start, end]]}
    return {**window, "query": f"C does {query_id}", **more}


def sentences(folder: Path, *items: dict | str) -> Path:
    path = folder / FILE
    lines = [one if isinstance(one, str) else json.dumps(one) for one in items]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def archive(folder: Path, **arrays: np.ndarray) -> Path:
    np.savez(folder / "narration_features.npz", **arrays)
    return folder / "narration_features.npz"


TOKENS = np.arange(12, dtype=np.float16).reshape(3, 4)


def test_sentences_come_by_clip_and_in_order_of_time(tmp_path):
    path = sentences(
        tmp_path, item("q1", 19.2, 20), item("q3", 1, 2, "b"), item("q2", 18.0, 21)
    )
    by_clip, report = read_narrations(path)
    assert by_clip == {
        "a": (
            Narration(18.0, 21.0, "q2", "a", "C does q2"),
            Narration(19.2, 20.0, "q1", "a", "C does q1"),
        ),
        "b": (Narration(1.0, 2.0, "q3", "b", "C does q3"),),
    }
    assert report.stage("narrations", "sentences").kept == 3
    assert list(report.files) == [FILE]


def test_sentence_with_several_windows_is_several_narrations(tmp_path):
    path = sentences(tmp_path, item("q", 0, 0, timestamps=[[5, 6], [1, 2]]))
    found = read_narrations(path)[0]["a"]
    assert [(one.start_sec, one.end_sec) for one in found] == [(1, 2), (5, 6)]


def test_text_and_further_fields_are_optional(tmp_path):
    line = item("q", 1, 2, duration=480.0, tags=["x"])
    del line["query"]
    assert read_narrations(sentences(tmp_path, line))[0]["a"][0].text == ""


def test_windows_that_do_not_fit_are_counted_by_reason(tmp_path):
    path = sentences(
        tmp_path,
        item("kept", 1, 2),
        item("kept", 1, 2),
        item("point", 3, 3),
        item("reversed", 5, 4),
        item("early", -1, 2),
        item("late", 9, 12),
        item("outside", 11, 12),
        item("stranger", 1, 2, "unknown"),
    )
    by_clip, report = read_narrations(path, {"a": 10.0})
    tally = report.stage("narrations", "sentences")
    assert tally.read == 8
    assert tally.kept == 2
    assert tally.changed == {"overhangs the clip, clipped to it": 2}
    assert tally.rejected == {
        "exact duplicate": 1,
        "end before start": 1,
        "outside the clip": 1,
        "clip not in the annotations": 1,
    }
    assert tally.notes == {"zero length": 1}
    windows = {one.query_id: (one.start_sec, one.end_sec) for one in by_clip["a"]}
    assert windows["early"] == (0, 2)
    assert windows["late"] == (9, 10)


seconds = st.floats(-20, 20, allow_nan=False).map(lambda value: round(value, 2))


@given(st.lists(st.tuples(seconds, seconds), max_size=12))
def test_whatever_the_windows_counts_add_up_and_kept_ones_are_legal(windows):
    items = [item(f"q{i}", start, end) for i, (start, end) in enumerate(windows)]
    lines = "".join(json.dumps(one) + "\n" for one in items)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, FILE)
        path.write_text(lines)
        by_clip, report = read_narrations(path, {"a": 10.0})
    tally = report.stage("narrations", "sentences")
    found = by_clip.get("a", ())
    assert tally.read == len(windows)
    assert tally.passed_on == len(found)
    assert list(found) == sorted(found)
    assert all(0 <= one.start_sec <= one.end_sec <= 10 for one in found)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"video_id": "a", "query_id"', "line 2.*truncated"),
        ("[1, 2]", "line 2.*[Ee]xpected `object`"),
        ('{"video_id": "a", "timestamps": [[1, 2]]}', "line 2.*`query_id`"),
        (json.dumps(item("q", 1, 2, timestamps=[])), "line 2.*'timestamps'.*no window"),
        (json.dumps(item("q", 1, 2, timestamps=[[1]])), r"line 2.*timestamps"),
        (json.dumps(item("q", 1, 2, timestamps=[["1", 2]])), r"line 2.*timestamps"),
        (json.dumps(item("q", 1, float("nan"))), "line 2"),
        (json.dumps(item(" ", 1, 2)), "line 2.*'query_id'.*empty"),
        ('{"video_id": "\xff"', "line 2"),
        ("[" * 5000, "line 2"),
    ],
)
def test_damaged_line_is_named_by_its_number(line, problem, tmp_path):
    path = sentences(tmp_path, item("q1", 1, 2), line, item("q2", 1, 2))
    with pytest.raises(DataError, match=problem) as caught:
        read_narrations(path)
    assert FILE in str(caught.value)


def test_faults_can_be_collected_instead_of_raised(tmp_path):
    path = sentences(tmp_path, "{", item("q", 1, 2), "", "[]")
    faults: list[DataError] = []
    by_clip, _ = read_narrations(path, faults=faults)
    assert [fault.record for fault in faults] == ["line 1", "line 4"]
    assert [one.query_id for one in by_clip["a"]] == ["q"]


def test_endless_line_is_refused_before_it_is_read_whole(tmp_path):
    path = tmp_path / FILE
    with path.open("wb") as file:
        file.truncate(50 * MAX_LINE_BYTES)
    with pytest.raises(DataError, match=r"line 1.*longer than 1048576 bytes"):
        read_narrations(path)


def test_absent_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=FILE):
        read_narrations(tmp_path / FILE)


def test_narrations_inside_a_widened_window_are_chosen():
    found = [Narration(start, start + 2, str(start), "a", "") for start in range(12)]
    windows = np.array([[4.0, 7.0], [5.0, 6.0]])
    once = narrations_near_windows(found, windows)
    assert [one.start_sec for one in once] == [3, 4, 5, 6]
    repeated = narrations_near_windows(found, windows, is_repeated=True)
    assert [one.start_sec for one in repeated] == [3, 4, 4, 5, 5, 6]
    assert narrations_near_windows(found, np.zeros((0, 2))) == []
    assert [
        one.start_sec for one in narrations_near_windows(found, windows, margin_sec=0)
    ] == [4, 5]


def test_store_joins_sentences_and_features(tmp_path):
    path = sentences(tmp_path, item("q2", 5, 6), item("q1", 1, 2))
    store = NarrationStore(path, archive(tmp_path, q1=TOKENS, q2=TOKENS[:1]))
    assert len(store) == 2
    assert store.clip_ids == ("a",)
    assert [one.query_id for one in store.of_clip("a")] == ["q1", "q2"]
    assert store.of_clip("unknown") == ()
    assert store.features("q2").shape == (1, 4)


def test_missing_features_are_all_listed_or_counted(tmp_path):
    path = sentences(tmp_path, *[item(f"q{i}", i, i + 1) for i in range(4)])
    features = archive(tmp_path, q1=TOKENS)
    with pytest.raises(DataError, match="no features for 3 narrations: q0, q2, q3"):
        NarrationStore(path, features)
    store = NarrationStore(path, features, missing="drop")
    tally = store.report.stage("narration features", "sentences")
    assert (tally.kept, tally.rejected) == (1, {"no features": 3})
    assert [one.query_id for one in store.of_clip("a")] == ["q1"]
    with pytest.raises(ValueError, match="expected missing in"):
        NarrationStore(path, features, missing="skip")


def test_pickled_store_holds_no_open_file(tmp_path):
    store = NarrationStore(
        sentences(tmp_path, item("q", 1, 2)), archive(tmp_path, q=TOKENS)
    )
    store.features("q")
    twin = pickle.loads(pickle.dumps(store))
    assert torch.equal(twin.features("q"), store.features("q"))
