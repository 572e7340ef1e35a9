"""Real language queries, small-data mode, with generated features."""

import pytest
import torch
from avalanche.training.determinism.rng_manager import RNGManager

from avalanche_vilco import vilco_nlq_tiny
from avalanche_vilco.benchmarks.vilco_nlq.generator import vilco_nlq
from avalanche_vilco.models.losses import MomentLoss
from avalanche_vilco.training.strategies import LocalizationNaive
from avalanche_vilco.training.templates import localization_evaluator


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_naive_learns_the_real_val_file_split_by_video(shared_dir, noise_features):
    benchmark = vilco_nlq(
        sources={
            "annotations": shared_dir / "data" / "ego4d_nlq",
            "features": noise_features(),
            "small_data": True,
        }
    )
    assert benchmark.n_experiences == 13
    assert sum(len(e.dataset) for e in benchmark.train_stream) == 2834
    RNGManager.set_random_seeds(0)
    model = vilco_nlq_tiny(
        feature_dim=benchmark.info["feature_dim"], text_dim=benchmark.text_dim
    )
    strategy = LocalizationNaive(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        criterion=MomentLoss(),
        train_mb_size=16,
        train_epochs=1,
        eval_mb_size=64,
        evaluator=localization_evaluator(budget="fixed", future="value"),
    )
    for experience in benchmark.train_stream:
        strategy.train(experience)
    assert all(weight.isfinite().all() for weight in model.parameters())
    found = strategy.eval(benchmark.test_stream)
    scores = [
        value
        for name, value in found.items()
        if name.startswith("Recall@1_tIoU0.3_Exp/")
    ]
    assert len(scores) == 13
    assert all(0 <= score <= 1 for score in scores)
