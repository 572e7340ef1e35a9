"""The one table of strategies: what a run takes by name, and their options.

It loads without Avalanche, so that settings are checked and help is printed before the
seconds that Avalanche takes. A new method is a plugin, a class in ``strategies`` and a
row here; command line, help texts and default options are made from the row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from avalanche_vilco.core.errors import SettingError
from avalanche_vilco.core.registry import look_up

if TYPE_CHECKING:
    from avalanche.training.templates import SupervisedTemplate


def _described(text: str, kind: Any, **bounds: Any) -> Any:
    return Annotated[kind, Meta(description=text, **bounds)]


def _weights(text: str) -> Any:
    weight = _described(f"{text}; a list has one for each experience", float, ge=0)
    several = Sequence[Annotated[float, Meta(ge=0)]]
    return weight | Annotated[several, Meta(min_length=1)]


_FULL = {"mem_size": _described("training samples kept", int, ge=1)}
_OPTIONS: Mapping[str, Any] = {
    "mem_size": _described("training samples kept", int, ge=0),
    "unit": _described("what mem_size counts", Literal["samples", "class_slots"]),
    "long_term": _described("have prompts", bool),
    "n_prompts": _described("prompts", int, ge=1),
    "prompt_length": _described("tokens of a prompt", int, ge=1),
    "top_n": _described("prompts of a query", int, ge=1),
    "prompt_mode": _described(
        "what prompts do with a query's words; language and visual queries take "
        "prepend alone",
        Literal["replace", "prepend"],
    ),
    "pull_weight": _described("draws keys to queries that found them", float, ge=0),
    "ssl_weight": _described("weight of the loss on narrations", float, ge=0),
    "temperature": _described("softens logits", float, gt=0),
    "bank_size": _described("sentences kept as negatives", int, ge=0),
    "ewc_lambda": _described("weight of the penalty", float, ge=0),
    "lambda_reg": _described("weight of the penalty", float, ge=0),
    "si_lambda": _weights("weight of the penalty"),
    "weight": _described("weight of the distillation term", float, ge=0),
    "distillation_weight": _described("weight of its term", float, ge=0),
    "val_share": _described("share of mem_size held out", float, gt=0, lt=1),
    "patterns_per_exp": _described("samples kept of each experience", int, ge=1),
    "sample_size": _described("samples of a memory step", int, ge=1),
    "cwr_layer_name": _described("layer with a row for each query", str),
}
"""Type, range and meaning of each option, unless a strategy has another."""


@dataclass(frozen=True)
class Strategy:
    """How a strategy is built and fed, and which options a run may set."""

    class_name: str
    """Of the class in ``strategies``."""
    help: str
    """What it is, in a line."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The method's own options, with the values that a run has by default."""
    own_types: Mapping[str, Any] = field(default_factory=dict)
    """Types of options that differ from those of the same name elsewhere."""
    is_joint: bool = False
    """Trains once, on all experiences together."""
    epochs_factor: int = 1
    """Trains this many times the run's epochs. A joint training meets each sample in
    ``epochs`` passes, a cumulative one meets the first experience's in
    ``epochs x n_experiences``; twice the epochs is where joint training stops to gain
    on the embedded default (32, 44, 44 % at 7, 14, 21 epochs, seed 0)."""
    model_variant: str = ""
    """Ending of the builder's name that the strategy takes of the run's model."""
    seed_argument: str | None = None
    """Argument that takes the run's seed, for draws of the method's own."""
    regression_argument: str | None = None
    """Argument that takes the number of the model's regression channels."""
    is_narrated: bool = False
    """Wants sentences with its training samples, unless ``ssl_weight`` is 0."""
    needs_classes: str = ""
    """Why it has nothing to act on where the model has one query logit, as for
    language queries; empty: it has."""

    @property
    def build(self) -> type[SupervisedTemplate]:
        """The class, with which Avalanche is imported."""
        module = import_module("avalanche_vilco.training.strategies")
        found: type[SupervisedTemplate] = getattr(module, self.class_name)
        return found

    @property
    def option_types(self) -> dict[str, Any]:
        """Type of each option, with its range and meaning."""
        return {name: {**_OPTIONS, **self.own_types}[name] for name in self.options}


