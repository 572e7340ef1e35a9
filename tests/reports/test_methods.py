"""What may stand beside what."""

import math
import statistics

import pytest
from scipy import stats

from avalanche_vilco.reports.methods import (
    gather,
    over_seeds,
    unequal_seeds,
    unequal_starts,
    unequal_versions,
)

MIB = 2**20


def test_t_interval_is_that_of_scipy() -> None:
    values = [0.11, 0.34, 0.25, 0.19]
    found = over_seeds(values)
    assert found is not None
    percent = [100 * value for value in values]
    low, high = stats.t.interval(
        0.95, 3, statistics.mean(percent), statistics.stdev(percent) / 2
    )
    assert found.mean == pytest.approx(22.25)
    assert (found.low, found.high) == pytest.approx((low, high))


def test_bootstrap_stays_within_the_runs_and_t_does_not_for_few() -> None:
    values = [0.2, 0.3]
    bootstrap, student = over_seeds(values, "bootstrap"), over_seeds(values)
    assert bootstrap is not None and student is not None
    assert 20 <= bootstrap.low < bootstrap.high <= 30
    # t quantile 12.706 with one degree of freedom, standard error 5
    assert (student.low, student.high) == pytest.approx((-38.53, 88.53), abs=0.01)


def test_number_that_a_run_lacks_is_not_averaged_over_the_others() -> None:
    assert over_seeds([0.2, None]) is None
    assert over_seeds([]) is None
    single = over_seeds([0.2])
    assert single is not None and single.mean == 20 and math.isnan(single.low)


def test_seeds_make_a_method_and_options_make_another(a_run) -> None:
    runs = [a_run("replay", 1), a_run("replay", 0), a_run("naive")]
    options = {"mem_size": 5, "unit": "samples"}
    runs.append(a_run("replay", config={"strategy_options": options}))
    (setting,), _ = gather(runs)
    assert [(m.label, m.seeds) for m in setting.methods] == [
        ("replay (mem_size=3)", (0, 1)),
        ("naive", (0,)),
        ("replay (mem_size=5)", (0,)),
    ]


@pytest.mark.parametrize(
    ("config", "fact"),
    [
        ({"epochs": 2}, "epochs"),
        ({"learning_rate": 1e-4}, "learning_rate"),
        ({"selection": "best_on_valid"}, "selection"),
        ({"benchmark_options": {"valid_share": 0.2}}, "valid_share"),
    ],
)
def test_runs_made_otherwise_never_share_a_setting(a_run, config, fact) -> None:
    settings, _ = gather([a_run("naive"), a_run("replay", config=config)])
    assert len(settings) == 2
    assert settings[0].differs_in == [fact]


def test_other_files_protocol_or_data_make_another_setting(a_run, raw) -> None:
    content = raw()
    files = dict.fromkeys(content["data"]["files"], "0" * 64)
    others = [
        a_run(data={**content["data"], "files": files}),
        a_run(benchmark={**content["benchmark"], "protocol": "reference"}),
        a_run(benchmark={**content["benchmark"], "data": "embedded generated v9"}),
        a_run(averages="cumulative"),
    ]
    settings, _ = gather([a_run(), *others])
    assert len(settings) == 5


def test_place_device_workers_and_sentences_make_no_other_setting(a_run, raw) -> None:
    content = raw("replay")
    told = {"sources": {"narrations": True}, "dataset_root": "elsewhere"}
    config = {"device": "cuda", "num_workers": 2, "benchmark_options": told}
    files = {**content["data"]["files"], "narration_features.npz": "0" * 64}
    data = {**content["data"], "files": files}
    settings, _ = gather([a_run(), a_run("replay", config=config, data=data)])
    assert len(settings) == 1


