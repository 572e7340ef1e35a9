import doctest
import math

import pytest
import torch

from avalanche_vilco.ops import boxes as module
from avalanche_vilco.ops.boxes import box_area, box_intersection, box_iou


def test_the_example_in_the_documentation_holds():
    assert doctest.testmod(module).attempted == 1
    assert doctest.testmod(module).failed == 0


def test_boxes_are_continuous():
    a = torch.tensor([[0.0, 0.0, 10.0, 10.0]])
    b = torch.tensor([[5.0, 5.0, 15.0, 15.0], [10.0, 0.0, 20.0, 10.0]])
    assert box_area(a).tolist() == [100.0]
    assert box_intersection(a, b).tolist() == [25.0, 0.0]
    assert box_iou(a, b).tolist() == pytest.approx([25 / 175, 0.0])


@pytest.mark.parametrize(
    "box",
    [
        (3.0, 3.0, 3.0, 3.0),
        (10.0, 10.0, 0.0, 0.0),
        (10.0, 0.0, 0.0, 10.0),
        (0.0, 0.0, math.inf, 10.0),
        (-math.inf, 0.0, 10.0, 10.0),
        (0.0, math.nan, 10.0, 10.0),
    ],
)
def test_a_degenerate_box_has_no_area_and_meets_nothing_not_even_itself(box):
    box, good = torch.tensor(box), torch.tensor([0.0, 0.0, 10.0, 10.0])
    assert box_area(box) == 0
    for other in (good, box):
        assert box_intersection(box, other) == box_intersection(other, box) == 0
        assert box_iou(box, other) == box_iou(other, box) == 0


def test_other_shapes_are_refused():
    with pytest.raises(ValueError, match=r"expected b of shape \(\.\.\., 4\)"):
        box_iou(torch.zeros(2, 4), torch.zeros(2, 3))
