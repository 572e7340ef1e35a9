"""Avalanche's strategies by name, for query-incremental streams.

On avalanche-lib 0.6.0 the stock classes run as they are; these run on its
development head too, bring an evaluator that fits and mend what stock leaves undone.
They take the arguments of the stock class of the same name. What each does here
stands in docs/strategies.md, kept by a test.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from avalanche.training import supervised as stock
from avalanche.training.plugins import ReplayPlugin
from avalanche.training.storage_policy import ExemplarsBuffer
from torch import nn
from torch.optim import Optimizer

from avalanche_vilco.models.localizer import GrowingHead
from avalanche_vilco.models.output import MOMENT_REGRESSION_CHANNELS
from avalanche_vilco.training.plugins.agem import AGEMPlugin
from avalanche_vilco.training.plugins.bic import BiCPlugin
from avalanche_vilco.training.plugins.dense_distillation import DenseDistillationPlugin
from avalanche_vilco.training.plugins.icarl import ICaRLPlugin
from avalanche_vilco.training.plugins.synaptic_intelligence import (
    SynapticIntelligencePlugin,
)
from avalanche_vilco.training.plugins.vilco import ViLCoPlugin
from avalanche_vilco.training.storage_policy import ClassSlotBuffer
from avalanche_vilco.training.templates import BatchObjectMixin, localization_evaluator


class LocalizationNaive(BatchObjectMixin, stock.Naive):
    """Fine-tuning on one experience after another."""


class LocalizationCumulative(BatchObjectMixin, stock.Cumulative):
    """Training on all experiences so far."""


class LocalizationJoint(BatchObjectMixin, stock.JointTraining):
    """One training on the union of all experiences."""


class LocalizationReplay(BatchObjectMixin, stock.Replay):
    """Rehearsal of stored samples."""

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: Optimizer,
        criterion: Any,
        mem_size: int = 200,
        unit: str = "samples",
        memory_seed: int = 0,
        evaluator: Any = localization_evaluator,
        **kwargs: Any,
    ) -> None:
        """As stock.

        :param mem_size: samples kept, shared equally by experiences.
        :param unit: what ``mem_size`` counts: ``"samples"``, or ``"class_slots"`` as
            in the public code, see ``ClassSlotBuffer``.
        :param memory_seed: of the draws of class slots.
        :raises ValueError: unknown unit.
        """
        if unit not in ("samples", "class_slots"):
            raise ValueError(
                f"expected unit 'samples' or 'class_slots' but got {unit!r}"
            )
        super().__init__(
            model=model,
            optimizer=optimizer,
            criterion=criterion,
            mem_size=mem_size,
            evaluator=evaluator,
            **kwargs,
        )
        if unit == "class_slots":
            replay = next(p for p in self.plugins[::-1] if isinstance(p, ReplayPlugin))
            replay.storage_policy = ClassSlotBuffer(mem_size, seed=memory_seed)


class ViLCo(LocalizationNaive):
    """ViLCo: prompts, exemplars and narrations."""

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: Optimizer,
        criterion: Any,
        mem_size: int = 200,
        storage_policy: ExemplarsBuffer | None = None,
        long_term: bool = True,
        ssl_weight: float = 0.03,
        pull_weight: float = 0.0,
        n_prompts: int = 10,
        prompt_length: int = 4,
        top_n: int = 4,
        prompt_mode: str = "replace",
        temperature: float = 0.07,
        bank_size: int = 256,
        narration_dropout: float = 0.1,
        seed: int = 0,
        plugins: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Arguments of Naive and of ``ViLCoPlugin``, where they are explained."""
        plugin = ViLCoPlugin(
            mem_size=mem_size,
            storage_policy=storage_policy,
            long_term=long_term,
            ssl_weight=ssl_weight,
            pull_weight=pull_weight,
            n_prompts=n_prompts,
            prompt_length=prompt_length,
            top_n=top_n,
            prompt_mode=prompt_mode,
            temperature=temperature,
            bank_size=bank_size,
            narration_dropout=narration_dropout,
            seed=seed,
        )
        super().__init__(
            model=model,
            optimizer=optimizer,
            criterion=criterion,
            plugins=[*(plugins or ()), plugin],
            **kwargs,
        )


class LocalizationEWC(BatchObjectMixin, stock.EWC):
    """Elastic weight consolidation."""


class LocalizationMAS(BatchObjectMixin, stock.MAS):
    """Memory-aware synapses."""


