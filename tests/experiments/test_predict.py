"""Submission files of runs score as the runs' matrices say."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from avalanche_vilco.benchmarks.vilco_mq.generator import vilco_mq
from avalanche_vilco.benchmarks.vilco_mq.layout import ANNOTATION_FILE
from avalanche_vilco.benchmarks.vilco_mq.submission import moment_document
from avalanche_vilco.benchmarks.vilco_nlq.submission import question_document
from avalanche_vilco.cli.main import main
from avalanche_vilco.experiments.predict import predict
from avalanche_vilco.experiments.run import run
from avalanche_vilco.experiments.score import score

LEVELS = ("0.3", "0.5")


def silent(line: str) -> None:
    """Prints nothing."""


def from_groups(found: Any, names: list[str], recall: str, level: str) -> float:
    """Recall over some labels or templates, from those of each."""
    own = [found.groups[name] for name in names if name in found.groups]
    windows = sum(group["windows"] for group in own)
    return sum(group["windows"] * group[recall][level] for group in own) / windows


def expect_last_row(found: Any, results: Any, queries: list[str], times: str) -> None:
    sizes = results["benchmark"]["queries_per_experience"]
    for k in (1, 5):
        for level in LEVELS:
            recall = f"Recall@{k}{times}"
            row = results["matrices"][f"{recall}_tIoU{level}"]["p"][-1]
            for j, told in enumerate(row):
                names = queries[sum(sizes[:j]) : sum(sizes[: j + 1])]
                scored = from_groups(found, names, recall, level)
                assert scored == pytest.approx(told, abs=1e-9), (recall, level, j)


@pytest.fixture(scope="module")
def mq_run(mq_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("runs") / "mq"
    results = run(
        "vilco_mq",
        "naive",
        epochs=4,
        benchmark_options={"dataset_root": mq_root, "n_experiences": 2},
        output=folder,
        echo=silent,
    )
    return folder, results


def test_language_queries_score_as_in_the_matrix(
    nlq_run: Any, clean_nlq_root: Path, meets_official_rules: Any
) -> None:
    from avalanche_vilco.benchmarks.vilco_nlq.templates import NLQ_TEMPLATES

    folder, results = nlq_run
    file = predict(folder, echo=silent)
    annotations = clean_nlq_root / "nlq_val.json"
    meets_official_rules("nlq", file, annotations, "val")
    found = score("nlq", file, annotations)
    assert found.counts["answered"] == found.counts["queries"] > 40
    assert results["scores"]["Recall@5_tIoU0.3"]["average"] > 0
    expect_last_row(found, results, list(NLQ_TEMPLATES), "")


def asked_windows(root: Path) -> dict[str, Any]:
    """What the protocol counts of each test clip, in the processed file's form."""
    benchmark = vilco_mq(root, n_experiences=2)
    names = [query.name for query in benchmark.queries]
    return {
        sample.clip.clip_id: {
            "subset": "val",
            "annotations": [
                {"label": names[channel], "start_time": start, "end_time": end}
                for (start, end), channel in zip(
                    sample.windows_sec.tolist(),
                    sample.class_indices.tolist(),
                    strict=True,
                )
            ],
        }
        for sample in benchmark.datasets["test"].samples
    }


def test_moment_queries_score_as_in_the_matrix(
    mq_run: Any, mq_root: Path, meets_official_rules: Any
) -> None:
    folder, results = mq_run
    file = predict(folder, echo=silent)
    meets_official_rules("mq", file, mq_root / ANNOTATION_FILE, "val")
    found = score("mq", file, asked_windows(mq_root))
    queries = [query.name for query in vilco_mq(mq_root, n_experiences=2).queries]
    assert results["scores"]["Recall@5x_tIoU0.3"]["average"] > 0
    expect_last_row(found, results, queries, "x")


