"""Tables as text, Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
from tabulate import LATEX_ESCAPE_RULES, tabulate

from avalanche_vilco.core.errors import DataError
from avalanche_vilco.core.terminal import printable

T = TypeVar("T")
Form = Literal["text", "markdown", "latex"]
_FORMATS: Mapping[Form, str] = {
    "text": "plain",
    "markdown": "github",
    "latex": "latex_booktabs",
}
_LATEX = str.maketrans({**LATEX_ESCAPE_RULES, "±": r"$\pm$"})


def percent(value: float | None, decimals: int = 1) -> str:
    """A share in percent, ``-`` where there is none.

    :param value: in [0, 1]; None or NaN: not defined.
    :param decimals: digits after the point.
    """
    if value is None or math.isnan(value):
        return "-"
    return f"{100 * value:.{decimals}f}"


def escaped(text: str, form: Form) -> str:
    """Text in which nothing is obeyed by a terminal or the form of a document.

    :param text: a line.
    :param form: of the document that it goes into.
    """
    line = printable(text)
    if form == "latex":
        return line.translate(_LATEX)
    return line.replace("|", "\\|") if form == "markdown" else line


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], form: Form = "markdown"
) -> str:
    """Cells as they are, with what the form would obey escaped.

    :param header: of each column.
    :param rows: as many cells each.
    :param form: of the document that it goes into.
    """
    # LaTeX is escaped by tabulate itself, all but the sign.
    cell_form: Form = "text" if form == "latex" else form
    text = tabulate(
        [[escaped(cell, cell_form) for cell in row] for row in rows],
        headers=[escaped(cell, cell_form) for cell in header],
        tablefmt=_FORMATS[form],
        disable_numparse=True,
        colalign=["left", *["right"] * (len(header) - 1)] if form == "latex" else None,
    )
    if form == "latex":
        return text.replace("±", r"$\pm$")
    return "\n".join(line.rstrip() for line in text.splitlines())


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV, with a header.

    :param rows: with the columns of the first.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def read_csv(path: Path | str, kind: type[T]) -> list[T]:
    """Lines of a CSV file, checked.

    :param path: the file.
    :param kind: msgspec type of a line; for an empty cell its default holds.
    :raises DataError: unreadable or damaged; names the line.
    """
    path = Path(path)
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeError, csv.Error) as error:
        raise DataError(path, f"cannot be read: {error}") from None
    found = []
    for number, row in enumerate(rows, start=2):
        try:
            cells = {name: cell for name, cell in row.items() if cell != ""}
            found.append(msgspec.convert(cells, kind, strict=False))
        except msgspec.ValidationError as error:
            raise DataError(path, str(error), record=f"line {number}") from None
    return found
