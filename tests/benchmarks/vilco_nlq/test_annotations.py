"""Natural-language query files: validated records, or an error that names the spot."""

import gzip
import hashlib
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from avalanche_vilco.benchmarks.vilco_nlq.annotations import (
    plain_question,
    read_language_queries,
    read_unlabelled_queries,
)
from avalanche_vilco.benchmarks.vilco_nlq.layout import (
    OFFICIAL_NLQ_FILES,
    find_nlq_files,
)
from avalanche_vilco.benchmarks.vilco_nlq.templates import NLQ_TEMPLATES
from avalanche_vilco.core.errors import DataError


def question(start: Any = 5.0, end: Any = 8.0, **changes: Any) -> dict:
    asked = {
        "clip_start_sec": start,
        "clip_end_sec": end,
        "video_start_sec": 1000.0,
        "video_end_sec": 1003.0,
        "query": "Where did I put the mug?",
        "template": NLQ_TEMPLATES[1],
        "raw_tags": [],
        **changes,
    }
    return {name: value for name, value in asked.items() if value is not ...}


def clip(uid: str, *questions: dict, **changes: Any) -> dict:
    return {
        "clip_uid": uid,
        "video_start_sec": 900.0,
        "video_end_sec": 1000.0,
        "clip_start_sec": 0,
        "clip_end_sec": 100.02,
        "annotations": [
            {"annotation_uid": f"ann-{uid}", "language_queries": list(questions)}
        ],
        **changes,
    }


def content(*clips: dict, split: str = "val", version: Any = "2.0") -> dict:
    video = {"video_uid": f"video-{split}", "split": split, "clips": list(clips)}
    return {"version": version, "date": "", "videos": [video]}


def write(folder: Path, raw: Any, subset: str = "val") -> Path:
    path = folder / OFFICIAL_NLQ_FILES[subset]
    path.write_text(raw if isinstance(raw, str) else json.dumps(raw))
    return path


def line(**changes: Any) -> dict:
    flat = {
        "query": "Where did I put the mug?",
        "query_id": "ann-a_0",
        "duration": 100.0,
        "video_id": "a",
        "query_type": "nlq",
        "timestamps": [[5.0, 8.0]],
        **changes,
    }
    return {name: value for name, value in flat.items() if value is not ...}


def write_lines(folder: Path, *lines: Any, subset: str = "train") -> Path:
    path = folder / f"ego4d_nlq_{subset}_v2.jsonl"
    texts = [one if isinstance(one, str) else json.dumps(one) for one in lines]
    path.write_text("\n".join(texts) + "\n")
    return path


def read_val(folder: Path, *clips: dict, **options: Any) -> Any:
    return read_language_queries({"val": write(folder, content(*clips))}, **options)


def tally(read: Any, unit: str) -> Any:
    return read.report.stage("annotations", unit)


@pytest.fixture(scope="module")
def real_val(shared_dir) -> Any:
    path = shared_dir / "data" / "ego4d_nlq" / "nlq_val.json"
    return read_language_queries({"val": path})


def test_real_val_adds_up(real_val):
    counts = tally(real_val, "queries")
    assert (counts.read, counts.kept) == (4554, 4552)
    assert counts.rejected == {"no query text": 2}
    assert counts.notes["form prefix taken from the text"] == 455
    assert counts.notes["blanks around the text"] == 326
    assert counts.notes["without template"] == 17
    windows = tally(real_val, "windows")
    assert (windows.read, windows.passed_on) == (4552, 4552)
    assert windows.changed == {"overhangs the clip's end, clipped to it": 87}
    clips = tally(real_val, "clips")
    assert (clips.kept, clips.notes["videos without clips"]) == (415, 3)
    assert len({clip.video_id for clip in real_val.clips.values()}) == 300


def test_real_val_has_the_reference_files_counts_by_template(real_val):
    counts = Counter(query.template for query in real_val.queries)
    expected = [546, 725, 750, 22, 386, 235, 552, 359, 350, 332, 72, 115, 91]
    assert [counts[i] for i in range(13)] == expected
    assert counts[None] == 17


def test_real_queries_are_clean(real_val):
    for query in real_val.queries:
        start, end = query.window_sec
        assert 0 <= start < end <= real_val.clips[query.clip_id].duration_sec
        assert query.text == " ".join(query.text.split())
        assert not query.text.lower().startswith("query text")


