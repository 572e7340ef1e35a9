"""Numbers of the embedded default that a rerun finds again."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "vilco_mq"
EXPECTED = FOLDER / "expected.csv"
ROWS = ("naive", "replay")


def rerun(output: Path, expected: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER / "grid.py"), "--tables", "2"]
    command += ["--rows", *ROWS, "--seeds", "0", "--jobs", "2"]
    command += ["--output", str(output), "--expected", str(expected)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_rerun_finds_the_expected_numbers_and_misses_others(tmp_path: Path) -> None:
    done = rerun(tmp_path / "out", EXPECTED)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("reproduced: yes") == len(ROWS) * 3 * 2

    with EXPECTED.open(newline="") as file:
        lines = list(csv.DictReader(file))
    for line in lines:
        line["value"] = str(float(line["value"]) + 2.1 * float(line["tolerance"]))
    with (tmp_path / "other.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, lines[0])
        writer.writeheader()
        writer.writerows(lines)
    missed = rerun(tmp_path / "out", tmp_path / "other.csv")
    assert missed.returncode == 1
    assert missed.stdout.count("reproduced: no") == len(ROWS) * 3 * 2
    assert "of 2 runs are there already" in missed.stdout


def test_every_tolerance_is_that_of_the_spread() -> None:
    with EXPECTED.open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert {line["row"] for line in lines} >= set(ROWS)
    for line in lines:
        assert int(line["n_seeds"]) >= 3
        tolerance = max(1.0, 3 * float(line["std"]))
        assert float(line["tolerance"]) == pytest.approx(tolerance, abs=1e-3)
