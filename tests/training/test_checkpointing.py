"""A run that is interrupted between experiences and resumed is the same run."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from avalanche.checkpointing import save_checkpoint as stock_save
from avalanche.training.determinism.rng_manager import RNGManager
from avalanche.training.plugins import ReplayPlugin
from avalanche.training.supervised import AGEM, Naive
from avalanche.training.supervised.joint_training import AlreadyTrainedError
from torch import Tensor

from avalanche_vilco.core.errors import DataError
from avalanche_vilco.training import checkpointing, strategies
from avalanche_vilco.training.checkpointing import load_checkpoint, save_checkpoint
from avalanche_vilco.training.plugins.agem import AGEMPlugin

METHODS: Mapping[str, Mapping[str, Any]] = {
    "ViLCo": {"mem_size": 6, "ssl_weight": 0.0, "n_prompts": 4, "top_n": 2},
    "LocalizationNaive": {},
    "LocalizationCumulative": {},
    "LocalizationReplay": {"mem_size": 6},
    "LocalizationEWC": {"ewc_lambda": 100.0},
    "LocalizationMAS": {},
    "LocalizationSynapticIntelligence": {"si_lambda": 1e4},
    "LocalizationLwF": {"alpha": 1, "temperature": 2},
    "LocalizationICaRL": {"mem_size": 6, "nearest_mean": True},
    "LocalizationBiC": {"mem_size": 10, "val_share": 0.4},
    "LocalizationDenseDistillation": {},
    "LocalizationGEM": {"patterns_per_exp": 4},
    "LocalizationAGEM": {"patterns_per_exp": 4, "sample_size": 4},
    "LocalizationCWRStar": {},
    "LocalizationGDumb": {"mem_size": 6},
    "LocalizationFromScratch": {},
}
Parts = Callable[..., dict[str, Any]]


def build(name: str, parts: Parts) -> Any:
    return getattr(strategies, name)(**parts(), **METHODS[name])


def state(strategy: Any) -> dict[str, Tensor]:
    return {name: v.clone() for name, v in strategy.model.state_dict().items()}


def learn(strategy: Any, experiences: Any, benchmark: Any) -> None:
    for experience in experiences:
        strategy.train(experience)
        strategy.eval(benchmark.test_stream)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_resumed_run_ends_with_the_weights_of_an_uninterrupted_one(
    name: str, parts: Parts, benchmark: Any, tmp_path: Path
) -> None:
    stream = benchmark.train_stream
    whole = build(name, parts)
    learn(whole, stream[:2], benchmark)
    save_checkpoint(whole, tmp_path / "checkpoint.pkl")
    learn(whole, stream[2:], benchmark)
    expected, values = state(whole), whole.evaluator.get_last_metrics()

    fresh = build(name, parts)
    RNGManager.set_random_seeds(99)
    resumed, done = load_checkpoint(fresh, tmp_path / "checkpoint.pkl")
    assert done == 2
    learn(resumed, stream[done:], benchmark)
    found = state(resumed)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    assert resumed.evaluator.get_last_metrics() == pytest.approx(values, nan_ok=True)


def test_joint_is_restored_as_trained(
    parts: Parts, benchmark: Any, tmp_path: Path
) -> None:
    joint = strategies.LocalizationJoint(**parts())
    joint.train(benchmark.train_stream)
    save_checkpoint(joint, tmp_path / "checkpoint.pkl")
    resumed, _ = load_checkpoint(
        strategies.LocalizationJoint(**parts()), tmp_path / "checkpoint.pkl"
    )
    expected, found = state(joint), state(resumed)
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    with pytest.raises(AlreadyTrainedError):
        resumed.train(benchmark.train_stream)


def test_without_a_file_the_strategy_is_returned_as_it_is(
    parts: Parts, tmp_path: Path
) -> None:
    strategy = build("LocalizationNaive", parts)
    assert load_checkpoint(strategy, tmp_path / "none.pkl") == (strategy, 0)


def test_a_strategy_of_another_class_or_with_other_plugins_is_refused(
    parts: Parts, tmp_path: Path
) -> None:
    saved = Naive(**parts(), plugins=[ReplayPlugin(mem_size=6)])
    save_checkpoint(saved, tmp_path / "a.pkl")
    with pytest.raises(DataError, match="class Naive, not LocalizationReplay"):
        load_checkpoint(build("LocalizationReplay", parts), tmp_path / "a.pkl")
    with pytest.raises(DataError, match=r"plugins .*'ReplayPlugin'\], not \["):
        load_checkpoint(Naive(**parts()), tmp_path / "a.pkl")


def test_interrupted_write_leaves_the_old_file(
    parts: Parts, benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "checkpoint.pkl"
    strategy = build("LocalizationNaive", parts)
    strategy.train(benchmark.train_stream[0])
    save_checkpoint(strategy, path)
    strategy.train(benchmark.train_stream[1])

    def half(strategy: Any, name: str) -> None:
        stock_save(strategy, name)
        written = Path(name).read_bytes()
        Path(name).write_bytes(written[: len(written) // 2])
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpointing.stock, "save_checkpoint", half)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(strategy, path)
    _, done = load_checkpoint(build("LocalizationNaive", parts), path)
    assert done == 1


def test_saving_changes_nothing_of_a_running_strategy(
    parts: Parts, benchmark: Any, tmp_path: Path
) -> None:
    ends = []
    for is_saved in (False, True):
        strategy = build("LocalizationAGEM", parts)
        for experience in benchmark.train_stream:
            strategy.train(experience)
            if is_saved:
                save_checkpoint(strategy, tmp_path / "checkpoint.pkl")
        ends.append(state(strategy))
    assert all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0])


@pytest.mark.parametrize(
    ("name", "holds"), [("LocalizationReplay", False), ("LocalizationGEM", True)]
)
def test_checkpoints_hold_references_and_gems_features_too(
    name: str, holds: bool, parts: Parts, benchmark: Any, tmp_path: Path
) -> None:
    strategy = build(name, parts)
    strategy.train(benchmark.train_stream[0])
    strategy.eval(benchmark.test_stream)
    save_checkpoint(strategy, tmp_path / "checkpoint.pkl")
    written = (tmp_path / "checkpoint.pkl").read_bytes()
    streams = [*benchmark.train_stream, *benchmark.test_stream]
    steps = [inputs["features"][:1] for e in streams for inputs, *_ in e.dataset]
    assert any(step.numpy().tobytes() in written for step in steps) == holds


def test_resumed_memory_reads_the_same_clips(
    parts: Parts, benchmark: Any, tmp_path: Path
) -> None:
    strategy = build("LocalizationReplay", parts)
    strategy.train(benchmark.train_stream[0])
    save_checkpoint(strategy, tmp_path / "checkpoint.pkl")
    resumed, _ = load_checkpoint(
        build("LocalizationReplay", parts), tmp_path / "checkpoint.pkl"
    )
    before, after = (s.plugins[0].storage_policy.buffer for s in (strategy, resumed))
    assert list(after.clip_ids) == list(before.clip_ids)
    for old, new in zip(before, after, strict=True):
        assert torch.equal(old[0]["features"], new[0]["features"])


def test_stock_agem_cannot_be_saved_and_ours_can(
    parts: Parts, benchmark: Any, tmp_path: Path
) -> None:
    options = METHODS["LocalizationAGEM"]
    stock = AGEM(**parts(), **options)
    stock.train(benchmark.train_stream[0])
    with pytest.raises(TypeError, match="generator"):
        save_checkpoint(stock, tmp_path / "stock.pkl")
    ours = build("LocalizationAGEM", parts)
    ours.train(benchmark.train_stream[0])
    save_checkpoint(ours, tmp_path / "ours.pkl")
    resumed, _ = load_checkpoint(
        build("LocalizationAGEM", parts), tmp_path / "ours.pkl"
    )
    plugin = resumed.plugins[0]
    assert isinstance(plugin, AGEMPlugin)
    assert plugin.sample_from_memory()[0].size(0) == options["sample_size"]


def test_agem_can_be_saved_before_it_has_a_memory(parts: Parts, tmp_path: Path) -> None:
    save_checkpoint(build("LocalizationAGEM", parts), tmp_path / "checkpoint.pkl")
    resumed, done = load_checkpoint(
        build("LocalizationAGEM", parts), tmp_path / "checkpoint.pkl"
    )
    assert done == 0
    assert resumed.plugins[0].buffers == []


def test_torch_is_left_as_it_was(parts: Parts, tmp_path: Path) -> None:
    before = set(vars(torch.optim))
    save_checkpoint(build("LocalizationNaive", parts), tmp_path / "checkpoint.pkl")
    load_checkpoint(build("LocalizationNaive", parts), tmp_path / "checkpoint.pkl")
    assert set(vars(torch.optim)) == before
