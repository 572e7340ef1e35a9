"""Train every recipe, in parts if asked; run as a script to be another process.

    python resume_script.py ROOT FOLDER first|rest [NAME ...]

``first`` learns two experiences, saves, learns the third; ``rest`` learns the third
after loading. Each prints, as JSON, a hash of each strategy's final weights.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from avalanche.training.determinism.rng_manager import RNGManager

from avalanche_vilco import vilco_mq_tiny
from avalanche_vilco.benchmarks.vilco_mq.generator import vilco_mq
from avalanche_vilco.models.losses import MomentLoss
from avalanche_vilco.reports.results import weights_hash
from avalanche_vilco.training.checkpointing import load_checkpoint, save_checkpoint
from avalanche_vilco.training.strategies import STRATEGIES

SMALL = {"mem_size": 6, "patterns_per_exp": 4, "sample_size": 4, "n_prompts": 6}
OWN = {"bic": {"mem_size": 30}}


def benchmark_of(root: Path) -> Any:
    return vilco_mq(root, group_sizes=(3, 1, 2), valid_share=0.2, narrations=True)


def build(name: str, benchmark: Any, **changes: Any) -> Any:
    RNGManager.set_random_seeds(0)
    recipe = STRATEGIES[name]
    small = {key: value for key, value in SMALL.items() if key in recipe.options}
    model = vilco_mq_tiny(
        feature_dim=benchmark.info["feature_dim"], text_dim=benchmark.text_dim
    )
    return recipe.build(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
        criterion=MomentLoss(),
        train_mb_size=4,
        train_epochs=1,
        eval_mb_size=8,
        **{**recipe.options, **small, **OWN.get(name, {})},
        **changes,
    )


def learn(strategy: Any, experiences: Any, benchmark: Any) -> None:
    for experience in experiences:
        strategy.train(experience)
        strategy.eval(benchmark.test_stream)


def first(name: str, benchmark: Any, path: Path) -> Any:
    strategy = build(name, benchmark)
    learn(strategy, benchmark.train_stream[:2], benchmark)
    save_checkpoint(strategy, path)
    learn(strategy, benchmark.train_stream[2:], benchmark)
    return strategy


def rest(name: str, benchmark: Any, path: Path) -> Any:
    strategy, done = load_checkpoint(build(name, benchmark), path)
    assert done == 2
    learn(strategy, benchmark.train_stream[2:], benchmark)
    return strategy


def main() -> None:
    torch.set_num_threads(1)
    root, folder, part, *names = sys.argv[1:]
    hashes = {}
    for name in names:
        # Anew for each: some plugins write into experiences.
        benchmark = benchmark_of(Path(root))
        strategy = {"first": first, "rest": rest}[part](
            name, benchmark, Path(folder, f"{name}.pkl")
        )
        hashes[name] = weights_hash(strategy.model)
    print("\n" + json.dumps(hashes))


if __name__ == "__main__":
    main()
