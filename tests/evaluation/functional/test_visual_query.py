import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from avalanche_vilco.benchmarks.vilco_vq.submission import read_tracks, tracks_of
from avalanche_vilco.evaluation.functional.visual_query import (
    Tracks,
    flat_summary,
    visual_query_hits,
    visual_query_scores,
)

LEFT_OUT = {
    "random_100_ties": "ties among more than 16 tracks: the order depends on NumPy",
    "err_query_without_any_prediction": "an unanswered query is a miss, not an error",
    "err_no_prediction_at_all": "unanswered queries are misses, not an error",
    "err_zero_area_both": "a box without area matches nothing; 0 / 0 is 0",
}
REFUSED = {"err_empty_gt", "err_non_contiguous_pred", "err_score_none"}


def oracle_cases():
    # Named here, because collection must not need the files.
    return [
        *("adjacent_touching", "duplicate_preds", "empty_pred_track"),
        *("empty_pred_track_gt_at_zero", "float_boxes", "negative_coords"),
        *("negative_scores", "no_overlap", "one_frame_gt_and_pred"),
        *("one_frame_gt_long_pred", "one_frame_shared", "perfect_single"),
        *("pred_contains_gt_time", "random_10_single", "random_12_ties"),
        *("random_60_multi", "small_objects", "spatial_iou_exactly_0.5"),
        *("temporal_perfect_spatial_zero", "ties_fp_first", "ties_fp_last"),
        *("ties_three_queries", "tiou_exactly_0.25", "tiou_exactly_0.5"),
        *("two_preds_best_first", "two_preds_best_second", "zero_area_pred"),
    ]


def load(shared_dir, name):
    return json.loads((shared_dir / f"oracles/vq2d/{name}.json").read_text())


def submission(case):
    return tracks_of(
        [query["response_track"] for query in case["queries"]],
        [query["predictions"] for query in case["queries"]],
    )


@pytest.mark.parametrize("name", oracle_cases())
def test_ego4d_mode_gives_the_official_numbers(shared_dir, name):
    case = load(shared_dir, name)
    got = visual_query_scores(*submission(case), reference="ego4d")["all"]
    expected = case["expected_arrays"]
    assert [
        got.temporal_ap,
        got.tube_ap,
        tuple(100 * x for x in got.recovery),
        tuple(100 * x for x in got.success),
    ] == [
        pytest.approx(tuple(expected[key]), abs=1e-9)
        for key in (
            "temporal_ap@[.25,.5,.75,.95]",
            "spatiotemporal_ap@[.25,.5,.75,.95]",
            "recovery@[.5,.75,.95]",
            "success@[.05,.1,.2]",
        )
    ]
    in_percent = ("success", "recovery")
    summary = {
        key: 100 * value if key in in_percent else value
        for key, value in got.summary().items()
    }
    official = case["expected"]["all"].values()
    order = ("tAP", "tAP25", "stAP", "stAP25", "recovery", "success")
    assert [summary[key] for key in order] == pytest.approx(list(official), abs=1e-9)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_the_official_code_refuses_is_refused_with_a_message(shared_dir, name):
    with pytest.raises(ValueError, match=r"[Ee]xpected .* got"):
        visual_query_scores(*submission(load(shared_dir, name)), reference="ego4d")


def test_unanswered_queries_and_boxes_without_area_are_misses(shared_dir):
    half = load(shared_dir, "err_query_without_any_prediction")
    assert visual_query_scores(*submission(half))["all"].summary() == dict.fromkeys(
        ("tAP", "tAP25", "stAP", "stAP25", "success", "recovery"), 0.5
    )
    none = load(shared_dir, "err_no_prediction_at_all")
    assert set(visual_query_scores(*submission(none))["all"].summary().values()) == {0}
    flat = load(shared_dir, "err_zero_area_both")
    summary = visual_query_scores(*submission(flat))["all"].summary()
    assert summary["tAP"] == 1
    assert summary["stAP"] == summary["success"] == summary["recovery"] == 0


def test_every_oracle_case_is_matched_or_left_out_for_a_stated_reason(shared_dir):
    files = {file.stem for file in (shared_dir / "oracles/vq2d").glob("*.json")}
    assert files == {*oracle_cases(), *LEFT_OUT, *REFUSED}


