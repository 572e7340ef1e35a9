"""Frozen image encoders of visual queries, through timm."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any

import timm
import torch
from safetensors.torch import load_file
from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn
from torch import Tensor, nn

DINOV2 = "vit_base_patch14_dinov2.lvd142m"
# Of the pixels that DINOv2 was trained on, in [0, 1].
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class FrozenViT(nn.Module):
    """A vision transformer whose weights never change.

    The weights are buffers: they move and are saved with a model, but no optimizer,
    penalty or importance sees them. A deep copy of a model shares them.

    :param vit: timm's transformer, with ``forward_features`` and ``patch_embed``.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, vit: Any) -> None:
        super().__init__()
        self.vit = vit
        self.dim: int = vit.embed_dim
        """Channels C of the embeddings."""
        self.stride: int = vit.patch_embed.patch_size[0]
        """Pixels from one embedding to the next."""
        self.register_buffer("mean", torch.tensor(_MEAN).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(_STD).view(3, 1, 1))
        for part in vit.modules():
            for name, weight in list(part.named_parameters(recurse=False)):
                delattr(part, name)
                part.register_buffer(name, weight.detach())
        self.train(False)

    def train(self, mode: bool = True) -> FrozenViT:
        """Stays in evaluation mode."""
        return super().train(False)

    def __deepcopy__(self, memo: dict[int, Any]) -> FrozenViT:
        return self

    @torch.no_grad()
    def forward(self, pixels: Tensor) -> Tensor:
        """Encode pictures.

        :param pixels: (N, 3, H, W) uint8 RGB, H and W multiples of the stride.
        :return: (N, C, H / stride, W / stride) float.
        :raises ValueError: H or W is no multiple of the stride.
        """
        if any(size % self.stride for size in pixels.shape[-2:]):
            raise ValueError(
                f"expected pictures whose sides are multiples of {self.stride} pixels "
                f"but got {tuple(pixels.shape[-2:])}"
            )
        scaled = pixels.to(self.mean.dtype) / 255
        tokens = self.vit.forward_features((scaled - self.mean) / self.std)
        patches = tokens[:, self.vit.num_prefix_tokens :]
        height, width = (size // self.stride for size in pixels.shape[-2:])
        return patches.transpose(1, 2).unflatten(2, (height, width))


@contextmanager
def _draws_from(seed: int) -> Iterator[None]:
    """Draw from a seed, and leave torch's own generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def dinov2(weights: Path | str | None = None) -> FrozenViT:
    """DINOv2 ViT-B/14 (Oquab et al. 2023), for pictures of 448 pixels.

    Its position embeddings are interpolated where the weights are those of 518 pixels,
    as published. torch's own generator is not drawn from, wherever the weights come
    from.

    :param weights: a file with timm's weights (safetensors, or a state dict saved by
        torch); None takes them from timm's hub, or from its cache, ``"random"`` draws
        them, the same in every run, for tests of size and speed.
    :raises FileNotFoundError: no such file, or neither hub nor cache has the weights.
    :raises ValueError: the file does not hold them.
    """
    with _draws_from(0):
        vit = _create(is_pretrained=weights is None)
    if weights is not None and weights != "random":
        _load(vit, Path(weights).expanduser())
    return FrozenViT(vit)


def _create(*, is_pretrained: bool) -> nn.Module:
    sizes = {"num_classes": 0, "img_size": 448, "dynamic_img_size": True}
    try:
        return timm.create_model(DINOV2, pretrained=is_pretrained, **sizes)
    except (OSError, RuntimeError) as error:
        if not is_pretrained:
            raise
        raise FileNotFoundError(
            f"no weights of {DINOV2}: timm's hub cannot be reached and its cache "
            "does not hold them; pass weights=FILE, fetched with another machine "
            f"({type(error).__name__}: {error})"
        ) from error


def _load(vit: nn.Module, file: Path) -> None:
    if not file.is_file():
        raise FileNotFoundError(f"no weights at {file}")
    # What a damaged file, or one of something else, raises depends on where it breaks.
    try:
        if file.suffix == ".safetensors":
            state = load_file(file)
        else:
            state = torch.load(file, weights_only=True, map_location="cpu")
        vit.load_state_dict(checkpoint_filter_fn(state, vit))
    except Exception as error:
        raise ValueError(
            f"{file}: expected timm's weights of {DINOV2}, as safetensors or a saved "
            f"state dict, but got {type(error).__name__}: {shorten(str(error), 300)}"
        ) from error


def random_vit(
    *, image_size: int, patch: int, dim: int, depth: int, n_heads: int, seed: int = 0
) -> FrozenViT:
    """A small transformer with drawn weights; torch's own generator is not drawn from.

    :param image_size: pixels of a picture that positions are meant for.
    :param patch: pixels of a patch.
    :param dim: width.
    :param depth: blocks.
    :param n_heads: heads.
    :param seed: of the weights.
    """
    with _draws_from(seed):
        vit = VisionTransformer(
            img_size=image_size,
            patch_size=patch,
            embed_dim=dim,
            depth=depth,
            num_heads=n_heads,
            num_classes=0,
            class_token=False,
            global_pool="",
            dynamic_img_size=True,
        )
    return FrozenViT(vit)
