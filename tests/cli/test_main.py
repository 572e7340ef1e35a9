"""The command line: what it runs, how it says what is wrong, and what it lists."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from avalanche_vilco.benchmarks.spec import benchmark_names, find_benchmark
from avalanche_vilco.cli import main as cli
from avalanche_vilco.cli.overrides import sweep_folder
from avalanche_vilco.core.diagnosis import Diagnosis
from avalanche_vilco.experiments.config import RunArguments
from avalanche_vilco.reports.report import read_settings
from avalanche_vilco.training.table import STRATEGIES


def test_a_sweep_over_anything_is_told_apart_and_reported(
    mq_root: Path, tmp_path: Path
) -> None:
    settings = ["seed=3,4", "epochs=1,2", f"benchmark.dataset_root={mq_root}"]
    settings += ["benchmark.n_experiences=1", "model_options.max_windows=1"]
    command = [sys.executable, "-m", "avalanche_vilco.cli.main", "run", "-m"]
    for _ in range(2):
        done = subprocess.run(
            [*command, *settings], cwd=tmp_path, text=True, capture_output=True
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("row = after training i, column = evaluated on j") == 4
        assert "not with the paper" in done.stdout
    assert done.stdout.count("is finished: nothing is run") == 4
    for seed, epochs in ((3, 1), (3, 2), (4, 1), (4, 2)):
        output = tmp_path / f"outputs/vilco_mq/naive/epochs={epochs}/seed{seed}"
        assert f'"epochs": {epochs}' in (output / "results.json").read_text()
        assert list((output / "tensorboard").iterdir())
        assert '"max_windows": 1' in (output / "progress.json").read_text()
    found = read_settings([tmp_path / "outputs"], Diagnosis("report"))
    assert [len(one.runs) for one in found] == [2, 2]


def failure(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple:
    """Exit code and the one line of a command that fails."""
    try:
        code = cli.main(arguments)
    except SystemExit as exit:
        code = exit.code
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    return code, line


WRONG = [
    ("epochs=two", "expected epochs of type int >= 1 but got 'two'"),
    ("epochs=1.5", "expected epochs of type int >= 1 but got 1.5"),
    ("epochs=0", "expected epochs >= 1 but got 0"),
    ("batch_size=-1", "expected batch_size >= 1 but got -1"),
    ("seed=0.5", "expected seed of type int in [0, 4294967295] but got 0.5"),
    ("learning_rate=1e9x", "expected learning_rate of type float > 0 but got '1e9x'"),
    ("learning_rate=inf", "learning_rate of type float > 0, finite, but got inf"),
    ("precision=fp16", "expected precision in ['float32', 'bf16'] but got 'fp16'"),
    ("device=tpu", "expected device in ['auto', 'cpu'"),
    ("device=cuda:99", "'cuda:99'. torch sees"),
    ("model=vilco_nlq_tiny", "unknown model 'vilco_nlq_tiny'. Did you mean vilco_mq_t"),
    ("strategy=replay strategy.mem_size=abc", "strategy.mem_size of type int >= 0 but"),
    ("strategy=replay strategy.memsize=32", "no option 'memsize'. Did you mean mem_si"),
    ("strategy=ewc strategy.ewc_lambda=inf", "strategy.ewc_lambda of type float >= 0"),
    ("strategy=bic strategy.mem_size=1", "strategy.mem_size and strategy.val_share"),
    ("benchmark=vilco_nlq strategy=vilco strategy.prompt_mode=replace", "'prepend'"),
    ("benchmark.sead=3", "'vilco_mq' has no option 'sead'. Did you mean seed?"),
    ("benchmark.sources.grid=0", "expected benchmark.sources.grid >= 1 but got 0"),
    ("benchmark=vilco_mqq", "unknown benchmark 'vilco_mqq'. Did you mean vilco_mq"),
    ("-m strategy=naive,replai", "unknown strategy 'replai'. Did you mean replay?"),
    ("-m epochs=1,0", "expected epochs >= 1 but got 0"),
    ("epochs=1,2", "expected one value of epochs but got 'epochs=1,2': -m runs each"),
    ("epoch=3", "run has no option 'epoch'. Did you mean epochs?"),
    ("epochs", "expected NAME=VALUE but got 'epochs'"),
    ("--strategy naive", "expected strategy=VALUE, without dashes, but got --strategy"),
    ("strategy_options={mem_size: 3}", "expected strategy.NAME=VALUE but got"),
    ("strategy=lwf strategy.alpha=[]", "strategy.alpha of length >= 1 but got []"),
    ("strategy=si strategy.si_lambda=[]", "si_lambda of length >= 1 but got []"),
    ("strategy=vilco strategy.top_n=20", "strategy.top_n in 1..10, the number of"),
    ("strategy.foo=null", "strategy 'naive' has no option 'foo'"),
    ("benchmark.sources.foo=null", "benchmark.sources has no option 'foo'"),
    ("benchmark.sources.features=[]", "sources.features of length >= 1 but got []"),
    ("benchmark.sources.features=5", "sources.features of type Path or str or Feat"),
    ("benchmark.sources.clip_label_text=true", "expected protocol 'reference' for"),
    ("deviations=all", "expected protocol 'reference' for the deviations ['clip_la"),
    ("benchmark.valid_share=0 selection=best_on_valid", "valid_share above 0 but got"),
    ("-m seed=0,1 output=X", "expected an output for each job but got X for several"),
    ("-m output=./x,x seed=0,1", "expected an output for each job but got ./x for"),
    ("-m seed=0,1 output=out${seed} epochs=0", "expected epochs >= 1 but got 0"),
    ("-m seed=range(0,0)", "expected values of seed but got none"),
    ("-m seed=range(0,2,0)", "NAME=VALUE but got 'seed=range(0,2,0)'"),
    ("epochs=2 epochs=3", "expected epochs once but got it again: epochs=3"),
    ("output=", "expected output of length >= 1 but got ''"),
    ("output=/proc/x", "expected output to be a folder that can be written but got"),
    ("output=" + 300 * "a", "File name too long"),
    ("epochs=1 -m seed=0,1 hydra.foo=1", "Could not override 'hydra.foo'"),
    ("epochs=1 hydra.foo=1", "Could not override 'hydra.foo'"),
    ("-m learning_rate=interval(0,1)", "does not support sweep type"),
    ("output=${foo}", "Interpolation key 'foo' not found"),
    ("--config-name nope", "Cannot find primary config 'nope'"),
    ("model_options.sigma=nan", "expected model_options.sigma of type float > 0, fin"),
]


@pytest.mark.parametrize(("settings", "message"), WRONG)
def test_wrong_setting_is_one_line_before_anything_is_built(
    settings: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [settings] if "={" in settings else settings.split()
    code, line = failure(["run", *arguments], capsys)
    assert code == 2 and line.startswith("error: ") and message in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("predict . --device tpu", "expected device in ['auto', 'cpu'"),
        ("predict . --subset x", "invalid choice: 'x' (choose from"),
        ("score --task mq --predictions a --annotations b --k two", "integer >= 1 but"),
        ("score --task mq --predictions a --annotations b --tiou nan", "in (0, 1] but"),
        ("score --task mqq --predictions a --annotations b", "unknown benchmark 'mqq'"),
        ("report . --fromat csv", "--fromat csv. Did you mean --format?"),
        ("report . --paper-tables 0", "expected an integer >= 1 but got '0'"),
        ("doctor . --depp", "--depp. Did you mean --deep"),
    ],
)
def test_wrong_options_of_other_commands_are_one_line_too(
    command: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, line = failure(command.split(), capsys)
    assert code == 2 and message in line


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("learning_rate: 0.01", "begins with 'defaults: [run, _self_]'"),
        ("a: [1", "while parsing a flow sequence"),
        ("defaults: [run, _self_]\necho: a", "run has no option 'echo'"),
        ("defaults: [run, _self_]\n1: 2", "run has no option 1"),
        (
            "defaults: [run, _self_]\nbenchmark_options: {n_experiences: 2}",
            "run has no option 'benchmark_options'",
        ),
        ("defaults: [run, _self_]\nepochs: 0", "expected epochs >= 1 but got 0"),
    ],
)
def test_configuration_of_ones_own_is_read_or_refused_in_one_line(
    content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_text(content)
    flags = ["--config-dir", str(tmp_path), "--config-name", "mine"]
    code, line = failure(["run", *flags], capsys)
    assert code == 2 and message in line


def test_a_glob_is_left_to_hydra(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = ["run", "-m", "strategy=glob(nai*)", "epochs=0"]
    assert failure(sweep, capsys) == (2, "error: expected epochs >= 1 but got 0")


def test_wrong_settings_need_no_avalanche() -> None:
    script = """if True:
        import sys
        from avalanche_vilco.cli.main import main
        for wrong in ("epochs=two", "strategy.mem_size=3", "model=x"):
            assert main(["run", wrong]) == 2
        assert not {"torch", "avalanche"} & set(sys.modules)"""
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


def test_data_at_fault_are_one_line_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [])
    with pytest.raises(SystemExit, match="1"):
        cli.main(["run", "benchmark.dataset_root=nowhere"])
    printed = capsys.readouterr().err
    (line,) = [line for line in printed.splitlines() if "error: " in line]
    assert "no data folder at nowhere" in line
    assert "Traceback" not in printed


def test_help_tells_of_every_setting_model_and_option(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["run", "--help"]) == 0
    printed = capsys.readouterr().out
    for name in benchmark_names():
        assert all(model in printed for model in find_benchmark(name).models)
    for name, strategy in STRATEGIES.items():
        assert f"  {name:<20}{strategy.help}" in printed
        assert all(f".{option}=" in printed for option in strategy.options)
    for name in RunArguments.__annotations__.keys() - {
        "benchmark_options",
        "strategy_options",
    }:
        assert re.search(rf"^  {name}\b.* [A-Z\"].*$", printed, re.M), name
    assert "epochs=7                Passes over each experience (int >= 1)" in printed


def test_names_of_sweep_folders_are_short_legal_and_apart() -> None:
    assert sweep_folder("epochs=1,strategy.mem_size=3") == (
        "epochs=1,strategy.mem_size=3"
    )
    long = [sweep_folder(f"x={'9' * 300}{n}") for n in range(3)]
    odd = [sweep_folder(f"benchmark.dataset_root={root}") for root in ("/a b", "/a_b")]
    assert len({*long, *odd}) == 5
    assert all(re.fullmatch(r"[\w.,=+-]{1,80}", name) for name in [*long, *odd])


def test_version_and_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--version"])
    with pytest.raises(SystemExit, match="2"):
        cli.main(["fly"])
    assert "avalanche-vilco run" in capsys.readouterr().err
