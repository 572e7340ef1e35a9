"""ViLCo: prompts for the long term, exemplars for the short, narrations as teacher.

Tang et al., "ViLCo-Bench: VIdeo Language COntinual learning Benchmark", NeurIPS 2024
Datasets and Benchmarks, arXiv 2406.13123, section 4 and appendix C.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from avalanche.core import SupervisedPlugin
from avalanche.evaluation.metric_results import MetricValue
from avalanche.training.storage_policy import ExemplarsBuffer
from msgspec import Meta
from torch import Tensor

from avalanche_vilco.core.settings import check_options, check_value, option_types
from avalanche_vilco.data.text.narrations import ClipNarrations
from avalanche_vilco.models.losses import narration_contrast
from avalanche_vilco.models.narration_aligner import (
    install_aligner,
    narrated_embeddings,
)
from avalanche_vilco.models.prompt_memory import PromptSelection, install_prompts
from avalanche_vilco.training.experiences import stream_dataset
from avalanche_vilco.training.plugins.replay import ReplayPlugin
from avalanche_vilco.training.storage_policy import fair_shares


def _check_fields(part: Any) -> None:
    check_options("ViLCo", vars(part), option_types(type(part)))


@dataclass(frozen=True, kw_only=True)
class PromptOptions:
    """The long-term memory.

    :param n_prompts: prompts m.
    :param prompt_length: tokens L of a prompt.
    :param top_n: prompts N of a query.
    :param prompt_mode: ``"replace"`` or ``"prepend"``, see ``PromptMemory``. Language
        and visual queries take ``"prepend"`` alone.
    :param pull_weight: weight of a term that draws keys to the queries that found
        them, at least 0; the paper has none, the public code 0.1.
    :raises ValueError: a parameter is out of range.
    """

    n_prompts: Annotated[int, Meta(ge=1)] = 10
    prompt_length: Annotated[int, Meta(ge=1)] = 4
    top_n: Annotated[int, Meta(ge=1)] = 4
    prompt_mode: Literal["replace", "prepend"] = "replace"
    pull_weight: Annotated[float, Meta(ge=0)] = 0.0

    def __post_init__(self) -> None:
        _check_fields(self)


@dataclass(frozen=True, kw_only=True)
class NarrationOptions:
    """Narrations as teacher.

    :param ssl_weight: weight of the contrastive loss on narrations; 0: none. Needs a
        benchmark built with ``narrations=True``. The public code: 0.03.
    :param temperature: of the contrastive loss, > 0.
    :param bank_size: sentences of earlier experiences kept as negatives.
    :param narration_dropout: share of a sentence's channels hidden at each step, in
        [0, 1): the augmented narrations of the paper, which does not say how.
    :raises ValueError: a parameter is out of range.
    """

    ssl_weight: Annotated[float, Meta(ge=0)] = 0.03
    temperature: Annotated[float, Meta(gt=0)] = 0.07
    bank_size: Annotated[int, Meta(ge=0)] = 256
    narration_dropout: Annotated[float, Meta(ge=0, lt=1)] = 0.1

    def __post_init__(self) -> None:
        _check_fields(self)


class ViLCoPlugin(SupervisedPlugin):
    """ViLCo for any strategy that trains one of our localisers.

    The three parts can be switched off one by one; under a strategy that replays by
    itself leave ``mem_size`` at 0::

        Replay(..., plugins=[ViLCoPlugin()])

    Where the paper and its public code differ, this follows the paper: prompts replace
    the words (the code prepends them, and a mask then hides the words), keys learn
    from the task's loss, each query finds its prompts by itself and no experience is
    told apart, the contrastive loss is symmetric, and no positive is among its own
    negatives (in the code each is, through the bank).

    :param long_term: have prompts.
    :param prompts: their number and how they learn.
    :param mem_size: training samples kept for replay; 0: no short-term memory.
    :param storage_policy: what is kept, of capacity ``mem_size``; default an
        ``ExperienceShareBuffer``.
    :param narrations: weight and form of the contrastive loss; weight 0: none.
    :param seed: of initial prompts, of the bank and of the augmentation.
    :raises ValueError: a parameter is out of range.
    """

    def __init__(
        self,
        *,
        long_term: bool = True,
        mem_size: Annotated[int, Meta(ge=0)] = 0,
        storage_policy: ExemplarsBuffer | None = None,
        prompts: PromptOptions = PromptOptions(),
        narrations: NarrationOptions = NarrationOptions(),
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_value("mem_size", mem_size, Annotated[int, Meta(ge=0)])
        self.long_term = long_term
        self.prompts = prompts
        self.narrations = narrations
        if storage_policy is not None and storage_policy.max_size != mem_size:
            raise ValueError(
                f"expected a storage policy of capacity mem_size={mem_size} but got "
                f"one of {storage_policy.max_size}"
            )
        self.replay: ReplayPlugin | None = None
        if mem_size:
            self.replay = ReplayPlugin(mem_size, storage_policy=storage_policy)
        self.seed = seed
        self.bank = NarrationBank(narrations.bank_size, seed=seed)
        """Sentences of earlier experiences."""
        self.usage: list[list[float]] = []
        """For each experience learnt, the share of its selections that went to each
        prompt; sums to 1."""
        self._counts: Tensor | None = None
        self._encoded: tuple[Tensor, Tensor] | None = None
        self._selection: PromptSelection | None = None
        self._hooks: list[Any] = []

    def kept(self) -> tuple[Any, ...]:
        """Exemplars, and sentences of earlier experiences."""
        return self.replay, self.bank.embeddings, self.bank.sentences

    def installed_parts(self, model: Any) -> list[Any]:
        """Prompts, and the layer that brings narrations to the video's space."""
        parts = [
            getattr(model, n, None) for n in ("prompt_memory", "narration_aligner")
        ]
        return [part for part in parts if part is not None]

    def before_train_dataset_adaptation(self, strategy: Any, **kwargs: Any) -> None:
        """Give the model its parts, before its parameters go to the optimizer."""
        model, experience = strategy.model, getattr(strategy, "experience", None)
        if self.long_term and model.prompt_memory is None:
            needs_text = getattr(model, "needs_text", False)
            if self.prompts.prompt_mode == "replace" and needs_text:
                raise ValueError(
                    "expected prompt_mode 'prepend' but got 'replace': each sample "
                    "comes with a query of its own, whose words or crop prompts alone "
                    "cannot carry"
                )
            install_prompts(
                model,
                model.query_embeddings(experience),
                n_prompts=self.prompts.n_prompts,
                length=self.prompts.prompt_length,
                top_n=self.prompts.top_n,
                mode=self.prompts.prompt_mode,
                seed=self.seed,
            )
        if self.narrations.ssl_weight and not hasattr(model, "narration_aligner"):
            width = _narrations(experience).width
            install_aligner(model, width, seed=self.seed)

    def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Mix exemplars into the batches."""
        if self.replay is not None:
            self.replay.before_training_exp(strategy, **kwargs)

    def before_forward(self, strategy: Any, **kwargs: Any) -> None:
        """Listen to the prompts and, with sentences to compare, to the encoder."""
        model = strategy.model
        if self.long_term:
            self._hooks.append(
                model.prompt_memory.register_forward_hook(self._keep_selection)
            )
        if self.narrations.ssl_weight and strategy.mb_x.narrations is not None:
            hook = model.narrated_module.register_forward_hook(self._keep_encoded)
            self._hooks.append(hook)

    def after_forward(self, strategy: Any, **kwargs: Any) -> None:
        """Leave no hook on the model."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _keep_selection(
        self, module: Any, inputs: Any, output: PromptSelection
    ) -> None:
        self._selection = output
        counts = output.chosen.sum(0)
        self._counts = counts if self._counts is None else self._counts + counts

    def _keep_encoded(
        self, module: Any, inputs: Any, output: tuple[Tensor, Tensor]
    ) -> None:
        self._encoded = output

    def before_backward(self, strategy: Any, **kwargs: Any) -> None:
        """Add the terms of narrations and keys to the loss."""
        if self._encoded is not None:
            strategy.loss += self.narrations.ssl_weight * self._narration_loss(strategy)
            self._encoded = None
        if self._selection is not None:
            if self.prompts.pull_weight:
                pull = strategy.model.prompt_memory.pull(self._selection)
                strategy.loss += self.prompts.pull_weight * pull
            self._selection = None

    def _narration_loss(self, strategy: Any) -> Tensor:
        assert self._encoded is not None
        features, valid = self._encoded
        clips = strategy.mb_x
        video = narrated_embeddings(features.float(), valid, clips.narrated)
        video = video.flatten(0, 1)
        # An empty last channel dim stands for a batch in which there is no narration.
        if not clips.narrations.shape[2]:
            return video.sum() * 0.0
        align = strategy.model.narration_aligner
        text = align(self._augmented(clips.narrations, strategy)).flatten(0, 1)
        self.bank.to(text.device)
        return narration_contrast(
            video,
            text,
            clips.sentences.flatten(),
            temperature=self.narrations.temperature,
            stored=align(self.bank.embeddings) if len(self.bank) else None,
            stored_sentences=self.bank.sentences,
        )

    def _augmented(self, narrations: Tensor, strategy: Any) -> Tensor:
        dropout = self.narrations.narration_dropout
        if not dropout:
            return narrations
        # Own draws, so that those of the strategy are the same without narrations.
        draw = torch.Generator(narrations.device)
        draw.manual_seed(self.seed * 1_000_003 + strategy.clock.train_iterations)
        draws = torch.rand(narrations.shape, generator=draw, device=narrations.device)
        return narrations * (draws >= dropout) / (1 - dropout)

    def after_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Store exemplars and sentences, and log which prompts are in use."""
        if self.replay is not None:
            self.replay.after_training_exp(strategy, **kwargs)
        if self.narrations.ssl_weight:
            experience = strategy.experience
            self.bank.update(_narrations(experience), experience.dataset.clip_ids)
        if not self.long_term:
            return
        assert self._counts is not None
        self.usage.append((self._counts / self._counts.sum()).tolist())
        self._counts = None
        at = strategy.clock.train_iterations
        for i, share in enumerate(self.usage[-1]):
            name = f"PromptUsage/train_phase/prompt{i:03d}"
            value = MetricValue(self, name, share, at)  # type: ignore[arg-type]
            strategy.evaluator.publish_metric_value(value)


class NarrationBank:
    """Embeddings of sentences of earlier experiences, shared equally by them.

    :param size: sentences at most.
    :param seed: of the choice.
    """

    def __init__(self, size: int, *, seed: int = 0) -> None:
        self.size = size
        self.seed = seed
        self.embeddings = torch.zeros(0, 0)
        """(M, C) float32."""
        self.sentences = torch.zeros(0, dtype=torch.long)
        """(M,) numbers of their wording."""
        self._counts: list[int] = []

    def __len__(self) -> int:
        return len(self.sentences)

    def to(self, device: torch.device) -> None:
        """Move, where it lies elsewhere."""
        if self.sentences.device != device:
            self.embeddings = self.embeddings.to(device)
            self.sentences = self.sentences.to(device)

    def update(self, narrations: ClipNarrations, clip_ids: Any) -> None:
        """Take in sentences of an experience.

        Those kept are in random order, so earlier experiences give up their last ones.

        :param narrations: the benchmark's.
        :param clip_ids: clips of the experience.
        """
        new = self._draw(narrations, clip_ids, self.size)
        shares = fair_shares([*self._counts, len(new[1])], self.size)
        rows, numbers = (
            [*stored.cpu().split(self._counts), drawn]
            for stored, drawn in zip(
                (self.embeddings, self.sentences), new, strict=True
            )
        )
        parts = [
            (rows[i][:share], numbers[i][:share]) for i, share in enumerate(shares)
        ]
        self._counts = [len(numbers) for _, numbers in parts]
        filled = [part for part in parts if len(part[1])] or parts[:1]
        self.embeddings = torch.cat([rows for rows, _ in filled])
        self.sentences = torch.cat([numbers for _, numbers in filled])

    def _draw(
        self, narrations: ClipNarrations, clip_ids: Any, quota: int
    ) -> tuple[Tensor, Tensor]:
        """One random sentence of a clip after another, up to the quota."""
        draw = torch.Generator()
        draw.manual_seed(self.seed * 1_000_003 + len(self._counts))
        order = torch.randperm(len(clip_ids), generator=draw).tolist()
        rows: list[Tensor] = []
        numbers: list[Tensor] = []
        for i in order:
            if len(rows) == quota:
                break
            embeddings, _, sentences = narrations.of_clip(clip_ids[i])
            if len(sentences):
                one = int(torch.randint(len(sentences), (), generator=draw))
                rows.append(embeddings[one])
                numbers.append(sentences[one])
        if not rows:
            return torch.zeros(0, 0), torch.zeros(0, dtype=torch.long)
        return torch.stack(rows), torch.stack(numbers)


def _narrations(experience: Any) -> ClipNarrations:
    data = stream_dataset(experience)
    if data is None or data.narrations is None:
        raise ValueError(
            "ViLCo's self-supervision needs narrations: build the benchmark with "
            "narrations=True, or pass ssl_weight=0"
        )
    return data.narrations
