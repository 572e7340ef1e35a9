"""Time and memory of a training step of the question localiser at the public sizes.

    python benchmarks/speed/nlq_step.py

Each line is a process of its own with one torch thread: forward, loss and backward of
`vilco_nlq_base` on random features. CPU time is the median of the steps after the first
(of the first with `--repeats 0`); memory is the process's peak, interpreter and
libraries among it, the optimizer's moments not. A cost linear in T doubles with T;
operations are those of matrix products, convolutions and attention, forward and
backward, as torch counts them for one clip: a count that no other process can disturb.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

from model_step import language_queries

LENGTHS = (640, 1280, 2560)
GIBIBYTE = 2**30


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=8, help="clips (default 8)")
    parser.add_argument("--repeats", type=int, default=2, help="steps timed")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one is not None:
        print(json.dumps(measure(options.one, options.batch, options.repeats)))
        return
    print(
        "| T | clips | forward, CPU s | step, CPU s | ratio | peak memory, GiB | "
        "GFLOP a clip | ratio |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    first = fewest = 0.0
    for length in options.lengths:
        found = in_own_process(length, options.batch, options.repeats)
        first = first or found["seconds"]
        fewest = fewest or found["gigaflop"]
        ratio = f"{found['seconds'] / first:.2f}x"
        print(
            f"| {length} | {options.batch} | {found['forward']:.1f} | "
            f"{found['seconds']:.1f} | {ratio} | {found['gibibytes']:.1f} | "
            f"{found['gigaflop']:.1f} | {found['gigaflop'] / fewest:.2f}x |",
            flush=True,
        )


def in_own_process(length: int, batch: int, repeats: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", str(length)]
    command += ["--batch", str(batch), "--repeats", str(repeats)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def measure(length: int, batch: int, repeats: int) -> dict[str, float]:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    from avalanche_vilco.models.losses import MomentLoss

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, clips, targets = language_queries(batch, length)
    criterion = MomentLoss()
    times: list[float] = []
    forward: list[float] = []
    for _ in range(1 + repeats):
        began = time.process_time()
        model.zero_grad()
        output = model(clips)
        forward.append(time.process_time() - began)
        criterion(output, targets).backward()
        times.append(time.process_time() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    # torch counts attention only where it is spelt out in matrix products.
    with FlopCounterMode(display=False) as counted, sdpa_kernel(SDPBackend.MATH):
        criterion(model(clips[:1]), targets[:1]).backward()
    return {
        "gigaflop": counted.get_total_flops() / 1e9,
        "forward": statistics.median(forward[1:] or forward),
        "seconds": statistics.median(times[1:] or times),
        "gibibytes": peak / GIBIBYTE,
    }


if __name__ == "__main__":
    main()
