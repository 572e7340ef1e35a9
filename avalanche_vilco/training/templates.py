"""What a stock Avalanche strategy lacks for batches of clips."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.plugins.evaluation import default_evaluator

from avalanche_vilco.core.experiences import whole_experience
from avalanche_vilco.core.random import generators_kept
from avalanche_vilco.core.settings import check_options, option_types
from avalanche_vilco.evaluation.metrics.strategy import release_decoded
from avalanche_vilco.training.experiences import stream_dataset


def localization_evaluator(
    *, future: Any = "nan", loggers: Any = (), **options: Any
) -> EvaluationPlugin:
    """Evaluator with Ego4D's R@kx and the task matrix.

    :param future: as for ``task_matrix_metrics``: ``"value"`` for language queries.
    :param loggers: of ``EvaluationPlugin``: one or several; none by default.
    :param options: ``k``, ``tiou`` and ``budget`` as for ``recall_metrics``.
    :raises SettingError: there is no such option.
    """
    from avalanche_vilco.evaluation.metrics.continual import task_matrix_metrics
    from avalanche_vilco.evaluation.metrics.recall import MomentRecall, recall_metrics

    kinds = option_types(MomentRecall)
    takes = {name: kinds[name] for name in ("k", "tiou", "budget")}
    check_options("localization_evaluator", options, takes)
    matrix = task_matrix_metrics(future=future, **options)
    return _evaluator(loggers, recall_metrics(**options), matrix)


def track_evaluator(
    *, future: Any = "value", loggers: Any = (), **options: Any
) -> EvaluationPlugin:
    """Evaluator of visual queries with their task matrix.

    :param future: as for ``TaskMatrixMetric``.
    :param loggers: of ``EvaluationPlugin``: one or several; none by default.
    :param options: ``reference`` and ``rule`` of ``ResponseTrackMetrics``.
    :raises SettingError: there is no such option.
    """
    from avalanche_vilco.evaluation.metrics.continual import TaskMatrixMetric
    from avalanche_vilco.evaluation.metrics.response_track import (
        ResponseTrackMetrics,
        response_track_metrics,
    )

    kinds = option_types(ResponseTrackMetrics)
    takes = {name: kinds[name] for name in ("reference", "rule")}
    check_options("track_evaluator", options, takes)
    matrix = TaskMatrixMetric(ResponseTrackMetrics(**options), future=future)
    return _evaluator(loggers, response_track_metrics(**options), matrix)


def _evaluator(loggers: Any, *metrics: Any) -> EvaluationPlugin:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="No loggers specified")
        several = isinstance(loggers, Sequence)
        given = list(loggers) if several else loggers
        return EvaluationPlugin(*metrics, loggers=given)


_LOOP_STATE = ("mbatch", "mb_output", "loss", "current_eval_stream")


class BatchObjectMixin:
    """Put in front of a stock strategy, as in ``class X(BatchObjectMixin, Naive)``.

    Mini-batches may hold any object with ``to``: Avalanche 0.6.0 moves such objects
    anyway, its development head raises TypeError. Where the strategy's default
    evaluator is Avalanche's, it becomes :func:`localization_evaluator`, since accuracy
    has no meaning for windows; visual queries want :func:`track_evaluator`.

    A method is a plugin under Naive: ``class X(LocalizationNaive, plugin=XPlugin)``
    takes the arguments of both, and the plugin comes after those that are passed. If an
    argument of the plugin has a dataclass as default, X takes its fields instead. Other
    class keywords are new defaults: ``class X(..., mem_size=200)``.

    Before each epoch the benchmark's :class:`~avalanche_vilco.core.clock.Clock` is set,
    so that data sets which draw something of a sample when it is read (the window of a
    visual query) draw anew. A stock class without this mixin sets no clock and meets in
    every epoch the draws of epoch 0 of experience 0. Where several experiences are
    trained at once, the number is that of the first.

    Evaluation changes nothing that training reads: it leaves the global generators of
    torch, NumPy and Python, the loop's batch and loss and the modes of all modules as
    it found them, also where it is interrupted, or made from within training.
    """

    clock: Any
    device: Any
    experience: Any
    mbatch: Any
    _train_cleanup: Any

    def __init_subclass__(
        cls, *, plugin: Callable[..., Any] | None = None, **defaults: Any
    ) -> None:
        # An __init__ of this class would hide the strategy's parameters: Avalanche
        # reads them to map positional arguments and to find misspelt ones.
        cls.__init__ = _adapted(cls.__init__, plugin, defaults)  # type: ignore[method-assign]
        super().__init_subclass__()

    def eval(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate, as the stock strategy does."""
        state = self._save_train_state()
        # Each loader draws a seed for its workers, with or without any.
        with generators_kept():
            try:
                return super().eval(*args, **kwargs)  # type: ignore[misc]
            finally:
                release_decoded(self)
                self._load_train_state(state)

    def _save_train_state(self) -> dict[str, Any]:
        """What evaluation changes; stock leaves out the second part."""
        state = super()._save_train_state()  # type: ignore[misc]
        return {**state, **{name: getattr(self, name) for name in _LOOP_STATE}}

    def _load_train_state(self, state: Mapping[str, Any]) -> None:
        super()._load_train_state(state)  # type: ignore[misc]
        for name in _LOOP_STATE:
            setattr(self, name, state[name])

    def _after_training(self, **kwargs: Any) -> None:
        super()._after_training(**kwargs)  # type: ignore[misc]
        # JointTraining would keep its last batch with its graph.
        self._train_cleanup()

    def _before_training_epoch(self, **kwargs: Any) -> None:
        clock = getattr(stream_dataset(self.experience), "clock", None)
        if clock is not None:
            number = whole_experience(self.experience).current_experience
            clock.set(number, self.clock.train_exp_epochs)
        super()._before_training_epoch(**kwargs)  # type: ignore[misc]

    def _unpack_minibatch(self) -> None:
        self.mbatch = [part.to(self.device, non_blocking=True) for part in self.mbatch]


