"""Batch objects that behave like tensors along dim 0.

Avalanche's loaders, buffers and plugins move, slice and concatenate the two things
of a mini-batch, ``x`` and ``y``. Here both are bundles of tensors that share dim 0
and answer the same calls, so stock plugins need not know what they carry. What wants a
single tensor of them (accuracy, a loss of torch, an image model) is told what to pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import resolve_name
from torch.utils.data._utils.collate import default_collate_fn_map

Batch = TypeVar("Batch", bound="TensorBatch")
Index = int | slice | Sequence[int] | Tensor


class TensorBatch:
    """Named tensors that share dim 0 and together act like one tensor along it.

    Subclasses list their fields in ``padding``: name -> value that fills ragged
    trailing dims when batches of unequal size are concatenated. Fields listed in
    ``optional`` may be absent, which reads as filled with their value. Offers
    ``to``, ``len``, ``size``, ``shape``, ``device``, indexing, ``clone``, ``detach``,
    ``cpu``, ``pin_memory`` and ``torch.cat``; other uses as a tensor are refused with
    what to pass ``instead``.

    :param fields: one tensor for each name in ``padding``.
    :raises TypeError: a field is absent or unknown.
    :raises ValueError: fields disagree on dim 0.
    """

    padding: ClassVar[Mapping[str, float]] = {}
    optional: ClassVar[Mapping[str, float]] = {}
    instead: ClassVar[str] = "what was made for it"

    def __init__(self, **fields: Tensor) -> None:
        if fields.keys() - self.optional.keys() != self.padding.keys():
            raise TypeError(
                f"{type(self).__name__} expected fields {sorted(self.padding)} "
                f"but got {sorted(fields)}"
            )
        sizes = {name: len(tensor) for name, tensor in fields.items()}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"fields differ in batch size: {sizes}")
        self.__dict__.update({**dict.fromkeys(self.optional), **fields})

    def fields(self) -> dict[str, Tensor]:
        """The tensors by name, without absent ones."""
        named = ((n, self.__dict__.get(n)) for n in (*self.padding, *self.optional))
        return {name: tensor for name, tensor in named if tensor is not None}

    def map(self: Batch, function: Callable[[Tensor], Tensor]) -> Batch:
        """The batch with a function applied to each tensor."""
        return type(self)(**{n: function(t) for n, t in self.fields().items()})

    def to(
        self: Batch,
        device: Any = None,
        dtype: Any = None,
        non_blocking: bool = False,
        **ignored: Any,
    ) -> Batch:
        """Move to a device; dtypes stay, whatever is asked.

        :param device: a device, a tensor that is on it, or, as the first argument of
            :meth:`torch.Tensor.to` may be, a dtype.
        :param dtype: ignored, as other arguments of :meth:`torch.Tensor.to` are.
        :param non_blocking: as there.
        """
        if device is None or isinstance(device, torch.dtype):
            return self
        where = getattr(device, "device", device)
        return self.map(lambda t: t.to(where, non_blocking=non_blocking))

    def cpu(self: Batch) -> Batch:
        """Move to the CPU."""
        return self.to("cpu")

    def clone(self: Batch) -> Batch:
        """Copy."""
        return self.map(Tensor.clone)

    def detach(self: Batch) -> Batch:
        """Cut from the graph."""
        return self.map(Tensor.detach)

    def pin_memory(self: Batch) -> Batch:
        """Copy to page-locked memory."""
        return self.map(Tensor.pin_memory)

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return next(iter(self.fields().values())).device

    @property
    def shape(self) -> torch.Size:
        """(B,): what stock code may rely on."""
        return torch.Size([len(self)])

    def size(self, dim: int | None = None) -> torch.Size | int:
        """As :meth:`torch.Tensor.size`."""
        return self.shape if dim is None else self.shape[dim]

    def __len__(self) -> int:
        return len(next(iter(self.fields().values())))

    def __getitem__(self: Batch, index: Index) -> Batch:
        chosen = index if isinstance(index, slice) else self._checked(index)
        return self.map(lambda t: t[chosen])

    def _checked(self, index: int | Sequence[int] | Tensor) -> slice | Tensor:
        chosen = torch.as_tensor(index, device=self.device)
        if not chosen.ndim:
            place = range(len(self))[int(chosen)]
            return slice(place, place + 1)
        # An empty list became a float tensor.
        return chosen if len(chosen) else chosen.long()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({_shapes(self.fields())})"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            message = f"{type(self).__name__!r} object has no attribute {name!r}"
            # Copy and pickle look for __names__.
            advice = "" if name.startswith("__") else f": {self._advice()}"
            raise AttributeError(message + advice)

    @classmethod
    def cat(cls: type[Batch], tensors: Sequence[Batch], dim: int = 0) -> Batch:
        """Concatenate along dim 0, padding ragged trailing dims.

        :param tensors: at least one batch of this class.
        :param dim: 0; here because :func:`torch.cat` has it.
        """
        if dim != 0:
            raise ValueError(f"expected dim 0 but got {dim}: batches join along dim 0")
        if {type(batch) for batch in tensors} != {cls}:
            names = [type(batch).__name__ for batch in tensors]
            raise TypeError(f"expected batches of one class but got {names}")
        return _joined(cls, [batch.fields() for batch in tensors], torch.cat, n_given=1)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func not in (torch.cat, torch.concat):
            cls._refuse(resolve_name(func) or func.__name__)
        return cls.cat(*args, **(kwargs or {}))

    @classmethod
    def _advice(cls) -> str:
        read = f"or code that reads its {', '.join(cls.padding)}"
        return f"it is no tensor; give the strategy {cls.instead}, {read}"

    @classmethod
    def _refuse(cls, wanted: str) -> NoReturn:
        raise TypeError(f"{wanted} cannot take {cls.__name__}: {cls._advice()}")

    def __array__(self, *_: Any, **__: Any) -> Any:
        self._refuse("conversion to a tensor")

    # Without them torch.as_tensor takes a batch for sequences without end.
    __dlpack__ = __dlpack_device__ = __array__

    def __add__(self, *_: Any) -> Any:
        self._refuse("arithmetic")

    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __pow__ = __neg__ = __add__
    __truediv__ = __rtruediv__ = __matmul__ = __rmatmul__ = __lt__ = __gt__ = __add__

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Tensor):
            self._refuse("comparison")
        return self is other

    __hash__ = object.__hash__


class TensorSample(dict[str, Tensor]):
    """Tensors of one sample, by name: those of a batch without the batch dim."""

    def __repr__(self) -> str:
        return f"TensorSample({_shapes(self)})"


def _shapes(tensors: Mapping[str, Tensor]) -> str:
    shown = [f"{name}={tuple(tensor.shape)}" for name, tensor in tensors.items()]
    devices = {f"device={tensor.device}": None for tensor in tensors.values()}
    return ", ".join([*shown, *devices])


def _refuse_default_collate(samples: Sequence[TensorSample], **_: Any) -> NoReturn:
    raise TypeError(
        f"torch's default_collate cannot join {samples[0]} and others of its kind: "
        "pass collate_fn=dataset.collate_fn to the DataLoader. Strategies do where "
        "experiences have task_labels; Avalanche's benchmark_with_validation_stream "
        "drops them: build the benchmark with valid_share=0.2 instead"
    )


default_collate_fn_map[TensorSample] = _refuse_default_collate


def _joined(
    kind: type[Batch],
    parts: Sequence[Mapping[str, Tensor]],
    join: Callable[[list[Tensor]], Tensor],
    n_given: int,
) -> Batch:
    """Parts stacked or concatenated field by field, padded to one size.

    :param parts: a field that only some have is empty, to be padded, in the others.
    :param n_given: leading dims that are not padded: 1 where batches are concatenated.
    """
    optional = {n: v for n, v in kind.optional.items() if any(n in p for p in parts)}
    fields: dict[str, Tensor] = {}
    for name, value in {**kind.padding, **optional}.items():
        like = next(part[name] for part in parts if name in part)
        empty = [0] * (like.ndim - n_given)
        tensors = [
            part[name]
            if name in part
            else like.new_empty(*next(iter(part.values())).shape[:n_given], *empty)
            for part in parts
        ]
        fields[name] = join(_padded(tensors, value, n_given))
    return kind(**fields)


def _padded(tensors: Sequence[Tensor], value: float, n_given: int) -> list[Tensor]:
    """Tensors filled at the end of each dim but the first, to one size."""
    sizes = zip(*(tensor.shape[n_given:] for tensor in tensors), strict=True)
    largest = list(map(max, sizes))
    padded = []
    for tensor in tensors:
        lacking = [
            want - have
            for have, want in zip(tensor.shape[n_given:], largest, strict=True)
        ]
        # F.pad counts dims from the last, with what to add before and after each.
        pads = [n for lack in reversed(lacking) for n in (0, lack)]
        padded.append(F.pad(tensor, pads, value=value) if any(pads) else tensor)
    return padded


NARRATION_PADDING = {"narrations": 0.0, "narrated": 0.0, "sentences": -1}


class ClipBatch(TensorBatch):
    """Video features of a batch of clips: what the model may see."""

    padding: ClassVar[Mapping[str, float]] = {"features": 0.0, "valid": False}
    optional: ClassVar[Mapping[str, float]] = {"shown": True, **NARRATION_PADDING}
    instead = "model=vilco_mq_tiny(), evaluator=localization_evaluator()"

    features: Tensor
    """(B, T, C) float32, zero beyond a clip's end."""
    valid: Tensor
    """(B, T) bool, True on the clip's own steps, which come first."""
    shown: Tensor | None
    """(B, K) bool, the queries whose text the model sees with the clip; None, as
    everywhere but in the reference protocol: all queries learnt so far."""
    narrations: Tensor | None
    """(B, S, C) float32 embeddings of sentences about the clip, for self-supervision;
    None, as in evaluation: no model looks at them to localise."""
    narrated: Tensor | None
    """(B, S, 2) float32 grid steps that the sentences are about."""
    sentences: Tensor | None
    """(B, S) int64, equal where the wording is, -1 where there is no sentence."""


