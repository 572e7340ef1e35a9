"""Batch objects answer what Avalanche asks of tensors."""

import copy
import pickle
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from avalanche_vilco.core.batch import (
    ClipBatch,
    MomentTargets,
    TensorBatch,
    collate_as,
    collate_moments,
)

C, K = 3, 4


def sample(steps: int, n_windows: int, index: int = 0) -> tuple[dict, dict]:
    generator = torch.Generator().manual_seed(index)
    valid = torch.ones(steps, dtype=torch.bool)
    inputs = {"features": torch.randn(steps, C, generator=generator), "valid": valid}
    windows = torch.rand(n_windows, 2, generator=generator, dtype=torch.float64)
    targets = {
        "valid": valid,
        "segments": windows.float(),
        "segments_sec": windows,
        "labels": torch.arange(n_windows) % K,
        "asked": torch.arange(K) == index % K,
        "duration_sec": torch.tensor(steps / 2, dtype=torch.float64),
        "features_per_sec": torch.tensor(2.0, dtype=torch.float64),
        "sample": torch.tensor(index),
    }
    return inputs, targets


def batch(*sizes: tuple[int, int], first: int = 0) -> tuple[ClipBatch, MomentTargets]:
    samples = [sample(*size, index=first + i) for i, size in enumerate(sizes)]
    return tuple(collate_moments(samples))


def assert_same(ours: TensorBatch, theirs: TensorBatch) -> None:
    assert type(ours) is type(theirs)
    for name, tensor in ours.fields().items():
        other = theirs.fields()[name]
        assert tensor.dtype == other.dtype, name
        assert torch.equal(tensor, other), name


BOTH = pytest.mark.parametrize("which", [0, 1], ids=["inputs", "targets"])
SIZES = ((5, 2), (9, 0), (3, 4), (1, 1))


@pytest.fixture
def both() -> tuple[ClipBatch, MomentTargets]:
    return batch(*SIZES)


def test_mixed_lengths_keep_each_samples_content(both):
    clips, targets = both
    assert clips.features.shape == (4, 9, C)
    assert targets.segments.shape == (4, 4, 2)
    for i, (steps, n_windows) in enumerate(SIZES):
        inputs, wanted = sample(steps, n_windows, i)
        assert torch.equal(clips.features[i, :steps], inputs["features"])
        assert not clips.features[i, steps:].any()
        for bundle in (clips, targets):
            assert bundle.valid[i].tolist() == [j < steps for j in range(9)]
        for name in ("segments", "segments_sec", "labels"):
            assert torch.equal(getattr(targets, name)[i, :n_windows], wanted[name])
        assert (targets.labels[i, n_windows:] == -1).all()
        for name in ("asked", "duration_sec", "features_per_sec", "sample"):
            assert torch.equal(getattr(targets, name)[i], wanted[name])


def test_dtypes_are_those_documented(both):
    clips, targets = both
    assert clips.features.dtype == torch.float32
    assert clips.valid.dtype == targets.valid.dtype == targets.asked.dtype == torch.bool
    assert targets.segments.dtype == torch.float32
    assert targets.segments_sec.dtype == targets.duration_sec.dtype == torch.float64
    assert targets.labels.dtype == targets.sample.dtype == torch.int64


def test_no_clip_of_the_batch_needs_a_window():
    _, targets = batch((5, 0), (3, 0))
    assert targets.segments.shape == (2, 0, 2)
    assert targets.labels.shape == (2, 0)
    assert targets[1:].labels.shape == (1, 0)


def test_attributes_follow_as_tensors():
    samples = [(*sample(3, 1, i), i * 2) for i in range(3)]
    *_, labels = collate_moments(samples)
    assert torch.equal(labels, torch.tensor([0, 2, 4]))


def test_collating_copies_and_leaves_samples_alone():
    one, other = sample(5, 2), sample(5, 2, 1)
    clips, targets = collate_moments([one, other])
    clips.features.zero_()
    targets.segments_sec.zero_()
    assert one[0]["features"].abs().sum() > 0
    assert one[1]["segments_sec"].abs().sum() > 0


@BOTH
def test_size_is_that_of_dim_0(which, both):
    bundle = both[which]
    assert len(bundle) == bundle.size(0) == bundle.shape[0] == 4
    assert bundle.size() == bundle.shape == torch.Size([4])
    assert bundle.device == torch.device("cpu")


