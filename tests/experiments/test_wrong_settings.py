"""Every setting of a run, given what it does not take, is refused by its name."""

import math
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from avalanche_vilco.benchmarks.spec import find_benchmark
from avalanche_vilco.core.errors import SettingError
from avalanche_vilco.core.settings import _alternatives, _fits, option_types
from avalanche_vilco.experiments.config import RunArguments
from avalanche_vilco.experiments.run import run
from avalanche_vilco.training.table import STRATEGIES

NUMBERS = st.sampled_from([-1, -0.5, 0, 0.5, 1.5, 10**400, math.inf, -math.inf])
ODD = st.one_of(
    NUMBERS,
    st.just(math.nan),
    st.booleans(),
    st.text(max_size=5),
    st.lists(NUMBERS, max_size=2),
    st.dictionaries(st.text(max_size=3), NUMBERS, min_size=1, max_size=1),
    st.builds(object),
)


def all_settings() -> list[tuple[str, dict[str, Any], list[str]]]:
    """Name in messages, arguments of ``run``, and where the value goes in them."""
    found = [
        (name, {}, [name])
        for name in RunArguments.__annotations__
        if name not in ("benchmark", "strategy", "output")
    ]
    for name, row in STRATEGIES.items():
        for option in row.options:
            place = ["strategy_options", option]
            found.append((f"strategy.{option}", {"strategy": name}, place))
    for name in ("vilco_mq", "vilco_nlq", "vilco_vq"):
        for option in option_types(find_benchmark(name).build):
            place = ["benchmark_options", option]
            found.append((f"benchmark.{option}", {"benchmark": name}, place))
        for model, build in find_benchmark(name).models.items():
            given = {"benchmark": name, "model": model}
            for option in option_types(build):
                place = ["model_options", option]
                found.append((f"model_options.{option}", given, place))
    return found


def type_of(arguments: dict[str, Any], place: list[str]) -> Any:
    if len(place) == 1:
        return get_type_hints(RunArguments, include_extras=True)[place[0]]
    benchmark = find_benchmark(arguments.get("benchmark", "vilco_mq"))
    known = {
        "strategy_options": lambda: STRATEGIES[arguments["strategy"]].option_types,
        "benchmark_options": lambda: option_types(benchmark.build),
        "model_options": lambda: option_types(benchmark.models[arguments["model"]]),
    }
    return known[place[0]]()[place[1]]


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("empty")


@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.sampled_from(all_settings()), ODD)
def test_wrong_value_of_any_setting_is_refused_by_name(
    untouched: Path, setting: tuple[str, dict[str, Any], list[str]], value: Any
) -> None:
    name, arguments, place = setting
    is_name = isinstance(value, str) and name in ("device", "model", "deviations")
    if not is_name and _fits(value, type_of(arguments, place)):
        return
    wrong = {**arguments, place[0]: value if len(place) == 1 else {place[1]: value}}
    call = {"benchmark": "vilco_mq", "output": untouched / "run", **wrong}
    with pytest.raises(SettingError) as caught:
        run(**call)
    assert name.split(".")[-1].rstrip("s") in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(untouched.iterdir())


def test_every_number_has_a_range() -> None:
    """None may be given that no one has thought about."""
    decided_by_data = {"feature_dim", "text_dim", "image_size"}
    for name, arguments, place in all_settings():
        for kind in _alternatives(type_of(arguments, place)):
            if name.split(".")[-1] not in decided_by_data:
                assert kind not in (int, float), name
