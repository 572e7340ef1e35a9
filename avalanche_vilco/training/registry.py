"""Strategies by name, with the options that the embedded default is run with."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from avalanche.training.templates import SupervisedTemplate

from avalanche_vilco.training import supervised


@dataclass(frozen=True)
class Recipe:
    """How a named strategy is built and fed."""

    build: Callable[..., SupervisedTemplate]
    options: Mapping[str, Any] = field(default_factory=dict)
    """The method's own options and their defaults."""
    is_joint: bool = False
    """Trains once, on all experiences together."""


RECIPES: Mapping[str, Recipe] = {
    "naive": Recipe(supervised.ViLCoNaive),
    "cumulative": Recipe(supervised.ViLCoCumulative),
    "joint": Recipe(supervised.ViLCoJoint, is_joint=True),
    "replay": Recipe(supervised.ViLCoReplay, {"mem_size": 64, "unit": "samples"}),
    "ewc": Recipe(supervised.ViLCoEWC, {"ewc_lambda": 1000.0}),
    "mas": Recipe(supervised.ViLCoMAS, {"lambda_reg": 0.1, "alpha": 0.5}),
    "lwf": Recipe(supervised.ViLCoLwF, {"alpha": 0.1, "temperature": 2.0}),
    "gem": Recipe(supervised.ViLCoGEM, {"patterns_per_exp": 16}),
    "agem": Recipe(supervised.ViLCoAGEM, {"patterns_per_exp": 16, "sample_size": 16}),
    "gdumb": Recipe(supervised.ViLCoGDumb, {"mem_size": 64}),
    "from_scratch": Recipe(supervised.ViLCoFromScratch),
    "cwr_star": Recipe(supervised.ViLCoCWRStar, {"cwr_layer_name": "heads.cls"}),
    "si": Recipe(supervised.ViLCoSynapticIntelligence, {"si_lambda": 1000.0}),
}


def find_recipe(name: str) -> Recipe:
    """The recipe of a strategy.

    :param name: one of :data:`RECIPES`.
    :raises ValueError: unknown; names close ones and lists all.
    """
    return look_up("strategy", name, RECIPES)


def look_up(kind: str, name: str, known: Mapping[str, Any]) -> Any:
    """An entry by name, or an error that helps.

    :param kind: what is looked up, for the message.
    :raises ValueError: unknown; names close ones and lists all.
    """
    if name in known:
        return known[name]
    close = difflib.get_close_matches(name, known, n=3)
    guess = f" Did you mean {' or '.join(close)}?" if close else ""
    raise ValueError(
        f"unknown {kind} {name!r}.{guess} Available: {', '.join(sorted(known))}"
    )