def test_what_no_experience_answers_is_in_the_files_too(
    mq_root: Path, tmp_path: Path, meets_official_rules: Any
) -> None:
    """Public recall looks up every clip; the public code of NLQ stops at no window."""
    options = {"dataset_root": mq_root}
    nothing = SimpleNamespace(samples=[], queries=[])
    document = moment_document(nothing, [], nothing, options, "val")
    assert {*map(len, document["results"].values())} == {0}
    file = tmp_path / "mq.json"
    file.write_text(json.dumps(document))
    meets_official_rules("mq", file, mq_root / ANNOTATION_FILE, "val")
    sample = SimpleNamespace(
        clip=SimpleNamespace(clip_id="c"),
        query=SimpleNamespace(annotation_uid="a", query_idx=0),
    )
    data = SimpleNamespace(samples=[sample])
    (answer,) = question_document(data, [[]], None, {}, "val")["results"]
    assert answer["predicted_times"] == [[0.0, 0.0]]


def test_clips_without_annotations_are_answered(
    nlq_run: Any,
    mq_run: Any,
    clean_nlq_root: Path,
    mq_root: Path,
    tmp_path: Path,
    meets_official_rules: Any,
) -> None:
    path = clean_nlq_root / "nlq_test_unannotated.json"
    asked = json.loads(path.read_text())
    wanted = {
        (clip["clip_uid"], part["annotation_uid"], number)
        for video in asked["videos"]
        for clip in video["clips"]
        for part in clip["annotations"]
        for number, question in enumerate(part["language_queries"])
        if question.get("query")
    }
    file = predict(nlq_run[0], tmp_path / "nlq.json", subset="test", echo=silent)
    meets_official_rules("nlq", file, path, "test")
    given = json.loads(file.read_text())["results"]
    answered = [(a["clip_uid"], a["annotation_uid"], a["query_idx"]) for a in given]
    assert set(answered) == wanted and len(answered) == len(wanted)
    assert all(0 <= s < e for a in given for s, e in a["predicted_times"])

    file = predict(mq_run[0], tmp_path / "mq.json", subset="test", echo=silent)
    meets_official_rules("mq", file, mq_root / ANNOTATION_FILE, "test")
    given = json.loads(file.read_text())
    clips = json.loads((mq_root / ANNOTATION_FILE).read_text())
    assert set(given["detect_results"]) == {
        uid for uid, clip in clips.items() if clip["subset"] == "test"
    }
    assert given["retrieve_results"] == given["detect_results"]


def test_run_may_be_moved_and_its_data_too(
    nlq_run: Any,
    clean_nlq_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    expected = predict(nlq_run[0], tmp_path / "expected.json", echo=silent)
    moved = Path(shutil.copytree(nlq_run[0], tmp_path / "moved"))
    (tmp_path / "data").symlink_to(clean_nlq_root)
    before = {path.name for path in moved.rglob("*")}
    monkeypatch.chdir(tmp_path)
    assert main(["predict", "moved", "--dataset-root", "data"]) == 0
    written = moved / "predictions_val.json"
    assert written.read_bytes() == expected.read_bytes()
    assert {path.name for path in moved.rglob("*")} == before | {written.name}
    assert "predictions_val.json" in capsys.readouterr().out


def test_other_data_are_refused(nlq_run: Any, nlq_root: Path) -> None:
    with pytest.raises(ValueError, match=r"differ in \[.*'nlq_val.json'"):
        predict(nlq_run[0], benchmark_options={"dataset_root": nlq_root}, echo=silent)


def test_checkpoint_of_another_run_is_refused(nlq_run: Any, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(nlq_run[0], tmp_path / "run"))
    results = json.loads((folder / "results.json").read_text())
    results["final_weights_sha256"] = "0" * 64
    (folder / "results.json").write_text(json.dumps(results))
    with pytest.raises(ValueError, match=r"checkpoint\.pkl does not hold the weights"):
        predict(folder, echo=silent)


def test_model_that_sees_the_answers_labels_is_refused(
    mq_root: Path, tmp_path: Path
) -> None:
    options = {"dataset_root": mq_root, "protocol": "reference", "n_experiences": 1}
    run(
        "vilco_mq",
        epochs=1,
        benchmark_options=options,
        deviations=["clip_label_text"],
        output=tmp_path,
        echo=silent,
    )
    with pytest.raises(ValueError, match="nothing to submit"):
        predict(tmp_path, echo=silent)


def test_folder_without_a_run_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: no progress.json") and error.count("\n") == 1
