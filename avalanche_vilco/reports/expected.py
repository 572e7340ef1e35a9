"""Numbers of ours that a rerun should find again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from avalanche_vilco.core.files import write_atomically
from avalanche_vilco.core.tables import csv_text, read_csv
from avalanche_vilco.reports.methods import Number, over_seeds
from avalanche_vilco.reports.runs import Run

NUMBERS: tuple[Number, ...] = ("average", "bwf")
LEAST_TOLERANCE = 1.0
"""Points."""
STANDARD_DEVIATIONS = 3.0


class ExpectedNumber(msgspec.Struct, frozen=True):
    """A line of ``expected.csv``; numbers in percent."""

    row: str
    metric: str
    number: str
    n_seeds: int
    mean: float
    std: float
    seed: int
    """Of the run that a rerun is compared with."""
    value: float
    """Of that run."""
    tolerance: float
    """Versions and processors sum in other orders, which acts like another seed."""


@dataclass(frozen=True)
class Check:
    """What a rerun found."""

    expected: ExpectedNumber
    found: float | None
    """Percent; None: no run of the row and seed."""

    @property
    def reproduced(self) -> str:
        """``yes``, ``no`` or ``not run``."""
        if self.found is None:
            return "not run"
        off = abs(self.found - self.expected.value)
        return "yes" if off <= self.expected.tolerance else "no"

    def __str__(self) -> str:
        line = self.expected
        found = "-" if self.found is None else f"{self.found:.2f}"
        return (
            f"{line.row} seed {line.seed}, {line.number} {line.metric}: expected "
            f"{line.value:.2f} ± {line.tolerance:.2f}, found {found}, "
            f"reproduced: {self.reproduced}"
        )


def write_expected(
    path: Path, runs: Mapping[str, Sequence[Run]], metrics: Sequence[str]
) -> None:
    """Write what runs found, with tolerances from their spread over seeds.

    :param path: CSV file to write.
    :param runs: of each row; rows with fewer than two seeds have no spread and are
        left out.
    :param metrics: names in the runs' scores.
    """
    lines = [
        line
        for row, found in runs.items()
        for metric in metrics
        for number in NUMBERS
        if (line := _expect(row, found, metric, number)) is not None
    ]
    write_atomically(path, csv_text([msgspec.structs.asdict(line) for line in lines]))


def _expect(
    row: str, runs: Sequence[Run], metric: str, number: Number
) -> ExpectedNumber | None:
    values = {run.seed: getattr(run.results.scores[metric], number) for run in runs}
    found = over_seeds(list(values.values()))
    if found is None or math.isnan(found.std):
        return None
    seed = min(values)
    tolerance = max(LEAST_TOLERANCE, STANDARD_DEVIATIONS * found.std)
    mean, std, value = found.mean, found.std, 100 * values[seed]
    numbers = (round(x, 4) for x in (mean, std, value, tolerance))
    mean, std, value, tolerance = numbers
    return ExpectedNumber(
        row, metric, number, found.n_seeds, mean, std, seed, value, tolerance
    )


def read_expected(path: Path | str) -> list[ExpectedNumber]:
    """Lines of an ``expected.csv``.

    :param path: the file.
    :raises DataError: damaged; names the line.
    """
    return read_csv(path, ExpectedNumber)


def check(
    expected: Sequence[ExpectedNumber], runs: Mapping[str, Sequence[Run]]
) -> list[Check]:
    """Compare runs with what is expected of their row and seed.

    :param expected: lines; those of other rows are left out.
    :param runs: of each row.
    """
    return [
        Check(line, _found(line, runs[line.row]))
        for line in expected
        if line.row in runs
    ]


def _found(line: ExpectedNumber, runs: Sequence[Run]) -> float | None:
    for run in runs:
        score = run.results.scores.get(line.metric)
        if run.seed == line.seed and score is not None:
            value = getattr(score, line.number)
            return None if value is None else 100 * value
    return None
