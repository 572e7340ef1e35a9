"""Manifests: the same streams back, or an error that says what differs."""

import copy
import hashlib
import json
import shutil
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from avalanche_vilco import vilco_mq
from avalanche_vilco.benchmarks.manifest import SplitManifest, open_manifest
from avalanche_vilco.benchmarks.protocols import STREAMS
from avalanche_vilco.benchmarks.scenario import QueryIncrementalScenario
from avalanche_vilco.benchmarks.vilco_mq.split import MQ_PROTOCOLS, MQ_RULES
from avalanche_vilco.core.errors import DataError

FILE = "ego4d_clip_annotations_v2.json"


@pytest.fixture(scope="module")
def manifest(mq_root) -> dict[str, Any]:
    return vilco_mq(mq_root, valid_share=0.2).manifest()


def content(benchmark: QueryIncrementalScenario) -> dict[str, Any]:
    """All that a model can see of a benchmark, but features."""
    streams = {
        name: [
            (list(e.dataset.clip_ids), list(e.dataset.targets), e.task_label)
            for e in stream
        ]
        for name, stream in benchmark.streams.items()
    }
    windows = {
        name: [
            (s.windows_sec.tolist(), s.class_indices.tolist(), s.asked)
            for s in data.samples
        ]
        for name, data in benchmark.datasets.items()
    }
    return {"streams": streams, "windows": windows, "order": benchmark.classes_order}


SPLITS: dict[str, dict[str, Any]] = {
    "exclusive": {},
    "shuffled": {"seed": 4, "valid_share": 0.2},
    "groups": {"fixed_class_order": "groups", "seed": 1},
    "listed": {"fixed_class_order": [9, 0, 8, 1, 7, 2, 6, 3, 5, 4]},
    "uneven": {"per_exp_classes": [3, 5, 2]},
    "shared_clips": {"protocol": "shared_clips", "valid_share": 0.2},
    "reference": {"protocol": "reference"},
    "reference held out": {"protocol": "reference", "valid_share": 0.2},
}


@pytest.mark.parametrize("case", SPLITS)
def test_manifest_gives_the_same_streams_back(mq_root, tmp_path, case):
    made = vilco_mq(mq_root, **SPLITS[case])
    path = tmp_path / "split.json"
    made.write_manifest(path)
    again = vilco_mq(mq_root, manifest=path)
    assert content(again) == content(made)
    assert again.info == made.info
    assert again.report.to_dict() == made.report.to_dict()
    assert again.manifest() == made.manifest() == json.loads(path.read_text())


def test_manifest_is_accepted_as_file_dict_and_object(mq_root, tmp_path, manifest):
    path = tmp_path / "split.json"
    path.write_text(json.dumps(manifest))
    forms = [path, str(path), manifest, open_manifest(path, MQ_RULES).manifest]
    contents = [content(vilco_mq(mq_root, manifest=form)) for form in forms]
    assert all(one == contents[0] for one in contents)


def test_manifest_says_what_the_split_is(mq_root, manifest):
    digest = hashlib.sha256((mq_root / FILE).read_bytes()).hexdigest()
    assert manifest["files"] == {FILE: digest}
    assert manifest["protocol"] == "exclusive"
    assert manifest["protocol_version"] == MQ_PROTOCOLS["exclusive"].version
    assert manifest["package_version"] == version("avalanche-vilco")
    assert manifest["source"] == {"order": None, "seed": None, "valid_share": 0.2}
    assert [c["label_id"] for g in manifest["groups"] for c in g] == list(range(10))
    assert all(c["name"] for group in manifest["groups"] for c in group)


def test_manifest_sets_the_order_of_clips(mq_root, manifest):
    turned = copy.deepcopy(manifest)
    turned["streams"]["train"][0].reverse()
    benchmark = vilco_mq(mq_root, manifest=turned)
    assert (
        list(benchmark.train_stream[0].dataset.clip_ids)
        == turned["streams"]["train"][0]
    )


