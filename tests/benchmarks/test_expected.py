"""Numbers of the embedded default that a rerun finds again."""

import csv
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


class Rerun(NamedTuple):
    """What is run again of a benchmark's grid."""

    name: str
    table: int
    rows: tuple[str, ...]
    n_numbers: int
    """Numbers of each row in ``expected.csv``."""

    @property
    def expected(self) -> Path:
        return BENCHMARKS / self.name / "expected.csv"

    def run(self, output: Path, expected: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(BENCHMARKS / self.name / "grid.py")]
        command += ["--tables", str(self.table), "--rows", *self.rows]
        command += ["--seeds", "0", "--jobs", "2", "--output", str(output)]
        command += ["--expected", str(expected)]
        return subprocess.run(command, capture_output=True, text=True)


RERUNS = (
    Rerun("vilco_mq", 2, ("naive", "replay"), 6),
    Rerun("vilco_nlq", 3, ("naive",), 12),
    Rerun("vilco_vq", 4, ("naive",), 8),
)
each_benchmark = pytest.mark.parametrize("rerun", RERUNS, ids=lambda one: one.name)


def lines_of(expected: Path) -> list[dict[str, str]]:
    with expected.open(newline="") as file:
        return list(csv.DictReader(file))


@each_benchmark
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_rerun_finds_the_expected_numbers_and_misses_others(
    rerun: Rerun, tmp_path: Path
) -> None:
    n_rows = len(rerun.rows)
    done = rerun.run(tmp_path / "out", rerun.expected)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("reproduced: yes") == n_rows * rerun.n_numbers

    lines = lines_of(rerun.expected)
    for line in lines:
        line["value"] = str(float(line["value"]) + 2.1 * float(line["tolerance"]))
    with (tmp_path / "other.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, lines[0])
        writer.writeheader()
        writer.writerows(lines)
    missed = rerun.run(tmp_path / "out", tmp_path / "other.csv")
    assert missed.returncode == 1
    assert missed.stdout.count("reproduced: no") == n_rows * rerun.n_numbers
    assert f"{n_rows} of {n_rows} runs are there already" in missed.stdout


@each_benchmark
def test_every_tolerance_is_that_of_the_spread(rerun: Rerun) -> None:
    lines = lines_of(rerun.expected)
    assert {line["row"] for line in lines} >= set(rerun.rows)
    for row in rerun.rows:
        assert sum(line["row"] == row for line in lines) == rerun.n_numbers
    for line in lines:
        assert int(line["n_seeds"]) >= 3
        tolerance = max(1.0, 3 * float(line["std"]))
        assert float(line["tolerance"]) == pytest.approx(tolerance, abs=1e-3)
