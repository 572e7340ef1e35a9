"""BiC for localisation."""

from __future__ import annotations

from typing import Any

import torch
from avalanche.models.bic_model import BiasLayer
from avalanche.training.plugins import ReplayPlugin
from torch import Tensor, nn

from avalanche_vilco.models.losses import assign_points, sigmoid_focal_loss
from avalanche_vilco.models.output import point_grid, query_logits, valid_points
from avalanche_vilco.training.distillation import frozen_copy, logit_distillation
from avalanche_vilco.training.passes import batches_of, evaluating
from avalanche_vilco.training.storage_policy import HerdingBuffer, RandomQuotaBuffer


class BiCPlugin(ReplayPlugin):
    """Rehearsal, distillation and a correction of the logits of each experience.

    The paper (Wu et al. 2019) classifies images with one label. Here:

    - the memory has two parts, exemplars that are rehearsed and samples held out,
      both with a quota for each query. Held-out samples of an experience are set
      aside before it is trained on, and no main loop ever sees them. Together they
      are ``mem_size`` samples. The benchmark's datasets stay as they are, where stock
      BiC takes samples out of them for good;
    - after each experience but the first, alpha and beta of alpha * logit + beta, for
      the logits of the experience's queries, are fitted to the held-out samples by the
      focal loss that the model trains with. All queries so far are judged on all
      held-out clips, which shows how the new ones answer where old ones are asked,
      and points without a moment keep their level, which a softmax over the queries at
      windows would not see;
    - these numbers are frozen from then on, and outputs are corrected by them in
      training, in evaluation and in the teacher alike: a correction that only
      evaluation and the teacher knew would be learnt by distillation and then made
      once more;
    - the logits of old queries are held to the previous model's by sigmoid
      cross-entropy at all points; of the loss, distillation has the share
      old queries / all queries, as in the paper.

    Within one query a correction keeps the order of scores, so it is seen where queries
    compete for places, such as a clip's best candidates.

    :param mem_size: samples kept, held-out ones included.
    :param val_share: share of them that is held out, in (0, 1).
    :param distillation_weight: of the distillation term, within its share.
    :param temperature: softens logits in distillation, above 0.
    :param decay: holds alpha to 1 and beta to 0, at least 0: a few samples may be
        told apart without error, and alpha would grow for ever.
    :param seed: of the choice of held-out samples.
    :param batch_size: as in ReplayPlugin.
    :param batch_size_mem: as in ReplayPlugin.
    :raises ValueError: a part of the memory would have no sample.
    """

    def __init__(
        self,
        mem_size: int = 200,
        *,
        val_share: float = 0.1,
        distillation_weight: float = 1.0,
        temperature: float = 1.0,
        decay: float = 0.1,
        seed: int = 0,
        batch_size: int | None = None,
        batch_size_mem: int | None = None,
    ) -> None:
        n_held_out = round(val_share * mem_size)
        if not 0 < n_held_out < mem_size:
            raise ValueError(
                "expected mem_size and val_share that leave samples to rehearse and "
                f"to hold out but got {mem_size} and {val_share}"
            )
        n_rehearsed = mem_size - n_held_out
        super().__init__(
            n_rehearsed,
            batch_size=batch_size,
            batch_size_mem=batch_size_mem,
            storage_policy=HerdingBuffer(n_rehearsed),
        )
        self.held_out = RandomQuotaBuffer(n_held_out, seed=seed)
        """Samples that corrections are fitted to."""
        self.distillation_weight = distillation_weight
        self.temperature = temperature
        self.decay = decay
        self.bias_layers = nn.ModuleList()
        """One for each experience from the second on."""
        self.old_share = 0.0
        """Of the queries taught so far, those of earlier experiences."""
        self.teacher: Any = None
        """The model after the previous experience."""
        self._taught: Any = None

    def kept(self) -> tuple[Any, ...]:
        """Samples held out, corrections and the teacher."""
        return self.held_out, self.bias_layers, self.teacher

    def after_train_dataset_adaptation(self, strategy: Any, **kwargs: Any) -> None:
        """Set samples aside.

        :raises ValueError: there are too few places for held-out samples, or too few
            samples.
        """
        seen = strategy.clock.train_exp_counter + 1
        if self.held_out.max_size < seen:
            raise ValueError(
                f"expected a place for held-out samples of each of {seen} experiences "
                f"but got {self.held_out.max_size}: raise mem_size or val_share"
            )
        data = strategy.experience.dataset
        aside = set(self.held_out.update_from_dataset(data))
        rest = [i for i in range(len(data)) if i not in aside]
        if not rest:
            raise ValueError(
                f"expected samples to train on but all {len(data)} of the experience "
                "are held out: lower val_share or mem_size"
            )
        self._taught = data.subset(rest)
        strategy.adapted_dataset = strategy.adapted_dataset.subset(rest)

    def before_training_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Mix exemplars into the batches.

        :raises ValueError: the experience brings no query, so there is nothing to
            correct.
        """
        n_taught = int(strategy.model.taught_queries.sum())
        n_old = n_taught - len(self._new_queries(strategy.model))
        if n_taught <= n_old:
            raise ValueError(
                "BiC corrects the logits of new queries against old ones, but the "
                f"experience brings no query beyond {n_old}: use "
                "DenseDistillationPlugin"
            )
        self.old_share = n_old / n_taught
        super().before_training_exp(strategy, *args, **kwargs)

    def before_backward(self, strategy: Any, **kwargs: Any) -> None:
        """Share the loss between new queries and distillation."""
        if self.teacher is None:
            return
        with torch.no_grad():
            taught = self.teacher(strategy.mb_x)
        logits = query_logits(strategy.mb_output)
        distance = logit_distillation(
            logits,
            query_logits(self.corrected(taught)),
            valid_points(taught),
            temperature=self.temperature,
        )
        kept = (1 - self.old_share) * strategy.loss
        strategy.loss = kept + self.old_share * self.distillation_weight * distance

    def after_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Choose exemplars, fit the correction and keep the model as teacher."""
        self.storage_policy.update_from_dataset(self._taught, strategy)
        self._taught = None
        if self.teacher is not None:
            self._add_correction(strategy)
        self.teacher = frozen_copy(strategy.model)

    def after_forward(self, strategy: Any, **kwargs: Any) -> None:
        """Correct the output by what is frozen."""
        strategy.mb_output = self.corrected(strategy.mb_output)

    def after_eval_forward(self, strategy: Any, **kwargs: Any) -> None:
        """Correct the output."""
        strategy.mb_output = self.corrected(strategy.mb_output)

    def corrected(self, output: Tensor) -> Tensor:
        """Output with the corrections fitted so far.

        :param output: (B, K + 2, P) packed output.
        :return: (B, K + 2, P); padding stays zero.
        """
        if not len(self.bias_layers):
            return output
        valid = valid_points(output)[:, None]
        scale, shift = self._scale_and_shift(output)
        return (scale * output + shift) * valid

    def _scale_and_shift(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """(C, 1) numbers of each channel."""
        # One pass for all layers: each by itself would make a step cost more with every
        # experience.
        layers: list[Any] = list(self.bias_layers)
        channels = torch.cat([layer.clss for layer in layers])
        alpha = torch.cat([layer.alpha.expand(len(layer.clss)) for layer in layers])
        beta = torch.cat([layer.beta.expand(len(layer.clss)) for layer in layers])
        scale = output.new_ones(output.shape[1])
        shift = output.new_zeros(output.shape[1])
        scale[channels], shift[channels] = alpha.to(scale), beta.to(shift)
        return scale[:, None], shift[:, None]

    def _new_queries(self, model: Any) -> list[int]:
        """Queries that have been taught since the teacher was kept."""
        new = model.taught_queries.clone()
        if self.teacher is not None:
            new[: len(self.teacher.taught_queries)] &= ~self.teacher.taught_queries
        return new.nonzero().flatten().tolist()

    def _add_correction(self, strategy: Any) -> None:
        layer = BiasLayer(self._new_queries(strategy.model)).to(strategy.device)
        logits, wanted = self._judged_points(strategy)
        fit_bias(layer, logits, wanted, decay=self.decay)
        self.bias_layers.append(layer)

    def _judged_points(self, strategy: Any) -> tuple[Tensor, Tensor]:
        """(N, K) logits at all points of held-out samples, and their targets, 0 or 1.

        Logits are corrected by the layers fitted so far.
        """
        logits, wanted = [], []
        with evaluating(strategy.model):
            for inputs, targets in batches_of(self.held_out.buffer, strategy):
                output = self.corrected(strategy.model(inputs))
                scores, valid = query_logits(output).float(), valid_points(output)
                n_steps = targets.valid.shape[1]
                grid = point_grid(output.shape[-1], n_steps, output.device)
                taught = strategy.model.taught_queries
                answers = assign_points(grid, targets, taught).classes
                # (B, K, P) -> (valid points of all samples, K)
                logits.append(scores.transpose(1, 2)[valid])
                wanted.append(answers.transpose(1, 2)[valid])
        return torch.cat(logits), torch.cat(wanted)


def fit_bias(
    layer: BiasLayer,
    logits: Tensor,
    wanted: Tensor,
    *,
    decay: float,
    alpha: float = 0.25,
    gamma: float = 2.0,
) -> None:
    """Fit a layer's alpha and beta, then freeze them.

    Minimised is the focal loss over the positives of the layer's channels, plus
    decay / 2 * ((alpha - 1)^2 + beta^2), as a whole: no learning rate, no draws.

    :param logits: (N, K).
    :param wanted: (N, K) 0 or 1.
    :param decay: at least 0.
    :param alpha: focal weight of positives.
    :param gamma: focal exponent.
    """
    n_positive = wanted[:, layer.clss].sum().clamp(min=1)
    solver = torch.optim.LBFGS(
        layer.parameters(), max_iter=100, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        solver.zero_grad()
        terms = sigmoid_focal_loss(layer(logits), wanted, alpha=alpha, gamma=gamma)
        pull = ((layer.alpha - 1) ** 2 + layer.beta**2).sum()
        value = terms[:, layer.clss].sum() / n_positive + decay / 2 * pull
        torch.autograd.backward(value)
        return value

    with torch.enable_grad():
        solver.step(loss)
    layer.requires_grad_(False)
    layer.zero_grad()
