import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from avalanche_vilco.ops.response_track import PeakRule, response_track, response_tracks

REFERENCE = PeakRule.reference()
CASES = (
    *("constant", "constant_low", "falling", "late_slightly_lower", "len_1", "len_2"),
    *("len_3", "len_5", "one_bump", "peak_near_end", "peak_near_start", "plateau"),
    *("random_0", "random_1", "random_10", "random_11", "random_2", "random_4"),
    *("random_5", "random_6", "random_8", "random_9", "rising_end", "single_spike"),
    *("three_frame_spike", "two_frame_spike"),
)


def load(shared_dir, name):
    return json.loads((shared_dir / f"oracles/vq_peaks/{name}.json").read_text())


def quiet(n_frames, **high):
    """Logits of -5, and of 4 from ``first`` to ``last``."""
    logits = torch.full((n_frames,), -5.0)
    for first, last in high.values():
        logits[first : last + 1] = 4.0
    return logits


@pytest.mark.parametrize("name", CASES)
def test_reference_rule_gives_the_frames_of_the_public_code(shared_dir, name):
    case = load(shared_dir, name)
    assert len(case["logits"]) == case["query_frame"]
    first, last, _ = response_track(torch.tensor(case["logits"]), rule=REFERENCE)
    assert list(range(first, last + 1)) == case["frames"]


def test_every_oracle_file_is_tested(shared_dir):
    files = {path.stem for path in (shared_dir / "oracles/vq_peaks").glob("*.json")}
    assert files == set(CASES)


def test_with_public_shares_the_default_differs_on_these_oracle_files_alone(shared_dir):
    """Flat scores and short clips reach both ends, spikes are found."""
    differing = {}
    rule = PeakRule(peak_share=0.8, extent_share=0.7)
    for name in CASES:
        case = load(shared_dir, name)
        first, last, _ = response_track(torch.tensor(case["logits"]), rule=rule)
        if [first, last] != [case["frames"][0], case["frames"][-1]]:
            differing[name] = (first, last)
    assert differing.pop("random_4") == (0, 48)
    assert differing == {
        "constant": (0, 59),
        "constant_low": (0, 59),
        "len_3": (1, 1),
        "len_5": (0, 4),
        "single_spike": (30, 30),
        "two_frame_spike": (30, 31),
    }


@pytest.mark.parametrize("length", [3, 4, 12])
@pytest.mark.parametrize("is_cut", [False, True])
def test_answer_at_an_end_of_the_search_is_found_whole(length, is_cut):
    first, last = (40 - length, 39) if is_cut else (0, length - 1)
    logits = quiet(40, answer=(first, last))
    logits[18:22] = -4.0
    assert response_track(logits)[:2] == (first, last)
    # To the reference the slightest rise in between is the only peak.
    assert response_track(logits, rule=REFERENCE)[:2] == (18, 21)


def test_frame_0_and_the_last_one_belong_to_an_answer_that_reaches_them():
    logits = torch.tensor([3.0, 3.5, 4.0, 4.0, 4.0, 3.5, 3.0])
    assert response_track(logits)[:2] == (0, 6)
    assert response_track(logits, rule=REFERENCE)[:2] == (1, 5)


@pytest.mark.parametrize("length", [1, 2])
def test_answer_too_short_for_the_median_is_found_where_nothing_else_is(length):
    logits = quiet(60, answer=(30, 29 + length))
    first, last, score = response_track(logits)
    assert (first, last) == (30, 29 + length)
    assert score == pytest.approx(1 / (1 + math.exp(-4)))
    assert response_track(logits, rule=REFERENCE)[:2] == (1, 59)


def test_spike_beside_a_longer_answer_is_smoothed_away():
    logits = quiet(60, answer=(10, 20), spike=(40, 40))
    assert response_track(logits)[:2] == (10, 20)
    never = PeakRule(spike_share=0.0)
    assert response_track(quiet(60, spike=(40, 40)), rule=never)[:2] == (0, 59)


@pytest.mark.parametrize("n_frames", [1, 2, 3, 4])
def test_clip_shorter_than_the_median_is_answered_by_its_best_frame(n_frames):
    for frame in range(n_frames):
        logits = quiet(n_frames, answer=(frame, frame))
        assert response_track(logits)[:2] == (frame, frame)


def test_level_scores_answer_with_all_frames_and_say_how_little_they_are_worth():
    first, last, score = response_track(torch.full((60,), -9.0))
    assert (first, last) == (0, 59)
    assert score == pytest.approx(1 / (1 + math.exp(9)))


@pytest.mark.parametrize("rule", [PeakRule(), REFERENCE])
def test_last_of_the_high_peaks_is_chosen_and_its_probability_is_the_score(rule):
    logits = quiet(90, early=(10, 20), late=(50, 60))
    logits[50:61] = 3.0
    first, last, score = response_track(logits, rule=rule)
    assert (first, last) == (50, 60)
    assert score == pytest.approx(1 / (1 + math.exp(-3)))
    logits[50:61] = -0.5  # 0.38 times as probable
    first, last, score = response_track(logits, rule=rule)
    assert (first, last) == (10, 20)
    assert score == pytest.approx(1 / (1 + math.exp(-4)))


