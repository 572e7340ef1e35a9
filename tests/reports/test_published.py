"""Published numbers: as printed, matched to our rows, judged only where they may be."""

import csv
import re
from pathlib import Path

import pytest

from avalanche_vilco.core.errors import DataError
from avalanche_vilco.reports.methods import gather
from avalanche_vilco.reports.published import (
    NOT_RUN,
    PublishedNumber,
    compare,
    published_section,
    read_published,
)
from avalanche_vilco.reports.tables import render

PAPER = Path(__file__).resolve().parents[2] / "benchmarks/vilco_mq/paper.csv"
MAIN = "Recall@1x_tIoU0.5"


def line(**parts) -> PublishedNumber:
    usual = {
        "table": 2,
        "section": "4.1",
        "method": "X",
        "strategy": "naive",
        "switches": "",
        "order": "fixed",
        "features": 1,
        "metric": MAIN,
        "number": "average",
        "published": 10.0,
        "spread": None,
    }
    return PublishedNumber(**{**usual, **parts})


@pytest.mark.parametrize(("number", "n_rows"), [(2, 7), (5, 4), (6, 4), (7, 6)])
def test_numbers_are_those_of_the_transcript(shared_dir, number, n_rows) -> None:
    page = (shared_dir / "reference" / "paper_tables.md").read_text()
    (table,) = re.findall(rf"^## Table {number},.*?(?=^## )", page, re.M | re.S)
    rows = [row for row in table.splitlines() if row.startswith("|")][2:]
    cells = " ".join(cell for row in rows for cell in row.split("|")[2:])
    cells = re.sub(r"\b1010\b", "", cells)
    printed = sorted(float(x) for x in re.findall(r"(?<!±)(?<![\w.])\d+\.\d+", cells))
    lines = [found for found in read_published(PAPER) if found.table == number]
    assert sorted(found.published for found in lines) == printed
    assert len({(found.method, found.order) for found in lines}) == n_rows


def test_numbers_of_visual_queries_are_those_of_the_transcript(shared_dir) -> None:
    page = (shared_dir / "reference" / "paper_tables.md").read_text()
    (table,) = re.findall(r"^## Table 4,.*?(?=^## )", page, re.M | re.S)
    header, _, *rows = [r for r in table.splitlines() if r.startswith("|")]
    names = [name.strip() for name in header.strip("|").split("|")]
    printed = set()
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        numbers = dict(zip(names[2:], cells[2:], strict=True))
        printed |= {(cells[0], k, float(v)) for k, v in numbers.items() if v != "-"}
    found = {
        (one.method, "BwF" if one.number == "bwf" else one.metric, one.published)
        for one in read_published(PAPER.parents[1] / "vilco_vq" / "paper.csv")
    }
    assert found == printed


def test_means_are_means_of_both_thresholds() -> None:
    by_row: dict[tuple, dict[str, float]] = {}
    for found in read_published(PAPER):
        if found.number == "average":
            row = by_row.setdefault((found.table, found.method), {})
            row[found.metric] = found.published
    checked = 0
    for row in by_row.values():
        for k in ("Recall@1x", "Recall@5x"):
            if f"{k}_tIoUmean" in row:
                mean = (row[f"{k}_tIoU0.3"] + row[f"{k}_tIoU0.5"]) / 2
                assert row[f"{k}_tIoUmean"] == pytest.approx(mean, abs=0.0101)
                checked += 1
    assert checked == 2 * (7 + 4)


@pytest.mark.parametrize(
    ("parts", "config", "expected"),
    [
        ({}, {}, True),
        ({"strategy": "ewc"}, {}, False),
        ({"order": "random"}, {}, False),
        (
            {"order": "random"},
            {"benchmark_options": {"fixed_class_order": "groups"}},
            True,
        ),
        (
            {"features": 2},
            {"benchmark_options": {"sources": {"features": ["a", "b"]}}},
            True,
        ),
        ({}, {"benchmark_options": {"sources": {"features": ["a", "b"]}}}, False),
        ({"switches": "ssl=on"}, {"strategy_options": {"ssl": 0.03}}, True),
        ({"switches": "ssl=off"}, {"strategy_options": {"ssl": 0.03}}, False),
        ({"switches": "ssl=off;em=on"}, {"strategy_options": {"em": True}}, True),
    ],
)
def test_rows_are_matched_by_what_they_switch(a_run, parts, config, expected) -> None:
    (setting,), _ = gather([a_run(config=config)])
    assert line(**parts).is_of(setting.methods[0]) is expected


def test_no_verdict_on_other_data(a_run, raw) -> None:
    embedded = {**raw()["benchmark"], "data": "embedded generated v1"}
    settings, _ = gather(
        [a_run(benchmark=embedded), a_run("replay", benchmark=embedded)]
    )
    found = compare([line(), line(strategy="ewc")], settings)
    assert [(one.method, one.verdict) for one in found] == [
        ("naive", NOT_RUN),
        ("", NOT_RUN),
    ]
    text = render([published_section(found)])
    assert "NOT COMPARABLE" in text
    settings, _ = gather([a_run()])
    (own,) = compare([line()], settings)
    assert own.verdict == "no verdict: not comparable (protocol exclusive)"


def test_verdict_where_data_and_protocol_allow_one(a_run, raw) -> None:
    info = {**raw()["benchmark"], "comparable_with_paper": True}
    settings, _ = gather([a_run(benchmark=info)])
    ours = 100 * raw()["scores"][MAIN]["average"]
    values = [ours, ours + 0.99, ours + 1.01, ours - 1.01]
    found = compare([line(published=value) for value in values], settings)
    assert [one.verdict for one in found] == ["yes", "yes", "no", "no"]
    (wide,) = compare([line(published=ours + 2, spread=2.5)], settings)
    assert wide.verdict == "yes"
    assert "NOT COMPARABLE" not in render([published_section([wide])])


def test_tables_without_a_run_of_ours_take_one_line(a_run) -> None:
    settings, _ = gather([a_run()])
    text = render([published_section(compare(read_published(PAPER), settings))])
    assert "Table 5 of the paper: not run (data not here)" in text
    assert "InternVideo" not in text


def test_damaged_line_is_named(tmp_path) -> None:
    rows = list(csv.reader(PAPER.read_text().splitlines()))
    rows[3][rows[0].index("published")] = "many"
    damaged = tmp_path / "paper.csv"
    with damaged.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    with pytest.raises(DataError, match=r"paper\.csv.*line 4"):
        read_published(damaged)
    with pytest.raises(DataError, match="cannot be read"):
        read_published(tmp_path / "none.csv")