@pytest.mark.parametrize("case", ["case11", "case12"])
def test_files_give_the_printed_numbers_of_the_official_script(shared_dir, case):
    folder = shared_dir / "oracles/vq2d_file"
    tracks = read_tracks(folder / f"{case}_gt.json", folder / f"{case}_pred.json")
    got = visual_query_scores(*tracks.tracks, reference="ego4d")["all"].summary()
    lines = [
        ("tAP", got["tAP"]),
        ("tAP @ IoU=0.25", got["tAP25"]),
        ("stAP", got["stAP"]),
        ("stAP @ IoU=0.25", got["stAP25"]),
        ("success", 100 * got["success"]),
        ("recovery %", 100 * got["recovery"]),
    ]
    printed = [f"{name:<20} | {value:10.3f}" for name, value in lines]
    expected = (folder / f"{case}_stdout.txt").read_text().splitlines()
    assert printed == expected[-len(printed) :]


def box_track(first, n, size=50.0, shift=0.0):
    return [
        {"fno": first + i, "x1": shift, "y1": 0.0, "x2": shift + size, "y2": size}
        for i in range(n)
    ]


def asked_track(first, n, size=50.0):
    return [
        {"frame_number": first + i, "x": 0.0, "y": 0.0, "width": size, "height": size}
        for i in range(n)
    ]


def answer(score, *track, **options):
    return {"bboxes": box_track(*track, **options), "score": score}


def scores_of(targets, predictions, **options):
    return visual_query_scores(*tracks_of(targets, predictions), **options)


def test_all_means_all_whatever_the_size_and_vilco_means_large():
    """Tracks of 50, 150 and 250 pixels; only the large one is answered."""
    targets = [asked_track(0, 4, size) for size in (50.0, 150.0, 250.0)]
    predictions = [[], [], [answer(1.0, 0, 4, size=250.0)]]
    scores = scores_of(targets, predictions)
    assert {size: result.n_queries for size, result in scores.items()} == {
        "all": 3,
        "small": 1,
        "medium": 1,
        "large": 1,
    }
    flat = flat_summary(scores)
    assert flat["success"] == flat["tAP25"] == pytest.approx(1 / 3)
    assert flat["success_large"] == 1 and flat["success_small"] == 0
    vilco = scores_of(targets, predictions, reference="vilco")["all"]
    assert vilco.n_queries == 1 and vilco.success[0] == 1


def test_a_size_that_no_query_has_is_unknown():
    flat = flat_summary(scores_of([asked_track(0, 4)], [[answer(1.0, 0, 4)]]))
    assert flat["stAP_small"] == 1.0
    assert math.isnan(flat["stAP_large"]) and math.isnan(flat["recovery_medium"])


def test_recovery_weighs_frames_and_success_weighs_queries():
    targets = [asked_track(0, 9), asked_track(0, 1)]
    flat = scores_of(targets, [[answer(1.0, 0, 9)], []])["all"].summary()
    assert flat["recovery"] == pytest.approx(0.9)
    assert flat["success"] == pytest.approx(0.5)


def test_ties_in_a_query_count_together_and_in_ego4d_the_last_is_first():
    row, targets = [answer(0.5, 0, 4), answer(0.5, 50, 4)], [asked_track(0, 4)]
    for order, official in ((row, 0.5), (row[::-1], 1.0)):
        ours = scores_of(targets, [order])["all"].summary()
        assert (ours["tAP"], ours["stAP"], ours["success"]) == (0.5, 0.5, 1.0)
        public = scores_of(targets, [order], reference="ego4d")["all"].summary()
        assert public["tAP"] == official
        assert public["success"] == (official == 1.0)


def test_a_score_that_is_not_a_number_comes_last():
    predictions = [[answer(0.0, 50, 4), answer(0.0, 0, 4)]]
    tracks = tracks_of([asked_track(0, 4)], predictions)
    tracks = tracks._replace(scores=torch.tensor([math.nan, -3.0]))
    summary = visual_query_scores(*tracks)["all"].summary()
    assert summary["tAP"] == summary["success"] == 1


def tensors(boxes, frames, owners):
    return Tracks(
        torch.tensor(boxes, dtype=torch.float64).reshape(-1, 4),
        torch.tensor(frames),
        torch.tensor(owners),
    )


def test_boxes_may_come_in_any_order_and_padding_is_ignored():
    box, far = [0.0, 0.0, 9.0, 9.0], [90.0, 90.0, 99.0, 99.0]
    asked = tensors([box] * 3 + [far], [7, 5, 6, 5], [0, 0, 0, -1])
    given = tensors([far, box, box, box], [5, 6, 5, 7], [-1, 0, 0, 0])
    scores, queries = torch.tensor([0.5, 9.0]), torch.tensor([0, -1])
    got = visual_query_scores(given, scores, queries, asked, 1)["all"]
    assert set(got.summary().values()) == {1.0}


