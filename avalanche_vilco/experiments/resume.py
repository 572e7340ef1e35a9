"""The folder of a run: how far it is, and how it goes on after a stop."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from avalanche_vilco.core.files import write_atomically
from avalanche_vilco.reports.runs import PROGRESS_FILE, RESULTS_FILE
from avalanche_vilco.training.checkpointing import load_checkpoint, save_checkpoint

CHECKPOINT_FILE = "checkpoint.pkl"


class RunFolder:
    """Progress and checkpoint of one run.

    :param folder: made if absent.
    :param identity: what a run that goes on must share with the one that stopped;
        JSON-safe.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.checkpoint = folder / CHECKPOINT_FILE
        self.progress_file = folder / PROGRESS_FILE
        self._identity = json.loads(json.dumps(identity))

    def claim(self) -> None:
        """Refuse a folder of another run; results of an earlier try go.

        :raises ValueError: it holds one.
        """
        if self.progress_file.is_file():
            state = read_progress(self.folder, "delete the folder")
            differing = sorted(
                key for key, value in self._identity.items() if value != state.get(key)
            )
            if differing:
                raise ValueError(
                    f"{self.folder} holds a run with another configuration: it differs "
                    f"in {differing}; pass another output, or delete the folder"
                )
        (self.folder / RESULTS_FILE).unlink(missing_ok=True)

    def start_anew(self) -> None:
        """Begin without what an earlier try has learnt."""
        # A later resume must not find the weights of an earlier try.
        self.checkpoint.unlink(missing_ok=True)
        self.write_progress([])

    def write_progress(self, seconds: list[dict[str, float]]) -> None:
        """Note what the run is and how long each experience took."""
        state = {**self._identity, "seconds": seconds}
        write_atomically(self.progress_file, json.dumps(state))

    def save(self, strategy: Any, seconds: list[dict[str, float]]) -> None:
        """Keep a strategy that has learnt an experience."""
        # Written first: the checkpoint says how many experiences were learnt, and a
        # stop in between leaves a progress file that is ahead, never behind.
        self.write_progress(seconds)
        with _without_loggers(strategy):
            save_checkpoint(strategy, self.checkpoint)

    def load(
        self, strategy: Any, echo: Callable[[str], None]
    ) -> tuple[Any, list[dict[str, float]]]:
        """The strategy as the last experience left it, and the times of all.

        :param strategy: built as the saved one was.
        """
        if not (self.progress_file.is_file() and self.checkpoint.is_file()):
            echo(f"nothing to resume in {self.folder}: starting anew")
            self.start_anew()
            return strategy, []
        loggers = strategy.evaluator.loggers
        with _without_loggers(strategy):
            strategy, done = load_checkpoint(strategy, self.checkpoint)
        strategy.evaluator.loggers = loggers
        seconds = read_progress(self.folder, "delete the folder")["seconds"][:done]
        echo(f"resumed after {done} experiences")
        self.write_progress(seconds)
        return strategy, seconds


def read_progress(folder: Path, advice: str) -> dict[str, Any]:
    """What a run's folder says of it.

    :param advice: what to do if the file is damaged.
    :raises ValueError: it is damaged.
    """
    path = folder / PROGRESS_FILE
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        return {**state, "seconds": list(state["seconds"])}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}): {advice}") from None


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
