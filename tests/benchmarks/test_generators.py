"""What every generator of clips with features does alike."""

import gzip
import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from avalanche_vilco import vilco_mq, vilco_nlq
from avalanche_vilco.benchmarks.sources import (
    DataRoot,
    FeatureSources,
    open_clip_features,
)
from avalanche_vilco.benchmarks.vilco_mq.generator import unlabelled_mq
from avalanche_vilco.benchmarks.vilco_mq.sources import MQSources
from avalanche_vilco.benchmarks.vilco_nlq.generator import unlabelled_nlq
from avalanche_vilco.benchmarks.vilco_nlq.sources import NLQSources
from avalanche_vilco.core.errors import DataError, FeatureError
from avalanche_vilco.data.moments import MomentClip
from avalanche_vilco.experiments.doctor import examine


@dataclass
class Case:
    """A generator with data to break."""

    build: Callable[..., Any]
    unlabelled: Callable[..., Any]
    sources: Callable[..., Any]
    root: Path
    file: str
    width: int


@pytest.fixture(params=["mq", "nlq"])
def case(
    request: pytest.FixtureRequest,
    mq_root: Path,
    nlq_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Case:
    monkeypatch.delenv("AVALANCHE_VILCO_DATA", raising=False)
    if request.param == "mq":
        root = Path(shutil.copytree(mq_root, tmp_path / "root"))
        file = "ego4d_clip_annotations_v2.json"
        return Case(vilco_mq, unlabelled_mq, MQSources, root, file, 32)
    root = Path(shutil.copytree(nlq_root, tmp_path / "root"))
    return Case(vilco_nlq, unlabelled_nlq, NLQSources, root, "nlq_val.json", 48)


def placed(scenario: Any) -> dict[str, list[list[str]]]:
    """Clip ids by stream and experience."""
    return {
        name: [list(experience.dataset.clip_ids) for experience in stream]
        for name, stream in scenario.streams.items()
    }


def used_clip(case: Case) -> str:
    return case.build(case.root).datasets["test"].samples[0].clip.clip_id


def test_missing_root_is_named(case: Case, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="embedded default") as caught:
        case.build(tmp_path / "nowhere")
    assert str(tmp_path / "nowhere") in str(caught.value)


def test_empty_folder_says_which_file_is_expected(case: Case, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"\.json") as caught:
        case.build(tmp_path / "empty")
    assert str(tmp_path / "empty") in str(caught.value)


def test_environment_names_the_root(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AVALANCHE_VILCO_DATA", str(case.root))
    scenario = case.build()
    assert scenario.info["data"] == "user data"
    assert placed(scenario) == placed(case.build(case.root))


def test_annotations_may_lie_in_their_own_folder(case: Case) -> None:
    expected = placed(case.build(case.root))
    (case.root / "annotations").mkdir()
    for path in case.root.glob("*.json"):
        path.rename(case.root / "annotations" / path.name)
    assert placed(case.build(case.root)) == expected


def test_annotations_may_be_archives(case: Case) -> None:
    expected = case.build(case.root)
    for path in case.root.glob("*.json"):
        packed = path.with_name(path.name + ".gz")
        packed.write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    found = case.build(case.root)
    assert placed(found) == placed(expected)
    assert found.report.files == expected.report.files
    assert examine(case.root).n_faults == 0
    assert len(case.unlabelled(case.root)) > 0
    packed = case.root / f"{case.file}.gz"
    packed.write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(DataError, match=rf"{case.file}\.gz: damaged or truncated"):
        case.build(case.root)


def test_annotations_without_features_say_so(case: Case) -> None:
    with pytest.raises(FileNotFoundError, match=r"pass features=PATH.*\.h5"):
        case.build(sources={"annotations": case.root})


def test_sources_are_a_mapping_or_a_dataclass(case: Case) -> None:
    given = {"features": case.root / "features", "missing": "drop"}
    scenarios = [
        case.build(case.root, sources=sources)
        for sources in (given, case.sources(**given), None)
    ]
    assert placed(scenarios[0]) == placed(scenarios[1]) == placed(scenarios[2])


@pytest.mark.parametrize(
    ("sources", "problem"),
    [
        ({"feature": "x"}, "no option 'feature'. Did you mean features"),
        (
            {"missing": "skip"},
            r"expected missing in \['error', 'drop'\] but got 'skip'",
        ),
        ({"features_of": "clip"}, "expected features_of in .* Did you mean clips"),
        ({"features_per_sec": 0.0}, r"expected features_per_sec in \(0, 1000\]"),
        ({"features_per_sec": float("inf")}, "expected features_per_sec"),
        ({"length_tolerance": -1}, "expected length_tolerance >= 0 but got -1"),
        ({"grid": "64"}, "expected grid of type"),
        ([("missing", "drop")], "expected sources as"),
    ],
)
def test_sources_that_do_not_fit_are_refused(
    case: Case, sources: Any, problem: str
) -> None:
    for build in (case.build, case.unlabelled):
        with pytest.raises(ValueError, match=problem):
            build(case.root, sources=sources)


def test_missing_features_are_listed_or_dropped_and_counted(case: Case) -> None:
    clip_id = used_clip(case)
    whole = placed(case.build(case.root))
    (case.root / "features" / f"{clip_id}.pt").unlink()
    with pytest.raises(FeatureError, match="missing='drop'") as caught:
        case.build(case.root)
    assert [fault.split(":")[0] for fault in caught.value.faults] == [clip_id]
    dropped = case.build(case.root, sources={"missing": "drop"})
    assert clip_id not in str(placed(dropped))
    assert clip_id in str(whole)
    clips = dropped.report.stage("features", "clips")
    assert clips.rejected == {"no feature file": 1}
    windows = dropped.report.stage("features", "windows")
    assert windows.rejected["no feature file"] > 0
    assert dropped.report.outcomes("clips")["in the streams"] == clips.kept


def test_damaged_features_stop_the_build_also_when_dropping(case: Case) -> None:
    clip_id = used_clip(case)
    path = case.root / "features" / f"{clip_id}.pt"
    path.write_bytes(path.read_bytes()[:100])
    for missing in ("error", "drop"):
        with pytest.raises(FeatureError, match=f"{clip_id}: {clip_id}.pt is damaged"):
            case.build(case.root, sources={"missing": missing})


def test_features_of_another_length_are_refused_unless_tolerated(case: Case) -> None:
    path = case.root / "features" / f"{used_clip(case)}.pt"
    torch.save(torch.zeros(7, case.width), path)
    with pytest.raises(FeatureError, match=r"expected \d+\.\d steps .* but got 7"):
        case.build(case.root)
    case.build(case.root, sources={"length_tolerance": 1000})


def test_features_may_lie_in_one_file_of_the_root(case: Case) -> None:
    folder = case.root / "features"
    plain = case.build(case.root).datasets["test"][0][0]["features"]
    tensors = {path.stem: torch.load(path) for path in folder.iterdir()}
    shutil.rmtree(folder)
    torch.save(tensors, case.root / "features.pt")
    read = case.build(case.root).datasets["test"][0][0]["features"]
    assert torch.equal(read, plain)


@pytest.mark.parametrize(("steps", "fits"), [(5, True), (6, True), (8, False)])
def test_lengths_follow_the_window_of_the_encoder(steps, fits, tmp_path) -> None:
    """100 frames, windows of 32 every 16: five, six with one added at the end."""
    torch.save(torch.ones(steps, 32), tmp_path / "clip.pt")
    none = np.zeros((0, 2)), np.zeros(0, int)
    clips = {"clip": MomentClip("clip", "v", "train", 100 / 30, 30 / 16, *none)}
    sources = FeatureSources(features=tmp_path, window_steps=2)
    items: Any = [SimpleNamespace(clip_id="clip")]
    files: Any = SimpleNamespace(root=DataRoot(None, "", False))
    with nullcontext() if fits else pytest.raises(FeatureError, match="_tolerance=2"):
        open_clip_features(items, clips, sources, files, ())


def test_features_can_be_several_sources_and_a_store(case: Case) -> None:
    folder = case.root / "features"
    plain = case.build(case.root)
    double = case.build(case.root, sources={"features": [folder, folder]})
    assert double.info["feature_dim"] == 2 * plain.info["feature_dim"]
    store = plain.datasets["train"].store
    assert placed(case.build(case.root, sources={"features": store})) == placed(plain)


def test_features_can_be_resized(case: Case) -> None:
    data = case.build(case.root, sources={"grid": 64}).datasets["test"]
    inputs, targets = data[0]
    assert inputs["features"].shape == (64, case.width)
    seconds = data.samples[0].clip.duration_sec
    assert float(targets["features_per_sec"]) == pytest.approx(64 / seconds, rel=0.05)


def test_same_arguments_give_the_same_streams_and_seeds_differ(case: Case) -> None:
    first, again, other = (case.build(case.root, seed=seed) for seed in (3, 3, 4))
    assert placed(first) == placed(again)
    assert first.info == again.info
    assert first.classes_order != other.classes_order
    held = [sorted({c for e in placed(s)["valid"] for c in e}) for s in (first, other)]
    assert held[0] == held[1]


def test_info_is_ready_for_a_results_file(case: Case) -> None:
    info = json.loads(json.dumps(case.build(case.root).info))
    assert info["uses_ground_truth_at_test"] is False
    assert info["comparable_with_paper"] is False
    assert sum(info["queries_per_experience"]) == len(info["order"])


def test_training_samples_may_carry_narrations(case: Case) -> None:
    scenario = case.build(case.root, sources={"narrations": True})
    assert "narrations" in scenario.datasets["train"][0][0]
    assert "narrations" not in scenario.datasets["test"][0][0]
    assert scenario.manifest() == case.build(case.root).manifest()
