"""Splits of visual queries: seeded, exclusive, balanced, counted, published."""

import itertools
import json
import pickle
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from avalanche_vilco.benchmarks.items import Item
from avalanche_vilco.benchmarks.manifest import (
    SplitManifest,
    make_manifest,
    open_manifest,
)
from avalanche_vilco.benchmarks.sources import DataFiles, DataRoot
from avalanche_vilco.benchmarks.split import Split, check_training, count_split
from avalanche_vilco.benchmarks.vilco_vq.annotations import (
    OFFICIAL_VQ_FILES,
    VisualAnnotations,
    read_visual_queries,
)
from avalanche_vilco.benchmarks.vilco_vq.reference_metadata import read_vq_metadata
from avalanche_vilco.benchmarks.vilco_vq.split import (
    VQ_RULES,
    VQDivision,
    divide_queries,
    follow_queries,
    title_categories,
    title_items,
    titles_of,
)
from avalanche_vilco.benchmarks.vilco_vq.title_groups import (
    GROUPINGS,
    balanced_assignment,
    title_groups,
)
from avalanche_vilco.core.errors import DataError

N_TITLES = 30


def box(frame: int) -> dict:
    drawn = {"x": 4.0, "y": 4.0, "width": 20.0, "height": 20.0}
    return {"frame_number": frame, **drawn, "original_width": 64, "original_height": 64}


def content(subset: str, n_clips: int, seed: int) -> dict:
    """Clips of five kinds; most of a clip's queries are of its kind's titles."""
    rng = np.random.default_rng(seed)
    videos = []
    for i in range(n_clips):
        kin = np.flatnonzero(np.arange(N_TITLES) % 5 == i % 5)
        chosen = [
            int(rng.choice(kin)) if rng.random() < 0.85 else int(rng.integers(N_TITLES))
            for _ in range(3)
        ]
        sets = {
            str(k + 1): {
                "is_valid": True,
                "object_title": f"thing {title}",
                "query_frame": 30 + k,
                "visual_crop": box(40),
                "response_track": [box(10), box(11)],
            }
            for k, title in enumerate(chosen)
        }
        videos.append(
            {
                "video_uid": f"{subset}-video{i // 2}",
                "split": subset,
                "clips": [
                    {
                        "clip_uid": f"{subset}-clip{i}",
                        "video_start_sec": 0.0,
                        "video_end_sec": 10.0,
                        "clip_fps": 5.0,
                        "annotations": [
                            {"annotation_uid": f"{subset}-ann{i}", "query_sets": sets}
                        ],
                    }
                ],
            }
        )
    return {"version": "1", "videos": videos}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vq")
    for subset, n_clips, seed in (("train", 60, 0), ("val", 20, 1)):
        raw = content(subset, n_clips, seed)
        (folder / OFFICIAL_VQ_FILES[subset]).write_text(json.dumps(raw))
    return folder


def read_folder(folder: Path) -> VisualAnnotations:
    return read_visual_queries(
        {s: folder / OFFICIAL_VQ_FILES[s] for s in ("train", "val")}
    )


@pytest.fixture(scope="module")
def read(folder: Path) -> VisualAnnotations:
    return read_folder(folder)


@pytest.fixture(scope="module")
def items(read: VisualAnnotations) -> list[Item]:
    return title_items(read.queries, read.clips)


@pytest.fixture(scope="module")
def split(items: list[Item]) -> Split:
    return divide_queries(items, VQDivision())


@pytest.fixture(scope="module")
def manifest(read: VisualAnnotations, items: list[Item], split: Split) -> SplitManifest:
    categories = title_categories(split.groups, titles_of(items, "train"))
    return make_manifest(split, categories, VQ_RULES, read.report.files)


def ids(split: Split) -> dict:
    return {
        name: [[item.item_id for item in part] for part in parts]
        for name, parts in split.streams.items()
    }


def kept_share(split: Split) -> float:
    return sum(map(sum, split.sizes().values())) / 240


