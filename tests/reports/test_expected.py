"""Expected numbers: written from runs, and missed by a rerun that differs."""

import csv
from pathlib import Path

import pytest

from avalanche_vilco.core.errors import DataError
from avalanche_vilco.reports.expected import check, read_expected, write_expected
from avalanche_vilco.reports.runs import read_run

MAIN = "Recall@1x_tIoU0.5"


@pytest.fixture
def runs(outputs: Path) -> dict[str, list]:
    return {
        "naive": [read_run(outputs / "naive" / f"seed{seed}") for seed in (1, 0)],
        "upper_bound": [read_run(outputs / "upper_bound/seed0")],
    }


def test_what_was_written_is_found_again(runs, tmp_path, raw) -> None:
    path = tmp_path / "expected.csv"
    write_expected(path, runs, [MAIN])
    lines = read_expected(path)
    # One seed has no spread, hence no tolerance.
    assert [(x.row, x.number, x.seed) for x in lines] == [
        ("naive", "average", 0),
        ("naive", "bwf", 0),
    ]
    values = [100 * raw("naive", seed)["scores"][MAIN]["average"] for seed in (0, 1)]
    spread = abs(values[0] - values[1]) / 2**0.5
    assert lines[0].value == pytest.approx(values[0], abs=1e-4)
    assert lines[0].mean == pytest.approx(sum(values) / 2, abs=1e-4)
    assert lines[0].tolerance == pytest.approx(max(1.0, 3 * spread), abs=1e-3)
    assert {one.reproduced for one in check(lines, runs)} == {"yes"}


def test_rerun_beyond_the_tolerance_is_not_reproduced(runs, tmp_path) -> None:
    path = tmp_path / "expected.csv"
    write_expected(path, runs, [MAIN])
    rows = list(csv.DictReader(path.open()))
    for row in rows:
        row["value"] = str(float(row["value"]) + 1.01 * float(row["tolerance"]))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    assert [one.reproduced for one in check(read_expected(path), runs)] == ["no", "no"]
    assert "reproduced: no" in str(check(read_expected(path), runs)[0])


def test_row_that_was_not_run_is_neither_reproduced_nor_missed(runs, tmp_path) -> None:
    path = tmp_path / "expected.csv"
    write_expected(path, runs, [MAIN])
    lines = read_expected(path)
    assert {one.reproduced for one in check(lines, {"naive": []})} == {"not run"}
    assert check(lines, {"replay": []}) == []


def test_damaged_line_is_named(runs, tmp_path) -> None:
    path = tmp_path / "expected.csv"
    write_expected(path, runs, [MAIN])
    path.write_text(path.read_text().replace("bwf", "bwf,oops", 1))
    with pytest.raises(DataError, match=r"expected\.csv.*line 3"):
        read_expected(path)
