"""The command line: what it runs, how it says what is wrong, and what it lists."""

import subprocess
import sys
from pathlib import Path

import pytest

from avalanche_vilco.benchmarks.spec import benchmark_names
from avalanche_vilco.cli import main as cli
from avalanche_vilco.training.strategies import STRATEGIES


def test_a_sweep_runs_and_writes_results(mq_root: Path, tmp_path: Path) -> None:
    settings = ["seed=3,4", "epochs=1", f"benchmark.dataset_root={mq_root}"]
    settings += ["benchmark.n_experiences=1", "model_options.max_windows=1"]
    command = [sys.executable, "-m", "avalanche_vilco.cli.main", "run", "-m"]
    done = subprocess.run(
        [*command, *settings], cwd=tmp_path, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    assert "row = after training i, column = evaluated on j" in done.stdout
    assert "not with the paper" in done.stdout
    for seed in (3, 4):
        output = tmp_path / f"outputs/vilco_mq/naive/seed{seed}"
        assert (output / "results.json").is_file()
        assert list((output / "tensorboard").iterdir())
        assert '"max_windows": 1' in (output / "progress.json").read_text()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("benchmark.dataset_root=nowhere", "no data folder at nowhere"),
        ("benchmark.sead=3", "'vilco_mq' has no option 'sead'. Did you mean seed?"),
        ("benchmark=vilco_mqq", "unknown benchmark 'vilco_mqq'. Did you mean vilco_mq"),
        ("strategy=naive,replai", "unknown strategy 'replai'. Did you mean replay?"),
    ],
)
def test_what_is_wrong_is_one_line(
    setting: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", [])
    with pytest.raises(SystemExit, match=r"[12]"):
        cli.main(["run", setting])
    printed = capsys.readouterr().err
    (line,) = [line for line in printed.splitlines() if "error: " in line]
    assert message in line
    assert "Traceback" not in printed


def test_help_lists_benchmarks_strategies_and_settings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [])
    with pytest.raises(SystemExit, match="0"):
        cli.main(["run", "--help"])
    printed = capsys.readouterr().out
    assert f"benchmark: {', '.join(benchmark_names())}" in printed
    for name, strategy in STRATEGIES.items():
        assert f"  {name:<20}{strategy.help}" in printed
    for setting in ("epochs: null", "n_experiences: 5", "dataset_root: null"):
        assert setting in printed


def test_version_and_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--version"])
    with pytest.raises(SystemExit, match="2"):
        cli.main(["fly"])
    assert "avalanche-vilco run" in capsys.readouterr().err