@pytest.mark.parametrize("grouping", GROUPINGS)
def test_one_seed_gives_one_grouping_and_another_another(items, grouping):
    groups = title_groups(items, seed=3, grouping=grouping)
    assert groups == title_groups(items, seed=3, grouping=grouping)
    assert sorted(map(sorted, groups)) != sorted(
        map(sorted, title_groups(items, seed=4, grouping="shuffled"))
    )


@pytest.mark.parametrize("grouping", GROUPINGS)
def test_groups_have_equal_parts_of_all_titles(items, grouping):
    groups = title_groups(items, grouping=grouping)
    in_train, in_val = (
        {title for item in items if item.subset == subset for title in item.categories}
        for subset in ("train", "val")
    )
    listed = Counter(title for group in groups for title in group)
    assert listed == Counter(in_train | in_val)
    for kind in (in_train, in_val - in_train):
        sizes = [len(kind.intersection(group)) for group in groups]
        assert max(sizes) <= -(-len(kind) // 5)


def test_groups_do_not_depend_on_the_order_of_the_file(items):
    groups = title_groups(items, grouping="shuffled")
    assert title_groups(items[::-1], grouping="shuffled") == groups


def test_exchanged_titles_of_val_queries_change_no_training_query(items, split):
    places = [i for i, item in enumerate(items) if item.subset == "val"]
    for i, j in list(itertools.pairwise(places))[::12]:
        others = list(items)
        others[i] = replace(items[i], categories=items[j].categories)
        others[j] = replace(items[j], categories=items[i].categories)
        again = divide_queries(others, VQDivision())
        for name in ("train", "valid"):
            assert ids(again)[name] == ids(split)[name]


def test_titles_gathered_where_their_clips_are_keep_more_queries(items):
    together, shuffled = (
        kept_share(divide_queries(items, VQDivision(grouping=grouping)))
        for grouping in GROUPINGS
    )
    assert together > shuffled + 0.1
    assert together > 0.6


def test_one_experience_asks_for_every_title(items):
    (group,) = title_groups(items, n_experiences=1)
    assert group == sorted({title for item in items for title in item.categories})


def test_the_number_of_groups_and_the_grouping_are_checked(items):
    with pytest.raises(ValueError, match="expected grouping in"):
        title_groups(items, grouping="random")
    with pytest.raises(ValueError, match=r"expected n_experiences in 1\.\.\d+"):
        title_groups(items, n_experiences=99)


def test_clips_go_where_most_of_their_queries_are_within_limits():
    asked = np.zeros((10, 5))
    asked[:, 0] = 3
    asked[:5, 1] = 2
    asked[5:, 2] = 1
    chosen = balanced_assignment(asked)
    assert np.bincount(chosen[chosen >= 0], minlength=5).tolist() == [3, 3, 3, 0, 0]
    assert (chosen == -1).sum() == 1
    assert set(chosen[:5]) <= {0, 1, -1}


def test_no_clip_goes_where_nothing_is_asked_of_it():
    asked = np.array([[1.0, 0.0], [0.0, 0.0], [2.0, 0.0], [0.0, 1.0]])
    assert balanced_assignment(asked).tolist() == [0, -1, 0, 1]
    assert balanced_assignment(np.empty((0, 5))).shape == (0,)


def brute_force(asked: np.ndarray, most: int) -> float:
    best = 0.0
    n, g = asked.shape
    for code in range((g + 1) ** n):
        chosen = [code // (g + 1) ** i % (g + 1) for i in range(n)]
        if all(chosen.count(k) <= most for k in range(g)):
            best = max(best, sum(asked[i, k] for i, k in enumerate(chosen) if k < g))
    return best


def test_no_other_assignment_keeps_more():
    rng = np.random.default_rng(0)
    for _ in range(5):
        asked = rng.integers(1, 5, (6, 2)).astype(float)
        chosen = balanced_assignment(asked)
        kept = asked[np.arange(6), chosen][chosen >= 0].sum()
        # 6 clips in two experiences: at most 5 each, and at least 2.
        assert kept <= brute_force(asked, 5)
        if 2 <= (asked.argmax(axis=1) == 0).sum() <= 4:
            assert kept == asked.max(axis=1).sum()


def places(split: Split) -> set[tuple[str, str, int]]:
    return {
        (item.clip_id, name, e)
        for name, parts in split.streams.items()
        for e, part in enumerate(parts)
        for item in part
    }


def test_each_clip_belongs_to_one_experience_of_one_stream(split):
    clips = Counter(clip_id for clip_id, _, _ in places(split))
    assert max(clips.values()) == 1


def test_an_experience_asks_for_its_titles_alone(split):
    for parts in split.streams.values():
        for group, part in zip(split.groups, parts, strict=True):
            assert {title for item in part for title in item.categories} <= set(group)


def test_no_parent_video_is_in_two_streams(items, split):
    parents = {
        name: {item.video_id for part in parts for item in part}
        for name, parts in split.streams.items()
    }
    assert not parents["train"] & parents["valid"]
    assert not (parents["train"] | parents["valid"]) & parents["test"]
    assert all(i.subset == "val" for part in split.streams["test"] for i in part)
    assert parents["valid"]
    whole = divide_queries(items, VQDivision(valid_share=0.0))
    assert not any(whole.streams["valid"])


def test_counts_add_up_to_what_was_read(folder, items, split):
    report = read_folder(folder).report
    count_split(items, split, VQ_RULES, report)
    sets = report.stage("protocol exclusive", "query sets")
    assert sets.read == len(items) == 240
    assert sets.kept == sum(map(sum, split.sizes().values()))
    assert sets.rejected["its title is of another experience than the clip"] > 0
    assert sum(sets.notes.values()) == sets.kept
    assert report.outcomes("query sets")["in the streams"] == sets.kept
    assert report.stage("protocol exclusive", "clips").read == 80


def test_shared_clips_lose_no_query(items):
    split = divide_queries(items, VQDivision(protocol="shared_clips"))
    assert kept_share(split) == 1
    assert max(Counter(clip_id for clip_id, _, _ in places(split)).values()) > 1


def test_the_public_split_cannot_be_made(items):
    with pytest.raises(ValueError, match="comes from the public pickle alone"):
        divide_queries(items, VQDivision(protocol="reference"))
    with pytest.raises(ValueError, match=r"expected valid_share in \[0, 1\)"):
        VQDivision(valid_share=1.0)


def test_an_experience_without_training_queries_is_refused(split):
    streams = {**split.streams, "train": [[], *split.streams["train"][1:]]}
    with pytest.raises(DataError, match=r"no training queries .* experiences \[0\]"):
        check_training(replace(split, streams=streams), VQ_RULES, Path("vq_train.json"))


def followed(raw: Any, read: VisualAnnotations, items: list[Item]) -> Split:
    paths = {path.name: path for path in read.files.values()}
    files = DataFiles(
        root=DataRoot(None, "", False),
        paths=paths,
        train_path=read.files["train"],
        report=read.report,
    )
    return follow_queries(items, open_manifest(raw, VQ_RULES), files)


def test_a_manifest_gives_the_split_back(folder, items, split, manifest, tmp_path):
    path = tmp_path / "split.json"
    path.write_text(json.dumps(manifest.to_dict()))
    again = read_folder(folder)
    found = followed(path, again, items)
    assert ids(found) == ids(split)
    count_split(items, found, VQ_RULES, again.report)
    sets = again.report.stage("protocol exclusive", "query sets")
    assert sets.rejected == {"not in the manifest": 240 - sets.kept}


def respelled(raw: dict) -> None:
    """One title in two spellings, in two groups."""
    name = raw["groups"][0][0]["name"]
    raw["groups"][1].append({"label_id": 99, "name": name.upper()})


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda raw: raw["groups"].pop(), "expected 4 experiences"),
        (lambda raw: raw["groups"][0].extend(raw["groups"][1]), "occur twice"),
        (respelled, r"the categories \['thing \d+'\] occur twice"),
        (lambda raw: raw["windows"]["train"].reverse(), "windows but the annotations"),
        (
            lambda raw: raw.update(files={"vq_train.json": "0" * 64}),
            "is not the file that manifest was made from",
        ),
    ],
)
def test_a_manifest_that_contradicts_itself_or_the_files_is_refused(
    read, items, manifest, change, problem
):
    raw = manifest.to_dict()
    change(raw)
    with pytest.raises(DataError, match=problem):
        followed(raw, read, items)


