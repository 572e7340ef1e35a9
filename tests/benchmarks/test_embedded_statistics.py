"""What is told of the embedded data sets, and of real files beside them."""

import json

import pytest

from avalanche_vilco.benchmarks.vilco_mq.layout import ANNOTATION_FILE
from avalanche_vilco.benchmarks.vilco_nlq.annotations import read_language_queries
from avalanche_vilco.benchmarks.vilco_nlq.layout import OFFICIAL_NLQ_FILES
from avalanche_vilco.benchmarks.vilco_vq.annotations import (
    OFFICIAL_VQ_FILES,
    read_visual_queries,
)


def make_clip(subset, windows, duration=100.0, video_id="v"):
    annotations = [
        {"segment": [start, end], "label": f"l{label}", "label_id": label}
        for start, end, label in windows
    ]
    return {
        "video_id": video_id,
        "clip_id": f"{subset}-{len(windows)}",
        "duration": duration,
        "subset": subset,
        "annotations": annotations,
    }


def test_statistics_of_a_hand_made_file(statistics):
    windows = [(0.0, 10.0, 0), (0.0005, 10.0, 0), (90.0, 100.0, 3), (95.0, 101.0, 3)]
    clips = [
        make_clip("train", windows),
        make_clip("train", [(0.0, 2.0, 1)], duration=80.0),
        make_clip("val", [(5.0, 6.0, 2), (5.0, 6.0, 2)]),
    ]
    found = statistics.moment_statistics(dict(enumerate(clips)), group_size=2)
    assert found["clips"] == 2
    assert found["parent_videos"] == 1
    assert found["hours"] == pytest.approx(180 / 3600)
    assert found["labels_per_clip_mean"] == 1.5
    assert found["pairs_per_group"] == [2, 1]
    assert found["share_clips_spanning_groups"] == 0.5
    assert found["windows_per_pair_mean"] == pytest.approx(5 / 3)
    assert found["window_sec_median"] == pytest.approx(9.9995)
    assert found["share_windows_overhanging"] == pytest.approx(0.2)
    assert found["share_windows_ending_at_clip_end"] == pytest.approx(0.2)
    assert found["duplicate_windows"] == 1


def test_statistics_of_the_real_moment_queries(shared_dir, statistics):
    path = shared_dir / "data" / "ego4d_mq" / ANNOTATION_FILE
    real = json.loads(path.read_text(encoding="utf-8"))
    found = statistics.moment_statistics(real, group_size=22)
    assert (found["clips"], found["windows"], found["labels"]) == (1486, 13559, 110)
    assert found["duplicate_windows"] == 14
    assert found["pairs_per_group"] == [2533, 1368, 1051, 966, 582]
    assert found["share_clips_spanning_groups"] == pytest.approx(0.868, abs=5e-4)
    assert found["share_windows_overhanging"] == 1055 / 13559
    assert found["share_windows_ending_at_clip_end"] == 882 / 13559


def test_statistics_refuse_a_subset_without_annotations(mq_root, statistics):
    annotations = json.loads((mq_root / ANNOTATION_FILE).read_text(encoding="utf-8"))
    with pytest.raises(ValueError, match="in subset 'test' but got none"):
        statistics.moment_statistics(annotations, group_size=10, subset="test")
    with pytest.raises(ValueError, match="expected group_size >= 1 but got 0"):
        statistics.moment_statistics(annotations, group_size=0)


def test_statistics_of_the_real_language_queries(shared_dir, statistics):
    path = shared_dir / "data" / "ego4d_nlq" / "nlq_val.json"
    found = statistics.query_statistics(read_language_queries({"val": path}))
    assert (found["queries"], found["clips"]) == (4552, 415)
    assert found["parent_videos"] == 300
    assert found["hours"] == pytest.approx(57.6, abs=0.05)
    assert found["templates_per_clip_mean"] == pytest.approx(5.34, abs=0.01)
    assert found["window_sec_p50"] == pytest.approx(4.0, abs=0.01)
    assert found["queries_per_template"][3] == 22


def test_statistics_count_visual_queries(vq_root, statistics):
    files = {"train": vq_root / OFFICIAL_VQ_FILES["train"]}
    read = read_visual_queries(files)
    counted = statistics.visual_query_statistics(read)
    assert counted["queries"] == len(read.queries)
    assert counted["clips"] == 10
    assert 4 <= counted["track_frames_median"] <= counted["track_frames_max"] <= 8
    assert 0.02 < counted["box_area_share_median"] < 0.1


@pytest.mark.parametrize(
    ("benchmark_name", "root_name", "file"),
    [
        ("vilco_mq", "mq_root", ANNOTATION_FILE),
        ("vilco_nlq", "nlq_root", OFFICIAL_NLQ_FILES["val"]),
        ("vilco_vq", "vq_root", ""),
    ],
)
def test_command_prints_statistics_beside_a_file(
    statistics, benchmark_name, root_name, file, request, monkeypatch, capsys
):
    root = request.getfixturevalue(root_name)
    config, count = statistics.BENCHMARKS[benchmark_name]
    monkeypatch.setattr(config, "root", lambda self: root)
    arguments = [benchmark_name, str(root / file), "--subset", "val"]
    assert statistics.main(arguments) == 0
    rows = capsys.readouterr().out.splitlines()
    name = f"{config.name} v{config.version}"
    assert rows[0].split() == f"| statistic | {name} | {file or root.name} |".split()
    assert len(rows) == 2 + len(count(root, "val"))
    for row in rows[2:]:
        _, embedded, beside = row.strip("| ").split("|")
        assert embedded.strip() == beside.strip()
