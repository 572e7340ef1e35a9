"""Official annotation files: read as Ego4D writes them, else refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from avalanche_vilco.benchmarks.ego4d import read_official_file
from avalanche_vilco.core.errors import DataError
from avalanche_vilco.core.report import DataReport


def read(folder: Path, raw: Any, subset: str = "val") -> Any:
    path = folder / "official.json"
    path.write_text(raw if isinstance(raw, str) else json.dumps(raw))
    return read_official_file(path, subset, DataReport(), hint="fetch it")


def content(version: Any = "v2") -> dict[str, Any]:
    video = {"video_uid": "v", "split": "val", "clips": [{"clip_uid": "a"}, {}]}
    return {"version": version, "videos": [video]}


@pytest.mark.parametrize(
    "version", ["v1", "v2", "1", "2", "2.0", "1.0.5", 1, 2, "v2.1", "v2_1", 1.0]
)
def test_versions_of_ego4d_are_read(tmp_path, version):
    clips = read(tmp_path, content(version)).clips()
    assert [name for _, name, _ in clips] == ["a", "videos[0].clips[1]"]


@pytest.mark.parametrize("version", ["v3", "3.0", "", "latest", 20, "v2b", "2\n"])
def test_other_versions_are_refused_by_name(tmp_path, version):
    with pytest.raises(DataError, match="expected version 1 or 2") as caught:
        read(tmp_path, content(version))
    assert "official.json, field 'version'" in str(caught.value)


def test_file_of_another_subset_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"expected 'train' in this .* got 'val'"):
        read(tmp_path, content(), "train")


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        ("", "truncated"),
        (json.dumps(content())[:-20], "not valid JSON.*truncated"),
        ("[]", "expected a JSON object"),
        ("{}", "missing required field `version`"),
        ('{"a": {"clip_id": "a"}}', "missing required field"),
        ('{"version": "v2", "videos": {}}', "Expected `array`"),
        ('{"version": "v2", "videos": [], "videos": []}', "'videos' occurs twice"),
    ],
)
def test_what_is_no_official_file_is_refused_by_name(tmp_path, raw, problem):
    with pytest.raises(DataError, match=rf"official\.json.*{problem}"):
        read(tmp_path, raw)
