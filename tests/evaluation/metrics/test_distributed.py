import os
import subprocess
import sys
from pathlib import Path

# Avalanche refuses to be imported in a second process of a running group, so the
# imports come first.
SCRIPT = """
from types import SimpleNamespace

import torch
import torch.distributed as dist

from avalanche_vilco.evaluation.functional import Tracks
from avalanche_vilco.evaluation.metrics import (
    MomentDetectionMAP, MomentRecall, VisualQueryMetrics,
)

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


predictions, targets = moments(30), moments(6)
dist.init_process_group("gloo")
mine = range(dist.get_rank(), N_CLIPS, 2)
for kind in (MomentDetectionMAP, MomentRecall, VisualQueryMetrics):
    together, alone = kind(), kind(sync_on_compute=False)
    for metric, part in ((together, mine), (alone, range(N_CLIPS))):
        for clip in part:
            if kind is VisualQueryMetrics:
                metric.update(*tracks(clip))
            else:
                one = slice(clip, clip + 1)
                metric.update(clips(predictions, one), clips(targets, one))
    expected, got = alone.compute(), together.compute()
    for name, value in expected.items():
        assert got[name] == value or value != value, (name, got[name], value)
dist.destroy_process_group()
print("equal")
"""


def test_two_processes_with_an_odd_number_of_clips_equal_one(tmp_path):
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
