"""What every embedded data set does alike: drawn from its seed, checked, cached."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from avalanche_vilco.benchmarks.embedded import MANIFEST_FILE
from avalanche_vilco.benchmarks.vilco_mq.embedded import MiniMQConfig
from avalanche_vilco.benchmarks.vilco_nlq.embedded import MiniNLQConfig
from avalanche_vilco.benchmarks.vilco_vq.embedded import MiniVQConfig

UID = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
SIZES = {"n_train": 3, "n_val": 2, "clip_sec": (40.0, 60.0)}


CONFIGS = {
    "mq": MiniMQConfig(**SIZES, n_test=1, group_size=1, median_window_sec=4.0),
    "nlq": MiniNLQConfig(**SIZES, n_test=1, min_train_queries=1, min_val_queries=1),
    "vq": MiniVQConfig(n_train=1, n_val=1, n_test=0, clip_frames=(72, 72)),
}


@pytest.fixture(scope="module", params=CONFIGS)
def config(request: pytest.FixtureRequest) -> Any:
    return CONFIGS[request.param]


@pytest.fixture(scope="module")
def files(config: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return files_of(config.generate(tmp_path_factory.mktemp("small")))


def files_of(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def uids(files: dict[str, bytes]) -> set[bytes]:
    return {uid for one in files.values() for uid in UID.findall(one)}


def test_generating_twice_gives_the_same_files(config, files, tmp_path):
    assert files_of(config.generate(tmp_path)) == files
    has_test_clips = config.n_test > 0
    assert has_test_clips or not any("unannotated" in name for name in files)


def test_another_seed_gives_other_data(config, files, tmp_path):
    other = files_of(replace(config, seed=1).generate(tmp_path))
    assert uids(other).isdisjoint(uids(files)) and len(uids(files)) > 3


def test_cache_is_read_and_generated_anew_when_damaged(config, files, tmp_path):
    root = config.root(tmp_path)
    written = (root / MANIFEST_FILE).stat().st_mtime_ns
    assert config.root(tmp_path) == root
    assert (root / MANIFEST_FILE).stat().st_mtime_ns == written
    for name in sorted(files)[::3]:
        (root / name).write_bytes(files[name][:-10])
        assert config.root(tmp_path) == root
        assert files_of(tmp_path) == {f"{root.name}/{n}": b for n, b in files.items()}


@pytest.mark.parametrize(
    ("name", "knobs", "message"),
    [
        *(
            (name, {"n_train": 0}, "expected n_train >= 1 but got 0")
            for name in CONFIGS
        ),
        ("mq", {"n_groups": 6}, r"expected n_groups in \[1, 5\] but got 6"),
        ("mq", {"group_size": 0}, r"expected group_size in \[1, 10\] but got 0"),
        ("mq", {"clip_sec": (60.0, 40.0)}, "expected clip_sec"),
        ("nlq", {"queries_per_clip": 0.5}, "expected queries_per_clip >= 1"),
        ("nlq", {"clip_sec": (60.0, 40.0)}, "expected clip_sec with 20 <= shortest"),
        ("vq", {"queries_per_clip": 9}, r"expected queries_per_clip in 1\.\.8"),
        ("vq", {"clip_frames": (50, 60)}, "four times the longest appearance"),
    ],
)
def test_knobs_out_of_range_are_refused(name, knobs, message):
    with pytest.raises(ValueError, match=message):
        replace(CONFIGS[name], **knobs)
