import random
from types import SimpleNamespace

import pytest
import torch

from avalanche_vilco.evaluation.functional import Tracks, visual_query_scores
from avalanche_vilco.evaluation.functional.response_track import (
    FrameRows,
    frame_rows,
    query_answers,
)
from avalanche_vilco.evaluation.metrics.response_track import (
    ResponseTrackMetrics,
    response_track_metrics,
)
from avalanche_vilco.ops.response_track import PeakRule, response_track

WINDOW = 8
PREDICTED = ("scores", "boxes", "frame_numbers", "query", "query_frame")
ASKED = ("query", "track_boxes", "track_frames")


def queries(n, seed=0):
    """Windows by query; about half of the queries are answered where they should be."""
    draw = torch.Generator().manual_seed(seed)

    def number(low, high):
        return int(torch.randint(low, high, (), generator=draw))

    return [windows(i, draw, number) for i in range(n)]


def windows(query, draw, number):
    n_frames, first, length = number(20, 45), number(0, 12), number(3, 8)
    logits = torch.randn(n_frames, generator=draw) - 3
    boxes = torch.rand(n_frames, 4, generator=draw, dtype=torch.float64) * 30
    boxes[:, 2:] += 60
    track = boxes[first : first + length] + number(0, 30)
    found = first if query % 2 else number(0, 12)
    logits[found : found + length] = 3 + torch.rand(length, generator=draw)
    starts = range(0, n_frames, WINDOW)
    parts = []
    for start in starts:
        frames = torch.arange(start, start + WINDOW)
        # What lies behind the query frame was seen, too, and looks very right.
        scores = torch.cat([logits, torch.full((WINDOW,), 9.0)])[frames]
        padded = torch.cat([boxes, torch.zeros(WINDOW, 4, dtype=torch.float64)])
        parts.append(
            SimpleNamespace(
                scores=scores,
                boxes=padded[frames],
                frame_numbers=frames,
                query=torch.tensor(query),
                query_frame=torch.tensor(n_frames),
                track_boxes=torch.nn.functional.pad(track, (0, 0, 0, 8 - length)),
                track_frames=torch.nn.functional.pad(
                    torch.arange(first, first + length), (0, 8 - length), value=-1
                ),
            )
        )
    return parts


def batch(parts):
    def stack(names):
        columns = {n: torch.stack([getattr(p, n) for p in parts]) for n in names}
        return SimpleNamespace(**columns)

    return stack(PREDICTED), stack(ASKED)


def scored(parts, size, **options):
    metric = ResponseTrackMetrics(**options)
    for start in range(0, len(parts), size):
        metric.update(*batch(parts[start : start + size]))
    return metric.compute()


def flat(found):
    return [part for parts in found for part in parts]


@pytest.fixture(scope="module")
def asked():
    return queries(14)


@pytest.mark.parametrize("rule", [None, PeakRule.reference()])
@pytest.mark.parametrize("reference", [None, "ego4d"])
def test_windows_give_the_numbers_of_the_tracks_they_make(asked, rule, reference):
    answers, targets = [], []
    for parts in asked:
        n_frames = int(parts[0].query_frame)
        logits = torch.cat([part.scores for part in parts])[:n_frames]
        boxes = torch.cat([part.boxes for part in parts])
        first, last, score = response_track(logits, rule=rule)
        answers.append((boxes[first : last + 1], first, score))
        n_boxes = int((parts[0].track_frames >= 0).sum())
        targets.append((parts[0].track_boxes[:n_boxes], int(parts[0].track_frames[0])))

    def tracks(items):
        frames = [torch.arange(first, first + len(b)) for b, first, *_ in items]
        owners = [torch.full((len(b),), i) for i, (b, *_) in enumerate(items)]
        return Tracks(*map(torch.cat, ([b for b, *_ in items], frames, owners)))

    expected = visual_query_scores(
        tracks(answers),
        torch.tensor([score for *_, score in answers], dtype=torch.float64),
        torch.arange(len(asked)),
        tracks(targets),
        len(asked),
        reference=reference,
    )["all"].summary()
    found = scored(flat(asked), 5, rule=rule, reference=reference)
    assert found == pytest.approx(expected)
    assert list(found) == ResponseTrackMetrics().names
    assert 0 < found["stAP25"] < found["success"] < 1


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("seed", [0, 1])
def test_batches_may_hold_windows_of_any_query_in_any_order(asked, size, seed):
    parts = flat(asked)
    expected = scored(parts, len(parts))
    random.Random(seed).shuffle(parts)
    assert scored(parts, size) == pytest.approx(expected)


