"""Protocols: what each keeps, and the public split procedure to the digit."""

import json
import time
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from avalanche_vilco import vilco_mq
from avalanche_vilco.benchmarks.protocols import STREAMS
from avalanche_vilco.benchmarks.split import (
    Division,
    Split,
    count_split,
    divide,
    split_items,
)
from avalanche_vilco.benchmarks.vilco_mq import reference_split
from avalanche_vilco.benchmarks.vilco_mq.annotations import read_moment_annotations
from avalanche_vilco.benchmarks.vilco_mq.reference_split import (
    kept_window_mask,
    reference_experiences,
)
from avalanche_vilco.benchmarks.vilco_mq.split import (
    MQ_PROTOCOLS,
    MQ_RULES,
    moment_items,
    moment_samples,
)
from avalanche_vilco.core.report import DataReport
from avalanche_vilco.data.moments import MomentClip

FILE = "ego4d_clip_annotations_v2.json"
GROUPS = [[0, 1], [2, 3], [4, 5]]


def clip(
    uid: str,
    *windows: tuple[float, float, int],
    subset: str = "train",
    duration: float = 100.0,
) -> MomentClip:
    times = np.array([w[:2] for w in windows], dtype=np.float64).reshape(-1, 2)
    labels = np.array([w[2] for w in windows], dtype=np.int64)
    return MomentClip(uid, f"video-{uid}", subset, duration, 1.875, times, labels)


@pytest.fixture(scope="module")
def real_file(shared_dir) -> Path:
    return shared_dir / "data" / "ego4d_mq" / FILE


@pytest.fixture(scope="module")
def real_reference(real_file, noise_features):
    return vilco_mq(
        protocol="reference",
        sources={"annotations": real_file, "features": noise_features()},
    )


@pytest.fixture(scope="module")
def real_shared(real_file, noise_features):
    return vilco_mq(
        protocol="shared_clips",
        sources={"annotations": real_file, "features": noise_features()},
    )


@pytest.fixture(scope="module")
def oracle(shared_dir) -> dict[str, Any]:
    path = shared_dir / "oracles" / "mq" / "official_split.json"
    return json.loads(path.read_text())["splits"]


def samples(benchmark: Any, stream: str) -> list[Any]:
    return list(benchmark.datasets[stream].samples)


def test_shared_clips_return_with_each_experiences_queries_and_lose_nothing(
    mq_root, assert_adds_up
):
    benchmark = vilco_mq(mq_root, protocol="shared_clips")
    read = read_moment_annotations(mq_root / FILE)
    asked: Counter = Counter()
    for name in STREAMS:
        for sample in samples(benchmark, name):
            order = benchmark.classes_order
            asked[sample.clip.clip_id] += len(sample.class_indices)
            mine = {order[channel] for channel in sample.asked}
            wanted = [x for x in sample.clip.label_ids.tolist() if x in mine]
            assert [order[c] for c in sample.class_indices.tolist()] == wanted
            assert wanted
    assert asked == {
        c.clip_id: len(c.label_ids) for c in read.clips if len(c.label_ids)
    }
    assert benchmark.report.stage("protocol shared_clips", "windows").rejected == {}
    assert_adds_up(benchmark.report)


def test_shared_clips_is_in_every_experience_that_has_a_query_in_it(mq_root):
    benchmark = vilco_mq(mq_root, protocol="shared_clips", valid_share=0.0)
    homes: dict[str, list[int]] = {}
    for e, exp in enumerate(benchmark.train_stream):
        for uid in exp.dataset.clip_ids:
            homes.setdefault(uid, []).append(e)
    assert max(map(len, homes.values())) > 1
    groups = [
        {q.label_id for q in e.queries_in_this_experience}
        for e in benchmark.train_stream
    ]
    for sample in samples(benchmark, "train"):
        labels = set(sample.clip.label_ids.tolist())
        wanted = [e for e, group in enumerate(groups) if group & labels]
        assert homes[sample.clip.clip_id] == wanted


def test_shared_clips_keeps_parents_of_train_and_valid_apart(mq_root):
    benchmark = vilco_mq(mq_root, protocol="shared_clips", valid_share=0.3)
    parents = [{s.clip.video_id for s in samples(benchmark, name)} for name in STREAMS]
    assert parents[1]
    assert parents[0].isdisjoint(parents[1]) and parents[0].isdisjoint(parents[2])


