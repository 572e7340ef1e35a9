"""The folder of a run: how far it is, and how it goes on after a stop.

What the folder holds is replaced by what is newer, never removed before: a fresh start
leaves checkpoint and results of the earlier run until its own are written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from avalanche_vilco.core.errors import DataError, SettingError
from avalanche_vilco.core.files import write_atomically
from avalanche_vilco.evaluation.matrix import TaskMatrix
from avalanche_vilco.reports.results import MATRICES_FILE, summary
from avalanche_vilco.reports.runs import (
    PROGRESS_FILE,
    RESULTS_FILE,
    read_results,
    run_of,
)
from avalanche_vilco.training.checkpointing import (
    load_checkpoint,
    read_about,
    save_checkpoint,
)

CHECKPOINT_FILE = "checkpoint.pkl"
LOG_FILE = "log.txt"
BOARD_FOLDER = "tensorboard"
_WAY_OUT = "pass another output, or fresh=true to begin anew and replace it"
_RUN_FILES = (CHECKPOINT_FILE, PROGRESS_FILE, RESULTS_FILE)
_WRITTEN = (LOG_FILE, MATRICES_FILE, BOARD_FOLDER)
"""What a run writes besides, of names that others may use too."""
_FREE = frozenset({"num_workers"})
"""Settings that change no result."""
_LATER: Mapping[str, Any] = {"precision": "float32"}
"""Settings that earlier versions had no choice of."""
_SHOWN: Mapping[str, str] = {
    "config": "",
    "files": "file ",
    "benchmark": "data: ",
    "benchmark_options": "benchmark.",
    "strategy_options": "strategy.",
}
"""How a part of what a run is stands before its names, if not ``part.``."""


class RunFolder:
    """Progress, checkpoint and results of one run.

    :param folder: made when the run begins.
    :param is_free: whatever it holds is to be replaced.
    :raises SettingError: it can be no folder, or not be written.
    """

    def __init__(self, folder: Path, *, is_free: bool = False) -> None:
        # A link to nothing is there, too.
        place = next(p for p in (folder, *folder.parents) if _is_there(p))
        try:
            # Permissions do not tell of file systems that take no file.
            with TemporaryFile(dir=place):
                pass
        except OSError as error:
            raise SettingError(
                f"expected output to be a folder that can be written but got {folder}: "
                f"{place} is no folder, or not yours to write ({error.strerror})"
            ) from None
        for name in (*_RUN_FILES, *_WRITTEN):
            path, wanted = folder / name, "folder" if name == BOARD_FOLDER else "file"
            is_wanted = path.is_dir() if wanted == "folder" else path.is_file()
            if _is_there(path) and not is_wanted:
                raise SettingError(
                    f"expected {path} to be a {wanted}, as a run writes it, but got "
                    "something else: pass another output, or move it"
                )
        self.folder = folder
        self.is_free = is_free
        self.checkpoint = folder / CHECKPOINT_FILE
        self.progress_file = folder / PROGRESS_FILE
        self.results_file = folder / RESULTS_FILE
        self.identity: dict[str, Any] = {}
        """What a run that goes on must share with the one that stopped; JSON-safe."""

    def claim(
        self, identity: Mapping[str, Any], *, open_settings: Collection[str] = ()
    ) -> None:
        """Refuse a folder of another run, or of files that a run would write over.

        :param identity: of this run, or a part of it.
        :param open_settings: not decided yet.
        :raises SettingError: names settings with their old and new values.
        """
        self.identity = json.loads(json.dumps(identity))
        if (state := self._state()) is not None:
            _refuse_another(self.folder, state, self.identity, open_settings)
        elif not (self.is_free or self.checkpoint.is_file()):
            found = [name for name in _WRITTEN if _is_there(self.folder / name)]
            if found:
                raise SettingError(
                    f"{self.folder} holds {' and '.join(found)}, which a run writes, "
                    f"but no run: {_WAY_OUT}"
                )

    def finished(self, echo: Callable[[str], None]) -> dict[str, Any] | None:
        """Results of the run that the folder holds, told again, if it is finished."""
        state = self._state()
        if state is None or not state.get("finished", self.results_file.is_file()):
            return None
        try:
            results = self._results()
        except DataError as error:
            echo(f"{error.file}: {error.problem}: it is written anew")
            return None
        matrices = results["matrices"].items()
        echo(summary(results, {n: TaskMatrix.from_dict(m) for n, m in matrices}))
        echo(f"{self.folder} is finished: nothing is run, fresh=true begins anew")
        return results

    def begin(self) -> None:
        """Make the folder, and note what the run is unless it holds one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.progress_file.is_file() or self.results_file.is_file()):
            self.write_progress([])

    def write_progress(
        self, seconds: list[dict[str, float]], *, finished: bool = False
    ) -> None:
        """Note what the run is, how long each experience took and whether it ended."""
        state = {**self.identity, "seconds": seconds, "finished": finished}
        write_atomically(self.progress_file, json.dumps(state))

    def save(self, strategy: Any, seconds: list[dict[str, float]]) -> None:
        """Keep a strategy that has learnt an experience."""
        # The checkpoint alone says how far the run is, in one file that is written
        # whole: a stop in between leaves nothing that does not go together.
        about = {"run": self.identity, "seconds": seconds}
        with _without_loggers(strategy):
            save_checkpoint(strategy, self.checkpoint, about)
        self.write_progress(seconds)

    def load(
        self, strategy: Any, echo: Callable[[str], None]
    ) -> tuple[Any, list[dict[str, float]]]:
        """The strategy as the last experience left it, and the times of all.

        :param strategy: built as the saved one was.
        :raises DataError: the checkpoint is damaged.
        :raises SettingError: it is of another run.
        """
        if self.is_free or not self.checkpoint.is_file():
            if not self.is_free and self.progress_file.is_file():
                echo(f"nothing to resume in {self.folder}: starting anew")
            return strategy, []
        try:
            about = read_about(self.checkpoint)
            _refuse_another(self.checkpoint, about.get("run", {}), self.identity)
            strategy, done = load_checkpoint(strategy, self.checkpoint)
        except DataError as error:
            hint = "fresh=true begins anew and replaces it"
            raise DataError(self.checkpoint, error.problem, hint=hint) from error
        echo(f"resumed after {done} experiences")
        self.write_progress(about["seconds"])
        return strategy, about["seconds"]

    def _state(self) -> dict[str, Any] | None:
        """What the folder says of the run it holds, if that is not to be replaced."""
        if self.is_free:
            return None
        if self.progress_file.is_file():
            return read_progress(self.folder, _WAY_OUT)
        if not self.results_file.is_file():
            return None
        try:
            results = self._results()
        except DataError as error:
            raise DataError(error.file, error.problem, hint=_WAY_OUT) from None
        return {**results, "files": results["data"]["files"]}

    def _results(self) -> dict[str, Any]:
        """Content of the results file, which is refused if it is damaged."""
        raw = read_results(self.results_file)
        run_of(raw, self.folder)
        return raw


