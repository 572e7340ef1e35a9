"""Tables keep their cells, whatever the form would make of them."""

import math

import pytest

from avalanche_vilco.core.tables import percent, table


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.12345, "12.3"), (None, "-"), (math.nan, "-"), (-0.5, "-50.0")],
)
def test_share_is_shown_in_percent(value: float | None, text: str) -> None:
    assert percent(value) == text


def test_cells_stay_as_they_are_and_are_escaped_where_they_would_be_obeyed() -> None:
    rows = [["a|b", "1.50"], ["c_\x1b[2J", "± 2 %"]]
    text, markdown, latex = (
        table(["name", ""], rows, form)  # type: ignore[arg-type]
        for form in ("text", "markdown", "latex")
    )
    assert [line.split("  ")[0] for line in text.splitlines()[:2]] == ["name", "a|b"]
    assert markdown.splitlines()[2].split() == ["|", r"a\|b", "|", "1.50", "|"]
    assert r"$\pm$ 2 \%" in latex and r"c\_" in latex
    assert not any("\x1b" in one for one in (text, markdown, latex))
