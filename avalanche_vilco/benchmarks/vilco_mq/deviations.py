"""Parts of the public training recipe that change numbers, by name.

Each departs from what this package does and is allowed with ``protocol="reference"``
only; docs/reference_deviations.md tells what each changes.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from typing import Any

from avalanche_vilco.benchmarks.scenario import (
    Query,
    QueryIncrementalScenario,
)
from avalanche_vilco.data.moments import MomentSample

REFERENCE_PROTOCOL = "reference"
SELECTIONS = ("last", "best_on_valid", "best_on_test")


@dataclass(frozen=True)
class Deviation:
    """One named departure."""

    option: str
    """Field of :class:`ReferenceDeviations` that it sets."""
    value: str
    """Value of the field."""
    effect: str
    """What it changes, for results."""


DEVIATIONS: Mapping[str, Deviation] = {
    "clip_label_text": Deviation(
        "text",
        "clip_labels",
        "the query text of a clip is its own ground-truth label set, at test too",
    ),
    "cumulative_averages": Deviation(
        "averages",
        "cumulative",
        "an experience weighs as many as the queries seen when it was learnt",
    ),
    "class_slot_memory": Deviation(
        "memory_unit",
        "class_slots",
        "mem_size counts slots of classes, of which one clip may fill several",
    ),
    "seen_negatives": Deviation(
        "negatives",
        "seen",
        "every query learnt so far is a negative where the clip has no window of it",
    ),
    "best_on_test": Deviation(
        "selection",
        "best_on_test",
        "the epoch that is kept is the one of the best mAP on the test stream",
    ),
}
"""All departures by name."""

ALL = "all"
"""Stands for all of :data:`DEVIATIONS`."""

DATA_DEVIATIONS = ("clip_label_text",)
"""Those that a benchmark generator applies; the others are the run's."""


@dataclass(frozen=True)
class ReferenceDeviations:
    """Choices between this package's way, the default, and the public code's.

    :raises ValueError: a choice is none of its options.
    """

    text: str = "learnt"
    """``"learnt"``: all queries learnt so far; ``"clip_labels"``."""
    averages: str = "plain"
    """``"plain"``, or ``"cumulative"``."""
    memory_unit: str = "samples"
    """What a memory's size counts: ``"samples"``, or ``"class_slots"``."""
    negatives: str = "asked"
    """Queries that a clip can be a negative of: ``"asked"``, or ``"seen"``."""
    selection: str = "last"
    """Weights kept of an experience: the ``"last"``, ``"best_on_valid"`` (no departure:
    allowed with every protocol), or ``"best_on_test"``."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value, options = getattr(self, field.name), _options(field.name)
            if value not in options:
                raise ValueError(
                    f"expected {field.name} in {options} but got {value!r}"
                )

    @classmethod
    def from_names(
        cls, names: Iterable[str], *, selection: str = "last"
    ) -> ReferenceDeviations:
        """Choices with some departures on.

        :param names: of :data:`DEVIATIONS`; ``"all"`` stands for all of them.
        :param selection: see :attr:`selection`; ``"last"`` leaves it to the names.
        :raises ValueError: a name is unknown, or two choices exclude each other.
        """
        if isinstance(names, str):
            raise ValueError(
                f"expected a list of deviations but got the text {names!r}"
            )
        given = list(names)
        wanted = (
            [*DEVIATIONS, *(n for n in given if n != ALL)] if ALL in given else given
        )
        chosen = cls(**dict(_setting(name) for name in wanted))
        if selection == "last":
            return chosen
        if chosen.selection not in ("last", selection):
            raise ValueError(
                f"the deviation {chosen.selection!r} and selection={selection!r} exclude "
                "each other: leave out one"
            )
        return replace(chosen, selection=selection)

    @property
    def names(self) -> tuple[str, ...]:
        """Departures that are on, in the order of :data:`DEVIATIONS`."""
        return tuple(
            name
            for name, deviation in DEVIATIONS.items()
            if getattr(self, deviation.option) == deviation.value
        )

    @property
    def effects(self) -> dict[str, str]:
        """What the departures that are on change, by name."""
        return {name: DEVIATIONS[name].effect for name in self.names}

    def validate(self, protocol: str) -> None:
        """Refuse departures outside the reference protocol.

        :param protocol: of the benchmark.
        :raises ValueError: names the departures.
        """
        if self.names and protocol != REFERENCE_PROTOCOL:
            raise ValueError(
                f"expected protocol {REFERENCE_PROTOCOL!r} for the deviations "
                f"{list(self.names)} but got {protocol!r}"
            )

    def weights(self, queries_per_experience: Sequence[int]) -> list[float]:
        """Weight of each experience in averages and forgetting.

        :param queries_per_experience: queries that each brings.
        """
        if self.averages == "plain":
            return [1.0] * len(queries_per_experience)
        return [float(seen) for seen in accumulate(queries_per_experience)]


def _options(name: str) -> list[str]:
    if name == "selection":
        return list(SELECTIONS)
    default = str(ReferenceDeviations.__dataclass_fields__[name].default)
    return [default, *(q.value for q in DEVIATIONS.values() if q.option == name)]


def _setting(name: str) -> tuple[str, str]:
    if name not in DEVIATIONS:
        close = difflib.get_close_matches(name, [*DEVIATIONS, ALL], n=3)
        guess = f" Did you mean {' or '.join(close)}?" if close else ""
        known = ", ".join([*DEVIATIONS, ALL])
        raise ValueError(f"unknown deviation {name!r}.{guess} Available: {known}")
    return DEVIATIONS[name].option, DEVIATIONS[name].value


def with_deviations(
    benchmark: QueryIncrementalScenario, names: Iterable[str]
) -> QueryIncrementalScenario:
    """Apply departures to a benchmark just built, and say so in its ``info``.

    :param benchmark: changed in place; nothing has been read from it yet.
    :param names: of :data:`DATA_DEVIATIONS`.
    :return: the benchmark.
    :raises ValueError: a name is unknown or not the data's, or the protocol is not
        the reference.
    """
    deviations = ReferenceDeviations.from_names(names)
    deviations.validate(benchmark.info["protocol"])
    foreign = sorted(set(deviations.names) - set(DATA_DEVIATIONS))
    if foreign:
        raise ValueError(
            f"expected deviations of the data, {list(DATA_DEVIATIONS)}, but got {foreign}: "
            "pass these to run()"
        )
    if deviations.text == "clip_labels":
        _show_clip_labels(benchmark)
    benchmark.info["deviations"] = list(deviations.names)
    return benchmark


def _show_clip_labels(benchmark: QueryIncrementalScenario) -> None:
    """Every clip shows the texts of its own labels, learnt or not; of no others."""
    stage = "query text of clip_label_text (uses ground truth at test: yes)"
    for name, moments in benchmark.datasets.items():
        moments.samples = tuple(
            _with_own_labels(sample, benchmark.queries) for sample in moments.samples
        )
        tally = benchmark.report.stage(stage, "samples")
        tally.kept += len(moments)
        tally.note(f"in stream {name}", len(moments))
        for experience in benchmark.streams[name]:
            experience.shown_queries = benchmark.queries
    benchmark.info["uses_ground_truth_at_test"] = True
    benchmark.info["query_text"] += ", each clip's own labels"


def _with_own_labels(sample: MomentSample, queries: Sequence[Query]) -> MomentSample:
    own: set[Any] = set(sample.clip.label_ids.tolist())
    return replace(
        sample, shown=tuple(q.class_index for q in queries if q.label_id in own)
    )
