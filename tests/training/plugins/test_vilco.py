"""ViLCo's parts, each at work and each switched off."""

from pathlib import Path
from typing import Any

import pytest
import torch
from avalanche.training import Replay as StockReplay
from avalanche.training.plugins import ReplayPlugin
from avalanche.training.storage_policy import ExperienceBalancedBuffer

from avalanche_vilco.benchmarks.vilco_mq.generator import vilco_mq
from avalanche_vilco.reports.memory import memory_figures
from avalanche_vilco.training.plugins.vilco import (
    NarrationBank,
    NarrationOptions,
    PromptOptions,
    ViLCoPlugin,
)
from avalanche_vilco.training.strategies import (
    LocalizationNaive,
    LocalizationReplay,
    ViLCo,
)

SMALL: dict[str, Any] = {"n_prompts": 4, "prompt_length": 2, "top_n": 1}


@pytest.fixture
def narrated(small_root: Path):
    return vilco_mq(
        small_root,
        per_exp_classes=(3, 1, 2),
        valid_share=0.2,
        sources={"narrations": True},
    )


def learn(strategy, benchmark, n_experiences=3):
    for experience in benchmark.train_stream[:n_experiences]:
        strategy.train(experience)
        strategy.eval(benchmark.test_stream)
    return strategy


def plugin_of(strategy) -> ViLCoPlugin:
    return next(p for p in strategy.plugins if isinstance(p, ViLCoPlugin))


def same_weights(one, other) -> bool:
    a, b = one.model.state_dict(), other.model.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize(
    ("options", "stock"),
    [({"mem_size": 0}, LocalizationNaive), ({"mem_size": 6}, LocalizationReplay)],
)
def test_without_prompts_and_narrations_it_is_the_stock_strategy(
    options, stock, parts, benchmark
):
    own = {} if stock is LocalizationNaive else options
    ours = learn(
        ViLCo(**parts(), **options, long_term=False, ssl_weight=0), benchmark, 2
    )
    theirs = learn(stock(**parts(), **own), benchmark, 2)
    assert same_weights(ours, theirs)


@pytest.mark.parametrize(
    "part",
    [
        {"long_term": True, **SMALL},
        {"ssl_weight": 0.1},
        {"mem_size": 6},
        {"long_term": True, "pull_weight": 0.5, **SMALL},
    ],
    ids=["prompts", "narrations", "exemplars", "pull"],
)
def test_each_part_changes_what_is_learnt(part, parts, narrated):
    off = {"long_term": False, "ssl_weight": 0.0, "mem_size": 0}
    base = {**off, "long_term": True, **SMALL} if "pull_weight" in part else off
    without = learn(ViLCo(**parts(), **base), narrated, 2).model.state_dict()
    with_it = learn(ViLCo(**parts(), **{**off, **part}), narrated, 2).model.state_dict()
    assert all(value.isfinite().all() for value in with_it.values())
    shared = without.keys() & with_it.keys()
    assert any(not torch.equal(without[key], with_it[key]) for key in shared)


def test_one_line_plugs_it_into_avalanches_replay(parts, narrated):
    strategy = StockReplay(
        **parts(), mem_size=6, plugins=[ViLCoPlugin(prompts=PromptOptions(**SMALL))]
    )
    learn(strategy, narrated)
    memory = strategy.model.prompt_memory
    trained = {
        id(p) for group in strategy.optimizer.param_groups for p in group["params"]
    }
    assert {id(p) for p in strategy.model.parameters()} == trained
    started = ViLCoPlugin(prompts=PromptOptions(**SMALL))
    assert started.usage == [] and len(plugin_of(strategy).usage) == 3
    assert memory.keys.isfinite().all()


def test_two_prompt_sets_or_more_are_in_use_after_every_experience(parts, narrated):
    strategy = ViLCo(**parts(), mem_size=6, **SMALL)
    for experience in narrated.train_stream:
        strategy.train(experience)
        found = strategy.model.find_prompts(strategy.model.prompt_memory).chosen
        assert len(found.unique(dim=0)) >= 2
        usage = plugin_of(strategy).usage[-1]
        assert sum(usage) == pytest.approx(1)
        assert sum(share > 0 for share in usage) >= 2


def test_usage_is_logged(parts, narrated):
    strategy = learn(ViLCo(**parts(), mem_size=6, **SMALL), narrated)
    logged = strategy.evaluator.get_last_metrics()
    values = [logged[f"PromptUsage/train_phase/prompt{i:03d}"] for i in range(4)]
    assert values == plugin_of(strategy).usage[-1]


def test_no_hook_and_no_graph_stays_on_the_model(parts, narrated):
    strategy = learn(ViLCo(**parts(), mem_size=6, **SMALL), narrated, 2)
    model, plugin = strategy.model, plugin_of(strategy)
    assert not model.narrated_module._forward_hooks
    assert not model.prompt_memory._forward_hooks
    assert plugin._encoded is None and plugin._selection is None


