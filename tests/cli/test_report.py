"""``avalanche-vilco report``: what it shows, and what it says of what it cannot."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from avalanche_vilco.cli import main as cli

PAPER = Path(__file__).resolve().parents[2] / "benchmarks/vilco_mq/paper.csv"


@pytest.fixture(scope="module")
def outputs(finished_runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods with one seed each."""
    folder = tmp_path_factory.mktemp("two") / "outputs"
    for strategy in ("naive", "replay"):
        place = Path(strategy, "seed0")
        shutil.copytree(finished_runs / place, folder / place)
    return folder


@pytest.fixture
def copied(outputs: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(outputs, tmp_path / "outputs"))


@pytest.fixture
def report(capsys: pytest.CaptureFixture[str]) -> Callable:
    """Runs the command: exit code, output, errors."""

    def run(*arguments: object) -> tuple[int, str, str]:
        code = cli.main(["report", *map(str, arguments)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def test_finished_runs_below_a_folder_are_shown(outputs, report) -> None:
    code, out, err = report(outputs)
    assert (code, err) == (0, "")
    assert out.index("May keep no training samples") < out.index("  naive ")
    assert out.index("May keep 3 training samples") < out.index("  replay ")


def test_a_run_passed_twice_is_shown_once(outputs, report) -> None:
    code, out, err = report(outputs, outputs / "naive", outputs / "naive/seed0")
    assert (code, err) == (0, "")
    assert out.count("  naive ") == 1


@pytest.mark.parametrize("form", ["markdown", "latex", "csv", "json"])
def test_every_format_goes_to_a_file(outputs, tmp_path, report, form) -> None:
    file = tmp_path / "new" / "table"
    code, out, _ = report(outputs, "--format", form, "--output", file)
    assert (code, out) == (0, "")
    assert "replay" in file.read_text()


def test_json_holds_tables_published_numbers_and_findings(copied, report) -> None:
    (copied / "replay/seed0/results.json").write_text("{")
    code, out, err = report(copied, "--format", "json", "--paper", PAPER)
    content = json.loads(out)
    assert (code, err, content["ok"]) == (1, "", False)
    assert [m["method"] for m in content["settings"][0]["methods"]] == ["naive"]
    assert content["findings"][0]["file"].endswith("replay/seed0/results.json")
    published = {(x["table"], x["method"]): x for x in content["published"]}
    assert published[6, "Naive"]["ours_method"] == "naive"
    assert published[2, "EWC"]["reproduced"] == "not run (data not here)"


def test_published_numbers_stand_beside_ours_with_a_warning(outputs, report) -> None:
    _, out, _ = report(outputs, "--paper", PAPER, "--paper-tables", 6)
    assert "NOT COMPARABLE: data" in out
    assert "22.74" in out and "Table 6 of the paper" in out
    assert "Table 2" not in out


def test_damaged_run_is_one_line_and_the_others_are_shown(copied, report) -> None:
    (copied / "naive/seed0/results.json").write_text('{"results_version": 1}')
    code, out, err = report(copied)
    (line,) = err.splitlines()
    assert code == 1
    assert line.startswith("FAULT run: ") and "naive/seed0/results.json" in line
    assert "  replay " in out and "  naive " not in out


def test_unfinished_run_is_a_note(copied, report) -> None:
    (copied / "naive/seed0/results.json").unlink()
    code, out, err = report(copied)
    (line,) = err.splitlines()
    assert code == 0
    assert line.startswith("NOTE run: ") and "unfinished after 5 experiences" in line
    assert "  replay " in out


def test_run_of_other_weights_for_the_same_seed_is_a_fault(copied, report) -> None:
    twin = Path(shutil.copytree(copied / "naive/seed0", copied / "naive/again"))
    code, _, err = report(copied)
    assert code == 0 and err.startswith("NOTE run: ")
    file = twin / "results.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "final_weights_sha256": "0" * 64}))
    code, _, err = report(copied)
    assert code == 1 and "ended with other weights" in err


@pytest.mark.parametrize(
    ("place", "words"), [("nowhere", "no such folder"), ("", "no results.json in it")]
)
def test_foreign_folder_is_a_fault(tmp_path, report, place, words) -> None:
    (tmp_path / "data.json").write_text("{}")
    code, out, err = report(tmp_path / place)
    (line,) = err.splitlines()
    assert (code, out) == (1, "")
    assert line.startswith("FAULT folder: ") and words in line


def test_damaged_published_numbers_are_a_fault(outputs, tmp_path, report) -> None:
    (tmp_path / "paper.csv").write_text("table\ntwo\n")
    code, out, err = report(outputs, "--paper", tmp_path / "paper.csv")
    assert code == 1 and "  naive " in out
    assert "paper.csv" in err and "line 2" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--metrics", "Top1_Acc"], "expected a metric of Recall@1x_tIoU0.3"),
        (["--against", "ewc"], "expected a method of naive, replay but got 'ewc'"),
        (["--plot", "figure.doc"], "expected a name ending in .png"),
        (["--format", "word"], "invalid choice"),
    ],
)
def test_bad_usage_says_what_was_expected(outputs, capsys, arguments, words) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["report", str(outputs), *arguments])
    assert words in capsys.readouterr().err


def test_plots_are_written(outputs, tmp_path, report) -> None:
    scores, matrices = tmp_path / "new/scores.svg", tmp_path / "new/matrices.png"
    code, _, _ = report(outputs, "--plot", scores, "--matrices", matrices)
    assert code == 0
    assert matrices.read_bytes().startswith(b"\x89PNG")
    drawn = scores.read_text()
    for words in ("may keep 3 training samples", "replay", "naive", "BwF_T"):
        assert f"<!-- {words}" in drawn or words in drawn