@pytest.mark.parametrize("protocol", MQ_PROTOCOLS)
def test_streams_train_and_read_under_every_protocol(mq_root, protocol, assert_adds_up):
    benchmark = vilco_mq(mq_root, protocol=protocol)
    assert benchmark.info["protocol"] == protocol
    assert benchmark.info["protocol_version"] == MQ_PROTOCOLS[protocol].version
    assert benchmark.n_experiences == 5
    for stream in (benchmark.train_stream, benchmark.test_stream):
        for exp in stream:
            for _, targets, _ in exp.dataset:
                assert set(targets["labels"].tolist()) <= set(
                    exp.classes_in_this_experience
                )
                start, end = targets["segments_sec"].T
                assert (start < end).all() and (end <= targets["duration_sec"]).all()
    assert_adds_up(benchmark.report)


@pytest.mark.parametrize("protocol", MQ_PROTOCOLS)
def test_experiences_are_views_of_one_dataset(mq_root, protocol):
    benchmark = vilco_mq(mq_root, protocol=protocol)
    for name, stream in benchmark.streams.items():
        data = benchmark.datasets[name]
        clips = {}
        for sample in data.samples:
            assert clips.setdefault(sample.clip.clip_id, sample.clip) is sample.clip
            assert not sample.windows_sec.flags.writeable
        assert sum(len(exp.dataset) for exp in stream) == len(data)


def test_reference_gives_a_clip_to_the_group_with_most_windows_first_on_ties():
    clips = [
        clip("two", (1, 2, 2), (3, 4, 3), (5, 6, 0)),
        clip("tie", (1, 2, 4), (3, 4, 0)),
    ]
    assert reference_experiences(clips, GROUPS)[0] == 1
    assert kept_window_mask(clips[1], GROUPS[0]).tolist() == [False, True]


def test_reference_sends_clips_of_a_full_group_to_the_second_then_the_third(
    monkeypatch,
):
    monkeypatch.setattr(reference_split, "FIRST_LIMIT", {"train": 2, "val": 3})
    monkeypatch.setattr(reference_split, "SECOND_LIMIT", {"train": 1, "val": 2})
    monkeypatch.setattr(reference_split, "FEWEST_CLIPS", 0)
    many = [(1, 2, 0), (3, 4, 1), (5, 6, 0), (7, 8, 2), (9, 10, 2), (11, 12, 4)]
    clips = [clip(f"t{i}", *many) for i in range(4)]
    clips += [clip(f"v{i}", *many, subset="val") for i in range(3)]
    # Limits count both subsets together: two, one and one train clips go before.
    assert reference_experiences(clips, GROUPS) == [0, 0, 1, 2, 0, 1, 2]


def test_reference_drops_a_clip_sent_to_a_group_that_owns_none_of_its_windows(
    monkeypatch,
):
    monkeypatch.setattr(reference_split, "FIRST_LIMIT", {"train": 1, "val": 1})
    monkeypatch.setattr(reference_split, "FEWEST_CLIPS", 0)
    clips = [clip("a", (1, 2, 0)), clip("b", (1, 2, 0))]
    assert reference_experiences(clips, GROUPS) == [0, -1]


@pytest.mark.parametrize(
    ("end", "duration", "kept"),
    [
        (99.0, 100.0, True),
        (100.0, 100.0, False),
        (100.5, 100.0, False),
        # Equal in float32, in which the public code compares.
        (480.0, 480.0000000000002, False),
        (479.9999, 480.0, True),
    ],
)
def test_reference_keeps_windows_that_end_before_their_clip(end, duration, kept):
    one = clip("a", (1, end, 0), duration=duration)
    assert kept_window_mask(one, GROUPS[0]).tolist() == [kept]


def test_reference_moves_clips_of_rare_categories_counted_before_any_move():
    common = [clip(f"c{i}", (1, 2, 0), (3, 4, 0)) for i in range(5)]
    rare = [clip(f"r{i}", (1, 2, 0), (3, 4, 1), (5, 6, 2)) for i in range(7)]
    places = reference_experiences([*common, *rare], GROUPS)
    # Category 2 is in no group-1 clip: the first five that have it move.
    assert places == [0] * 5 + [1] * 5 + [0] * 2


