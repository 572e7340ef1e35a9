"""What a strategy keeps besides its model: training samples and tensors.

A plugin of ours says what it keeps by ``kept()``: data sets, buffers, tensors and
modules, in any nesting of mappings and sequences; and which parts it gave the model by
``installed_parts(model)``. What stock plugins keep stands in a table here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from avalanche.benchmarks.scenarios import CLExperience
from avalanche.benchmarks.utils import AvalancheDataset
from avalanche.core import BasePlugin
from avalanche.training import plugins as stock
from avalanche.training.storage_policy import ExemplarsBuffer
from avalanche.training.utils import ParamData
from torch import Tensor, nn

from avalanche_vilco.core.batch import TensorBatch

_OF_STOCK: Mapping[type, Callable[[Any], Any]] = {
    stock.ReplayPlugin: lambda p: p.storage_policy,
    stock.GDumbPlugin: lambda p: (p.storage_policy, p.init_model),
    stock.EWCPlugin: lambda p: (p.saved_params, p.importances),
    stock.MASPlugin: lambda p: (p.params, p.importance),
    stock.SynapticIntelligencePlugin: lambda p: (p.ewc_data, p.syn_data),
    stock.LwFPlugin: lambda p: p.lwf.prev_model,
    stock.GEMPlugin: lambda p: (p.memory_y, p.memory_tid, p.G),
    stock.AGEMPlugin: lambda p: (p.buffers, p.reference_gradients),
    stock.FromScratchTrainingPlugin: lambda p: p.initial_weights,
    stock.RWalkPlugin: lambda p: (
        *(p.checkpoint_params, p.checkpoint_loss, p.checkpoint_scores),
        *(p.iter_grad, p.iter_importance, p.iter_params),
        *(p.exp_scores, p.exp_params, p.exp_importance, p.exp_penalties),
    ),
}
"""Attributes of stock plugins that hold something. GEM's inputs go with its targets,
which name the samples."""


@dataclass
class Kept:
    """Samples and tensors that a strategy keeps."""

    samples: set[int] = field(default_factory=set)
    """Positions in the train stream's data set."""
    tensors: list[Tensor] = field(default_factory=list)
    """Each once; none is the model's, unless the method installed it."""
    unused: int = 0
    """Places of buffers that hold nothing, in the unit of their size."""

    @property
    def auxiliary_bytes(self) -> int:
        """Bytes of the tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)


def kept_by(strategy: Any) -> Kept:
    """What a strategy keeps after training."""
    model, plugins = strategy.model, strategy.plugins
    installed = [
        part
        for plugin in plugins
        for part in getattr(plugin, "installed_parts", _nothing)(model)
    ]
    # A teacher may share a frozen backbone with the model.
    seen = {id(tensor) for tensor in _tensors(model)}
    seen -= {id(tensor) for part in installed for tensor in _tensors(part)}
    # Cumulative and JointTraining keep data on the strategy itself.
    data = [getattr(strategy, name, None) for name in ("dataset", "_experiences")]
    kept = Kept()
    for thing in _leaves([*plugins, *data, *installed]):
        if isinstance(thing, ExemplarsBuffer):
            slots = getattr(thing, "slots", None)
            filled = (
                len(thing.buffer) if slots is None else sum(map(len, slots.values()))
            )
            kept.unused += max(0, thing.max_size - filled)
        elif isinstance(thing, AvalancheDataset):
            kept.samples.update(thing.positions if len(thing) else ())
        elif isinstance(thing, TensorBatch):
            kept.samples.update(thing.fields()["sample"].tolist())
        elif id(thing) not in seen:
            seen.add(id(thing))
            kept.tensors.append(thing)
    return kept


def _nothing(*_: Any) -> Iterable[Any]:
    return ()


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _leaves(thing: Any) -> Iterator[Any]:
    """Data sets, targets, tensors and whole buffers in what a plugin keeps."""
    if isinstance(thing, (AvalancheDataset, TensorBatch, Tensor)):
        yield thing
    elif isinstance(thing, nn.Module):
        yield from _tensors(thing)
    elif isinstance(thing, CLExperience):
        yield thing.dataset
    elif isinstance(thing, ParamData):
        yield thing.data
    elif isinstance(thing, (Mapping, list, tuple)):
        for part in thing.values() if isinstance(thing, Mapping) else thing:
            yield from _leaves(part)
    elif isinstance(thing, ExemplarsBuffer):
        yield thing
        names = ("buffer", "buffer_groups", "_buffer_weights")
        parts = _leaves([getattr(thing, name, None) for name in names])
        # Places of a group are its buffer's.
        yield from (part for part in parts if not isinstance(part, ExemplarsBuffer))
    elif isinstance(thing, BasePlugin):
        of_stock = [
            of(thing) for cls, of in _OF_STOCK.items() if isinstance(thing, cls)
        ]
        yield from _leaves([of_stock, getattr(thing, "kept", _nothing)()])
