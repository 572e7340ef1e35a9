"""Methods on language queries: each does what it says, with one query logit."""

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from avalanche.training.determinism.rng_manager import RNGManager

from avalanche_vilco import vilco_nlq_tiny
from avalanche_vilco.benchmarks.vilco_nlq.generator import vilco_nlq
from avalanche_vilco.benchmarks.vilco_nlq.layout import NLQ_TEXT_FILE
from avalanche_vilco.models.losses import MomentLoss
from avalanche_vilco.reports.memory import memory_figures
from avalanche_vilco.training.strategies import STRATEGIES, check_classes
from avalanche_vilco.training.templates import localization_evaluator

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "strategies.md").read_text()
SMALL = {"mem_size": 6, "patterns_per_exp": 3, "sample_size": 6, "n_prompts": 6}
SAMPLES = 8
"""Of each experience."""
TRAINED = {"prompt_mode": "prepend"}
LONGER = {"train_epochs": 4, "train_mb_size": 2}
"""Until gradients of old and new questions part, which projections wait for."""


@pytest.fixture(scope="module")
def benchmark(nlq_root: Path) -> Any:
    benchmark = vilco_nlq(
        nlq_root, per_exp_classes=(5, 4, 4), sources={"narrations": True}
    )
    for experience in benchmark.train_stream:
        experience.dataset = experience.dataset.subset(range(SAMPLES))
    return benchmark


def learnt(name: str, benchmark: Any, **changes: Any) -> Any:
    """A strategy after its stream, always from the same initial weights."""
    RNGManager.set_random_seeds(0)
    recipe = STRATEGIES[name]
    small = {k: v for k, v in {**SMALL, **TRAINED}.items() if k in recipe.options}
    model = vilco_nlq_tiny(
        feature_dim=benchmark.info["feature_dim"], text_dim=benchmark.text_dim
    )
    settings = {
        "train_mb_size": 4,
        "train_epochs": recipe.epochs_factor,
        "eval_mb_size": 16,
        **recipe.options,
        **small,
        **changes,
    }
    strategy = recipe.build(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
        criterion=MomentLoss(),
        evaluator=localization_evaluator(budget="fixed", future="value"),
        **settings,
    )
    stream = benchmark.train_stream
    for step in [stream] if recipe.is_joint else stream:
        strategy.train(step, shuffle=False)
    return strategy


def weights(strategy: Any) -> torch.Tensor:
    common = dict(strategy.model.named_parameters())
    return torch.cat(
        [p.detach().flatten() for n, p in sorted(common.items()) if "prompt" not in n]
    )


@pytest.fixture(scope="module")
def naive(benchmark: Any) -> Callable[..., torch.Tensor]:
    """Naive's final weights, by settings."""
    return cache(lambda **settings: weights(learnt("naive", benchmark, **settings)))


METHODS = [
    *("upper_bound", "ewc", "mas", "gem", "replay", "vilco"),
    *("dense_distillation", "agem", "si", "cumulative"),
]


@pytest.mark.parametrize("name", METHODS)
def test_method_ends_with_finite_weights_other_than_naive_s(
    name: str, benchmark: Any, naive: Any
) -> None:
    settings = LONGER if name in ("gem", "agem") else {}
    strategy = learnt(name, benchmark, **settings)
    found = weights(strategy)
    assert found.isfinite().all()
    # ViLCo has a narration layer besides.
    assert not torch.equal(found, naive(**settings))
    kept = memory_figures(strategy, benchmark)
    expected = {"replay": 6, "vilco": 6, "gem": 9, "agem": 6}
    assert kept.samples >= expected.get(name, 0)


def test_page_names_every_method_as_working_or_refused() -> None:
    section = PAGE[PAGE.index("## Language queries") :].split("\n## ")[0]
    working, refused = section.split("Refused")
    for name, recipe in STRATEGIES.items():
        has_variant = not recipe.model_variant
        works = not recipe.needs_classes and has_variant
        assert f"`{name}`" in (working if works else refused), name


@pytest.mark.parametrize("name", [n for n, r in STRATEGIES.items() if r.needs_classes])
def test_method_that_compares_channels_is_refused_for_one_alone(name: str) -> None:
    with pytest.raises(ValueError, match="one query logit"):
        check_classes(name, STRATEGIES[name], 1)
    check_classes(name, STRATEGIES[name], 2)


@pytest.fixture
def uneven(nlq_root: Path, tmp_path: Path) -> Callable[[], Any]:
    """A clip with one question and one with sixty; questions of 1 and 200 words."""

    def build() -> Any:
        root = Path(shutil.copytree(nlq_root, tmp_path / "uneven"))
        (root / NLQ_TEXT_FILE).unlink()
        path = root / "nlq_train.json"
        content = json.loads(path.read_text())
        clips = [clip for video in content["videos"] for clip in video["clips"]]
        one, many = clips[0], clips[1]
        del one["annotations"][1:], one["annotations"][0]["language_queries"][1:]
        asked = many["annotations"][0]["language_queries"]
        del many["annotations"][1:]
        asked[:] = [dict(asked[i % len(asked)]) for i in range(60)]
        asked[0]["query"], asked[1]["query"] = "Where?", "where is it " * 66 + "then ?"
        path.write_text(json.dumps(content))
        return vilco_nlq(root, per_exp_classes=(13,), valid_share=0.0)

    return build


def test_clips_with_one_question_and_with_sixty_train_and_evaluate(
    uneven: Callable[[], Any],
) -> None:
    benchmark = uneven()
    data = benchmark.datasets["train"]
    clips = [sample.clip.clip_id for sample in data.samples]
    counts = sorted(clips.count(clip) for clip in set(clips))
    assert counts[0] == 1 and counts[-1] == 60
    lengths = [len(data[i][0]["tokens"]) for i in range(len(data))]
    assert min(lengths) == 1 and max(lengths) >= 199
    strategy = learnt("naive", benchmark)
    found = strategy.eval(benchmark.test_stream)
    assert weights(strategy).isfinite().all()
    name = "Recall@5_tIoU0.3_Stream/eval_phase/test_stream"
    assert 0 <= found[name] <= 1
