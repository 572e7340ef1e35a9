"""Recorded outputs of the public code, through the call of the same form."""

import json

import numpy as np
import pytest
import torch

from avalanche_vilco.ops.nms import NMSRule, batched_nms

HARD_CASES = (1, 2, 4, 5, 6)
SOFT_CASES = (7, 8, 10, 11, 12, 13, 15)
MULTICLASS_CASES = (16, 17, 18, 20, 21, 26, 27)
CLASS_AGNOSTIC_CASES = (22, 24, 25)
# Ours differ: a limit of -1 (29), voting for a window of length zero (30) and
# float64 (31).


def case_of(shared_dir, number):
    return json.loads((shared_dir / f"oracles/nms/case_{number:02}.json").read_text())


def inputs_of(case, dtype=torch.float32):
    return (
        torch.tensor(case["segments"], dtype=dtype).reshape(-1, 2),
        torch.tensor(case["scores"], dtype=dtype),
        torch.tensor(case["classes"], dtype=torch.long),
    )


def options_of(params, **changes):
    """The parameters of the public function, in our words."""
    rule = {
        "method": "gaussian" if params["use_soft_nms"] else "hard",
        "max_segments": params["max_seg_num"],
        **{name: params[name] for name in ("sigma", "iou_threshold", "min_score")},
    }
    return {
        "rule": NMSRule(**{**rule, **changes}),
        "voting_threshold": params["voting_thresh"],
        "multiclass": params["multiclass"],
    }


def assert_equal(found, expected, rel=0.0):
    assert found.labels.tolist() == expected["classes"]
    windows = np.array(expected["segments"], dtype=np.float32).reshape(-1, 2)
    np.testing.assert_allclose(found.segments.numpy(), windows, rtol=rel)
    np.testing.assert_allclose(found.scores.numpy(), expected["scores"], rtol=1e-5)


@pytest.mark.parametrize("number", HARD_CASES)
def test_hard_picks_equal_the_public_code(shared_dir, number, backend):
    case = case_of(shared_dir, number)
    options = {"method": "hard", "min_score": 0.0, "max_segments": None}
    rule = NMSRule(**case["params"], **options)
    found = batched_nms(*inputs_of(case), rule, backend=backend)
    assert found.indices.tolist() == case["expected"]["indices"]


@pytest.mark.parametrize("number", SOFT_CASES)
def test_soft_picks_and_scores_equal_the_public_code(shared_dir, number, backend):
    case = case_of(shared_dir, number)
    rule = NMSRule(**case["params"], max_segments=None)
    found = batched_nms(*inputs_of(case), rule, backend=backend)
    assert found.indices.tolist() == case["expected"]["indices"]
    assert_equal(found, {"classes": [0] * len(found.labels), **case["expected"]})


@pytest.mark.parametrize(
    ("number", "rel"),
    [(n, 0.0) for n in MULTICLASS_CASES] + [(n, 1e-5) for n in CLASS_AGNOSTIC_CASES],
)
def test_batched_output_equals_the_public_code(shared_dir, number, rel, backend):
    case = case_of(shared_dir, number)
    found = batched_nms(*inputs_of(case), **options_of(case["params"]), backend=backend)
    assert_equal(found, case["expected"], rel=rel)


def test_every_recorded_case_is_compared(shared_dir):
    numbers = {int(p.stem[5:]) for p in (shared_dir / "oracles/nms").glob("case_*")}
    compared = HARD_CASES + SOFT_CASES + MULTICLASS_CASES + CLASS_AGNOSTIC_CASES
    assert numbers == {*compared, 29, 30, 31}


def test_no_limit_keeps_the_lowest_window_that_minus_one_drops(shared_dir, backend):
    case = case_of(shared_dir, 29)
    with pytest.raises(ValueError, match="max_segments >= 0 but got -1; None keeps"):
        options_of(case["params"])
    options = options_of(case["params"], max_segments=None)
    found = batched_nms(*inputs_of(case), **options, backend=backend)
    assert len(found.scores) == len(case["expected"]["scores"]) + 1
    assert_equal(type(found)(*(values[:-1] for values in found)), case["expected"])


def test_a_window_without_votes_stays_where_the_public_code_gives_nan(
    shared_dir, backend
):
    case = case_of(shared_dir, 30)
    found = batched_nms(*inputs_of(case), **options_of(case["params"]), backend=backend)
    expected = case["expected"]
    assert expected["segments"][0] == [None, None]
    expected["segments"][0] = [5.0, 5.0]
    assert_equal(found, expected, rel=1e-5)


def test_float64_gives_what_float32_does_where_the_public_code_raises(
    shared_dir, backend
):
    case = case_of(shared_dir, 31)
    assert "error" in case["expected"]
    options = {**options_of(case["params"]), "backend": backend}
    found = batched_nms(*inputs_of(case, torch.float64), **options)
    expected = batched_nms(*inputs_of(case), **options)
    assert found.segments.dtype == torch.float64
    assert found.indices.tolist() == expected.indices.tolist()
    assert torch.equal(found.scores, expected.scores)
