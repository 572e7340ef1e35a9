import csv
import doctest
import io
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from avalanche_vilco.evaluation import matrix as module
from avalanche_vilco.evaluation.matrix import TaskMatrix, matrices_csv

NAN = math.nan


def matrix_of(rows):
    """A matrix from its rows; rows may be short, as after i + 1 experiences."""
    matrix = TaskMatrix(len(rows))
    for i, row in enumerate(rows):
        for j, value in enumerate(row):
            if not math.isnan(value):
                matrix.record(i, j, value)
    return matrix


scores = st.floats(0, 1)
squares = st.integers(1, 5).flatmap(
    lambda n: st.lists(st.lists(scores, min_size=n, max_size=n), min_size=n, max_size=n)
)


def test_the_example_in_the_documentation_holds():
    assert doctest.testmod(module).attempted > 0
    assert doctest.testmod(module).failed == 0


def test_forgetting_starts_with_the_second_experience():
    matrix = matrix_of([[0.9], [0.6, 0.8]])
    assert math.isnan(matrix.backward_forgetting(0))
    assert matrix.backward_forgetting(1) == pytest.approx(0.3)
    assert matrix.average(1) == pytest.approx(0.7)


def test_improvement_is_negative_forgetting_and_positive_transfer():
    matrix = matrix_of([[0.5], [0.7, 0.8]])
    assert matrix.backward_forgetting() == pytest.approx(-0.2)
    assert matrix.backward_transfer() == pytest.approx(0.2)
    assert "BwF_i (+ = forgot)" in matrix.to_text()


def test_swapped_indices_of_the_evaluation_card_give_another_number():
    """The card computes p[j][j] - p[j][current], its formula p[j][j] - p[current][j].

    With rows as time, its code compares a task with later tasks, not with itself later.
    """
    p = [[0.9, 0.1, 0.2], [0.6, 0.8, 0.3], [0.3, 0.7, 0.5]]
    current = 2
    card = sum(p[j][j] - p[j][current] for j in range(current)) / current
    assert card == pytest.approx(((0.9 - 0.2) + (0.8 - 0.3)) / 2)
    forgetting = matrix_of(p).backward_forgetting(current)
    assert forgetting == pytest.approx(((0.9 - 0.3) + (0.8 - 0.7)) / 2)
    transposed = np.array(p).T.tolist()
    assert matrix_of(transposed).backward_forgetting(current) == pytest.approx(card)


@given(squares)
def test_numbers_follow_the_formulas_of_the_paper(rows):
    matrix = matrix_of(rows)
    for i in range(len(rows)):
        average = sum(rows[i][: i + 1]) / (i + 1)
        assert matrix.average(i) == pytest.approx(average)
        if i:
            drops = [rows[j][j] - rows[i][j] for j in range(i)]
            forgetting = matrix.backward_forgetting(i)
            assert forgetting == pytest.approx(sum(drops) / i)
            assert matrix.backward_transfer(i) == -forgetting


@given(squares)
def test_cells_after_the_diagonal_change_nothing(rows):
    full, lower = (
        matrix_of(rows),
        matrix_of([row[: i + 1] for i, row in enumerate(rows)]),
    )
    for i in range(len(rows)):
        assert full.average(i) == lower.average(i)
        if i:
            assert full.backward_forgetting(i) == lower.backward_forgetting(i)


def test_last_row_with_a_score_is_the_default():
    matrix = matrix_of([[0.9, NAN, NAN], [0.6, 0.8, NAN], []])
    assert matrix.last_row == 1
    assert matrix.average() == matrix.average(1)
    assert matrix.backward_forgetting() == matrix.backward_forgetting(1)


def test_an_empty_matrix_has_no_numbers_and_says_so():
    matrix = TaskMatrix(3)
    assert matrix.last_row is None
    assert math.isnan(matrix.average()) and math.isnan(matrix.backward_forgetting())
    assert matrix.missing() == {(0, 0): "no score has been recorded"}


def test_a_missing_cell_spoils_what_needs_it_and_is_named():
    matrix = matrix_of([[0.9], [NAN, 0.8], [0.5, 0.6, 0.7]])
    matrix.leave_empty(1, 0, "stopped by the user")
    assert math.isnan(matrix.average(1)) and math.isnan(matrix.backward_forgetting(1))
    assert matrix.missing(1) == {(1, 0): "stopped by the user"}
    assert matrix.missing(2) == {}
    assert matrix.average(2) == pytest.approx(0.6)


def test_a_missing_diagonal_spoils_forgetting_but_not_the_average():
    """Joint training has a last row only."""
    matrix = matrix_of([[], [], [0.5, 0.6, 0.7]])
    assert matrix.average() == pytest.approx(0.6)
    assert math.isnan(matrix.backward_forgetting())
    expected = "experience 1 was not evaluated after training experience 1"
    assert matrix.missing()[1, 1] == expected