INDICES: list[tuple[str, object, Sequence[int]]] = [
    ("int", 2, [2]),
    ("negative int", -1, [3]),
    ("0-d tensor", torch.tensor(1), [1]),
    ("numpy int", torch.tensor(1).numpy()[()], [1]),
    ("slice", slice(1, 3), [1, 2]),
    ("stepped slice", slice(None, None, 2), [0, 2]),
    ("list", [3, 0, 0], [3, 0, 0]),
    ("range", range(2, 4), [2, 3]),
    ("list of bools", [True, False, False, True], [0, 3]),
    ("bool mask", torch.tensor([False, True, False, True]), [1, 3]),
    ("LongTensor", torch.tensor([2, -1]), [2, 3]),
    ("permutation", torch.tensor([3, 2, 1, 0]), [3, 2, 1, 0]),
    ("empty list", [], []),
    ("empty slice", slice(2, 2), []),
    ("mask of nothing", torch.zeros(4, dtype=torch.bool), []),
]


@BOTH
@pytest.mark.parametrize(
    ("index", "rows"), [row[1:] for row in INDICES], ids=[row[0] for row in INDICES]
)
def test_index_picks_clips_and_keeps_dim_0(index, rows, which, both):
    picked = both[which][index]
    assert len(picked) == len(rows)
    for name, tensor in picked.fields().items():
        expected = both[which].fields()[name][list(rows)]
        assert torch.equal(tensor, expected), name


@BOTH
@pytest.mark.parametrize("index", [4, -5, torch.tensor(4), torch.tensor([0, 4])])
def test_index_beyond_the_batch_is_refused(index, which, both):
    with pytest.raises(IndexError):
        both[which][index]


@BOTH
def test_iterating_gives_batches_of_one(which, both):
    singles = list(both[which])
    assert [len(single) for single in singles] == [1, 1, 1, 1]
    assert_same(torch.cat(singles), both[which])


@BOTH
def test_clone_and_deepcopy_share_nothing(which, both):
    for copied in (both[which].clone(), copy.deepcopy(both[which])):
        assert_same(copied, both[which])
        for name, tensor in copied.fields().items():
            assert tensor.data_ptr() != both[which].fields()[name].data_ptr()


@BOTH
def test_pickle_round_trip(which, both):
    assert_same(pickle.loads(pickle.dumps(both[which])), both[which])


def test_detach_cuts_from_the_graph(both):
    clips = both[0].clone()
    clips.features.requires_grad_()
    assert not clips.detach().features.requires_grad
    assert clips.clone().features.requires_grad


@BOTH
@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        (("cpu",), {}),
        ((torch.device("cpu"),), {"non_blocking": True}),
        ((), {"device": "cpu"}),
        ((torch.float16,), {}),
        (("cpu", torch.float16), {}),
    ],
)
def test_moving_never_changes_a_dtype(args, kwargs, which, both):
    assert_same(both[which].to(*args, **kwargs), both[which])
    assert_same(both[which].cpu(), both[which])


def test_moving_reaches_every_field(both):
    for bundle in both:
        moved = bundle.to("meta", non_blocking=True)
        assert {t.device.type for t in moved.fields().values()} == {"meta"}
        assert moved.device.type == "meta"
        assert bundle.device.type == "cpu"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="pinning memory needs CUDA")
def test_pinned_batch_is_the_same(both):
    for bundle in both:
        pinned = bundle.pin_memory()
        assert all(tensor.is_pinned() for tensor in pinned.fields().values())
        assert_same(pinned, bundle)


@BOTH
@pytest.mark.parametrize("join", [torch.cat, torch.concat])
def test_cat_pads_ragged_clips_as_collating_does(join, which):
    first, second = batch((5, 2), (2, 0)), batch((9, 1), (3, 4), first=2)
    whole = batch((5, 2), (2, 0), (9, 1), (3, 4))
    assert_same(join([first[which], second[which]]), whole[which])
    assert_same(join((first[which], second[which]), dim=0), whole[which])


@BOTH
def test_cat_of_a_batch_with_an_empty_one_is_the_batch(which, both):
    assert_same(torch.cat([both[which], both[which][[]]]), both[which])


