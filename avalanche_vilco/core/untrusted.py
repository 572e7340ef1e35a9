"""Pickles of others, read without running their code.

The public benchmark code hands out metadata as pickles. A pickle is a program: a
plain ``pickle.load`` runs whatever its author chose. :func:`load_untrusted` admits
NumPy arrays, scalars and dtypes and a few builtins, builds them with
checked functions of its own, and refuses everything else by name.
"""

from __future__ import annotations

import math
import pickle
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np
import numpy.typing as npt

from avalanche_vilco.core.errors import DataError

MAX_PICKLE_BYTES = 2**31
"""Largest file that is read; the official metadata has 373 MB."""
MAX_PICKLE_STEPS = 5_000_000
"""Most opcodes that are run. One byte of a pickle can make an object of 200 bytes,
so this bounds small objects to about 1 GB."""
MAX_COPY_FACTOR = 4
"""Calls of a pickle may copy this many times its size: one that hands the same bytes
to a thousand calls would grow a thousandfold."""

_MAX_PLAIN_ITEM_BYTES = 4096
_SMALL_BYTES = 4096
_HINT = "only arrays, tensors and builtins are read; ask its author for another form"


class _Refused(Exception):
    """A pickle asks for what is not admitted, or breaks a limit."""


def load_untrusted(path: Path | str) -> Any:
    """Read a pickle of protocol 0 to 5 that nobody vouches for, without its tensors.

    The bytes of one tensor at a time are held and forgotten.

    :param path: the file.
    :return: the object, with None in place of each tensor.
    :raises FileNotFoundError: no such file.
    :raises DataError: the pickle asks for anything else than arrays, tensors and
        builtins (the message names it), is truncated, damaged or over a limit.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no pickle at {path}")
    size = path.stat().st_size
    if size > MAX_PICKLE_BYTES:
        problem = f"the file has {size} bytes, more than {MAX_PICKLE_BYTES}"
        raise DataError(path, problem, hint="is it the right file?")
    with path.open("rb") as file:
        reader = _BoundedReader(file, size)
        try:
            return _RestrictedUnpickler(reader).load()
        except _Refused as error:
            raise DataError(path, str(error), hint=_HINT) from None
        except EOFError:
            problem = f"truncated: it ends at byte {size} in the middle of an object"
            raise DataError(path, problem, hint="fetch the file again") from None
        except Exception as error:  # damaged pickles raise almost anything
            first = str(error).strip().partition("\n")[0]
            problem = f"not a readable pickle: {type(error).__name__}: {first}"
            raise DataError(path, problem, hint=_HINT) from None


class _BoundedReader:
    """A file that never hands out, nor reserves memory for, more than it has."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self.size = size
        self.readline = file.readline

    def read(self, n: int) -> bytes:
        if not 0 <= n <= self.size - self._file.tell():
            raise EOFError
        return self._file.read(n)


class _Token(str):
    """Stands for a class that a pickle may name but not call."""


_NDARRAY = _Token("numpy.ndarray")
_DROPPED = _Token("a dropped tensor")


def _empty_array(subtype: Any, shape: Any, typecode: Any) -> npt.NDArray[Any]:
    """What NumPy's ``_reconstruct`` does for a plain array: its state comes later."""
    if subtype is not _NDARRAY or shape != (0,) or typecode not in (b"b", "b"):
        raise _Refused(f"expected a plain array but got {subtype!r} of shape {shape!r}")
    return np.empty(0, dtype=np.int8)


def _expect(value: Any, kind: Any, description: str) -> Any:
    if not isinstance(value, kind):
        raise _Refused(f"expected {description} but got a {type(value).__name__}")
    return value


def _plain_dtype(name: Any, align: Any = False, copy: Any = True) -> np.dtype[Any]:
    dtype = np.dtype(_expect(name, str, "the name of a dtype"))
    if dtype.kind not in "biufcSU" or not 0 < dtype.itemsize <= _MAX_PLAIN_ITEM_BYTES:
        raise _Refused(f"expected numbers or short text but got the dtype {name!r}")
    # A copy, because the byte order is set in place.
    return np.dtype(dtype.str, align=False, copy=True)