def test_an_empty_experience_has_a_reason_and_is_left_out_of_means():
    matrix = matrix_of([[0.9], [0.6, NAN], [0.4, NAN, 0.8]])
    matrix.exclude(1, "experience 1 has no ground truth")
    assert matrix.why(2, 1) == "experience 1 has no ground truth"
    assert matrix.average(2) == pytest.approx(0.6)
    assert matrix.backward_forgetting(2) == pytest.approx(0.5)
    assert matrix.missing(2) == {}
    assert "not in the means: 1 (experience 1 has no ground truth)" in matrix.to_text()


def test_a_score_takes_an_excluded_experience_in_again():
    matrix = matrix_of([[0.9], [0.6, NAN]])
    matrix.exclude(1, "empty")
    matrix.record(1, 1, 0.0)
    assert matrix.excluded == {}
    assert matrix.average() == pytest.approx(0.3)


def test_a_cleared_row_forgets_scores_and_reasons():
    matrix = matrix_of([[0.9], [0.6, 0.8]])
    matrix.leave_empty(1, 0, "stopped")
    matrix.clear_row(1)
    assert np.isnan(matrix.values[1]).all()
    assert (
        matrix.why(1, 0) == "experience 0 was not evaluated after training experience 1"
    )
    assert matrix[0, 0] == 0.9


def test_weights_by_queries_and_plain_means_are_both_available():
    """100 queries at 0 and 1 query at 1: 1 of 101 found, half of the experiences."""
    matrix = matrix_of([[0.0, 1.0], [0.0, 1.0]])
    assert matrix.average(1) == 0.5
    assert matrix.average(1, weights=[100, 1]) == pytest.approx(1 / 101)


def test_cumulative_weights_are_those_of_the_public_code():
    matrix = matrix_of([[0.9], [0.6, 0.8], [0.3, 0.5, 0.7]])
    average = (1 * 0.3 + 2 * 0.5 + 3 * 0.7) / 6
    forgetting = (1 * 0.6 + 2 * 0.3) / 3
    assert matrix.average(weights="cumulative") == pytest.approx(average)
    assert matrix.backward_forgetting(weights="cumulative") == pytest.approx(forgetting)
    by_count = matrix.average(weights=[22, 44, 66])
    assert by_count == pytest.approx(average)


@pytest.mark.parametrize(
    "weights", ["classes", [1.0], [1.0, -1.0], [1.0, NAN], [[1.0, 1.0]]]
)
def test_weights_that_do_not_fit_are_refused(weights):
    with pytest.raises(ValueError, match="weights"):
        matrix_of([[0.9], [0.6, 0.8]]).average(weights=weights)


@pytest.mark.parametrize("value", [-0.01, 1.01, 54.3, NAN, math.inf])
def test_scores_outside_0_to_1_are_refused(value):
    with pytest.raises(ValueError, match=r"expected p\[0, 0\] in \[0, 1\] but got"):
        TaskMatrix(1).record(0, 0, value)


@pytest.mark.parametrize("cell", [(-1, 0), (0, -1), (2, 0), (0, 2)])
def test_experiences_outside_the_matrix_are_refused(cell):
    matrix = TaskMatrix(2)
    for access in (
        lambda: matrix.record(*cell, 0.5),
        lambda: matrix.leave_empty(*cell, "stopped"),
        lambda: matrix[cell],
    ):
        with pytest.raises(IndexError, match=r"expected \w+ in 0\.\.1 but got"):
            access()
    with pytest.raises(IndexError):
        matrix.average(2)
    with pytest.raises(ValueError, match="n_experiences >= 1 but got 0"):
        TaskMatrix(0)


def test_values_are_a_copy():
    matrix = matrix_of([[0.9]])
    matrix.values[0, 0] = 0.0
    assert matrix[0, 0] == 0.9


def example():
    matrix = matrix_of([[0.9, NAN, NAN], [0.25, 0.75, NAN], []])
    matrix.leave_empty(0, 1, "queries of experience 1 are not learnt yet")
    matrix.exclude(2, "experience 2 has no ground truth")
    return matrix


def test_a_matrix_survives_json_with_its_reasons():
    content = json.loads(json.dumps(example().to_dict(), allow_nan=False))
    assert content["orientation"].startswith("p[i][j]: row i = after training")
    assert content["p"][0] == [0.9, None, None]
    back = TaskMatrix.from_dict(content)
    assert back.to_dict() == content
    np.testing.assert_array_equal(back.values, example().values)
    assert back.why(0, 1) == "queries of experience 1 are not learnt yet"


