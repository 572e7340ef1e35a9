"""Frozen encoders: no parameters, no draws, and errors that name the file."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from avalanche_vilco.models import visual_backbone
from avalanche_vilco.models.visual_backbone import FrozenViT, dinov2, random_vit

STAND_IN = "test_vit.r160_in1k"
"""timm's smallest transformer, whose own pictures have 160 pixels."""


def tiny(**changes: Any) -> FrozenViT:
    options = {"image_size": 32, "patch": 8, "dim": 16, "depth": 1, "n_heads": 2}
    return random_vit(**{**options, **changes})


def pictures(n: int = 2, height: int = 32, width: int = 32) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    size = (n, 3, height, width)
    return torch.randint(0, 256, size, dtype=torch.uint8, generator=draw)


def test_no_optimizer_and_no_gradient_sees_the_weights() -> None:
    model = nn.ModuleDict({"backbone": tiny(), "head": nn.Linear(2, 2)})
    assert [name for name, _ in model.named_parameters()] == [
        "head.weight",
        "head.bias",
    ]
    assert "backbone.vit.blocks.0.attn.qkv.weight" in model.state_dict()
    assert not model["backbone"](pictures()).requires_grad


def test_training_mode_does_not_reach_the_encoder() -> None:
    model = nn.Sequential(tiny()).train()
    assert not any(part.training for part in model[0].modules())


@pytest.mark.parametrize("build", [tiny, lambda: dinov2("random")])
def test_drawing_weights_leaves_the_generator_as_it_was(
    build: Callable[[], FrozenViT], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visual_backbone, "DINOV2", STAND_IN)
    before = torch.random.get_rng_state()
    one = build()
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(3)
    torch.testing.assert_close(build().state_dict(), one.state_dict(), atol=0, rtol=0)


def test_encoder_survives_pickling() -> None:
    one = tiny()
    other = pickle.loads(pickle.dumps(one))
    assert not list(other.parameters())
    assert torch.equal(other(pictures()), one(pictures()))


def test_a_code_belongs_to_its_place() -> None:
    """Without blocks a patch does not see the others."""
    vit, pixels = tiny(depth=0), pictures(1)
    before = vit(pixels)
    pixels[..., 8:16, 24:32] //= 2
    changed = (vit(pixels) != before).any(dim=1)[0]
    assert changed.nonzero().tolist() == [[1, 3]]


def test_pixels_are_scaled_as_the_weights_expect() -> None:
    vit, pixels = tiny(), pictures()
    mean, std = (
        torch.tensor(x).view(3, 1, 1)
        for x in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    )
    tokens = vit.vit.forward_features((pixels / 255 - mean) / std)
    torch.testing.assert_close(vit(pixels).flatten(2).mT, tokens)


def test_tokens_that_are_no_places_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(visual_backbone, "DINOV2", STAND_IN)
    vit = dinov2("random")
    assert vit.vit.num_prefix_tokens == 1
    assert vit(pictures(1, 64, 96)).shape == (1, vit.dim, 4, 6)


@pytest.mark.parametrize("size", [(16, 16), (32, 32), (40, 24)])
def test_pictures_may_have_another_size(size: tuple[int, int]) -> None:
    codes = tiny()(pictures(2, *size))
    assert codes.shape == (2, 16, size[0] // 8, size[1] // 8)
    assert codes.isfinite().all()


def test_sides_that_patches_do_not_fill_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"multiples of 8.*\(32, 36\)"):
        tiny()(pictures(1, 32, 36))


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    """Weights for pictures of another size than ours, as DINOv2's are."""
    monkeypatch.setattr(visual_backbone, "DINOV2", STAND_IN)
    torch.manual_seed(5)
    return timm.create_model(STAND_IN, num_classes=0).state_dict()


def saved(state: Any, file: Path) -> Path:
    if file.suffix == ".safetensors":
        save_file(state, file)
    else:
        torch.save(state, file)
    return file


@pytest.mark.parametrize("name", ["weights.safetensors", "weights.pth"])
def test_published_weights_serve_pictures_of_448_pixels(
    name: str, tmp_path: Path, published: dict[str, Tensor]
) -> None:
    vit = dinov2(str(saved(published, tmp_path / name)))
    found = vit.vit.state_dict()
    assert found["pos_embed"].shape[1] == 1 + (448 // 16) ** 2
    assert published["pos_embed"].shape[1] == 1 + (160 // 16) ** 2
    for key in found.keys() - {"pos_embed"}:
        assert torch.equal(found[key], published[key]), key
    assert torch.equal(found["pos_embed"][:, 0], published["pos_embed"][:, 0])


def test_missing_file_of_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"gone\.safetensors"):
        dinov2(tmp_path / "gone.safetensors")


def truncated(state: dict[str, Tensor], file: Path) -> None:
    saved(state, file).write_bytes(file.read_bytes()[:5000])


def reshaped(state: dict[str, Tensor], file: Path) -> None:
    name = "blocks.0.mlp.fc1.weight"
    saved({**state, name: state[name][:3].clone()}, file)


DAMAGES: dict[str, Callable[[dict[str, Tensor], Path], Any]] = {
    "truncated": truncated,
    "reshaped": reshaped,
    "incomplete": lambda state, file: saved(
        {k: v for k, v in state.items() if k != "norm.weight"}, file
    ),
    "of something else": lambda state, file: saved(
        {"conv.weight": torch.zeros(2)}, file
    ),
    "empty": lambda state, file: file.touch(),
    "text": lambda state, file: file.write_text("<html>404: not found</html>"),
    "no state dict": lambda state, file: torch.save([1, 2], file),
}


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_file_that_does_not_hold_the_weights_is_named(
    damage: str, suffix: str, tmp_path: Path, published: dict[str, Tensor]
) -> None:
    file = tmp_path / f"weights{suffix}"
    DAMAGES[damage](published, file)
    which = r".*blocks\.0\.mlp\.fc1\.weight" if damage == "reshaped" else ""
    wanted = rf"(?s)weights\{suffix}: expected timm's weights{which}"
    with pytest.raises(ValueError, match=wanted):
        dinov2(file)


def test_unreachable_hub_is_said_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unreachable(*args: object, **kwargs: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(timm, "create_model", unreachable)
    with pytest.raises(FileNotFoundError, match=r"weights=FILE.*no route to host"):
        dinov2()
