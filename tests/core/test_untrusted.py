"""Pickles of others: what they hold is read, what they would run is refused."""

import io
import os
import pickle
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from avalanche_vilco.core import untrusted
from avalanche_vilco.core.errors import DataError
from avalanche_vilco.core.untrusted import load_untrusted

PROTOCOLS = range(2, 6)


def save(folder: Path, content: Any, protocol: int = 4) -> Path:
    path = folder / "some.pkl"
    data = content if isinstance(content, bytes) else pickle.dumps(content, protocol)
    path.write_bytes(data)
    return path


def values() -> dict[str, Any]:
    return {
        "matrix": np.arange(6, dtype=np.float32).reshape(3, 2),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "text": np.array(["a", "bcd"]),
        "flags": np.array([True, False]),
        "empty": np.zeros((0, 2), dtype=np.float32),
        "numbers": [np.int64(7), np.float32(0.5), np.bool_(True), np.str_("é")],
        "tensor": torch.arange(6.0).reshape(2, 3).t(),
        "half": torch.ones(3, dtype=torch.float16),
        "mask": torch.tensor([True, False]),
        "scalar": torch.tensor(3),
        "nothing": torch.zeros(0, 4),
        "plain": [None, 1, 2.5, "x", b"\xff", (1, 2), {3}, frozenset({4}), 1j],
        "bytearray": bytearray(b"\xff\x00"),
        "ordered": OrderedDict(b=1, a=2),
    }


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, np.ndarray):
        assert np.array_equal(one, other) and one.dtype == other.dtype
        assert one.flags.f_contiguous == other.flags.f_contiguous
    elif isinstance(one, list):
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    else:
        assert one == other


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_arrays_and_builtins_are_read_as_pickle_reads_them(tmp_path, protocol):
    data = pickle.dumps(values(), protocol)
    ours, theirs = load_untrusted(save(tmp_path, data)), pickle.loads(data)
    assert list(ours) == list(theirs)
    for name, value in theirs.items():
        assert_same(ours[name], None if isinstance(value, torch.Tensor) else value)


@pytest.mark.parametrize("module", ["numpy.core", "numpy._core"])
def test_arrays_of_old_and_new_numpy_are_read(tmp_path, module):
    data = pickle.dumps(np.arange(3), protocol=2)
    found = b"numpy._core" if b"numpy._core" in data else b"numpy.core"
    data = data.replace(found, module.encode())
    assert load_untrusted(save(tmp_path, data)).tolist() == [0, 1, 2]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_tensors_are_dropped(tmp_path, protocol):
    shared = torch.rand(40, 40)
    content = {"a": shared, "b": [shared, 1], "array": np.ones(3)}
    read = load_untrusted(save(tmp_path, content, protocol))
    assert read["a"] is None and read["b"] == [None, 1]
    assert read["array"].tolist() == [1, 1, 1]


def test_dropped_tensors_leave_no_bytes_behind(tmp_path):
    path = save(tmp_path, [torch.rand(512, 512) for _ in range(4)])
    with path.open("rb") as file:
        reader = untrusted._BoundedReader(file, path.stat().st_size)
        unpickler = untrusted._RestrictedUnpickler(reader)
        unpickler.load()
    kept = [v for v in unpickler.memo.values() if isinstance(v, bytes | tuple)]
    assert len(pickle.dumps(kept)) < 10_000


