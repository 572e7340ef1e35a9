"""The embedded Moment-Queries data: frozen, like the real file, safe to cache."""

import hashlib
import io
import json
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from avalanche_vilco.benchmarks.embedded import MANIFEST_FILE
from avalanche_vilco.benchmarks.sources import FEATURE_FOLDER
from avalanche_vilco.benchmarks.vilco_mq import embedded as mini
from avalanche_vilco.benchmarks.vilco_mq.embedded import MINI_MQ, MiniMQConfig
from avalanche_vilco.benchmarks.vilco_mq.layout import ANNOTATION_FILE, QUERY_TEXT_FILE
from avalanche_vilco.data.text.narrations import NARRATION_FEATURE_FILE, NARRATION_FILE

SMALL = MiniMQConfig(
    n_train=12,
    n_val=6,
    n_test=2,
    group_size=2,
    min_train_clips=2,
    min_val_clips=1,
    clip_sec=(40.0, 60.0),
    median_window_sec=4.0,
)

# The frozen default of version 2. A change here is a change of the data: it needs a
# new MiniMQConfig.version, because results on the two cannot be compared.
ANNOTATION_SHA256 = "c4b3739f94a21fd56777280ab544c03a0abb836924116034ffc4b1a9e2e9f929"
FEATURE_SUMS = {
    "001507a1-2f9a-46c9-80b5-2f7204095446": 1819.2,
    "3d6db879-e1be-4877-b6d9-12c00cc6f73c": 2564.4,
    "7d9d8738-0c7e-4157-b307-e2e8a5bdda21": 1771.3,
    "bdb39c50-ec73-4724-8a33-4175a15231fc": 1799.0,
}


def read_annotations(root: Path) -> dict:
    return json.loads((root / ANNOTATION_FILE).read_text(encoding="utf-8"))


def read_narrations(root: Path) -> list[dict]:
    lines = (root / NARRATION_FILE).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def read_features(root: Path, clip_uid: str) -> torch.Tensor:
    return torch.load(root / FEATURE_FOLDER / f"{clip_uid}.pt", weights_only=True)


