"""Options given by name, checked against a signature before anything is read.

What an option may be is said where it is declared: by the type of a parameter or
field, and by ``Annotated[float, msgspec.Meta(ge=0, lt=1)]`` for a range.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import operator
import sys
import types
import typing
from collections.abc import Callable, Collection, Mapping
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from typing_extensions import Unpack, get_protocol_members

from avalanche_vilco.core.errors import SettingError
from avalanche_vilco.core.registry import close_names


def option_types(target: Any) -> dict[str, Any]:
    """Type of each option by name.

    :param target: function, class, dataclass or ``TypedDict``. Parameters without a
        type take anything; ``**options: Unpack[...]`` are those of its ``TypedDict``.
    """
    target = inspect.unwrap(target)
    if typing.is_typeddict(target) or dataclasses.is_dataclass(target):
        return typing.get_type_hints(target, include_extras=True)
    function = target.func if isinstance(target, functools.partial) else target
    function = function.__init__ if inspect.isclass(function) else function
    hints = typing.get_type_hints(function, include_extras=True)
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    found: dict[str, Any] = {}
    for name, parameter in inspect.signature(target).parameters.items():
        if parameter.kind in named:
            found[name] = hints.get(name, Any)
        elif get_origin(hints.get(name)) is Unpack:
            found.update(option_types(*get_args(hints[name])))
    return found


def check_options(
    owner: str,
    given: Mapping[str, Any],
    known: Mapping[str, Any],
    *,
    within: str = "",
    none_is_default: bool = False,
) -> None:
    """Refuse options that are unknown, of another type or out of range.

    :param owner: whose options they are, for messages.
    :param given: option -> value.
    :param known: option -> type, see :func:`option_types`.
    :param within: stands before a name in messages, as ``"strategy."`` does on the
        command line.
    :param none_is_default: any option of a known name may be None.
    :raises SettingError: names the option, what was expected, and close names.
    """
    for name, value in given.items():
        if name not in known:
            raise SettingError(
                f"{owner} has no option {name!r}.{close_names(str(name), known)} "
                f"It takes {', '.join(sorted(known)) or 'none'}"
            )
        if value is not None or not none_is_default:
            label = f"{within}{name}"
            check_value(label, value, known[name], none_is_default=none_is_default)


def check_value(
    name: str, value: Any, hint: Any, *, none_is_default: bool = False
) -> None:
    """Refuse a value of another type or out of range.

    :param name: of the option, for messages.
    :param value: what was given; a mapping may stand for a dataclass.
    :param hint: type of the option.
    :param none_is_default: for options within it, see :func:`check_options`.
    :raises SettingError: says what was expected.
    """
    parts = _alternatives(hint)
    for part in parts:
        if dataclasses.is_dataclass(part) and isinstance(value, Mapping):
            return check_options(
                name,
                value,
                option_types(part),
                within=f"{name}.",
                none_is_default=none_is_default,
            )
    if any(_fits(value, part) for part in parts):
        return None
    for part in parts:
        if _bounds(part) and _fits(value, get_args(part)[0]):
            expected = f"{name} {_range_of(part)}"
            raise SettingError(f"expected {expected} but got {value!r}")
    literals = [part for part in parts if get_origin(part) is Literal]
    choices = [choice for part in literals for choice in get_args(part)]
    if choices and isinstance(value, str):
        guess = close_names(value, choices)
        raise SettingError(f"expected {name} in {choices} but got {value!r}.{guess}")
    wanted = " or ".join(map(type_name, parts))
    if isinstance(value, Real) and not _is_finite(value):
        wanted += ", finite,"
    raise SettingError(f"expected {name} of type {wanted} but got {value!r:.80}")


def _alternatives(hint: Any) -> list[Any]:
    """Types of which a value may be any; those without a range bare."""
    if get_origin(hint) in (Union, types.UnionType):
        return [part for each in get_args(hint) for part in _alternatives(each)]
    if get_origin(hint) is Annotated and not _bounds(hint):
        return _alternatives(get_args(hint)[0])
    return [hint]


def _fits(value: Any, hint: Any) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, part) for part in arguments)
    if origin is Annotated:
        return _fits(value, arguments[0]) and all(
            len(value) >= bound
            if name == "min_length"
            else getattr(operator, name)(value, bound)
            for name, bound in _bounds(hint).items()
        )
    if origin is Literal:
        return value in arguments
    kind = origin or hint
    if kind is Any or kind is None or not isinstance(kind, type):
        return value is None if kind is None else True
    if kind in _BASIC:
        return _BASIC[kind](value)
    if issubclass(kind, Mapping):
        return isinstance(value, Mapping)
    if kind is not type(None) and issubclass(kind, Collection):
        is_list = hasattr(value, "__getitem__")
        is_list = is_list and not isinstance(value, (str, bytes, Mapping))
        element = arguments[0] if arguments else Any
        return is_list and all(_fits(each, element) for each in value)
    if getattr(kind, "_is_protocol", False):
        # A property that is there may fail before its time.
        names, there = get_protocol_members(kind), dir(value)
        return all(name in there or hasattr(value, name) for name in names)
    return isinstance(value, kind)


_BASIC: Mapping[type, Callable[[Any], bool]] = {
    bool: lambda value: isinstance(value, bool),
    int: lambda value: isinstance(value, Integral) and not isinstance(value, bool),
    float: lambda value: (
        isinstance(value, Real) and not isinstance(value, bool) and _is_finite(value)
    ),
    str: lambda value: isinstance(value, str),
    Path: lambda value: isinstance(value, (str, PathLike)) and value != "",
    object: lambda value: True,
}


def _is_finite(value: Any) -> bool:
    """Whether a number has a float, which an integer may not."""
    return bool(abs(value) <= sys.float_info.max)


def _bounds(hint: Any) -> dict[str, Any]:
    """Bounds by their name in ``msgspec.Meta``; none of a type that has no range."""
    if get_origin(hint) is not Annotated:
        return {}
    metas = [m for m in get_args(hint)[1:] if isinstance(m, msgspec.Meta)]
    names = ("ge", "gt", "le", "lt", "min_length")
    found = {name: getattr(meta, name) for meta in metas for name in names}
    return {name: bound for name, bound in found.items() if bound is not None}


def _range_of(hint: Any) -> str:
    """``in [0, 1)`` or ``>= 1``; of a list, how long it is at least."""
    bounds = _bounds(hint)
    if len(bounds) == 2:
        (low, start), (high, end) = bounds.items()
        opening, closing = "[" if low == "ge" else "(", "]" if high == "le" else ")"
        return f"in {opening}{start}, {end}{closing}"
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<", "min_length": "of length >="}
    return " and ".join(f"{signs[name]} {bound}" for name, bound in bounds.items())


def type_name(hint: Any) -> str:
    """What an option may be, in words: ``int >= 1``.

    :param hint: type of the option.
    """
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(map(type_name, get_args(hint)))
    if get_origin(hint) is Literal:
        return " or ".join(map(repr, get_args(hint)))
    if get_origin(hint) is Annotated:
        return f"{type_name(get_args(hint)[0])} {_range_of(hint)}".rstrip()
    if hint is type(None):
        return "None"
    if get_origin(hint) is None and isinstance(hint, type):
        return hint.__name__
    if isinstance(origin := get_origin(hint), type) and get_args(hint):
        return f"{origin.__name__}[{', '.join(map(type_name, get_args(hint)))}]"
    return str(hint).replace("typing.", "").replace("collections.abc.", "")
