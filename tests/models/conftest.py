"""Hand-made clips, targets and queries for the tests of models."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from avalanche_vilco import vilco_mq_tiny
from avalanche_vilco.core.batch import ClipBatch, MomentTargets
from avalanche_vilco.models.moment_localizer import MomentLocalizer
from avalanche_vilco.ops.timeline import grid_to_seconds

FEATURE_DIM = 8
TEXT_DIM = 12
Window = tuple[float, float, int]


@dataclass(frozen=True)
class TextQuery:
    """A query as the model sees it."""

    class_index: int
    tokens: Tensor


def _text_query(
    channel: int, n_tokens: int = 3, *, width: int = TEXT_DIM, seed: int | None = None
) -> TextQuery:
    generator = torch.Generator().manual_seed(channel if seed is None else seed)
    return TextQuery(channel, torch.randn(n_tokens, width, generator=generator))


def _clip_batch(
    lengths: Sequence[int], *, width: int = FEATURE_DIM, seeds: Sequence[int] = ()
) -> ClipBatch:
    """Clips of the given lengths; a clip's features depend on its seed alone."""
    features = [
        torch.randn(n, width, generator=torch.Generator().manual_seed(seed))
        for n, seed in zip(lengths, seeds or range(len(lengths)), strict=True)
    ]
    valid = [torch.ones(n, dtype=torch.bool) for n in lengths]
    return ClipBatch(
        features=pad_sequence(features, True), valid=pad_sequence(valid, True)
    )


def _moment_targets(
    lengths: Sequence[int],
    windows: Sequence[Sequence[Window]] = (),
    *,
    n_queries: int = 4,
    asked: Sequence[Sequence[int]] | None = None,
    features_per_sec: float = 1.0,
) -> MomentTargets:
    """Targets with windows (start, end, channel) in grid steps."""
    windows = windows or [[] for _ in lengths]
    grid = [
        torch.tensor([w[:2] for w in own], dtype=torch.float64).reshape(-1, 2)
        for own in windows
    ]
    rates = torch.full((len(lengths),), features_per_sec, dtype=torch.float64)
    is_asked = torch.ones(len(lengths), n_queries, dtype=torch.bool)
    if asked is not None:
        is_asked = torch.zeros_like(is_asked)
        for row, channels in zip(is_asked, asked, strict=True):
            row[list(channels)] = True
    return MomentTargets(
        valid=pad_sequence([torch.ones(n, dtype=torch.bool) for n in lengths], True),
        segments=pad_sequence(grid, True).float(),
        segments_sec=pad_sequence(
            [grid_to_seconds(g, features_per_sec) for g in grid], True
        ),
        labels=pad_sequence(
            [torch.tensor([w[2] for w in own], dtype=torch.long) for own in windows],
            True,
            -1,
        ),
        asked=is_asked,
        duration_sec=torch.tensor(lengths, dtype=torch.float64) / rates,
        features_per_sec=rates,
        sample=torch.arange(len(lengths)),
    )


def _localizer(n_queries: int = 4, *, seed: int = 0) -> MomentLocalizer:
    """A tiny localiser with every parameter moved off its initial value."""
    torch.manual_seed(seed)
    model = vilco_mq_tiny(feature_dim=FEATURE_DIM, text_dim=TEXT_DIM)
    model.learn_queries([_text_query(i, 2 + i % 3) for i in range(n_queries)])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model.eval()


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def text_query() -> Callable[..., TextQuery]:
    return _text_query


@pytest.fixture(scope="session")
def clip_batch() -> Callable[..., ClipBatch]:
    return _clip_batch


@pytest.fixture(scope="session")
def moment_targets() -> Callable[..., MomentTargets]:
    return _moment_targets


@pytest.fixture(scope="session")
def localizer() -> Callable[..., MomentLocalizer]:
    return _localizer