@pytest.fixture(scope="module")
def default_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return MINI_MQ.root(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def annotations(default_root: Path) -> dict:
    return read_annotations(default_root)


@pytest.fixture(scope="module")
def small_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return SMALL.generate(tmp_path_factory.mktemp("small"))


def test_frozen_default_has_the_recorded_fingerprint(default_root):
    content = (default_root / ANNOTATION_FILE).read_bytes()
    assert hashlib.sha256(content).hexdigest() == ANNOTATION_SHA256
    for clip_uid, expected in FEATURE_SUMS.items():
        total = read_features(default_root, clip_uid).double().abs().sum()
        assert float(total) == pytest.approx(expected, abs=0.5)


def test_default_is_a_small_download_free_folder(default_root):
    size = sum(p.stat().st_size for p in default_root.rglob("*") if p.is_file())
    assert size < 25e6


def test_more_train_clips_leave_the_others_untouched(small_root, tmp_path):
    more = replace(SMALL, n_train=20).generate(tmp_path)
    before, after = read_annotations(small_root), read_annotations(more)
    others = [uid for uid, record in before.items() if record["subset"] != "train"]
    assert len(others) == 8
    for clip_uid in others:
        assert after[clip_uid] == before[clip_uid]
        expected = read_features(small_root, clip_uid)
        assert torch.equal(read_features(more, clip_uid), expected)


@pytest.mark.parametrize(
    ("statistic", "low", "high"),
    [
        ("labels", 50, 50),
        ("labels_per_clip_mean", 4.0, 4.8),
        ("labels_per_clip_max", 10, 15),
        ("windows_per_clip_mean", 8.0, 10.5),
        ("windows_per_pair_mean", 1.9, 2.3),
        ("window_sec_min", 0.6, 0.7),
        ("window_sec_median", 7.5, 10.0),
        ("window_sec_mean", 35.0, 52.0),
        ("window_sec_p90", 85.0, 130.0),
        ("window_sec_max", 480.0, 480.0),
        ("clip_sec_median", 480.0, 480.0),
        ("share_clips_spanning_groups", 0.82, 0.92),
        ("share_windows_overhanging", 0.03, 0.10),
        ("share_windows_ending_at_clip_end", 0.03, 0.10),
        ("duplicate_windows", 3, 20),
    ],
)
def test_train_statistics_stay_near_the_real_file(
    annotations, statistics, statistic, low, high
):
    found = statistics.moment_statistics(annotations, group_size=10)
    assert low <= found[statistic] <= high


def test_earlier_groups_are_more_frequent_and_labels_long_tailed(
    annotations, statistics
):
    found = statistics.moment_statistics(annotations, group_size=10)
    pairs = found["pairs_per_group"]
    assert pairs == sorted(pairs, reverse=True)
    assert found["clips_per_label_max"] > 4 * found["clips_per_label_median"]


@pytest.mark.parametrize(("subset", "minimum"), [("train", 4), ("val", 2)])
def test_every_category_has_enough_clips(annotations, subset, minimum):
    clips_of = defaultdict(set)
    for clip_uid, record in annotations.items():
        for item in record["annotations"]:
            if record["subset"] == subset:
                clips_of[item["label_id"]].add(clip_uid)
    assert sorted(clips_of) == list(range(50))
    assert min(map(len, clips_of.values())) >= minimum


def test_subsets_share_no_parent_video(annotations):
    parents = defaultdict(set)
    for record in annotations.values():
        parents[record["subset"]].add(record["video_id"])
    assert parents["train"].isdisjoint(parents["val"] | parents["test"])
    assert parents["val"].isdisjoint(parents["test"])


def test_clips_lie_in_their_parent_without_overlap(annotations):
    by_parent = defaultdict(list)
    for record in annotations.values():
        start, end = record["parent_start_sec"], record["parent_end_sec"]
        assert record["duration"] == end - start
        assert 0 <= start < end <= record["v_duration"]
        by_parent[record["video_id"]].append((start, end))
    assert {len(clips) for clips in by_parent.values()} == {1, 2, 3}
    for clips in by_parent.values():
        clips.sort()
        ends, next_starts = [c[1] for c in clips[:-1]], [c[0] for c in clips[1:]]
        assert all(end <= start for end, start in zip(ends, next_starts, strict=True))


def test_test_clips_have_features_but_no_annotation(annotations, default_root):
    clips = [uid for uid, r in annotations.items() if r["subset"] == "test"]
    assert len(clips) == 8
    for clip_uid in clips:
        assert annotations[clip_uid]["annotations"] == []
        assert read_features(default_root, clip_uid).ndim == 2


def test_names_and_records_are_like_the_real_files(annotations, shared_dir):
    path = shared_dir / "data" / "ego4d_mq" / ANNOTATION_FILE
    real = json.loads(path.read_text(encoding="utf-8"))
    ours, theirs = next(iter(annotations.values())), next(iter(real.values()))
    assert list(ours) == list(theirs)
    window = ours["annotations"][0]
    # As official scripts ask for times; the real file lost these.
    assert window["segment"] == [window.pop("start_time"), window.pop("end_time")]
    assert list(window) == list(theirs["annotations"][0])
    real_names = {a["label"] for r in real.values() for a in r["annotations"]}
    assert real_names.isdisjoint(MiniMQConfig().labels)


def test_features_are_half_floats_at_the_stated_rate(annotations, default_root):
    for clip_uid in list(annotations)[::40]:
        record, features = annotations[clip_uid], read_features(default_root, clip_uid)
        assert features.dtype == torch.float16
        steps = round(record["duration"] * record["fps"])
        assert features.shape == (steps, 32)
        assert torch.isfinite(features).all()


def test_features_are_brighter_along_a_label_where_its_window_is(small_root):
    """A category's mean feature, learned from train, points at its val windows."""
    inside, outside = defaultdict(list), []
    for clip_uid, record in read_annotations(small_root).items():
        features = read_features(small_root, clip_uid).float()
        seconds = (torch.arange(len(features)) + 0.5) / record["fps"]
        covered = torch.zeros(len(features), dtype=torch.bool)
        for item in record["annotations"]:
            start, end = item["segment"]
            mask = (seconds >= start) & (seconds < end)
            inside[record["subset"], item["label_id"]].append(features[mask])
            covered |= mask
        outside.append(features[~covered])
    rest = torch.cat(outside).mean(0)
    gains = [
        (torch.cat(steps).mean(0) - rest) @ (torch.cat(train).mean(0) - rest)
        for label in range(10)
        if (steps := inside["val", label]) and (train := inside["train", label])
    ]
    assert sum(float(gain) > 0 for gain in gains) >= 0.9 * len(gains) > 0


def test_every_query_has_one_token_a_word(default_root):
    text = load_file(default_root / QUERY_TEXT_FILE)
    assert sorted(text) == sorted(MiniMQConfig().labels)
    assert text["peel_/_grate_a_carrot"].shape == (5, 48)
    assert text['"season_a_dish_(with_salt,_pepper,_herbs)"'].shape == (7, 48)
    assert all(tokens.dtype == torch.float32 for tokens in text.values())


def test_narrations_have_features_and_belong_to_train_clips(annotations, default_root):
    narrations = read_narrations(default_root)
    path = default_root / NARRATION_FEATURE_FILE
    with np.load(path, allow_pickle=False) as features:
        assert set(features.files) == {n["query_id"] for n in narrations}
        for narration in narrations[::200]:
            tokens = features[narration["query_id"]]
            assert tokens.shape == (len(narration["query"].split()), 512)
            assert tokens.dtype == np.float16
    for narration in narrations:
        record = annotations[narration["video_id"]]
        ((start, end),) = narration["timestamps"]
        assert record["subset"] == "train"
        assert 0 <= start < end <= record["duration"] + 1e-4


def test_narrations_are_not_sorted_in_time(default_root):
    starts = defaultdict(list)
    for narration in read_narrations(default_root):
        starts[narration["video_id"]].append(narration["timestamps"][0][0])
    assert any(times != sorted(times) for times in starts.values())


def test_narrations_speak_in_the_third_person(default_root):
    sentences = {narration["query"] for narration in read_narrations(default_root)}
    assert {"C peels a carrot", "C grates a carrot", "C mixes glue"} <= sentences
    assert "C seasons a dish" in sentences


def test_small_config_keeps_every_category(small_root, statistics):
    annotations = read_annotations(small_root)
    for subset in ("train", "val"):
        found = statistics.moment_statistics(annotations, group_size=2, subset=subset)
        assert found["labels"] == 10
        assert found["clip_sec_max"] <= 60
    assert len(annotations) == 20


def test_fewer_clips_than_groups_still_hold_every_category(tmp_path, statistics):
    root = replace(SMALL, n_train=2, n_val=1, n_test=0).generate(tmp_path)
    found = statistics.moment_statistics(read_annotations(root), group_size=2)
    assert found["labels"] == 10
    assert found["clips_per_label_min"] == 2


@pytest.fixture
def generated(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Folders that the generator was asked to write, in order."""
    folders: list[Path] = []

    def counting(config, folder):
        folders.append(folder)
        return generate(config, folder)

    generate = MiniMQConfig.generate

    monkeypatch.setattr(MiniMQConfig, "generate", counting)
    return folders


def assert_holds_only(cache: Path, root: Path) -> None:
    assert list(cache.iterdir()) == [root]
    assert (root / MANIFEST_FILE).is_file()


def test_default_and_other_configs_do_not_share_a_folder(tmp_path, default_root):
    assert default_root.name == f"mini_mq_v{mini.MINI_MQ.version}"
    assert SMALL.root(tmp_path).name != default_root.name


def with_one_value_changed(content: bytes) -> bytes:
    features = torch.load(io.BytesIO(content))
    features[0, 0] += 1
    torch.save(features, changed := io.BytesIO())
    return changed.getvalue()


DAMAGES = {
    "no manifest": (MANIFEST_FILE, None),
    "a foreign manifest": (
        MANIFEST_FILE,
        lambda content: json.dumps(
            {**json.loads(content), "fingerprint": "0" * 64}
        ).encode(),
    ),
    "a cut manifest": (MANIFEST_FILE, lambda content: b"{"),
    "an empty manifest": (MANIFEST_FILE, lambda content: b"[]"),
    "other annotations": (
        ANNOTATION_FILE,
        lambda content: content.replace(b"train", b"trail", 1),
    ),
    "cut narrations": (NARRATION_FEATURE_FILE, lambda content: content[:1000]),
    "a lost clip": (FEATURE_FOLDER, None),
    "a cut clip": (FEATURE_FOLDER, lambda content: content[:-100]),
    "a changed clip": (FEATURE_FOLDER, with_one_value_changed),
}


def damage(root: Path, case: str) -> None:
    name, change = DAMAGES[case]
    path = next((root / name).iterdir()) if name == FEATURE_FOLDER else root / name
    if change is None:
        path.unlink()
    else:
        path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize("case", DAMAGES)
def test_damaged_cache_is_generated_anew(tmp_path, generated, case):
    root = SMALL.root(tmp_path)
    intact = (root / ANNOTATION_FILE).read_bytes()
    damage(root, case)
    assert SMALL.root(tmp_path) == root
    assert len(generated) == 2
    assert (root / ANNOTATION_FILE).read_bytes() == intact
    assert len(list((root / FEATURE_FOLDER).iterdir())) == 20
    assert_holds_only(tmp_path, root)


def test_loser_of_a_race_uses_the_winners_folder(tmp_path, monkeypatch):
    winner_marks = []

    def beaten(config, folder):
        monkeypatch.undo()
        root = config.root(tmp_path)
        winner_marks.append((root / MANIFEST_FILE).stat().st_ino)
        return config.generate(folder)

    monkeypatch.setattr(MiniMQConfig, "generate", beaten)
    root = SMALL.root(tmp_path)
    assert [(root / MANIFEST_FILE).stat().st_ino] == winner_marks
    assert_holds_only(tmp_path, root)


@pytest.mark.parametrize("is_damaged", [False, True])
def test_racing_callers_all_get_an_intact_folder(tmp_path, monkeypatch, is_damaged):
    n_callers = 4
    barrier = Barrier(n_callers, timeout=60)

    def together(config, folder):
        generate(config, folder)
        barrier.wait()
        return folder

    generate = MiniMQConfig.generate
    if is_damaged:
        damage(SMALL.root(tmp_path), "no manifest")
    monkeypatch.setattr(MiniMQConfig, "generate", together)
    with ThreadPoolExecutor(n_callers) as pool:
        calls = [pool.submit(SMALL.root, tmp_path) for _ in range(n_callers)]
        roots = {call.result() for call in calls}
    assert len(roots) == 1
    assert_holds_only(tmp_path, roots.pop())


def test_failed_generation_leaves_nothing_behind(tmp_path, monkeypatch):
    def broken(config, folder):
        folder.mkdir()
        raise OSError("disk full")

    monkeypatch.setattr(MiniMQConfig, "generate", broken)
    with pytest.raises(OSError, match="disk full"):
        SMALL.root(tmp_path)
    assert list(tmp_path.iterdir()) == []
