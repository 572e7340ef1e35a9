"""Findings about a data root, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partialmethod
from pathlib import Path
from typing import Any, Literal

from avalanche_vilco.core.errors import DataError
from avalanche_vilco.core.terminal import one_line

REPORT_VERSION = "1"
COPY_AGAIN = "extract or copy it again"
DEEP_BYTES = 2**30
"""Contents are read without being asked where they take no more than this."""
Severity = Literal["fault", "note"]
_SHOWN_RECORDS = 20


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it should be."""

    severity: Severity
    """A fault stops or spoils a run; a note does neither."""
    part: str
    file: str
    problem: str
    remedy: str
    records: tuple[str, ...] = ()
    """Clip uids, labels, query ids or lines concerned; empty for the whole file."""

    def line(self) -> str:
        """One line for people; ``--json`` has all of a long list of records."""
        shown = list(self.records)
        if "narration" in self.part:
            shown = shown[:_SHOWN_RECORDS]
        more = len(self.records) - len(shown)
        who = ", ".join(shown) + (f" and {more} more (see --json)" if more else "")
        where = f"{self.file}: " + (f"{who}: " if who else "")
        words = f"{self.severity.upper()} {self.part}: {where}{self.problem}"
        return one_line(f"{words} -> {self.remedy}")


@dataclass
class Diagnosis:
    """All findings about a data root, and what is there."""

    root: str
    is_deep: bool = False
    """Contents were read, not only headers."""
    counts: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What is there, by part."""
    findings: list[Finding] = field(default_factory=list)
    deep: bool | None = None
    """Whether contents are to be read; None: where they are small."""
    paths: Mapping[str, Path] = field(default_factory=dict)
    """Parts that do not lie at their usual place."""
    used: dict[Path, set[str] | None] = field(default_factory=dict)
    """Names that belong to a record, by folder; None: it is not known which do."""

    def path_of(self, name: str, default: Path) -> Path:
        """Where a part lies.

        :param name: of the part, in :attr:`paths`.
        :param default: where it lies if nothing else is said.
        """
        return self.paths.get(name, default)

    def settle_depth(self, *paths: Path) -> None:
        """Settle whether contents are read: as asked, else if they are small.

        :param paths: files and folders with contents.
        """
        files = [
            file
            for path in paths
            for file in ([path] if path.is_file() else path.glob("*"))
        ]
        n_bytes = sum(file.stat().st_size for file in files if file.is_file())
        self.is_deep = n_bytes <= DEEP_BYTES if self.deep is None else self.deep

    def use(self, folder: Path, names: Iterable[str] | None) -> None:
        """Say which files of a folder belong to a record; others are left over.

        :param folder: of files, perhaps shared with other benchmarks.
        :param names: of the files; None: it is not known.
        """
        before = self.used.setdefault(folder, set())
        is_known = before is not None and names is not None
        self.used[folder] = {*before, *names} if is_known else None  # type: ignore[misc]

    @property
    def n_faults(self) -> int:
        """Findings that are faults."""
        return sum(finding.severity == "fault" for finding in self.findings)

    def add(
        self,
        severity: Severity,
        part: str,
        file: Path | str,
        problem: str,
        remedy: str,
        records: Iterable[str] = (),
    ) -> None:
        """Add a finding; the arguments are the fields of :class:`Finding`."""
        self.findings.append(
            Finding(severity, part, str(file), problem, remedy, tuple(records))
        )

    fault = partialmethod(add, "fault")
    """Add a fault, see :meth:`add`."""
    note = partialmethod(add, "note")
    """Add a note, see :meth:`add`."""

    def add_error(self, part: str, error: DataError, remedy: str) -> None:
        """Add a fault that a reader reported."""
        name = f"field {error.field}: " if error.field else ""
        records = () if error.record is None else (error.record,)
        remedy = error.hint or remedy
        self.fault(part, error.file, name + error.problem, remedy, records)

    def include(self, other: Diagnosis, owner: str) -> None:
        """Add what is said of a part of the root.

        :param other: the part's.
        :param owner: whose part it is, for the names of parts; empty: the only one's.
        """
        before = f"{owner} " if owner else ""
        self.is_deep = self.is_deep or other.is_deep
        self.counts |= {before + part: n for part, n in other.counts.items()}
        self.findings += [
            replace(finding, part=before + finding.part) for finding in other.findings
        ]

    @contextmanager
    def guard(self, part: str, file: Path | str) -> Iterator[None]:
        """Whatever a damaged file does to a reader becomes a fault of its part."""
        try:
            yield
        except DataError as error:
            self.add_error(part, error, COPY_AGAIN)
        except Exception as error:
            problem = f"cannot be examined: {type(error).__name__}: {error}"
            self.fault(part, file, problem, "is it readable and the right file?")

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "report_version": REPORT_VERSION,
            "ok": not self.n_faults,
            "faults": self.n_faults,
            "notes": len(self.findings) - self.n_faults,
            "root": self.root,
            "is_deep": self.is_deep,
            "counts": self.counts,
            "findings": [asdict(finding) for finding in self.findings],
        }

    def __str__(self) -> str:
        lines = [self.root]
        for part, counts in self.counts.items():
            figures = ", ".join(f"{name} {value}" for name, value in counts.items())
            lines.append(f"  {part}: {figures}")
        lines += [finding.line() for finding in self.findings]
        notes = len(self.findings) - self.n_faults
        depth = "contents read" if self.is_deep else "headers only, --deep reads all"
        lines.append(f"{self.n_faults} faults, {notes} notes ({depth})")
        return "\n".join(lines)