def _checked_dtype(dtype: Any) -> np.dtype[Any]:
    return _expect(dtype, np.dtype, "a dtype")


def _numpy_scalar(dtype: Any, content: Any) -> Any:
    data = _as_bytes(content)
    if len(data) != _checked_dtype(dtype).itemsize:
        raise _Refused(f"a scalar of {dtype} has {len(data)} bytes")
    return np.frombuffer(data, dtype=dtype)[0]


def _array_of_buffer(
    buffer: Any, dtype: Any, shape: Any, order: Any, axis_order: Any = None
) -> npt.NDArray[Any]:
    if order not in ("C", "F") or axis_order is not None:
        raise _Refused(f"expected an array in C or Fortran order but got {order!r}")
    flat = np.frombuffer(_as_bytes(buffer), dtype=_checked_dtype(dtype))
    return flat.reshape(shape, order=order)


def _as_bytes(content: Any) -> bytes:
    if isinstance(content, str):
        # Text of protocol 0 to 2, one character a byte.
        return content.encode("latin-1")
    return bytes(_expect(content, bytes | bytearray, "bytes"))


def _encode(text: Any, encoding: Any) -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise _Refused("expected text in latin-1 for bytes of an old pickle")
    return text.encode("latin-1")


def _bytearray(content: Any = b"", encoding: Any = None) -> bytearray:
    if encoding is not None:
        return bytearray(_encode(content, encoding))
    # Not a number: that would reserve memory without bytes in the file.
    return bytearray(_as_bytes(content))


def _bytes(content: Any = b"") -> bytes:
    if isinstance(content, list) and len(content) < _SMALL_BYTES:
        return bytes(content)
    return _as_bytes(content)


def _numbers(values: Any) -> tuple[int, ...]:
    if not isinstance(values, tuple) or not all(
        type(v) is int and v >= 0 for v in values
    ):
        raise _Refused(f"expected the sizes of a tensor but got {values!r}")
    return values


def _dropped_storage(content: Any) -> _Token:
    return _DROPPED


def _dropped_tensor(storage: Any, *ignored: Any) -> None:
    if storage is not _DROPPED:
        raise _Refused(f"expected a storage but got a {type(storage).__name__}")


_ADMITTED: dict[str, Any] = {
    "_codecs.encode": _encode,
    "builtins.bytearray": _bytearray,
    "builtins.bytes": _bytes,
    "builtins.complex": complex,
    "builtins.frozenset": frozenset,
    "builtins.set": set,
    "collections.OrderedDict": OrderedDict,
    "numpy.dtype": _plain_dtype,
    "numpy.ndarray": _NDARRAY,
    "numpy.core.multiarray._reconstruct": _empty_array,
    "numpy.core.multiarray.scalar": _numpy_scalar,
    "numpy.core.numeric._frombuffer": _array_of_buffer,
    "torch.storage._load_from_bytes": _dropped_storage,
    "torch._utils._rebuild_tensor": _dropped_tensor,
    "torch._utils._rebuild_tensor_v2": _dropped_tensor,
}
_ALIASES = {
    "__builtin__": "builtins",
    "numpy._core.multiarray": "numpy.core.multiarray",
    "numpy._core.numeric": "numpy.core.numeric",
}
"""Old and new names of modules."""


class _ForgetfulMemo(dict[int, Any]):
    """What a pickle may refer to again, without the bytes of tensors."""

    def __setitem__(self, index: int, value: Any) -> None:
        # Bytes come as themselves, and as an argument of a call.
        held = value[:2] if isinstance(value, tuple) else (value,)
        is_bulk = any(
            isinstance(v, bytes | str) and len(v) > _SMALL_BYTES for v in held
        )
        super().__setitem__(index, _DROPPED if is_bulk else value)


def _counted(load: Callable[..., Any]) -> Callable[[Any], None]:
    def counted(unpickler: Any) -> None:
        unpickler.steps += 1
        if unpickler.steps > MAX_PICKLE_STEPS:
            raise _Refused(f"refused, it takes more than {MAX_PICKLE_STEPS} steps")
        load(unpickler)

    return counted


