"""What a method keeps besides its model, in samples, clips, hours and bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from avalanche.benchmarks.scenarios import CLExperience
from avalanche.benchmarks.utils import AvalancheDataset
from avalanche.training.plugins import EvaluationPlugin
from torch import Tensor, nn

from avalanche_vilco.benchmarks.scenario import QueryIncrementalScenario
from avalanche_vilco.benchmarks.vilco_nlq.dataset import QueryDataset
from avalanche_vilco.benchmarks.vilco_vq.dataset import VisualDataset
from avalanche_vilco.core.batch import TensorBatch
from avalanche_vilco.data.moments import MomentDataset

FLOAT32_BYTES = 4
GIVEN_TO_THE_MODEL = ("prompt_memory", "narration_aligner")
"""Parts of a model that a method installs."""


@dataclass(frozen=True)
class MemoryFigures:
    """Memory of a method after its last experience."""

    samples: int
    """Training samples kept, the unit of Avalanche's ``mem_size``."""
    clips: int
    """Different clips among them."""
    hours: float
    """Video hours of these clips."""
    share_of_training_samples: float
    """Samples kept over samples of the train stream, in [0, 1]."""
    exemplar_bytes: int
    """What training reads of the samples kept, by reference or copied, and, where the
    method learns from them, float32 embeddings of their narrations. Of moments and
    language queries: float32 features of the clips, each counted once, and of the
    questions. Of visual queries: for each sample the pixels of one training window
    (T x 3 x S x S) and of the crop (3 x S x S), uint8, or the float16 codes that a
    cached backbone made of them; videos and the windows of other epochs, which a
    method that draws a new one each time also reads, are not in it."""
    auxiliary_bytes: int
    """Tensors of the plugins (importances, old weights, teachers, stored narrations)
    and the parts that they gave the model (prompts)."""

    def to_dict(self) -> dict[str, float]:
        """JSON form."""
        return asdict(self)


@dataclass
class _Found:
    samples: set[int] = field(default_factory=set)
    """Positions in the train stream."""
    auxiliary_bytes: int = 0


def memory_figures(strategy: Any, benchmark: QueryIncrementalScenario) -> MemoryFigures:
    """Look through a strategy's plugins for what they keep.

    :param strategy: after training.
    :param benchmark: that it was trained on.
    """
    train = benchmark.datasets["train"]
    found = _search(strategy)
    kept = sorted(found.samples)
    clips = {train.samples[i].clip.clip_id: train.samples[i].clip for i in kept}
    if isinstance(train, MomentDataset):
        shown = FLOAT32_BYTES * _feature_numbers(train, kept)
    else:
        shown = _picture_bytes(train, kept, benchmark.info["window"])
    told = FLOAT32_BYTES * _narration_numbers(strategy.model, train, clips)
    return MemoryFigures(
        samples=len(found.samples),
        clips=len(clips),
        hours=sum(c.duration_sec for c in clips.values()) / 3600,
        share_of_training_samples=len(found.samples) / len(train),
        exemplar_bytes=shown + told,
        auxiliary_bytes=found.auxiliary_bytes,
    )


def _feature_numbers(train: MomentDataset, kept: Sequence[int]) -> int:
    """Numbers of the features of samples' clips, and of the questions asked."""
    clips = {train.samples[i].clip.clip_id: train.samples[i].clip for i in kept}
    steps = sum(
        clip.duration_sec * clip.features_per_sec * train.store.time_scale(name)
        for name, clip in clips.items()
    )
    return round(steps) * train.store.width + _question_numbers(train, kept)


def _picture_bytes(train: VisualDataset, kept: Sequence[int], n_frames: int) -> int:
    """Bytes of a window's frames and of the crop, for each sample."""
    if train.embeddings is None:
        pictures = 3 * train.image_size**2 * len(kept)
    else:
        crops = (train.embeddings.crop(train.samples[i].query.query_id) for i in kept)
        pictures = sum(crop.numel() * crop.element_size() for crop in crops)
    return (n_frames + 1) * pictures


def _question_numbers(train: MomentDataset, kept: Iterable[int]) -> int:
    """Numbers of the token features of samples' own questions."""
    if not isinstance(train, QueryDataset):
        return 0
    ids = [train.samples[i].query.query_id for i in kept]
    return sum(train.tokens.read(query_id).numel() for query_id in ids)


def _narration_numbers(
    model: Any, train: MomentDataset | VisualDataset, clips: Iterable[str]
) -> int:
    """Numbers of the narrations that come with clips, if the model learns from them."""
    if train.narrations is None or not hasattr(model, "narration_aligner"):
        return 0
    return sum(train.narrations.of_clip(clip_id)[0].numel() for clip_id in clips)


def _search(strategy: Any) -> _Found:
    found = _Found()
    roots = [p for p in strategy.plugins if not isinstance(p, EvaluationPlugin)]
    # Cumulative and JointTraining keep data on the strategy itself.
    roots += [getattr(strategy, name, None) for name in ("dataset", "_experiences")]
    own = {id(strategy), id(strategy.model), id(strategy.optimizer)}
    own.update(id(p) for p in strategy.model.parameters())
    # A teacher may share a frozen backbone with the model.
    own.update(id(b) for b in strategy.model.buffers())
    added = [getattr(strategy.model, name, None) for name in GIVEN_TO_THE_MODEL]
    for part in added:
        own.difference_update(map(id, part.parameters()) if part is not None else ())
    roots += added
    for thing in _walk(roots, own):
        if isinstance(thing, AvalancheDataset):
            found.samples.update(thing.positions if len(thing) else ())
        elif isinstance(thing, TensorBatch):
            found.samples.update(thing.fields()["sample"].tolist())
        elif isinstance(thing, Tensor):
            found.auxiliary_bytes += thing.numel() * thing.element_size()
    return found


def _walk(roots: list[Any], seen: set[int]) -> Iterator[Any]:
    """Datasets, targets and tensors reachable from objects, each once. Inputs of
    batches are counted by the samples of their targets.
    """
    queue = list(roots)
    while queue:
        thing = queue.pop()
        if id(thing) in seen or isinstance(thing, type):
            continue
        seen.add(id(thing))
        if isinstance(thing, TensorBatch):
            if "sample" in thing.padding:
                yield thing
        elif isinstance(thing, (AvalancheDataset, Tensor)):
            yield thing
        elif isinstance(thing, CLExperience):
            queue.append(thing.dataset)
        elif isinstance(thing, nn.Module):
            queue += [*thing.parameters(), *thing.buffers()]
        elif isinstance(thing, dict):
            queue += thing.values()
        elif isinstance(thing, (list, tuple, set)):
            queue += thing
        elif hasattr(thing, "__dict__"):
            queue += vars(thing).values()
