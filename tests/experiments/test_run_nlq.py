"""Runs of language queries: what they write, repeat, resume and refuse."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from avalanche_vilco.benchmarks.spec import find_benchmark
from avalanche_vilco.benchmarks.vilco_nlq.generator import vilco_nlq
from avalanche_vilco.cli import main as cli
from avalanche_vilco.experiments.run import run

SIZES = [5, 4, 4]


def small_run(root: Path, folder: Path, strategy: str = "naive", **changes: Any) -> Any:
    settings = {"epochs": 1, "echo": lambda line: None, **changes}
    options = {"dataset_root": root, "per_exp_classes": SIZES}
    return run(
        "vilco_nlq", strategy, output=folder, benchmark_options=options, **settings
    )


def test_every_question_counts_and_future_experiences_have_scores(nlq_run) -> None:
    folder, results = nlq_run
    stored = json.loads((folder / "results.json").read_text())
    names = [f"Recall@{k}_tIoU{t}" for k in (1, 5) for t in ("0.3", "0.5", "mean")]
    assert list(stored["matrices"]) == list(stored["scores"]) == names
    own = vilco_nlq(**results["config"]["benchmark_options"])
    sizes = [len(experience.dataset) for experience in own.test_stream]
    for matrix in stored["matrices"].values():
        for row in matrix["p"]:
            shares = [value * n for value, n in zip(row, sizes, strict=True)]
            # Whole numbers of hits; the mean over two thresholds has halves.
            assert all(abs(2 * hits - round(2 * hits)) < 1e-6 for hits in shares)
    assert stored["main_metric"] == "Recall@1_tIoU0.3"
    for score in stored["scores"].values():
        assert 0 <= score["chance"] <= 1


def test_settings_left_out_are_the_benchmark_s(nlq_run) -> None:
    usual = find_benchmark("vilco_nlq").recipe.hyperparameters
    config = nlq_run[1]["config"]
    assert config["model"] == usual["model"] == "vilco_nlq_tiny"
    assert config["eval_batch_size"] == usual["eval_batch_size"]
    assert (config["epochs"], config["batch_size"]) == (2, 4)


def test_interrupted_run_resumes_to_the_same_weights(
    nlq_root: Path, tmp_path: Path
) -> None:
    options = {"strategy": "vilco", "strategy_options": {"mem_size": 6}}

    def interrupt(line: str) -> None:
        if line.startswith("experience 2/3"):
            raise KeyboardInterrupt

    whole = small_run(nlq_root, tmp_path / "whole", **options)
    with pytest.raises(KeyboardInterrupt):
        small_run(nlq_root, tmp_path / "parts", echo=interrupt, **options)
    resumed = small_run(nlq_root, tmp_path / "parts", **options)
    for key in ("final_weights_sha256", "matrices", "scores", "memory"):
        assert resumed[key] == whole[key]
    assert whole["config"]["strategy_options"]["prompt_mode"] == "prepend"


def test_memory_tells_questions_of_one_clip_apart(
    nlq_root: Path, tmp_path: Path
) -> None:
    results = small_run(nlq_root, tmp_path, "replay", strategy_options={"mem_size": 24})
    memory = results["memory"]
    own = vilco_nlq(**results["config"]["benchmark_options"])
    assert memory["samples"] == 24
    assert memory["clips"] <= 12 < memory["samples"]
    assert memory["share_of_training_samples"] == 24 / len(own.datasets["train"])
    # At least three words of 48 channels a question.
    clips = 4 * 48 * 12 * round(60 * 30 / 16.043)
    assert memory["exemplar_bytes"] < clips + 24 * 4 * 48 * 20
    assert memory["exemplar_bytes"] > 24 * 4 * 48 * 3


def test_prompts_alone_are_refused(nlq_root: Path, tmp_path: Path) -> None:
    options = {"prompt_mode": "replace", "ssl_weight": 0.0}
    with pytest.raises(ValueError, match="prompts alone cannot carry"):
        small_run(nlq_root, tmp_path, "vilco", strategy_options=options)


def test_command_line_runs_the_thirteen_templates(
    nlq_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [])
    settings = ["benchmark=vilco_nlq", "strategy=vilco", "epochs=1"]
    root = f"benchmark.dataset_root={nlq_root}"
    assert cli.main(["run", *settings, root]) == 0
    printed = capsys.readouterr().out
    assert "row = after training i, column = evaluated on j" in printed
    file = tmp_path / "outputs/vilco_nlq/vilco/seed0/results.json"
    rows = json.loads(file.read_text())["matrices"]["Recall@1_tIoU0.3"]["p"]
    assert len(rows) == 13
    assert all(
        value is not None and math.isfinite(value) for row in rows for value in row
    )