class _RestrictedUnpickler(pickle._Unpickler):
    """The standard library's unpickler in Python, with doors closed.

    Closed are names, objects of classes, state set on objects, and memory. The
    unpickler in C cannot be held to a memory limit: one opcode with a large number
    makes it reserve gigabytes.
    """

    stack: list[Any]

    def __init__(self, file: _BoundedReader) -> None:
        super().__init__(file)  # type: ignore[arg-type]
        self.memo: dict[int, Any] = _ForgetfulMemo()
        self.steps = 0
        self._budget = MAX_COPY_FACTOR * file.size + 2**20

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ADMITTED[f"{_ALIASES.get(module, module)}.{name}"]
        except KeyError:
            raise _Refused(f"refused, it asks for {module}.{name}") from None

    def persistent_load(self, pid: Any) -> Any:
        raise _Refused("refused, it refers to objects outside the file")

    def get_extension(self, code: int) -> None:
        raise _Refused(f"refused, it asks for the registered extension {code}")

    def load_object(self) -> None:
        raise _Refused("refused, it makes objects of a class")

    def load_reduce(self) -> None:
        arguments = self.stack.pop()
        call = self.stack[-1]
        if isinstance(call, _Token) or not isinstance(arguments, tuple):
            raise _Refused(f"refused, it calls {call!r}")
        self._spend(arguments)
        self.stack[-1] = call(*arguments)

    def load_build(self) -> None:
        state = self.stack.pop()
        target = self.stack[-1]
        if isinstance(state, tuple):
            self._spend(state)
        if isinstance(target, np.ndarray):
            _set_array_state(target, state)
        elif isinstance(target, np.dtype):
            _set_dtype_state(target, state)
        else:
            name = getattr(target, "__name__", type(target).__name__)
            raise _Refused(f"refused, it sets the state of {name}")

    def load_bytearray8(self) -> None:
        length = int.from_bytes(self.read(8), "little")  # type: ignore[attr-defined]
        if length > sys.maxsize:
            raise EOFError
        self.stack.append(bytearray(self.read(length)))  # type: ignore[attr-defined]

    def _spend(self, values: tuple[Any, ...]) -> None:
        """Count what a call may copy."""
        self._budget -= sum(len(v) for v in values if hasattr(v, "__len__"))
        if self._budget < 0:
            raise _Refused(
                f"refused, it copies more than {MAX_COPY_FACTOR} times its size"
            )

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        code: _counted(load)  # type: ignore[arg-type]
        for code, load in {
            **pickle._Unpickler.dispatch,
            pickle.REDUCE[0]: load_reduce,
            pickle.BUILD[0]: load_build,
            pickle.BYTEARRAY8[0]: load_bytearray8,
            pickle.INST[0]: load_object,
            pickle.OBJ[0]: load_object,
            pickle.NEWOBJ[0]: load_object,
            pickle.NEWOBJ_EX[0]: load_object,
        }.items()
    }


def _set_array_state(array: npt.NDArray[Any], state: Any) -> None:
    if not isinstance(state, tuple) or len(state) != 5:
        raise _Refused("the state of an array is not what NumPy writes")
    version, shape, dtype, is_fortran, content = state
    shape, dtype, data = _numbers(shape), _checked_dtype(dtype), _as_bytes(content)
    if math.prod(shape) * dtype.itemsize != len(data):
        raise _Refused(f"an array of {shape} {dtype} has {len(data)} bytes")
    whole = (version, shape, dtype, bool(is_fortran), data)
    array.__setstate__(whole)  # type: ignore[arg-type]


def _set_dtype_state(dtype: np.dtype[Any], state: Any) -> None:
    """Set the byte order, all that a plain dtype's state may change.

    With other flags NumPy would take numbers for addresses.
    """
    version, order, *rest = np.dtype(dtype.str).__reduce__()[2]  # type: ignore[misc]
    orders = ("|",) if order == "|" else ("<", ">", "=")
    if not isinstance(state, tuple) or state not in [
        (version, one, *rest) for one in orders
    ]:
        raise _Refused(f"the state {state!r} of a dtype is not that of a plain one")
    dtype.__setstate__(state)  # type: ignore[attr-defined]
