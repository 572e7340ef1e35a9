"""Time and memory of a training step of the localisers at the public sizes.

    python benchmarks/speed/model_step.py
    python benchmarks/speed/model_step.py --cases mq-110 --against ../other_checkout
    python benchmarks/speed/model_step.py --precision bf16

Each figure comes from a process of its own with one torch thread: forward, loss,
backward and AdamW on random features. CPU time is the median of the steps after the
first; memory is the process's peak, interpreter and libraries among it. Operations are
those of matrix products, convolutions and attention of one clip, as torch counts those
that are done. ``scaled`` is a step in units of a fixed matrix product, timed in the
same process, so that figures of two machines compare. With ``--against`` each case runs
in another checkout too, in turn, and the ratio of the CPU times is printed; both run
with the optimizer of this one.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

GIBIBYTE = 2**30
CASES = ("mq-22", "mq-110", "nlq-8", "nlq-2")
TOKENS = {6: 7, 7: 6, 8: 13, 9: 11, 10: 13, 11: 19, 12: 13, 13: 7, 14: 6, 15: 3, 16: 4}
TOKENS |= {17: 1, 18: 3, 20: 1, 22: 1, 23: 1, 24: 1}
"""Tokens of "when did i ...?" with the name of each of Ego4D's 110 categories, how
often."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--repeats", type=int, default=3, help="steps timed")
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--precision", choices=("float32", "bf16"), default="float32")
    parser.add_argument("--one", choices=CASES, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one is not None:
        print(json.dumps(measure(options.one, options.repeats, options.precision)))
        return
    columns = "case", "step, CPU s", "forward, s", "peak, GiB", "GFLOP a clip", "scaled"
    more = ("the other, s", "ratio") if options.against else ()
    print("|", " | ".join(columns + more), "|")
    print("|" + " --- |" * len(columns + more))
    here = Path(__file__).resolve().parents[2]
    for case in options.cases:
        found = in_own_process(case, options, here)
        cells = [f"{found[key]:.2f}" for key in ("step", "forward", "gibibytes")]
        cells += [f"{found['gigaflop']:.0f}", f"{found['scaled']:.1f}"]
        if options.against:
            other = in_own_process(case, options, options.against)
            cells += [f"{other['step']:.2f}", f"{found['step'] / other['step']:.2f}"]
        print(f"| {case} | " + " | ".join(cells) + " |", flush=True)


def in_own_process(
    case: str, options: argparse.Namespace, checkout: Path
) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", case]
    command += ["--repeats", str(options.repeats), "--precision", options.precision]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env=environment
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(case: str, repeats: int, precision: str) -> dict[str, float]:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    from avalanche_vilco.models.losses import MomentLoss

    torch.set_num_threads(1)
    torch.manual_seed(0)
    task, size = case.split("-")
    make = moment_queries if task == "mq" else language_queries
    model, clips, targets = make(int(size))
    model.precision = precision
    criterion = MomentLoss()
    # As a run makes it.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    forward, step, product = [], [], []
    for _ in range(1 + repeats):
        product.append(seconds_of(matrix_product))
        began = time.process_time()
        optimizer.zero_grad()
        output = model(clips)
        forward.append(time.process_time() - began)
        criterion(output, targets).backward()
        optimizer.step()
        step.append(time.process_time() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    # torch counts attention only where it is spelt out in matrix products.
    with FlopCounterMode(display=False) as counted, sdpa_kernel(SDPBackend.MATH):
        criterion(model(clips[:1]), targets[:1]).backward()
    return {
        "gigaflop": counted.get_total_flops() / 1e9,
        "forward": statistics.median(forward[1:]),
        "step": statistics.median(step[1:]),
        "scaled": statistics.median(step[1:]) / statistics.median(product),
        "gibibytes": peak / GIBIBYTE,
    }


def matrix_product() -> None:
    """The yardstick: 34 GFLOP."""
    import torch

    a = torch.ones(2048, 2048)
    for _ in range(2):
        a @ a


def seconds_of(function: Callable[[], None]) -> float:
    began = time.process_time()
    function()
    return time.process_time() - began


def moment_queries(n_categories: int) -> tuple[Any, Any, Any]:
    """Two clips of 1,024 steps and the texts of that many categories."""
    import torch

    from avalanche_vilco import vilco_mq_base
    from avalanche_vilco.core.batch import ClipBatch

    lengths = [length for length, often in TOKENS.items() for _ in range(often)]
    # Evenly spread over the 110, so that few categories differ in length as all do.
    chosen = torch.linspace(0, len(lengths) - 1, n_categories).long().tolist()

    class Query:
        def __init__(self, class_index: int, length: int) -> None:
            self.class_index, self.tokens = class_index, torch.randn(length, 768)

    model = vilco_mq_base().train()
    model.learn_queries([Query(k, lengths[i]) for k, i in enumerate(chosen)])
    valid = torch.ones(2, 1024, dtype=torch.bool)
    clips = ClipBatch(features=torch.randn(2, 1024, 4096), valid=valid)
    return model, clips, targets_of(valid, n_categories, 1.875)


def language_queries(n_clips: int, n_steps: int = 2560) -> tuple[Any, Any, Any]:
    """Clips, each with a question of 12 words."""
    import torch

    from avalanche_vilco import vilco_nlq_base
    from avalanche_vilco.core.batch import QueryClipBatch

    model = vilco_nlq_base(feature_dim=256, text_dim=512).train()
    valid = torch.ones(n_clips, n_steps, dtype=torch.bool)
    clips = QueryClipBatch(
        features=torch.randn(n_clips, n_steps, 256),
        valid=valid,
        tokens=torch.randn(n_clips, 12, 512),
        valid_tokens=torch.ones(n_clips, 12, dtype=torch.bool),
    )
    return model, clips, targets_of(valid, 1, 30 / 16.043)


def targets_of(valid: Any, n_queries: int, features_per_sec: float) -> Any:
    import torch

    from avalanche_vilco.core.batch import MomentTargets

    n_clips, length = valid.shape
    start = torch.linspace(0, length - 40, n_clips)
    windows = torch.stack([start, start + torch.arange(1, n_clips + 1) * 4], dim=1)
    rate = torch.full((n_clips,), features_per_sec, dtype=torch.float64)
    return MomentTargets(
        valid=valid,
        segments=windows[:, None],
        segments_sec=windows[:, None].double() / rate[:, None, None],
        labels=torch.zeros(n_clips, 1, dtype=torch.long),
        asked=torch.ones(n_clips, n_queries, dtype=torch.bool),
        duration_sec=length / rate,
        features_per_sec=rate,
        sample=torch.arange(n_clips),
    )


if __name__ == "__main__":
    main()
