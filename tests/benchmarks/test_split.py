"""Dividing queries over experiences and clips over streams."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from avalanche_vilco.benchmarks.items import Item, whole_clips
from avalanche_vilco.benchmarks.protocols import BALANCE_SLACK, assign_clips
from avalanche_vilco.benchmarks.split import (
    balancing_targets,
    held_out_parents,
    query_groups,
)

IDS = list(range(110))


def clip(name: str, labels: Sequence[int], parent: str | None = None) -> Item:
    return Item(name, name, parent or name, "train", tuple(map(int, labels)))


def groups_of(ids: Sequence[int] = IDS, **options) -> list[list[int]]:
    defaults = {
        "n_experiences": 5,
        "per_exp_classes": None,
        "fixed_class_order": None,
        "seed": None,
    }
    return query_groups(ids, **{**defaults, **options})


def test_default_order_is_that_of_category_ids():
    groups = groups_of()
    assert groups == [IDS[start : start + 22] for start in range(0, 110, 22)]


@pytest.mark.parametrize("order", [None, "queries"])
def test_seed_shuffles_queries_and_nothing_else_does(order):
    first, again, other = (
        groups_of(fixed_class_order=order, seed=s) for s in (3, 3, 4)
    )
    assert first == again
    assert first != other
    assert sorted(chain(*first)) == IDS
    assert first == groups_of(fixed_class_order="queries", seed=3)


def test_order_groups_shuffles_whole_groups():
    fixed = groups_of()
    orders = {
        str(groups_of(fixed_class_order="groups", seed=seed)) for seed in range(10)
    }
    assert len(orders) > 1
    for seed in range(10):
        groups = groups_of(fixed_class_order="groups", seed=seed)
        assert sorted(groups) == fixed
        assert groups == groups_of(fixed_class_order="groups", seed=seed)


def test_explicit_order_is_followed():
    assert groups_of([3, 16, 59], fixed_class_order=[59, 3, 16], n_experiences=3) == [
        [59],
        [3],
        [16],
    ]
    assert groups_of(fixed_class_order=np.array(IDS[::-1]))[0] == IDS[:-23:-1]


def test_explicit_sizes_are_followed():
    groups = groups_of(range(6), per_exp_classes=[3, 1, 2])
    assert groups == [[0, 1, 2], [3], [4, 5]]


def test_sizes_go_with_their_groups_when_groups_are_shuffled():
    groups = groups_of(
        range(6), per_exp_classes=[3, 1, 2], fixed_class_order="groups", seed=1
    )
    assert sorted(groups) == [[0, 1, 2], [3], [4, 5]]


def test_number_of_experiences_that_does_not_divide_names_those_that_do():
    with pytest.raises(ValueError) as caught:
        groups_of(n_experiences=4)
    message = str(caught.value)
    assert "110 queries do not divide into 4 experiences" in message
    assert "[1, 2, 5, 10, 11, 22, 55, 110]" in message
    assert "per_exp_classes" in message


@pytest.mark.parametrize("n_experiences", [0, -5, 111, 220])
def test_number_of_experiences_out_of_range_is_refused(n_experiences):
    with pytest.raises(ValueError, match="choose n_experiences from"):
        groups_of(n_experiences=n_experiences)


@pytest.mark.parametrize("sizes", [[22] * 4, [110, 0], [111, -1], [], [22] * 6])
def test_sizes_that_do_not_fit_are_refused(sizes):
    with pytest.raises(ValueError, match="sum up to 110 but got"):
        groups_of(per_exp_classes=sizes)


@pytest.mark.parametrize(
    ("order", "problem"),
    [
        (IDS[:-1], r"missing \[109\], unknown \[\]"),
        (IDS[:-1] + [110], r"missing \[109\], unknown \[110\]"),
        (IDS[:-1] + [0], r"missing \[109\]"),
        ([], "missing"),
        ("random", "'queries', 'groups' or a list of ids but got 'random'"),
    ],
)
def test_order_that_does_not_fit_is_refused(order, problem):
    with pytest.raises(ValueError, match=problem):
        groups_of(fixed_class_order=order, seed=0)


def test_listed_order_with_a_seed_is_refused():
    with pytest.raises(ValueError, match="not shuffled: leave seed=3 out"):
        groups_of(fixed_class_order=IDS[::-1], seed=3)


@pytest.mark.parametrize("order", ["queries", "groups"])
def test_shuffled_order_needs_a_seed(order):
    with pytest.raises(ValueError, match="needs a seed: pass seed=0"):
        groups_of(fixed_class_order=order)


clip_sets = st.lists(
    st.lists(st.integers(0, 9), min_size=1, max_size=8), min_size=0, max_size=25
)
partitions = st.permutations(range(10)).flatmap(
    lambda ids: st.sampled_from(
        [
            [ids[:5], ids[5:]],
            [ids[:3], ids[3:4], ids[4:]],
            [ids[i : i + 2] for i in range(0, 10, 2)],
            [ids],
        ]
    )
)


@given(labels=clip_sets, groups=partitions)
def test_clip_goes_where_something_is_asked_of_it_and_no_experience_overflows(
    labels, groups
):
    clips = [clip(f"c{i}", own) for i, own in enumerate(labels)]
    home = assign_clips(clips, groups)
    assert len(home) == len(clips)
    for e, n in Counter(home.tolist()).items():
        share = len(clips) * len(groups[e]) / 10
        assert e == -1 or n <= np.ceil(BALANCE_SLACK * share)
    for one, place in zip(clips, home.tolist(), strict=True):
        assert place == -1 or set(one.categories) & set(groups[place])


@given(labels=clip_sets, groups=partitions)
def test_same_groups_in_another_order_get_the_same_clips(labels, groups):
    clips = [clip(f"c{i}", own) for i, own in enumerate(labels)]
    home = assign_clips(clips, groups)
    backwards = assign_clips(clips, groups[::-1])
    expected = np.where(home < 0, home, len(groups) - 1 - home)
    assert backwards.tolist() == expected.tolist()


def test_clip_goes_where_most_of_its_windows_are_asked():
    clips = [clip("a", [0, 0, 0, 1]), clip("b", [0, 1, 1, 1])]
    assert assign_clips(clips, [[0], [1]]).tolist() == [0, 1]


def test_rare_category_keeps_its_clip():
    # Category 1 is in one clip only, with one window among three.
    clips = [clip(f"c{i}", [0, 0, 0]) for i in range(5)] + [clip("r", [0, 0, 1])]
    assert assign_clips(clips, [[0], [1]], slack=2.0).tolist() == [0] * 5 + [1]


def test_uneven_groups_share_clips_by_their_queries_and_drop_none():
    rng = np.random.default_rng(0)
    clips = [clip(f"c{i}", rng.integers(0, 22, 6)) for i in range(200)]
    groups = [[0, 1, 2], [3], [4, 5], list(range(6, 22))]
    home = assign_clips(clips, groups)
    counts = np.bincount(home, minlength=4)
    assert counts.sum() == 200
    shares = 200 * np.array([3, 1, 2, 16]) / 22
    assert (counts >= np.floor(shares / BALANCE_SLACK)).all()
    assert (counts <= np.ceil(shares * BALANCE_SLACK)).all()


def test_small_group_gets_a_clip_that_keeps_more_windows_elsewhere():
    clips = [clip(f"c{i}", [0, 1, 1, 1]) for i in range(4)]
    home = assign_clips(clips, [[0], [1, 2, 3, 4, 5, 6, 7, 8, 9]])
    assert sorted(home.tolist()) == [0, 1, 1, 1]


def test_clip_without_a_place_is_marked():
    clips = [clip(f"c{i}", [0]) for i in range(4)]
    home = assign_clips(clips, [[0], [1]], slack=1.0)
    assert sorted(home.tolist()) == [-1, -1, 0, 0]


@given(
    labels=clip_sets,
    groups=partitions,
    share=st.floats(0, 0.99),
    n_parents=st.integers(1, 10),
)
def test_holding_out_keeps_within_the_share_and_leaves_train_half_of_each_category(
    labels, groups, share, n_parents
):
    clips = [
        clip(f"c{i}", own, parent=f"v{i % n_parents}") for i, own in enumerate(labels)
    ]
    home = assign_clips(clips, groups)
    held = held_out_parents(clips, home.tolist(), share)
    placed = [one for one, place in zip(clips, home, strict=True) if place >= 0]
    out = [one for one in placed if one.video_id in held]
    assert len(out) <= share * len(placed)
    everywhere = Counter(c for one in placed for c in set(one.categories))
    left = Counter(
        c for one in placed if one.video_id not in held for c in set(one.categories)
    )
    for category, n in everywhere.items():
        assert left[category] >= 1
        # Every parent taken may leave half of what was left before it.
        assert left[category] >= 0.5 * n or len(held) > 1


def test_parents_held_out_do_not_depend_on_groups():
    rng = np.random.default_rng(0)
    clips = [clip(f"c{i}", rng.integers(0, 6, 5), f"v{i // 2}") for i in range(80)]
    held = [
        held_out_parents(clips, assign_clips(clips, groups, slack=6.0).tolist(), 0.2)
        for groups in ([[0, 1], [2, 3], [4, 5]], [[5, 0, 3], [1, 2, 4]])
    ]
    assert held[0] == held[1]
    assert len(held[0]) == 8


def test_clip_is_whole_with_the_categories_of_all_its_items() -> None:
    items = [
        Item(f"{uid}-{n}", uid, "v", "train", (category,))
        for n, (uid, category) in enumerate([("a", 3), ("b", 1), ("a", 1), ("a", 3)])
    ]
    whole = whole_clips(items)
    assert [(one.item_id, one.categories) for one in whole] == [
        ("a", (3, 1, 3)),
        ("b", (1,)),
    ]


asked_lists = st.lists(
    st.lists(st.integers(0, 7), min_size=1, max_size=4, unique=True), max_size=9
)


def largest_matching(asked: Sequence[Sequence[int]]) -> int:
    """Independent of scipy: augmenting paths, one clip at a time."""
    owner: dict[int, int] = {}

    def place(row: int, seen: set[int]) -> bool:
        for channel in asked[row]:
            if channel not in seen:
                seen.add(channel)
                if channel not in owner or place(owner[channel], seen):
                    owner[channel] = row
                    return True
        return False

    return sum(place(row, set()) for row in range(len(asked)))


@given(asked=asked_lists)
def test_heads_are_own_queries_and_cover_as_many_as_can_be(asked):
    heads = balancing_targets(asked)
    assert len(heads) == len(asked)
    assert all(head in own for head, own in zip(heads, asked, strict=True))
    assert all(type(head) is int for head in heads)
    assert len(set(heads)) == largest_matching(asked)


def test_rare_query_is_the_head_of_the_clips_that_the_matching_leaves():
    assert balancing_targets([[0], [1], [0, 1], [0, 1], [0]])[2:4] == [1, 1]