def test_reference_moves_within_a_subset_only():
    clips = [clip(f"t{i}", (1, 2, 0), (3, 4, 0), (5, 6, 2)) for i in range(6)]
    clips += [
        clip(f"v{i}", (1, 2, 0), (3, 4, 0), (5, 6, 2), subset="val") for i in range(6)
    ]
    assert reference_experiences(clips, GROUPS) == ([1] * 5 + [0]) * 2


@pytest.mark.parametrize("protocol", ["exclusive", "reference"])
def test_groups_in_another_order_have_the_same_clips(mq_root, protocol):
    fixed = vilco_mq(mq_root, protocol=protocol)
    shuffled = vilco_mq(mq_root, protocol=protocol, fixed_class_order="groups", seed=1)
    assert fixed.classes_order != shuffled.classes_order
    clips = [
        {
            frozenset(q.label_id for q in exp.queries_in_this_experience): sorted(
                exp.dataset.clip_ids
            )
            for exp in [*benchmark.test_stream, *benchmark.train_stream]
        }
        for benchmark in (fixed, shuffled)
    ]
    assert clips[0] == clips[1]


def test_reference_holds_out_nothing_unless_asked(mq_root):
    plain = vilco_mq(mq_root, protocol="reference")
    held = vilco_mq(mq_root, protocol="reference", valid_share=0.2)
    assert len(plain.datasets["valid"]) == 0 < len(held.datasets["valid"])
    together = [
        sorted(s.clip.clip_id for name in ("train", "valid") for s in samples(b, name))
        for b in (plain, held)
    ]
    assert together[0] == together[1]
    parents = [{s.clip.video_id for s in samples(held, n)} for n in STREAMS]
    assert parents[0].isdisjoint(parents[1])


def test_reference_split_does_not_depend_on_which_features_there_are(
    mq_root, tmp_path, assert_adds_up
):
    whole = vilco_mq(mq_root, protocol="reference")
    victim = samples(whole, "train")[0].clip.clip_id
    for path in (mq_root / "features").iterdir():
        if path.stem != victim:
            (tmp_path / path.name).symlink_to(path)
    rest = vilco_mq(
        mq_root, protocol="reference", sources={"features": tmp_path, "missing": "drop"}
    )
    for name in STREAMS:
        for before, after in zip(whole.streams[name], rest.streams[name], strict=True):
            left = [uid for uid in before.dataset.clip_ids if uid != victim]
            assert list(after.dataset.clip_ids) == left
    assert_adds_up(rest.report)


WINDOW = st.tuples(st.integers(0, 90), st.integers(1, 20), st.integers(0, 5))
CLIP = st.tuples(st.lists(WINDOW, min_size=1, max_size=6), st.booleans())


@settings(max_examples=60)
@given(st.lists(CLIP, min_size=1, max_size=12), st.sampled_from(sorted(MQ_PROTOCOLS)))
def test_every_window_is_kept_or_counted_under_any_protocol(drawn, protocol):
    clips = [
        clip(
            str(i),
            *((s, s + n, label) for s, n, label in windows),
            subset="val" if is_val else "train",
        )
        for i, (windows, is_val) in enumerate(drawn)
    ]
    items, report = moment_items(clips), DataReport()
    split = split_items(items, GROUPS, MQ_PROTOCOLS[protocol], 0.2)
    count_split(items, split, MQ_RULES, report)
    tally = report.stage(f"protocol {protocol}", "windows")
    assert tally.read == sum(len(c.label_ids) for c in clips)
    held = [len(s.class_indices) for own in moment_samples(split).values() for s in own]
    assert tally.passed_on == sum(held)
    assert all(held)


def reference_part(benchmark: Any, stream: str) -> list[list[dict[str, Any]]]:
    order, data = benchmark.classes_order, benchmark.datasets[stream].samples
    return [
        [
            {
                "id": data[i].clip.clip_id,
                "duration": data[i].clip.duration_sec,
                "labels": [order[c] for c in data[i].class_indices.tolist()],
                "segments": data[i].windows_sec.tolist(),
            }
            for i in exp.dataset.positions
        ]
        for exp in benchmark.streams[stream]
    ]