def test_a_matrix_of_another_orientation_is_refused():
    content = {**example().to_dict(), "orientation": "p[i][j]: task i, time j"}
    with pytest.raises(ValueError, match="expected orientation"):
        TaskMatrix.from_dict(content)


def test_a_matrix_that_is_not_square_is_refused():
    content = {**example().to_dict(), "p": [[0.5, 0.5], [0.5]]}
    with pytest.raises(
        ValueError, match=r"expected 3 rows of 3 .* got rows of \[2, 1\]"
    ):
        TaskMatrix.from_dict(content)


def test_csv_names_the_orientation_and_keeps_every_digit_and_reason():
    matrix = matrix_of([[1 / 3, NAN], [0.25, 0.75]])
    matrix.leave_empty(0, 1, "not learnt yet")
    rows = list(csv.DictReader(io.StringIO(matrices_csv({"a": matrix, "b": matrix}))))
    assert [*rows[0]] == [
        *("metric", "after_training", "evaluated_on", "value", "reason", "taught")
    ]
    assert [row["taught"] for row in rows[:4]] == ["0", "0", "1", "1"]
    assert [row["metric"] for row in rows] == ["a"] * 4 + ["b"] * 4
    cells = {(row["after_training"], row["evaluated_on"]): row for row in rows[:4]}
    assert float(cells["0", "0"]["value"]) == 1 / 3
    assert float(cells["1", "0"]["value"]) == 0.25
    assert cells["0", "1"]["value"] == "" and cells["1", "1"]["reason"] == ""
    assert cells["0", "1"]["reason"] == "not learnt yet"


def test_text_is_an_aligned_table_in_percent():
    matrix = matrix_of([[1.0, NAN], [0.25, 0.75]])
    assert matrix.to_text().splitlines() == [
        "p[i, j] in %: row = after training i, column = evaluated on j",
        "after   on 0  on 1    P_i  BwF_i (+ = forgot)",
        "    0  100.0     -  100.0                   -",
        "    1   25.0  75.0   50.0                75.0",
    ]


def test_text_shows_the_means_by_the_weights_and_says_so():
    text = matrix_of([[1.0], [0.25, 0.75]]).to_text(weights=[3, 1]).splitlines()
    assert text[3].split() == ["1", "25.0", "75.0", "37.5", "75.0"]
    assert text[4] == "P_i and BwF_i weigh the experiences by 3, 1"
    with pytest.raises(ValueError, match="expected 2 finite weights"):
        matrix_of([[1.0], [0.25, 0.75]]).to_text(weights=[1.0])


NUMBERS = (
    *("average", "backward_forgetting", "maximum_forgetting", "forward_transfer"),
    *("grand_average", "last", "transfer", "retention"),
)


def test_forgetting_after_the_first_experience_is_unknown_with_a_reason():
    matrix = matrix_of([[0.9], [0.6, 0.8]])
    assert matrix.missing(0) == {
        (0, -1): "no experience counts for backward_forgetting in row 0"
    }
    matrix.exclude(0, "experience 0 has no ground truth")
    assert math.isnan(matrix.backward_forgetting(1))
    assert matrix.missing(1) == {
        (1, -1): "no experience counts for backward_forgetting in row 1; "
        "0 is left out: experience 0 has no ground truth"
    }


@given(
    squares,
    st.sets(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=4),
    st.sets(st.integers(0, 4), max_size=2),
    st.booleans(),
)
def test_every_number_is_known_or_has_a_reason(rows, empty, excluded, has_baseline):
    matrix = matrix_of(rows)
    n = len(rows)
    for i, j in empty:
        if max(i, j) < n:
            matrix.leave_empty(i, j, "stopped")
    for j in excluded:
        if j < n:
            matrix.exclude(j, "no clips")
    for j in range(n if has_baseline else 0):
        matrix.record_baseline(j, 0.5)
    for number in NUMBERS:
        value = getattr(matrix, number)()
        reasons = matrix.missing(number=number)
        if matrix.last_row is None:
            assert reasons == {(0, 0): "no score has been recorded"}
        else:
            assert math.isnan(value) == bool(reasons), (number, reasons)


@given(squares)
def test_a_predictor_that_never_changes_forgets_exactly_nothing(rows):
    matrix = matrix_of([rows[0]] * len(rows))
    for i in range(1, len(rows)):
        assert matrix.backward_forgetting(i) == matrix.maximum_forgetting(i) == 0.0
        assert matrix.backward_forgetting(i, weights="cumulative") == 0.0


GOLDEN = [[0.90, 0.40, 0.50], [0.80, 0.85, 0.45], [0.70, 0.75, 0.95]]


def test_vclimb_numbers_are_those_of_the_last_row():
    numbers = matrix_of(GOLDEN).vclimb()
    assert numbers == {"Acc": pytest.approx(0.80), "BWF": pytest.approx(0.15)}