def test_flattened_real_val_joins_to_the_official_file(shared_dir, real_val):
    path = shared_dir / "data" / "ego4d_nlq" / "ego4d_nlq_val_v2.jsonl"
    flat = read_language_queries({"val": path})
    assert flat.queries == real_val.queries
    assert flat.clips == real_val.clips
    assert not flat.subsets_without_templates
    assert set(flat.report.files) == {path.name, "nlq_val.json"}


def test_real_flattened_train_has_windows_but_no_template(shared_dir):
    path = shared_dir / "data" / "ego4d_nlq" / "ego4d_nlq_train_v2.jsonl"
    read = read_language_queries({"train": path})
    assert len(read.queries) == 13847
    assert len(read.clips) == 1270
    assert read.subsets_without_templates == {"train"}
    assert read.subsets_without_videos == {"train"}
    assert tally(read, "windows").changed == {
        "overhangs the clip's end, clipped to it": 249
    }


def test_real_test_file_can_be_answered(shared_dir):
    folder = shared_dir / "data" / "ego4d_nlq"
    read = read_unlabelled_queries(folder / "nlq_test_unannotated.json")
    assert len(read.queries) == 4004
    assert len(read.clips) == 333
    assert {query.window_sec for query in read.queries} == {None}
    assert tally(read, "queries").rejected == {"no query text": 1}


def test_blank_questions_are_rejected_and_numbers_stay(tmp_path):
    read = read_val(
        tmp_path,
        clip(
            "a",
            question(query="where?"),
            question(query=None),
            question(query=""),
            question(query="  what?\n "),
            question(query=...),
            question(query="Query Text: "),
        ),
    )
    assert [(q.query_idx, q.text) for q in read.queries] == [
        (0, "where?"),
        (3, "what?"),
    ]
    assert [q.query_id for q in read.queries] == ["ann-a_0", "ann-a_3"]
    assert tally(read, "queries").rejected == {"no query text": 4}


@pytest.mark.parametrize(
    ("raw", "plain"),
    [
        ("Query Text:Where was the lid?", "Where was the lid?"),
        ("query text: Query Text: Where?", "Where?"),
        ("X Text (Optional): the mug", "the mug"),
        ("Answer (Optional): yes", "yes"),
        ("Where did I put it: here or there?", "Where did I put it: here or there?"),
        ("X-ray: where is it?", "X-ray: where is it?"),
        ("where  is\tit", "where is it"),
    ],
)
def test_form_prefixes_are_taken_and_nothing_else(raw, plain):
    assert plain_question(raw) == (plain, plain != " ".join(raw.split()))


def test_text_may_be_left_as_in_the_file(tmp_path):
    asked = clip("a", question(query=" Query Text:Where?"), question(query="  "))
    read = read_val(tmp_path, asked, is_raw=True)
    assert [query.text for query in read.queries] == [" Query Text:Where?"]


def test_clip_seconds_are_used_whatever_the_video_says(tmp_path):
    read = read_val(tmp_path, clip("a", question(14.78, 16.0, video_start_sec=2624.77)))
    assert read.queries[0].window_sec == (14.78, 16.0)


def test_duration_is_that_of_the_flattened_file(tmp_path):
    read = read_val(tmp_path, clip("a", question()))
    assert read.clips["a"].duration_sec == 100.0
    assert read.clips["a"].video_start_sec == 900.0


@pytest.mark.parametrize(
    ("start", "end", "reason"),
    [
        (5.0, 5.0, "zero length"),
        (8.0, 5.0, "end before start"),
        (100.0, 101.0, "outside the clip"),
        (-3.0, -1.0, "outside the clip"),
    ],
)
def test_unusable_windows_are_rejected_with_their_question(
    start, end, reason, tmp_path
):
    read = read_val(tmp_path, clip("a", question(start, end), question(5.0, 5.2)))
    assert [query.query_idx for query in read.queries] == [1]
    assert tally(read, "windows").rejected == {reason: 1}
    assert tally(read, "queries").rejected == {f"window: {reason}": 1}
    assert tally(read, "queries").read == 2


def test_overhanging_windows_are_clipped_or_left_raw(tmp_path):
    asked = clip("a", question(-1.0, 4.0), question(98.0, 100.5))
    windows = [q.window_sec for q in read_val(tmp_path, asked).queries]
    assert windows == [(0.0, 4.0), (98.0, 100.0)]
    raw = read_val(tmp_path, asked, is_raw=True)
    assert raw.queries[1].window_sec == (98.0, 100.5)


