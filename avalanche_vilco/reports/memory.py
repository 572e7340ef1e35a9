"""What a method keeps besides its model, in samples, clips, hours and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from avalanche_vilco.training.kept import kept_by


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
    (T x 3 x S x S) and of the crop (3 x S x S), uint8, or the float16 embeddings that a
    cached backbone made of them; videos and the windows of other epochs, which a
    method that draws a new one each time also reads, are not in it."""
    auxiliary_bytes: int
    """Tensors of the plugins (importances, old weights, teachers, stored narrations)
    and the parts that they gave the model (prompts)."""
    unused: int = 0
    """Places of the method's buffers that are empty in the end, in the unit of their
    size (samples, or class slots). Ours are filled as soon as so many samples were
    seen; stock ones leave empty what a small experience or class does not fill."""

    def to_dict(self) -> dict[str, float]:
        """JSON form."""
        return asdict(self)


def memory_figures(strategy: Any, benchmark: Any) -> MemoryFigures:
    """Count what a strategy keeps; the data set says what its samples weigh.

    :param strategy: after training.
    :param benchmark: that it was trained on. Its ``datasets["train"]`` has
        ``exemplar_bytes(positions)`` and ``samples`` with a ``clip`` each, and may have
        ``narrations``.
    """
    train, kept = benchmark.datasets["train"], kept_by(strategy)
    positions = sorted(kept.samples)
    clips = [train.samples[i].clip for i in positions]
    seconds = {clip.clip_id: clip.duration_sec for clip in clips}
    exemplar_bytes = train.exemplar_bytes(positions)
    narrations = getattr(train, "narrations", None)
    if narrations is not None and hasattr(strategy.model, "narration_aligner"):
        exemplar_bytes += _narration_bytes(narrations, list(seconds))
    return MemoryFigures(
        samples=len(positions),
        clips=len(seconds),
        hours=sum(seconds.values()) / 3600,
        share_of_training_samples=len(positions) / len(train),
        exemplar_bytes=exemplar_bytes,
        auxiliary_bytes=kept.auxiliary_bytes,
        unused=kept.unused,
    )


def _narration_bytes(narrations: Any, clips: Sequence[str]) -> int:
    """Bytes of the embeddings of the sentences that come with clips."""
    embeddings = [narrations.of_clip(clip_id)[0] for clip_id in clips]
    return sum(each.numel() * each.element_size() for each in embeddings)
