"""The grids of the paper's tables: what they would run, run, skip and refuse."""

import json
import runpy
import time
from multiprocessing import Pipe, get_all_start_methods, get_context
from pathlib import Path

import pytest

from avalanche_vilco.cli import grid as cli
from avalanche_vilco.experiments import grid as grids
from avalanche_vilco.reports.published import read_published

SCRIPTS = Path(__file__).resolve().parents[2] / "benchmarks"


class Script:
    """A grid's script, running its jobs in this process."""

    def __init__(self, benchmark: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = SCRIPTS / benchmark
        self.grid = runpy.run_path(str(self.folder / "grid.py"))["GRID"]
        monkeypatch.setattr(grids, "work_off", self._work_off)

    def _work_off(self, jobs, n_workers: int) -> list[str]:
        for job in jobs:
            print(f"{job.label}: {grids.work(job)}")
        return []

    def main(self, arguments: list[str]) -> int:
        return cli.main(self.grid, "a grid", arguments)

    def settings(self, name: str, seed: int, *arguments: str):
        options = cli.parse(self.grid, "a grid", arguments)
        row = next(row for row in self.grid.rows if row.name == name)
        return grids.settings_of(self.grid, row, seed, options)


@pytest.fixture
def grid(monkeypatch: pytest.MonkeyPatch) -> Script:
    return Script("vilco_mq", monkeypatch)


@pytest.fixture(params=["vilco_mq", "vilco_nlq", "vilco_vq"])
def each_grid(request, monkeypatch: pytest.MonkeyPatch) -> Script:
    return Script(request.param, monkeypatch)


@pytest.fixture
def small(mq_root: Path, tmp_path: Path) -> list[str]:
    """Arguments of the smallest grid, on data that stand in for Ego4D."""
    return [
        *("--data", "ego4d", "--root", str(mq_root), "--output", str(tmp_path / "out")),
        *("--model", "vilco_mq_tiny", "--epochs", "1", "--mem-size", "4"),
        *("--seeds", "0"),
    ]


def test_every_published_row_is_run_by_exactly_one_row(each_grid: Script) -> None:
    rows = {row.name: row for row in each_grid.grid.rows}
    assert len(rows) == len(each_grid.grid.rows)
    for line in read_published(each_grid.folder / "paper.csv"):
        switches = dict(s.split("=") for s in line.switches.split(";") if s)
        found = [
            name
            for name in each_grid.grid.paper_tables[line.table]
            if rows[name].strategy == line.strategy
            and (rows[name].order is not None) == (line.order == "random")
            and max(1, len(rows[name].features)) == line.features
            and all(
                bool(rows[name].options.get(option, True)) == (word == "on")
                for option, word in switches.items()
            )
        ]
        assert len(found) == 1, line


def test_every_strategy_of_a_grid_has_a_recipe(each_grid: Script) -> None:
    from avalanche_vilco.training.strategies import find_strategy

    for row in each_grid.grid.rows:
        recipe = find_strategy(row.strategy)
        given = {*row.options, *({"mem_size"} if row.has_memory else ())}
        assert given <= set(recipe.options), row


def test_paper_settings_are_those_of_table_8(grid: Script, tmp_path: Path) -> None:
    data = "--data", "ego4d", "--root", str(tmp_path)
    settings, _ = grid.settings("vilco_3_features", 2, *data)
    wanted = {"epochs": 15, "batch_size": 2, "learning_rate": 1e-4}
    assert settings.items() >= {**wanted, "weight_decay": 0.05}.items()
    assert settings["strategy_options"]["mem_size"] == 1010
    names = ["features", "features_internvideo", "features_slowfast"]
    folders = [str(tmp_path / name) for name in names]
    assert settings["benchmark_options"]["sources"]["features"] == folders


def test_visual_queries_take_the_settings_of_table_8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script("vilco_vq", monkeypatch)
    settings, _ = script.settings(
        "vilco", 1, "--data", "ego4d", "--root", str(tmp_path)
    )
    wanted = {"epochs": 50, "batch_size": 4, "learning_rate": 3e-4}
    assert settings.items() >= {**wanted, "weight_decay": 1e-4}.items()
    assert settings["strategy_options"] == {"mem_size": 1010}
    embedded, _ = script.settings("replay", 1)
    assert embedded["strategy_options"] == {"mem_size": 32}
    assert "epochs" not in embedded


def test_real_data_need_a_root(
    each_grid: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        each_grid.main(["--data", "ego4d"])
    assert "not shipped" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("--model foo", "unknown model 'foo'"),
        ("--device tpu", "expected device in"),
        ("--epochs 0", "--epochs: expected an integer >= 1 but got '0'"),
        ("--jobs none", "--jobs: expected an integer >= 1 but got 'none'"),
        ("--seeds -1", "--seeds: expected"),
    ],
)
def test_wrong_settings_are_told_before_the_first_run(
    wrong: str,
    message: str,
    grid: Script,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["--output", str(tmp_path / "out"), *wrong.split()]
    try:
        code = grid.main(arguments)
    except SystemExit as exit:
        code = exit.code
    assert code == 2 and message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_runs_are_made_once_and_fail_the_grid_if_they_start_unequal(
    grid: Script, small: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*small, "--tables", "6", "--rows", "naive", "vilco_without_ssl"]
    assert grid.main(arguments) == 0
    printed = capsys.readouterr().out
    assert "naive seed 0: experience 5/5" in printed
    output = Path(small[small.index("--output") + 1])
    table = (output / "table6.md").read_text()
    assert "initial weights: equal for all methods" in table
    assert "Table 6 of the paper" in table and "NOT COMPARABLE" in table
    assert (output / "table6.png").is_file()
    assert (output / "table6_matrices.png").is_file()
    stored = json.loads((output / "vilco_without_ssl/seed0/results.json").read_text())
    assert stored["config"]["strategy_options"]["mem_size"] == 4

    assert grid.main(arguments) == 0
    again = capsys.readouterr().out
    assert "2 of 2 runs are there already" in again
    assert "experience" not in again.split("there already")[1]

    assert grid.main([*arguments, "--epochs", "2", "--list"]) == 0
    listed = capsys.readouterr().out
    assert "0 of 2 runs are there already" in listed
    assert listed.count("to run: ") == 2

    stored["initial_weights_sha256"] = "0" * 64
    file = output / "vilco_without_ssl/seed0/results.json"
    file.write_text(json.dumps(stored))
    assert grid.main(arguments) == 1
    assert "FAILED initial weights differ" in capsys.readouterr().err


def test_equal_bytes_take_the_size_from_what_another_row_keeps(
    grid: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from types import SimpleNamespace

    from avalanche_vilco.reports import runs

    kept = {
        "vilco": (64, 9600, 1700),
        "replay": (64, 6400, 0),
        "icarl": (64, 6400, 900),
    }

    def read_run(folder: Path) -> SimpleNamespace:
        names = ("samples", "exemplar_bytes", "auxiliary_bytes")
        memory = dict(zip(names, kept[folder.parent.name], strict=True))
        return SimpleNamespace(
            results=SimpleNamespace(memory=SimpleNamespace(**memory))
        )

    monkeypatch.setattr(runs, "read_run", read_run)
    options = "--output", str(tmp_path), "--seeds", "3", "4"
    settings, problem = grid.settings("replay_bytes_of_vilco", 4, *options)
    assert (settings["strategy_options"]["mem_size"], problem) == (113, "")
    settings, problem = grid.settings("icarl_bytes_of_vilco", 4, *options)
    assert (settings["strategy_options"]["mem_size"], problem) == (104, "")


def test_row_that_needs_another_says_so(
    grid: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--tables", "2", "--rows", "replay_bytes_of_vilco"]
    assert grid.main([*arguments, "--output", str(tmp_path)]) == 1
    assert "needs the bytes of vilco, of which no run" in capsys.readouterr().err


def begin_a_worker(alive) -> None:
    """What a grid does: begin a worker, then wait for it."""
    worker = get_context("fork").Process(target=work_for_ever, args=(alive,))
    worker.start()
    worker.join()


def work_for_ever(alive) -> None:
    grids.end_with_parent()
    alive.send("at work")
    time.sleep(60)


@pytest.mark.skipif(
    "fork" not in get_all_start_methods(),
    reason="a system that does not fork would load torch twice more for this",
)
def test_workers_of_a_grid_that_was_killed_end_too():
    here, there = Pipe(duplex=False)
    parent = get_context("fork").Process(target=begin_a_worker, args=(there,))
    parent.start()
    there.close()
    assert here.poll(30) and here.recv() == "at work"
    parent.kill()
    # The end of the pipe: nobody is left who could write.
    assert here.poll(30)
    with pytest.raises(EOFError):
        here.recv()
