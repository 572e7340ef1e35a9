"""JSON is read as Python's own decoder reads it, and doubled keys are refused."""

import gc
import json
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from avalanche_vilco.core.errors import DataError
from avalanche_vilco.core.schema import decode_json

# Texts of what is counted to find doubled keys: quotes and colons, escaped or not.
TEXT = st.text('ab":\\\u00e9\ud800', max_size=4)
NUMBER = st.integers(-(2**70), 2**70) | st.floats()


def objects(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Lists of pairs, which may have a key twice."""
    return st.lists(st.tuples(TEXT, values), max_size=4)


VALUES = st.recursive(
    st.none() | st.booleans() | NUMBER | TEXT,
    lambda values: objects(values) | st.lists(values, max_size=3).map(tuple),
    max_leaves=12,
)


class Style(NamedTuple):
    """How JSON is written."""

    space: str
    is_ascii: bool
    is_coded: bool
    """Whether each character of a text is written as its code."""

    def text(self, text: str) -> str:
        if self.is_coded:
            return '"' + "".join(f"\\u{ord(each):04x}" for each in text) + '"'
        return json.dumps(text, ensure_ascii=self.is_ascii)

    def written(self, value: Any) -> str:
        """JSON of a value; a list is an object, a tuple a list."""
        space = self.space
        if isinstance(value, list):
            pairs = (
                f"{self.text(key)}{space}:{space}{self.written(each)}"
                for key, each in value
            )
            return "{" + f",{space}".join(pairs) + "}"
        if isinstance(value, tuple):
            return "[" + f"{space},".join(map(self.written, value)) + "]"
        return self.text(value) if isinstance(value, str) else json.dumps(value)


STYLES = st.builds(
    Style, st.sampled_from(["", " ", "\n\t"]), st.booleans(), st.booleans()
)


def has_doubled_key(value: Any) -> bool:
    """Whether an object anywhere in it has a key twice."""
    if isinstance(value, list):
        keys = [key for key, _ in value]
        parts = [each for _, each in value]
        return len({*keys}) < len(keys) or any(map(has_doubled_key, parts))
    return isinstance(value, tuple) and any(map(has_doubled_key, value))


@given(VALUES, STYLES)
@example([("a", None), ("a", '":')], Style("", True, is_coded=True))
def test_json_says_what_pythons_decoder_says_and_has_no_key_twice(
    value: Any, style: Style
) -> None:
    content = style.written(value).encode(errors="surrogatepass")
    if has_doubled_key(value):
        with pytest.raises(DataError, match="occurs twice in one object"):
            decode_json("file.json", content)
    else:
        # As text, since NaN is no number's equal.
        assert repr(decode_json("file.json", content)) == repr(json.loads(content))


def test_the_search_for_cycles_goes_on_after_a_damaged_file() -> None:
    with pytest.raises(DataError, match="not valid JSON"):
        decode_json("file.json", b'{"a": ')
    assert gc.isenabled()