@pytest.mark.parametrize("frames", [[5, 6, 6], [5, 6, 8], [5, 5, 7]])
@pytest.mark.parametrize("broken", ["given", "asked"])
def test_gaps_and_repeated_frames_are_refused(frames, broken):
    box = [0.0, 0.0, 9.0, 9.0]
    good, bad = (tensors([box] * 3, f, [0] * 3) for f in ([5, 6, 7], frames))
    given, asked = (bad, good) if broken == "given" else (good, bad)
    with pytest.raises(ValueError, match="but got 1 tracks with gaps or repeated"):
        visual_query_scores(given, torch.ones(1), torch.zeros(1).long(), asked, 1)


def test_a_box_that_is_not_finite_matches_nothing_but_its_frame_counts_in_time():
    boxes = [[0.0, 0.0, 9.0, 9.0], [0.0, 0.0, math.nan, 9.0]]
    asked = tensors([boxes[0]] * 2, [1, 2], [0, 0])
    given = tensors(boxes, [1, 2], [0, 0])
    got = visual_query_scores(
        given, torch.ones(1), torch.zeros(1, dtype=torch.long), asked, 1
    )["all"]
    assert got.temporal_ap == (1, 1, 1, 1)
    assert got.tube_ap == (1, 1, 0, 0)
    assert got.recovery[0] == 0.5


def test_without_queries_everything_is_unknown():
    empty = tensors([], [], [])
    empty = Tracks(empty.boxes, empty.frames.long(), empty.owners.long())
    got = visual_query_scores(
        empty, torch.zeros(0), torch.zeros(0, dtype=torch.long), empty, 0
    )
    assert got["all"].n_queries == 0
    assert all(map(math.isnan, flat_summary(got).values()))


@given(
    st.lists(
        st.tuples(st.integers(-5, 40), st.integers(1, 9), st.integers(1, 300)),
        min_size=1,
        max_size=6,
    )
)
def test_ground_truth_as_prediction_scores_one(drawn):
    targets = [asked_track(first, n, float(size)) for first, n, size in drawn]
    predictions = [
        [answer(0.5, first, n, size=float(size))] for first, n, size in drawn
    ]
    assert set(scores_of(targets, predictions)["all"].summary().values()) == {1.0}


def test_other_shapes_are_refused():
    good = tensors([[0.0, 0.0, 9.0, 9.0]], [5], [0])
    with pytest.raises(ValueError, match="expected predicted with boxes"):
        visual_query_scores(
            good._replace(frames=torch.zeros(2)), torch.ones(1), torch.ones(1), good, 1
        )
    with pytest.raises(ValueError, match="expected scores and queries of one shape"):
        visual_query_scores(good, torch.ones(1), torch.ones(2), good, 1)


def test_shapes_of_hits_depend_on_the_arguments_only():
    """The meta device has no data, so whatever needs any to go on fails there."""
    track = Tracks(*(x.to("meta") for x in tensors([[0.0] * 4] * 6, [0] * 6, [0] * 6)))
    scores = torch.ones(3, device="meta")
    hits = visual_query_hits(track, scores, scores.long(), track, 2)
    assert hits.tube.shape == (3, 4) and hits.n_frames.shape == (3,)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64])
def test_numbers_of_any_type_are_compared_alike(dtype):
    box = [0.0, 0.0, 16.0, 16.0]
    asked = tensors([box] * 2, [0, 1], [0, 0])
    given = tensors([box] * 2 + [[8.0, 0.0, 16.0, 16.0]] * 2, [0, 1] * 2, [0, 0, 1, 1])
    scores, queries = torch.tensor([1.0, 2.0]), torch.tensor([0, 0])
    expected = visual_query_scores(given, scores, queries, asked, 1)
    given = given._replace(boxes=given.boxes.to(dtype), frames=given.frames.int())
    got = visual_query_scores(given, scores.to(dtype), queries.int(), asked, 1)
    assert got["all"] == expected["all"]
    assert expected["all"].tube_ap == (1, 1, 0.5, 0.5)


def test_tensors_of_several_devices_are_refused():
    good = tensors([[0.0, 0.0, 9.0, 9.0]], [5], [0])
    zero = torch.zeros(1, dtype=torch.long)
    with pytest.raises(ValueError, match="all tensors on one device but got"):
        visual_query_scores(good, torch.ones(1, device="meta"), zero, good, 1)