@pytest.mark.parametrize(
    ("stream", "query", "problem"),
    [
        ("train", "unknown_1", r"1 queries are not in the annotations:\s+train: unkn"),
        ("valid", "test", "is of subset 'val', but stream valid takes 'train'"),
        ("train", "lost", "has no window of this experience's queries"),
    ],
)
def test_a_manifest_with_a_query_in_a_wrong_place_is_refused(
    read, items, manifest, stream, query, problem
):
    raw = manifest.to_dict()
    named = {i for parts in raw["streams"].values() for part in parts for i in part}
    group = {category["name"] for category in raw["groups"][0]}
    lost = next(
        item.item_id
        for item in items
        if item.item_id not in named
        and item.subset == "train"
        and group.isdisjoint(item.categories)
    )
    chosen = {"lost": lost, "test": raw["streams"]["test"][0].pop()}.get(query, query)
    raw["streams"][stream][0].append(chosen)
    with pytest.raises(DataError, match=problem):
        followed(raw, read, items)


def pickled(raw: Any, tmp_path: Path) -> Path:
    path = tmp_path / "vq.pkl"
    path.write_bytes(pickle.dumps(raw))
    return path


def test_the_public_pickle_becomes_a_manifest(
    read, items, folder, public_metadata, tmp_path
):
    path = pickled(public_metadata(folder), tmp_path)
    manifest = read_vq_metadata(path, items, read.report.files)
    assert manifest.protocol == "reference"
    assert manifest.source["left_out"] == 0
    totals = {name: sum(counts) for name, counts in manifest.windows.items()}
    assert totals == {"train": 180, "valid": 0, "test": 60}
    split = followed(manifest, read, items)
    for name in ("train", "test"):
        found = {item.item_id for part in split.streams[name] for item in part}
        assert len(found) == totals[name]
        for task, part in enumerate(split.streams[name]):
            assert {len(item.record.title_key) % 2 for item in part} == {task}


def test_items_that_the_reader_left_out_are_counted(
    read, items, folder, public_metadata, tmp_path
):
    raw = public_metadata(folder)
    first = raw["train"][0]["dict_db"][0]
    first["labels"] = {**first["labels"], "query_frame": 7}
    manifest = read_vq_metadata(pickled(raw, tmp_path), items, read.report.files)
    assert manifest.source["left_out"] == 1
    assert sum(manifest.windows["train"]) == 179


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda raw: raw.pop("val"), "field 'val'"),
        (lambda raw: raw["train"].update({0: []}), "expected a list of items"),
        (
            lambda raw: raw["train"][0]["dict_db"][0].pop("labels"),
            "expected an item with its query set",
        ),
    ],
)
def test_a_pickle_of_another_structure_is_refused(
    items, folder, public_metadata, tmp_path, change, problem
):
    raw = public_metadata(folder)
    change(raw)
    with pytest.raises(DataError, match=problem):
        read_vq_metadata(pickled(raw, tmp_path), items, {})


def test_a_pickle_that_asks_for_code_is_refused(items, tmp_path):
    path = pickled({"train": print, "val": {}}, tmp_path)
    with pytest.raises(DataError, match=r"builtins\.print"):
        read_vq_metadata(path, items, {})
