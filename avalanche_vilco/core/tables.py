"""Cells and tables, as text, Markdown and LaTeX."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

from tabulate import tabulate

from avalanche_vilco.core.terminal import printable

TableForm = Literal["text", "markdown", "latex"]
_FORMATS = {"text": "plain", "markdown": "github", "latex": "latex_booktabs"}


def percent(value: float | None, decimals: int = 1) -> str:
    """A share in percent, ``-`` where there is none.

    :param value: in [0, 1]; None or NaN: not defined.
    :param decimals: digits after the point.
    """
    if value is None or math.isnan(value):
        return "-"
    return f"{100 * value:.{decimals}f}"


def table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    form: TableForm = "markdown",
) -> str:
    """Cells as they are, with what the form would obey escaped.

    :param header: of each column.
    :param rows: as many cells each.
    :param form: of the document that it goes into.
    """
    cells = [[printable(cell) for cell in row] for row in (header, *rows)]
    if form == "markdown":
        cells = [[cell.replace("|", "\\|") for cell in row] for row in cells]
    columns = ["left", *["right"] * (len(header) - 1)] if form == "latex" else None
    text = tabulate(
        cells[1:],
        headers=cells[0],
        tablefmt=_FORMATS[form],
        disable_numparse=True,
        colalign=columns,
    )
    return text.replace("±", r"$\pm$") if form == "latex" else text
