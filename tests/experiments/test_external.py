"""A benchmark from outside runs under all commands, without a change to the package."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from avalanche_vilco import predict, run, score
from avalanche_vilco.benchmarks.spec import benchmark_names, find_benchmark
from avalanche_vilco.cli import grid as cli_grid
from avalanche_vilco.cli import main as cli
from avalanche_vilco.experiments import grid as grids
from avalanche_vilco.experiments.grid import Grid, Job, Row

HERE = Path(__file__).parent / "external"


@pytest.fixture(scope="module", autouse=True)
def _installed() -> Iterator[None]:
    """The package is found as one that pip has installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE))
        yield


def test_package_is_small() -> None:
    files = [
        path for path in HERE.rglob("*") if path.suffix != ".pyc" and path.is_file()
    ]
    assert sum(len(path.read_text().splitlines()) for path in files) <= 150


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("vectors") / "replay"
    return folder, run("vectors", "replay", output=folder, echo=lambda line: None)


def test_it_is_found_and_runs(finished: tuple[Path, dict[str, Any]]) -> None:
    assert "vectors" in benchmark_names()
    assert find_benchmark("vectors").recipe.strategy_options["replay"] == {
        "mem_size": 12
    }
    _, results = finished
    assert results["scores"]["accuracy"]["average"] > 0.6
    assert results["scores"]["accuracy"]["chance"] < 0.4
    assert results["memory"]["samples"] == 12
    assert results["memory"]["exemplar_bytes"] == 12 * 8 * 4


def test_a_strategy_forgets_and_settings_are_checked(tmp_path: Path) -> None:
    results = run("vectors", output=tmp_path / "naive", echo=lambda line: None)
    assert results["scores"]["accuracy"]["bwf"] > 0.3
    with pytest.raises(ValueError, match=r"n_experiences in \[1, 6\] but got 7"):
        run("vectors", benchmark_options={"n_experiences": 7})
    with pytest.raises(ValueError, match="'vectors' has none"):
        run("vectors", deviations=["clip_label_text"])


def test_its_answers_score_as_in_the_matrix(
    finished: tuple[Path, dict[str, Any]],
) -> None:
    folder, results = finished
    file = predict(folder, echo=lambda line: None)
    labels = {"labels": [label for label in range(6) for _ in range(5)]}
    found = score("vectors", file, labels)
    last = results["matrices"]["accuracy"]["p"][-1]
    assert found.scores["accuracy"]["mean"] == pytest.approx(sum(last) / len(last))
    with pytest.raises(ValueError, match="no samples without annotations"):
        predict(folder, subset="test", echo=lambda line: None)


def test_it_is_reported(
    finished: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["report", str(finished[0])]) == 0
    printed = capsys.readouterr().out
    assert "P_T accuracy" in printed and "replay" in printed


def test_doctor_examines_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", str(tmp_path)]) == 1
    assert "labels.json (vectors)" in capsys.readouterr().out
    assert cli.main(["doctor", str(tmp_path), "--benchmark", "vectors"]) == 1
    assert "FAULT labels" in capsys.readouterr().out
    (tmp_path / "labels.json").write_text("{}")
    assert cli.main(["doctor", str(tmp_path)]) == 0


def work_here(jobs: Sequence[Job], n_workers: int) -> list[str]:
    for job in jobs:
        grids.work(job)
    return []


def test_a_grid_runs_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = Grid(
        benchmark="vectors",
        folder=tmp_path,
        rows=[Row("naive", "naive"), Row("replay", "replay", has_memory=True)],
        paper_tables={1: ("naive", "replay")},
        metrics=("accuracy",),
        memory={"embedded": 12},
    )
    monkeypatch.setattr(grids, "work_off", work_here)
    arguments = ["--seeds", "0", "--output", str(tmp_path / "out")]
    assert cli_grid.main(grid, None, arguments) == 0
    assert "replay" in (tmp_path / "out/table1.md").read_text()
    assert cli_grid.main(grid, None, [*arguments, "--list"]) == 0
    assert "2 of 2 runs are there already" in capsys.readouterr().out
