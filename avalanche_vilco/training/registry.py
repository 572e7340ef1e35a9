"""Strategies by name, with the options that the embedded default is run with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from avalanche.training.templates import SupervisedTemplate

from avalanche_vilco.core.registry import look_up
from avalanche_vilco.training import supervised


@dataclass(frozen=True)
class Recipe:
    """How a named strategy is built and fed."""

    build: Callable[..., SupervisedTemplate]
    options: Mapping[str, Any] = field(default_factory=dict)
    """The method's own options and their defaults."""
    is_joint: bool = False
    """Trains once, on all experiences together."""
    seed_argument: str | None = None
    """Argument that takes the run's seed, for draws of the method's own."""
    regression_argument: str | None = None
    """Argument that takes the number of the model's regression channels."""
    is_narrated: bool = False
    """Wants sentences with its training samples, unless ``ssl_weight`` is 0."""
    epochs_factor: int = 1
    """Trains this many times the run's epochs. A joint training meets each sample in
    ``epochs`` passes, a cumulative one meets the first experience's in
    ``epochs x n_experiences``; twice the epochs is where joint training stops to gain
    on the embedded default (32, 44, 44 % at 7, 14, 21 epochs, seed 0)."""
    model_variant: str = ""
    """Ending of the builder's name that the strategy takes of the run's model."""
    needs_channels: str = ""
    """Why it has nothing to act on where the model has one query logit, as for
    language queries; empty: it has."""


RECIPES: Mapping[str, Recipe] = {
    "naive": Recipe(supervised.LocalizationNaive),
    "cumulative": Recipe(supervised.LocalizationCumulative),
    "joint": Recipe(supervised.LocalizationJoint, is_joint=True),
    "upper_bound": Recipe(supervised.LocalizationJoint, is_joint=True, epochs_factor=2),
    "lower_bound": Recipe(
        supervised.LocalizationJoint,
        is_joint=True,
        epochs_factor=2,
        model_variant="_lower",
    ),
    "replay": Recipe(
        supervised.LocalizationReplay, {"mem_size": 64, "unit": "samples"}
    ),
    "vilco": Recipe(
        supervised.ViLCo,
        {
            "mem_size": 64,
            "long_term": True,
            "n_prompts": 10,
            "prompt_length": 4,
            "top_n": 4,
            "prompt_mode": "replace",
            "pull_weight": 0.0,
            "ssl_weight": 0.03,
            "temperature": 0.07,
            "bank_size": 256,
        },
        seed_argument="seed",
        is_narrated=True,
    ),
    "ewc": Recipe(supervised.LocalizationEWC, {"ewc_lambda": 1000.0}),
    "mas": Recipe(supervised.LocalizationMAS, {"lambda_reg": 0.1, "alpha": 0.5}),
    "lwf": Recipe(
        supervised.LocalizationLwF,
        {"alpha": 0.1, "temperature": 2.0},
        needs_channels="it holds a softmax over queries, which over one is always 1",
    ),
    "icarl": Recipe(
        supervised.LocalizationICaRL,
        {"mem_size": 64, "distillation_weight": 1.0},
        needs_channels="its exemplars and means are of queries with a logit each",
    ),
    "bic": Recipe(
        supervised.LocalizationBiC,
        {"mem_size": 64, "val_share": 0.1, "distillation_weight": 0.3},
        seed_argument="seed",
        needs_channels="it corrects new queries' logits against old ones'",
    ),
    "dense_distillation": Recipe(
        supervised.LocalizationDenseDistillation,
        {"weight": 3.0},
        regression_argument="n_regression",
    ),
    "gem": Recipe(supervised.LocalizationGEM, {"patterns_per_exp": 16}),
    "agem": Recipe(
        supervised.LocalizationAGEM, {"patterns_per_exp": 16, "sample_size": 16}
    ),
    "gdumb": Recipe(supervised.LocalizationGDumb, {"mem_size": 64}),
    "from_scratch": Recipe(supervised.LocalizationFromScratch),
    "cwr_star": Recipe(
        supervised.LocalizationCWRStar,
        {"cwr_layer_name": "heads.cls"},
        needs_channels="it keeps the head's rows of past queries, and there is one row",
    ),
    "si": Recipe(supervised.LocalizationSynapticIntelligence, {"si_lambda": 1000.0}),
}


def find_recipe(name: str) -> Recipe:
    """The recipe of a strategy.

    :param name: one of :data:`RECIPES`.
    :raises ValueError: unknown; names close ones and lists all.
    """
    return look_up("strategy", name, RECIPES)


def check_channels(name: str, recipe: Recipe, n_channels: int) -> None:
    """Refuse a strategy that tells queries apart by their logits where there is one.

    :param name: of the recipe.
    :param recipe: of the strategy.
    :param n_channels: query logits of the model in the end.
    :raises ValueError: it has nothing to act on.
    """
    if recipe.needs_channels and n_channels == 1:
        raise ValueError(
            f"strategy {name!r} does not go with a model of one query logit: "
            f"{recipe.needs_channels}; dense_distillation and replay do"
        )