STRATEGIES: Mapping[str, Strategy] = {
    "naive": Strategy(
        "LocalizationNaive", "Fine-tuning on one experience after another."
    ),
    "cumulative": Strategy(
        "LocalizationCumulative", "Training on all experiences so far."
    ),
    "joint": Strategy(
        "LocalizationJoint",
        "One training on the union of all experiences.",
        is_joint=True,
    ),
    "upper_bound": Strategy(
        "LocalizationJoint",
        "Joint training, twice the epochs",
        is_joint=True,
        epochs_factor=2,
    ),
    "lower_bound": Strategy(
        "LocalizationJoint",
        "Joint training of the model without attention, twice the epochs",
        is_joint=True,
        epochs_factor=2,
        model_variant="_lower",
    ),
    "replay": Strategy(
        "LocalizationReplay",
        "Rehearsal of stored samples.",
        {"mem_size": 64, "unit": "samples"},
        seed_argument="memory_seed",
    ),
    "vilco": Strategy(
        "ViLCo",
        "ViLCo: prompts, exemplars and narrations.",
        {
            **{"mem_size": 64, "long_term": True, "n_prompts": 10, "prompt_length": 4},
            **{"top_n": 4, "prompt_mode": "replace", "pull_weight": 0.0},
            **{"ssl_weight": 0.03, "temperature": 0.07, "bank_size": 256},
        },
        seed_argument="seed",
        is_narrated=True,
    ),
    "ewc": Strategy(
        "LocalizationEWC", "Elastic weight consolidation.", {"ewc_lambda": 1000.0}
    ),
    "mas": Strategy(
        "LocalizationMAS",
        "Memory-aware synapses.",
        {"lambda_reg": 0.1, "alpha": 0.5},
        {"alpha": _described("share of old importances", float, ge=0, le=1)},
    ),
    "lwf": Strategy(
        "LocalizationLwF",
        "Learning without forgetting.",
        {"alpha": 0.1, "temperature": 2.0},
        {"alpha": _weights("weight of the distillation term")},
        needs_classes="it holds a softmax over queries, which over one is always 1",
    ),
    "icarl": Strategy(
        "LocalizationICaRL",
        "iCaRL: herded exemplars and distillation of old queries' logits.",
        {"mem_size": 64, "distillation_weight": 1.0},
        _FULL,
        needs_classes="its exemplars and means are of queries with a logit each",
    ),
    "bic": Strategy(
        "LocalizationBiC",
        "BiC: rehearsal, distillation and a correction of new queries' logits.",
        {"mem_size": 64, "distillation_weight": 0.3, "val_share": 0.1},
        _FULL,
        seed_argument="seed",
        needs_classes="it corrects new queries' logits against old ones'",
    ),
    "dense_distillation": Strategy(
        "LocalizationDenseDistillation",
        "Distillation of logits and regressions at every point.",
        {"weight": 3.0},
        regression_argument="n_regression",
    ),
    "gem": Strategy(
        "LocalizationGEM", "Gradient episodic memory.", {"patterns_per_exp": 16}
    ),
    "agem": Strategy(
        "LocalizationAGEM",
        "Averaged gradient episodic memory whose steps do not grow.",
        {"patterns_per_exp": 16, "sample_size": 16},
    ),
    "gdumb": Strategy(
        "LocalizationGDumb",
        "Training from scratch on a balanced memory.",
        {"mem_size": 64},
        _FULL,
    ),
    "from_scratch": Strategy(
        "LocalizationFromScratch", "A new model for each experience."
    ),
    "cwr_star": Strategy(
        "LocalizationCWRStar",
        "Copy weights with re-init: after the first experience only the head learns.",
        {"cwr_layer_name": "heads.cls"},
        needs_classes="it keeps the head's rows of past queries, and there is one row",
    ),
    "si": Strategy(
        "LocalizationSynapticIntelligence",
        "Synaptic intelligence that works on the CPU too.",
        {"si_lambda": 1000.0},
    ),
}


def find_strategy(name: str) -> Strategy:
    """The strategy of a name.

    :param name: one of ``STRATEGIES``.
    :raises SettingError: unknown; names close ones and lists all.
    """
    found: Strategy = look_up("strategy", name, STRATEGIES)
    return found


def check_classes(name: str, strategy: Strategy, n_classes: int) -> None:
    """Refuse a strategy that tells queries apart by their logits where there is one.

    :param n_classes: query logits of the model in the end.
    :raises SettingError: it has nothing to act on.
    """
    if strategy.needs_classes and n_classes == 1:
        raise SettingError(
            f"strategy {name!r} does not go with a model of one query logit: "
            f"{strategy.needs_classes}; dense_distillation and replay do"
        )
