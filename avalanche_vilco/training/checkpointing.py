"""Save and resume a strategy between experiences.

Avalanche's checkpoints are dill files: load only those of your own runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from avalanche import checkpointing as stock

_HIDDEN_MODULES = ("sgd", "adam", "adamw", "optimizer")


def save_checkpoint(strategy: Any, path: Path | str) -> None:
    """Write a strategy's state atomically, between two experiences.

    :param strategy: not inside its training or evaluation loop.
    """
    path = Path(path)
    unfinished = path.with_name(path.name + ".part")
    with _importable_optimizers():
        stock.save_checkpoint(strategy, str(unfinished))
    os.replace(unfinished, path)


def load_checkpoint(
    strategy: Any, path: Path | str, *, device: str | None = None
) -> tuple[Any, int]:
    """State of a strategy from one's own checkpoint; not for files of others.

    :param strategy: built as the saved one was.
    :param path: file; where there is none the strategy is returned as it is.
    :param device: where what was on a GPU goes; None: where it was.
    :return: the strategy and the number of experiences it has learnt.
    """
    with _importable_optimizers():
        strategy, done = stock.maybe_load_checkpoint(
            strategy, str(path), map_location=device
        )
    return strategy, int(done)


@contextmanager
def _importable_optimizers() -> Iterator[None]:
    """Put back the names of submodules that torch.optim deletes.

    Without them dill pickles optimizer classes by value and fails on what they
    refer to.
    """
    added = [name for name in _HIDDEN_MODULES if not hasattr(torch.optim, name)]
    for name in added:
        setattr(torch.optim, name, sys.modules[f"torch.optim.{name}"])
    try:
        yield
    finally:
        for name in added:
            delattr(torch.optim, name)