class Call:
    """Pickles as a call of a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple:
        return self.call


REFUSED = {
    "a shell": (Call(os.system, "true"), f"{os.name}.system"),
    "eval": (Call(eval, "1"), ".eval"),
    "exec": (Call(exec, "1"), ".exec"),
    "getattr": (Call(getattr, "", "x"), ".getattr"),
    "a file": (Call(open, "x"), "io.open"),
    "a class of ours": (Path("x"), "pathlib"),
    "an exception": (ValueError("x"), ".ValueError"),
    "torch.load": (Call(torch.load, "x"), "torch.serialization.load"),
    "a module": (torch.nn.Linear(1, 1), "torch.nn.modules.linear.Linear"),
    "a parameter": (torch.nn.Parameter(torch.ones(1)), "_rebuild_parameter"),
    "an object array": (np.array([None, {}], dtype=object), "dtype 'O8'"),
    "a record array": (np.zeros(2, dtype=[("a", "i4")]), "dtype"),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("case", REFUSED)
def test_everything_else_is_refused_by_name(tmp_path, case, protocol):
    content, name = REFUSED[case]
    path = save(tmp_path, {"id": content}, protocol)
    with pytest.raises(DataError) as caught:
        load_untrusted(path)
    assert str(path) in str(caught.value)
    assert name in str(caught.value)


def test_refused_function_is_not_run(tmp_path):
    victim = tmp_path / "victim"
    path = save(tmp_path, Call(os.mkdir, str(victim)))
    with pytest.raises(DataError, match=r"refused, it asks for \w+\.mkdir"):
        load_untrusted(path)
    assert not victim.exists()


def test_pickle_inside_a_tensors_bytes_is_not_run(tmp_path):
    victim = tmp_path / "victim"
    inner = pickle.dumps(Call(os.mkdir, str(victim)))
    path = save(tmp_path, Call(torch.storage._load_from_bytes, inner))
    load_untrusted(path)
    assert not victim.exists()


SET_DICT = b"}(X\x01\x00\x00\x00aK\x01ub"
TRICKS = {
    "state on a function": b"c_codecs\nencode\n" + SET_DICT,
    "state on a set": b"cbuiltins\nset\n)R" + SET_DICT,
    "state on an OrderedDict": b"ccollections\nOrderedDict\n)R" + SET_DICT,
    "an object of a class": b"cbuiltins\nset\n)\x81.",
    "an instance": b"(ibuiltins\nset\n.",
    "an array of any shape": b"cnumpy\nndarray\n(J\xff\xff\xff\x7ftR.",
    "bytes by number": b"cbuiltins\nbytearray\n(J\xff\xff\xff\x7ftR.",
    "an extension": b"\x82\x01.",
    "a persistent id": b"K\x01Q.",
    "a dotted name": b"\x8c\x08builtins\x8c\x10set.__subclasses__\x93.",
}


@pytest.mark.parametrize("case", TRICKS)
def test_trick_is_refused(tmp_path, case):
    with pytest.raises(DataError, match=r"refused|expected bytes"):
        load_untrusted(save(tmp_path, b"\x80\x04" + TRICKS[case]))


def array_pickle(shape: tuple, dtype: str, data: bytes, state: Any = None) -> bytes:
    """A pickled array of any state, protocol 2."""
    out = io.BytesIO()
    pickler = pickle._Pickler(out, protocol=2)
    pickler.write(b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n")
    pickler.write(b"cnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01")
    pickler.save(shape)
    pickler.write(b"cnumpy\ndtype\n")
    pickler.save((dtype, False, True))
    pickler.write(b"R")
    pickler.save(state or (3, "<", None, None, None, -1, -1, 0))
    pickler.write(b"b\x89")
    pickler.write(b"B" + struct.pack("<I", len(data)) + data + b"tb.")
    return out.getvalue()


def test_arrays_made_by_hand_are_read(tmp_path):
    path = save(tmp_path, array_pickle((2,), "f4", struct.pack("<2f", 1, 2)))
    assert load_untrusted(path).tolist() == [1, 2]


EIGHT = b"\0" * 8
ARRAYS = {
    "fewer bytes than values": ((4,), "f4", "has 8 bytes"),
    "a shape of 8 TB": ((10**12,), "f8", "has 8 bytes"),
    "a negative shape": ((-2,), "f4", "sizes of a tensor"),
    "objects": ((1,), "O", "dtype 'O'"),
    "huge text": ((1,), "U99999999", "dtype 'U99999999'"),
    "void": ((1,), "V8", "dtype 'V8'"),
}
STATES = {
    "fields": ("f8", (3, "<", None, ("a",), {"a": 1}, 8, 1, 0)),
    "flags": ("f8", (3, "<", None, None, None, -1, -1, 63)),
    "a byte order of a single byte": ("u1", (3, "<", None, None, None, -1, -1, 0)),
    "another size": ("f8", (3, "<", None, None, None, 800, 1, 0)),
}


@pytest.mark.parametrize("case", ARRAYS)
def test_array_that_does_not_fit_its_bytes_is_refused(tmp_path, case):
    shape, dtype, problem = ARRAYS[case]
    with pytest.raises(DataError, match=problem):
        load_untrusted(save(tmp_path, array_pickle(shape, dtype, EIGHT)))


@pytest.mark.parametrize("case", STATES)
def test_state_of_a_dtype_that_is_not_plain_is_refused(tmp_path, case):
    dtype, state = STATES[case]
    shape = (8 // np.dtype(dtype).itemsize,)
    with pytest.raises(DataError, match="not that of a plain one"):
        load_untrusted(save(tmp_path, array_pickle(shape, dtype, EIGHT, state)))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_cut_anywhere_is_one_named_error(tmp_path, protocol):
    data = pickle.dumps(values(), protocol)
    for end in range(0, len(data), 37):
        path = save(tmp_path, data[:end])
        with pytest.raises(DataError) as caught:
            load_untrusted(path)
        assert str(path) in str(caught.value)


def test_truncation_says_where(tmp_path):
    data = pickle.dumps(np.zeros(1000), protocol=4)
    with pytest.raises(DataError, match="truncated: it ends at byte 400"):
        load_untrusted(save(tmp_path, data[:400]))


LONG = struct.pack("<Q", 2**40)
BOMBS = {
    "bytes of a terabyte": b"\x8e" + LONG,
    "text of a terabyte": b"\x8d" + LONG,
    "a bytearray of a terabyte": b"\x96" + LONG,
    "a frame of a terabyte": b"\x95" + LONG,
    "a number of two gigabytes": b"\x8b\xff\xff\xff\x7f",
}


@pytest.mark.parametrize("case", BOMBS)
def test_length_beyond_the_file_reserves_nothing(tmp_path, case):
    with pytest.raises(DataError, match="truncated"):
        load_untrusted(save(tmp_path, b"\x80\x05" + BOMBS[case]))


def test_memo_index_of_four_billion_reserves_nothing(tmp_path):
    assert load_untrusted(save(tmp_path, b"\x80\x04Nr\xff\xff\xff\xff.")) is None


def test_more_steps_than_the_limit_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(untrusted, "MAX_PICKLE_STEPS", 1000)
    with pytest.raises(DataError, match="more than 1000 steps"):
        load_untrusted(save(tmp_path, b"\x80\x04(" + b"\x8f" * 2000 + b"t."))


def test_bytes_copied_over_and_over_are_refused(tmp_path):
    block = b"B" + struct.pack("<I", 4096) + bytes(4096) + b"q\x00"
    copies = b"cbuiltins\nbytearray\nh\x00\x85R" * 400
    with pytest.raises(DataError, match="copies more than 4 times its size"):
        load_untrusted(save(tmp_path, b"\x80\x04" + block + copies + b"."))


def test_file_over_the_size_limit_is_refused_unread(tmp_path, monkeypatch):
    monkeypatch.setattr(untrusted, "MAX_PICKLE_BYTES", 10)
    with pytest.raises(DataError, match="more than 10"):
        load_untrusted(save(tmp_path, list(range(100))))


def test_deep_nesting_is_no_crash(tmp_path):
    data = b"\x80\x04" + b"]" * 50_000 + b"a" * 49_999 + b"."
    read = load_untrusted(save(tmp_path, data))
    assert isinstance(read, list)


def test_absent_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no pickle at .*gone\.pkl"):
        load_untrusted(tmp_path / "gone.pkl")


@settings(max_examples=300)
@given(st.binary(max_size=60), st.integers(0, 400), st.sampled_from(PROTOCOLS))
def test_any_bytes_are_read_or_refused(tmp_path, noise, spot, protocol):
    whole = pickle.dumps({"a": np.arange(3), "b": [np.int64(1)]}, protocol)
    data = whole[:spot] + noise + whole[spot + len(noise) :]
    try:
        load_untrusted(save(tmp_path, data))
    except DataError as error:
        assert "some.pkl" in str(error)
