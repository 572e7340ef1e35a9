"""What the tests of moment queries share."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from avalanche_vilco.benchmarks.protocols import STREAMS
from avalanche_vilco.core.report import DataReport


@pytest.fixture(scope="session")
def assert_adds_up() -> Callable[[DataReport], None]:
    """Each stage reads what the one before passed on, and streams hold the rest."""

    def check(report: DataReport) -> None:
        for unit in ("windows", "clips"):
            stages = [tally for tally in report.tallies if tally.unit == unit]
            for before, after in pairwise(stages):
                assert after.read == before.passed_on, (before.stage, after.stage)
            assert sum(report.outcomes(unit).values()) == stages[0].read
            notes = stages[-1].notes
            in_streams = sum(notes.get(f"in stream {name}", 0) for name in STREAMS)
            assert in_streams == stages[-1].passed_on

    return check
