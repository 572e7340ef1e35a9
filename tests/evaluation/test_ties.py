"""No number depends on the order in which anything comes, whatever ties."""

import math
import struct
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from avalanche_vilco.evaluation.functional import (
    Tracks,
    detection_map,
    moment_recall,
    top1_tiou,
    visual_query_scores,
)
from avalanche_vilco.evaluation.functional.order import best_first, by_content
from avalanche_vilco.evaluation.metrics.detection import MomentDetectionMAP
from avalanche_vilco.evaluation.metrics.recall import MomentRecall
from avalanche_vilco.evaluation.metrics.response_track import ResponseTrackMetrics
from avalanche_vilco.evaluation.metrics.visual_query import VisualQueryMetrics

score = st.sampled_from([0.5, 1.0, 1.0, math.nan, -math.inf])
seconds = st.integers(0, 5)
predicted = st.tuples(seconds, st.integers(-1, 4), score, st.integers(0, 1))
# Within 1 ms of each other or not: of a chain it matters which counts.
annotated = st.tuples(seconds, st.integers(0, 3), st.integers(1, 4), st.integers(0, 1))
clip = st.tuples(st.lists(predicted, max_size=9), st.lists(annotated, max_size=5))
clips = st.lists(clip, min_size=1, max_size=4)
randoms = st.randoms(use_true_random=False)


def windows(rows):
    """Rows of (start, end, score, label) as a batch."""
    width = max(map(len, rows), default=0)
    rows = [[*row, *[(0.0, 0.0, -math.inf, -1)] * (width - len(row))] for row in rows]
    table = torch.tensor(rows, dtype=torch.float64).reshape(len(rows), width, 4)
    return SimpleNamespace(
        segments_sec=table[..., :2], scores=table[..., 2], labels=table[..., 3].long()
    )


def batch_of(drawn):
    given, asked = zip(*drawn, strict=True)
    return (
        windows([[(s, s + n, x, y) for s, n, x, y in row] for row in given]),
        windows([[(s + ms * 8e-4, s + n, 0, y) for s, ms, n, y in r] for r in asked]),
    )


def shuffled(drawn, random):
    parts = [tuple(random.sample(side, len(side)) for side in one) for one in drawn]
    return random.sample(parts, len(parts))


def values(metrics, batches):
    for metric in metrics:
        for batch in batches:
            metric.update(*batch)
    return [
        {name: str(value) for name, value in metric.compute().items()}
        for metric in metrics
    ]


@settings(max_examples=50)
@given(clips, randoms, st.integers(1, 4))
def test_windows_clips_and_batches_may_come_in_any_order(drawn, random, size):
    def measured(batches):
        recalls = [MomentRecall(k=(1, 2), budget=each) for each in ("per_gt", "fixed")]
        return values([*recalls, MomentDetectionMAP()], batches)

    mixed = shuffled(drawn, random)
    parts = [batch_of(mixed[at : at + size]) for at in range(0, len(mixed), size)]
    assert measured(parts) == measured([batch_of(drawn)])


@given(st.lists(predicted, min_size=1, max_size=9), randoms)
def test_the_best_window_of_a_query_is_the_same_in_any_order(row, random):
    one, other = (
        windows([[(s, s + n, x, y) for s, n, x, y in each]])
        for each in (row, random.sample(row, len(row)))
    )
    asked = torch.tensor([[1.0, 5.0]])
    assert top1_tiou(one.segments_sec, one.scores, asked) == top1_tiou(
        other.segments_sec, other.scores, asked
    )


@given(st.lists(st.tuples(score, seconds, seconds, st.booleans()), max_size=12))
def test_only_what_ties_is_sorted_again_where_that_is_faster(rows):
    """Off the CPU everything is sorted by everything, in fixed shapes."""
    table = torch.tensor([row[:3] for row in rows], dtype=torch.float64).reshape(-1, 3)
    table = torch.stack([table, table.flip(0)])
    scores, *content = table.unbind(2)
    fast = best_first(scores, content=content)
    scores = scores.nan_to_num(-math.inf, math.inf, -math.inf)
    assert torch.equal(fast, by_content(-scores, *content))


def test_equal_scores_enter_the_ranking_together_and_the_earlier_start_is_first():
    right, wrong = (2, 12, 0.5, 0), (50, 16, 0.5, 0)
    asked = (2, 0, 12, 0)
    for drawn, ap, recall in (
        ([([right, wrong], [asked])], 0.5, 1.0),
        ([([wrong, right], [asked])], 0.5, 1.0),
        ([([right], [asked]), ([wrong], [asked])], 0.25, 0.5),
        ([([wrong], [asked]), ([right], [asked])], 0.25, 0.5),
    ):
        given, target = batch_of(drawn)
        arguments = given.segments_sec, given.scores, given.labels
        arguments = *arguments, target.segments_sec, target.labels
        assert detection_map(*arguments, tiou=[0.5]).item() == ap
        assert moment_recall(*arguments, k=[1], tiou=[0.5]).item() == recall


def test_of_annotations_within_a_millisecond_the_earliest_counts():
    chain = [(0, ms, 10, 0) for ms in (0, 1, 2)]  # each 0.8 ms after the one before
    given, asked = batch_of([([(0, 10, 0.5, 0)], chain), ([], chain[::-1])])
    metric = MomentRecall(k=(1,), budget="fixed")
    metric.update(given, asked)
    assert metric.total == 2 and metric.compute()["Recall@1_tIoU0.5"] == 0.5


track = st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(4, 6), score)
queries = st.lists(
    st.tuples(track, st.lists(track, max_size=4)), min_size=1, max_size=4
)