def test_order_drawn_from_the_seed_is_one_setting_and_not_that_of_a_fixed_order(
    a_run, raw
) -> None:
    def shuffled(seed: int, own: int, order: list[int]):
        info = {**raw()["benchmark"], "order": order}
        options = {"fixed_class_order": "groups", "seed": own}
        return a_run(
            "naive", seed, config={"benchmark_options": options}, benchmark=info
        )

    settings, _ = gather(
        [
            a_run(),
            shuffled(0, 0, [2, 1]),
            shuffled(1, 1, [1, 2]),
            shuffled(2, 0, [2, 1]),
        ]
    )
    assert [[m.seeds for m in s.methods] for s in settings] == [
        [(0,)],
        [(0, 1)],
        [(2,)],
    ]


def test_capacity_is_what_a_method_may_keep(a_run) -> None:
    runs = [a_run("upper_bound"), a_run("replay"), a_run("naive")]
    slots = {"mem_size": 20, "unit": "class_slots"}
    runs.append(a_run("replay", config={"strategy_options": slots}))
    runs.append(a_run("naive", config={"strategy": "agem"}, memory={"samples": 3}))
    (setting,), _ = gather(runs)
    groups = {c.text: [m.label for m in ms] for c, ms in setting.by_capacity().items()}
    assert list(groups.items()) == [
        ("no training samples", ["naive"]),
        ("3 training samples", ['replay (mem_size=3, unit="samples")', "agem"]),
        ("20 class slots", ['replay (mem_size=20, unit="class_slots")']),
        ("all training samples", ["upper_bound"]),
    ]


def test_keeping_more_than_the_capacity_is_noticed(a_run) -> None:
    (setting,), _ = gather([a_run("replay"), a_run("replay", 1, memory={"samples": 4})])
    assert setting.methods[0].exceeds_capacity
    (setting,), _ = gather([a_run("replay")])
    assert not setting.methods[0].exceeds_capacity


def test_bytes_are_equal_within_five_percent_of_the_least(a_run) -> None:
    def keeping(name: str, exemplars: int, auxiliary: int):
        memory = {"exemplar_bytes": exemplars, "auxiliary_bytes": auxiliary}
        return a_run(config={"strategy": name}, memory=memory)

    runs = [
        keeping("a", 100, 0),
        keeping("b", 0, 104),
        keeping("c", 60, 47),
        keeping("none", 0, 0),
        keeping("nothing", 0, 0),
    ]
    (setting,), _ = gather(runs)
    labels = [[method.label for method in group] for group in setting.by_bytes()]
    # 107 is within 5 % of 104, but the group is that of 100.
    assert labels == [["none", "nothing"], ["a", "b"], ["c"]]


def test_unequal_initial_weights_are_told_for_each_seed_and_model(a_run) -> None:
    (setting,), _ = gather([a_run("naive"), a_run("replay"), a_run("naive", 1)])
    assert unequal_starts(setting) == []
    other = a_run("replay", 1, initial_weights_sha256="f" * 64)
    (setting,), _ = gather([a_run("naive"), a_run("replay"), a_run("naive", 1), other])
    (line,) = unequal_starts(setting)
    assert "seed 1" in line and "ffffffffffff: replay" in line and "naive" in line
    lower = a_run(
        "replay", 1, config={"model": "small"}, initial_weights_sha256="f" * 64
    )
    (setting,), _ = gather([a_run("naive", 1), lower])
    assert unequal_starts(setting) == []


def test_missing_seeds_and_other_versions_are_told(a_run, raw) -> None:
    versions = {**raw()["versions"], "torch": "1.0"}
    runs = [a_run("naive"), a_run("naive", 1), a_run("replay", versions=versions)]
    (setting,), _ = gather(runs)
    assert unequal_seeds(setting) == ["seeds differ: naive: 0 1; replay: 0"]
    (line,) = unequal_versions(setting)
    assert line.startswith("versions differ: torch 1.0, ")


def test_second_run_of_a_seed_is_left_out(a_run) -> None:
    runs = [
        a_run("naive"),
        a_run("naive"),
        a_run("naive", final_weights_sha256="0" * 64),
    ]
    (setting,), repetitions = gather(runs)
    assert setting.methods[0].seeds == (0,)
    assert [twice.is_equal for twice in repetitions] == [True, False]
