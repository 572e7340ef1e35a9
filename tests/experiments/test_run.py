"""A run: what it writes, that it repeats, resumes, and refuses what it cannot do."""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from avalanche_vilco.core.errors import DataError, SettingError
from avalanche_vilco.experiments.run import run


@pytest.fixture(scope="module")
def root(mq_root: Path) -> Path:
    return mq_root


def small_run(root: Path, folder: Path, **options):
    settings = {"strategy": "naive", "epochs": 1, "echo": lambda line: None, **options}
    return run(
        "vilco_mq", output=folder, benchmark_options={"dataset_root": root}, **settings
    )


@pytest.fixture(scope="module")
def replay(root: Path, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("replay")
    options = {"strategy": "replay", "strategy_options": {"mem_size": 5}}
    return folder, small_run(root, folder, **options)


def test_results_file_holds_what_a_reader_needs_to_compare(replay) -> None:
    folder, results = replay
    stored = json.loads((folder / "results.json").read_text())
    assert stored == json.loads(json.dumps(results))
    assert stored["config"]["seed"] == 0
    assert stored["benchmark"]["protocol"] == "exclusive"
    assert stored["benchmark"]["uses_ground_truth_at_test"] is False
    assert set(stored["versions"]) >= {"avalanche_vilco", "avalanche-lib", "torch"}
    (digest,) = stored["data"]["files"].values()
    assert len(digest) == len(stored["initial_weights_sha256"]) == 64
    for stage in stored["data"]["stages"]:
        rejected, changed = stage["rejected"].values(), stage["changed"].values()
        assert stage["read"] == stage["kept"] + sum(changed) + sum(rejected)
    assert len(stored["seconds"]) == 5


@pytest.fixture(scope="module")
def naive(finished_runs: Path) -> dict[str, Any]:
    """Results of Naive at the settings of ``small_run``."""
    return json.loads((finished_runs / "naive/seed0/results.json").read_text())


def test_options_of_the_model_reach_its_builder(
    naive: dict[str, Any], root: Path, tmp_path: Path
) -> None:
    few = small_run(root, tmp_path, model_options={"max_windows": 1})
    assert few["final_weights_sha256"] == naive["final_weights_sha256"]
    assert few["config"]["model_options"] == {"max_windows": 1}
    name = "Recall@5x_tIoU0.3"
    assert few["scores"][name]["average"] < naive["scores"][name]["average"]


def test_scores_are_those_of_the_matrices(replay) -> None:
    _, results = replay
    for name, score in results["scores"].items():
        rows = results["matrices"][name]["p"]
        last = rows[-1]
        assert score["average"] == pytest.approx(sum(last) / 5)
        drops = [rows[j][j] - last[j] for j in range(4)]
        assert score["bwf"] == pytest.approx(sum(drops) / 4)
        assert 0 <= score["chance"] <= 1


def test_matrix_table_gives_a_reason_for_each_empty_cell(replay) -> None:
    folder, results = replay
    with (folder / "matrices.csv").open() as file:
        cells = list(csv.DictReader(file))
    for cell in cells:
        i, j = int(cell["after_training"]), int(cell["evaluated_on"])
        expected = results["matrices"][cell["metric"]]["p"][i][j]
        assert cell["value"] == "" if expected is None else True
        assert expected is None or float(cell["value"]) == expected
    assert len(cells) == 12 * 25
    for cell in cells:
        future = int(cell["evaluated_on"]) > int(cell["after_training"])
        assert (cell["value"] == "") == future == ("not learnt" in cell["reason"])


def test_memory_counts_the_samples_that_replay_keeps(replay, root: Path) -> None:
    _, results = replay
    memory = results["memory"]
    assert memory["samples"] == memory["clips"] == 5
    streams = results["data"]["stages"][-1]["notes"]
    assert memory["share_of_training_samples"] == 5 / streams["in stream train"]
    assert 5 * 40 / 3600 <= memory["hours"] <= 5 * 60 / 3600
    # 40 to 60 s at 0.46875 features a second, 32 float32 channels
    assert 5 * 18 * 128 <= memory["exemplar_bytes"] <= 5 * 29 * 128


def test_log_is_closed_after_the_run(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from avalanche_vilco.experiments import run as module

    loggers, make = [], module.TextLogger

    class Recorded(make):
        def __init__(self, file) -> None:
            super().__init__(file)
            loggers.append(self)

    monkeypatch.setattr(module, "TextLogger", Recorded)
    small_run(root, tmp_path)
    assert [logger.file.closed for logger in loggers] == [True]
    assert (tmp_path / "log.txt").read_text().count("End of training phase") == 5


@pytest.mark.parametrize("unit", ["class_slots", "samples"])
def test_seed_of_the_run_draws_class_slots(
    unit: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from avalanche_vilco.training.plugins import replay

    seeds, make = [], replay.ClassSlotBuffer

    def record(max_size: int, *, seed: int):
        seeds.append(seed)
        return make(max_size, seed=seed)

    monkeypatch.setattr(replay, "ClassSlotBuffer", record)
    options = {"dataset_root": root, "protocol": "reference", "n_experiences": 1}
    results = run(
        "vilco_mq",
        "replay",
        seed=3,
        epochs=1,
        output=tmp_path,
        benchmark_options=options,
        strategy_options={"unit": unit, "mem_size": 10},
        echo=lambda line: None,
    )
    assert seeds == ([3] if unit == "class_slots" else [])
    assert set(results["config"]["strategy_options"]) == {"mem_size", "unit"}


def test_naive_keeps_nothing(naive: dict[str, Any]) -> None:
    assert set(naive["memory"].values()) == {0}


def test_ewc_keeps_importances_and_old_weights(root: Path, tmp_path: Path) -> None:
    results = small_run(root, tmp_path, strategy="ewc")
    assert results["memory"]["samples"] == 0
    assert results["memory"]["auxiliary_bytes"] > 0


def test_one_seed_gives_one_result_and_methods_start_equal(
    naive: dict[str, Any], finished_runs: Path, root: Path, tmp_path: Path, replay
) -> None:
    again = small_run(root, tmp_path)
    other = json.loads((finished_runs / "naive/seed1/results.json").read_text())
    for key in ("initial_weights_sha256", "final_weights_sha256", "matrices"):
        assert naive[key] == again[key]
        assert naive[key] != other[key]
    assert replay[1]["initial_weights_sha256"] == naive["initial_weights_sha256"]


def test_interrupted_run_resumes_to_the_same_weights(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replay
) -> None:
    options = {"strategy": "replay", "strategy_options": {"mem_size": 5}}
    lines: list[str] = []

    def interrupt(line: str) -> None:
        lines.append(line)
        if line.startswith("experience 2/5"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small_run(root, tmp_path, echo=interrupt, **options)
    assert not (tmp_path / "results.json").exists()
    lines.clear()
    resumed = small_run(root, tmp_path, echo=lines.append, **options)
    assert "resumed after 2 experiences" in lines
    assert not any(line.startswith("experience 2/5") for line in lines)
    for key in ("final_weights_sha256", "matrices", "scores"):
        assert resumed[key] == replay[1][key]


def test_folder_of_other_settings_is_refused_by_name_and_value(
    replay, root: Path
) -> None:
    before = contents(replay[0])
    with pytest.raises(ValueError, match="strategy was 'replay' and is 'naive'"):
        small_run(root, replay[0])
    options = {"strategy": "replay", "strategy_options": {"mem_size": 4}, "epochs": 2}
    told = r"configuration: epochs was 1 and is 2; strategy.mem_size was 5 and is 4; pa"
    with pytest.raises(ValueError, match=told):
        small_run(root, replay[0], **options)
    assert contents(replay[0]) == before


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.*")}


def test_finished_run_is_left_alone_and_told_again(replay, root: Path) -> None:
    folder, results = replay
    before, lines = contents(folder), []
    options = {"strategy": "replay", "strategy_options": {"mem_size": 5}}
    again = small_run(root, folder, num_workers=1, echo=lines.append, **options)
    assert again == json.loads(json.dumps(results))
    assert contents(folder) == before
    assert "P_T" in lines[0] and "nothing is run, fresh=true" in lines[1]
    (folder / "progress.json").rename(folder / "aside")
    assert small_run(root, folder, echo=lines.append, **options) == again
    (folder / "aside").rename(folder / "progress.json")


def test_fresh_start_keeps_what_was_there_until_its_own_is(
    finished_runs: Path, root: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished_runs / "naive/seed0", folder)
    before = contents(folder)

    def stop_at(start: str) -> Callable[[str], None]:
        def interrupt(line: str) -> None:
            if line.startswith(start):
                raise KeyboardInterrupt

        return interrupt

    for strategy in ("naive", "ewc"):
        with pytest.raises(KeyboardInterrupt):
            small_run(root, folder, fresh=True, strategy=strategy, echo=stop_at(""))
        assert contents(folder) == before
    with pytest.raises(KeyboardInterrupt):
        small_run(root, folder, fresh=True, strategy="ewc", echo=stop_at("experience "))
    assert (folder / "results.json").read_bytes() == before["results.json"]
    with pytest.raises(ValueError, match="strategy was 'ewc' and is 'naive'"):
        small_run(root, folder)
    lines: list[str] = []
    small_run(root, folder, strategy="ewc", echo=lines.append)
    assert "resumed after 1 experiences" in lines
    assert '"strategy": "ewc"' in (folder / "results.json").read_text()


def unfinished(source: Path, folder: Path) -> Path:
    """A copy of a run's folder as a stop before its results leaves it."""
    shutil.copytree(source, folder)
    (folder / "results.json").unlink()
    state = json.loads((folder / "progress.json").read_text())
    (folder / "progress.json").write_text(json.dumps({**state, "finished": False}))
    return folder


def test_damaged_checkpoint_is_named_and_changes_nothing(
    finished_runs: Path, root: Path, tmp_path: Path
) -> None:
    folder = unfinished(finished_runs / "naive/seed0", tmp_path / "run")
    file = folder / "checkpoint.pkl"
    whole = file.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 255
    for damaged in (b"", whole[:100], whole[: len(whole) // 2], whole[:-9], flipped):
        file.write_bytes(damaged)
        before = contents(folder)
        with pytest.raises(ValueError, match=r"checkpoint\.pkl.*fresh=true"):
            small_run(root, folder)
        assert contents(folder) == before


@pytest.mark.parametrize("has_progress", [True, False])
def test_checkpoint_of_another_run_is_refused(
    has_progress: bool, finished_runs: Path, replay, root: Path, tmp_path: Path
) -> None:
    folder = unfinished(finished_runs / "naive/seed0", tmp_path / "run")
    shutil.copy(replay[0] / "checkpoint.pkl", folder)
    if not has_progress:
        (folder / "progress.json").unlink()
    told = r"checkpoint\.pkl holds .* strategy was 'replay' and is 'naive'"
    with pytest.raises(ValueError, match=told):
        small_run(root, folder)
    shutil.copy(finished_runs / "naive/seed1/checkpoint.pkl", folder)
    with pytest.raises(ValueError, match="seed was 1 and is 0"):
        small_run(root, folder)


def test_stop_between_progress_and_checkpoint_trains_nothing_twice(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replay
) -> None:
    from avalanche_vilco.experiments import resume as module

    options = {"strategy": "replay", "strategy_options": {"mem_size": 5}}
    save, saved = module.save_checkpoint, []

    def save_once(*args: object) -> None:
        if saved:
            raise KeyboardInterrupt
        saved.append(save(*args))

    with monkeypatch.context() as patch:
        patch.setattr(module, "save_checkpoint", save_once)
        with pytest.raises(KeyboardInterrupt):
            small_run(root, tmp_path, **options)
    resumed = small_run(root, tmp_path, **options)
    assert len(resumed["seconds"]) == 5
    for key in ("final_weights_sha256", "matrices"):
        assert resumed[key] == replay[1][key]


def test_damaged_progress_is_named(root: Path, tmp_path: Path) -> None:
    (tmp_path / "progress.json").write_text('{"config": ')
    with pytest.raises(ValueError, match=r"progress\.json: is damaged"):
        small_run(root, tmp_path)


def test_memory_of_joint_counts_a_clip_once_for_each_experience_that_asks_it(
    root: Path, tmp_path: Path
) -> None:
    folder, options = tmp_path / "joint", {"dataset_root": root}
    options["protocol"] = "shared_clips"
    results = run(
        "vilco_mq",
        "joint",
        epochs=1,
        output=folder,
        benchmark_options=options,
        echo=lambda line: None,
    )
    memory = results["memory"]
    assert memory["share_of_training_samples"] == 1
    assert memory["samples"] > memory["clips"]


def test_joint_is_one_step_that_teaches_all(root: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    results = small_run(root, tmp_path, strategy="joint", echo=lines.append)
    done = [line for line in lines if line.startswith("experience ")]
    assert [line.partition(":")[0] for line in done] == [
        "experience 1/1 (all experiences)"
    ]
    matrix = results["matrices"]["Recall@1x_tIoU0.5"]
    assert matrix["taught"] == [list(range(matrix["n_experiences"]))]
    assert len(matrix["p"]) == 1 and None not in matrix["p"][0]
    assert results["scores"]["Recall@1x_tIoU0.5"]["bwf"] is None
    assert results["memory"]["share_of_training_samples"] == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "repley"}, "Did you mean replay"),
        ({"seed": None}, "expected seed of type int"),
        ({"output": __file__}, r"output to be a folder .*test_run\.py is no folder"),
        ({"output": f"{__file__}/run"}, r"test_run\.py is no folder, or not yours"),
        ({"model": "vilco_mq_huge"}, "Available: vilco_mq_base, vilco_mq_base_lower"),
        ({"strategy_options": {"mem_size": 3}}, "'naive' has no option 'mem_size'"),
        ({"benchmark_options": {"sead": 3}}, "'vilco_mq' has no option 'sead'. Did"),
        ({"deviations": ["seen"]}, "unknown deviation 'seen'"),
        ({"backbone_cache": True}, "'vilco_mq' have no backbone"),
        ({"epochz": 3}, "run has no option 'epochz'. Did you mean epochs"),
        ({"epochs": 0}, "expected epochs >= 1 but got 0"),
        ({"model_options": {"windows": 3}}, "'vilco_mq_tiny' has no option 'windows'"),
        ({"model_options": {"sigma": 0.0}}, "expected model_options.sigma > 0 but"),
        ({"learning_rate": "fast"}, "expected learning_rate of type float > 0"),
        ({"selection": "best"}, r"expected selection in \['last', 'best_on_valid', "),
        (
            {"strategy": "replay", "strategy_options": {"mem_size": -1}},
            "expected strategy.mem_size >= 0 but got -1",
        ),
    ],
)
def test_settings_are_refused_before_data_are_read(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    settings = {"echo": lambda line: None, "output": tmp_path / "run", **options}
    with pytest.raises(ValueError, match=message):
        run("vilco_mq", **settings)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"strategy": "lwf", "strategy_options": {"alpha": [0.1]}},
            "one for each of 5 experiences, but got 1",
        ),
        (
            {"strategy": "si", "strategy_options": {"si_lambda": [0.1] * 6}},
            "one for each of 5 experiences, but got 6",
        ),
        (
            {"strategy": "cwr_star", "strategy_options": {"cwr_layer_name": "heads"}},
            r"Available: heads\.cls$",
        ),
        ({"selection": "best_on_valid", "valid_share": 0}, "valid_share above 0"),
        (
            {"selection": "best_on_valid", "protocol": "reference"},
            "a valid stream with samples for selection=best_on_valid but got none",
        ),
    ],
)
def test_settings_that_do_not_go_with_the_data_are_refused_before_training(
    root: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    names = ("valid_share", "protocol")
    of_data = {name: options.pop(name) for name in names if name in options}
    with pytest.raises(SettingError, match=message):
        run(
            "vilco_mq",
            benchmark_options={"dataset_root": root, **of_data},
            output=tmp_path / "run",
            echo=lambda line: None,
            **options,
        )
    assert not (tmp_path / "run").exists()


def test_precision_is_part_of_what_a_run_is(root: Path, tmp_path: Path) -> None:
    options = {"strategy": "vilco", "strategy_options": {"mem_size": 5}}
    results = small_run(root, tmp_path, precision="bf16", **options)
    assert results["config"]["precision"] == "bf16"
    plain = small_run(root, tmp_path / "plain", **options)
    for key, is_equal in (("initial", True), ("final", False)):
        name = f"{key}_weights_sha256"
        assert (results[name] == plain[name]) is is_equal
    with pytest.raises(SettingError, match="precision was 'bf16' and is 'float32'"):
        small_run(root, tmp_path, **options)


def test_a_run_of_before_there_was_a_choice_of_precision_is_known(
    root: Path, replay, tmp_path: Path
) -> None:
    shutil.copytree(replay[0], tmp_path / "run")
    for name in ("results.json", "progress.json"):
        path = tmp_path / "run" / name
        content = json.loads(path.read_text())
        del content["config"]["precision"]
        path.write_text(json.dumps(content))
    lines: list[str] = []
    options = {"strategy": "replay", "strategy_options": {"mem_size": 5}}
    small_run(root, tmp_path / "run", echo=lines.append, **options)
    assert "is finished: nothing is run" in lines[-1]


@pytest.mark.parametrize("name", ["matrices.csv", "log.txt"])
def test_files_of_another_hand_are_not_written_over(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(SettingError, match=f"holds {name}, which a run writes, but"):
        run("vilco_mq", output=tmp_path)
    assert (tmp_path / name).read_text() == "mine"
    assert list(tmp_path.iterdir()) == [tmp_path / name]


@pytest.mark.parametrize("name", ["results.json", "checkpoint.pkl", "log.txt"])
def test_folder_of_the_name_of_a_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(SettingError, match=f"{name} to be a file, as a run writes it"):
        run("vilco_mq", output=tmp_path)


@pytest.mark.parametrize("name", ["", "x", "log.txt"])
def test_link_to_nothing_is_refused(tmp_path: Path, name: str) -> None:
    link = tmp_path / "run" / "log.txt" if name == "log.txt" else tmp_path / "run"
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(tmp_path / "nowhere")
    output = tmp_path / "run" / "x" if name == "x" else tmp_path / "run"
    with pytest.raises(SettingError, match=r"output to be a folder|to be a file"):
        run("vilco_mq", output=output)
    assert not (tmp_path / "nowhere").exists()


def test_damaged_results_alone_name_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text('{"config": ')
    with pytest.raises(DataError, match=r"another output, or fresh=true"):
        run("vilco_mq", output=tmp_path)


@pytest.mark.parametrize("benchmark", ["vilco_nlq", "vilco_vq"])
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"strategy": "lwf"}, "a softmax over queries"),
        ({"strategy": "bic"}, "corrects new queries' logits"),
        ({"strategy": "icarl"}, "of queries with a logit each"),
        ({"strategy": "cwr_star"}, "the head's rows"),
        ({"strategy": "lower_bound"}, "has no such variant"),
        ({"deviations": ["cumulative_averages"]}, "has none"),
    ],
)
def test_what_has_nothing_to_act_on_is_refused(
    benchmark: str, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        run(benchmark, **options)
