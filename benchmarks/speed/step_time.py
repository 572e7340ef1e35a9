"""Whether a method's training step grows with the experiences behind it.

    python benchmarks/speed/step_time.py

Thirteen experiences of two or more queries, on generated clips, one thread. Printed is
the median CPU time of a training step in the second and in the last experience, and
their ratio. (In the first there is nothing to remember yet.) A step is everything
between two batches, the method's own work included.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

GROUP_SIZES = (2,) * 9 + (3,) * 4
STEPS = 12
"""Steps of each experience that are timed, after two that are not."""
SMALL = {"mem_size": 40, "patterns_per_exp": 4, "sample_size": 4}
OWN = {"bic": {"mem_size": 52, "val_share": 0.25}}
"""BiC needs a place for held-out samples of each experience, and samples beside."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--strategies", nargs="+", metavar="NAME")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    import torch

    from avalanche_vilco.training.strategies import STRATEGIES

    torch.set_num_threads(1)
    names = options.strategies or [n for n, r in STRATEGIES.items() if not r.is_joint]
    print("| strategy | 2nd experience, ms | 13th, ms | ratio |")
    print("| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        root = data(Path(folder))
        for name in names:
            first, last = measure(name, root, {})
            print(row(name, first, last), flush=True)
            if name == "ewc":
                first, last = measure(
                    name, root, {"mode": "online", "decay_factor": 0.5}
                )
                print(row("ewc, online", first, last), flush=True)


def row(name: str, first: float, last: float) -> str:
    return f"| {name} | {first:.1f} | {last:.1f} | {last / first:.2f} |"


def data(folder: Path) -> Path:
    from avalanche_vilco.benchmarks.vilco_mq.embedded import MiniMQConfig

    return MiniMQConfig(
        n_train=225,
        n_val=26,
        n_test=0,
        n_groups=5,
        group_size=6,
        min_train_clips=2,
        min_val_clips=1,
        clip_sec=(100.0, 100.0),
        full_length_share=0.0,
    ).generate(folder)


def measure(name: str, root: Path, changes: dict[str, Any]) -> tuple[float, float]:
    """Milliseconds of a step in the second and in the last experience."""
    import torch
    from avalanche.training.determinism.rng_manager import RNGManager

    from avalanche_vilco import MomentLoss, vilco_mq, vilco_mq_tiny
    from avalanche_vilco.training.strategies import STRATEGIES

    RNGManager.set_random_seeds(0)
    benchmark = vilco_mq(
        root, per_exp_classes=GROUP_SIZES, sources={"narrations": True}
    )
    recipe = STRATEGIES[name]
    small = {key: value for key, value in SMALL.items() if key in recipe.options}
    model = vilco_mq_tiny(
        feature_dim=benchmark.info["feature_dim"], text_dim=benchmark.text_dim
    )
    clock = step_clock()
    strategy = recipe.build(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True),
        criterion=MomentLoss(),
        train_mb_size=2,
        train_epochs=3,
        plugins=[clock],
        **{**recipe.options, **small, **OWN.get(name, {}), **changes},
    )
    for experience in benchmark.train_stream:
        strategy.train(experience)
    return clock.medians[1], clock.medians[-1]


def step_clock() -> Any:
    from avalanche.core import SupervisedPlugin

    class StepClock(SupervisedPlugin):
        """Stops the CPU time between iterations."""

        def __init__(self) -> None:
            super().__init__()
            self.medians: list[float] = []
            self.times: list[float] = []
            self.began = 0.0

        def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
            self.times = []

        def before_training_iteration(self, strategy: Any, **kwargs: Any) -> None:
            self.began = time.process_time()

        def after_training_iteration(self, strategy: Any, **kwargs: Any) -> None:
            self.times.append(1e3 * (time.process_time() - self.began))

        def after_training_exp(self, strategy: Any, **kwargs: Any) -> None:
            self.medians.append(statistics.median(self.times[2 : 2 + STEPS]))

    return StepClock()


if __name__ == "__main__":
    main()
