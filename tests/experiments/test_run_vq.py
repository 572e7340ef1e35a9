"""Runs of visual queries: what they write, repeat, resume, cache and refuse."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from avalanche_vilco.benchmarks.spec import find_benchmark
from avalanche_vilco.benchmarks.vilco_vq.benchmark import is_small_and_fixed
from avalanche_vilco.cli import main as cli
from avalanche_vilco.core.files import CACHE_VARIABLE
from avalanche_vilco.experiments.deviations import selection_metric
from avalanche_vilco.experiments.run import run

NAMES = ["tAP", "tAP25", "stAP", "stAP25", "success", "recovery"]
SIDE, WINDOW = 64, 8
KEPT = 6
VILCO = {"mem_size": KEPT, "n_prompts": 6}


@pytest.fixture(scope="module")
def root(vq_root: Path) -> Path:
    return vq_root


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(tmp_path_factory.mktemp("cache")))
        yield


def small_run(root: Path, folder: Path, strategy: str = "naive", **changes: Any) -> Any:
    options = {
        "dataset_root": root,
        "sources": {"image_size": SIDE, "n_frames": WINDOW},
        "n_experiences": 2,
    }
    settings = {"epochs": 1, "echo": lambda line: None, **changes}
    if strategy == "vilco":
        settings.setdefault("strategy_options", VILCO)
    return run(
        "vilco_vq", strategy, output=folder, benchmark_options=options, **settings
    )


@pytest.fixture(scope="module")
def cached(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder, lines = tmp_path_factory.mktemp("cached"), list[str]()
    results = small_run(root, folder, "vilco", backbone_cache=True, echo=lines.append)
    return folder, results, lines


@pytest.fixture(scope="module")
def plain(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("plain")
    return folder, small_run(root, folder, "vilco")


def test_all_metrics_have_a_full_matrix(plain: Any) -> None:
    folder, results = plain
    stored = json.loads((folder / "results.json").read_text())
    assert list(stored["matrices"]) == list(stored["scores"]) == NAMES
    for matrix in stored["matrices"].values():
        assert all(0 <= value <= 1 for row in matrix["p"] for value in row)
    assert stored["main_metric"] == "stAP25"
    assert all(0 <= score["chance"] <= 1 for score in stored["scores"].values())
    assert results["config"]["strategy_options"]["prompt_mode"] == "prepend"


def test_memory_counts_windows_and_crops_and_the_bytes_that_they_come_in(
    plain: Any, cached: Any
) -> None:
    pixels, embeddings = plain[1]["memory"], cached[1]["memory"]
    assert pixels["samples"] == embeddings["samples"] == KEPT
    assert pixels["share_of_training_samples"] == KEPT / n_train(plain[1])
    pictures = KEPT * (WINDOW + 1)
    told = pixels["exemplar_bytes"] - pictures * 3 * SIDE**2
    assert 0 < told < KEPT * 10 * 4 * 1024
    (line,) = [line for line in cached[2] if line.startswith("backbone embeddings: ")]
    count, _, size = line.removeprefix("backbone embeddings: ").partition(" frames")
    a_picture = 1e6 * float(size.split(",")[1].split()[0]) / int(count)
    found = (embeddings["exemplar_bytes"] - told) / pictures
    # The size is told in tenths of a megabyte.
    assert found == pytest.approx(a_picture, abs=1e5 / int(count))


def n_train(results: Any) -> int:
    notes = [
        stage["notes"]
        for stage in results["data"]["stages"]
        if stage["unit"] == "query sets" and "in stream train" in stage["notes"]
    ]
    return notes[0]["in stream train"]


def test_cache_changes_no_draw_and_is_used_again(
    cached: Any, root: Path, tmp_path: Path
) -> None:
    lines: list[str] = []
    again = small_run(root, tmp_path, "vilco", backbone_cache=True, echo=lines.append)
    assert not any("to compute" in line for line in lines)
    for key in ("initial_weights_sha256", "final_weights_sha256", "matrices"):
        assert again[key] == cached[1][key]
    assert again["config"]["backbone_cache"] is True


@pytest.mark.parametrize("kind", ["plain", "cached"])
def test_interrupted_run_resumes_to_the_same_weights(
    kind: str, request: pytest.FixtureRequest, root: Path, tmp_path: Path
) -> None:
    whole = request.getfixturevalue(kind)[1]
    options = {"backbone_cache": kind == "cached"}

    def interrupt(line: str) -> None:
        if line.startswith("experience 1/2"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small_run(root, tmp_path, "vilco", echo=interrupt, **options)
    resumed = small_run(root, tmp_path, "vilco", **options)
    for key in ("final_weights_sha256", "matrices", "memory"):
        assert resumed[key] == whole[key]


def test_best_epochs_are_chosen_by_the_main_metric(root: Path, tmp_path: Path) -> None:
    options = {
        "dataset_root": root,
        "sources": {"image_size": SIDE, "n_frames": WINDOW},
        "valid_share": 0.3,
    }
    results = run(
        "vilco_vq",
        "naive",
        epochs=1,
        selection="best_on_valid",
        output=tmp_path,
        benchmark_options={**options, "n_experiences": 2},
        echo=lambda line: None,
    )
    assert results["selection"]["by"] == "best_on_valid"
    assert len(results["selection"]["epochs"]) == 2
    _, value = selection_metric(find_benchmark("vilco_vq"))
    assert value == results["main_metric"]


def test_report_takes_the_metric_of_the_benchmark(
    plain: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["report", str(plain[0])]) == 0
    assert "P_T stAP25" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("data", "augment", "expected"),
    [
        ("embedded generated v1", False, True),
        ("embedded generated v1", True, False),
        ("user data", False, False),
    ],
)
def test_cache_is_usual_for_small_data_that_stay_as_they_are(
    data: str, augment: bool, expected: bool
) -> None:
    info = {"data": data, "augment": augment}
    assert is_small_and_fixed(SimpleNamespace(info=info)) is expected
