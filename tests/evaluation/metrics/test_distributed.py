import os
import subprocess
import sys
from pathlib import Path

# Avalanche refuses to be imported in a second process of a running group, so the
# imports come first.
SCRIPT = """
from datetime import timedelta
from types import SimpleNamespace

import torch
import torch.distributed as dist

from avalanche_vilco.evaluation.functional import Tracks
from avalanche_vilco.evaluation.metrics.continual import TaskMatrixMetric
from avalanche_vilco.evaluation.metrics.detection import MomentDetectionMAP
from avalanche_vilco.evaluation.metrics.emission import ExperienceValues, StreamValues
from avalanche_vilco.evaluation.metrics.recall import MomentRecall
from avalanche_vilco.evaluation.metrics.visual_query import VisualQueryMetrics
from avalanche_vilco.evaluation.metrics.response_track import ResponseTrackMetrics

torch.set_num_threads(1)
draw = torch.Generator().manual_seed(0)
N_CLIPS = 7


def moments(n):
    starts = torch.rand(N_CLIPS, n, generator=draw, dtype=torch.float64) * 30
    lengths = torch.rand(N_CLIPS, n, generator=draw, dtype=torch.float64) * 30
    return {
        "segments_sec": torch.stack([starts, starts + lengths], dim=2),
        "labels": torch.randint(-1, 3, (N_CLIPS, n), generator=draw),
        "scores": torch.rand(N_CLIPS, n, generator=draw),
    }


def clips(batch, chosen):
    return SimpleNamespace(**{name: value[chosen] for name, value in batch.items()})


def tracks(query):
    boxes = torch.tensor([[0.0, 0.0, 30.0, 30.0]]).repeat(5, 1) + query
    asked = Tracks(boxes, torch.arange(5), torch.zeros(5, dtype=torch.long))
    given = asked._replace(frames=asked.frames + query)
    score = torch.tensor([0.1 * query])
    predictions = {"tracks": given, "scores": score, "queries": torch.tensor([0])}
    return SimpleNamespace(**predictions), SimpleNamespace(tracks=asked, n_queries=1)


def window(number):
    # Two windows of a query, or three, follow each other.
    query, frames = number // 3, torch.arange(5) + 5 * (number % 3)
    boxes = torch.tensor([[0.0, 0.0, 30.0, 30.0]], dtype=torch.float64).repeat(5, 1)
    predictions = {
        "scores": 3.0 - (frames - 5 - query).abs(),
        "boxes": boxes + query,
        "frame_numbers": frames,
        "query": torch.tensor(query),
        "query_frame": torch.tensor(14),
    }
    asked = {"track_boxes": boxes, "track_frames": torch.arange(4, 9)}
    asked["query"] = predictions["query"]
    return [
        SimpleNamespace(**{name: value[None] for name, value in part.items()})
        for part in (predictions, asked)
    ]


def batch(kind, clip):
    if kind is ResponseTrackMetrics:
        return window(clip)
    if kind is VisualQueryMetrics:
        return tracks(clip)
    one = slice(clip, clip + 1)
    return clips(predictions, one), clips(targets, one)


def equal(got, expected):
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        assert got[name] == value or value != value, (name, got[name], value)


class Stream(list):
    name = "test"


class Decoder:
    def decode(self, output, targets):
        return output


def evaluated(plugin, batches):
    # What a plugin emits in an evaluation of one experience after training it.
    stream = Stream()
    stream.append(
        SimpleNamespace(current_experience=0, origin_stream=stream, task_labels=[0])
    )
    strategy = SimpleNamespace(
        model=Decoder(),
        experience=stream[0],
        device=torch.device("cpu"),
        clock=SimpleNamespace(train_iterations=0),
    )
    emitted = {}

    def call(callback):
        for value in getattr(plugin, callback)(strategy) or []:
            emitted[value.name] = value.value

    call("before_training_exp")
    call("before_eval")
    call("before_eval_exp")
    for strategy.mb_output, strategy.mb_y in batches:
        call("after_eval_iteration")
    call("after_eval_exp")
    call("after_eval")
    return emitted


predictions, targets = moments(30), moments(6)
KINDS = MomentDetectionMAP, MomentRecall, VisualQueryMetrics, ResponseTrackMetrics
PLUGINS = ExperienceValues, StreamValues, lambda state, _: TaskMatrixMetric(state)
whole = range(N_CLIPS)

# One process first: the plugins notice when there are several.
alone = {kind: kind() for kind in KINDS}
for kind, metric in alone.items():
    for clip in whole:
        metric.update(*batch(kind, clip))
values = {kind: metric.compute() for kind, metric in alone.items()}
sizes = alone[VisualQueryMetrics].by_size()
assert 0 < values[ResponseTrackMetrics]["stAP"] < 1
emitted = [
    [evaluated(make(kind(), ""), [batch(kind, c) for c in whole]) for make in PLUGINS]
    for kind in KINDS
]

dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank = dist.get_rank()
SPLITS = (
    range(rank, N_CLIPS, 2),  # an odd number of clips
    whole if rank == 0 else range(0),  # none in the second process
    whole if rank == 1 else range(0),
)
for mine in SPLITS:
    for kind in KINDS:
        metric = kind()
        for clip in mine:
            metric.update(*batch(kind, clip))
        equal(metric.compute(), values[kind])
        metric._computed = None
        equal(metric.compute(), values[kind])  # the states are as before
        if kind is VisualQueryMetrics:
            assert str(metric.by_size()) == str(sizes)
    for kind, of_kind in zip(KINDS, emitted):
        for make, expected in zip(PLUGINS, of_kind):
            equal(evaluated(make(kind(), ""), [batch(kind, c) for c in mine]), expected)
dist.destroy_process_group()
print("equal")
"""


def test_any_share_of_the_clips_between_two_processes_equals_one_process(tmp_path):
    """Shares are odd, or everything in one of them and nothing in the other."""
    script = tmp_path / "compare.py"
    script.write_text(SCRIPT)
    root = Path(__file__).resolve().parents[3]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *launcher, str(script)],
        env={**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("equal") == 2
