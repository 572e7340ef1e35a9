"""Visual-query files: validated records, or an error that names the spot."""

import gzip
import hashlib
import json
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from avalanche_vilco.benchmarks.vilco_vq.annotations import (
    OFFICIAL_VQ_FILES,
    VisualClip,
    find_vq_files,
    read_unlabelled_visual_queries,
    read_visual_queries,
    title_key,
)
from avalanche_vilco.benchmarks.vilco_vq.clip_videos import (
    check_clip_videos,
    clip_file_frames,
)
from avalanche_vilco.core.errors import DataError
from avalanche_vilco.data.media.video import VideoError, VideoFolder, write_video

FRAME = {"original_width": 200, "original_height": 100}


def box(frame: Any = 20, x: Any = 10.0, y: Any = 20.0, **changes: Any) -> dict:
    drawn = {"frame_number": frame, "x": x, "y": y, "width": 30.0, "height": 40.0}
    return {**drawn, **FRAME, "video_frame_number": 4000, **changes}


def query(*track: dict, **changes: Any) -> dict:
    asked = {
        "is_valid": True,
        "object_title": "blue bottle",
        "query_frame": 50,
        "visual_crop": box(70),
        "response_track": list(track) or [box(20), box(21), box(22)],
        **changes,
    }
    return {name: value for name, value in asked.items() if value is not ...}


def clip(uid: str | None, *queries: dict, **changes: Any) -> dict:
    sets = {str(i + 1): one for i, one in enumerate(queries)}
    held = {
        "clip_uid": uid,
        "video_start_sec": 900.0,
        "video_end_sec": 920.0,
        "video_start_frame": 27000,
        "video_end_frame": 27600,
        "clip_start_sec": 0,
        "clip_end_sec": 20.0,
        "clip_fps": 5.0,
        "annotation_complete": True,
        "annotations": [{"annotation_uid": f"ann-{uid}", "query_sets": sets}],
        **changes,
    }
    return {name: value for name, value in held.items() if value is not ...}


def content(*clips: dict, split: str = "val", version: Any = "1.0.5") -> dict:
    video = {"video_uid": f"video-{split}", "split": split, "clips": list(clips)}
    return {"version": version, "date": "", "videos": [video]}


def write(folder: Path, raw: Any, subset: str = "val") -> Path:
    path = folder / OFFICIAL_VQ_FILES[subset]
    path.write_text(raw if isinstance(raw, str) else json.dumps(raw))
    return path


def read_val(folder: Path, *clips: dict) -> Any:
    return read_visual_queries({"val": write(folder, content(*clips))})


def tally(read: Any, unit: str) -> Any:
    return read.report.stage("annotations", unit)


def test_a_query_has_its_crop_its_track_and_its_place_in_the_file(tmp_path):
    read = read_val(tmp_path, clip("a", query(), query(object_title=" Red  mug ")))
    assert list(read.clips) == ["a"]
    known = read.clips["a"]
    assert (known.fps, known.duration_sec, known.video_start_sec) == (5.0, 20.0, 900.0)
    first, second = read.queries
    assert (first.query_id, second.query_id) == ("ann-a_1", "ann-a_2")
    assert (first.annotation_uid, first.set_number) == ("ann-a", "1")
    assert (first.title, second.title) == ("blue bottle", "Red mug")
    assert second.title_key == "red mug"
    assert first.query_frame == 50
    assert first.crop.frame == 70
    assert first.crop.box == (10, 20, 40, 60)
    assert first.crop.relative_box.tolist() == [0.05, 0.2, 0.2, 0.6]
    assert first.track.frames.tolist() == [20, 21, 22]
    assert first.track.boxes.tolist() == [[10, 20, 40, 60]] * 3
    assert first.track.frame_size == (100, 200)
    assert first.track.relative_boxes[0].tolist() == [0.05, 0.2, 0.2, 0.6]


