"""Finish resumed runs of all methods, as a script to be another process.

    python resume_script.py ROOT FOLDER NAME...

prints, as JSON, a hash of the final weights of each strategy whose checkpoint after two
experiences is FOLDER/NAME.pkl. Tests import the parts.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from avalanche.training.determinism.rng_manager import RNGManager

from avalanche_vilco.benchmarks.vilco_mq.generator import vilco_mq
from avalanche_vilco.benchmarks.vilco_mq.models import vilco_mq_tiny
from avalanche_vilco.models.losses import MomentLoss
from avalanche_vilco.reports.results import weights_hash
from avalanche_vilco.training.checkpointing import load_checkpoint
from avalanche_vilco.training.strategies import STRATEGIES

SMALL = {"mem_size": 6, "patterns_per_exp": 4, "sample_size": 4, "n_prompts": 6}
OWN = {"bic": {"mem_size": 30}}


def benchmark_of(root: Path) -> Any:
    benchmark = vilco_mq(
        root, per_exp_classes=(3, 1, 2), valid_share=0.2, sources={"narrations": True}
    )
    for experience in benchmark.test_stream:
        few = range(min(3, len(experience.dataset)))
        experience.dataset = experience.dataset.subset(few)
    return benchmark


def options_of(name: str) -> dict[str, Any]:
    known = STRATEGIES[name].options
    small = {key: value for key, value in SMALL.items() if key in known}
    return {**known, **small, **OWN.get(name, {})}


def build(name: str, benchmark: Any) -> Any:
    RNGManager.set_random_seeds(0)
    model = vilco_mq_tiny(
        feature_dim=benchmark.info["feature_dim"], text_dim=benchmark.text_dim
    )
    return STRATEGIES[name].build(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
        criterion=MomentLoss(),
        train_mb_size=4,
        train_epochs=1,
        eval_mb_size=8,
        **options_of(name),
    )


def resumed(name: str, benchmark: Any, path: Path) -> str:
    strategy, done = load_checkpoint(build(name, benchmark), path)
    assert done == 2
    strategy.train(benchmark.train_stream[2])
    return weights_hash(strategy.model)


def main() -> None:
    torch.set_num_threads(1)
    root, folder, *names = sys.argv[1:]
    # The benchmark anew for each: some plugins write into experiences.
    hashes = {
        name: resumed(name, benchmark_of(Path(root)), Path(folder, f"{name}.pkl"))
        for name in names
    }
    print("\n" + json.dumps(hashes))


if __name__ == "__main__":
    main()