def test_predictions_do_not_see_narrations(parts, narrated, benchmark):
    strategy = learn(ViLCo(**parts(), mem_size=6, **SMALL), narrated, 2)
    sample = narrated.train_stream[0].dataset
    clips = sample.collate_fn([sample[0], sample[1]])[0]
    assert clips.narrations is not None
    strategy.model.eval()
    expected = strategy.model(clips)
    clips.narrations = clips.narrated = clips.sentences = None
    assert torch.equal(strategy.model(clips), expected)
    assert benchmark.test_stream[0].dataset[0][0].keys() == {"features", "valid"}


def test_clips_without_narrations_train_all_the_same(parts, narrated):
    silent = narrated.datasets["train"].narrations.store
    silent._by_clip = dict(list(silent._by_clip.items())[:1])
    strategy = learn(ViLCo(**parts(), mem_size=6, ssl_weight=0.5, **SMALL), narrated)
    weights = strategy.model.state_dict().values()
    assert all(value.isfinite().all() for value in weights)


def test_benchmark_without_narrations_is_refused(parts, benchmark):
    with pytest.raises(ValueError, match="narrations=True, or pass ssl_weight=0"):
        learn(ViLCo(**parts(), mem_size=6), benchmark)


@pytest.mark.parametrize(
    ("part", "options", "message"),
    [
        (ViLCoPlugin, {"mem_size": -1}, "mem_size >= 0 but got -1"),
        (PromptOptions, {"prompt_mode": "prepent"}, "Did you mean prepend"),
        (NarrationOptions, {"ssl_weight": float("nan")}, "type float >= 0"),
        (NarrationOptions, {"temperature": 0}, "temperature > 0"),
        (
            NarrationOptions,
            {"narration_dropout": 1.0},
            r"narration_dropout in \[0, 1\)",
        ),
        (
            ViLCoPlugin,
            {"mem_size": 4, "storage_policy": ExperienceBalancedBuffer(5)},
            "capacity mem_size=4 but got one of 5",
        ),
    ],
)
def test_options_out_of_range_are_refused(part, options, message):
    with pytest.raises(ValueError, match=message):
        part(**options)


def test_exemplars_are_train_clips_and_no_more_than_asked(parts, narrated):
    strategy = ViLCo(**parts(), mem_size=7, ssl_weight=0, **SMALL)
    seen: set[str] = set()
    for experience in narrated.train_stream:
        seen |= set(experience.dataset.clip_ids)
        strategy.train(experience)
        replay = plugin_of(strategy).replay
        assert isinstance(replay, ReplayPlugin)
        kept = list(replay.storage_policy.buffer.clip_ids)
        assert len(kept) == 7 and set(kept) <= seen


def test_bank_shares_its_places_equally_and_keeps_earlier_choices(narrated):
    told = narrated.datasets["train"].narrations
    bank = NarrationBank(6)
    bank.update(told, narrated.train_stream[0].dataset.clip_ids)
    first = bank.sentences.clone()
    assert len(bank) == min(6, len(narrated.train_stream[0].dataset))
    bank.update(told, narrated.train_stream[1].dataset.clip_ids)
    assert torch.equal(bank.sentences[:3], first[:3]) and len(bank) <= 6
    again = NarrationBank(6)
    for experience in narrated.train_stream[:2]:
        again.update(told, experience.dataset.clip_ids)
    assert torch.equal(again.sentences, bank.sentences)
    assert torch.equal(again.embeddings, bank.embeddings)


def test_empty_bank_and_silent_experience_are_fine(narrated):
    told = narrated.datasets["train"].narrations
    for size, clips in [(0, narrated.train_stream[0].dataset.clip_ids), (4, [])]:
        bank = NarrationBank(size)
        bank.update(told, clips)
        bank.update(told, clips)
        assert len(bank) == 0


def test_prompts_sentences_and_exemplars_narrations_count_as_memory(parts, narrated):
    def figures(**options):
        strategy = ViLCo(**parts(), mem_size=6, **{**SMALL, **options})
        strategy.train(narrated.train_stream[0])
        return strategy, memory_figures(strategy, narrated)

    _, bare = figures(long_term=False, ssl_weight=0)
    strategy, prompts = figures(ssl_weight=0)
    memory = strategy.model.prompt_memory
    n_numbers = memory.prompts.numel() + memory.keys.numel()
    assert prompts.auxiliary_bytes - bare.auxiliary_bytes == 4 * n_numbers
    strategy, told = figures(long_term=False)
    kept = set(plugin_of(strategy).replay.storage_policy.buffer.clip_ids)
    narrations = narrated.datasets["train"].narrations
    n_numbers = sum(narrations.of_clip(clip)[0].numel() for clip in kept)
    assert n_numbers and told.exemplar_bytes - bare.exemplar_bytes == 4 * n_numbers
    bank = plugin_of(strategy).bank
    assert told.auxiliary_bytes - bare.auxiliary_bytes >= 4 * bank.embeddings.numel()
