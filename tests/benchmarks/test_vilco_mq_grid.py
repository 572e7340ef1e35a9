"""Features resized to a fixed grid keep their clip's seconds."""

from pathlib import Path

import torch

from avalanche_vilco.benchmarks.vilco_mq.generator import vilco_mq
from avalanche_vilco.core.batch import collate_moments
from avalanche_vilco.ops.timeline import grid_to_seconds


def test_grid_resizes_every_clip_and_windows_keep_their_seconds(mq_root: Path) -> None:
    data = vilco_mq(mq_root, sources={"grid": 64}).datasets["test"]
    (clips, targets) = collate_moments([data[i] for i in range(4)])
    assert clips.features.shape[:2] == (4, 64)
    back = grid_to_seconds(
        targets.segments.double(), targets.features_per_sec[:, None, None]
    )
    known = targets.labels >= 0
    assert torch.allclose(back[known], targets.segments_sec[known], atol=1e-4)
    assert torch.all(targets.features_per_sec * targets.duration_sec > 60)
