"""A generated root of language queries for runs in seconds, and official rules."""

import json
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from avalanche_vilco.benchmarks.vilco_nlq.annotations import read_language_queries
from avalanche_vilco.benchmarks.vilco_nlq.layout import NLQ_TEXT_FILE
from avalanche_vilco.benchmarks.vilco_nlq.split import assign_templates
from avalanche_vilco.benchmarks.vilco_nlq.templates import NLQ_TEMPLATES

GROUP_SIZES = (5, 4, 4)


@pytest.fixture(scope="session")
def clean_nlq_root(nlq_root: Path, once: Any) -> Path:
    """The same without what a benchmark changes: every question of val has a text and
    a template, every window lies in its clip."""
    return once("clean_nlq", lambda folder: _write_clean(nlq_root, folder))


def _write_clean(nlq_root: Path, root: Path) -> None:
    root.mkdir()
    for file in nlq_root.iterdir():
        # Without stored text each question is its words, those given here too.
        if file.name != NLQ_TEXT_FILE:
            (root / file.name).symlink_to(file)
    path = root / "nlq_val.json"
    content = json.loads(path.read_text())
    read = read_language_queries({"val": path})
    kept = {
        query.query_id: query
        for query in assign_templates(read.queries, untemplated="nearest")
    }
    for video in content["videos"]:
        for clip in video["clips"]:
            _clean(clip, kept)
    path.unlink()
    path.write_text(json.dumps(content))


def _clean(clip: dict[str, Any], kept: dict[str, Any]) -> None:
    for annotation in clip["annotations"]:
        uid, asked = annotation["annotation_uid"], annotation["language_queries"]
        for number, question in enumerate(asked):
            query = kept.get(f"{uid}_{number}")
            template = query.template if query else 0
            window = query.window_sec if query else (1.0, 3.0)
            question["query"] = query.text if query else "What did I put in the box?"
            question["template"] = NLQ_TEMPLATES[template]
            question["clip_start_sec"], question["clip_end_sec"] = window


@pytest.fixture(scope="session")
def nlq_run(clean_nlq_root: Path, once: Any) -> tuple[Path, dict[str, Any]]:
    """Folder and results of Naive on three experiences of language queries."""
    from avalanche_vilco.experiments.run import run

    def make(folder: Path) -> None:
        run(
            "vilco_nlq",
            "naive",
            epochs=2,
            batch_size=4,
            benchmark_options={
                "dataset_root": clean_nlq_root,
                "per_exp_classes": list(GROUP_SIZES),
            },
            output=folder,
            echo=lambda line: None,
        )

    folder = once("nlq_run", make)
    return folder, json.loads((folder / "results.json").read_text())


def _check_moments(file: Any, asked: Any, subset: str) -> None:
    """What the challenge's merging script writes, and what mAP and recall look up."""
    assert (file["version"], file["challenge"]) == ("1.0", "ego4d_moment_queries")
    assert {"results", "version", "external_data"} <= file.keys()
    records = [record for record in asked.values() if record["subset"] == subset]
    for windows in [record["annotations"] for record in records]:
        assert all(float(w["start_time"]) < float(w["end_time"]) for w in windows)
    for name in ("results", "detect_results", "retrieve_results"):
        for one in chain(*(file[name][record["clip_id"]] for record in records)):
            assert isinstance(one["label"], str) and len(one["segment"]) == 2
            assert all(isinstance(x, float) for x in (*one["segment"], one["score"]))


def _check_questions(file: Any, asked: Any, subset: str) -> None:
    """Each answer is to a question, and its windows are a list that is not empty."""
    assert (file["version"], file["challenge"]) == ("1.0", "ego4d_nlq_challenge")
    known = {
        (clip["clip_uid"], part["annotation_uid"]): part["language_queries"]
        for video in asked["videos"]
        for clip in video["clips"]
        for part in clip["annotations"]
    }
    for one in file["results"]:
        question = known[one["clip_uid"], one["annotation_uid"]][one["query_idx"]]
        assert subset == "test" or {"clip_start_sec", "clip_end_sec"} <= question.keys()
        assert one["predicted_times"]
        assert all(len([*window]) == 2 for window in one["predicted_times"])


def _check_tracks(file: Any, asked: Any, subset: str) -> None:
    """Version, videos, clips and annotations by place, and the valid query sets."""
    assert file["version"] == asked["version"]
    assert file["challenge"] == "ego4d_vq2d_challenge"
    for video, own in zip(asked["videos"], file["results"]["videos"], strict=True):
        assert video["video_uid"] == own["video_uid"]
        for clip, answers in zip(video["clips"], own["clips"], strict=True):
            assert clip["clip_uid"] == answers["clip_uid"]
            pairs = zip(clip["annotations"], answers["predictions"], strict=True)
            for part, given in pairs:
                sets, answered = part["query_sets"], given["query_sets"]
                valid = {name for name in sets if sets[name]["is_valid"]}
                assert valid <= answered.keys() <= sets.keys()
                for boxes in [one["bboxes"] for one in answered.values()]:
                    frames = [box["fno"] for box in boxes]
                    assert frames == [*range(frames[0], frames[-1] + 1)] if boxes else 1
                    assert all({"x1", "y1", "x2", "y2"} < box.keys() for box in boxes)
                assert all(one["score"] >= 0 for one in answered.values())


@pytest.fixture(scope="session")
def meets_official_rules() -> Callable[..., None]:
    """Holds a file of answers against what the public evaluators ask of it.

    ``(task, file, annotations, subset)``; all that EGO4D/episodic-memory asserts or
    looks up without a default, in words of our own.
    """
    checks = {"mq": _check_moments, "nlq": _check_questions, "vq": _check_tracks}

    def check(task: str, file: Path, annotations: Path, subset: str) -> None:
        contents = [json.loads(path.read_text()) for path in (file, annotations)]
        checks[task](*contents, subset)

    return check
