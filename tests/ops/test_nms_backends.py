"""The three loops pick the same windows."""

from importlib.util import find_spec

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from avalanche_vilco.ops.nms import backend_numba, hard_nms, soft_nms

OTHERS = ["numpy", "numba"] if find_spec("numba") else ["numpy"]

# Few starts, lengths and scores, so that windows, scores and tIoU tie.
FEW = st.tuples(
    st.integers(0, 12),
    st.integers(-1, 8),
    st.sampled_from([0.0, 0.25, 0.5, 0.5000001, 1.0, float("nan")]),
    st.integers(-1, 3),
)
MANY = st.tuples(
    st.floats(0, 100, width=32),
    st.floats(0, 50, width=32),
    st.floats(0, 1, width=32),
    st.integers(-1, 3),
)
OPTIONS = st.fixed_dictionaries(
    {
        "iou_threshold": st.sampled_from([0.0, 0.25, 0.5, 1.0]) | st.floats(0, 1),
        "min_score": st.sampled_from([0.0, 0.25, 0.4]),
        "max_segments": st.none() | st.integers(0, 30),
        "max_per_label": st.none() | st.integers(0, 4),
    }
)


def clips_of(rows):
    table = torch.tensor(rows, dtype=torch.float64).reshape(1, -1, 4)
    segments = torch.stack([table[..., 0], table[..., 0] + table[..., 1]], dim=2)
    # The second clip is the first the other way round, with fewer labels.
    segments = torch.cat([segments, segments.flip(1)])
    scores = torch.cat([table[..., 2], table[..., 2].flip(1)])
    labels = torch.cat([table[..., 3], table[..., 3].flip(1).clamp(max=1)]).long()
    return segments, scores, labels


def assert_all_equal(nms, arguments, **options):
    indices, scores = nms(*arguments, **options, backend="torch")
    assert not scores.isnan().any()
    for backend in OTHERS:
        found = nms(*arguments, **options, backend=backend)
        assert found[0].tolist() == indices.tolist()
        torch.testing.assert_close(found[1], scores, rtol=2e-7, atol=0)


@pytest.mark.parametrize("method", ["gaussian", "linear", "vanilla"])
@settings(max_examples=80, deadline=None)
@given(
    rows=st.lists(FEW, max_size=20) | st.lists(MANY, max_size=20),
    options=OPTIONS,
    sigma=st.floats(0.01, 4),
)
def test_soft_picks_are_the_same(method, rows, options, sigma):
    assert_all_equal(soft_nms, clips_of(rows), method=method, sigma=sigma, **options)


@settings(max_examples=80, deadline=None)
@given(rows=st.lists(FEW, max_size=20) | st.lists(MANY, max_size=20), options=OPTIONS)
def test_hard_picks_are_the_same(rows, options):
    assert_all_equal(hard_nms, clips_of(rows), **options)


@pytest.mark.parametrize(("n", "n_labels"), [(3000, 1), (3000, 40), (3000, 3000)])
def test_picks_are_the_same_at_the_size_of_a_clip(n, n_labels):
    draw = torch.Generator().manual_seed(n_labels)
    starts = torch.rand(2, n, generator=draw) * 480
    lengths = torch.rand(2, n, generator=draw) * 60
    segments = torch.stack([starts, starts + lengths], dim=2)
    scores = torch.rand(2, n, generator=draw)
    labels = torch.randint(n_labels, (2, n), generator=draw)
    assert_all_equal(soft_nms, (segments, scores, labels), sigma=0.99, min_score=1e-4)


@pytest.mark.parametrize("backend", ["torch", *OTHERS])
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 40))
def test_the_order_of_candidates_does_not_matter_without_ties(backend, seed, n):
    draw = torch.Generator().manual_seed(seed)
    starts = torch.rand(1, n, generator=draw) * 60
    segments = torch.stack(
        [starts, starts + 30 * torch.rand(1, n, generator=draw)], dim=2
    )
    scores = (torch.randperm(n, generator=draw) + torch.rand(n, generator=draw)) / n
    labels = torch.randint(-1, 3, (1, n), generator=draw)
    order = torch.randperm(n, generator=draw)
    options = {"min_score": 0.1, "max_segments": 10, "backend": backend}
    indices, kept = soft_nms(segments, scores[None], labels, **options)
    shuffled, again = soft_nms(
        segments[:, order], scores[None, order], labels[:, order], **options
    )
    assert torch.equal(kept, again)
    assert torch.where(shuffled >= 0, order[shuffled], -1).tolist() == indices.tolist()


def test_numpy_picks_where_numba_is_absent(monkeypatch):
    monkeypatch.setattr(backend_numba, "_kernels", lambda: None)
    arguments = torch.tensor([[[0.0, 1.0]]]), torch.tensor([[0.5]])
    assert soft_nms(*arguments, max_segments=1)[0].tolist() == [[0]]
    with pytest.raises(ImportError, match=r"pip install 'avalanche-vilco\[fast\]'"):
        soft_nms(*arguments, backend="numba")


@pytest.mark.skipif(OTHERS == ["numpy"], reason="needs numba")
def test_code_is_compiled_where_no_folder_can_keep_it(monkeypatch):
    from avalanche_vilco.ops.nms import kernels

    compile_one = kernels.njit

    def refuse_to_keep(*, cache=False, **options):
        if cache:
            raise RuntimeError("no locator available")
        return compile_one(**options)

    monkeypatch.setattr(kernels, "njit", refuse_to_keep)
    assert kernels.compiled(lambda x: x + 1)(1) == 2
