"""The public size fits a laptop: one window of 30 frames of 448 pixels."""

import json
import os
import subprocess
import sys

import pytest

MAX_GIB = 12.0

STEP = """
import json, resource, sys, time
import torch
from avalanche_vilco.core.visual_batch import TrackWindowTargets, VisualQueryBatch
from avalanche_vilco import vilco_vq_base
from avalanche_vilco.models.visual_losses import VisualQueryLoss

def gib():
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30

torch.manual_seed(0)
start = time.perf_counter()
model = vilco_vq_base(weights="random").train()
shape = (1, 30, 3, 448, 448)
there = torch.ones(1, 30, dtype=torch.bool)
present = there & (torch.arange(30) >= 8) & (torch.arange(30) < 20)
batch = VisualQueryBatch(
    frames=torch.randint(0, 256, shape, dtype=torch.uint8),
    valid=there,
    crop=torch.randint(0, 256, (1, 3, 448, 448), dtype=torch.uint8),
)
targets = TrackWindowTargets(
    valid=there,
    searched=there,
    boxes=torch.tensor([0.3, 0.4, 0.5, 0.7]) * present[..., None],
    present=present,
    frame_numbers=torch.arange(30)[None],
    square=torch.tensor([[1920.0, 0.0, 420.0]], dtype=torch.float64),
    track_boxes=torch.zeros(1, 0, 4, dtype=torch.float64),
    track_frames=torch.zeros(1, 0, dtype=torch.long),
    query=torch.zeros(1, dtype=torch.long),
    query_frame=torch.full((1,), 30),
    sample=torch.zeros(1, dtype=torch.long),
)
seconds = {"build": time.perf_counter() - start}

def timed(name, call):
    start = time.perf_counter()
    result = call()
    seconds[name] = time.perf_counter() - start
    return result

output = timed("forward", lambda: model(batch))
loss = VisualQueryLoss()(output, targets)
timed("backward", loss.backward)
print(json.dumps({
    "shape": list(output.shape),
    "loss": loss.item(),
    "dead": [n for n, p in model.named_parameters() if not p.grad.norm() > 0],
    "finite": all(bool(p.grad.isfinite().all()) for p in model.parameters()),
    "gib": gib(),
    "seconds": seconds,
}))
"""


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_training_step_of_the_public_size_fits_in_memory() -> None:
    """In a process of its own, whose peak is not that of other tests."""
    done = subprocess.run(
        [sys.executable, "-c", STEP],
        capture_output=True,
        text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    print(found)
    assert found["gib"] < MAX_GIB
    assert found["shape"] == [1, 5, 30 * 16 * 16 * 12]
    assert found["dead"] == [] and found["finite"] and found["loss"] > 0
