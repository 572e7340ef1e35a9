"""Frames a second of the visual-query localiser at its public size.

``python benchmarks/speed/vq_model.py`` times training steps and evaluation of
``vilco_vq_base``, its backbone with drawn weights: once on pixels, once on the
backbone's embeddings as ``cache_backbone`` keeps them. Windows are drawn and lie on the
device before: reading videos and stores is not part of it. A training step is forward,
loss, backward and AdamW; evaluation is forward and decoding. On CUDA it runs under
bfloat16 autocast, on a CPU in float32. A row takes at most ``--seconds``, once its
first steps are done, which are not timed: 5 minutes are enough for all. With
``--device cpu --small`` it takes ``vilco_vq_tiny``, as a check. So far it has been run
so, on a CPU, and never on a GPU: none was at hand.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from avalanche_vilco import vilco_vq_base, vilco_vq_tiny
from avalanche_vilco.core.visual_batch import TrackWindowTargets, VisualQueryBatch
from avalanche_vilco.models.visual_losses import VisualQueryLoss
from avalanche_vilco.models.visual_query_localizer import VisualQueryLocalizer

N_FRAMES = 30
WARM_UP = 2
SIDES = {False: 448, True: 128}


def draw_windows(n: int, side: int, device: torch.device) -> VisualQueryBatch:
    draw = torch.Generator().manual_seed(0)
    pixels = torch.randint(
        0, 256, (n, 1 + N_FRAMES, 3, side, side), dtype=torch.uint8, generator=draw
    )
    return VisualQueryBatch(
        frames=pixels[:, 1:],
        valid=torch.ones(n, N_FRAMES, dtype=torch.bool),
        crop=pixels[:, 0],
    ).to(device)


def draw_targets(n: int, device: torch.device) -> TrackWindowTargets:
    """An answer of ten frames that moves a little."""
    draw = torch.Generator().manual_seed(1)
    valid = torch.ones(n, N_FRAMES, dtype=torch.bool)
    numbers = torch.arange(N_FRAMES).repeat(n, 1)
    present = (numbers >= 8) & (numbers < 18)
    corner = torch.rand(n, 1, 2, generator=draw) * 0.5 + numbers[..., None] * 0.005
    boxes = torch.cat([corner, corner + 0.2], dim=2) * present[..., None]
    return TrackWindowTargets(
        valid=valid,
        searched=valid,
        boxes=boxes,
        present=present,
        frame_numbers=numbers,
        square=torch.tensor([[1920.0, 0.0, 420.0]], dtype=torch.float64).repeat(n, 1),
        track_boxes=boxes.double() * 1920,
        track_frames=numbers.masked_fill(~present, -1),
        query=torch.arange(n),
        query_frame=torch.full((n,), N_FRAMES),
        sample=torch.arange(n),
    ).to(device)


@torch.no_grad()
def embedded(model: VisualQueryLocalizer, batch: VisualQueryBatch) -> VisualQueryBatch:
    """The same windows as embeddings, encoded one by one."""
    frames = torch.stack([model.backbone(window).half() for window in batch.frames])
    return VisualQueryBatch(
        frames=frames, valid=batch.valid, crop=model.backbone(batch.crop).half()
    )


def training(
    model: VisualQueryLocalizer, targets: TrackWindowTargets, precision: torch.autocast
) -> Callable[[VisualQueryBatch], Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    criterion = VisualQueryLoss()

    def step(batch: VisualQueryBatch) -> Tensor:
        model.train()
        optimizer.zero_grad(set_to_none=True)
        with precision:
            loss = criterion(model(batch), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def evaluation(
    model: VisualQueryLocalizer, targets: TrackWindowTargets, precision: torch.autocast
) -> Callable[[VisualQueryBatch], Tensor]:
    @torch.inference_mode()
    def step(batch: VisualQueryBatch) -> Tensor:
        model.eval()
        with precision:
            return model.decode(model(batch), targets).boxes

    return step


def wall_seconds(call: Callable[[], object], device: torch.device) -> float:
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def step_seconds(
    step: Callable[[], Tensor], device: torch.device, limit_sec: float, steps: int
) -> float:
    """Mean time of a step, of as many as the limit allows, at most ``steps``."""
    one = min(wall_seconds(step, device) for _ in range(WARM_UP))
    n = max(1, min(steps, int(limit_sec / one)))

    def all_steps() -> None:
        for _ in range(n):
            result = step()
        if not result.isfinite().all():
            raise FloatingPointError("the model gave numbers that are not finite")

    return wall_seconds(all_steps, device) / n


def row(
    name: str,
    step: Callable[[], Tensor],
    device: torch.device,
    options: argparse.Namespace,
) -> str:
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    seconds = step_seconds(step, device, options.seconds, options.steps)
    rate = options.windows * N_FRAMES / seconds
    peak = f"{torch.cuda.max_memory_allocated(device) / 2**30:.1f}" if on_gpu else "-"
    return f"| {name} | {rate:.0f} | {seconds * 1e3:.0f} | {peak} |"


def main() -> None:
    """Print the four rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="take vilco_vq_tiny")
    parser.add_argument("--windows", type=int, default=4, help="windows of a batch")
    parser.add_argument("--steps", type=int, default=20, help="timed steps, at most")
    parser.add_argument("--seconds", type=float, default=40, help="limit of a row")
    options = parser.parse_args()
    device = torch.device(options.device)
    torch.manual_seed(0)
    make = vilco_vq_tiny if options.small else lambda: vilco_vq_base(weights="random")
    model = make().to(device)
    precision = torch.autocast(
        device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"
    )
    pixels = draw_windows(options.windows, SIDES[options.small], device)
    targets = draw_targets(options.windows, device)
    with precision:
        embeddings = embedded(model, pixels)
    print(f"{options.windows} windows of {N_FRAMES} frames, {device}")
    print("| | frames a second | ms a step | GiB |")
    print("| --- | --- | --- | --- |")
    for name, make_step in {"training": training, "evaluation": evaluation}.items():
        step = make_step(model, targets, precision)
        for source, batch in {"pixels": pixels, "embeddings": embeddings}.items():
            call = partial(step, batch)
            print(row(f"{name}, {source}", call, device, options), flush=True)


if __name__ == "__main__":
    main()