def _is_there(path: Path) -> bool:
    """Whether a path is anything, if only a link to nothing, or no legal name."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _refuse_another(
    place: Path,
    found: Mapping[str, Any],
    wanted: Mapping[str, Any],
    open_settings: Collection[str] = (),
) -> None:
    """Refuse what is of a run with other settings or data.

    :raises SettingError: names them with their old and new values.
    """
    free = {*_FREE, *open_settings}
    there = {key: found.get(key) for key in wanted}
    differing = [line for name, line in _differences(there, wanted) if name not in free]
    if differing:
        listing = "; ".join(differing[:6])
        if len(differing) > 6:
            listing += f"; and {len(differing) - 6} more"
        raise SettingError(
            f"{place} holds a run with another configuration: {listing}; {_WAY_OUT}"
        )


def _differences(
    found: Mapping[str, Any], wanted: Mapping[str, Any], within: str = ""
) -> Iterator[tuple[str, str]]:
    """Names that have other values, with a line that tells both."""
    for name in [*wanted, *(found.keys() - wanted.keys())]:
        usual = _LATER.get(name, "unset")
        old, new = (side.get(name, usual) for side in (found, wanted))
        if isinstance(new, Mapping) and (name in _SHOWN or within in _SHOWN.values()):
            old = old if isinstance(old, Mapping) else {}
            yield from _differences(old, new, _SHOWN.get(name, f"{within}{name}."))
        elif old != new:
            shown = (f"{value!r:.60}" for value in (old, new))
            yield f"{within}{name}", "{} was {} and is {}".format(within + name, *shown)


def read_progress(folder: Path, advice: str) -> dict[str, Any]:
    """What a run's folder says of it.

    :param advice: what to do if the file is damaged.
    :raises DataError: it is damaged.
    """
    path = folder / PROGRESS_FILE
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        return {**state, "seconds": list(state["seconds"])}
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(path, f"is damaged ({error})", hint=advice) from None


@contextmanager
def _without_loggers(strategy: Any) -> Iterator[None]:
    """Loggers are of a process.

    Loaded from a checkpoint they would write where the run once lay.
    """
    evaluator = strategy.evaluator
    loggers, evaluator.loggers = evaluator.loggers, []
    try:
        yield
    finally:
        evaluator.loggers = loggers