@pytest.mark.parametrize(("stream", "subset"), [("train", "train"), ("test", "val")])
def test_reference_equals_the_oracle_window_by_window(
    real_reference, oracle, stream, subset
):
    parts = reference_part(real_reference, stream)
    assert len(parts) == 5
    for task, ours in enumerate(parts):
        assert ours == oracle[subset][str(task)]


def test_reference_targets_are_the_oracles_float32_windows(real_reference, oracle):
    for task, exp in enumerate(real_reference.test_stream):
        _, targets, _ = exp.dataset[0]
        wanted = torch.tensor(oracle["val"][str(task)][0]["segments"])
        assert torch.equal(targets["segments_sec"].float(), wanted)


def test_reference_accounts_for_every_window_of_the_real_file(
    real_reference, assert_adds_up
):
    tally = real_reference.report.stage("protocol reference", "windows")
    assert tally.notes == {"in stream train": 5_808, "in stream test": 1_695}
    lost = {
        "train: outside the clip's group": 6_110,
        "train: starts or ends at or past the clip's end": 799,
        "train: the clip is dropped": 828,
        "val: outside the clip's group": 1_974,
        "val: starts or ends at or past the clip's end": 276,
        "val: the clip is dropped": 344,
    }
    assert tally.rejected == lost
    assert 13_545 == 5_808 + 6_110 + 799 + 828
    assert 4_289 == 1_695 + 1_974 + 276 + 344
    assert tally.read == 13_545 + 4_289
    read = real_reference.report.stage("annotations", "windows")
    assert read.rejected == {"exact duplicate": 21}
    assert_adds_up(real_reference.report)


def test_shared_clips_keeps_every_window_of_the_real_file(real_shared, assert_adds_up):
    tally = real_shared.report.stage("protocol shared_clips", "windows")
    assert (tally.read, tally.kept, tally.rejected) == (17_833, 17_833, {})
    clips = real_shared.report.stage("protocol shared_clips", "clips")
    assert clips.kept == 2_007
    assert_adds_up(real_shared.report)


def real_split(path: Path, protocol: str) -> Split:
    rule = MQ_PROTOCOLS[protocol]
    read = read_moment_annotations(path, raw_windows=rule.reads_raw)
    items = moment_items(clip for clip in read.clips if clip.is_streamed)
    return divide(items, list(read.label_names), Division(protocol=protocol), MQ_RULES)


def counts_table(split: Split) -> str:
    """Markdown, with a row for each experience and one for all."""
    names = [f"{name}: clips / windows / hours" for name in split.streams]
    rows = [["experience", *names], ["---"] * (1 + len(names))]
    each = [(str(e), [e]) for e in range(len(split.groups))]
    for label, chosen in [*each, ("all", list(range(len(split.groups))))]:
        cells = []
        for name, windows in split.window_counts().items():
            clips = [i.record for e in chosen for i in split.streams[name][e]]
            hours = sum(clip.duration_sec for clip in clips) / 3600
            n_windows = sum(windows[e] for e in chosen)
            cells.append(f"{len(clips):,} / {n_windows:,} / {hours:.1f}")
        rows.append([label, *cells])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


@pytest.mark.parametrize("protocol", MQ_PROTOCOLS)
def test_documented_counts_are_those_of_the_real_file(real_file, protocol):
    docs = Path(__file__).parents[3] / "docs" / "protocols.md"
    assert counts_table(real_split(real_file, protocol)) in docs.read_text()


def test_counts_are_those_of_the_streams(real_reference, real_file):
    split = real_split(real_file, "reference")
    for name, sizes in split.sizes().items():
        assert [len(exp.dataset) for exp in real_reference.streams[name]] == sizes
    assert split.window_counts()["train"] == [1939, 1459, 923, 949, 538]


def test_building_on_the_real_file_is_quick(real_file, noise_features):
    start = time.process_time()
    vilco_mq(sources={"annotations": real_file, "features": noise_features()})
    assert time.process_time() - start < 3


def test_building_on_the_real_file_is_lean(real_file, noise_features):
    tracemalloc.start()
    try:
        vilco_mq(sources={"annotations": real_file, "features": noise_features()})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 500 * 2**20