def boxes_of(first, n, edge, _):
    """Squares, the last smaller: tracks of equal frames differ."""
    edges = [float(edge)] * (n - 1) + [float(edge - 3)]
    return [(first + at, (0.0, 0.0, edge, edge)) for at, edge in enumerate(edges)]


def tracks_of(drawn, random=None):
    rows = [
        (box, at, owner) for owner, t in enumerate(drawn) for at, box in boxes_of(*t)
    ]
    rows = random.sample(rows, len(rows)) if random else rows
    columns = zip(*rows, strict=True) if rows else ([], [], [])
    boxes, frames, owners = map(torch.tensor, map(list, columns))
    return Tracks(boxes.double().reshape(-1, 4), frames.long(), owners.long())


def query_batch(drawn, random=None):
    answers = [(q, track) for q, (_, row) in enumerate(drawn) for track in row]
    scores = torch.tensor([each[3] for _, each in answers], dtype=torch.float64)
    given = SimpleNamespace(
        tracks=tracks_of([track for _, track in answers], random),
        scores=scores,
        queries=torch.tensor([query for query, _ in answers], dtype=torch.long),
    )
    asked = tracks_of([asked for asked, _ in drawn], random)
    return given, SimpleNamespace(tracks=asked, n_queries=len(drawn))


@settings(max_examples=50)
@given(queries, randoms, st.integers(1, 4))
def test_tracks_boxes_and_queries_may_come_in_any_order(drawn, random, size):
    mixed = [(asked, random.sample(row, len(row))) for asked, row in drawn]
    mixed = random.sample(mixed, len(mixed))
    parts = [mixed[at : at + size] for at in range(0, len(mixed), size)]
    assert values(
        [VisualQueryMetrics()], [query_batch(each, random) for each in parts]
    ) == values([VisualQueryMetrics()], [query_batch(drawn)])


def wrapped(number):
    return (number + 2**63) % 2**64 - 2**63


def fingerprint(boxes):
    total = 0
    for frame, corners in boxes:
        mixed = frame
        for corner in corners:
            (bits,) = struct.unpack("<q", struct.pack("<d", corner))
            mixed = wrapped((mixed ^ bits) * 0x1E3779B97F4A7C15)
            mixed ^= mixed >> 29
        total = wrapped(total + mixed)
    return total


def volumes(asked, given):
    asked, given = dict(boxes_of(*asked)), dict(boxes_of(*given))
    shared = {at: min(asked[at][2], given[at][2]) ** 2 for at in {*asked} & {*given}}
    size, other = (sum(b[2] ** 2 for b in each.values()) for each in (asked, given))
    return (
        len(shared) / len({*asked} | {*given}),
        sum(shared.values()) / (size + other - sum(shared.values())),
    )


def slow_scores(drawn, level):
    """tAP at a level and success at 0.2, one track at a time."""
    ranked, n_success = [], 0
    for asked, row in drawn:
        row = [(*t[:3], -math.inf if math.isnan(t[3]) else t[3]) for t in row]
        row.sort(key=lambda t: (-t[3], t[0], t[0] + t[1], fingerprint(boxes_of(*t))))
        n_success += bool(row) and volumes(asked, row[0])[1] >= 0.2 - 1e-9
        reached = [volumes(asked, each)[0] >= level - 1e-9 for each in row]
        first = reached.index(True) if True in reached else None
        ranked += [(each[3], at == first) for at, each in enumerate(row)]
    found = sorted((one for one, is_hit in ranked if is_hit), reverse=True)
    precision = [
        sum(other >= one for other in found) / sum(other >= one for other, _ in ranked)
        for one in found
    ]
    ap = sum(max(precision[n:]) for n in range(len(found))) / len(drawn)
    return ap, n_success / len(drawn)


@given(queries)
def test_tracks_score_as_a_plain_loop_says(drawn):
    given, asked = query_batch(drawn)
    got = visual_query_scores(
        given.tracks, given.scores, given.queries, asked.tracks, asked.n_queries
    )["all"]
    ap, success = slow_scores(drawn, 0.5)
    assert got.temporal_ap[1] == pytest.approx(ap, abs=1e-12)
    assert got.success[2] == pytest.approx(success, abs=1e-12)


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 5), score, st.integers(4, 6)),
        min_size=1,
        max_size=20,
    ),
    randoms,
)
def test_frames_of_windows_may_come_in_any_order_and_repeatedly(drawn, random):
    """Also those asked for: windows may say different boxes of one frame."""

    def batch(rows):
        query, frame, logit, edge = torch.tensor(rows, dtype=torch.float64).unbind(1)
        corners = torch.zeros(len(rows), 4, dtype=torch.float64)
        corners[:, 2:] = edge[:, None]
        query, frame = query.long(), frame.long()
        given = SimpleNamespace(
            scores=logit[:, None],
            boxes=corners[:, None],
            frame_numbers=frame[:, None],
            query=query,
            query_frame=torch.full_like(query, 7),
        )
        return given, SimpleNamespace(
            query=query,
            # One frame only, so that no query asks for a track with gaps.
            track_boxes=corners[:, None],
            track_frames=torch.full_like(frame, 3)[:, None],
        )

    mixed = random.sample(drawn, len(drawn))
    # A window for each row: those of a query that follow each other ask once.
    parts = [batch([row]) for row in drawn]
    others = [batch([row]) for row in mixed]
    assert values([ResponseTrackMetrics()], parts) == values(
        [ResponseTrackMetrics()], others
    )
