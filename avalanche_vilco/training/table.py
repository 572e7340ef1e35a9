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


_MEMORY = _described("training samples kept", int, ge=0)
_FULL_MEMORY = _described("training samples kept", int, ge=1)
_PATTERNS = _described("training samples kept of each experience", int, ge=1)
_DISTILLATION = _described("weight of the distillation term", float, ge=0)
_TEMPERATURE = _described("softens logits in distillation", float, gt=0)


def _weight_or_weights(text: str) -> Any:
    weight = _described(f"{text}; a list has one for each experience", float, ge=0)
    return weight | Sequence[Annotated[float, Meta(ge=0)]]


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """How a strategy is built and fed, and which options a run may set."""

    class_name: str
    """Of the class in ``strategies``."""
    help: str
    """What it is, in a line."""
    takes: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """The method's own options: the value that a run has by default, and the type with
    its range and what it means."""
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
    def options(self) -> dict[str, Any]:
        """Default of each option."""
        return {name: default for name, (default, _) in self.takes.items()}

    @property
    def option_types(self) -> dict[str, Any]:
        """Type of each option."""
        return {name: kind for name, (_, kind) in self.takes.items()}


STRATEGIES: Mapping[str, Strategy] = {
    "naive": Strategy(
        class_name="LocalizationNaive",
        help="Fine-tuning on one experience after another.",
    ),
    "cumulative": Strategy(
        class_name="LocalizationCumulative",
        help="Training on all experiences so far.",
    ),
    "joint": Strategy(
        class_name="LocalizationJoint",
        help="One training on the union of all experiences.",
        is_joint=True,
    ),
    "upper_bound": Strategy(
        class_name="LocalizationJoint",
        help="Joint training, twice the epochs",
        is_joint=True,
        epochs_factor=2,
    ),
    "lower_bound": Strategy(
        class_name="LocalizationJoint",
        help="Joint training of the model without attention, twice the epochs",
        is_joint=True,
        epochs_factor=2,
        model_variant="_lower",
    ),
    "replay": Strategy(
        class_name="LocalizationReplay",
        help="Rehearsal of stored samples.",
        takes={
            "mem_size": (64, _MEMORY),
            "unit": (
                "samples",
                _described("what mem_size counts", Literal["samples", "class_slots"]),
            ),
        },
        seed_argument="memory_seed",
    ),
    "vilco": Strategy(
        class_name="ViLCo",
        help="ViLCo: prompts, exemplars and narrations.",
        takes={
            "mem_size": (64, _MEMORY),
            "long_term": (True, _described("have prompts", bool)),
            "n_prompts": (10, _described("prompts", int, ge=1)),
            "prompt_length": (4, _described("tokens of a prompt", int, ge=1)),
            "top_n": (4, _described("prompts of a query", int, ge=1)),
            "prompt_mode": (
                "replace",
                _described(
                    "what prompts do with a query's words; language and visual "
                    "queries take prepend alone",
                    Literal["replace", "prepend"],
                ),
            ),
            "pull_weight": (
                0.0,
                _described("draws keys to the queries that found them", float, ge=0),
            ),
            "ssl_weight": (
                0.03,
                _described("weight of the loss on narrations; 0: none", float, ge=0),
            ),
            "temperature": (0.07, _described("of the loss on narrations", float, gt=0)),
            "bank_size": (
                256,
                _described("sentences kept as negatives", int, ge=0),
            ),
        },
        seed_argument="seed",
        is_narrated=True,
    ),
    "ewc": Strategy(
        class_name="LocalizationEWC",
        help="Elastic weight consolidation.",
        takes={
            "ewc_lambda": (1000.0, _described("weight of the penalty", float, ge=0))
        },
    ),
    "mas": Strategy(
        class_name="LocalizationMAS",
        help="Memory-aware synapses.",
        takes={
            "lambda_reg": (0.1, _described("weight of the penalty", float, ge=0)),
            "alpha": (
                0.5,
                _described("share of old importances in new ones", float, ge=0, le=1),
            ),
        },
    ),
    "lwf": Strategy(
        class_name="LocalizationLwF",
        help="Learning without forgetting.",
        takes={
            "alpha": (0.1, _weight_or_weights("weight of the distillation term")),
            "temperature": (2.0, _TEMPERATURE),
        },
        needs_classes="it holds a softmax over queries, which over one is always 1",
    ),
    "icarl": Strategy(
        class_name="LocalizationICaRL",
        help="iCaRL: herded exemplars and distillation of old queries' logits.",
        takes={
            "mem_size": (64, _FULL_MEMORY),
            "distillation_weight": (1.0, _DISTILLATION),
        },
        needs_classes="its exemplars and means are of queries with a logit each",
    ),
    "bic": Strategy(
        class_name="LocalizationBiC",
        help="BiC: rehearsal, distillation and a correction of new queries' logits.",
        takes={
            "mem_size": (64, _FULL_MEMORY),
            "distillation_weight": (0.3, _DISTILLATION),
            "val_share": (
                0.1,
                _described("share of mem_size held out", float, gt=0, lt=1),
            ),
        },
        seed_argument="seed",
        needs_classes="it corrects new queries' logits against old ones'",
    ),
    "dense_distillation": Strategy(
        class_name="LocalizationDenseDistillation",
        help="Distillation of logits and regressions at every point.",
        takes={"weight": (3.0, _DISTILLATION)},
        regression_argument="n_regression",
    ),
    "gem": Strategy(
        class_name="LocalizationGEM",
        help="Gradient episodic memory.",
        takes={"patterns_per_exp": (16, _PATTERNS)},
    ),
    "agem": Strategy(
        class_name="LocalizationAGEM",
        help="Averaged gradient episodic memory whose steps do not grow.",
        takes={
            "patterns_per_exp": (16, _PATTERNS),
            "sample_size": (16, _described("samples of a memory step", int, ge=1)),
        },
    ),
    "gdumb": Strategy(
        class_name="LocalizationGDumb",
        help="Training from scratch on a balanced memory.",
        takes={"mem_size": (64, _FULL_MEMORY)},
    ),
    "from_scratch": Strategy(
        class_name="LocalizationFromScratch",
        help="A new model for each experience.",
    ),
    "cwr_star": Strategy(
        class_name="LocalizationCWRStar",
        help="Copy weights with re-init: after the first experience only the head "
        "learns.",
        takes={
            "cwr_layer_name": (
                "heads.cls",
                _described("layer with a row of weights for each query", str),
            )
        },
        needs_classes="it keeps the head's rows of past queries, and there is one row",
    ),
    "si": Strategy(
        class_name="LocalizationSynapticIntelligence",
        help="Synaptic intelligence that works on the CPU too.",
        takes={"si_lambda": (1000.0, _weight_or_weights("weight of the penalty"))},
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