def test_the_code_of_vclimb_weighs_tasks_by_their_classes():
    numbers = matrix_of(GOLDEN).vclimb(weights=[11, 10, 10])
    assert numbers["Acc"] == pytest.approx((11 * 0.7 + 10 * 0.75 + 10 * 0.95) / 31)
    assert numbers["BWF"] == pytest.approx((11 * 0.2 + 10 * 0.1) / 21)


def test_open_domain_numbers_are_those_of_the_reference_code():
    numbers = matrix_of(GOLDEN).open_domain()
    assert numbers == {
        "Avg": pytest.approx(0.70),
        "Last": pytest.approx(0.80),
        "Transfer": pytest.approx(0.4375),
        "Retention": pytest.approx(0.85),
    }


def test_maximum_forgetting_starts_from_the_best_and_backward_from_the_first():
    matrix = matrix_of([[0.5], [0.9, 0.8], [0.4, 0.6, 0.7]])
    assert matrix.maximum_forgetting() == pytest.approx((0.5 + 0.2) / 2)
    assert matrix.backward_forgetting() == pytest.approx((0.1 + 0.2) / 2)
    assert math.isnan(matrix.maximum_forgetting(0))


@given(squares)
def test_maximum_forgetting_is_at_least_backward_forgetting(rows):
    matrix = matrix_of(rows)
    for i in range(1, len(rows)):
        assert matrix.maximum_forgetting(i) >= matrix.backward_forgetting(i) - 1e-12


def test_forward_transfer_is_measured_against_the_untrained_model():
    matrix = matrix_of(GOLDEN)
    for j, value in enumerate((0.1, 0.15, 0.25)):
        matrix.record_baseline(j, value)
    expected = ((GOLDEN[0][1] - 0.15) + (GOLDEN[1][2] - 0.25)) / 2
    assert matrix.forward_transfer() == pytest.approx(expected)
    assert matrix.missing(number="forward_transfer") == {}


def test_without_a_baseline_forward_transfer_is_unknown_and_says_how_to_get_one():
    matrix = matrix_of(GOLDEN)
    assert math.isnan(matrix.forward_transfer())
    reasons = matrix.missing(number="forward_transfer")
    assert set(reasons) == {(-1, 1), (-1, 2)}
    assert "evaluate the stream first and record_baseline" in reasons[-1, 1]


@pytest.mark.parametrize(
    "number, cell",
    [
        ("transfer", (0, 1)),
        ("grand_average", (0, 1)),
        ("retention", (1, 0)),
        ("maximum_forgetting", (1, 0)),
        ("last", (2, 0)),
    ],
)
def test_a_missing_cell_makes_the_numbers_that_need_it_unknown(number, cell):
    rows = [list(row) for row in GOLDEN]
    rows[cell[0]][cell[1]] = NAN
    matrix = matrix_of(rows)
    matrix.leave_empty(*cell, "stopped")
    assert math.isnan(getattr(matrix, number)())
    assert matrix.missing(number=number) == {cell: "stopped"}


def test_numbers_that_do_not_need_a_cell_do_without():
    lower = matrix_of([row[: i + 1] for i, row in enumerate(GOLDEN)])
    assert lower.retention() == pytest.approx(0.85)
    assert lower.last() == pytest.approx(0.80)
    assert math.isnan(lower.transfer()) and math.isnan(lower.grand_average())


def test_an_excluded_task_is_in_none_of_the_means():
    matrix = matrix_of(GOLDEN)
    matrix.exclude(1, "no clips")
    assert matrix.last() == pytest.approx((0.70 + 0.95) / 2)
    assert matrix.transfer() == pytest.approx((0.50 + 0.45) / 2)
    assert matrix.maximum_forgetting() == pytest.approx(0.20)


def test_one_task_has_no_transfer():
    matrix = matrix_of([[0.5]])
    assert math.isnan(matrix.transfer()) and math.isnan(matrix.forward_transfer())
    assert matrix.open_domain()["Avg"] == 0.5


def test_the_baseline_survives_saving():
    matrix = matrix_of(GOLDEN)
    matrix.record_baseline(2, 0.25)
    again = TaskMatrix.from_dict(json.loads(json.dumps(matrix.to_dict())))
    np.testing.assert_array_equal(again.baseline, [NAN, NAN, 0.25])


def test_numbers_and_baselines_that_do_not_exist_are_refused():
    matrix = matrix_of(GOLDEN)
    with pytest.raises(ValueError, match=r"expected number of .* but got 'best'"):
        matrix.missing(number="best")
    with pytest.raises(ValueError, match=r"expected a baseline\[0\] in \[0, 1\]"):
        matrix.record_baseline(0, 1.5)
    with pytest.raises(IndexError):
        matrix.record_baseline(3, 0.5)