def test_repeated_questions_stay_and_are_noted(tmp_path):
    read = read_val(tmp_path, clip("a", question(), question(), question(1.0, 2.0)))
    assert len(read.queries) == 3
    notes = tally(read, "queries").notes
    assert notes["same words as another question of the clip"] == 2


@pytest.mark.parametrize("template", [None, ...])
def test_question_without_template_is_kept(template, tmp_path):
    read = read_val(tmp_path, clip("a", question(template=template)))
    assert read.queries[0].template is None
    assert tally(read, "queries").notes["without template"] == 1
    assert not read.subsets_without_templates


def test_annotations_without_uid_are_rejected(tmp_path):
    blank = {"annotation_uid": " ", "language_queries": [question(), question()]}
    asked = clip("a", question())
    asked["annotations"].append(blank)
    read = read_val(tmp_path, asked)
    assert len(read.queries) == 1
    assert tally(read, "queries").rejected == {"no annotation_uid": 2}


def test_clips_without_questions_are_counted(tmp_path):
    read = read_val(
        tmp_path, clip("a", question()), clip("b"), clip("c", question(query=""))
    )
    assert set(read.clips) == {"a"}
    counts = tally(read, "clips")
    assert counts.kept == 1
    assert counts.rejected == {"no question": 1, "no usable question": 1}


def test_test_file_of_version_1_is_read_without_windows(tmp_path):
    raw = content(clip("a", {"query": "where?"}), split="test", version="1")
    read = read_unlabelled_queries(write(tmp_path, raw, "test"))
    assert read.queries[0].window_sec is None
    assert read.queries[0].subset == "test"


def test_same_question_and_time_give_the_same_hash_and_another_file_another(tmp_path):
    path = write(tmp_path, content(clip("a", question(), question(1.0, 2.0))))
    read = read_language_queries({"val": path})
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert read.report.files == {"nlq_val.json": digest}
    assert read_language_queries({"val": path}).queries == read.queries
    fewer = read_val(tmp_path, clip("a", question()))
    assert len(fewer.queries) == 1
    assert fewer.report.files["nlq_val.json"] != digest


def test_absent_file_names_how_to_get_it(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nlq_val\.json.*ego4d --datasets"):
        read_language_queries({"val": tmp_path / "nlq_val.json"})


@pytest.mark.parametrize("files", [{}, {"test": "x"}, {"dev": "x"}])
def test_other_subsets_are_refused(files):
    with pytest.raises(ValueError, match="expected subsets 'train' and 'val'"):
        read_language_queries(files)


def test_file_without_questions_is_refused(tmp_path):
    with pytest.raises(DataError, match="holds no question"):
        read_val(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"start": "5.0"}, "Expected `float`, got `str`"),
        ({"start": ...}, "missing required field `clip_start_sec`"),
        ({"end": ...}, "missing required field `clip_end_sec`"),
        ({"template": "Objects: Where is my X?"}, "did you mean"),
        ({"start": math.nan}, "expected finite seconds"),
        ({"end": math.inf}, "expected finite seconds"),
    ],
)
def test_bad_fields_are_named_with_their_place(changes, message, tmp_path):
    asked = question(**changes)
    with pytest.raises(DataError, match=message) as fault:
        read_val(tmp_path, clip("a", question(), asked))
    assert fault.value.record == "a"
    assert fault.value.field is not None
    assert fault.value.field.startswith("annotations[0].language_queries[1]")


@pytest.mark.parametrize(
    ("changes", "record", "message"),
    [
        ({"clip_uid": ...}, r"videos\[0\].clips\[0\]", "field `clip_uid`"),
        ({"clip_uid": "../a"}, "../a", "characters that an Ego4D uid does not have"),
        ({"video_end_sec": 900.0}, "a", "clip of positive length"),
        ({"annotations": {}}, "a", "Expected `array`"),
    ],
)
def test_bad_clips_are_named(changes, record, message, tmp_path):
    bad = {k: v for k, v in clip("a", question(), **changes).items() if v is not ...}
    with pytest.raises(DataError, match=rf"record '{record}'.*{message}"):
        read_val(tmp_path, bad)


def test_clip_that_occurs_twice_is_refused(tmp_path):
    with pytest.raises(DataError, match="a occurs twice"):
        read_val(tmp_path, clip("a", question()), clip("a", question()))


def test_annotation_that_occurs_twice_is_refused(tmp_path):
    twin = clip("a", question())
    twin["annotations"] *= 2
    with pytest.raises(DataError, match="ann-a_0 occurs twice"):
        read_val(tmp_path, twin)