def test_manifest_follows_the_data_to_another_folder_and_file_name(
    mq_root, tmp_path, manifest
):
    shutil.copytree(mq_root, tmp_path / "moved")
    (tmp_path / "moved" / FILE).rename(tmp_path / "moved" / "renamed.json")
    moved = vilco_mq(
        tmp_path / "moved",
        manifest=manifest,
        sources={"annotations": tmp_path / "moved" / "renamed.json"},
    )
    assert content(moved) == content(vilco_mq(mq_root, manifest=manifest))


def test_clips_without_features_can_be_dropped_from_a_manifest(
    mq_root, tmp_path, manifest
):
    shutil.copytree(mq_root, tmp_path / "root")
    victim = manifest["streams"]["train"][0][0]
    next((tmp_path / "root" / "features").glob(f"{victim}.*")).unlink()
    benchmark = vilco_mq(
        tmp_path / "root", manifest=manifest, sources={"missing": "drop"}
    )
    wanted = [c for c in manifest["streams"]["train"][0] if c != victim]
    assert list(benchmark.train_stream[0].dataset.clip_ids) == wanted


def test_arguments_for_official_files_are_refused_with_a_processed_one(mq_root):
    with pytest.raises(ValueError, match="states features_per_sec itself"):
        vilco_mq(mq_root, sources={"features_per_sec": 1.0})
    with pytest.raises(ValueError, match="states categories itself"):
        vilco_mq(mq_root, sources={"categories": {}})


def test_changed_annotation_file_is_named(mq_root, tmp_path, manifest):
    shutil.copytree(mq_root, tmp_path / "root")
    path = tmp_path / "root" / FILE
    path.write_text(path.read_text() + " ")
    with pytest.raises(DataError) as caught:
        vilco_mq(tmp_path / "root", manifest=manifest)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert f"expected {manifest['files'][FILE]}" in message


def test_unknown_clips_are_listed_by_stream(mq_root, manifest):
    strange = copy.deepcopy(manifest)
    strange["streams"]["train"][1] += ["gone-1", "gone-2"]
    strange["streams"]["test"][0] += ["gone-3"]
    with pytest.raises(DataError, match="3 clips are not in the annotations") as caught:
        vilco_mq(mq_root, manifest=strange)
    assert "train: gone-1, gone-2\n  test: gone-3" in str(caught.value)


def test_clip_of_another_subset_is_refused(mq_root, manifest):
    leaking = copy.deepcopy(manifest)
    clip_id = leaking["streams"]["test"][0].pop()
    leaking["streams"]["train"][0].append(clip_id)
    with pytest.raises(DataError, match="stream train takes 'train'") as caught:
        vilco_mq(mq_root, manifest=leaking)
    assert clip_id in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"protocol": "reference"},
        {"fixed_class_order": "groups"},
        {"seed": 1},
        {"n_experiences": 2},
        {"per_exp_classes": [5, 5]},
        {"valid_share": 0.0},
    ],
)
def test_arguments_that_the_manifest_sets_are_refused(mq_root, manifest, options):
    with pytest.raises(ValueError, match=f"sets {next(iter(options))} already"):
        vilco_mq(mq_root, manifest=manifest, **options)


def test_benchmark_without_a_manifest_says_so(mq_root):
    made = vilco_mq(mq_root)
    bare = QueryIncrementalScenario(
        {name: list(stream) for name, stream in made.streams.items()},
        queries=made.queries,
        datasets=made.datasets,
        info=made.info,
        report=made.report,
    )
    with pytest.raises(ValueError, match="built without a manifest"):
        bare.manifest()


def put(*keys: Any, value: Any) -> Callable[[dict], None]:
    def change(manifest: dict) -> None:
        target = manifest
        for key in keys[:-1]:
            target = target[key]
        target[keys[-1]] = value

    return change


def drop(key: str) -> Callable[[dict], None]:
    return lambda manifest: manifest.pop(key)


