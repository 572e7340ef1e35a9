"""Stock penalties measure what their papers say, on our batches' terms."""

import pytest
import torch
from avalanche.training.plugins import EWCPlugin
from torch import Tensor, nn
from torch.utils.data import Dataset


class Scalar(nn.Module):
    """One weight; the output's slope to it is the input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x


class Slopes(Dataset):
    """Samples at which the criterion's slope to the weight is as given."""

    def __init__(self, *slopes: float) -> None:
        self.slopes = slopes

    def __len__(self) -> int:
        return len(self.slopes)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        return torch.tensor(self.slopes[index]), torch.tensor(0.0), 0


@pytest.mark.parametrize("slopes", [(2.0, 0.0), (0.0, 2.0)])
def test_fisher_is_the_mean_of_squared_slopes_over_batches_in_either_order(slopes):
    # The public code keeps the last batch's alone: 0 or 4.
    model = Scalar()
    importances = EWCPlugin(1.0).compute_importances(
        model,
        lambda output, _: output.sum(),
        torch.optim.SGD(model.parameters(), lr=0.1),
        Slopes(*slopes),
        "cpu",
        batch_size=1,
    )
    assert float(importances["weight"].data) == 2.0
