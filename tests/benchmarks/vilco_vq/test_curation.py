"""Splits of visual queries: seeded, exclusive, balanced, counted, published."""

import json
import pickle
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from avalanche_vilco.benchmarks.manifest import write_manifest
from avalanche_vilco.benchmarks.vilco_vq.annotations import (
    OFFICIAL_VQ_FILES,
    VisualAnnotations,
    read_visual_queries,
    title_key,
)
from avalanche_vilco.benchmarks.vilco_vq.curation import (
    EXCLUSIVE,
    GROUPINGS,
    REFERENCE,
    SHARED_CLIPS,
    clip_homes,
    kept_share,
    main,
    make_vq_manifest,
    manifest_split,
    read_vq_manifest,
    read_vq_metadata,
    split_table,
    split_visual_queries,
    title_groups,
)
from avalanche_vilco.core.errors import DataError

N_TITLES = 30


def box(frame: int) -> dict:
    sides = {"x": 4.0, "y": 4.0, "width": 20.0, "height": 20.0}
    return {"frame_number": frame, **sides, "original_width": 64, "original_height": 64}


def content(subset: str, n_clips: int, seed: int) -> dict:
    """Clips of five kinds; most of a clip's queries are of its kind's titles."""
    rng = np.random.default_rng(seed)
    videos = []
    for i in range(n_clips):
        own = np.flatnonzero(np.arange(N_TITLES) % 5 == i % 5)
        chosen = [
            int(rng.choice(own)) if rng.random() < 0.85 else int(rng.integers(N_TITLES))
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


@pytest.fixture
def read(folder: Path) -> VisualAnnotations:
    return read_folder(folder)


@pytest.fixture(scope="module")
def groups(folder: Path) -> list[list[str]]:
    return title_groups(read_folder(folder))


@pytest.fixture
def split(read: VisualAnnotations, groups: list[list[str]]) -> dict:
    return split_visual_queries(read, groups)


def ids(split: Any) -> dict:
    return {
        name: [[query.query_id for query in own] for own in experiences]
        for name, experiences in split.items()
    }


# --- Groups ---------------------------------------------------------------------------


@pytest.mark.parametrize("grouping", GROUPINGS)
def test_one_seed_gives_one_grouping_and_another_another(read, grouping):
    groups = title_groups(read, seed=3, grouping=grouping)
    assert groups == title_groups(read, seed=3, grouping=grouping)
    assert sorted(map(sorted, groups)) != sorted(
        map(sorted, title_groups(read, seed=4, grouping="shuffled"))
    )


@pytest.mark.parametrize("grouping", GROUPINGS)
def test_groups_have_equal_parts_of_all_titles(read, grouping):
    groups = title_groups(read, grouping=grouping)
    known = {title_key(query.title) for query in read.queries}
    assert Counter(title for group in groups for title in group) == Counter(known)
    in_val = {title_key(q.title) for q in read.queries if q.subset == "val"}
    in_train = {title_key(q.title) for q in read.queries if q.subset == "train"}
    for kind in (in_val & in_train, in_train - in_val, in_val - in_train):
        sizes = [len(kind.intersection(group)) for group in groups]
        assert max(sizes) <= -(-len(kind) // 5)


def test_groups_do_not_depend_on_the_order_of_the_file(read):
    backwards = replace(read, queries=read.queries[::-1])
    groups = title_groups(read, grouping="shuffled")
    assert title_groups(backwards, grouping="shuffled") == groups


def test_titles_gathered_where_their_clips_are_keep_more_queries(read):
    kept = {}
    for grouping in GROUPINGS:
        split = split_visual_queries(read, title_groups(read, grouping=grouping))
        kept[grouping] = kept_share(split, read)
    assert kept["together"] > kept["shuffled"] + 0.1
    assert kept["together"] > 0.6


def test_one_experience_asks_for_every_title(read):
    (group,) = title_groups(read, n_experiences=1)
    assert group == sorted({title_key(query.title) for query in read.queries})


def test_the_number_of_groups_and_the_grouping_are_checked(read):
    with pytest.raises(ValueError, match="expected grouping in"):
        title_groups(read, grouping="random")
    with pytest.raises(ValueError, match=r"expected n_experiences in 1\.\.\d+"):
        title_groups(read, n_experiences=99)


# --- Clips ----------------------------------------------------------------------------


def test_clips_go_where_most_of_their_queries_are_within_limits():
    asked = np.zeros((10, 5))
    asked[:, 0] = 3
    asked[:5, 1] = 2
    asked[5:, 2] = 1
    home = clip_homes(asked)
    assert np.bincount(home[home >= 0], minlength=5).tolist() == [3, 3, 3, 0, 0]
    assert (home == -1).sum() == 1
    assert set(home[:5]) <= {0, 1, -1}


def test_no_clip_goes_where_nothing_is_asked_of_it():
    asked = np.array([[1.0, 0.0], [0.0, 0.0], [2.0, 0.0], [0.0, 1.0]])
    assert clip_homes(asked).tolist() == [0, -1, 0, 1]


def test_no_clips_have_no_homes():
    assert clip_homes(np.empty((0, 5))).shape == (0,)


def brute_force(asked: np.ndarray, most: int) -> float:
    best = 0.0
    n, g = asked.shape
    for code in range((g + 1) ** n):
        homes = [code // (g + 1) ** i % (g + 1) for i in range(n)]
        if all(homes.count(k) <= most for k in range(g)):
            best = max(best, sum(asked[i, k] for i, k in enumerate(homes) if k < g))
    return best


def test_no_other_assignment_keeps_more():
    rng = np.random.default_rng(0)
    for _ in range(5):
        asked = rng.integers(1, 5, (6, 2)).astype(float)
        home = clip_homes(asked)
        kept = asked[np.arange(6), home][home >= 0].sum()
        # 6 clips in two experiences: at most 5 each, and at least 2.
        assert kept <= brute_force(asked, 5)
        if 2 <= (asked.argmax(axis=1) == 0).sum() <= 4:
            assert kept == asked.max(axis=1).sum()


# --- Splits ---------------------------------------------------------------------------


def test_each_clip_belongs_to_one_experience_of_one_stream(split):
    places = Counter()
    for name, experiences in split.items():
        for e, own in enumerate(experiences):
            places.update({(query.clip_id, name, e) for query in own})
    assert max(Counter(clip_id for clip_id, _, _ in places).values()) == 1


def test_an_experience_asks_for_its_titles_alone(groups, split):
    for experiences in split.values():
        for group, own in zip(groups, experiences, strict=True):
            assert {title_key(query.title) for query in own} <= set(group)


def test_no_parent_video_is_in_two_streams(read, split):
    parents = {
        name: {read.clips[q.clip_id].video_id for own in experiences for q in own}
        for name, experiences in split.items()
    }
    assert not parents["train"] & parents["valid"]
    assert not (parents["train"] | parents["valid"]) & parents["test"]
    assert all(q.subset == "val" for own in split["test"] for q in own)
    assert parents["valid"]


def test_counts_add_up_to_what_was_read(read, split):
    sets = read.report.stage("protocol exclusive", "query sets")
    assert sets.read == len(read.queries) == 240
    assert sets.kept == sum(len(own) for part in split.values() for own in part)
    assert sets.rejected["its title is of another experience than the clip"] > 0
    assert sum(sets.notes.values()) == sets.kept
    assert read.report.outcomes("query sets")["in the streams"] == sets.kept
    clips = read.report.stage("protocol exclusive", "clips")
    assert clips.read == 80


def test_shared_clips_lose_no_query(read, groups):
    split = split_visual_queries(read, groups, SHARED_CLIPS)
    assert kept_share(split, read) == 1
    homes = Counter(
        (query.clip_id, e)
        for experiences in split.values()
        for e, own in enumerate(experiences)
        for query in own
    )
    assert max(Counter(clip_id for clip_id, _ in homes).values()) > 1


def test_nothing_is_held_out_if_nothing_is_asked_for(read, groups):
    split = split_visual_queries(read, groups, valid_share=0.0)
    assert not any(split["valid"])


@pytest.mark.parametrize(
    ("listed", "problem"),
    [
        ([["thing 1"], ["thing 2"]], "missing"),
        ([["thing 1", "what"], ["thing 2"]], "unknown"),
        ([["thing 1"], ["thing 1"]], "twice"),
    ],
)
def test_groups_that_do_not_fit_are_refused(read, listed, problem):
    with pytest.raises(ValueError, match=problem):
        split_visual_queries(read, listed)


def test_the_public_split_cannot_be_made(read, groups):
    with pytest.raises(ValueError, match="comes from the public pickle alone"):
        split_visual_queries(read, groups, REFERENCE)
    with pytest.raises(ValueError, match=r"expected valid_share in \[0, 1\)"):
        split_visual_queries(read, groups, valid_share=1.0)


def test_a_video_in_train_and_val_is_refused(read, groups):
    clips = {
        uid: replace(clip, video_id="one") if uid.endswith("clip0") else clip
        for uid, clip in read.clips.items()
    }
    with pytest.raises(DataError, match="1 parent videos are in val as well: one"):
        split_visual_queries(replace(read, clips=clips), groups)


def test_an_experience_without_training_queries_is_refused(read):
    titles = sorted({title_key(query.title) for query in read.queries})
    asked = Counter(title_key(q.title) for q in read.queries if q.subset == "train")
    rare = min(titles, key=lambda title: asked[title])
    queries = tuple(
        q for q in read.queries if q.subset == "val" or title_key(q.title) != rare
    ) + tuple(
        replace(q, query_id=f"{q.query_id}x", title=rare)
        for q in read.queries
        if q.subset == "val"
    )
    groups = [[rare], [title for title in titles if title != rare]]
    with pytest.raises(DataError, match=r"no training query .* experiences \[0\]"):
        split_visual_queries(replace(read, queries=queries), groups)


# --- Manifests ------------------------------------------------------------------------


@pytest.fixture
def manifest(read: VisualAnnotations, groups: list[list[str]], split: dict) -> Any:
    return make_vq_manifest(
        split,
        groups,
        protocol=EXCLUSIVE,
        report=read.report,
        source={"seed": 0},
    )


def test_a_manifest_gives_the_split_back(read, split, manifest, tmp_path):
    path = tmp_path / "split.json"
    write_manifest(manifest, path)
    again = read_visual_queries(read.files)
    assert ids(manifest_split(read_vq_manifest(path), again, path)) == ids(split)
    sets = again.report.stage("protocol exclusive", "query sets")
    assert sets.rejected == {"not in the manifest": 240 - sets.kept}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda raw: raw.update(benchmark="vilco_mq"), "field 'benchmark'"),
        (lambda raw: raw.update(protocol="own"), "field 'protocol'"),
        (lambda raw: raw.update(protocol_version="0"), "field 'protocol_version'"),
        (lambda raw: raw["groups"].pop(), "expected 4 experiences"),
        (lambda raw: raw["groups"][0].extend(raw["groups"][1]), "each title in one"),
        (lambda raw: raw["windows"]["train"].reverse(), "the numbers of queries"),
        (lambda raw: raw["streams"].pop("valid"), "expected train, valid, test"),
        (
            lambda raw: raw["streams"]["train"][0].__setitem__(
                1, raw["streams"]["train"][0][0]
            ),
            "1 queries occur twice: ",
        ),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(manifest, change, problem):
    raw = manifest.to_dict()
    change(raw)
    with pytest.raises(DataError, match=problem):
        read_vq_manifest(raw)


def test_a_manifest_of_other_files_is_refused(read, manifest):
    raw = manifest.to_dict()
    raw["files"] = {"vq_train.json": "0" * 64}
    with pytest.raises(DataError, match="is not the file that manifest was made from"):
        manifest_split(read_vq_manifest(raw), read)


@pytest.mark.parametrize(
    ("stream", "query", "problem"),
    [
        (("train", 0), "gone_1", "1 queries are not in the annotations: gone_1"),
        (("valid", 0), "test", "is of subset 'val', not 'train'"),
        (("train", 0), "lost", "which is not of its group"),
    ],
)
def test_a_manifest_with_a_query_in_a_wrong_place_is_refused(
    read, manifest, stream, query, problem
):
    raw = manifest.to_dict()
    named = {i for part in raw["streams"].values() for own in part for i in own}
    group = {category["name"] for category in raw["groups"][0]}
    lost = next(
        q.query_id
        for q in read.queries
        if q.query_id not in named and q.subset == "train" and q.title not in group
    )
    chosen = {"lost": lost, "test": raw["streams"]["test"][0].pop()}.get(query, query)
    raw["streams"][stream[0]][stream[1]].append(chosen)
    for name, part in raw["streams"].items():
        raw["windows"][name] = [len(own) for own in part]
    with pytest.raises(DataError, match=problem):
        manifest_split(read_vq_manifest(raw), read)


def test_an_absent_manifest_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no manifest at"):
        read_vq_manifest(tmp_path / "none.json")


# --- The public pickle ----------------------------------------------------------------


def item(raw_clip: dict, number: str) -> dict:
    annotation = raw_clip["annotations"][0]
    labels = annotation["query_sets"][number]
    return {
        "object_title": labels["object_title"],
        "annotation_uid": annotation["annotation_uid"],
        "duration": -10.0,
        "video_id": "video",
        "clip_id": raw_clip["clip_uid"],
        "labels": labels,
        "query_type": "vq",
        "clip_start_sec": 0.0,
        "clip_end_sec": 10.0,
    }


def metadata(folder: Path) -> dict:
    """Titles by the remainder of their number; the first query set of each clip."""
    parts: dict = {}
    for subset in ("train", "val"):
        parts[subset] = {task: {"dict_db": []} for task in range(5)}
        raw = json.loads((folder / OFFICIAL_VQ_FILES[subset]).read_text())
        for video in raw["videos"]:
            (one,) = video["clips"]
            title = one["annotations"][0]["query_sets"]["1"]["object_title"]
            task = int(title.split()[1]) % 5
            parts[subset][task]["dict_db"].append(item(one, "1"))
    return parts


def test_the_public_pickle_becomes_a_manifest(read, folder, tmp_path):
    path = tmp_path / "vq.pkl"
    path.write_bytes(pickle.dumps(metadata(folder)))
    manifest = read_vq_metadata(path, read)
    assert manifest.protocol == "reference"
    assert manifest.source["left_out"] == 0
    assert sum(manifest.windows["train"]) == 60
    assert sum(manifest.windows["test"]) == 20
    assert manifest.windows["valid"] == [0] * 5
    split = manifest_split(manifest, read, path)
    assert all(query.set_number == "1" for own in split["train"] for query in own)
    for task, own in enumerate(split["test"]):
        assert {int(query.title.split()[1]) % 5 for query in own} <= {task}


def test_items_that_the_reader_left_out_are_counted(read, folder, tmp_path):
    raw = metadata(folder)
    first = raw["train"][0]["dict_db"][0]
    first["labels"] = {**first["labels"], "query_frame": 7}
    path = tmp_path / "vq.pkl"
    path.write_bytes(pickle.dumps(raw))
    manifest = read_vq_metadata(path, read)
    assert manifest.source["left_out"] == 1
    assert sum(manifest.windows["train"]) == 59


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
    read, folder, tmp_path, change, problem
):
    raw = metadata(folder)
    change(raw)
    path = tmp_path / "vq.pkl"
    path.write_bytes(pickle.dumps(raw))
    with pytest.raises(DataError, match=problem):
        read_vq_metadata(path, read)


def test_a_pickle_that_asks_for_code_is_refused(read, tmp_path):
    path = tmp_path / "vq.pkl"
    path.write_bytes(pickle.dumps({"train": print, "val": {}}))
    with pytest.raises(DataError, match=r"builtins\.print"):
        read_vq_metadata(path, read)


# --- Command --------------------------------------------------------------------------


def test_the_table_counts_queries_titles_clips_and_hours(read, split):
    rows = split_table(split, read).splitlines()
    assert len(rows) == 8
    n_train = sum(map(len, split["train"]))
    assert rows[-1].startswith(f"| all | {n_train} / ")


def test_the_command_prints_what_is_kept(folder, capsys):
    assert main([str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "## exclusive, titles together: " in printed
    assert "## exclusive, titles shuffled: " in printed


def test_the_command_names_what_is_wrong(tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        main([str(tmp_path)])
    assert caught.value.code == 1
    assert "expected subsets" in capsys.readouterr().err
