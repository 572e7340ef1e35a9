"""Avalanche's strategies for localisation, and the one table of their names.

On avalanche-lib 0.6.0 the stock classes run as they are; these run on its
development head too, bring an evaluator that fits and mend what stock leaves undone.
They take the arguments of the stock class of the same name, and those of their plugin.
What each does here stands in docs/strategies.md, kept by a test.

A new method is a plugin, a class here and a row of ``STRATEGIES``; command line,
help texts and default options are made from the row.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from avalanche.training import supervised as stock
from avalanche.training.templates import SupervisedTemplate
from torch import nn

from avalanche_vilco.core.registry import look_up
from avalanche_vilco.models.localizer import GrowingHead
from avalanche_vilco.training.plugins.agem import AGEMPlugin
from avalanche_vilco.training.plugins.bic import BiCPlugin
from avalanche_vilco.training.plugins.dense_distillation import DenseDistillationPlugin
from avalanche_vilco.training.plugins.icarl import ICaRLPlugin
from avalanche_vilco.training.plugins.replay import ReplayPlugin
from avalanche_vilco.training.plugins.synaptic_intelligence import (
    SynapticIntelligencePlugin,
)
from avalanche_vilco.training.plugins.vilco import ViLCoPlugin
from avalanche_vilco.training.templates import BatchObjectMixin


class LocalizationNaive(BatchObjectMixin, stock.Naive):
    """Fine-tuning on one experience after another."""


class LocalizationCumulative(BatchObjectMixin, stock.Cumulative):
    """Training on all experiences so far."""


class LocalizationJoint(BatchObjectMixin, stock.JointTraining):
    """One training on the union of all experiences."""


class LocalizationReplay(LocalizationNaive, plugin=ReplayPlugin):
    """Rehearsal of stored samples."""


class ViLCo(LocalizationNaive, plugin=ViLCoPlugin, mem_size=200):
    """ViLCo: prompts, exemplars and narrations."""


class LocalizationEWC(BatchObjectMixin, stock.EWC):
    """Elastic weight consolidation."""


class LocalizationMAS(BatchObjectMixin, stock.MAS):
    """Memory-aware synapses."""


class LocalizationSynapticIntelligence(
    LocalizationNaive, plugin=SynapticIntelligencePlugin
):
    """Synaptic intelligence that works on the CPU too."""


class LocalizationLwF(BatchObjectMixin, stock.LwF):
    """Learning without forgetting."""


class LocalizationICaRL(LocalizationNaive, plugin=ICaRLPlugin):
    """iCaRL: herded exemplars and distillation of old queries' logits."""


class LocalizationBiC(LocalizationNaive, plugin=BiCPlugin):
    """BiC: rehearsal, distillation and a correction of new queries' logits."""


class LocalizationDenseDistillation(LocalizationNaive, plugin=DenseDistillationPlugin):
    """Distillation of logits and regressions at every point."""


class LocalizationGEM(BatchObjectMixin, stock.GEM):
    """Gradient episodic memory."""


class LocalizationAGEM(LocalizationNaive, plugin=AGEMPlugin):
    """Averaged gradient episodic memory whose steps do not grow."""


class LocalizationCWRStar(BatchObjectMixin, stock.CWRStar, cwr_layer_name="heads.cls"):
    """Copy weights with re-init: after the first experience only the head learns.

    The layer is the one with a row of weights for each query; stock's search takes
    another.
    """


class LocalizationGDumb(BatchObjectMixin, stock.GDumb):
    """Training from scratch on a balanced memory."""

    def model_adaptation(self, model: nn.Module | None = None) -> nn.Module:
        """Adapt to the experience; evaluation adapts the strategy's model only.

        Stock has the untrained copy, which is in training mode, learn the queries of
        evaluated experiences, and with them those not yet taught.
        """
        if model is not None and not self.is_training:
            return model
        return super().model_adaptation(model)