@BOTH
def test_cat_keeps_its_parts_apart(which, both):
    joined = torch.cat([both[which], both[which]])
    for name, tensor in joined.fields().items():
        assert tensor.data_ptr() != both[which].fields()[name].data_ptr()


def test_cat_along_another_dim_or_of_other_things_is_refused(both):
    clips, targets = both
    with pytest.raises(ValueError, match="expected dim 0 but got 1"):
        torch.cat([clips, clips], dim=1)
    with pytest.raises(TypeError):
        torch.cat([clips, targets])
    with pytest.raises(TypeError, match="one class but got"):
        torch.cat([clips, torch.zeros(4)])


def test_what_is_no_tensor_operation_of_ours_is_refused(both):
    with pytest.raises(TypeError):
        torch.stack([both[0], both[0]])


def test_unknown_or_absent_field_is_refused():
    with pytest.raises(TypeError, match=r"expected fields \['features', 'valid'\]"):
        ClipBatch(features=torch.zeros(1, 2, 3))
    with pytest.raises(TypeError, match="'lengths'"):
        ClipBatch(
            features=torch.zeros(1, 2, 3),
            valid=torch.ones(1, 2, dtype=torch.bool),
            lengths=torch.ones(1),
        )


def test_fields_of_unequal_batch_size_are_refused():
    with pytest.raises(ValueError, match="'features': 2, 'valid': 1"):
        ClipBatch(
            features=torch.zeros(2, 2, 3), valid=torch.ones(1, 2, dtype=torch.bool)
        )


def test_printed_batch_shows_shapes(both):
    shown = f"ClipBatch(features=(4, 9, {C}), valid=(4, 9), device=cpu)"
    assert repr(both[0]) == shown
    assert repr(ClipBatch.__new__(ClipBatch)) == "ClipBatch()"


@pytest.mark.parametrize(
    ("dtype", "filler"), [(torch.float32, 0.0), (torch.int64, -1), (torch.bool, False)]
)
def test_stacking_fills_at_the_end_of_each_dim(dtype, filler):
    tensors: list[Tensor] = [torch.ones(2, 1, dtype=dtype), torch.ones(1, 3).to(dtype)]
    kind = type("Filled", (TensorBatch,), {"padding": {"values": filler}})
    samples = [({"values": values}, {"values": values}) for values in tensors]
    stacked = collate_as(kind, kind, samples)[0].values
    assert stacked.shape == (2, 2, 3)
    assert stacked.dtype == dtype
    assert stacked[0].tolist() == [[1, filler, filler], [1, filler, filler]]
    assert stacked[1].tolist() == [[1, 1, 1], [filler] * 3]


def showing(*shown: bool, steps: int = 2) -> ClipBatch:
    return ClipBatch(
        features=torch.zeros(1, steps, C),
        valid=torch.ones(1, steps, dtype=torch.bool),
        shown=torch.tensor([shown]),
    )


def test_absent_field_is_none_and_stays_absent() -> None:
    (inputs, _) = batch((2, 1), (3, 1))
    for each in (inputs, inputs[[0]], inputs.clone(), torch.cat([inputs, inputs])):
        assert each.shown is None
        assert each.fields().keys() == {"features", "valid"}


def test_a_clip_without_the_field_shows_everything_beside_one_with_it() -> None:
    (inputs, _) = batch((2, 1), (3, 1))
    joined = torch.cat([inputs, showing(True, False, False)])
    assert joined.shown.tolist() == [[True] * 3, [True] * 3, [True, False, False]]
    wider = torch.cat([showing(False), showing(False, False)])
    assert wider.shown.tolist() == [[False, True], [False, False]]
    assert joined[[2]].to("cpu").shown.tolist() == [[True, False, False]]


def test_collation_keeps_the_field_where_any_sample_has_it() -> None:
    plain = {"features": torch.zeros(2, C), "valid": torch.ones(2, dtype=torch.bool)}
    chosen = {**plain, "shown": torch.tensor([True, False])}
    targets = {n: t[0] for n, t in batch((2, 1))[1].fields().items()}
    (both, _) = collate_moments([(plain, targets), (chosen, targets)])
    assert both.shown.tolist() == [[True, True], [True, False]]
    (neither, _) = collate_moments([(plain, targets), (plain, targets)])
    assert neither.shown is None
