"""Answers to visual queries, from windows to a file that scores as the metric says."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import Naive
from torch import Tensor, nn

from avalanche_vilco.benchmarks.vilco_vq.embedded import MiniVQConfig
from avalanche_vilco.benchmarks.vilco_vq.generator import unlabelled_vq, vilco_vq
from avalanche_vilco.benchmarks.vilco_vq.sources import VQSources, annotation_file
from avalanche_vilco.benchmarks.vilco_vq.submission import TrackAnswers, visual_document
from avalanche_vilco.evaluation.metrics.response_track import response_track_metrics
from avalanche_vilco.experiments.predict import answers_of, one_experience
from avalanche_vilco.experiments.score import score
from avalanche_vilco.models.frame_answers import FrameAnswers


class Knowing(nn.Module):
    """Answers three queries of four as the targets say, the fourth in frames 0 to 2."""

    def forward(self, inputs: Any) -> Tensor:
        return torch.zeros(len(inputs), 5, 1)

    def decode(self, output: Tensor, targets: Any) -> FrameAnswers:
        side, padding = targets.square[:, None, :1], targets.square[:, None, 1:]
        boxes = targets.boxes.double() * side - padding.repeat(1, 1, 2)
        sure = torch.where(targets.present, 3.1 + 0.01 * targets.query[:, None], -6.0)
        first = torch.where(targets.frame_numbers < 3, 3.0, -6.0)
        is_fourth = (targets.query % 4 == 3)[:, None]
        return FrameAnswers(
            scores=torch.where(is_fourth, first, sure).masked_fill(
                ~targets.searched, -math.inf
            ),
            boxes=boxes,
            frame_numbers=targets.frame_numbers,
            query=targets.query,
            query_frame=targets.query_frame,
        )


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "vq"
    return MiniVQConfig(n_train=6, n_val=4, n_test=1).generate(folder)


@pytest.fixture(scope="module")
def benchmark(root: Path) -> Any:
    return vilco_vq(
        root, n_experiences=2, protocol="shared_clips", sources={"image_size": 32}
    )


def strategy(plugins: Any) -> Any:
    model = Knowing()
    model.unused = nn.Parameter(torch.zeros(1))
    return Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        criterion=lambda output, targets: output.sum(),
        eval_mb_size=5,
        evaluator=EvaluationPlugin(*plugins, loggers=[]),
    )


@pytest.mark.filterwarnings("ignore:No loggers specified")
def test_file_of_the_test_stream_scores_as_its_metric(
    root: Path, benchmark: Any, tmp_path: Path, meets_official_rules: Any
) -> None:
    data = benchmark.datasets["test"]
    knowing = strategy(response_track_metrics(experience=False))
    collector = TrackAnswers(len(data))
    answers = answers_of(knowing, benchmark.test_stream[:], collector)
    told = knowing.evaluator.get_last_metrics()
    document = visual_document(data, answers, benchmark, {"dataset_root": root}, "val")
    file = tmp_path / "predictions.json"
    file.write_text(json.dumps(document))
    meets_official_rules("vq", file, root / "vq_val.json", "val")
    found = score("vq", file, root / "vq_val.json").scores
    for name, level in (("tAP", "0.25"), ("stAP", "0.25"), ("tAP", "mean")):
        key = name + ("25" if level == "0.25" else "")
        own = told[f"{key}_Stream/eval_phase/test_stream"]
        assert found[name][level] == pytest.approx(own, abs=1e-9)
        assert 0.5 < own < 1
    assert found["success"]["0.05"] == pytest.approx(
        told["success_Stream/eval_phase/test_stream"], abs=1e-9
    )


@pytest.mark.filterwarnings("ignore:No loggers specified")
def test_queries_without_tracks_are_answered(
    root: Path, benchmark: Any, tmp_path: Path, meets_official_rules: Any
) -> None:
    sources = {"image_size": 32}
    options = {"dataset_root": root, "n_experiences": 2, "seed": 1, "sources": sources}
    data = unlabelled_vq(root, sources=sources)
    assert len(data) > len(data.queries)
    stream = one_experience(data, benchmark)
    answers = answers_of(strategy(()), stream, TrackAnswers(len(data)))
    document = visual_document(data, answers, benchmark, options, "test")
    (tmp_path / "test.json").write_text(json.dumps(document))
    path = root / "vq_test_unannotated.json"
    meets_official_rules("vq", tmp_path / "test.json", path, "test")
    sets = [
        one
        for video in document["results"]["videos"]
        for clip in video["clips"]
        for part in clip["predictions"]
        for one in part["query_sets"].values()
    ]
    assert 0 < sum(bool(one["bboxes"]) for one in sets) == len(data.queries)


def test_annotation_file_is_found_where_the_benchmark_finds_it(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(dataset_root: Path | None, subset: str, annotations: Any = None) -> Path:
        return annotation_file(dataset_root, VQSources(annotations=annotations), subset)

    val = root / "vq_val.json"
    assert find(root, "val") == val
    assert find(None, "test", root) == root / "vq_test_unannotated.json"
    assert find(None, "val", {"val": str(val)}) == val
    monkeypatch.setenv("AVALANCHE_VILCO_DATA", str(root))
    assert find(None, "val") == val
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations" / val.name).symlink_to(val)
    assert find(tmp_path, "val").parent.name == "annotations"
    with pytest.raises(FileNotFoundError, match=r"expected vq_test_unannotated\.json"):
        find(tmp_path, "test")
