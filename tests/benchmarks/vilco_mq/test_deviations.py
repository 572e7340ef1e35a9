"""Parts of the public recipe: reference protocol only, named, told with results."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from avalanche_vilco import MomentLoss, vilco_mq_tiny
from avalanche_vilco.benchmarks.spec import Deviation, find_benchmark
from avalanche_vilco.benchmarks.vilco_mq.benchmark import BENCHMARK, DEVIATIONS
from avalanche_vilco.benchmarks.vilco_mq.generator import vilco_mq
from avalanche_vilco.core.batch import collate_moments
from avalanche_vilco.evaluation.matrix import TaskMatrix
from avalanche_vilco.experiments.deviations import (
    ALL,
    ChosenDeviations,
    Selection,
    choose_deviations,
)
from avalanche_vilco.experiments.run import run
from avalanche_vilco.reports.methods import gather
from avalanche_vilco.reports.runs import run_of
from avalanche_vilco.reports.tables import note_lines
from avalanche_vilco.training.strategies import LocalizationNaive

DOCS = Path(__file__).resolve().parents[3] / "docs" / "reference_deviations.md"
MAIN = "Recall@1x_tIoU0.5"


def table_notes(results: dict[str, Any]) -> list[str]:
    settings, _ = gather([run_of(json.loads(json.dumps(results)), "run")])
    return note_lines(settings[0])


def reference_run(mq_root: Path, folder: Path, **options: Any) -> dict[str, Any]:
    settings = {"epochs": 2, "echo": lambda line: None, **options}
    data = {"dataset_root": mq_root, "protocol": "reference"}
    return run("vilco_mq", output=folder, **{"benchmark_options": data, **settings})


@pytest.fixture(scope="module")
def everything(mq_root: Path, tmp_path_factory: pytest.TempPathFactory):
    """All deviations at once, with what the run printed."""
    lines: list[str] = []
    results = reference_run(
        mq_root,
        tmp_path_factory.mktemp("all"),
        strategy="replay",
        strategy_options={"mem_size": 20},
        deviations=[ALL],
        echo=lines.append,
    )
    return results, "\n".join(lines)


@pytest.fixture(scope="module")
def nothing(mq_root: Path, tmp_path_factory: pytest.TempPathFactory):
    lines: list[str] = []
    folder = tmp_path_factory.mktemp("none")
    results = reference_run(mq_root, folder, epochs=4, echo=lines.append)
    return results, "\n".join(lines)


def chosen(
    *names: str,
    selection: Selection = "last",
    strategy: str = "replay",
    **options: Any,
) -> ChosenDeviations:
    return choose_deviations(
        BENCHMARK,
        names,
        selection=selection,
        strategy=strategy,
        settings={
            "benchmark_options": options.pop("benchmark_options", {}),
            "strategy_options": {"unit": "samples", **options},
        },
    )


def test_each_has_an_effect_and_a_setting_and_all_stands_for_every_one() -> None:
    assert not chosen().by_name
    for name, deviation in DEVIATIONS.items():
        assert chosen(name).effects == {name: deviation.effect}
        assert deviation != Deviation(effect=deviation.effect)
    assert list(chosen(ALL).by_name) == list(DEVIATIONS)


@pytest.mark.parametrize("name", DEVIATIONS)
@pytest.mark.parametrize("protocol", ["exclusive", "shared_clips"])
def test_deviations_need_the_reference_protocol(name: str, protocol: str) -> None:
    deviations = chosen(name)
    deviations.validate("reference")
    with pytest.raises(
        ValueError, match=f"deviations \\['{name}'\\] but got '{protocol}'"
    ):
        deviations.validate(protocol)


def test_selection_by_the_valid_stream_is_no_deviation() -> None:
    deviations = chosen(selection="best_on_valid")
    assert deviations.selection == "best_on_valid"
    assert not deviations.by_name
    deviations.validate("exclusive")


def test_a_deviation_is_one_however_asked_for() -> None:
    by_name = chosen("best_on_test")
    assert by_name == chosen(selection="best_on_test")
    assert by_name == chosen("best_on_test", selection="best_on_test")
    assert chosen("class_slot_memory") == chosen(unit="class_slots")
    data = dict(DEVIATIONS["clip_label_text"].benchmark_options)
    assert chosen("clip_label_text") == chosen(benchmark_options=data)


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (["clip_label"], {}, "Did you mean clip_label_text"),
        (["unknown"], {}, "Available: all, best_on_test, class_slot_memory, "),
        (["best_on_test"], {"selection": "best_on_valid"}, "exclude each other"),
    ],
)
def test_names_that_do_not_fit_are_refused(names, options, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        chosen(*names, **options)


def test_memory_of_slots_needs_a_strategy_that_counts_them() -> None:
    settings = {"benchmark_options": {}, "strategy_options": {"mem_size": 3}}
    options = {"selection": "last", "strategy": "gdumb", "settings": settings}
    found = choose_deviations(BENCHMARK, [ALL], **options)
    assert list(found.by_name) == [n for n in DEVIATIONS if n != "class_slot_memory"]
    with pytest.raises(ValueError, match="'gdumb', which has no option 'unit'"):
        choose_deviations(BENCHMARK, ["class_slot_memory"], **options)


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (["best_on_test"], {}, "'vilco_nlq' has none"),
        ([], {"selection": "best_on_test"}, "has no deviation that selects so"),
        ([], {"unit": "class_slots"}, "has no deviation that counts a memory so"),
    ],
)
def test_other_benchmarks_have_none(names, options, message: str) -> None:
    unit = options.pop("unit", "samples")
    with pytest.raises(ValueError, match=message):
        choose_deviations(
            find_benchmark("vilco_nlq"),
            names,
            strategy="replay",
            settings={"benchmark_options": {}, "strategy_options": {"unit": unit}},
            **{"selection": "last", **options},
        )


def test_page_of_deviations_names_each_with_its_effect() -> None:
    page = DOCS.read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in DEVIATIONS)
    assert all(f"`{selection}`" in page for selection in get_args(Selection))


def test_averages_weigh_experiences_by_the_queries_seen() -> None:
    cumulative = chosen("cumulative_averages")
    assert cumulative.weights([3, 1, 2]) == [3, 4, 6]
    assert chosen().weights([3, 1, 2]) == [1, 1, 1]
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


def test_clips_show_their_own_labels_and_nothing_else(mq_root: Path) -> None:
    benchmark = vilco_mq(
        mq_root, protocol="reference", sources={"clip_label_text": True}
    )
    channel = {query.label_id: query.class_index for query in benchmark.queries}
    seen_future = False
    for name in ("train", "test"):
        for experience in benchmark.streams[name]:
            learnt = max(experience.classes_seen_so_far)
            for inputs, targets, _ in experience.dataset:
                sample = benchmark.datasets[name].samples[int(targets["sample"])]
                labels = {channel[label] for label in sample.clip.label_ids.tolist()}
                shown = inputs["shown"].nonzero().flatten().tolist()
                assert shown == sorted(labels)
                assert set(targets["labels"].tolist()) <= labels
                seen_future |= max(labels) > learnt
    assert seen_future
    assert benchmark.info["uses_ground_truth_at_test"] is True
    assert benchmark.info["deviations"] == ["clip_label_text"]


def test_without_deviations_clips_show_nothing_of_their_own(mq_root: Path) -> None:
    benchmark = vilco_mq(mq_root, protocol="reference")
    inputs, _, _ = benchmark.test_stream[0].dataset[0]
    assert inputs.keys() == {"features", "valid"}
    assert not any(e.shown_queries for e in benchmark.train_stream)
    assert benchmark.info["uses_ground_truth_at_test"] is False
    assert benchmark.info["deviations"] == []


def test_benchmark_refuses_deviations_of_the_run_and_other_protocols(
    mq_root: Path,
) -> None:
    with pytest.raises(ValueError, match="no option 'seen_negatives'"):
        vilco_mq(mq_root, protocol="reference", sources={"seen_negatives": True})
    with pytest.raises(ValueError, match="expected protocol 'reference'"):
        vilco_mq(mq_root, sources={"clip_label_text": True})


def test_only_with_clip_labels_do_predictions_follow_test_annotations(
    mq_root: Path,
) -> None:
    for deviates in (False, True):
        sources = {"clip_label_text": deviates}
        benchmark = vilco_mq(mq_root, protocol="reference", sources=sources)
        torch.manual_seed(0)
        width = benchmark.info["feature_dim"]
        model = vilco_mq_tiny(feature_dim=width, text_dim=benchmark.text_dim)
        strategy = LocalizationNaive(
            model=model,
            optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
            criterion=MomentLoss(),
            train_mb_size=4,
        )
        for experience in benchmark.train_stream[:2]:
            strategy.train(experience)
        moments = benchmark.datasets["test"]
        inputs, _ = collate_moments([moments[i] for i in range(len(moments))])
        model = strategy.model.eval()
        with torch.no_grad():
            before = model(inputs)
            if deviates:
                inputs.shown = ~inputs.shown
            after = model(inputs)
        assert torch.equal(before, after) == (not deviates)
        assert len(model.query_tokens) == (10 if deviates else 4)
        assert model.n_queries == 4


def test_results_tell_every_departure_and_its_effect(everything) -> None:
    results, printed = everything
    assert (
        list(results["deviations"])
        == results["config"]["deviations"]
        == list(DEVIATIONS)
    )
    assert results["averages"] == "cumulative"
    assert results["selection"]["by"] == "best_on_test"
    assert len(results["selection"]["epochs"]) == 5
    assert results["config"]["strategy_options"]["unit"] == "class_slots"
    assert results["benchmark"]["uses_ground_truth_at_test"] is True
    assert results["memory"]["clips"] <= 20
    assert printed.count("uses ground truth at test: yes") == 2
    for name, deviation in DEVIATIONS.items():
        assert f"{name}: {deviation.effect}" in printed
    table = "\n".join(table_notes(results))
    assert "replay: uses ground truth at test: yes" in table
    assert "replay: reference deviations best_on_test, class_slot_memory" in table


def test_without_deviations_results_say_so(nothing) -> None:
    results, printed = nothing
    assert results["deviations"] == {}
    assert results["selection"] == {"by": "last", "epochs": []}
    assert "uses ground truth at test: no" in printed
    assert "reference deviations: none" in printed
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


@pytest.mark.parametrize("name", ["seen_negatives", "best_on_test", "clip_label_text"])
def test_each_deviation_alone_changes_the_weights(
    mq_root: Path, tmp_path: Path, nothing, name: str
) -> None:
    plain, _ = nothing
    results = reference_run(mq_root, tmp_path, deviations=[name], epochs=4)
    assert results["initial_weights_sha256"] == plain["initial_weights_sha256"]
    assert results["final_weights_sha256"] != plain["final_weights_sha256"]
    assert list(results["deviations"]) == [name]


def test_seen_negatives_reach_the_criterion() -> None:
    for names, negatives in ((["seen_negatives"], "seen"), ([], "asked")):
        options = chosen(*names).settings("criterion", {})
        assert BENCHMARK.criterion(**options).negatives == negatives


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"deviations": ["seen_negatives"]}, "expected protocol 'reference'"),
        ({"deviations": ["clip_label_text"]}, "expected protocol 'reference'"),
        ({"selection": "best_on_test"}, r"\['best_on_test'\] but got 'exclusive'"),
        (
            {"strategy": "replay", "strategy_options": {"unit": "class_slots"}},
            r"\['class_slot_memory'\] but got 'exclusive'",
        ),
        ({"deviations": ["class_slot_memory"]}, "does not go with strategy 'naive'"),
        (
            {"deviations": ["seen"]},
            "unknown deviation 'seen'. Available: all, best_on_test",
        ),
    ],
)
def test_runs_outside_the_reference_protocol_refuse_deviations(
    mq_root: Path, tmp_path: Path, options, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        reference_run(
            mq_root, tmp_path, benchmark_options={"dataset_root": mq_root}, **options
        )
    assert not (tmp_path / "results.json").exists()


def test_fewer_slots_than_queries_are_refused_before_training(
    mq_root: Path, tmp_path: Path
) -> None:
    options = {"strategy": "replay", "strategy_options": {"mem_size": 9}}
    with pytest.raises(ValueError, match="each of 10 queries but got 9"):
        reference_run(mq_root, tmp_path, deviations=["class_slot_memory"], **options)


def test_a_run_with_other_deviations_is_another_configuration(
    mq_root: Path, tmp_path: Path
) -> None:
    reference_run(mq_root, tmp_path, epochs=1)
    state = json.loads((tmp_path / "progress.json").read_text())
    assert state["config"]["deviations"] == []
    with pytest.raises(ValueError, match="another configuration"):
        reference_run(mq_root, tmp_path, epochs=1, deviations=["seen_negatives"])
