"""What was read, kept, changed and rejected, in counts that add up."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from avalanche_vilco.core.errors import DataError
from avalanche_vilco.core.files import plain_name, read_content


@dataclass
class Tally:
    """One stage of reading, for one unit (windows, clips).

    ``read == kept + sum(changed) + sum(rejected)`` always holds; what goes on to
    the next stage is ``passed_on = kept + sum(changed)``.
    """

    stage: str
    """Name of the stage, such as ``"annotations"`` or ``"protocol exclusive"``."""
    unit: str
    """What is counted: ``"windows"``, ``"clips"``, ``"sentences"``..."""
    kept: int = 0
    """Passed on as read."""
    changed: dict[str, int] = field(default_factory=dict)
    """Passed on with a change, by reason."""
    rejected: dict[str, int] = field(default_factory=dict)
    """Not passed on, by reason."""
    notes: dict[str, int] = field(default_factory=dict)
    """Facts worth a number that are no outcome."""

    @property
    def read(self) -> int:
        """All that entered the stage."""
        return self.passed_on + sum(self.rejected.values())

    @property
    def passed_on(self) -> int:
        """What the next stage gets."""
        return self.kept + sum(self.changed.values())

    def reject(self, reason: str, count: int = 1) -> None:
        """Count records that are not passed on."""
        _add(self.rejected, reason, count)

    def change(self, reason: str, count: int = 1) -> None:
        """Count records that are passed on with a change."""
        _add(self.changed, reason, count)

    def note(self, fact: str, count: int = 1) -> None:
        """Count a fact that changes nothing."""
        _add(self.notes, fact, count)

    def to_dict(self) -> dict[str, Any]:
        """JSON form; ``read`` is included for the reader's sum."""
        return {
            "stage": self.stage,
            "unit": self.unit,
            "read": self.read,
            "kept": self.kept,
            "changed": dict(sorted(self.changed.items())),
            "rejected": dict(sorted(self.rejected.items())),
            "notes": dict(sorted(self.notes.items())),
        }


def _add(counts: dict[str, int], reason: str, count: int) -> None:
    if count:
        counts[reason] = counts.get(reason, 0) + count


@dataclass
class DataReport:
    """The stages that data went through on the way to a stream.

    Printed with results and stored in the results file, so that a changed file or
    a dropped clip shows up as a changed denominator.
    """

    files: dict[str, str] = field(default_factory=dict)
    """File name -> SHA-256 of its content."""
    tallies: list[Tally] = field(default_factory=list)
    """Stages in order."""
    faults: list[DataError] | None = field(default=None, repr=False, compare=False)
    """Gets errors of records, which then are left out; None: they are raised."""

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Where an error of a record is collected, if faults are."""
        try:
            yield
        except DataError as fault:
            if self.faults is None:
                raise
            self.faults.append(fault)

    def read(self, path: Path) -> bytes:
        """What a file holds, see ``core.files.read_content``; keeps its hash."""
        content = read_content(path)
        self.files[plain_name(path)] = hashlib.sha256(content).hexdigest()
        return content

    def stage(self, stage: str, unit: str) -> Tally:
        """The tally of a stage, created on first use.

        :param stage: name of the stage.
        :param unit: what it counts.
        """
        for tally in self.tallies:
            if (tally.stage, tally.unit) == (stage, unit):
                return tally
        self.tallies.append(Tally(stage, unit))
        return self.tallies[-1]

    def include(self, other: DataReport) -> None:
        """Add the files and stages of another report.

        :param other: of other files, in other units.
        """
        self.files.update(other.files)
        self.tallies += other.tallies

    def outcomes(self, unit: str) -> dict[str, int]:
        """What became of all that the first stage read of a unit, over all stages.

        A record that an earlier stage changed and a later one kept counts as kept
        here; the stage's own tally names the change.
        """
        stages = [tally for tally in self.tallies if tally.unit == unit]
        if not stages:
            return {}
        outcomes = {"in the streams": stages[-1].passed_on}
        for tally in stages:
            for reason, count in tally.rejected.items():
                _add(outcomes, f"{tally.stage}: {reason}", count)
        return outcomes

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "files": dict(sorted(self.files.items())),
            "stages": [tally.to_dict() for tally in self.tallies],
        }

    def __str__(self) -> str:
        lines = [f"{name}  sha256 {digest[:12]}" for name, digest in self.files.items()]
        for tally in self.tallies:
            lines.append(
                f"{tally.stage}: {tally.read} {tally.unit} read = {tally.kept} kept"
                + _terms("changed", tally.changed)
                + _terms("rejected", tally.rejected)
            )
            lines += [f"  of these: {n} {what}" for what, n in tally.notes.items()]
        return "\n".join(lines)


def _terms(verb: str, counts: Mapping[str, int]) -> str:
    return "".join(f" + {n} {verb} ({why})" for why, n in sorted(counts.items()))
