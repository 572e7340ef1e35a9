"""Missing feature files of the real clips: all named before the first step."""

import json
from pathlib import Path

import numpy as np
import pytest

from avalanche_vilco import vilco_mq
from avalanche_vilco.core.errors import FeatureError
from avalanche_vilco.experiments.doctor import examine

N_CLIPS = 2_007
N_MISSING = {"train": 3, "val": 2}


@pytest.fixture(scope="module")
def annotations(shared_dir) -> Path:
    path = shared_dir / "data" / "ego4d_mq" / "ego4d_clip_annotations_v2.json"
    if not path.is_file():
        pytest.skip("needs the real annotation file in shared/data/ego4d_mq")
    return path


@pytest.fixture(scope="module")
def gone(annotations) -> dict[str, list[str]]:
    """Clips without a file, by subset."""
    records = json.loads(annotations.read_text())
    labelled = {uid: r for uid, r in records.items() if r["annotations"]}
    return {
        subset: [uid for uid, r in labelled.items() if r["subset"] == subset][::200][:n]
        for subset, n in N_MISSING.items()
    }


@pytest.fixture(scope="module")
def features(annotations, gone, tmp_path_factory) -> Path:
    """Four channels for each labelled clip, but for five of them."""
    folder = tmp_path_factory.mktemp("features")
    without = {uid for uids in gone.values() for uid in uids}
    written = 0
    for uid, record in json.loads(annotations.read_text()).items():
        if record["annotations"] and uid not in without:
            steps = round(record["duration"] * record["fps"])
            np.save(folder / f"{uid}.npy", np.zeros((steps, 4), np.float16))
            written += 1
    assert written == N_CLIPS - 5
    return folder


def test_all_five_missing_files_are_listed_before_the_first_step(
    annotations, features, gone
):
    with pytest.raises(FeatureError, match="5 faults in feature files") as caught:
        vilco_mq(sources={"annotations": annotations, "features": features})
    listed = {fault.split(":")[0] for fault in caught.value.faults}
    assert listed == {*gone["train"], *gone["val"]}
    assert all(uid in str(caught.value) for uid in listed)


def test_dropping_prints_the_new_denominator(annotations, features, gone):
    report = vilco_mq(
        sources={"annotations": annotations, "features": features, "missing": "drop"}
    ).report
    clips = report.stage("features", "clips")
    windows = report.stage("features", "windows")
    assert (clips.read, clips.passed_on) == (N_CLIPS, N_CLIPS - 5)
    assert clips.rejected == {"no feature file": 5}
    line = "features: 2007 clips read = 2002 kept + 5 rejected (no feature file)"
    assert line in str(report).splitlines()
    assert windows.read == 17_833
    assert 0 < windows.rejected["no feature file"] < 17_833
    assert sum(report.outcomes("clips").values()) == 2_495


def test_doctor_lists_the_same_five_by_subset(annotations, features, gone, tmp_path):
    found = examine(tmp_path, annotations=annotations, features=features)
    faults = [one for one in found.findings if one.severity == "fault"]
    assert {fault.records for fault in faults} == {
        tuple(gone["train"]),
        tuple(gone["val"]),
    }
    assert [fault.problem for fault in faults] == [
        "3 train clips have no features",
        "2 val clips have no features",
    ]
    notes = {one.part: one for one in found.findings if one.severity == "note"}
    assert len(notes["features"].records) == 488
    assert found.counts["annotations"]["windows"] == 17_833