def test_track_arrays_are_read_only(tmp_path):
    track = read_val(tmp_path, clip("a", query())).queries[0].track
    with pytest.raises(ValueError, match="read-only"):
        track.boxes[0, 0] = 1
    with pytest.raises(ValueError, match="read-only"):
        track.frames[0] = 1


def test_boxes_in_any_order_become_a_track_in_order_of_time(tmp_path):
    read = read_val(tmp_path, clip("a", query(box(22, 3.0), box(20, 1.0), box(21))))
    track = read.queries[0].track
    assert track.frames.tolist() == [20, 21, 22]
    assert track.boxes[:, 0].tolist() == [1, 10, 3]


def test_a_clip_listed_twice_has_the_queries_of_both(tmp_path):
    again = clip("a", query())
    again["annotations"][0]["annotation_uid"] = "other"
    read = read_val(tmp_path, clip("a", query()), again)
    assert [q.query_id for q in read.queries] == ["ann-a_1", "other_1"]
    assert len(read.clips) == 1


def test_unlabelled_queries_have_no_track(tmp_path):
    asked = query(response_track=..., object_title=None)
    path = write(tmp_path, content(clip("a", asked), split="test"), "test")
    read = read_unlabelled_visual_queries(path)
    assert read.queries[0].track is None
    assert read.queries[0].title == ""
    assert tally(read, "query sets").notes == {"without title": 1}


def test_files_are_found_by_name_and_hashed(tmp_path):
    write(tmp_path, content(clip("a", query())))
    write(tmp_path, content(clip("b", query()), split="train"), "train")
    files = find_vq_files(tmp_path)
    assert sorted(files) == ["train", "val"]
    read = read_visual_queries(files)
    assert [q.subset for q in read.queries] == ["train", "val"]
    digest = hashlib.sha256(files["val"].read_bytes()).hexdigest()
    assert read.report.files["vq_val.json"] == digest
    packed = tmp_path / "vq_val.json.gz"
    packed.write_bytes(gzip.compress(files["val"].read_bytes()))
    files["val"].unlink()
    again = find_vq_files(tmp_path)
    assert again["val"] == packed
    assert read_visual_queries(again).report.files == read.report.files


def test_blanks_and_capitals_do_not_make_another_object():
    assert title_key(" Blue  Bottle") == title_key("blue bottle") == "blue bottle"
    assert title_key("blue bottles") != title_key("blue bottle")


def test_a_file_with_everything_adds_up(tmp_path):
    read = read_val(
        tmp_path,
        clip(
            "a",
            query(),
            query(
                is_valid=False, visual_crop=None, response_track=..., query_frame=...
            ),
            query(object_title=None),
            query(object_title="  "),
            query(query_frame=0),
            query(response_track=[]),
            query(box(20), box(22)),
            query(box(20), box(20, 11.0)),
            query(box(50), box(51)),
            query(box(49), box(50)),
            query(box(20), box(21, **{"original_width": 100, "original_height": 100})),
            query(visual_crop=box(70, width=0.0)),
            query(visual_crop=box(70, 210.0)),
            query(visual_crop=box(70, 190.0)),
            query(box(20, -5.0), box(21), box(21), box(22, width=0), box(19, 300.0)),
        ),
        clip(None, query(), query()),
        clip("empty", annotations=[]),
        clip("b", query(is_valid=False)),
    )
    sets = tally(read, "query sets")
    assert sets.read == 18
    assert sets.kept == 3
    assert sets.changed == {"crop overhangs the frame, clipped to it": 1}
    assert sets.rejected == {
        "not valid": 2,
        "no object title": 2,
        "no frame before the query frame": 1,
        "response track: no box": 1,
        "response track: gaps": 1,
        "response track: two boxes in one frame": 1,
        "response track: begins after the search window": 1,
        "response track: frame sizes differ": 1,
        "crop: no area": 1,
        "crop: outside the frame": 1,
        "the clip has no clip_uid": 2,
    }
    assert sets.notes["response track reaches the query frame"] == 1
    assert len(read.queries) == sets.passed_on == 4
    boxes = tally(read, "boxes")
    assert boxes.changed == {"overhangs the frame, clipped to it": 1}
    # Of seven rejected sets with tracks of 3, 3, 3, 2, 2, 2, 2, and two of 3 for crops.
    assert boxes.rejected == {
        "repeated": 1,
        "no area": 1,
        "outside the frame": 1,
        "its query set is rejected": 3 + 3 + 3 + 0 + 2 + 2 + 2 + 2 + 3 + 3,
    }
    assert boxes.passed_on == sum(len(q.track.frames) for q in read.queries) == 10
    clips = tally(read, "clips")
    assert (clips.read, clips.kept) == (4, 1)
    assert clips.rejected == {"no clip_uid": 1, "no usable query set": 2}