def repeat_clip(stream: str, experience: int) -> Callable[[dict], None]:
    def change(manifest: dict) -> None:
        streams = manifest["streams"]
        streams[stream][experience].append(streams["train"][0][0])

    return change


DAMAGE: dict[str, tuple[Callable[[dict], Any], str]] = {
    "another format": (put("format", value="x"), "field 'format'"),
    "another format version": (put("format_version", value=2), "'format_version'"),
    "another benchmark": (put("benchmark", value="vilco_nlq"), "'benchmark'"),
    "unknown protocol": (put("protocol", value="fair"), "one of exclusive, shared"),
    "another protocol version": (
        put("protocol_version", value="9"),
        "this package has version",
    ),
    "no streams": (drop("streams"), "missing required field `streams`"),
    "a stream missing": (lambda m: m["streams"].pop("test"), "field 'streams'"),
    "a stream too many": (put("streams", "extra", value=[]), "field 'streams'"),
    "an experience missing": (lambda m: m["streams"]["test"].pop(), "'streams.test'"),
    "windows missing": (lambda m: m["windows"]["test"].pop(), "'windows.test'"),
    "a category twice": (
        lambda m: m["groups"][1].append(m["groups"][0][0]),
        "occur twice",
    ),
    "an empty group": (put("groups", 0, value=[]), "a category in each group"),
    "no group": (put("groups", value=[]), "a category in each group"),
    "a category renamed": (
        put("groups", 0, 0, "name", value="fly"),
        "not the same as in the annotations",
    ),
    "a clip twice": (repeat_clip("train", 0), "already"),
    "a clip in two experiences": (repeat_clip("train", 1), "already"),
    "a clip in two streams": (repeat_clip("valid", 0), "already"),
    "other windows": (put("windows", "train", 0, value=1), "expected 1 windows but"),
    "hashes a list": (put("files", value=[]), "field 'files'"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damaged_manifest_is_one_named_error(mq_root, tmp_path, manifest, case):
    change, problem = DAMAGE[case]
    damaged = copy.deepcopy(manifest)
    change(damaged)
    path = tmp_path / "split.json"
    path.write_text(json.dumps(damaged))
    with pytest.raises(DataError) as caught:
        vilco_mq(mq_root, manifest=path)
    assert str(caught.value).startswith(str(path))
    assert problem in str(caught.value)


def test_sample_without_a_window_is_refused(mq_root, manifest):
    damaged = copy.deepcopy(manifest)
    damaged["groups"][0], damaged["groups"][1] = (
        damaged["groups"][1],
        damaged["groups"][0],
    )
    with pytest.raises(DataError, match="no window of this experience's queries"):
        vilco_mq(mq_root, manifest=damaged)


@pytest.mark.parametrize("text", ["", "[]", "3", "{", '{"format": 1}', "\x00"])
def test_what_is_no_manifest_is_refused_by_name(tmp_path, text):
    path = tmp_path / "split.json"
    path.write_text(text)
    with pytest.raises(DataError, match=r"split\.json"):
        open_manifest(path, MQ_RULES)


def test_cut_manifest_is_refused(tmp_path, manifest):
    path = tmp_path / "split.json"
    text = json.dumps(manifest)
    path.write_text(text[: len(text) // 2])
    with pytest.raises(DataError, match="truncated"):
        open_manifest(path, MQ_RULES)


def test_absent_manifest_is_named(mq_root, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no manifest at .*gone\.json"):
        vilco_mq(mq_root, manifest=tmp_path / "gone.json")


@settings(max_examples=150)
@given(data=st.data())
def test_any_value_in_any_place_is_read_or_refused(manifest, mutate, data):
    damaged = copy.deepcopy(manifest)
    mutate(data, damaged)
    try:
        assert isinstance(open_manifest(damaged, MQ_RULES).manifest, SplitManifest)
    except DataError as error:
        assert str(error).startswith("manifest")


def test_every_stream_of_the_package_is_in_a_manifest(manifest):
    assert set(manifest["streams"]) == set(manifest["windows"]) == set(STREAMS)
