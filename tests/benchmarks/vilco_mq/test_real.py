"""The real annotation file: its counts, pinned, with random features beside it."""

import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from avalanche.core import SupervisedPlugin
from avalanche.training.supervised import Naive
from torch.utils.data import DataLoader

from avalanche_vilco import MomentLoss, vilco_mq, vilco_mq_tiny
from avalanche_vilco.benchmarks.vilco_mq.annotations import DUPLICATE_TOLERANCE_SEC
from avalanche_vilco.core.errors import FeatureError
from avalanche_vilco.experiments.doctor import examine
from avalanche_vilco.training.templates import localization_evaluator

WIDTH = 16
OVERHANGS = "overhangs the clip's end, clipped to it"


@pytest.fixture(scope="module")
def annotations(shared_dir) -> Path:
    path = shared_dir / "data" / "ego4d_mq" / "ego4d_clip_annotations_v2.json"
    if not path.is_file():
        pytest.skip("needs the real annotation file in shared/data/ego4d_mq")
    return path


@pytest.fixture(scope="module")
def raw(annotations) -> dict:
    return json.loads(annotations.read_text())


@pytest.fixture(scope="module")
def features(raw, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("features")
    rng = np.random.default_rng(0)
    pool = rng.standard_normal((2000, WIDTH)).astype(np.float16)
    for uid, record in raw.items():
        if record["annotations"]:
            steps = round(record["duration"] * record["fps"])
            first = rng.integers(2000 - steps)
            np.save(folder / f"{uid}.npy", pool[first : first + steps])
    return folder


@pytest.fixture(scope="module")
def benchmark(annotations, features):
    return vilco_mq(sources={"annotations": annotations, "features": features})


def clips_in(benchmark, stream: str) -> list[list[str]]:
    return [list(exp.dataset.clip_ids) for exp in benchmark.streams[stream]]


def is_same(one: dict, other: dict) -> bool:
    return one["label_id"] == other["label_id"] and all(
        abs(a - b) <= DUPLICATE_TOLERANCE_SEC
        for a, b in zip(one["segment"], other["segment"], strict=True)
    )


def raw_fates(raw: dict) -> Counter:
    """The file's windows by fate, counted without the package."""
    fates: Counter = Counter()
    for record in raw.values():
        seen: list[dict] = []
        for window in record["annotations"]:
            start, end = window["segment"]
            is_duplicate = any(is_same(window, other) for other in seen)
            outside = start >= record["duration"]
            fates["read"] += 1
            fates["overhang"] += end > record["duration"]
            fates["overhang and duplicate"] += end > record["duration"] and is_duplicate
            fates["overhang and outside"] += end > record["duration"] and outside
            fates["at the end"] += end == record["duration"]
            fates["at the end and duplicate"] += (
                end == record["duration"] and is_duplicate
            )
            fates["duplicate"] += is_duplicate
            fates["outside"] += outside
            seen.append(window)
    return fates


def test_counts_agree_with_a_plain_reading_of_the_file(benchmark, raw):
    fates = raw_fates(raw)
    tally = benchmark.report.stage("annotations", "windows")
    assert fates["read"] == tally.read == 17_855
    assert tally.kept == 16_375
    assert fates["duplicate"] == tally.rejected["exact duplicate"] == 21
    assert fates["outside"] == tally.rejected["outside the clip"] == 1
    # 1,476 windows end after their clip: 17 of them are duplicates, 1 is outside.
    assert fates["overhang"] == 1_476
    assert fates["overhang and duplicate"] == 17
    assert fates["overhang and outside"] == 1
    assert tally.changed == {OVERHANGS: 1_476 - 17 - 1}
    assert tally.rejected.keys() == {"exact duplicate", "outside the clip"}


def test_windows_that_end_with_their_clip_are_kept(benchmark, raw):
    fates = raw_fates(raw)
    notes = benchmark.report.stage("annotations", "windows").notes
    assert fates["at the end"] == 1_147
    assert fates["at the end and duplicate"] == 4
    assert notes["windows end exactly at the clip's end"] == 1_147
    assert notes["of them exact duplicates"] == 4


def test_clips_of_the_file_add_up_by_reason(benchmark):
    tally = benchmark.report.stage("annotations", "clips")
    assert (tally.read, tally.kept) == (2_495, 2_007)
    assert tally.rejected == {"subset test, without labels": 488}
    # No parent video of this file has clips in both train and val.
    assert tally.notes == {}


def test_streams_hold_what_the_partition_leaves(benchmark):
    windows = benchmark.report.stage("protocol exclusive", "windows")
    clips = benchmark.report.stage("protocol exclusive", "clips")
    assert windows.read == 17_833
    assert windows.rejected == {"query of another experience than the clip's": 7_743}
    assert windows.notes == {
        "in stream train": 6_967,
        "in stream valid": 774,
        "in stream test": 2_349,
    }
    assert (clips.read, clips.kept) == (2_007, 2_007)
    assert sum(benchmark.report.outcomes("windows").values()) == 17_855
    sizes = {s: [len(exp) for exp in clips_in(benchmark, s)] for s in benchmark.streams}
    assert sizes["train"] == [398, 258, 228, 227, 227]
    assert sizes["valid"] == [48, 24, 25, 36, 15]
    assert sizes["test"] == [157, 111, 85, 81, 87]


def test_no_clip_is_in_two_experiences_or_streams(benchmark):
    clips = [
        uid for s in benchmark.streams for exp in clips_in(benchmark, s) for uid in exp
    ]
    assert len(clips) == len(set(clips)) == 2_007


@pytest.mark.parametrize(
    "options", [{}, {"seed": 0}, {"seed": 1, "fixed_class_order": "groups"}]
)
def test_every_category_is_in_train_and_in_test(annotations, features, options):
    built = vilco_mq(
        **options, sources={"annotations": annotations, "features": features}
    )
    for stream in ("train", "test"):
        samples = built.datasets[stream].samples
        present = {c for sample in samples for c in sample.class_indices.tolist()}
        assert present == set(range(110))


def test_every_query_is_the_head_of_a_clip_in_train_and_in_test(benchmark):
    for stream in (benchmark.train_stream, benchmark.test_stream):
        for exp in stream:
            assert set(exp.dataset.targets) == set(exp.classes_in_this_experience)


def test_dropped_clips_change_the_denominator(annotations, raw, features, tmp_path):
    some = [uid for uid, record in raw.items() if record["annotations"]][:1500]
    for uid in some:
        (tmp_path / f"{uid}.npy").symlink_to(features / f"{uid}.npy")
    report = vilco_mq(
        sources={"annotations": annotations, "features": tmp_path, "missing": "drop"}
    ).report
    assert report.stage("features", "clips").rejected == {"no feature file": 507}
    line = "features: 2007 clips read = 1500 kept + 507 rejected (no feature file)"
    assert line in str(report).splitlines()
    # What is left is less balanced: six clips ask only for queries of a full one.
    assert report.outcomes("clips") == {
        "in the streams": 1_494,
        "annotations: subset test, without labels": 488,
        "features: no feature file": 507,
        "protocol exclusive: no place in an experience that asks for it": 6,
    }
    assert sum(report.outcomes("windows").values()) == 17_855


def test_all_missing_files_are_listed_before_the_first_step_and_by_doctor(
    annotations, raw, features, tmp_path
):
    labelled = {uid: r for uid, r in raw.items() if r["annotations"]}
    gone = {
        subset: [uid for uid, r in labelled.items() if r["subset"] == subset][::200][:n]
        for subset, n in (("train", 3), ("val", 2))
    }
    for uid in labelled.keys() - {*gone["train"], *gone["val"]}:
        (tmp_path / f"{uid}.npy").symlink_to(features / f"{uid}.npy")
    with pytest.raises(FeatureError, match="5 faults in feature files") as caught:
        vilco_mq(sources={"annotations": annotations, "features": tmp_path})
    listed = {fault.split(":")[0] for fault in caught.value.faults}
    assert listed == {*gone["train"], *gone["val"]}
    assert all(uid in str(caught.value) for uid in listed)
    found = examine(tmp_path, annotations=annotations, features=tmp_path)
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


def test_a_batch_of_each_experience_has_a_finite_loss(benchmark):
    torch.manual_seed(0)
    model = vilco_mq_tiny(feature_dim=WIDTH, text_dim=benchmark.text_dim)
    for exp in benchmark.train_stream:
        model.adaptation(exp)
        collate = exp.dataset.collate_fn
        loader = DataLoader(exp.dataset, batch_size=4, collate_fn=collate)
        inputs, targets, _ = next(iter(loader))
        loss = MomentLoss()(model(inputs), targets)
        loss.backward()
        assert torch.isfinite(loss) and loss > 0


class Losses(SupervisedPlugin):
    def __init__(self) -> None:
        super().__init__()
        self.values: list[float] = []

    def after_training_iteration(self, strategy, **kwargs) -> None:
        self.values.append(strategy.loss.item())


@pytest.mark.slow
def test_naive_runs_an_epoch_over_the_stream(benchmark):
    torch.manual_seed(0)
    model = vilco_mq_tiny(feature_dim=WIDTH, text_dim=benchmark.text_dim)
    losses = Losses()
    strategy = Naive(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        criterion=MomentLoss(),
        train_mb_size=8,
        eval_mb_size=8,
        train_epochs=1,
        evaluator=localization_evaluator(k=(1,), tiou=(0.5,)),
        plugins=[losses],
    )
    for exp in benchmark.train_stream:
        strategy.train(exp)
    values = strategy.eval(benchmark.test_stream)
    sizes = (len(exp.dataset) for exp in benchmark.train_stream)
    assert len(losses.values) == sum(math.ceil(size / 8) for size in sizes)
    assert all(0 < loss < math.inf for loss in losses.values)
    assert 0 <= values["Recall@1x_tIoU0.5_Stream/eval_phase/test_stream"] <= 1