def test_clip_in_train_and_val_is_refused(tmp_path):
    twin = clip("a", annotations=clip("b", question())["annotations"])
    train = content(clip("a", question()), split="train")
    files = {
        "train": write(tmp_path, train, "train"),
        "val": write(tmp_path, content(twin)),
    }
    with pytest.raises(DataError, match="the clip a is in the train file as well"):
        read_language_queries(files)


def test_files_of_two_versions_are_refused(tmp_path):
    train = content(clip("a", question()), split="train", version="1")
    files = {
        "train": write(tmp_path, train, "train"),
        "val": write(tmp_path, content(clip("b", question()))),
    }
    with pytest.raises(DataError, match=r"'2\.0', but nlq_train\.json is '1'"):
        read_language_queries(files)


def test_flattened_file_is_read(tmp_path):
    path = write_lines(
        tmp_path, line(), line(query_id="ann-a_2", query=" what? "), "", subset="train"
    )
    read = read_language_queries({"train": path})
    assert [(q.annotation_uid, q.query_idx, q.text) for q in read.queries] == [
        ("ann-a", 0, "Where did I put the mug?"),
        ("ann-a", 2, "what?"),
    ]
    assert read.clips["a"].video_id == "a"


def test_flattened_file_may_name_templates(tmp_path):
    path = write_lines(tmp_path, line(query_template=NLQ_TEMPLATES[1]))
    read = read_language_queries({"train": path})
    assert read.queries[0].template == 1
    assert not read.subsets_without_templates


def test_flattened_question_unknown_to_the_official_file_is_refused(tmp_path):
    write(tmp_path, content(clip("a", question()), split="train"), "train")
    path = write_lines(tmp_path, line(), line(query_id="ann-a_1"))
    with pytest.raises(DataError, match=r"line 2.*ann-a_1 of clip a is not in nlq_tr"):
        read_language_queries({"train": path})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"duration": ...}, "missing required field `duration`"),
        ({"duration": 0.0}, "clip of positive length"),
        ({"duration": 99.0}, r"expected 100\.0 seconds"),
        ({"duration": math.nan}, "'duration': .* positive length but got nan"),
        ({"query_id": "ann-a"}, "expected <annotation uid>_<number>"),
        ({"query_id": "ann-a_0"}, "ann-a_0 occurs twice"),
        ({"timestamps": []}, "expected one window but got 0"),
        ({"timestamps": [[1.0, 2.0]] * 2}, "expected one window but got 2"),
        ({"timestamps": [[1.0]]}, "field 'timestamps"),
        ({"query_template": "nonsense"}, "field 'query_template': expected one of"),
    ],
)
def test_bad_lines_are_named_by_number(changes, message, tmp_path):
    bad = line(**{"query_id": "ann-a_1", **changes})
    with pytest.raises(DataError, match=rf"line 2.*{message}"):
        read_language_queries({"train": write_lines(tmp_path, line(), bad)})


def test_truncated_line_is_named_by_number(tmp_path):
    path = write_lines(tmp_path, line(), '{"query": "where')
    with pytest.raises(DataError, match=r"line 2.*not valid JSON.*truncated"):
        read_language_queries({"train": path})
    path = write_lines(tmp_path, line(), '{"query": "a", "query": "b"}')
    with pytest.raises(DataError, match=r"line 2'.*key 'query' occurs twice"):
        read_language_queries({"train": path})


def test_flattened_file_may_be_an_archive(tmp_path):
    path = write_lines(tmp_path, line())
    expected = read_language_queries({"train": path})
    packed = path.with_name(path.name + ".gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    read = read_language_queries(find_nlq_files(tmp_path))
    assert (read.queries, read.report) == (expected.queries, expected.report)
    assert read.files == {"train": packed}
    packed.write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(DataError, match="damaged or truncated gzip archive"):
        read_language_queries({"train": packed})


def test_id_that_could_name_another_file_is_refused(tmp_path):
    path = write_lines(tmp_path, line(video_id="../a"))
    with pytest.raises(DataError, match="characters that an Ego4D uid does not have"):
        read_language_queries({"train": path})


def test_official_files_come_before_flattened_ones(tmp_path):
    write_lines(tmp_path, line())
    assert find_nlq_files(tmp_path) == {"train": tmp_path / "ego4d_nlq_train_v2.jsonl"}
    official = write(tmp_path, content(clip("a", question()), split="train"), "train")
    assert find_nlq_files(tmp_path) == {"train": official}
