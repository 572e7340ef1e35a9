"""Results files: what is read, and that nothing damaged is shown."""

import json
import shutil
from typing import Any

import pytest

from avalanche_vilco.core.errors import DataError
from avalanche_vilco.reports.runs import experiences_done, read_run, run_folders

MAIN = "Recall@1x_tIoU0.5"


def test_runs_are_found_below_a_folder(outputs) -> None:
    found = [str(folder.relative_to(outputs)) for folder in run_folders(outputs)]
    assert found == [
        "naive/seed0",
        "naive/seed1",
        "replay/seed0",
        "replay/seed1",
        "upper_bound/seed0",
    ]
    assert list(run_folders(outputs / "naive/seed1")) == [outputs / "naive/seed1"]


def test_run_has_the_numbers_of_its_file(outputs, raw) -> None:
    run, content = read_run(outputs / "replay/seed1"), raw("replay", 1)
    assert run.seed == 1
    assert run.results.scores[MAIN].average == content["scores"][MAIN]["average"]
    assert run.results.memory.samples == content["memory"]["samples"] == 3
    assert run.matrix(MAIN).average() == pytest.approx(
        content["scores"][MAIN]["average"]
    )


def test_epochs_of_a_training_are_told(outputs) -> None:
    assert read_run(outputs / "naive/seed0").results.train_epochs == 1
    assert read_run(outputs / "upper_bound/seed0").results.train_epochs == 2


def without_memory(content: dict[str, Any]) -> None:
    del content["memory"]


def other_version(content: dict[str, Any]) -> None:
    content["results_version"] = 99


def percent(content: dict[str, Any]) -> None:
    content["scores"][MAIN]["average"] = 35.7


def flattering(content: dict[str, Any]) -> None:
    content["scores"][MAIN]["average"] += 0.01


def transposed(content: dict[str, Any]) -> None:
    content["matrices"][MAIN]["orientation"] = "columns are time"


def ragged(content: dict[str, Any]) -> None:
    content["matrices"][MAIN]["p"].pop()


def obeyed_by_a_terminal(content: dict[str, Any]) -> None:
    content["config"]["strategy"] = "naive\x1b[2J"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without_memory, "missing required field `memory`"),
        (other_version, "results of version 1 but got 99"),
        (percent, "<= 1"),
        (flattering, "its matrix gives"),
        (transposed, "expected orientation"),
        (ragged, "expected 5 rows"),
        (obeyed_by_a_terminal, "config.strategy"),
    ],
)
def test_damage_is_named(raw, tmp_path, damage, message) -> None:
    content = raw()
    damage(content)
    (tmp_path / "results.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"results\.json") as caught:
        read_run(tmp_path)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "content", [b"", b'{"results_version": 1', b"[]", b"\xff", b"[" * 100_000]
)
def test_files_that_are_no_results_are_named(tmp_path, content) -> None:
    (tmp_path / "results.json").write_bytes(content)
    with pytest.raises(DataError, match=r"results\.json"):
        read_run(tmp_path)


def test_every_truncation_is_refused(outputs, tmp_path) -> None:
    whole = (outputs / "naive/seed0/results.json").read_bytes()
    for size in range(0, len(whole) - 2, len(whole) // 50):
        (tmp_path / "results.json").write_bytes(whole[:size])
        with pytest.raises(DataError):
            read_run(tmp_path)


def test_unfinished_run_says_how_far_it_is(outputs, tmp_path) -> None:
    shutil.copy(outputs / "naive/seed0/progress.json", tmp_path)
    with pytest.raises(FileNotFoundError, match="not finished"):
        read_run(tmp_path)
    assert experiences_done(tmp_path) == 5
    (tmp_path / "progress.json").write_text('{"seconds": 3}')
    with pytest.raises(DataError, match=r"progress\.json"):
        experiences_done(tmp_path)