class LocalizationFromScratch(BatchObjectMixin, stock.FromScratchTraining):
    """A new model for each experience."""

    def model_adaptation(self, model: nn.Module | None = None) -> nn.Module:
        """Adapt to the experience, with an untrained head in training.

        Stock resets parameters of unchanged shape, hence not those of a head that
        has grown.
        """
        model = super().model_adaptation(model)
        heads = (part for part in model.modules() if isinstance(part, GrowingHead))
        for head in heads if self.is_training else ():
            head.reset_parameters()
        return model


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """How a strategy is built and fed, and which options a run may set."""

    build: type[SupervisedTemplate]
    """The class."""
    tuned: Mapping[str, Any] = field(default_factory=dict)
    """Options that a run sets otherwise than the class does."""
    kept: tuple[str, ...] = ()
    """Options that a run leaves at the class's default."""
    text: str = ""
    """What it is, in a line; empty: what the class says."""
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
    def help(self) -> str:
        """What it is, in a line."""
        return self.text or (inspect.getdoc(self.build) or "").splitlines()[0]

    @property
    def options(self) -> dict[str, Any]:
        """The method's own options, with the values that a run has by default."""
        known = inspect.signature(self.build.__init__).parameters
        kept = {name: known[name].default for name in self.kept}
        return {**self.tuned, **kept}

    @property
    def option_types(self) -> dict[str, Any]:
        """Type of each of :attr:`options`, as annotated, with its range."""
        known = inspect.signature(self.build.__init__).parameters
        return {name: known[name].annotation for name in self.options}


STRATEGIES: Mapping[str, Strategy] = {
    "naive": Strategy(build=LocalizationNaive),
    "cumulative": Strategy(build=LocalizationCumulative),
    "joint": Strategy(build=LocalizationJoint, is_joint=True),
    "upper_bound": Strategy(
        build=LocalizationJoint,
        text="Joint training, twice the epochs",
        is_joint=True,
        epochs_factor=2,
    ),
    "lower_bound": Strategy(
        build=LocalizationJoint,
        text="Joint training of the model without attention, twice the epochs",
        is_joint=True,
        epochs_factor=2,
        model_variant="_lower",
    ),
    "replay": Strategy(
        build=LocalizationReplay,
        tuned={"mem_size": 64},
        kept=("unit",),
        seed_argument="memory_seed",
    ),
    "vilco": Strategy(
        build=ViLCo,
        tuned={"mem_size": 64},
        kept=(
            *("long_term", "n_prompts", "prompt_length", "top_n", "prompt_mode"),
            *("pull_weight", "ssl_weight", "temperature", "bank_size"),
        ),
        seed_argument="seed",
        is_narrated=True,
    ),
    "ewc": Strategy(build=LocalizationEWC, tuned={"ewc_lambda": 1000.0}),
    "mas": Strategy(build=LocalizationMAS, tuned={"lambda_reg": 0.1}, kept=("alpha",)),
    "lwf": Strategy(
        build=LocalizationLwF,
        tuned={"alpha": 0.1, "temperature": 2.0},
        needs_classes="it holds a softmax over queries, which over one is always 1",
    ),
    "icarl": Strategy(
        build=LocalizationICaRL,
        tuned={"mem_size": 64},
        kept=("distillation_weight",),
        needs_classes="its exemplars and means are of queries with a logit each",
    ),
    "bic": Strategy(
        build=LocalizationBiC,
        tuned={"mem_size": 64, "distillation_weight": 0.3},
        kept=("val_share",),
        seed_argument="seed",
        needs_classes="it corrects new queries' logits against old ones'",
    ),
    "dense_distillation": Strategy(
        build=LocalizationDenseDistillation,
        tuned={"weight": 3.0},
        regression_argument="n_regression",
    ),
    "gem": Strategy(build=LocalizationGEM, tuned={"patterns_per_exp": 16}),
    "agem": Strategy(
        build=LocalizationAGEM, tuned={"patterns_per_exp": 16, "sample_size": 16}
    ),
    "gdumb": Strategy(build=LocalizationGDumb, tuned={"mem_size": 64}),
    "from_scratch": Strategy(build=LocalizationFromScratch),
    "cwr_star": Strategy(
        build=LocalizationCWRStar,
        kept=("cwr_layer_name",),
        needs_classes="it keeps the head's rows of past queries, and there is one row",
    ),
    "si": Strategy(build=LocalizationSynapticIntelligence, tuned={"si_lambda": 1000.0}),
}


def find_strategy(name: str) -> Strategy:
    """The strategy of a name.

    :param name: one of ``STRATEGIES``.
    :raises ValueError: unknown; names close ones and lists all.
    """
    return look_up("strategy", name, STRATEGIES)


def check_classes(name: str, strategy: Strategy, n_classes: int) -> None:
    """Refuse a strategy that tells queries apart by their logits where there is one.

    :param n_classes: query logits of the model in the end.
    :raises ValueError: it has nothing to act on.
    """
    if strategy.needs_classes and n_classes == 1:
        raise ValueError(
            f"strategy {name!r} does not go with a model of one query logit: "
            f"{strategy.needs_classes}; dense_distillation and replay do"
        )
