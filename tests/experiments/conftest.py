"""A generated root of language queries for runs in seconds."""

import json
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
