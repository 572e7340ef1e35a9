"""Tables: their numbers, and that unequal capacities never share one."""

import csv
import io
import json
import re
from pathlib import Path

import pytest

from avalanche_vilco.reports.methods import Setting, gather
from avalanche_vilco.reports.runs import read_run, run_folders
from avalanche_vilco.reports.tables import (
    View,
    difference,
    render,
    sections,
    to_csv,
    to_dicts,
)

MAIN = "Recall@1x_tIoU0.5"


@pytest.fixture(scope="module")
def setting(outputs: Path) -> Setting:
    (found,), _ = gather(map(read_run, run_folders(outputs)))
    return found


def titles(view: View, *settings: Setting) -> dict[str, list[str]]:
    (section,) = sections(settings, view)
    return {table.title: [row[0] for row in table.rows] for table in section.tables}


def test_methods_of_unequal_capacity_never_share_a_table(setting) -> None:
    assert titles(View(equal="capacity"), setting) == {
        "May keep no training samples": ["naive"],
        "May keep 3 training samples": ["replay"],
        "May keep all training samples": ["upper_bound"],
    }


def test_each_setting_is_shown_by_its_own_main_metric_unless_told(a_run) -> None:
    other = "Recall@5x_tIoU0.5"
    runs = [a_run(), a_run(config={"epochs": 9}, main_metric=other)]
    settings, _ = gather(runs)
    shown = [table.header[2] for part in sections(settings) for table in part.tables]
    assert shown == [f"P_T {MAIN}", f"P_T {other}"]
    rows = csv.DictReader(io.StringIO(to_csv(settings)))
    assert [row["metric"] for row in rows] == [MAIN, other]
    wished = sections(settings, View(metrics=(other,)))
    shown = [table.header[2] for part in wished for table in part.tables]
    assert shown == [f"P_T {other}"] * 2


@pytest.mark.parametrize(
    ("benchmark", "words"),
    [
        ("vilco_mq", "chance: the same model on shuffled features."),
        ("vilco_vq", "chance: the same model when each query shows the crop of"),
        ("of_a_user", "chance: the same model on scrambled samples."),
    ],
)
def test_chance_is_said_to_be_what_the_benchmark_scrambles(
    a_run, benchmark, words
) -> None:
    (found,), _ = gather([a_run(config={"benchmark": benchmark})])
    (section,) = sections([found])
    assert words in section.before[0]


def test_equal_bytes_are_shown_across_capacities(a_run) -> None:
    bytes_kept = {"exemplar_bytes": 2**20, "auxiliary_bytes": 0}
    other = {"exemplar_bytes": 0, "auxiliary_bytes": 2**20}
    (found,), _ = gather([a_run("replay", memory=bytes_kept), a_run(memory=other)])
    assert titles(View(equal="bytes"), found) == {
        "Keep equal bytes (within 5 %): 1.00 MiB to 1.00 MiB": ["replay", "naive"]
    }


def test_numbers_are_means_over_seeds_in_percent(setting, raw) -> None:
    text = render(sections([setting], View(metrics=(MAIN,))))
    runs = [raw("naive", seed)["scores"][MAIN] for seed in (0, 1)]
    (row,) = (line for line in text.splitlines() if line.startswith("  naive "))
    shown = [float(x) for x in re.findall(r"-?\d+\.\d(?!\d)", row)]
    for place, key in ((0, "average"), (4, "bwf"), (8, "chance")):
        mean = 50 * sum(run[key] for run in runs)
        spread = 100 * abs(runs[0][key] - runs[1][key]) / 2**0.5
        assert shown[place] == pytest.approx(mean, abs=0.051)
        if key != "chance":
            assert shown[place + 1] == pytest.approx(spread, abs=0.051)
            half = 12.7062 * spread / 2**0.5
            assert shown[place + 2] == pytest.approx(mean - half, abs=0.051)


def test_what_has_to_be_known_stands_beside_the_tables(setting) -> None:
    text = render(sections([setting]))
    for line in (
        "initial weights: equal for all methods of a seed and model",
        "seeds differ: naive, replay: 0 1; upper_bound: 0",
        "upper_bound: trains for 2 epochs",
        "uses ground truth at test: no",
        "positive is forgetting",
    ):
        assert line in text
    assert "protocol exclusive v1; 1 epochs, batch 8" in text