def test_boxes_that_overhang_are_clipped_to_the_frame(tmp_path):
    track = (box(20, -5.0, 90.0), box(21, 190.0, -20.0))
    asked = query(*track, visual_crop=box(70, 180.0, 70.0))
    (read,) = read_val(tmp_path, clip("a", asked)).queries
    assert read.track.boxes.tolist() == [[0, 90, 25, 100], [190, 0, 200, 20]]
    assert read.crop.box == (180, 70, 200, 100)


def test_a_rounding_error_is_no_overhang(tmp_path):
    read = read_val(tmp_path, clip("a", query(box(20, 170.001), box(21))))
    assert tally(read, "boxes").changed == {}
    assert read.queries[0].track.boxes[0, 2] == 200


def test_an_annotation_without_uid_has_no_ids_to_give(tmp_path):
    unnamed = clip("a", query(), query())
    unnamed["annotations"][0]["annotation_uid"] = None
    read = read_val(tmp_path, unnamed, clip("b", query()))
    assert tally(read, "query sets").rejected == {"no annotation_uid": 2}


@pytest.mark.parametrize(
    ("changes", "field", "problem"),
    [
        ({"query_frame": "50"}, "query_frame", "Expected `float`, got `str`"),
        ({"query_frame": 50.5}, "query_frame", "expected a whole number but got 50.5"),
        ({"query_frame": ...}, "", "missing required field `query_frame`"),
        ({"visual_crop": None}, "visual_crop", "Expected `object`, got `null`"),
        (
            {"response_track": [box(20), box(21, width=None)]},
            "response_track[1].width",
            "Expected `float`, got `null`",
        ),
        (
            {"response_track": [box(20), box(21.5)]},
            "response_track[1].frame_number",
            "expected a whole number but got 21.5",
        ),
        (
            {"response_track": [box(20, float("nan"))]},
            "response_track[0]",
            "expected finite numbers",
        ),
        (
            {"visual_crop": box(70, original_width=0)},
            "visual_crop.original_width",
            "expected a frame with an area but got 0 x 100",
        ),
    ],
)
def test_a_broken_field_is_named_with_its_place(tmp_path, changes, field, problem):
    with pytest.raises(DataError) as caught:
        read_val(tmp_path, clip("a", query(), query(**changes)))
    place = 'annotations[0].query_sets["2"]'
    assert caught.value.record == "a"
    assert caught.value.field == (f"{place}.{field}" if field else place)
    assert problem in caught.value.problem


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"clip_fps": ...}, "missing required field `clip_fps`"),
        ({"clip_fps": 0.0}, "expected frames a second but got 0.0"),
        ({"video_end_sec": 900.0}, "expected a clip of positive length"),
    ],
)
def test_a_clip_without_rate_or_length_is_refused(tmp_path, changes, problem):
    with pytest.raises(DataError, match=problem):
        read_val(tmp_path, clip("a", query(), **changes))


def test_a_uid_that_could_name_another_file_is_refused(tmp_path):
    with pytest.raises(DataError, match="the id has characters"):
        read_val(tmp_path, clip("../a", query()))


def test_a_query_that_occurs_twice_is_refused(tmp_path):
    with pytest.raises(DataError, match="the query ann-a_1 occurs twice"):
        read_val(tmp_path, clip("a", query()), clip("a", query()))


