"""A stream of three experiences that trains in seconds, and what a strategy needs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from avalanche.training.determinism.rng_manager import RNGManager

from avalanche_vilco.benchmarks.scenario import QueryIncrementalScenario
from avalanche_vilco.benchmarks.vilco_mq.embedded import MiniMQConfig
from avalanche_vilco.benchmarks.vilco_mq.generator import vilco_mq
from avalanche_vilco.models.decoding import MomentDecoder
from avalanche_vilco.models.localizer import (
    FeaturePyramid,
    MomentHeads,
    TextBranch,
    VideoStem,
)
from avalanche_vilco.models.losses import MomentLoss
from avalanche_vilco.models.moment_localizer import MomentLocalizer
from avalanche_vilco.training.templates import localization_evaluator


@pytest.fixture(scope="session")
def small_root(once: Any) -> Path:
    """Generated clips of unequal length with six queries."""

    def generate(folder: Path) -> None:
        MiniMQConfig(
            seed=9,
            n_train=60,
            n_val=12,
            n_test=0,
            n_groups=3,
            group_size=2,
            min_train_clips=2,
            min_val_clips=1,
            clip_sec=(40.0, 60.0),
            full_length_share=0.0,
            median_window_sec=4.0,
        ).generate(folder)

    return once("small_mq", generate)


TRAIN_CLIPS = (8, 4, 6)


@pytest.fixture
def benchmark(small_root: Path) -> QueryIncrementalScenario:
    """Three experiences of 3, 1 and 2 queries and :data:`TRAIN_CLIPS` clips; anew for
    each test, because some plugins write into experiences."""
    benchmark = vilco_mq(small_root, per_exp_classes=(3, 1, 2), valid_share=0.2)
    for experience, size in zip(benchmark.train_stream, TRAIN_CLIPS, strict=True):
        experience.dataset = experience.dataset.subset(range(size))
    return benchmark


def build_model(feature_dim: int, text_dim: int) -> MomentLocalizer:
    """The localiser with as few and as small parts as it has."""
    dim, n_levels = 16, 3
    return MomentLocalizer(
        stem=VideoStem(in_dim=feature_dim, dim=dim, n_convs=1),
        text=TextBranch(in_dim=text_dim, dim=dim, n_heads=2, n_blocks=1, dropout=0.0),
        pyramid=FeaturePyramid(
            dim=dim, n_heads=2, n_stem_blocks=1, n_levels=n_levels, dropout=0.0
        ),
        heads=MomentHeads(dim=dim, n_convs=1, n_levels=n_levels),
        decoder=MomentDecoder(),
    )


@pytest.fixture
def parts(benchmark: QueryIncrementalScenario) -> Callable[..., dict[str, Any]]:
    """Arguments of a strategy, always with the same initial weights."""

    def build(**changes: Any) -> dict[str, Any]:
        RNGManager.set_random_seeds(0)
        model = build_model(benchmark.info["feature_dim"], benchmark.text_dim)
        return {
            "model": model,
            "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-2),
            "criterion": MomentLoss(),
            "train_mb_size": 2,
            "train_epochs": 1,
            "eval_mb_size": 8,
            "evaluator": localization_evaluator(),
            **changes,
        }

    return build
