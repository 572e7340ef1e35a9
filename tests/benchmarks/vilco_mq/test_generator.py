"""Moment Queries as streams: legal data give legal streams, all else a named error."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from avalanche.training.supervised import Naive
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch.utils.data import DataLoader

from avalanche_vilco import MomentLoss, vilco_mq, vilco_mq_tiny
from avalanche_vilco.core.errors import DataError
from avalanche_vilco.training.templates import localization_evaluator

FILE = "ego4d_clip_annotations_v2.json"
STREAMS = ("train", "valid", "test")


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_environment(monkeypatch, cache) -> None:
    monkeypatch.delenv("AVALANCHE_VILCO_DATA", raising=False)
    monkeypatch.setenv("AVALANCHE_VILCO_CACHE", str(cache))


@pytest.fixture
def root(mq_root, tmp_path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(mq_root, tmp_path / "root"))


@pytest.fixture(params=["small", "embedded"])
def any_benchmark(request, mq_root):
    return vilco_mq(mq_root) if request.param == "small" else vilco_mq()


def edit(root: Path, change: Callable[[dict], None]) -> None:
    records = json.loads((root / FILE).read_text())
    change(records)
    (root / FILE).write_text(json.dumps(records))


def records_of(root: Path, subset: str) -> dict[str, Any]:
    records = json.loads((root / FILE).read_text())
    return {uid: r for uid, r in records.items() if r["subset"] == subset}


def samples_of(benchmark, stream: str) -> list:
    return [
        benchmark.datasets[stream].samples[int(sample[1]["sample"])]
        for exp in benchmark.streams[stream]
        for sample in exp.dataset
    ]


def placed(benchmark) -> dict[str, list[list[str]]]:
    """Clip ids by stream and experience."""
    return {
        name: [list(exp.dataset.clip_ids) for exp in stream]
        for name, stream in benchmark.streams.items()
    }


def test_streams_share_experiences_queries_and_order(any_benchmark):
    assert list(any_benchmark.streams) == list(STREAMS)
    assert any_benchmark.n_experiences == 5
    train = any_benchmark.train_stream
    for stream in any_benchmark.streams.values():
        assert len(stream) == 5
        for exp, wanted in zip(stream, train, strict=True):
            assert exp.queries_in_this_experience == wanted.queries_in_this_experience
            assert exp.classes_in_this_experience == wanted.classes_in_this_experience
            assert exp.classes_seen_so_far == wanted.classes_seen_so_far
            assert exp.future_classes == wanted.future_classes
    channels = [c for exp in train for c in exp.classes_in_this_experience]
    assert channels == list(range(any_benchmark.n_classes))


def test_no_clip_is_in_two_experiences_or_streams(any_benchmark):
    clips = [
        uid
        for stream in placed(any_benchmark).values()
        for experience in stream
        for uid in experience
    ]
    assert len(clips) == len(set(clips)) > 0


def test_clips_of_one_parent_are_never_in_two_streams(any_benchmark):
    parents = {
        name: {sample.clip.video_id for sample in samples_of(any_benchmark, name)}
        for name in STREAMS
    }
    assert parents["train"].isdisjoint(parents["valid"])
    assert parents["train"].isdisjoint(parents["test"])
    assert parents["valid"].isdisjoint(parents["test"])


def test_test_stream_is_the_val_subset_and_the_others_are_train(any_benchmark):
    for name in STREAMS:
        subset = "val" if name == "test" else "train"
        assert {s.clip.subset for s in samples_of(any_benchmark, name)} <= {subset}


def test_sample_has_all_windows_of_its_queries_and_no_other(any_benchmark):
    order = any_benchmark.classes_order
    for name, stream in any_benchmark.streams.items():
        for exp in stream:
            asked = exp.classes_in_this_experience
            for _, targets, _ in exp.dataset:
                clip = any_benchmark.datasets[name].samples[int(targets["sample"])].clip
                labels = [order[channel] for channel in targets["labels"].tolist()]
                wanted = np.isin(clip.label_ids, [order[c] for c in asked])
                assert labels == clip.label_ids[wanted].tolist()
                windows = targets["segments_sec"].tolist()
                assert windows == clip.windows_sec[wanted].tolist()
                assert len(labels) > 0
                assert targets["asked"].nonzero().flatten().tolist() == asked


def test_heads_are_asked_and_present_and_cover_train(any_benchmark):
    for stream in any_benchmark.streams.values():
        for exp in stream:
            for head, (_, targets, _) in zip(
                exp.dataset.targets, exp.dataset, strict=True
            ):
                assert head in targets["labels"].tolist()
                assert head in exp.classes_in_this_experience
    if any_benchmark.n_classes == 50:
        for exp in any_benchmark.train_stream:
            assert set(exp.dataset.targets) == set(exp.classes_in_this_experience)


def test_report_adds_up_over_stages(any_benchmark, assert_adds_up):
    assert_adds_up(any_benchmark.report)


def test_valid_stream_is_small_and_can_be_left_out(mq_root):
    benchmark = vilco_mq()
    n_train, n_valid = (len(benchmark.datasets[name]) for name in ("train", "valid"))
    assert 0 < n_valid <= 0.1 * (n_train + n_valid)
    without = vilco_mq(mq_root, valid_share=0.0)
    assert len(without.datasets["valid"]) == 0
    assert len(without.valid_stream) == 5
    assert len(without.datasets["train"]) == 20


def test_features_of_parent_videos_are_cut_to_clips(mq_root, tmp_path):
    records = json.loads((mq_root / FILE).read_text())
    videos: dict[str, int] = {}
    for record in records.values():
        steps = math.ceil(record["v_duration"] * record["fps"]) + 1
        videos[record["video_id"]] = max(steps, videos.get(record["video_id"], 0))
    for uid, steps in videos.items():
        numbers = torch.arange(steps, dtype=torch.float32)[:, None]
        save_file({"features": numbers}, tmp_path / f"{uid}.safetensors")
    benchmark = vilco_mq(
        mq_root, sources={"features": tmp_path, "features_of": "videos"}
    )
    for sample, (inputs, _) in zip(
        benchmark.datasets["test"].samples, benchmark.datasets["test"], strict=True
    ):
        record = records[sample.clip.clip_id]
        first = round(record["parent_start_sec"] * record["fps"])
        assert inputs["features"][0].item() == first
        steps = record["duration"] * record["fps"]
        assert abs(len(inputs["features"]) - steps) <= 1


def test_processed_file_without_parent_times_cannot_be_cut(root):
    edit(root, lambda rs: [r.pop("parent_start_sec") for r in rs.values()])
    assert len(vilco_mq(root).datasets["train"])
    with pytest.raises(
        ValueError, match=r"needs parent_start_sec.* unknown of 30 clips"
    ):
        vilco_mq(root, sources={"features_of": "videos"})


def state_of(benchmark) -> tuple:
    tokens = [query.tokens.sum().item() for query in benchmark.queries]
    return benchmark.classes_order, placed(benchmark), tokens, benchmark.info


def test_explicit_order_sets_channels_and_keeps_label_ids(mq_root):
    order = [9, 0, 8, 1, 7, 2, 6, 3, 5, 4]
    benchmark = vilco_mq(mq_root, fixed_class_order=order)
    assert benchmark.classes_order == benchmark.info["order"] == order
    names = {
        w["label_id"]: w["label"]
        for r in json.loads((mq_root / FILE).read_text()).values()
        for w in r["annotations"]
    }
    for channel, query in enumerate(benchmark.queries):
        assert (query.class_index, query.label_id) == (channel, order[channel])
        assert query.name == names[query.label_id]
    for exp in vilco_mq(
        mq_root, fixed_class_order=order, return_task_id=True
    ).test_stream:
        assert min(exp.classes_in_this_experience) == 2 * exp.current_experience


@pytest.mark.parametrize("sizes", [[3, 1, 2, 4], [1, 9], [10]])
def test_uneven_groups_all_get_training_clips(mq_root, sizes, assert_adds_up):
    benchmark = vilco_mq(mq_root, per_exp_classes=sizes)
    assert benchmark.n_classes_per_exp == sizes
    assert all(len(exp.dataset) for exp in benchmark.train_stream)
    assert_adds_up(benchmark.report)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"protocol": "shared"}, "unknown protocol .* Did you mean shared_clips"),
        ({"valid_share": 1.0}, r"expected valid_share in \[0, 1\) but got 1.0"),
        ({"valid_share": math.nan}, "valid_share"),
        ({"per_exp_classes": [5, 6]}, "sum up to 10"),
        ({"per_exp_classes": [5, 5], "n_experiences": 10}, "make 2 experiences, but"),
    ],
)
def test_argument_that_does_not_fit_is_refused(mq_root, options, problem):
    with pytest.raises(ValueError, match=problem):
        vilco_mq(mq_root, **options)


def test_files_can_be_given_one_by_one(mq_root):
    given_apart = vilco_mq(
        sources={
            "annotations": mq_root / FILE,
            "features": mq_root / "features",
            "query_text": mq_root / "query_text.safetensors",
        }
    )
    assert state_of(given_apart) == state_of(vilco_mq(mq_root))


def test_annotation_file_may_lie_in_its_own_folder_under_the_old_name(root):
    wanted = placed(vilco_mq(root))
    (root / "annotations").mkdir()
    (root / FILE).rename(root / "annotations" / "ego4d_clip_annotations.json")
    assert placed(vilco_mq(root)) == wanted


def test_text_comes_from_the_file_or_is_stated_to_be_hashed(root):
    stored = load_file(root / "query_text.safetensors")
    benchmark = vilco_mq(root)
    assert benchmark.info["query_text"] == "query_text.safetensors"
    for query in benchmark.queries:
        assert torch.equal(query.tokens, stored[query.name].float())
    (root / "query_text.safetensors").unlink()
    benchmark = vilco_mq(root)
    assert benchmark.info["query_text"] == "hashed words"
    assert benchmark.text_dim == benchmark.queries[0].tokens.shape[1]


def test_features_of_clips_without_labels_are_not_asked_for(root):
    for uid in records_of(root, "test"):
        (root / "features" / f"{uid}.pt").unlink()
    vilco_mq(root)


@pytest.mark.parametrize("subset", ["train", "val"])
def test_subset_without_any_feature_file_is_a_named_error(root, subset):
    for uid in records_of(root, subset):
        (root / "features" / f"{uid}.pt").unlink()
    with pytest.raises(DataError, match=f"no clip of subset '{subset}'") as caught:
        vilco_mq(root, sources={"missing": "drop"})
    assert str(root / FILE) in str(caught.value)


def test_clip_without_windows_is_dropped_and_counted(root, assert_adds_up):
    uid = next(iter(records_of(root, "train")))
    edit(root, lambda records: records[uid].update(annotations=[]))
    benchmark = vilco_mq(root)
    assert benchmark.report.stage("annotations", "clips").rejected == {
        "no usable window": 1,
        "subset test, without labels": 2,
    }
    assert uid not in str(placed(benchmark))
    assert_adds_up(benchmark.report)


def test_file_without_val_clips_is_a_named_error(root):
    edit(root, lambda records: [r.update(subset="train") for r in records.values()])
    with pytest.raises(DataError, match="no clip of subset 'val'") as caught:
        vilco_mq(root)
    assert FILE in str(caught.value)


def test_experience_that_nothing_trains_is_a_named_error(root):
    for clip_id, record in records_of(root, "train").items():
        if any(w["label_id"] < 2 for w in record["annotations"]):
            (root / "features" / f"{clip_id}.pt").unlink()
    with pytest.raises(DataError, match=r"no training clips .* experiences \[0\]"):
        vilco_mq(root, sources={"missing": "drop"})


def test_category_of_val_alone_is_left_out_counted_and_named(root):
    def keep_late_labels(records):
        for record in records.values():
            if record["subset"] == "train":
                late = [w for w in record["annotations"] if w["label_id"] > 1]
                record["annotations"] = late

    edit(root, keep_late_labels)
    with pytest.raises(ValueError, match=r"8 queries .* no train clip has \{0: "):
        vilco_mq(root)
    benchmark = vilco_mq(root, n_experiences=4)
    assert [q.label_id for q in benchmark.queries] == list(range(2, 10))
    gone = benchmark.info["left_out_categories"]
    assert len(gone) == 2 and benchmark.manifest()["source"] == {
        **{"order": None, "seed": None, "valid_share": 0.1},
        "left_out_categories": gone,
    }
    tally = benchmark.report.stage("categories", "windows")
    assert tally.rejected == {"category that no train clip has": 11}
    again = vilco_mq(root, manifest=benchmark.manifest())
    assert again.manifest() == benchmark.manifest()


def strategy_for(benchmark, **options) -> tuple[Naive, Any]:
    torch.manual_seed(0)
    model = vilco_mq_tiny(
        feature_dim=benchmark.info["feature_dim"], text_dim=benchmark.text_dim
    )
    evaluator = localization_evaluator(k=(1,), tiou=(0.5,))
    strategy = Naive(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        criterion=MomentLoss(),
        train_mb_size=4,
        eval_mb_size=4,
        train_epochs=1,
        evaluator=evaluator,
        **options,
    )
    (matrix,) = (m for m in evaluator.metrics if hasattr(m, "matrices"))
    return strategy, matrix


def test_stock_naive_evaluates_a_stream_with_an_empty_experience(root):
    def no_early_labels_in_val(records):
        for record in records.values():
            if record["subset"] == "val":
                late = [w for w in record["annotations"] if w["label_id"] > 1]
                record["annotations"] = late

    edit(root, no_early_labels_in_val)
    benchmark = vilco_mq(root)
    sizes = [len(exp.dataset) for exp in benchmark.test_stream]
    assert sizes[0] == 0 < min(sizes[1:])
    strategy, plugin = strategy_for(benchmark)
    for exp in benchmark.train_stream[:2]:
        strategy.train(exp)
        values = strategy.eval(benchmark.test_stream)
    matrix = plugin.matrices["Recall@1x_tIoU0.5"]
    assert matrix.excluded == {0: "experience 0 has no ground truth"}
    assert math.isnan(matrix[1, 0])
    assert matrix.average(1) == matrix[1, 1]
    key = "Recall@1x_tIoU0.5_Exp/eval_phase/test_stream/Task000/Exp000"
    assert math.isnan(values[key])
    stream = values["Recall@1x_tIoU0.5_Stream/eval_phase/test_stream"]
    assert 0 <= stream <= 1


def write_one_step_root(folder: Path) -> Path:
    """Clips of one, two and seven steps, all shorter than the pyramid."""
    records = {}
    (folder / "features").mkdir()
    for i, (steps, subset) in enumerate(
        [(1, "train"), (1, "train"), (2, "train"), (7, "train"), (1, "val")]
    ):
        uid = f"clip{i}"
        np.save(folder / "features" / f"{uid}.npy", np.full((steps, 4), 0.1 * i))
        window = {"segment": [0.0, steps / 2], "label": "cook", "label_id": 0}
        records[uid] = {
            "video_id": uid,
            "clip_id": uid,
            "duration": steps / 2,
            "fps": 2.0,
            "subset": subset,
            "annotations": [window],
        }
    (folder / FILE).write_text(json.dumps(records))
    return folder


@pytest.mark.parametrize("batch_size", [1, 4])
def test_clips_shorter_than_the_pyramid_work_end_to_end(tmp_path, batch_size):
    root = write_one_step_root(tmp_path)
    benchmark = vilco_mq(root, n_experiences=1, valid_share=0.0)
    model = vilco_mq_tiny(feature_dim=4, text_dim=benchmark.text_dim)
    model.adaptation(benchmark.train_stream[0])
    (exp,) = benchmark.train_stream
    loader = DataLoader(
        exp.dataset, batch_size=batch_size, collate_fn=exp.dataset.collate_fn
    )
    for inputs, targets, _ in loader:
        output = model(inputs)
        loss = MomentLoss()(output, targets)
        loss.backward()
        assert torch.isfinite(loss) and loss > 0
        predictions = model.decode(output, targets)
        real = predictions.labels >= 0
        assert real.any(dim=1).all()
        start, end = predictions.segments_sec.unbind(-1)
        assert (start[real] >= 0).all()
        longest = targets.duration_sec[:, None].expand_as(end)
        assert (end[real] <= longest[real]).all()
        assert (start[real] < end[real]).all()
    assert all(
        p.grad is None or torch.isfinite(p.grad).all() for p in model.parameters()
    )


@given(data=st.data())
@settings(max_examples=120)
def test_any_mutated_annotation_is_a_named_error_or_adds_up(
    data, mutate, mq_root, tmp_path, assert_adds_up
):
    records = json.loads((mq_root / FILE).read_text())
    mutate(data, records)
    path = tmp_path / FILE
    path.write_text(json.dumps(records))
    try:
        benchmark = vilco_mq(
            n_experiences=1,
            sources={"annotations": path, "features": mq_root / "features"},
        )
    except (DataError, FileNotFoundError) as error:
        assert str(path) in str(error) or str(mq_root / "features") in str(error)
        return
    assert_adds_up(benchmark.report)
    n_windows = sum(len(record["annotations"]) for record in records.values())
    assert benchmark.report.stage("annotations", "windows").read == n_windows
    for samples in benchmark.datasets.values():
        for _, targets in samples:
            assert torch.isfinite(targets["segments"]).all()
