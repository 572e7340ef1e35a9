"""Avalanche's strategies for localisation.

On avalanche-lib 0.6.0 the stock classes run as they are; these run on its
development head too, bring an evaluator that fits and mend what stock leaves undone.
They take the arguments of the stock class of the same name, and those of their plugin.
What each does here stands in docs/strategies.md, kept by a test.

A new method is a plugin, a class here and a row of ``STRATEGIES``, see
:mod:`~avalanche_vilco.training.table`.
"""

from __future__ import annotations

from avalanche.training import supervised as stock
from torch import nn

from avalanche_vilco.models.localizer import GrowingHead
from avalanche_vilco.training.plugins.agem import AGEMPlugin
from avalanche_vilco.training.plugins.bic import BiCPlugin
from avalanche_vilco.training.plugins.consolidation import EWCPlugin, MASPlugin
from avalanche_vilco.training.plugins.dense_distillation import DenseDistillationPlugin
from avalanche_vilco.training.plugins.gdumb import GDumbPlugin
from avalanche_vilco.training.plugins.icarl import ICaRLPlugin
from avalanche_vilco.training.plugins.replay import ReplayPlugin
from avalanche_vilco.training.plugins.synaptic_intelligence import (
    SynapticIntelligencePlugin,
)
from avalanche_vilco.training.plugins.vilco import ViLCoPlugin
from avalanche_vilco.training.table import STRATEGIES as STRATEGIES
from avalanche_vilco.training.table import Strategy as Strategy
from avalanche_vilco.training.table import check_classes as check_classes
from avalanche_vilco.training.table import find_strategy as find_strategy
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


class LocalizationEWC(LocalizationNaive, plugin=EWCPlugin):
    """Elastic weight consolidation.

    At constant cost, however much is past.
    """


class LocalizationMAS(LocalizationNaive, plugin=MASPlugin):
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


class LocalizationGDumb(LocalizationNaive, plugin=GDumbPlugin):
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
