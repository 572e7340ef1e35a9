"""The embedded natural-language queries: frozen, grammatical, in the official form."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from avalanche_vilco.benchmarks.embedded import MANIFEST_FILE
from avalanche_vilco.benchmarks.vilco_nlq import embedded as mini_nlq
from avalanche_vilco.benchmarks.vilco_nlq.annotations import (
    read_language_queries,
    read_unlabelled_queries,
)
from avalanche_vilco.benchmarks.vilco_nlq.dataset import FEATURES_PER_SEC
from avalanche_vilco.benchmarks.vilco_nlq.embedded import MINI_NLQ, MiniNLQConfig
from avalanche_vilco.benchmarks.vilco_nlq.grammar import (
    EVENT_KINDS,
    QUESTION_FORMS,
    UNIQUE_SLOTS,
    VOCABULARY,
    worded,
)
from avalanche_vilco.benchmarks.vilco_nlq.layout import (
    NLQ_TEXT_FILE,
    OFFICIAL_NLQ_FILES,
)
from avalanche_vilco.benchmarks.vilco_nlq.templates import TemplateClassifier
from avalanche_vilco.data.features import FeatureFolder
from avalanche_vilco.data.text.narrations import NarrationStore, narration_files
from avalanche_vilco.data.text.tokens import QueryTokens

# The frozen default of version 1. A change here is a change of the data: it needs a
# new MiniNLQConfig.version, because results on the two cannot be compared.
SHA256_STARTS = {
    "nlq_train.json": "b8e4edb14b0c22b5194a996fec4bdced",
    "nlq_val.json": "8d88455eb93ccf1c273f9ebbc88538fe",
    "nlq_test_unannotated.json": "333b3d6cd98b2b087ecb57d49f3eeb23",
}
FEATURE_SUM = 1114315.7
TOKEN_SUM = 140054.3


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return MINI_NLQ.root(tmp_path_factory.mktemp("cache"))


def read(root: Path, *subsets: str) -> Any:
    return read_language_queries({s: root / OFFICIAL_NLQ_FILES[s] for s in subsets})


@pytest.fixture(scope="module")
def annotations(root: Path) -> Any:
    return read(root, "train", "val")


def test_frozen_default_has_the_recorded_fingerprint(root):
    manifest = json.loads((root / MANIFEST_FILE).read_text(encoding="utf-8"))
    found = {name: manifest["sha256"][name][:32] for name in SHA256_STARTS}
    assert found == SHA256_STARTS
    features = [torch.load(p, weights_only=True) for p in root.glob("features/*.pt")]
    total = sum(float(f.double().abs().sum()) for f in features)
    assert total == pytest.approx(FEATURE_SUM, rel=1e-4)
    tokens = load_file(root / NLQ_TEXT_FILE).values()
    total = sum(float(t.double().abs().sum()) for t in tokens)
    assert total == pytest.approx(TOKEN_SUM, rel=1e-4)


def test_default_is_a_small_download_free_folder(root):
    size = sum(p.stat().st_size for p in root.rglob("*") if p.is_file())
    assert size < 40e6


def test_reader_accounts_for_every_question(annotations):
    counts = annotations.report.stage("annotations", "queries")
    assert counts.read == counts.kept + sum(counts.rejected.values())
    assert set(counts.rejected) == {"no query text"}
    # The untidiness of the real files is there, so that readers meet it.
    assert counts.notes["form prefix taken from the text"] > 40
    assert counts.notes["blanks around the text"] > 100
    assert counts.notes["without template"] > 2
    windows = annotations.report.stage("annotations", "windows")
    assert not windows.rejected
    assert windows.changed["overhangs the clip's end, clipped to it"] > 2


@pytest.mark.parametrize(("subset", "least"), [("train", 55), ("val", 17)])
def test_every_template_has_enough_questions(annotations, subset, least):
    counts = Counter(q.template for q in annotations.queries if q.subset == subset)
    assert min(counts[template] for template in range(13)) >= least


@pytest.mark.parametrize(
    ("statistic", "low", "high"),
    [
        ("queries", 2300, 2600),
        ("queries_per_clip_mean", 9.5, 11.5),
        ("templates_per_clip_mean", 5.0, 7.0),
        ("window_sec_p50", 3.5, 4.6),
        ("window_sec_mean", 6.0, 11.3),
        ("words_per_query_mean", 6.0, 8.0),
        ("distinct_queries", 1000, 2600),
    ],
)
def test_train_statistics_stay_near_the_real_files(
    root, statistics, statistic, low, high
):
    found = statistics.query_statistics(read(root, "train"))
    assert low <= found[statistic] <= high


def test_subsets_share_no_parent_video(annotations, root):
    test = read_unlabelled_queries(root / OFFICIAL_NLQ_FILES["test"])
    parents = {"train": set(), "val": set(), "test": set()}
    for clip in [*annotations.clips.values(), *test.clips.values()]:
        parents[clip.subset].add(clip.video_id)
    assert all(parents.values())
    assert len(set().union(*parents.values())) == sum(map(len, parents.values()))


def test_no_question_of_a_clip_has_two_answers(annotations):
    notes = annotations.report.stage("annotations", "queries").notes
    assert "same words as another question of the clip" not in notes


def test_template_can_be_told_by_the_words(annotations):
    known = [q for q in annotations.queries if q.template is not None]
    train = [q for q in known if q.subset == "train"]
    val = [q for q in known if q.subset == "val"]
    model = TemplateClassifier([q.text for q in train], [q.template for q in train])
    hits = [
        g == q.template for g, q in zip(model([q.text for q in val]), val, strict=True)
    ]
    assert np.mean(hits) > 0.99


def test_every_question_has_tokens_one_a_word(annotations, root):
    tokens = QueryTokens(root / NLQ_TEXT_FILE)
    assert tokens.width == MiniNLQConfig().text_width
    assert not tokens.missing(q.query_id for q in annotations.queries)
    for query in annotations.queries[::200]:
        assert len(tokens.read(query.query_id)) == len(query.text.split())


def test_features_have_the_public_rate(annotations, root):
    expected = {
        clip.clip_id: clip.duration_sec * FEATURES_PER_SEC
        for clip in annotations.clips.values()
    }
    store = FeatureFolder(root / "features")
    store.preflight(expected, tolerance=1)
    assert store.width == MiniNLQConfig().feature_width


def test_answer_looks_like_what_the_question_names(root, annotations):
    """The words that name an event's parts point to its window, not to another one of
    the clip; this is what a model has to learn."""
    world = mini_nlq._draw_world(MiniNLQConfig())
    nouns = set(VOCABULARY["object"])
    ranks = []
    for query in annotations.queries:
        words = query.text.lower().strip("?").split()
        named = [word for word in words if word in nouns]
        if query.template != 1 or query.subset != "val" or not named:
            continue
        look = world.kinds["put"] + world.fillers["object", named[0]]
        steps = FeatureFolder(root / "features").read(query.clip_id).double().numpy()
        scores = (steps - steps.mean(0)) @ look
        start, end = (int(second * FEATURES_PER_SEC) for second in query.window_sec)
        inside = scores[start : end + 1].max()
        outside = np.concatenate([scores[:start], scores[end + 1 :]])
        ranks.append(float((outside < inside).mean()))
    assert len(ranks) > 50
    assert np.median(ranks) > 0.99


def test_narrations_tell_train_clips_only(annotations, root):
    store = NarrationStore(*narration_files(root))
    subsets = {annotations.clips[i].subset for i in store.clip_ids}
    assert subsets == {"train"}
    assert len(store) > 2000
    told = store.of_clip(store.clip_ids[0])[0]
    assert store.features(told.query_id).shape == (len(told.text.split()), 512)


def test_sentences_are_inflected():
    fillers = {"object": "brush", "verb": "dry", "other": "mug", "side": "before"}
    phrase = "Where was the {object} {side} I {past} the {other}?"
    text, meanings = worded(phrase, fillers)
    assert text == "Where was the brush before I dried the mug?"
    assert meanings[3] == ("object", "brush")
    assert meanings[4:7] == (None, None, ("verb", "dry"))
    assert meanings[8] == ("object", "mug")
    assert worded("How many {objects}?", fillers)[0] == "How many brushes?"
    assert worded("C {verbs} it", fillers)[0] == "C dries it"
    assert worded("C {verbs} it", {"verb": "turn over"})[0] == "C turns over it"
    assert worded("{gerund}", {"verb": "wrap"})[0] == "wrapping"


def test_forms_can_be_filled_and_tell_events_apart():
    assert len(QUESTION_FORMS) == 13
    for form in QUESTION_FORMS:
        assert form.key in UNIQUE_SLOTS
        assert form.key in EVENT_KINDS[form.kind].slots
        assert len(set(form.phrases)) == len(form.phrases) >= 2