class LocalizationSynapticIntelligence(LocalizationNaive):
    """Synaptic intelligence that works on the CPU too."""

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: Optimizer,
        criterion: Any,
        si_lambda: float | Sequence[float],
        eps: float = 1e-7,
        plugins: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """As stock.

        :param si_lambda: weight of the penalty, or one for each experience.
        :param eps: damping of importances.
        """
        plugin = SynapticIntelligencePlugin(si_lambda=si_lambda, eps=eps)
        super().__init__(
            model=model,
            optimizer=optimizer,
            criterion=criterion,
            plugins=[*(plugins or ()), plugin],
            **kwargs,
        )


class LocalizationLwF(BatchObjectMixin, stock.LwF):
    """Learning without forgetting."""


class LocalizationICaRL(LocalizationNaive):
    """iCaRL for localisation; see ``ICaRLPlugin``."""

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: Optimizer,
        criterion: Any,
        mem_size: int = 200,
        distillation_weight: float = 1.0,
        nearest_mean: bool = False,
        plugins: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Arguments of Naive, and those of the plugin.

        :param mem_size: samples kept.
        :param distillation_weight: of the distillation term.
        :param nearest_mean: score by nearest means in evaluation.
        """
        plugin = ICaRLPlugin(
            mem_size,
            distillation_weight=distillation_weight,
            nearest_mean=nearest_mean,
        )
        super().__init__(
            model=model,
            optimizer=optimizer,
            criterion=criterion,
            plugins=[*(plugins or ()), plugin],
            **kwargs,
        )


class LocalizationBiC(LocalizationNaive):
    """BiC for localisation; see ``BiCPlugin``."""

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: Optimizer,
        criterion: Any,
        mem_size: int = 200,
        val_share: float = 0.1,
        distillation_weight: float = 1.0,
        temperature: float = 1.0,
        seed: int = 0,
        plugins: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Arguments of Naive, and those of the plugin.

        :param mem_size: samples kept, held-out ones included.
        :param val_share: share of them that is held out.
        :param distillation_weight: of the distillation term, within its share.
        :param temperature: softens logits in distillation.
        :param seed: of the choice of held-out samples.
        """
        plugin = BiCPlugin(
            mem_size,
            val_share=val_share,
            distillation_weight=distillation_weight,
            temperature=temperature,
            seed=seed,
        )
        super().__init__(
            model=model,
            optimizer=optimizer,
            criterion=criterion,
            plugins=[*(plugins or ()), plugin],
            **kwargs,
        )


class LocalizationDenseDistillation(LocalizationNaive):
    """Distillation at every point; see ``DenseDistillationPlugin``."""

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: Optimizer,
        criterion: Any,
        weight: float = 1.0,
        regression_weight: float = 1.0,
        temperature: float = 1.0,
        n_regression: int = MOMENT_REGRESSION_CHANNELS,
        plugins: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Arguments of Naive, and those of the plugin.

        :param weight: of the logits' term.
        :param regression_weight: of the regressions' term.
        :param temperature: softens logits.
        :param n_regression: regression channels of the model's output.
        """
        plugin = DenseDistillationPlugin(
            weight,
            regression_weight,
            temperature=temperature,
            n_regression=n_regression,
        )
        super().__init__(
            model=model,
            optimizer=optimizer,
            criterion=criterion,
            plugins=[*(plugins or ()), plugin],
            **kwargs,
        )


class LocalizationGEM(BatchObjectMixin, stock.GEM):
    """Gradient episodic memory."""


class LocalizationAGEM(LocalizationNaive):
    """Averaged gradient episodic memory whose steps do not grow; see
    ``AGEMPlugin``.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: Optimizer,
        criterion: Any,
        patterns_per_exp: int,
        sample_size: int = 64,
        plugins: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """As stock, and those of the plugin.

        :param patterns_per_exp: samples kept of each experience.
        :param sample_size: samples of the whole memory that the reference gradient is
            taken on, at least 1.
        """
        plugin = AGEMPlugin(patterns_per_exp, sample_size)
        super().__init__(
            model=model,
            optimizer=optimizer,
            criterion=criterion,
            plugins=[*(plugins or ()), plugin],
            **kwargs,
        )


class LocalizationCWRStar(BatchObjectMixin, stock.CWRStar):
    """Copy weights with re-init: after the first experience only the head learns."""

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: Optimizer,
        criterion: Any,
        cwr_layer_name: str = "heads.cls",
        evaluator: Any = localization_evaluator,
        **kwargs: Any,
    ) -> None:
        """As stock, whose search for the layer takes another one here.

        :param cwr_layer_name: layer with one row of weights for each query.
        """
        super().__init__(
            model=model,
            optimizer=optimizer,
            criterion=criterion,
            cwr_layer_name=cwr_layer_name,
            evaluator=evaluator,
            **kwargs,
        )


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