def test_a_clip_with_two_lengths_is_refused(tmp_path):
    other = clip("a", query(), video_end_sec=930.0)
    other["annotations"][0]["annotation_uid"] = "other"
    with pytest.raises(DataError, match="occurs twice: as VisualClip"):
        read_val(tmp_path, clip("a", query()), other)


def test_files_of_two_versions_are_refused(tmp_path):
    train = write(tmp_path, content(clip("b", query()), split="train"), "train")
    val = write(tmp_path, content(clip("a", query()), version="2.0"))
    with pytest.raises(DataError, match=r"is '2.0', but vq_train.json is '1.0.5'"):
        read_visual_queries({"train": train, "val": val})


def test_a_file_without_queries_is_refused(tmp_path):
    with pytest.raises(DataError, match="the file holds no query set"):
        read_val(tmp_path, clip("a", annotations=[]))


def test_an_absent_file_says_how_to_get_it(tmp_path):
    with pytest.raises(FileNotFoundError, match="ego4d --datasets annotations"):
        read_visual_queries({"val": tmp_path / "vq_val.json"})


def test_only_annotated_subsets_are_read_as_such(tmp_path):
    with pytest.raises(ValueError, match="expected subsets 'train' and 'val'"):
        read_visual_queries({"test": tmp_path / "vq_test_unannotated.json"})


def gray(n: int) -> Any:
    return repeat(np.full((16, 32, 3), 99, np.uint8), n)


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> VideoFolder:
    folder = tmp_path_factory.mktemp("clips")
    write_video(folder / "fits.mp4", gray(100), 5)
    write_video(folder / "ntsc.mp4", gray(600), 30000 / 1001)
    write_video(folder / "short.mp4", gray(60), 5)
    (folder / "bad.mp4").write_bytes(b"")
    return VideoFolder(folder)


def clip_of(seconds: float) -> VisualClip:
    return VisualClip("a", "video", "val", 5.0, seconds, 0.0)


def test_annotated_frames_are_the_files_frames_where_rates_agree(videos):
    info = videos.info("fits")
    assert clip_file_frames(clip_of(20), range(100), info).tolist() == list(range(100))


def test_a_file_of_2997_fps_is_read_at_the_right_times(videos):
    frames = clip_file_frames(clip_of(20), [0, 1, 50, 99], videos.info("ntsc"))
    assert frames.tolist() == [0, 6, 300, 593]


def test_a_frame_behind_the_end_names_both_rates(videos):
    problem = r"frame 500 at 5 fps, but the file ends after 60 frames at 5 fps, 12\.0 s"
    with pytest.raises(VideoError, match=problem):
        clip_file_frames(clip_of(120), [3, 500], videos.info("short"))
    with pytest.raises(VideoError, match="expected frame numbers from 0 but got -1"):
        clip_file_frames(clip_of(120), [-1], videos.info("short"))


def test_a_frame_just_behind_the_end_is_the_last(videos):
    assert clip_file_frames(clip_of(12), [60], videos.info("short")).tolist() == [59]


def test_all_clips_whose_files_do_not_fit_are_listed(videos, tmp_path):
    names = ["fits", "ntsc", "short", "bad", "absent"]
    read = read_val(tmp_path, *(clip(name, query()) for name in names))
    with pytest.raises(VideoError) as caught:
        check_clip_videos(read.queries, read.clips, videos)
    lines = str(caught.value).splitlines()
    assert lines[0].endswith("4 faults in clips:")
    assert [line.strip() for line in lines[1:5]] == [
        "short: the file lasts 12.0 s, the clip 20.0 s",
        "short: the annotations name frame 70 at 5 fps, but the file ends after 60 "
        "frames at 5 fps, 12.0 s",
        "bad: the file is empty",
        "absent: no file absent.mp4",
    ]
    fitting = read_val(tmp_path, clip("fits", query()), clip("ntsc", query()))
    check_clip_videos(fitting.queries, fitting.clips, videos)
