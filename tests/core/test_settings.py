"""Options are refused by name, type and range with what was expected."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypedDict

import msgspec
import pytest

from avalanche_vilco.core.settings import check_options, option_types

Share = Annotated[float, msgspec.Meta(ge=0, lt=1)]


class Store(Protocol):
    def read(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Sources:
    features: Path | str | Store | None = None
    features_of: Literal["clips", "videos"] = "clips"
    rate: Annotated[float, msgspec.Meta(gt=0)] = 1.0


def generate(
    root: Path | str | None = None,
    *,
    count: Annotated[int, msgspec.Meta(ge=1)] = 5,
    share: Share | None = None,
    order: Literal["queries"] | Sequence[int] | None = None,
    with_labels: bool = False,
    sources: Sources | Mapping[str, Any] | None = None,
    transform: Callable[[int], int] | None = None,
    anything=None,
) -> None:
    """A generator."""


class Numbers(TypedDict, total=False):
    epochs: Annotated[int, msgspec.Meta(ge=1)]


def check(target: Any = generate, **given: Any) -> None:
    check_options("benchmark 'b'", given, option_types(target))


@pytest.mark.parametrize(
    "given",
    [
        {"root": "a", "count": 1, "share": 0, "order": [1, 2], "with_labels": True},
        {"root": Path("a"), "share": 0.5, "order": "queries", "anything": object()},
        {"share": None, "order": (3, 1), "sources": {"features": "f", "rate": 2}},
        {"sources": Sources(features=Path("f")), "transform": abs},
    ],
)
def test_what_the_signature_takes_passes(given: dict[str, Any]) -> None:
    check(**given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cuont": 3}, "^benchmark 'b' has no option 'cuont'. Did you mean count?"),
        ({"share": 2.0}, r"^expected share in \[0, 1\) but got 2.0$"),
        ({"share": "2"}, r"expected share of type float in \[0, 1\) or None"),
        ({"share": float("nan")}, r"float in \[0, 1\) or None, finite, but got nan"),
        ({"share": 10**400}, "finite, but got 1000"),
        ({"count": 0}, "^expected count >= 1 but got 0$"),
        ({"count": 2.5}, "expected count of type int >= 1 but got 2.5"),
        ({"count": True}, "expected count of type int >= 1 but got True"),
        ({"with_labels": 1}, "expected with_labels of type bool but got 1"),
        ({"order": "qeries"}, r"order in \['queries'\] but got 'q.*mean q"),
        ({"order": [1, "a"]}, r"expected order of type .*Sequence\[int\] or None"),
        ({"sources": {"feature": 1}}, "sources has no option 'feature'. Did you m"),
        ({"sources": {"features_of": "clip"}}, r"in \['clips', 'videos'\]"),
        ({"sources": {"rate": 0}}, "^expected sources.rate > 0 but got 0$"),
        ({"sources": 3}, "expected sources of type Sources or Mapping"),
        ({"root": 3}, "expected root of type Path or str or None but got 3"),
    ],
)
def test_what_it_does_not_take_is_said(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check(**given)


def test_typed_dictionaries_and_classes_are_signatures_too() -> None:
    check(Numbers, epochs=1)
    with pytest.raises(ValueError, match="expected epochs >= 1 but got 0"):
        check(Numbers, epochs=0)
    check(Sources, features="f")
    with pytest.raises(ValueError, match="It takes features, features_of, rate"):
        check(Sources, zzz="f")