def test_answer_to_an_unknown_query_is_refused_not_scored():
    box = torch.tensor([[0.0, 0.0, 9.0, 9.0]] * 2)
    frames, owner = torch.tensor([0, 1]), torch.tensor([0, 0])
    asked = Tracks(box, torch.tensor([50, 51]), owner)
    for unknown in (1, 2, 7):
        with pytest.raises(ValueError, match="unknown queries"):
            visual_query_scores(
                Tracks(box, frames, owner),
                torch.tensor([0.9]),
                torch.tensor([unknown]),
                asked,
                n_queries=1,
            )


track = st.tuples(st.integers(0, 12), st.integers(1, 6), st.sampled_from([40, 50, 60]))
query = st.tuples(track, st.lists(track, max_size=3))
several = st.lists(query, min_size=1, max_size=5)


def built(drawn, *, shift=0, factor=1.0):
    """Targets and answers; earlier tracks have higher scores."""
    targets = [
        [
            {**box, "width": box["width"] * factor, "height": box["height"] * factor}
            for box in asked_track(first + shift, n, float(size))
        ]
        for (first, n, size), _ in drawn
    ]
    n_tracks = 0
    predictions = []
    for _, tracks in drawn:
        predictions.append([])
        for first, n, size in tracks:
            n_tracks += 1
            track = answer(1.0 / n_tracks, first + shift, n, size=size * factor)
            predictions[-1].append(track)
    return targets, predictions


@given(several, st.integers(-20, 500), st.sampled_from([0.5, 4.0]))
def test_a_shift_in_time_and_the_size_of_pixels_change_nothing(drawn, shift, factor):
    before = scores_of(*built(drawn))["all"]
    assert scores_of(*built(drawn, shift=shift, factor=factor))["all"] == before


@given(several, st.integers(0, 4), st.sampled_from([2.0, 0.0]))
def test_an_extra_track_that_hits_nothing_never_raises_a_score(drawn, place, score):
    targets, predictions = built(drawn)
    before = scores_of(targets, predictions)["all"].summary()
    predictions[place % len(drawn)].append(answer(score, 900, 3))
    after = scores_of(targets, predictions)["all"].summary()
    assert all(after[name] <= value + 1e-12 for name, value in before.items())
    assert not any(map(math.isnan, after.values()))


def test_infinite_scores_rank_first_and_last():
    asked, predictions = [asked_track(0, 4)], [[answer(0.0, 50, 4), answer(0.5, 0, 4)]]
    tracks = tracks_of(asked, predictions)
    for wrong, expected in ((math.inf, 0.0), (-math.inf, 1.0)):
        scores = torch.tensor([wrong, 0.5])
        got = visual_query_scores(*tracks._replace(scores=scores))["all"]
        assert got.success[0] == expected


@pytest.mark.parametrize(
    ("box", "reaches"),
    # The area of the first is -100, of the second 100, neither meets anything.
    [((10.0, 0.0, 0.0, 10.0), (1, 1, 1, 1)), ((10.0, 10.0, 0.0, 0.0), (1, 0, 0, 0))],
)
def test_areas_of_reversed_boxes_are_signed_in_the_references(box, reaches):
    good = [0.0, 0.0, 10.0, 10.0]
    asked = tensors([good] * 2, [0, 1], [0, 0])
    given = tensors([good, box], [0, 1], [0, 0])
    arguments = given, torch.ones(1), torch.zeros(1, dtype=torch.long), asked, 1
    for reference, expected in ((None, (1, 1, 0, 0)), ("ego4d", reaches)):
        got = visual_query_scores(*arguments, reference=reference)["all"]
        assert got.tube_ap == expected and got.temporal_ap == (1, 1, 1, 1)
        assert got.recovery == (0.5, 0.5, 0.5)


def test_sizes_have_the_limits_of_each_evaluator():
    """Edges in pixels; Ego4D sizes reversed boxes too, ViLCo's limits are ours."""
    targets = [asked_track(0, 2, edge) for edge in (31.0, 32.0, 95.0, 96.0, 192.0)]
    expected = {None: [2, 2, 1], "vilco": [2, 2, 1], "ego4d": [1, 2, 2]}
    for reference, sizes in expected.items():
        got = scores_of(targets, [[]] * 5, reference=reference)
        names = ("small", "medium", "large")
        assert [got[name].n_queries for name in names] == sizes
        reversed_box = [answer(0.5, 0, 2, size=-96.0)]
        tracks = tracks_of([asked_track(0, 2, -96.0)], [reversed_box])
        large = visual_query_scores(*tracks, reference=reference)["large"]
        assert large.n_queries == (reference == "ego4d")