def test_departures_are_told_by_method(a_run, raw) -> None:
    info = {**raw()["benchmark"], "uses_ground_truth_at_test": True}
    (found,), _ = gather(
        [a_run(benchmark=info, deviations={"clip_label_text": "told"})]
    )
    lines = render(sections([found])).splitlines()
    assert "naive: uses ground truth at test: yes" in lines
    assert "naive: reference deviations clip_label_text" in lines


def test_settings_are_told_apart_by_what_differs(a_run) -> None:
    settings, _ = gather(
        [a_run(), a_run("replay", config={"selection": "best_on_valid"})]
    )
    first, second = (section.title for section in sections(settings))
    assert first.endswith("; selection last")
    assert second.endswith("; selection best_on_valid")


def test_differences_are_taken_seed_by_seed(setting, raw) -> None:
    replay, naive = setting.find("replay"), setting.find("naive")
    assert replay is not None and naive is not None
    found = difference(replay, naive, MAIN, "average")
    gains = [
        100 * (raw("replay", s)["scores"][MAIN]["average"])
        - 100 * raw("naive", s)["scores"][MAIN]["average"]
        for s in (0, 1)
    ]
    assert found is not None
    assert found.mean == pytest.approx(sum(gains) / 2)
    assert found.std == pytest.approx(abs(gains[0] - gains[1]) / 2**0.5)
    (title, rows) = list(titles(View(against="naive"), setting).items())[-1]
    assert title == "Minus naive (no training samples), seed by seed"
    assert rows == ["replay", "upper_bound"]


@pytest.mark.parametrize(
    "view",
    [View(metrics=("Recall@9",)), View(against="nobody")],
    ids=["metric", "base"],
)
def test_unknown_metric_or_base_is_answered_with_the_known(setting, view) -> None:
    with pytest.raises(ValueError, match=r"expected a (metric|method) of .+ but got"):
        sections([setting], view)


def test_latex_and_markdown_escape_what_they_would_obey(a_run) -> None:
    settings, _ = gather(
        [
            a_run(config={"strategy_options": {"x": "a|b%_"}}),
            a_run(config={"strategy_options": {"x": "c"}}),
        ]
    )
    found = sections(settings)
    assert r"naive (x=\"a\|b%_\")".replace(r"\"", '"') in render(found, "markdown")
    latex = render(found, "latex")
    assert r'naive (x="a|b\%\_")' in latex
    assert latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}") == 1
    rows = [line for line in latex.splitlines() if line.endswith(r"\\")]
    assert len({line.count(" & ") for line in rows}) == 1


def test_names_from_files_cannot_steer_a_terminal(a_run, raw) -> None:
    info = {**raw()["benchmark"], "data": "user data\x1b[2J\nP_T 99"}
    (found,), _ = gather([a_run(benchmark=info)])
    for form in ("text", "markdown", "latex"):
        text = render(sections([found]), form)  # type: ignore[arg-type]
        assert "\x1b" not in text and "\nP_T 99" not in text


def test_csv_and_json_have_the_unrounded_numbers(setting, raw) -> None:
    view = View(metrics=(MAIN, "Recall@5x_tIoU0.5"))
    lines = list(csv.DictReader(io.StringIO(to_csv([setting], view))))
    assert len(lines) == 6
    naive = next(x for x in lines if x["method"] == "naive" and x["metric"] == MAIN)
    expected = 50 * sum(raw("naive", s)["scores"][MAIN]["average"] for s in (0, 1))
    assert float(naive["average_mean"]) == pytest.approx(expected, abs=1e-12)
    assert naive["capacity"] == "no training samples"
    assert naive["seeds"] == "0 1"
    bound = next(x for x in lines if x["method"] == "upper_bound")
    assert bound["bwf_mean"] == bound["average_std"] == ""
    (content,) = json.loads(json.dumps(to_dicts([setting], view), allow_nan=False))
    assert content["methods"][0]["scores"][MAIN]["average_mean"] == pytest.approx(
        expected
    )


def test_nothing_to_show_is_an_empty_table() -> None:
    assert to_csv([]).strip() == ""
    assert render(sections([])) == ""