def test_a_last_appearance_that_an_earlier_one_outbids_is_found_by_default():
    logits = quiet(90, early=(10, 20), late=(50, 60))
    logits[50:61] = 0.5  # 0.63 of the peak
    assert response_track(logits)[:2] == (50, 60)
    assert response_track(logits, rule=REFERENCE)[:2] == (10, 20)


def test_shares_decide_which_peak_and_how_far():
    logits = quiet(90, early=(10, 20), late=(50, 60))
    logits[50:61] = -0.5
    assert response_track(logits, rule=PeakRule(peak_share=0.3))[:2] == (50, 60)
    logits[21:26] = -0.3  # 0.43 of the peak
    assert response_track(logits)[:2] == (10, 20)
    assert response_track(logits, rule=PeakRule(extent_share=0.4))[:2] == (10, 25)
    assert response_track(logits, rule=PeakRule(peak_share=1.0))[:2] == (10, 20)


@pytest.mark.parametrize("hole", [math.nan, -math.inf, math.inf])
@pytest.mark.parametrize("rule", [PeakRule(), REFERENCE])
def test_frames_without_a_score_are_never_part_of_an_answer(rule, hole):
    logits = quiet(60, answer=(10, 40))
    logits[30:34] = hole
    first, last, _ = response_track(logits, rule=rule)
    assert not {*range(first, last + 1)} & {*range(30, 34)}
    assert 10 <= first <= last <= 40
    logits[:] = hole
    assert response_track(logits, rule=rule) == (0, -1, 0.0)


def test_no_frames_at_all_are_no_answer():
    assert response_track(torch.zeros(0)) == (0, -1, 0.0)
    tracks = response_tracks(torch.zeros(0, 5), torch.zeros(0, dtype=torch.long))
    assert [len(column) for column in tracks] == [0, 0, 0]


def test_probabilities_that_vanish_still_answer():
    first, last, score = response_track(torch.full((9,), -2000.0))
    assert 0 <= first <= last <= 8 and score == 0


rules = st.sampled_from(
    [PeakRule(), REFERENCE, PeakRule(median_frames=1), PeakRule(median_frames=7)]
)
series = st.lists(st.floats(-12, 12, width=32), min_size=1, max_size=50)


@settings(max_examples=25)
@given(rows=st.lists(series, min_size=1, max_size=6), rule=rules)
def test_queries_at_once_equal_one_by_one_whatever_lies_behind_them(rows, rule):
    logits = torch.full((len(rows), max(map(len, rows)) + 3), 11.0)
    for place, row in enumerate(rows):
        logits[place, : len(row)] = torch.tensor(row)
    n_frames = torch.tensor([len(row) for row in rows])
    together = torch.stack([*response_tracks(logits, n_frames, rule=rule)], dim=1)
    alone = [response_track(torch.tensor(row), rule=rule) for row in rows]
    torch.testing.assert_close(together, torch.tensor(alone, dtype=torch.float64))


@settings(max_examples=60)
@given(row=series, rule=rules)
def test_answer_holds_a_frame_lies_inside_and_keeps_to_its_peak(row, rule):
    first, last, score = response_track(torch.tensor(row), rule=rule)
    assert 0 <= first <= last < len(row)
    highest = torch.tensor(row).double().sigmoid().max()
    assert 0 <= score <= highest
    if rule.median_frames == 1:
        inside = torch.tensor(row[first : last + 1]).double().sigmoid()
        assert inside.min() >= rule.extent_share * score
        assert score > rule.peak_share * highest or score == highest


@settings(max_examples=60)
@given(data=st.data(), width=st.sampled_from([1, 3, 5, 7]))
def test_answer_longer_than_half_the_median_is_found_exactly_wherever_it_lies(
    data, width
):
    half = width // 2
    n_frames = data.draw(st.integers(width, 60))
    first = data.draw(st.integers(0, n_frames - half - 1))
    last = data.draw(st.integers(first + half, n_frames - 1))
    # The median does not see a gap at an end that is as short as half of it.
    first = 0 if first <= half else first
    last = n_frames - 1 if last >= n_frames - 1 - half else last
    logits = quiet(n_frames, answer=(first, last))
    found = response_track(logits, rule=PeakRule(median_frames=width))
    assert found[:2] == (first, last)


def test_long_series_are_split_into_pieces_without_a_trace(monkeypatch):
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(40, 60, generator=draw).cumsum(1)
    n_frames = torch.randint(1, 61, (40,), generator=draw)
    whole = response_tracks(logits, n_frames)
    monkeypatch.setattr("avalanche_vilco.ops.response_track._PIECE", 150)
    for a, b in zip(whole, response_tracks(logits, n_frames), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    "options",
    [
        {"median_frames": 4},
        {"median_frames": 0},
        {"edges": "nearest"},
        {"spike_share": -0.1},
        {"peak_share": 1.1},
        {"extent_share": math.nan},
    ],
)
def test_options_out_of_range_are_refused(options):
    (name,) = options
    with pytest.raises(ValueError, match=f"expected {name} .* but got"):
        PeakRule(**options)


def test_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match=r"expected logits of shape \(F,\) but got"):
        response_track(torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"expected logits \(Q, F\) and n_frames"):
        response_tracks(torch.zeros(2, 3), torch.zeros(3, dtype=torch.long))