class QueryClipBatch(ClipBatch):
    """Video features of a batch of clips, and the question asked of each.

    A clip that several questions are asked of is in the batch several times.
    """

    padding: ClassVar[Mapping[str, float]] = {
        **ClipBatch.padding,
        "tokens": 0.0,
        "valid_tokens": False,
    }
    instead = "model=vilco_nlq_tiny(), evaluator=localization_evaluator()"

    tokens: Tensor
    """(B, L, C) float32 token features of the questions, zero beyond a question's end;
    C is not the video features' width."""
    valid_tokens: Tensor
    """(B, L) bool, True on the question's own tokens, which come first."""


class MomentTargets(TensorBatch):
    """Ground truth of a batch of clips, and the geometry to read outputs with.

    Decoding uses ``valid``, ``duration_sec`` and ``features_per_sec`` alone; the
    criterion and the metrics use the rest.
    """

    padding: ClassVar[Mapping[str, float]] = {
        "valid": False,
        "segments": 0.0,
        "segments_sec": 0.0,
        "labels": -1,
        "asked": False,
        "duration_sec": 0.0,
        "features_per_sec": 0.0,
        "sample": -1,
    }
    instead = "criterion=MomentLoss(), evaluator=localization_evaluator()"

    valid: Tensor
    """(B, T) bool, as in :class:`ClipBatch`."""
    segments: Tensor
    """(B, N, 2) float32 windows in grid steps."""
    segments_sec: Tensor
    """(B, N, 2) float64 windows in clip seconds."""
    labels: Tensor
    """(B, N) int64 query channel of each window, -1 where there is none."""
    asked: Tensor
    """(B, K) bool, the queries asked of the clip; K of the whole benchmark."""
    duration_sec: Tensor
    """(B,) float64."""
    features_per_sec: Tensor
    """(B,) float64."""
    sample: Tensor
    """(B,) int64, position of the sample in its stream's dataset."""


def collate_as(
    inputs_kind: type[TensorBatch],
    targets_kind: type[TensorBatch],
    samples: Sequence[Sequence[Any]],
) -> list[Any]:
    """Mini-batch of samples ``(inputs, targets, *attributes)``.

    :param inputs_kind: what the inputs become.
    :param targets_kind: what the targets become.
    :param samples: inputs and targets are dicts of tensors without the batch dim.
    :return: ``[inputs, targets, *attributes]``, attributes as tensors.
    """
    inputs, targets, *attributes = zip(*samples, strict=True)
    return [
        _joined(inputs_kind, inputs, torch.stack, n_given=0),
        _joined(targets_kind, targets, torch.stack, n_given=0),
        *(torch.as_tensor(values) for values in attributes),
    ]


collate_moments = partial(collate_as, ClipBatch, MomentTargets)
"""Mini-batch of clips: ``[ClipBatch, MomentTargets, *attributes]``."""

collate_queries = partial(collate_as, QueryClipBatch, MomentTargets)
"""Mini-batch of clips with a question each: inputs have tokens too."""
