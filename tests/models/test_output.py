"""The packed output and the pyramid that is read back from its size."""

import pytest
import torch

from avalanche_vilco.models.output import (
    MAX_LEVELS,
    n_points,
    pack_output,
    padded_length,
    point_grid,
    query_logits,
    regression,
)

CPU = torch.device("cpu")


def test_documented_sizes_hold() -> None:
    assert padded_length(225, 6) == 256
    assert n_points(1024, 10) == 2046
    assert n_points(1, 10) == 1023


def test_points_tell_the_levels_for_every_length() -> None:
    for n_steps in range(1, 601):
        sizes = [n_points(n_steps, level) for level in range(1, MAX_LEVELS + 1)]
        assert len(set(sizes)) == MAX_LEVELS


@pytest.mark.parametrize("n_steps", [*range(1, 40), 128, 255, 256, 257, 599, 600])
def test_grid_is_recovered_from_points_and_steps(n_steps: int) -> None:
    for levels in range(1, 11):
        points = n_points(n_steps, levels)
        grid = point_grid(points, n_steps, CPU)
        assert grid.steps.shape == grid.strides.shape == (points,)
        assert grid.reach.shape == (points, 2)
        assert grid.strides.max() == 2 ** (levels - 1)


def test_grid_lays_levels_from_fine_to_coarse() -> None:
    grid = point_grid(14, 5, CPU)
    assert grid.steps.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 0, 2, 4, 6, 0, 4]
    assert grid.strides.tolist() == [1] * 8 + [2] * 4 + [4] * 2
    assert grid.reach[[0, 8, 12]].tolist() == [[0, 4], [2, 8], [4, float("inf")]]


@pytest.mark.parametrize("levels", [1, 2, 6, 10])
def test_some_level_answers_for_every_distance(levels: int) -> None:
    reach = point_grid(n_points(64, levels), 64, CPU).reach.unique(dim=0)
    distances = torch.linspace(0, 2000, 4001)[:, None]
    answered = (distances >= reach[:, 0]) & (distances <= reach[:, 1])
    assert answered.any(dim=1).all()


@pytest.mark.parametrize("points", [0, 1, 36, 38, 56, 58, 2046])
def test_points_of_another_batch_are_refused(points: int) -> None:
    with pytest.raises(ValueError, match=rf"{points} points .* over 37 steps"):
        point_grid(points, 37, CPU)


def test_points_beyond_the_clip_are_not_valid() -> None:
    valid = torch.arange(5) < torch.tensor([[5], [3], [1]])
    inside = point_grid(14, 5, CPU).valid(valid)
    assert inside.sum(dim=1).tolist() == [5 + 3 + 2, 3 + 2 + 1, 1 + 1 + 1]
    assert inside[2].nonzero().flatten().tolist() == [0, 8, 12]


def test_slices_undo_packing() -> None:
    logits, offsets = torch.randn(2, 3, 7), torch.randn(2, 2, 7)
    valid = torch.arange(7) < torch.tensor([[7], [4]])
    output = pack_output(logits, offsets, valid)
    assert output.shape == (2, 5, 7)
    assert torch.equal(query_logits(output)[0], logits[0])
    assert torch.equal(regression(output)[0], offsets[0])
    assert not output[1, :, 4:].any()
    assert torch.equal(query_logits(output)[1, :, :4], logits[1, :, :4])
    assert query_logits(output).data_ptr() == output.data_ptr()


def test_output_without_queries_holds_offsets_alone() -> None:
    output = pack_output(
        torch.zeros(2, 0, 7), torch.randn(2, 2, 7), torch.ones(2, 7) > 0
    )
    assert query_logits(output).shape == (2, 0, 7)
    assert torch.equal(regression(output), output)


def test_grid_first_made_in_inference_mode_serves_training() -> None:
    points = n_points(601, 5)
    with torch.inference_mode():
        first = point_grid(points, 601, CPU)
    grid = point_grid(points, 601, CPU)
    assert grid is first
    x = torch.randn(points, requires_grad=True)
    (x * grid.steps * grid.strides * grid.reach[:, 0]).sum().backward()
    assert x.grad is not None


def test_grid_lies_on_the_device_asked_for() -> None:
    assert point_grid(14, 5, CPU).steps.device.type == "cpu"
    assert point_grid(14, 5, torch.device("meta")).steps.device.type == "meta"
    assert point_grid(14, 5, CPU).steps.device.type == "cpu"


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")
def test_grid_can_be_traced_without_a_break() -> None:
    def clear_beyond_clip(output: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        grid = point_grid(output.shape[-1], valid.shape[1], output.device)
        return output * grid.valid(valid)[:, None]

    output, valid = torch.randn(2, 3, 14), torch.arange(5) < torch.tensor([[5], [2]])
    traced = torch.compile(clear_beyond_clip, backend="eager", fullgraph=True)
    assert torch.equal(traced(output, valid), clear_beyond_clip(output, valid))
