"""Moment samples: what a dataset gives, and that reading changes nothing."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from avalanche_vilco.core.batch import collate_moments
from avalanche_vilco.data.features import FeatureFolder
from avalanche_vilco.data.moments import MomentClip, MomentDataset, MomentSample
from avalanche_vilco.data.text.narrations import ClipNarrations, Narration
from avalanche_vilco.ops.timeline import seconds_to_grid

FPS = 1.874
WINDOWS = [[[0.5, 4.0], [2.0, 30.0]], [], [[1.0, 1.5]]]
CHANNELS = [[3, 1], [], [1]]


def moment_sample(i: int) -> MomentSample:
    windows = np.array(WINDOWS[i], dtype=np.float64).reshape(-1, 2)
    channels = np.array(CHANNELS[i], dtype=np.int64)
    for array in (windows, channels):
        array.setflags(write=False)
    clip = MomentClip(f"clip{i}", "v", "train", 30.0 + i, FPS, windows, channels + 40)
    return MomentSample(clip, windows, channels, asked=(1, 3))


@pytest.fixture
def dataset(tmp_path: Path) -> MomentDataset:
    for i in range(3):
        np.save(tmp_path / f"clip{i}.npy", np.random.default_rng(i).random((56 + i, 4)))
    samples = [moment_sample(i) for i in range(3)]
    return MomentDataset(samples, FeatureFolder(tmp_path), n_queries=5)


def assert_equal(one: dict, other: dict) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].dtype == other[name].dtype, name
        assert torch.equal(one[name], other[name]), name


def test_inputs_are_features_and_their_steps(dataset, tmp_path):
    inputs, _ = dataset[0]
    stored = np.load(tmp_path / "clip0.npy")
    assert torch.equal(inputs["features"], torch.from_numpy(stored).float())
    assert inputs["valid"].tolist() == [True] * 56


def test_targets_are_windows_in_seconds_and_steps(dataset):
    _, targets = dataset[0]
    assert targets["segments_sec"].tolist() == WINDOWS[0]
    steps = torch.tensor(WINDOWS[0], dtype=torch.float64) * FPS - 0.5
    torch.testing.assert_close(targets["segments"], steps.float())
    assert targets["labels"].tolist() == [3, 1]
    assert targets["asked"].tolist() == [False, True, False, True, False]
    assert targets["duration_sec"].item() == 30.0
    assert targets["features_per_sec"].item() == FPS


def test_clip_without_windows_is_a_legal_negative(dataset):
    _, targets = dataset[1]
    assert targets["segments"].shape == targets["segments_sec"].shape == (0, 2)
    assert targets["labels"].shape == (0,)
    assert targets["labels"].dtype == torch.int64


def test_every_sample_knows_its_position(dataset):
    assert [targets["sample"].item() for _, targets in dataset] == [0, 1, 2]
    assert dataset[-1][1]["sample"].item() == 2


def test_index_beyond_the_data_is_refused(dataset):
    for index in (3, -4):
        with pytest.raises(IndexError):
            dataset[index]


def test_two_reads_of_a_sample_are_equal(dataset):
    for i in range(len(dataset)):
        for one, other in zip(dataset[i], dataset[i], strict=True):
            assert_equal(one, other)


def test_writing_into_a_sample_reaches_no_shared_record(dataset):
    for part in dataset[0]:
        for tensor in part.values():
            tensor.zero_()
    inputs, targets = dataset[0]
    assert inputs["features"].abs().sum() > 0
    assert targets["segments_sec"].tolist() == WINDOWS[0]
    assert targets["labels"].tolist() == CHANNELS[0]
    assert dataset.samples[0].windows_sec.tolist() == WINDOWS[0]


def test_dataset_can_be_pickled_and_is_small(dataset):
    stored = pickle.dumps(dataset)
    assert len(stored) < 5000
    for ours, theirs in zip(dataset, pickle.loads(stored), strict=True):
        assert_equal(ours[0], theirs[0])
        assert_equal(ours[1], theirs[1])


class _Told:
    """Stands in for a narration store: what is asked of it, and two sentences."""

    clip_ids = ("clip0",)

    def of_clip(self, clip_id):
        told = [(1.0, 2.0, "a", "C cuts"), (3.0, 3.0, "b", "c  CUTS"), (9, 9, "c", "")]
        rows = [Narration(s, e, q, "clip0", text) for s, e, q, text in told]
        return tuple(rows) if clip_id == "clip0" else ()

    def features(self, query_id):
        return torch.full((2, 3), float(ord(query_id))) + torch.tensor([[0.0], [1.0]])


def test_sentences_come_as_means_of_tokens_with_grid_windows(dataset):
    told = ClipNarrations(_Told())
    narrated = MomentDataset(dataset.samples, dataset.store, 5, told)
    inputs, _ = narrated[0]
    means = [[ord(letter) + 0.5] * 3 for letter in "abc"]
    assert inputs["narrations"].tolist() == means
    expected = seconds_to_grid(torch.tensor([[1.0, 2.0], [3.0, 3.0], [9.0, 9.0]]), FPS)
    torch.testing.assert_close(inputs["narrated"], expected.float())
    first, second, third = inputs["sentences"].tolist()
    assert first == second != third and min(first, third) >= 0
    assert torch.equal(narrated[0][0]["narrations"], inputs["narrations"])


def test_batch_marks_places_without_a_sentence(dataset):
    narrated = MomentDataset(dataset.samples, dataset.store, 5, ClipNarrations(_Told()))
    clips = collate_moments([(*narrated[i], 0) for i in range(2)])[0]
    assert clips.narrations.shape == (2, 3, 3) and clips.narrated.shape == (2, 3, 2)
    assert (clips.sentences[1] == -1).all() and (clips.sentences[0] >= 0).all()
    silent = collate_moments([(*dataset[0], 0)])[0]
    assert silent.narrations is None
    joined = torch.cat([silent, clips])
    assert (joined.sentences[0] == -1).all() and len(joined) == 3


def test_clip_with_many_sentences_shows_some_spread_in_time(dataset):
    told = ClipNarrations(_Told(), max_sentences=2)
    _, windows, _ = told.of_clip("clip0")
    assert windows.tolist() == [[1.0, 2.0], [9.0, 9.0]]
    with pytest.raises(ValueError, match="max_sentences >= 1 but got 0"):
        ClipNarrations(_Told(), max_sentences=0)


def test_kept_sentences_do_not_travel_in_a_pickle(dataset):
    told = ClipNarrations(_Told())
    expected = told.of_clip("clip0")
    assert told._cache and not pickle.loads(pickle.dumps(told))._cache
    full = ClipNarrations(_Told(), cache_bytes=0)
    for one, other in zip(full.of_clip("clip0"), expected, strict=True):
        assert torch.equal(one, other)
    assert not full._cache
