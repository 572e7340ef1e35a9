"""Errors about files and settings that a user handed over."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class SettingError(ValueError):
    """A setting is unknown, of another type or out of range, or fits no other.

    The message names it, what is legal and close names. Command lines exit with 2.
    """


class DataError(ValueError):
    """A file's content is not what it should be.

    The message names the file, the record and the field, and says what to do.
    """

    def __init__(
        self,
        file: Path | str,
        problem: str,
        *,
        record: str | None = None,
        field: str | None = None,
        hint: str = "",
    ) -> None:
        self.file = str(file)
        self.problem = problem
        self.record = record
        self.field = field
        self.hint = hint
        where = str(file)
        if record is not None:
            where += f", record {record!r}"
        if field is not None:
            where += f", field {field!r}"
        super().__init__(f"{where}: {problem}" + (f" ({hint})" if hint else ""))


class FeatureError(DataError):
    """Feature files are missing or damaged; lists every fault that was found."""

    def __init__(self, folder: Path | str, faults: Sequence[str], hint: str) -> None:
        self.faults = tuple(faults)
        """One line a fault, each naming the clip and its file."""
        listing = "\n  ".join(self.faults)
        count = f"{len(self.faults)} fault" + ("s" if len(self.faults) != 1 else "")
        super().__init__(folder, f"{count} in feature files:\n  {listing}\n", hint=hint)
