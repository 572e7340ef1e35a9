"""Distillation at every point: what LwF is to a classifier."""

from __future__ import annotations

from typing import Any

import torch
from avalanche.training.plugins import SupervisedPlugin
from torch import Tensor, nn

from avalanche_vilco.models.output import (
    MOMENT_REGRESSION_CHANNELS,
    query_logits,
    regression,
    valid_points,
)
from avalanche_vilco.training.distillation import (
    frozen_copy,
    logit_distillation,
    regression_distillation,
)


class DenseDistillationPlugin(SupervisedPlugin):
    """Holds old queries' logits and all regressions to the previous model's.

    The idea is Learning without Forgetting's (Li and Hoiem 2016): new samples are
    shown to the model that the last experience left, and the model in training is
    held to its answers, without stored samples. Stock LwF compares one softmax over
    classes; here each query's sigmoid is compared at each point, which suits heads
    whose queries do not exclude each other, a single query (NLQ, VQ), and
    regressions, which count by how sure the previous model is of the point.

    Works on any packed output (:mod:`avalanche_vilco.models.output`). The previous
    model runs once a batch.

    :param weight: of the logits' term.
    :param regression_weight: of the regressions' term.
    :param temperature: softens logits, above 0.
    :param n_regression: regression channels of the output: 2 window offsets, 4 box
        numbers.
    """

    def __init__(
        self,
        weight: float = 1.0,
        regression_weight: float = 1.0,
        *,
        temperature: float = 1.0,
        n_regression: int = MOMENT_REGRESSION_CHANNELS,
    ) -> None:
        super().__init__()
        self.weight = weight
        self.regression_weight = regression_weight
        self.temperature = temperature
        self.n_regression = n_regression
        self.teacher: nn.Module | None = None
        """The model after the previous experience."""

    def kept(self) -> nn.Module | None:
        """The teacher."""
        return self.teacher

    def before_backward(self, strategy: Any, **kwargs: Any) -> None:
        """Add the distance from the previous model's output."""
        if self.teacher is None:
            return
        with torch.no_grad():
            taught = self.teacher(strategy.mb_x)
        strategy.loss = strategy.loss + self.penalty(strategy.mb_output, taught)

    def after_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Keep the model as the next experience's teacher."""
        self.teacher = frozen_copy(strategy.model)

    def penalty(self, output: Tensor, taught: Tensor) -> Tensor:
        """Weighted distance of two outputs for the same batch.

        :param output: (B, K' + R, P).
        :param taught: (B, K + R, P) of the teacher, K at most K'.
        :return: 0-d tensor.
        """
        old = query_logits(taught, self.n_regression)
        valid = valid_points(taught)
        logits = logit_distillation(
            query_logits(output, self.n_regression),
            old,
            valid,
            temperature=self.temperature,
        )
        regressions = regression_distillation(
            regression(output, self.n_regression),
            regression(taught, self.n_regression),
            old.float().sigmoid().amax(dim=1) * valid,
        )
        return self.weight * logits + self.regression_weight * regressions
