"""Parts of the public recipe: reference protocol only, named, told with results."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from avalanche_vilco.benchmarks.quirks import (
    ALL,
    QUIRKS,
    SELECTIONS,
    ReferenceQuirks,
)
from avalanche_vilco.benchmarks.vilco_mq import vilco_mq
from avalanche_vilco.cli.run import run
from avalanche_vilco.data.batch import collate_moments
from avalanche_vilco.data.mini import generate_mini_mq
from avalanche_vilco.evaluation.matrix import TaskMatrix
from avalanche_vilco.models.losses import MomentLoss
from avalanche_vilco.reports.methods import gather
from avalanche_vilco.reports.results import summary
from avalanche_vilco.reports.runs import run_of
from avalanche_vilco.reports.tables import note_lines
from avalanche_vilco.training.supervised import ViLCoNaive

Parts = Callable[..., dict[str, Any]]
DOCS = Path(__file__).resolve().parents[2] / "docs" / "reference_quirks.md"
MAIN = "Recall@1x_tIoU0.5"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate_mini_mq(
        tmp_path_factory.mktemp("data") / "mq",
        n_train=30,
        n_val=12,
        n_test=2,
        group_size=2,
        min_train_clips=2,
        min_val_clips=1,
        clip_sec=(40.0, 60.0),
        median_window_sec=4.0,
    )


def table_notes(results: dict[str, Any]) -> list[str]:
    settings, _ = gather([run_of(json.loads(json.dumps(results)), "run")])
    return note_lines(settings[0])


def reference_run(root: Path, folder: Path, **options: Any) -> dict[str, Any]:
    settings = {"epochs": 2, "echo": lambda line: None, **options}
    data = {"dataset_root": root, "protocol": "reference"}
    return run(output=folder, **{"benchmark_options": data, **settings})


@pytest.fixture(scope="module")
def everything(root: Path, tmp_path_factory: pytest.TempPathFactory):
    """All quirks at once, with what the run printed."""
    lines: list[str] = []
    results = reference_run(
        root,
        tmp_path_factory.mktemp("all"),
        strategy="replay",
        strategy_options={"mem_size": 20},
        quirks=[ALL],
        echo=lines.append,
    )
    return results, "\n".join(lines)


@pytest.fixture(scope="module")
def nothing(root: Path, tmp_path_factory: pytest.TempPathFactory):
    lines: list[str] = []
    folder = tmp_path_factory.mktemp("none")
    results = reference_run(root, folder, epochs=4, echo=lines.append)
    return results, "\n".join(lines)


# Names


def test_every_quirk_sets_one_choice_and_all_sets_every() -> None:
    assert not ReferenceQuirks().names
    for name, quirk in QUIRKS.items():
        chosen = ReferenceQuirks.from_names([name])
        assert chosen.names == (name,)
        assert getattr(chosen, quirk.option) == quirk.value
    assert ReferenceQuirks.from_names([ALL]).names == tuple(QUIRKS)


@pytest.mark.parametrize("name", QUIRKS)
@pytest.mark.parametrize("protocol", ["exclusive", "shared_clips"])
def test_quirks_need_the_reference_protocol(name: str, protocol: str) -> None:
    quirks = ReferenceQuirks.from_names([name])
    quirks.validate("reference")
    with pytest.raises(ValueError, match=f"quirks \\['{name}'\\] but got '{protocol}'"):
        quirks.validate(protocol)


def test_selection_by_the_valid_stream_is_no_quirk() -> None:
    quirks = ReferenceQuirks.from_names([], selection="best_on_valid")
    assert quirks.selection == "best_on_valid"
    assert not quirks.names
    quirks.validate("exclusive")


def test_selection_by_the_test_stream_is_one_however_asked_for() -> None:
    by_name = ReferenceQuirks.from_names(["best_on_test"])
    assert by_name == ReferenceQuirks.from_names([], selection="best_on_test")
    assert by_name == ReferenceQuirks.from_names(
        ["best_on_test"], selection="best_on_test"
    )


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (["clip_label"], {}, "Did you mean clip_label_text"),
        (["unknown"], {}, "Available: clip_label_text, .*, all"),
        ("all", {}, "expected a list of quirks but got the text 'all'"),
        (["best_on_test"], {"selection": "best_on_valid"}, "exclude each other"),
        ([], {"selection": "best"}, "expected selection in .* but got 'best'"),
    ],
)
def test_names_that_do_not_fit_are_refused(names, options, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ReferenceQuirks.from_names(names, **options)


@pytest.mark.parametrize("option", ["text", "averages", "memory_unit", "negatives"])
def test_a_choice_is_one_of_its_options(option: str) -> None:
    with pytest.raises(ValueError, match=f"expected {option} in .* but got 'else'"):
        ReferenceQuirks(**{option: "else"})


def test_page_of_quirks_names_each_with_its_effect() -> None:
    page = DOCS.read_text(encoding="utf-8")
    for name, quirk in QUIRKS.items():
        assert f"`{name}`" in page
        assert f'`{quirk.option}="{quirk.value}"`' in page
    assert all(f"`{selection}`" in page for selection in SELECTIONS)


def test_averages_weigh_experiences_by_the_queries_seen() -> None:
    cumulative = ReferenceQuirks(averages="cumulative")
    assert cumulative.weights([3, 1, 2]) == [3, 4, 6]
    assert ReferenceQuirks().weights([3, 1, 2]) == [1, 1, 1]
    matrix = TaskMatrix(3)
    for i, j, value in [(0, 0, 0.9), (1, 0, 0.6), (1, 1, 0.5), (2, 0, 0.3)]:
        matrix.record(i, j, value)
    matrix.record(2, 1, 0.1)
    matrix.record(2, 2, 0.8)
    equal = cumulative.weights([22, 22, 22])
    assert matrix.average(weights=equal) == pytest.approx(
        matrix.average(weights="cumulative")
    )
    assert matrix.backward_forgetting(weights=equal) == pytest.approx(
        (1 * 0.6 + 2 * 0.4) / 3
    )


# Data


def test_clips_show_their_own_labels_and_nothing_else(root: Path) -> None:
    benchmark = vilco_mq(root, protocol="reference", quirks=["clip_label_text"])
    channel = {query.label_id: query.channel for query in benchmark.queries}
    seen_future = False
    for name in ("train", "test"):
        for experience in benchmark.streams[name]:
            learnt = max(experience.classes_seen_so_far)
            for inputs, targets, _ in experience.dataset:
                sample = benchmark.moments[name].samples[int(targets["sample"])]
                labels = {channel[label] for label in sample.clip.label_ids.tolist()}
                shown = inputs["shown"].nonzero().flatten().tolist()
                assert shown == sorted(labels)
                assert set(targets["labels"].tolist()) <= labels
                seen_future |= max(labels) > learnt
    assert seen_future
    assert benchmark.info["uses_ground_truth_at_test"] is True
    assert benchmark.info["quirks"] == ["clip_label_text"]


def test_without_quirks_clips_show_nothing_of_their_own(root: Path) -> None:
    benchmark = vilco_mq(root, protocol="reference")
    inputs, _, _ = benchmark.test_stream[0].dataset[0]
    assert inputs.keys() == {"features", "valid"}
    assert not any(e.shown_queries for e in benchmark.train_stream)
    assert benchmark.info["uses_ground_truth_at_test"] is False
    assert benchmark.info["quirks"] == []


def test_benchmark_refuses_quirks_of_the_run_and_other_protocols(root: Path) -> None:
    with pytest.raises(ValueError, match=r"\['seen_negatives'\]: pass these to run"):
        vilco_mq(root, protocol="reference", quirks=["seen_negatives"])
    with pytest.raises(ValueError, match="expected protocol 'reference'"):
        vilco_mq(root, quirks=["clip_label_text"])


def test_only_with_clip_labels_do_predictions_follow_test_annotations(
    root: Path, parts: Parts
) -> None:
    for quirks in ([], ["clip_label_text"]):
        benchmark = vilco_mq(root, protocol="reference", quirks=quirks)
        torch.manual_seed(0)
        strategy = ViLCoNaive(**parts(train_mb_size=4))
        for experience in benchmark.train_stream[:2]:
            strategy.train(experience)
        moments = benchmark.moments["test"]
        inputs, _ = collate_moments([moments[i] for i in range(len(moments))])
        model = strategy.model.eval()
        with torch.no_grad():
            before = model(inputs)
            if quirks:
                inputs.shown = ~inputs.shown
            after = model(inputs)
        assert torch.equal(before, after) == (not quirks)
        assert len(model.query_tokens) == (10 if quirks else 4)
        assert model.n_queries == 4


# Runs


def test_results_tell_every_departure_and_its_effect(everything) -> None:
    results, printed = everything
    assert list(results["quirks"]) == results["config"]["quirks"] == list(QUIRKS)
    assert results["averages"] == "cumulative"
    assert results["selection"]["by"] == "best_on_test"
    assert len(results["selection"]["epochs"]) == 5
    assert results["config"]["strategy_options"]["unit"] == "class_slots"
    assert results["benchmark"]["uses_ground_truth_at_test"] is True
    assert results["memory"]["clips"] <= 20
    assert printed.count("uses ground truth at test: yes") == 2
    for name, quirk in QUIRKS.items():
        assert f"{name}: {quirk.effect}" in printed
    table = "\n".join(table_notes(results))
    assert "replay: uses ground truth at test: yes" in table
    assert "replay: reference quirks best_on_test, class_slot_memory" in table


def test_without_quirks_results_say_so(nothing) -> None:
    results, printed = nothing
    assert results["quirks"] == {}
    assert results["selection"] == {"by": "last", "epochs": []}
    assert "uses ground truth at test: no" in printed
    assert "reference quirks: none" in printed
    assert "weights kept" not in printed
    assert not any(line.startswith("naive") for line in table_notes(results))


def test_scores_are_weighted_only_if_asked(everything, nothing) -> None:
    for (results, printed), queries in ((everything, [2, 4, 6, 8, 10]), (nothing, [1])):
        matrix = TaskMatrix.from_dict(results["matrices"][MAIN])
        weights = queries * (5 // len(queries))
        score = results["scores"][MAIN]
        assert score["average"] == pytest.approx(matrix.average(weights=weights))
        assert score["bwf"] == pytest.approx(
            matrix.backward_forgetting(weights=weights)
        )
        assert ("weighted by the queries seen" in printed) == (len(queries) > 1)


def test_results_of_earlier_versions_can_still_be_summed_up(nothing) -> None:
    results, _ = nothing
    old = {
        k: v for k, v in results.items() if k not in ("quirks", "averages", "selection")
    }
    matrices = {n: TaskMatrix.from_dict(m) for n, m in results["matrices"].items()}
    assert "reference quirks: none" in summary(old, matrices)


@pytest.mark.parametrize("name", ["seen_negatives", "best_on_test", "clip_label_text"])
def test_each_quirk_alone_changes_the_weights(
    root: Path, tmp_path: Path, nothing, name: str
) -> None:
    plain, _ = nothing
    results = reference_run(root, tmp_path, quirks=[name], epochs=4)
    assert results["initial_weights_sha256"] == plain["initial_weights_sha256"]
    assert results["final_weights_sha256"] != plain["final_weights_sha256"]
    assert list(results["quirks"]) == [name]


def test_seen_negatives_reach_the_criterion(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[str] = []

    class Noted(MomentLoss):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            used.append(self.negatives)

    monkeypatch.setattr("avalanche_vilco.cli.settings.MomentLoss", Noted)
    for quirks in ("seen_negatives", None):
        reference_run(root, tmp_path / str(quirks), quirks=quirks, epochs=1)
    assert used == ["seen", "asked"]


def test_all_leaves_out_what_a_strategy_has_no_part_for(
    root: Path, tmp_path: Path
) -> None:
    results = reference_run(root, tmp_path, quirks=ALL, epochs=1)
    assert list(results["quirks"]) == [n for n in QUIRKS if n != "class_slot_memory"]


def test_selection_by_the_valid_stream_runs_with_any_protocol(
    root: Path, tmp_path: Path
) -> None:
    data = {"dataset_root": root}
    settings = {"selection": "best_on_valid", "epochs": 3}
    results = reference_run(root, tmp_path, benchmark_options=data, **settings)
    assert results["quirks"] == {}
    assert results["selection"]["by"] == "best_on_valid"
    kept = [epoch for epoch in results["selection"]["epochs"] if epoch is not None]
    assert kept and set(kept) <= {1, 2}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quirks": ["seen_negatives"]}, "expected protocol 'reference'"),
        ({"quirks": ["clip_label_text"]}, "expected protocol 'reference'"),
        ({"selection": "best_on_test"}, r"\['best_on_test'\] but got 'exclusive'"),
        (
            {"strategy": "replay", "strategy_options": {"unit": "class_slots"}},
            r"\['class_slot_memory'\] but got 'exclusive'",
        ),
        ({"quirks": ["class_slot_memory"]}, "does not go with strategy 'naive'"),
        ({"quirks": ["seen"]}, "unknown quirk 'seen'. Available: clip_label_text"),
    ],
)
def test_runs_outside_the_reference_protocol_refuse_quirks(
    root: Path, tmp_path: Path, options, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        reference_run(
            root, tmp_path, benchmark_options={"dataset_root": root}, **options
        )
    assert not (tmp_path / "results.json").exists()


def test_fewer_slots_than_queries_are_refused_before_training(
    root: Path, tmp_path: Path
) -> None:
    options = {"strategy": "replay", "strategy_options": {"mem_size": 9}}
    with pytest.raises(ValueError, match="each of 10 queries but got 9"):
        reference_run(root, tmp_path, quirks=["class_slot_memory"], **options)


def test_a_run_with_other_quirks_is_another_configuration(
    root: Path, tmp_path: Path
) -> None:
    reference_run(root, tmp_path, epochs=1)
    state = json.loads((tmp_path / "progress.json").read_text())
    assert state["config"]["quirks"] == []
    with pytest.raises(ValueError, match="another configuration"):
        reference_run(root, tmp_path, epochs=1, quirks=["seen_negatives"], resume=True)