def _adapted(
    init: Callable[..., None],
    plugin: Callable[..., Any] | None,
    defaults: Mapping[str, Any],
) -> Callable[..., None]:
    """A strategy's ``__init__`` with a plugin's arguments and other defaults."""
    signature = inspect.signature(init)
    evaluator = signature.parameters.get("evaluator")
    if evaluator is not None and evaluator.default is default_evaluator:
        defaults = {"evaluator": localization_evaluator, **defaults}
    if plugin is None and not defaults:
        return init
    # Stock strategies name their method's arguments after the first three, too.
    names = list(signature.parameters)
    n_first = names.index("criterion") + 1 if "criterion" in names else len(names)
    first, later = names[:n_first], names[n_first:]
    added = _plugin_parameters(plugin) if plugin else {}
    added = {k: p for k, p in added.items() if k not in signature.parameters}

    @functools.wraps(init)
    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        given = {**defaults, **kwargs}
        options = {name: given.pop(name) for name in added if name in given}
        if plugin is not None:
            built = _built_plugin(plugin, options)
            given["plugins"] = [*(given.get("plugins") or ()), built]
        init(self, *args, **given)

    known = {**signature.parameters, **added}
    parameters = [
        known[name].replace(default=defaults.get(name, known[name].default))
        for name in (*first, *added, *later)
    ]
    shown = signature.replace(parameters=parameters)
    initialise.__signature__ = shown  # type: ignore[attr-defined]
    return initialise


def _plugin_parameters(plugin: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Arguments of a plugin, with the fields of its parts instead of the parts."""
    found: dict[str, inspect.Parameter] = {}
    for name, parameter in _parameters(plugin).items():
        part = type(parameter.default)
        found |= _parameters(part) if is_dataclass(part) else {name: parameter}
    return {
        name: parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in found.items()
    }


def _built_plugin(plugin: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    """A plugin from flat options."""
    rest, parts = dict(options), {}
    for name, parameter in _parameters(plugin).items():
        part = type(parameter.default)
        if is_dataclass(part):
            names = [f.name for f in fields(part) if f.name in rest]
            parts[name] = part(**{name: rest.pop(name) for name in names})
    return plugin(**rest, **parts)


def _parameters(target: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(target, eval_str=True).parameters