def test_repeated_windows_count_once(asked):
    parts = flat(asked)
    assert scored(parts + parts[::2] + parts[:3], 4) == scored(parts, 4)


def test_of_a_frame_seen_twice_the_better_box_counts(asked):
    parts = flat(asked)
    worse = [SimpleNamespace(**vars(part)) for part in parts]
    for part in worse:
        part.scores, part.boxes = part.scores - 1, part.boxes * 0
    for order in (parts + worse, worse + parts):
        assert scored(order, 4) == scored(parts, 4)


def test_frames_that_were_not_seen_are_not_answered(asked):
    """The query still counts, with what was seen of it."""
    first = [parts[:1] for parts in asked]
    found = scored(flat(first), 4)
    assert 0 < found["success"] < scored(flat(asked), 4)["success"]
    rows = frame_rows(batch(flat(first))[0])
    answers = query_answers(rows)
    assert len(answers.queries) == len(asked)
    assert int(answers.tracks.frames.max()) < WINDOW


def test_what_is_not_searched_does_not_count(asked):
    cut = [SimpleNamespace(**vars(part)) for part in flat(asked)]
    for part in cut:
        hidden = part.frame_numbers >= part.query_frame
        part.scores = part.scores.masked_fill(hidden, -torch.inf)
        part.frame_numbers = part.frame_numbers.masked_fill(hidden, -1)
    assert scored(cut, 4) == scored(flat(asked), 4)


def test_query_without_a_finite_score_is_a_miss_with_score_0(asked):
    parts = [SimpleNamespace(**vars(part)) for part in flat(asked)]
    for part in parts:
        if part.query == 1:
            part.scores = part.scores * torch.nan
    answers = query_answers(frame_rows(batch(parts)[0]))
    assert answers.scores[1] == 0 and not (answers.tracks.owners == 1).any()
    lost = scored(flat(asked), 4)["success"] - scored(parts, 4)["success"]
    assert lost == pytest.approx(1 / len(asked))


def test_confidence_ranks_the_tracks(asked):
    """Equal scores would make average precision a matter of order."""
    answers = query_answers(frame_rows(batch(flat(asked))[0]))
    assert len(answers.scores.unique()) == len(asked)
    assert ((answers.scores > 0) & (answers.scores < 1)).all()


def test_empty_state_has_no_numbers():
    metric = ResponseTrackMetrics()
    predictions, targets = batch(flat(queries(1)))
    nothing = [
        SimpleNamespace(**{name: value[:0] for name, value in vars(part).items()})
        for part in (predictions, targets)
    ]
    metric.update(*nothing)
    assert all(value != value for value in metric.compute().values())
    empty = FrameRows(*(column[:0] for column in frame_rows(predictions)))
    assert len(query_answers(empty).queries) == 0


def test_query_of_which_no_track_is_known_is_refused(asked):
    predictions, targets = batch(asked[0])
    targets.track_frames = torch.full_like(targets.track_frames, -1)
    metric = ResponseTrackMetrics()
    metric.update(predictions, targets)
    with pytest.raises(ValueError, match="or for unknown queries"):
        metric.compute()


def test_states_keep_searched_frames_and_a_track_for_each_query(asked):
    parts = flat(asked)
    metric = ResponseTrackMetrics()
    metric.update(*batch(parts))
    assert len(metric.rows("logits")) == sum(int(p[0].query_frame) for p in asked)
    n_boxes = sum(int((p[0].track_frames >= 0).sum()) for p in asked)
    assert len(metric.rows("asked_boxes")) == n_boxes
    names = ("queries", "query_frames", "frames", "logits", "boxes")
    size = sum(metric.rows(name)[0].nbytes for name in names)
    assert size == 60
    assert "60 bytes" in (ResponseTrackMetrics.__doc__ or "")


def test_unknown_reference_is_refused():
    with pytest.raises(ValueError, match="expected reference"):
        ResponseTrackMetrics(reference="other")


def test_plugins_emit_floats_per_experience_and_stream(asked, strategy_of, evaluate):
    strategy, stream = strategy_of(1)
    parts = flat(asked)
    batches = [batch(parts[start : start + 9]) for start in range(0, len(parts), 9)]
    emitted = evaluate(strategy, response_track_metrics(), [(stream[0], batches)])
    expected = scored(parts, 9)
    assert len(emitted) == 2 * len(expected)
    for name, value in expected.items():
        key = f"{name}_Exp/eval_phase/test_stream/Task000/Exp000"
        assert emitted[key] == emitted[f"{name}_Stream/eval_phase/test_stream"] == value
